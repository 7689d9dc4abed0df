"""FedCGAN: clients average a conditional generator together with its discriminator.

Rasouli, Sun and Rajagopal, FedGAN, 2020, with the auxiliary classifier of Odena et al., ICML 2017:
the baseline of Hahn, dissertation 2024, chapter IV. GroupNorm instead of the authors' BatchNorm,
whose statistics are those of a client's few classes; generated samples are classified by the labels
they were made for (the authors' code draws others at random).
"""

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.functional import softplus

from commonweal.base.tensors import Tensors
from commonweal.protocols.synthetic.fitting import scaled
from commonweal.protocols.synthetic.generating import Generating, GeneratorTask, down, up
from commonweal.task.losses import LOSSES
from commonweal.task.task import Batch


@dataclass(frozen=True, eq=False)
class FedCGAN(Generating):
    """D: softplus(-D(x)) + softplus(D(G(z, y))) + class losses; G: softplus(-D(G)) + class loss

    Both take a step on every batch, at once. Class losses are cross-entropies of D's second head.
    spc: synthetic samples per class; latent: random numbers per row; width: of the first layer
    epochs, steps, batch, lr, decay, decay_every: of a client's training by Adam
    classifier_epochs: epochs of the server's classifier on the synthetic samples
    """

    def build(self) -> GeneratorTask:
        shape, classes = self.population.shape, self.population.outputs
        module = _GAN(shape, classes, self.latent, self.width)
        return _GANTask(module, self.latent, self.population)


class _GAN(nn.Module):
    def __init__(self, shape: tuple[int, ...], classes: int, latent: int, width: int) -> None:
        super().__init__()
        self.generator = up(latent + classes, shape, width)
        self.discriminator = down(shape, 1 + classes, width)

    def forward(self, x: Tensor) -> Tensor:
        """The class head: clients report its loss and score on their real samples."""
        outputs: Tensor = self.discriminator(x)
        return outputs[:, 1:]


class _GANTask(GeneratorTask):
    """Generator and discriminator in one vector; each has the gradient of its own loss."""

    def generator_loss(self, w: Tensor, batch: Batch, noise: Tensor) -> Tensor:
        tensors = self.tensors(w)
        fixed = {name: tensor.detach() for name, tensor in tensors.items()}
        fake = self._generate(tensors, batch.y, noise)
        real_outputs = self.call("discriminator", tensors, scaled(batch.x))
        fake_outputs = self.call("discriminator", tensors, fake.detach())
        source = softplus(-real_outputs[:, 0]) + softplus(fake_outputs[:, 0])
        discriminator = source + _class_losses(real_outputs, batch.y)
        discriminator = discriminator + _class_losses(fake_outputs, batch.y)
        seen = self.call("discriminator", fixed, fake)  # by a discriminator that stays as it is
        generator = softplus(-seen[:, 0]) + _class_losses(seen, batch.y)
        return ((discriminator + generator) * batch.weight).sum()

    def generate(self, w: Tensor, y: Tensor, noise: Tensor) -> Tensor:
        return self._generate(self.tensors(w), y, noise)

    def _generate(self, tensors: Tensors, y: Tensor, noise: Tensor) -> Tensor:
        return self.images("generator", tensors, 2 * noise - 1, y)


def _class_losses(outputs: Tensor, y: Tensor) -> Tensor:
    return LOSSES["cross-entropy"](outputs[:, 1:], y)


ENTRIES = {"fedcgan": FedCGAN}
