"""MobileNet: each convolution taken apart into one per channel and one across channels. (Howard et al. 2017)"""

from torch import nn

from commonweal.models._resnet import SMALL
from commonweal.models._shapes import image

__all__ = ["mobilenet"]

# Channels and stride of the thirteen pairs.
PAIRS = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *((512, 1),) * 5, (1024, 2), (1024, 1))


def mobilenet(shape: tuple[int, ...], outputs: int, width: float = 1.0) -> nn.Module:
    """A stem, 13 pairs of depthwise and pointwise convolutions with BatchNorm, the mean over the image, a linear layer.

    width: the multiplier of all channels; images up to 64 pixels enter unshrunk
    """
    colours, h, w = image("mobilenet", shape)
    wide = round(32 * width)
    layers = _unit(colours, wide, 3, 1 if max(h, w) <= SMALL else 2)
    for channels, stride in PAIRS:
        layers += _unit(wide, wide, 3, stride, groups=wide)
        layers += _unit(wide, wide := round(channels * width), 1, 1)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(wide, outputs))


def _unit(wide: int, channels: int, size: int, stride: int, groups: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(wide, channels, size, stride, size // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(channels), nn.ReLU()]
