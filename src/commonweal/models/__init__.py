"""One architecture a file: a function from the shape of a row and the number of outputs to a module."""
