"""Residual networks of two-convolution blocks. (He et al., CVPR 2016)"""

from functools import partial

import torch
from torch import Tensor, nn

from commonweal.models.blocks import Norm, classifier, conv_unit, first_stride
from commonweal.models.shapes import Shape, image


def resnet10(shape: Shape, outputs: int) -> nn.Module:
    """ResNet-10: a residual network of one block per stage, with BatchNorm. (He et al., CVPR 2016)

    Stages of 64, 128, 256, 512 channels (about 4.9 M parameters). Images up to 64 pixels are not
    downsampled before the first block.
    """
    return _residual("resnet10", shape, outputs, (1, 1, 1, 1), nn.BatchNorm2d)


def resnet18_gn(shape: Shape, outputs: int, groups: int = 2) -> nn.Module:
    """ResNet-18 with GroupNorm, whose statistics are per image. (Hsieh et al., ICML 2020)

    Stages of 64, 128, 256, 512 channels, two blocks each (about 11.2 M parameters)
    groups: of channels, in every normalisation
    """
    return _residual("resnet18-gn", shape, outputs, (2, 2, 2, 2), partial(nn.GroupNorm, groups))


def _residual(
    name: str, shape: Shape, outputs: int, blocks: tuple[int, ...], norm: Norm
) -> nn.Module:
    """A stem, stages of 64, 128, 256, 512 channels, the mean over the image, a linear layer.

    blocks: residual blocks of each stage
    """
    channels, height, width = image(name, shape)
    if first_stride(height, width) == 1:
        layers = [*conv_unit(channels, 64, 3, 1, norm), nn.ReLU()]
    else:  # larger images are downsampled twice
        layers = [*conv_unit(channels, 64, 7, 2, norm), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for stage, count in enumerate(blocks):
        channels = 64 << stage
        for block in range(count):
            stride = 2 if stage and block == 0 else 1
            layers.append(_Block(inputs, channels, stride, norm))
            inputs = channels
    return classifier(layers, inputs, outputs)


class _Block(nn.Module):
    def __init__(self, inputs: int, channels: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *conv_unit(inputs, channels, 3, stride, norm),
            nn.ReLU(),
            *conv_unit(channels, channels, 3, 1, norm),
        )
        self.past: nn.Module = nn.Identity()
        if inputs != channels or stride != 1:
            self.past = nn.Sequential(*conv_unit(inputs, channels, 1, stride, norm))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.past(x))


ENTRIES = {"resnet10": resnet10, "resnet18-gn": resnet18_gn}
