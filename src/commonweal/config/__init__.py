"""An experiment as text, and names to things."""

__all__: list[str] = []
