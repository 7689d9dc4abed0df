"""Tools that know nothing of federated learning."""
