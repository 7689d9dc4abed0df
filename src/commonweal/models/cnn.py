"""Two convolutions and a hidden layer: the TwoCNN of McMahan et al., AISTATS 2017."""

from torch import nn

from commonweal.models._shapes import Shape, image

__all__ = ["cnn"]


def cnn(shape: Shape, outputs: int, hidden: int = 512) -> nn.Module:
    """[5x5 convolution, ReLU, 2x2 max pooling] with 32 and 64 channels, then a hidden layer.

    hidden: units of the hidden layer (1,663,370 parameters in all for MNIST)
    """
    channels, height, width = image("cnn", shape, 4)
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), hidden),
        nn.ReLU(),
        nn.Linear(hidden, outputs),
    )


ENTRIES = {"cnn": cnn}
