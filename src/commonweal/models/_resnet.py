"""Residual networks of two-convolution blocks, with any normalisation. (He et al., CVPR 2016)"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from commonweal.models._shapes import image

__all__ = ["SMALL", "residual"]

Norm = Callable[[int], nn.Module]
SMALL = 64  # pixels up to which images are not downsampled before the first block


class _Block(nn.Module):
    def __init__(self, inputs: int, channels: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, channels, 3, stride, 1, bias=False),
            norm(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, 1, 1, bias=False),
            norm(channels),
        )
        self.past: nn.Module = nn.Identity()
        if inputs != channels or stride != 1:
            projection = nn.Conv2d(inputs, channels, 1, stride, bias=False)
            self.past = nn.Sequential(projection, norm(channels))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.past(x))


def residual(
    name: str, shape: tuple[int, ...], outputs: int, blocks: tuple[int, ...], norm: Norm
) -> nn.Module:
    """A stem, stages of 64, 128, 256, 512 channels, the mean over the image, a linear layer.

    blocks: residual blocks of each stage
    """
    colours, height, width = image(name, shape)
    layers: list[nn.Module]
    if max(height, width) <= SMALL:
        layers = [nn.Conv2d(colours, 64, 3, 1, 1, bias=False), norm(64), nn.ReLU()]
    else:
        layers = [nn.Conv2d(colours, 64, 7, 2, 3, bias=False), norm(64), nn.ReLU()]
        layers.append(nn.MaxPool2d(3, 2, 1))
    inputs = 64
    for stage, count in enumerate(blocks):
        channels = 64 << stage
        for block in range(count):
            stride = 2 if stage and block == 0 else 1
            layers.append(_Block(inputs, channels, stride, norm))
            inputs = channels
    head = nn.Linear(inputs, outputs)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
