"""A combinator against malicious clients, and its detectors."""
