"""Two convolutions whose logits are energies: GroupNorm, Swish, a last layer of spectral norm 1.

The normalisation bounds the energy. Without it a client that keeps its model raises the energies
of sampled rows without end, and the gradients that it sends all reach their clip.
"""

from torch import nn

from commonweal.models._blocks import convolution
from commonweal.models._shapes import Shape, image
from commonweal.models._spectral import Spectral


def energy_cnn(shape: Shape, outputs: int, width: int = 16) -> nn.Module:
    """Two 3 x 3 convolutions of stride 2 with GroupNorm and Swish, a linear layer (spectral norm 1)

    width: channels of the first convolution; the second has twice as many
    """
    channels, height, across = image("energy-cnn", shape)
    flat = 2 * width * -(-height // 4) * -(-across // 4)
    return nn.Sequential(
        convolution(channels, width, 3, stride=2),
        nn.GroupNorm(1, width),
        nn.SiLU(),
        convolution(width, 2 * width, 3, stride=2),
        nn.GroupNorm(1, 2 * width),
        nn.SiLU(),
        nn.Flatten(),
        Spectral(flat, outputs),
    )


ENTRIES = {"energy-cnn": energy_cnn}
