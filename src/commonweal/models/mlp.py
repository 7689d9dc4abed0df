"""A multilayer perceptron on the flattened row; 200-200 is the TwoNN of McMahan et al. 2017."""

import math
from itertools import pairwise

from torch import nn

from commonweal.base.errors import ConfigError
from commonweal.models.shapes import Shape


def mlp(shape: Shape, outputs: int, hidden: tuple[int, ...] = (200, 200)) -> nn.Module:
    """Linear layers with ReLU between them.

    hidden: the number of units of each hidden layer
    """
    if any(width < 1 for width in hidden):
        raise ConfigError(f"mlp hidden = {list(hidden)}: every layer needs at least one unit")
    widths = [math.prod(shape), *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))


ENTRIES = {"mlp": mlp}
