"""A small energy model: a classifier whose logits are energies."""

from functools import partial

import torch
from torch import Tensor, nn

from commonweal.models.blocks import conv_unit
from commonweal.models.shapes import Shape, image

NORM = partial(nn.GroupNorm, 1)


def energy_cnn(shape: Shape, outputs: int, width: int = 16) -> nn.Module:
    """Two convolutions as an energy model: GroupNorm, Swish, a last layer of spectral norm 1.

    The normalisation bounds the energy. Without it a client that keeps its model raises the
    energies of sampled rows without end, and the gradients that it sends all reach their clip.
    width: channels of the first convolution; the second has twice as many
    """
    channels, height, across = image("energy-cnn", shape)
    flat = 2 * width * -(-height // 4) * -(-across // 4)
    return nn.Sequential(
        *conv_unit(channels, width, 3, 2, NORM),
        nn.SiLU(),
        *conv_unit(width, 2 * width, 3, 2, NORM),
        nn.SiLU(),
        nn.Flatten(),
        Spectral(flat, outputs),
    )


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


ENTRIES = {"energy-cnn": energy_cnn}
