"""LEAF's network for FEMNIST: the TwoCNN with 2048 hidden units. (Caldas et al. 2018)"""

from torch import nn

from commonweal.models._shapes import Shape
from commonweal.models.cnn import cnn


def femnist_cnn(shape: Shape, outputs: int) -> nn.Module:
    """[5x5 convolution, ReLU, 2x2 max pooling] with 32 and 64 channels, then 2048 units

    6,603,710 parameters for 62 classes.
    """
    return cnn(shape, outputs, hidden=2048)


ENTRIES = {"femnist-cnn": femnist_cnn}
