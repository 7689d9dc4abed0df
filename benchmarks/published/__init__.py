"""The papers' tables: their cells and experiments as data, and what our runs give."""
