"""Pieces that convolutional models share."""

from collections.abc import Callable

from torch import nn

Norm = Callable[[int], nn.Module]  # channels -> their normalisation

SMALL = 64  # pixels up to which images are not downsampled before the first block


def first_stride(height: int, width: int) -> int:
    """The stride of a model's first convolution."""
    return 1 if max(height, width) <= SMALL else 2


def convolution(
    inputs: int, channels: int, size: int, stride: int = 1, groups: int = 1
) -> nn.Module:
    """A convolution without bias, padded such that only its stride reduces the image."""
    padding = size // 2
    return nn.Conv2d(inputs, channels, size, stride, padding, groups=groups, bias=False)


def conv_unit(
    inputs: int, channels: int, size: int, stride: int, norm: Norm, groups: int = 1
) -> list[nn.Module]:
    """A convolution and its normalisation."""
    return [convolution(inputs, channels, size, stride, groups), norm(channels)]


def classifier(layers: list[nn.Module], inputs: int, outputs: int) -> nn.Module:
    """The layers, the mean over the image, and a linear layer."""
    head = nn.Linear(inputs, outputs)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
