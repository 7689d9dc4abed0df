"""Logistic regression: one linear layer on the flattened row."""

import math

from torch import nn

from commonweal.models.shapes import Shape


def logistic(shape: Shape, outputs: int) -> nn.Module:
    """outputs = W x + b, initialised with zeros: the loss is convex, so no start is better"""
    linear = nn.Linear(math.prod(shape), outputs)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return nn.Sequential(nn.Flatten(), linear)


ENTRIES = {"logistic": logistic}
