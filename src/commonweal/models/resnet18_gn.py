"""ResNet-18 with GroupNorm, whose statistics are per image. (Hsieh et al., ICML 2020)"""

from functools import partial

from torch import nn

from commonweal.models._resnet import residual
from commonweal.models._shapes import Shape


def resnet18_gn(shape: Shape, outputs: int, groups: int = 2) -> nn.Module:
    """Stages of 64, 128, 256, 512 channels, two blocks each (about 11.2 M parameters)

    groups: of channels, in every normalisation
    """
    return residual("resnet18-gn", shape, outputs, (2, 2, 2, 2), partial(nn.GroupNorm, groups))


ENTRIES = {"resnet18-gn": resnet18_gn}
