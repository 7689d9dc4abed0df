"""A small VGG: pairs of 3x3 convolutions, pooled thrice, and two hidden layers. (Simonyan and Zisserman, ICLR 2015)"""

from torch import nn

from commonweal.models._shapes import image

__all__ = ["vgg"]


def vgg(shape: tuple[int, ...], outputs: int, channels: tuple[int, ...] = (32, 64, 128, 128, 256, 256)) -> nn.Module:
    """3x3 convolutions with ReLU, 2x2 max pooling after each second, then two hidden layers of 512.

    channels: of the convolutions, an even number of them
    """
    wide, height, width = image("vgg", shape, 1 << (len(channels) // 2))
    layers: list[nn.Module] = []
    for i, count in enumerate(channels):
        layers += [nn.Conv2d(wide, count, 3, padding=1), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if i % 2 else []
        wide = count
    halves = len(channels) // 2
    flat = wide * (height >> halves) * (width >> halves)
    head = [nn.Linear(flat, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, outputs)]
    return nn.Sequential(*layers, nn.Flatten(), *head)
