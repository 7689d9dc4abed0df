"""Residual networks of two-convolution blocks, with any normalisation. (He et al., CVPR 2016)"""

import torch
from torch import Tensor, nn

from commonweal.models._blocks import Norm, classifier, first_stride, unit
from commonweal.models._shapes import Shape, image


class _Block(nn.Module):
    def __init__(self, inputs: int, channels: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *unit(inputs, channels, 3, stride, norm),
            nn.ReLU(),
            *unit(channels, channels, 3, 1, norm),
        )
        self.past: nn.Module = nn.Identity()
        if inputs != channels or stride != 1:
            self.past = nn.Sequential(*unit(inputs, channels, 1, stride, norm))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.past(x))


def residual(
    name: str, shape: Shape, outputs: int, blocks: tuple[int, ...], norm: Norm
) -> nn.Module:
    """A stem, stages of 64, 128, 256, 512 channels, the mean over the image, a linear layer.

    blocks: residual blocks of each stage
    """
    layers = _stem(*image(name, shape), norm)
    inputs = 64
    for stage, count in enumerate(blocks):
        channels = 64 << stage
        for block in range(count):
            stride = 2 if stage and block == 0 else 1
            layers.append(_Block(inputs, channels, stride, norm))
            inputs = channels
    return classifier(layers, inputs, outputs)


def _stem(channels: int, height: int, width: int, norm: Norm) -> list[nn.Module]:
    """The layers before the first block: images that are not small are downsampled twice."""
    stride = first_stride(height, width)
    if stride == 1:
        return [*unit(channels, 64, 3, 1, norm), nn.ReLU()]
    return [*unit(channels, 64, 7, stride, norm), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
