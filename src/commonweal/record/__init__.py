"""A run's folder: everything that reads or writes it."""
