"""Models: a function per file, from the shape of a row and the number of outputs to a module.

Import one from its file, `from commonweal.models.cnn import cnn`, or build it by its name.
"""
