"""ResNet-10 as an energy model: a classifier whose logits are energies."""

from torch import Tensor, nn

from commonweal.models.blocks import conv_unit, convolution
from commonweal.models.energy_cnn import NORM, Spectral
from commonweal.models.shapes import Shape, image

BLOCKS = ((1, 1), (2, 2), (2, 4), (2, 8))  # stride and width of each


def energy_resnet(shape: Shape, outputs: int, width: int = 64) -> nn.Module:
    """ResNet-10 as an energy model: GroupNorm, Swish, no pooling, a last layer of spectral norm 1.

    He et al., CVPR 2016, as Hahn, dissertation 2024, chapter IV, changes it.
    width: channels of the first block, of four that double them; 64 is the thesis's, 16 has 1/16 of
        the parameters and of the work
    """
    channels, height, across = image("energy-resnet", shape)
    layers = [*conv_unit(channels, width, 3, 1, NORM), nn.SiLU()]
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
            *conv_unit(inputs, outputs, 3, stride, NORM),
            nn.SiLU(),
            *conv_unit(outputs, outputs, 3, 1, NORM),
        )
        self.short: nn.Module = nn.Identity()
        if inputs != outputs or stride != 1:
            self.short = convolution(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = self.path(x) + self.short(x)
        return total
