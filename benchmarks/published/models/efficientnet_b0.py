"""EfficientNet-B0: inverted bottlenecks with squeeze and excitation. (Tan and Le, ICML 2019)"""

import torch
from torch import Tensor, nn

from commonweal.models.blocks import conv_unit, first_stride
from commonweal.models.shapes import Shape, image

# Expansion, channels, blocks, stride and kernel size of each stage: the paper's table 1.
STAGES = [
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
]


def efficientnet_b0(shape: Shape, outputs: int, dropout: float = 0.0, pool: int = 1) -> nn.Module:
    """Seven stages of inverted bottlenecks with BatchNorm and SiLU, image mean, a linear layer.

    dropout: before the last layer (0.2 in the paper; such a model runs client by client)
    pool: the side of the grid of means before the last layer (AAggFF: 7)
    """
    colours, height, width = image("efficientnet-b0", shape)
    inputs = 32
    layers = [
        *conv_unit(colours, inputs, 3, first_stride(height, width), nn.BatchNorm2d),
        nn.SiLU(),
    ]
    for expansion, channels, blocks, stride, size in STAGES:
        for block in range(blocks):
            step = stride if block == 0 else 1
            layers.append(_Bottleneck(inputs, channels, expansion, step, size))
            inputs = channels
    layers += [*conv_unit(inputs, 1280, 1, 1, nn.BatchNorm2d), nn.SiLU()]
    layers += [nn.AdaptiveAvgPool2d(pool), nn.Flatten()]
    if dropout:
        layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers, nn.Linear(1280 * pool**2, outputs))


class _Bottleneck(nn.Module):
    """Expand, convolve per channel, reweight the channels, project; residual where shapes agree."""

    def __init__(self, inputs: int, channels: int, expansion: int, stride: int, size: int) -> None:
        super().__init__()
        inner = inputs * expansion
        layers: list[nn.Module] = []
        if expansion > 1:
            layers += [*conv_unit(inputs, inner, 1, 1, nn.BatchNorm2d), nn.SiLU()]
        self.body = nn.Sequential(
            *layers,
            *conv_unit(inner, inner, size, stride, nn.BatchNorm2d, groups=inner),
            nn.SiLU(),
            _SqueezeExcitation(inner, inputs // 4),
            *conv_unit(inner, channels, 1, 1, nn.BatchNorm2d),
        )
        self.residual = stride == 1 and inputs == channels

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.body(x)
        return x + result if self.residual else result


class _SqueezeExcitation(nn.Module):
    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.down = nn.Conv2d(channels, inner, 1)
        self.up = nn.Conv2d(inner, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean((2, 3), keepdim=True)
        weight = self.up(nn.functional.silu(self.down(mean)))
        return x * torch.sigmoid(weight)
