"""An experiment guessed from a table, and where the guess is in doubt."""
