"""EfficientNet-B0: inverted bottlenecks that weigh their own channels. (Tan and Le, ICML 2019)"""

import torch
from torch import Tensor, nn

from commonweal.models._resnet import SMALL
from commonweal.models._shapes import image

__all__ = ["efficientnet_b0"]

# Expansion, channels, blocks, stride and filter of each stage: the paper's table 1.
STAGES = [(1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5)]
STAGES += [(6, 192, 4, 2, 5), (6, 320, 1, 1, 3)]


def efficientnet_b0(shape: tuple[int, ...], outputs: int, dropout: float = 0.0) -> nn.Module:
    """Seven stages of inverted bottlenecks with BatchNorm and SiLU, the mean over the image, a linear layer.

    dropout: before the last layer (0.2 in the paper; such a model runs client by client)
    """
    colours, h, w = image("efficientnet-b0", shape)
    wide = 32
    layers = _unit(colours, wide, 3, 1 if max(h, w) <= SMALL else 2)
    for expansion, channels, blocks, stride, size in STAGES:
        for i in range(blocks):
            layers.append(_Bottleneck(wide, channels, expansion, stride if i == 0 else 1, size))
            wide = channels
    layers += [*_unit(wide, 1280, 1, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, *([nn.Dropout(dropout)] if dropout else []), nn.Linear(1280, outputs))


def _unit(wide: int, channels: int, size: int, stride: int, groups: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(wide, channels, size, stride, size // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(channels), nn.SiLU()]


class _Bottleneck(nn.Module):
    """Widen, filter each channel, weigh the channels, narrow; added to the input where the shapes agree."""

    def __init__(self, wide: int, channels: int, expansion: int, stride: int, size: int) -> None:
        super().__init__()
        inner = wide * expansion
        layers = _unit(wide, inner, 1, 1) if expansion > 1 else []
        layers += [*_unit(inner, inner, size, stride, groups=inner), _Weigh(inner, wide // 4)]
        layers += [nn.Conv2d(inner, channels, 1, bias=False), nn.BatchNorm2d(channels)]
        self.body = nn.Sequential(*layers)
        self.added = stride == 1 and wide == channels

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.body(x)
        return x + result if self.added else result


class _Weigh(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.down = nn.Conv2d(channels, inner, 1)
        self.up = nn.Conv2d(inner, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean((2, 3), keepdim=True)
        return x * torch.sigmoid(self.up(nn.functional.silu(self.down(mean))))
