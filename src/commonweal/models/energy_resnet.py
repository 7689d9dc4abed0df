"""ResNet-10 as an energy model: GroupNorm, Swish, no pooling, a last layer of spectral norm 1.

He et al., CVPR 2016, as Hahn, dissertation 2024, chapter IV, changes it. Width 64 is the thesis's;
16 has 1/16 of the parameters and of the work.
"""

from functools import partial

from torch import Tensor, nn

from commonweal.models._blocks import convolution, unit
from commonweal.models._shapes import Shape, image
from commonweal.models._spectral import Spectral

NORM = partial(nn.GroupNorm, 1)
BLOCKS = ((1, 1), (2, 2), (2, 4), (2, 8))  # stride and width of each


def energy_resnet(shape: Shape, outputs: int, width: int = 64) -> nn.Module:
    """A 3 x 3 convolution, residual blocks of width, 2, 4 and 8 times width, then a linear layer

    width: channels of the first block
    """
    channels, height, across = image("energy-resnet", shape)
    layers = [*unit(channels, width, 3, 1, NORM), nn.SiLU()]
    inputs = width
    for stride, factor in BLOCKS:
        layers.append(_Block(inputs, factor * width, stride))
        inputs = factor * width
        height = -(-height // stride)
        across = -(-across // stride)
    flat = inputs * height * across
    return nn.Sequential(*layers, nn.Flatten(), Spectral(flat, outputs))


class _Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            *unit(inputs, outputs, 3, stride, NORM),
            nn.SiLU(),
            *unit(outputs, outputs, 3, 1, NORM),
        )
        self.short: nn.Module = nn.Identity()
        if inputs != outputs or stride != 1:
            self.short = convolution(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = self.path(x) + self.short(x)
        return total


ENTRIES = {"energy-resnet": energy_resnet}
