"""A small VGG: pairs of 3x3 convolutions, pooling, and two hidden layers.

Simonyan and Zisserman, ICLR 2015.
"""

from torch import nn

from commonweal.models.shapes import Shape, image

CHANNELS = (32, 64, 128, 128, 256, 256)


def vgg(shape: Shape, outputs: int, channels: tuple[int, ...] = CHANNELS) -> nn.Module:
    """3x3 convolutions with ReLU, 2x2 max pooling after each second, then two hidden layers of 512.

    channels: of the convolutions, an even number of them
    """
    pairs = len(channels) // 2
    inputs, height, width = image("vgg", shape, 1 << pairs)
    layers: list[nn.Module] = []
    for i, count in enumerate(channels):
        layers += [nn.Conv2d(inputs, count, 3, padding=1), nn.ReLU()]
        if i % 2:
            layers.append(nn.MaxPool2d(2))
        inputs = count
    flat = inputs * (height >> pairs) * (width >> pairs)
    return nn.Sequential(
        *layers,
        nn.Flatten(),
        nn.Linear(flat, 512),
        nn.ReLU(),
        nn.Linear(512, 512),
        nn.ReLU(),
        nn.Linear(512, outputs),
    )


ENTRIES = {"vgg": vgg}
