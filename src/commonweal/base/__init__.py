"""Tools that know nothing of federated learning."""

__all__: list[str] = []
