"""Residual networks of two-convolution blocks, with a normalisation of choice. (He et al., CVPR 2016)"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from commonweal.models._shapes import image

__all__ = ["residual"]

Norm = Callable[[int], nn.Module]
SMALL = 64  # pixels up to which images are not shrunk before the first block


class _Block(nn.Module):
    def __init__(self, wide: int, channels: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(wide, channels, 3, stride, 1, bias=False), norm(channels), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, 1, 1, bias=False), norm(channels),
        )  # fmt: skip
        same = wide == channels and stride == 1
        self.past: nn.Module = nn.Identity()
        if not same:
            self.past = nn.Sequential(nn.Conv2d(wide, channels, 1, stride, bias=False), norm(channels))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.past(x))


def residual(name: str, shape: tuple[int, ...], outputs: int, blocks: tuple[int, ...], norm: Norm) -> nn.Module:
    """A stem, stages of 64, 128, 256, 512 channels with so many blocks, the mean over the image, a linear layer."""
    colours, height, width = image(name, shape)
    if max(height, width) <= SMALL:
        stem: list[nn.Module] = [nn.Conv2d(colours, 64, 3, 1, 1, bias=False), norm(64), nn.ReLU()]
    else:
        stem = [nn.Conv2d(colours, 64, 7, 2, 3, bias=False), norm(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    layers, wide = stem, 64
    for stage, count in enumerate(blocks):
        for i in range(count):
            channels = 64 << stage
            layers.append(_Block(wide, channels, 2 if stage and i == 0 else 1, norm))
            wide = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(wide, outputs))
