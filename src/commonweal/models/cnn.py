"""Two convolutions and a hidden layer, for MNIST and FEMNIST."""

from torch import nn

from commonweal.base.errors import ConfigError
from commonweal.models.shapes import Shape, image


def cnn(
    shape: Shape, outputs: int, hidden: int = 512, channels: tuple[int, ...] = (32, 64)
) -> nn.Module:
    """Two convolutions and a hidden layer: the TwoCNN of McMahan et al., AISTATS 2017.

    Twice [5x5 convolution, ReLU, 2x2 max pooling], then a hidden layer.
    hidden: units of the hidden layer (1,663,370 parameters in all for MNIST)
    channels: of both convolutions
    """
    inputs, height, width = image("cnn", shape, 4)
    if len(channels) != 2 or min(channels) < 1:
        raise ConfigError(f"cnn channels = {list(channels)}: name two numbers of at least 1")
    first, second = channels
    return nn.Sequential(
        nn.Conv2d(inputs, first, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(second * (height // 4) * (width // 4), hidden),
        nn.ReLU(),
        nn.Linear(hidden, outputs),
    )


def femnist_cnn(shape: Shape, outputs: int) -> nn.Module:
    """LEAF's network for FEMNIST: the TwoCNN with 2048 hidden units. (Caldas et al. 2018)

    6,603,710 parameters for 62 classes.
    """
    return cnn(shape, outputs, hidden=2048)


ENTRIES = {"cnn": cnn, "femnist-cnn": femnist_cnn}
