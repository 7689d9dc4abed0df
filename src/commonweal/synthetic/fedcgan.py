"""FedCGAN: clients average a conditional generator together with the discriminator that teaches it.

Rasouli, Sun and Rajagopal, FedGAN, 2020, with the auxiliary classifier of Odena et al., ICML 2017: the baseline of
Hahn, dissertation 2024, chapter IV. GroupNorm instead of the authors' BatchNorm, whose statistics are those of a
client's few classes; fakes are classed by the labels they were made for (the authors' code draws others at random).
"""

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.functional import softplus

from commonweal.synthetic._fit import scaled
from commonweal.synthetic._generating import Generating, Generation, down, up, with_label
from commonweal.task import LOSSES, Batch

__all__ = ["FedCGAN"]


@dataclass(frozen=True)
class FedCGAN(Generating):
    """D falls on softplus(-D(x)) + softplus(D(G(z, y))) + class losses, G on softplus(-D(G(z, y))) + class loss

    Both take their step on every batch, at once; class losses are cross-entropies of D's second head.
    spc: synthetic rows a class; latent: random numbers behind a row; width: channels of the first layer
    epochs, steps, batch, lr, decay, decay_every: of a client's training, as for other clients, but by Adam
    classifier_epochs: passes over the synthetic rows when the server trains its classifier
    """

    def build(self) -> Generation:
        return _Game(_Players(self.setting.shape, self.setting.outputs, self.latent, self.width), latent=self.latent)


class _Players(nn.Module):
    def __init__(self, shape: tuple[int, ...], classes: int, latent: int, width: int) -> None:
        super().__init__()
        self.shape, self.classes = shape, classes
        self.generator = up(latent + classes, shape, width)
        self.discriminator = down(shape, 1 + classes, width)

    def forward(self, x: Tensor) -> Tensor:
        """The class head: how well it tells a client's real rows apart is the client's loss and score."""
        outputs: Tensor = self.discriminator(x)
        return outputs[:, 1:]


class _Game(Generation):
    """Both players in one vector, where the gradient of one loss gives each its own."""

    module: _Players

    def loss_with(self, w: Tensor, batch: Batch, u: Tensor) -> Tensor:
        tensors, y, cross = self.tensors(w), batch.y, LOSSES["cross-entropy"]
        fixed = {name: t.detach() for name, t in tensors.items()}
        fake = self._make(tensors, y, u)
        real = self.part("discriminator", tensors, scaled(batch.x))
        caught = self.part("discriminator", tensors, fake.detach())
        passed = self.part("discriminator", fixed, fake)
        judge = softplus(-real[:, 0]) + softplus(caught[:, 0]) + cross(real[:, 1:], y) + cross(caught[:, 1:], y)
        forge = softplus(-passed[:, 0]) + cross(passed[:, 1:], y)
        return ((judge + forge) * batch.share).sum()

    def make(self, w: Tensor, y: Tensor, u: Tensor) -> Tensor:
        return self._make(self.tensors(w), y, u)

    def _make(self, tensors: dict[str, Tensor], y: Tensor, u: Tensor) -> Tensor:
        _, height, across = self.module.shape
        return self.part("generator", tensors, with_label(2 * u - 1, y, self.module.classes))[..., :height, :across]
