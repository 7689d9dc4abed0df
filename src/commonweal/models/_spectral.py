"""What models of energies share: a last layer whose weights have spectral norm 1, and rows that are images."""

import torch
from torch import Tensor, nn

from commonweal.errors import ConfigError

__all__ = ["Spectral", "image"]


def image(model: str, shape: tuple[int, ...]) -> tuple[int, int, int]:
    """The channels, height and width of a row."""
    if len(shape) != 3:
        raise ConfigError(f"{model!r} takes images (channels, height, width), but rows are {shape}: take 'mlp'")
    return shape[0], shape[1], shape[2]


class Spectral(nn.Linear):
    """x (W / |W|)' + b, with the norm itself: for a few classes it costs less than a power iteration, and no memory.

    Miyato et al., ICLR 2018, estimate |W| by a power iteration whose vectors are statistics that would have to travel.
    """

    def forward(self, x: Tensor) -> Tensor:
        # Of weights that diverged the eigenvalues cannot be found; the output is NaN then all the same.
        gram = (self.weight @ self.weight.mT).nan_to_num(0.0, 0.0, 0.0)
        largest = torch.linalg.eigvalsh(gram)[..., -1]  # (outputs, outputs) -> ()
        return nn.functional.linear(x, self.weight / largest.sqrt(), self.bias)
