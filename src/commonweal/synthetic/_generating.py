"""A generator trained by averaging: any rule, any server step, and at the end the server samples from it.

The job's own task is the classifier that judges the samples; what is averaged is the vector of the generator's task.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from commonweal.algorithm import Averaging, Server, Setting, Told
from commonweal.errors import ConfigError
from commonweal.federation import Rows
from commonweal.local import Lift, Local, Tensors
from commonweal.randomness import BEGIN, CLASSIFY, SAMPLE, stream
from commonweal.rule import Rule
from commonweal.server import ServerStep
from commonweal.synthetic._fit import adam, check, fit, unit
from commonweal.task import Batch, Task

__all__ = ["Generating", "Generation", "Noisy", "down", "up", "with_label"]


@dataclass(frozen=True, eq=False)
class Generation(Task):
    """A task that makes rows: its loss takes `latent` uniform numbers a row. Its vector holds all of the module."""

    latent: int = 1

    def loss_with(self, w: Tensor, batch: Batch, u: Tensor) -> Tensor:
        """The batch's loss, from uniform numbers u (B, latent)."""
        raise NotImplementedError

    def make(self, w: Tensor, y: Tensor, u: Tensor) -> Tensor:
        """Rows with these labels (N,), from uniform numbers u (N, latent)."""
        raise NotImplementedError

    def part(self, name: str, tensors: Tensors, x: Tensor) -> Tensor:
        """One part of the module on x, with the tensors of the whole."""
        own = {key.removeprefix(f"{name}."): t for key, t in tensors.items() if key.startswith(f"{name}.")}
        result: Tensor = functional_call(self._training.get_submodule(name), own, (x,), tie_weights=False)
        return result


@dataclass(frozen=True)
class Noisy(Local):
    """Local training of a `Generation` by Adam."""

    def draws(self, task: Task) -> int:
        assert isinstance(task, Generation)
        return self.batch * task.latent

    def loss(
        self, task: Task, v: Tensors, batch: Batch, seen: Tensors, kept: Tensors, u: Tensor
    ) -> tuple[Tensor, Tensor]:
        assert isinstance(task, Generation)
        noise = u[: len(batch.y) * task.latent].view(len(batch.y), task.latent)
        return task.loss_with(v["w"], batch, noise), v["w"].new_empty(0)

    def descend(self, v: Tensors, slope: Tensors, memory: Tensors, lr: float) -> tuple[Tensors, Tensors]:
        w, memory = adam(v["w"], slope["w"], memory, lr)
        return {"w": w}, memory


@dataclass(frozen=True)
class Generating:
    """What FedCGAN and FedCVAE share; a subclass says what the generator is.

    spc: synthetic rows a class; latent: random numbers behind a row; width: channels of the first layer
    epochs, steps, batch, lr, decay, decay_every: of a client's training, as for other clients, but by Adam
    classifier_epochs: passes over the synthetic rows when the server trains its classifier
    """

    rule: Rule
    step: ServerStep
    setting: Setting
    spc: int = 10
    latent: int = 128
    width: int = 64
    epochs: int = 1
    steps: int | None = None
    batch: int = 64
    lr: float = 1e-3
    decay: float = 0.9
    decay_every: int = 50
    classifier_epochs: int = 100

    def __post_init__(self) -> None:
        check(self, whole=("spc", "latent", "width", "epochs", "batch", "decay_every", "classifier_epochs"))
        check(self, above=("lr", "decay", "steps"))
        name, shape = type(self).__name__.lower(), self.setting.shape
        if self.setting.loss != "cross-entropy":
            raise ConfigError(f"{name} needs classes, but the data's loss is {self.setting.loss!r}")
        if len(shape) != 3 or min(shape[1:]) < 4:
            raise ConfigError(f"{name} makes images (channels, height, width) of at least 4 x 4, but rows are {shape}")

    def build(self) -> Generation:
        """The generator and what trains it, as one task."""
        raise NotImplementedError

    @cached_property
    def task(self) -> Generation:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(stream(self.setting.seed, 0, 0, BEGIN).integers(1 << 62)))
            return self.build()

    @cached_property
    def local(self) -> Local:
        return Noisy(self.epochs, self.steps, self.batch, self.lr, decay=self.decay, decay_every=self.decay_every)

    @cached_property
    def averaging(self) -> Averaging:
        return Averaging(self.rule, self.local, self.step)

    def init(self, task: Task, clients: int) -> Server:
        return self.averaging.init(self.task, clients)

    def ask(self, server: Server) -> Tensors:
        return self.averaging.ask(server)

    def keep(self, task: Task, seed: int) -> Tensors:
        return self.averaging.keep(self.task, seed)

    def work(
        self,
        task: Task,
        seen: Tensors,
        kept: Tensors,
        rows: Rows,
        ids: Tensor,
        streams: Sequence[np.random.Generator],
        lift: Lift,
    ) -> tuple[Tensors, Tensors]:
        for i in ids.tolist():
            unit(rows.of(i).x)
        return self.averaging.work(self.task, seen, kept, rows, ids, streams, lift)

    def tell(self, task: Task, server: Server, ids: Tensor, replies: Tensors, clients: int) -> Told:
        return self.averaging.tell(self.task, server, ids, replies, clients)

    def samples(self, server: Server) -> tuple[Tensor, Tensor]:
        """Synthetic rows and their labels, from the same random numbers in every round."""
        y = torch.arange(self.setting.outputs).repeat_interleave(self.spc)
        u = stream(self.setting.seed, 0, 0, SAMPLE).random((len(y), self.latent), dtype=np.float32)
        with torch.no_grad():
            return self.task.make(self.averaging.model(self.task, server), y, torch.from_numpy(u)), y

    def model(self, task: Task, server: Server) -> Tensor:
        """The server's classifier: trained on the synthetic rows alone."""
        rng = stream(self.setting.seed, int(server["round"]), 0, CLASSIFY)
        x, y = self.samples(server)
        return fit(task, x, y, self.classifier_epochs, self.batch, self.lr, rng)


def up(inputs: int, shape: tuple[int, ...], width: int) -> nn.Module:
    """From numbers to images in [0, 1]: a linear layer to a quarter of each side, then twice doubled."""
    channels, height, across = shape
    small = (2 * width, -(-height // 4), -(-across // 4))
    return nn.Sequential(
        nn.Linear(inputs, small[0] * small[1] * small[2]),
        nn.Unflatten(1, small),
        nn.GroupNorm(1, 2 * width),
        nn.LeakyReLU(0.2),
        nn.ConvTranspose2d(2 * width, width, 4, 2, 1),
        nn.GroupNorm(1, width),
        nn.LeakyReLU(0.2),
        nn.ConvTranspose2d(width, channels, 4, 2, 1),
        nn.Sigmoid(),
    )


def down(shape: tuple[int, ...], outputs: int, width: int) -> nn.Module:
    """From images to numbers: twice halved, then a linear layer."""
    channels, height, across = shape
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(width, 2 * width, 3, 2, 1),
        nn.GroupNorm(1, 2 * width),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.Linear(2 * width * -(-height // 4) * -(-across // 4), outputs),
    )


def with_label(numbers: Tensor, y: Tensor, classes: int) -> Tensor:
    """Numbers (N, p) beside the label as one of `classes` indicators (torch's own one_hot has no batching rule)."""
    return torch.cat([numbers, (y[:, None] == torch.arange(classes)).float()], 1)
