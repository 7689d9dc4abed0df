"""An experiment as text, and names to things."""
