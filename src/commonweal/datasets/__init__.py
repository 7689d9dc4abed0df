"""One dataset a file: a function that gives a Federation."""
