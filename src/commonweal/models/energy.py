"""Energy models: classifiers whose logits are energies."""

from functools import partial

import torch
from torch import Tensor, nn

from commonweal.models._blocks import convolution, unit
from commonweal.models._shapes import Shape, image

NORM = partial(nn.GroupNorm, 1)
BLOCKS = ((1, 1), (2, 2), (2, 4), (2, 8))  # stride and width of each


def energy_cnn(shape: Shape, outputs: int, width: int = 16) -> nn.Module:
    """Two convolutions as an energy model: GroupNorm, Swish, a last layer of spectral norm 1.

    The normalisation bounds the energy. Without it a client that keeps its model raises the
    energies of sampled rows without end, and the gradients that it sends all reach their clip.
    width: channels of the first convolution; the second has twice as many
    """
    channels, height, across = image("energy-cnn", shape)
    flat = 2 * width * -(-height // 4) * -(-across // 4)
    return nn.Sequential(
        *unit(channels, width, 3, 2, NORM),
        nn.SiLU(),
        *unit(width, 2 * width, 3, 2, NORM),
        nn.SiLU(),
        nn.Flatten(),
        Spectral(flat, outputs),
    )


def energy_resnet(shape: Shape, outputs: int, width: int = 64) -> nn.Module:
    """ResNet-10 as an energy model: GroupNorm, Swish, no pooling, a last layer of spectral norm 1.

    He et al., CVPR 2016, as Hahn, dissertation 2024, chapter IV, changes it.
    width: channels of the first block, of four that double them; 64 is the thesis's, 16 has 1/16 of
        the parameters and of the work
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


class Spectral(nn.Linear):
    """x (W / |W|)' + b, with the exact spectral norm |W|.

    Miyato et al., ICLR 2018, estimate |W| by a power iteration, whose vectors would be buffers to
    send. For a few classes the exact norm is faster, and needs none.
    """

    def forward(self, x: Tensor) -> Tensor:
        # Weights that diverged have no eigenvalues. The output is NaN in any case.
        gram = (self.weight @ self.weight.mT).nan_to_num(0.0, 0.0, 0.0)
        largest = torch.linalg.eigvalsh(gram)[..., -1]  # (outputs, outputs) -> ()
        return nn.functional.linear(x, self.weight / largest.sqrt(), self.bias)


ENTRIES = {"energy-cnn": energy_cnn, "energy-resnet": energy_resnet}
