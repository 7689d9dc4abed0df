"""MobileNet: depthwise and pointwise instead of full convolutions. (Howard et al. 2017)"""

from functools import partial

from torch import nn

from commonweal.models.blocks import Norm, classifier, conv_unit, first_stride
from commonweal.models.shapes import Shape, image

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
    return _mobilenet("mobilenet", shape, outputs, width, nn.BatchNorm2d)


def mobilenet_gn(shape: Shape, outputs: int, width: float = 1.0, groups: int = 2) -> nn.Module:
    """The network mobilenet with GroupNorm, normalised per image. (Hsieh et al., ICML 2020)

    width: the multiplier of all channels; groups: of channels, in every normalisation
    """
    return _mobilenet("mobilenet-gn", shape, outputs, width, partial(nn.GroupNorm, groups))


def _mobilenet(name: str, shape: Shape, outputs: int, width: float, norm: Norm) -> nn.Module:
    colours, height, across = image(name, shape)
    inputs = round(32 * width)
    layers = [*conv_unit(colours, inputs, 3, first_stride(height, across), norm), nn.ReLU()]
    for base_channels, stride in PAIRS:
        channels = round(base_channels * width)
        layers += [*conv_unit(inputs, inputs, 3, stride, norm, groups=inputs), nn.ReLU()]
        layers += [*conv_unit(inputs, channels, 1, 1, norm), nn.ReLU()]
        inputs = channels
    return classifier(layers, inputs, outputs)


ENTRIES = {"mobilenet": mobilenet, "mobilenet-gn": mobilenet_gn}
