"""LEAF's network for CelebA: four small convolutions with group normalisation. (Caldas et al. 2018; AAggFF C.2)"""

from torch import nn

from commonweal.models._shapes import image

__all__ = ["convnet"]


def convnet(shape: tuple[int, ...], outputs: int, channels: int = 32) -> nn.Module:
    """Four times [3x3 convolution without bias, GroupNorm of 32, 16, 8, 4 groups, max pooling, ReLU], 5x5 averages

    channels: of each convolution (a multiple of 32)
    """
    wide, layers = image("convnet", shape)[0], list[nn.Module]()
    for groups in (32, 16, 8, 4):
        layers += [nn.Conv2d(wide, channels, 3, padding=1, bias=False), nn.GroupNorm(groups, channels)]
        layers += [nn.MaxPool2d(2, padding=1), nn.ReLU()]  # with padding, as in the authors' code
        wide = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(5), nn.Flatten(), nn.Linear(25 * channels, outputs))
