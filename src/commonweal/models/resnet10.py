"""ResNet-10: a residual network of one block per stage, with BatchNorm. (He et al., CVPR 2016)"""

from torch import nn

from commonweal.models._resnet import residual
from commonweal.models._shapes import Shape


def resnet10(shape: Shape, outputs: int) -> nn.Module:
    """Stages of 64, 128, 256, 512 channels, one block each (about 4.9 M parameters)

    Images up to 64 pixels are not downsampled before the first block.
    """
    return residual("resnet10", shape, outputs, (1, 1, 1, 1), nn.BatchNorm2d)


ENTRIES = {"resnet10": resnet10}
