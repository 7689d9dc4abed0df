"""MobileNet: depthwise and pointwise instead of full convolutions. (Howard et al. 2017)"""

from torch import nn

from commonweal.models._blocks import classifier, convolution, first_stride
from commonweal.models._shapes import Shape, image

__all__ = ["mobilenet"]

# Channels and stride of the thirteen pairs of convolutions.
PAIRS = (
    (64, 1),
    (128, 2),
    (128, 1),
    (256, 2),
    (256, 1),
    (512, 2),
    *((512, 1),) * 5,
    (1024, 2),
    (1024, 1),
)


def mobilenet(shape: Shape, outputs: int, width: float = 1.0) -> nn.Module:
    """A stem, 13 pairs of depthwise and pointwise convolutions with BatchNorm, mean, linear layer.

    width: the multiplier of all channels; images up to 64 pixels are not downsampled by the stem
    """
    colours, height, across = image("mobilenet", shape)
    inputs = round(32 * width)
    layers = _unit(colours, inputs, 3, first_stride(height, across))
    for base_channels, stride in PAIRS:
        channels = round(base_channels * width)
        layers += _unit(inputs, inputs, 3, stride, groups=inputs)
        layers += _unit(inputs, channels, 1, 1)
        inputs = channels
    return classifier(layers, inputs, outputs)


def _unit(
    inputs: int,
    channels: int,
    size: int,
    stride: int,
    groups: int = 1,
) -> list[nn.Module]:
    return [
        convolution(inputs, channels, size, stride, groups),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
    ]


ENTRIES = {"mobilenet": mobilenet}
