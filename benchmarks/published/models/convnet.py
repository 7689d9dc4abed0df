"""LEAF's network for CelebA: four small convolutions with GroupNorm.

Caldas et al. 2018; AAggFF C.2.
"""

from torch import nn

from commonweal.models.blocks import convolution
from commonweal.models.shapes import Shape, image


def convnet(shape: Shape, outputs: int, channels: int = 32) -> nn.Module:
    """Four times [3x3 convolution without bias, GroupNorm, max pooling, ReLU], then 5x5 averages

    The normalisations have 32, 16, 8 and 4 groups.
    channels: of each convolution (a multiple of 32)
    """
    inputs, _, _ = image("convnet", shape)
    layers: list[nn.Module] = []
    for groups in (32, 16, 8, 4):
        layers += [
            convolution(inputs, channels, 3),
            nn.GroupNorm(groups, channels),
            nn.MaxPool2d(2, padding=1),  # with padding, as in the authors' code
            nn.ReLU(),
        ]
        inputs = channels
    head = nn.Linear(25 * channels, outputs)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(5), nn.Flatten(), head)
