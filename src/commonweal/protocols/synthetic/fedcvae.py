"""FedCVAE: clients average an encoder, and a decoder that makes samples of a class from noise.

Sohn, Lee and Yan, NeurIPS 2015, averaged as the baseline of Hahn, dissertation 2024, chapter IV; as
in their code only the decoder is given the label. GroupNorm instead of the authors' BatchNorm, as
in FedCGAN.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from commonweal.base.tensors import Tensors
from commonweal.data.samples import Inputs
from commonweal.protocols.synthetic.fitting import scaled
from commonweal.protocols.synthetic.generating import Generating, GeneratorTask, down, up
from commonweal.task.task import Batch


@dataclass(frozen=True, eq=False)
class FedCVAE(Generating):
    """loss = reconstruction of x from z ~ q(z | x) and y, + KL(q(z | x) || N(0, I))

    pixels: the sum of squared errors over pixels, which is the evidence lower bound of a Gaussian
    of variance 1 / 2, or their mean as in the authors' code, where the KL term dominates and
    samples blur
    spc: synthetic samples per class; latent: random numbers per row; width: of the first layer
    epochs, steps, batch, lr, decay, decay_every: of a client's training by Adam
    classifier_epochs: epochs of the server's classifier on the synthetic samples
    """

    pixels: Literal["sum", "mean"] = "sum"

    def build(self) -> GeneratorTask:
        shape, classes = self.population.shape, self.population.outputs
        module = _VAE(shape, classes, self.latent, self.width, self.pixels)
        return _VAETask(module, self.latent, self.population)


class _VAE(nn.Module):
    def __init__(
        self, shape: tuple[int, ...], classes: int, latent: int, width: int, pixels: str
    ) -> None:
        super().__init__()
        self.pixels = pixels
        self.encoder = down(shape, 2 * latent, width)
        self.decoder = up(latent + classes, shape, width)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.encoder(x)
        return outputs


class _VAETask(GeneratorTask):
    """Encoder and decoder in one vector, trained on the evidence lower bound."""

    module: _VAE

    def generator_loss(self, w: Tensor, batch: Batch, noise: Tensor) -> Tensor:
        losses, _ = self._row_losses(w, batch.x, batch.y, _gaussian(noise))
        return (losses * batch.weight).sum()

    def evaluate_rows(self, w: Tensor, x: Inputs, y: Tensor) -> tuple[Tensor, Tensors]:
        """Each row's loss at the code's mean; score: 1 - the mean squared reconstruction error."""
        assert isinstance(x, Tensor)
        losses, errors = self._row_losses(w, x, y, None)
        return losses, {self.score: 1 - errors[:, None].double()}

    def generate(self, w: Tensor, y: Tensor, noise: Tensor) -> Tensor:
        return self.images("decoder", self.tensors(w), _gaussian(noise), y)

    def _row_losses(
        self, w: Tensor, x: Tensor, y: Tensor, epsilon: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Losses and mean squared errors of samples (N,). epsilon None: the code is its mean."""
        x = scaled(x)
        tensors = self.tensors(w)
        mean, raw_spread = self.call("encoder", tensors, x).chunk(2, -1)
        spread = softplus(raw_spread) + 1e-8
        code = mean if epsilon is None else mean + spread * epsilon
        decoded = self.images("decoder", tensors, code, y)
        errors = (decoded - x).square().flatten(1)
        reconstruction = errors.sum(1) if self.module.pixels == "sum" else errors.mean(1)
        # KL(N(mean, spread^2) || N(0, I)) per row.
        squares = mean.square() + spread.square() - 1
        divergence = squares.sum(1) / 2 - spread.log().sum(1)
        return reconstruction + divergence, errors.mean(1)


def _gaussian(noise: Tensor) -> Tensor:
    """Uniform numbers in [0, 1) as standard normal ones, at most 4.9 in size (float32)."""
    centred = (2 * noise - 1).clamp(-1 + 1e-6, 1 - 1e-6)
    return math.sqrt(2) * torch.erfinv(centred)


ENTRIES = {"fedcvae": FedCVAE}
