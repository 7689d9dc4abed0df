"""FedCVAE: clients average an encoder and a decoder that makes rows of a class from noise.

Sohn, Lee and Yan, NeurIPS 2015, averaged as the baseline of Hahn, dissertation 2024, chapter IV; as in their
code only the decoder is given the label. GroupNorm instead of the authors' BatchNorm, as in FedCGAN.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from commonweal.synthetic._fit import scaled
from commonweal.synthetic._generating import Generating, Generation, down, up, with_label
from commonweal.task import Batch

__all__ = ["FedCVAE"]


@dataclass(frozen=True)
class FedCVAE(Generating):
    """loss = reconstruction of x from z ~ q(z | x) and y, + KL(q(z | x) || N(0, I))

    pixels: squared errors are summed over pixels, which is the evidence bound of a Gaussian of variance 1 / 2; or their
    mean is taken as in the authors' code, where the KL term drowns the reconstruction and samples blur
    spc: synthetic rows a class; latent: random numbers behind a row; width: channels of the first layer
    epochs, steps, batch, lr, decay, decay_every: of a client's training, as for other clients, but by Adam
    classifier_epochs: passes over the synthetic rows when the server trains its classifier
    """

    pixels: Literal["sum", "mean"] = "sum"

    def build(self) -> Generation:
        module = _Pair(self.setting.shape, self.setting.outputs, self.latent, self.width, self.pixels)
        return _Bound(module, latent=self.latent)


class _Pair(nn.Module):
    def __init__(self, shape: tuple[int, ...], classes: int, latent: int, width: int, pixels: str) -> None:
        super().__init__()
        self.shape, self.classes, self.pixels = shape, classes, pixels
        self.encoder = down(shape, 2 * latent, width)
        self.decoder = up(latent + classes, shape, width)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.encoder(x)
        return outputs


class _Bound(Generation):
    """Encoder and decoder in one vector, and the evidence bound they raise together."""

    module: _Pair

    def loss_with(self, w: Tensor, batch: Batch, u: Tensor) -> Tensor:
        return (self._rows(w, batch.x, batch.y, _gaussian(u))[0] * batch.share).sum()

    def judge(self, w: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Each row's loss at the code's mean, and as its score 1 - the mean squared error of its reconstruction."""
        loss, error = self._rows(w, x, y, None)
        return loss, 1 - error[:, None].double()

    def make(self, w: Tensor, y: Tensor, u: Tensor) -> Tensor:
        return self._decode(self.tensors(w), _gaussian(u), y)

    def _rows(self, w: Tensor, x: Tensor, y: Tensor, epsilon: Tensor | None) -> tuple[Tensor, Tensor]:
        tensors, x = self.tensors(w), scaled(x)
        mean, spread = self.part("encoder", tensors, x).chunk(2, -1)
        spread = softplus(spread) + 1e-8
        code = mean if epsilon is None else mean + spread * epsilon
        error = (self._decode(tensors, code, y) - x).square().flatten(1)
        kl = (mean.square() + spread.square() - 1).sum(1) / 2 - spread.log().sum(1)
        return (error.sum(1) if self.module.pixels == "sum" else error.mean(1)) + kl, error.mean(1)

    def _decode(self, tensors: dict[str, Tensor], code: Tensor, y: Tensor) -> Tensor:
        _, height, across = self.module.shape
        return self.part("decoder", tensors, with_label(code, y, self.module.classes))[..., :height, :across]


def _gaussian(u: Tensor) -> Tensor:
    """Uniform numbers in [0, 1) as standard normal ones; the ends are moved in, since float32 holds no nearer ones."""
    return math.sqrt(2) * torch.erfinv((2 * u - 1).clamp(-1 + 1e-6, 1 - 1e-6))
