"""ResNet-10: a residual network of one block a stage, with BatchNorm. (He et al., CVPR 2016)"""

from torch import nn

from commonweal.models._resnet import residual

__all__ = ["resnet10"]


def resnet10(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Stages of 64, 128, 256, 512 channels; images up to 64 pixels enter unshrunk (about 4.9 M parameters)"""
    return residual("resnet10", shape, outputs, (1, 1, 1, 1), nn.BatchNorm2d)
