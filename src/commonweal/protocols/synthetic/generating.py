"""A generator trained by averaging, with any rule and server optimizer; the server samples from it.

The task of the run is the classifier that is trained on the samples and evaluated; what is averaged
is the vector of the generator's task.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from commonweal.base.errors import ConfigError
from commonweal.base.randomness import BEGIN, SAMPLE, stream
from commonweal.base.tensors import State, Tensors
from commonweal.data.population import Population
from commonweal.protocols.algorithm import Conversation, Group, Request, Sample, TrainingLoss
from commonweal.protocols.averaging import Averaging
from commonweal.protocols.servers.server import ServerOptimizer
from commonweal.protocols.synthetic.fitting import (
    BETAS,
    WEIGHT_DECAY,
    Synthetic,
    check_unit,
    draw_seed,
)
from commonweal.rules.rule import Rule
from commonweal.task.task import Batch, Task
from commonweal.training.client import Client
from commonweal.training.client_state import ClientState
from commonweal.training.objective import Custom, Objective


class GeneratorTask(Task):
    """A task that generates samples from `latent` uniform numbers each."""

    def __init__(self, module: nn.Module, latent: int, population: Population) -> None:
        super().__init__(module, "cross-entropy")
        self.latent = latent
        self.population = population

    def __reduce__(self) -> "tuple[type[GeneratorTask], tuple[object, ...]]":
        return type(self), (self.module, self.latent, self.population)

    def generator_loss(self, w: Tensor, batch: Batch, noise: Tensor) -> Tensor:
        """The batch's loss, from uniform numbers (B, latent)."""
        raise NotImplementedError

    def generate(self, w: Tensor, y: Tensor, noise: Tensor) -> Tensor:
        """Rows with these labels (N,), from uniform numbers (N, latent)."""
        raise NotImplementedError

    def images(self, name: str, tensors: Tensors, numbers: Tensor, y: Tensor) -> Tensor:
        """Images of these labels (N,), which a submodule makes from numbers (N, latent)."""
        _, height, across = self.population.shape
        # torch's one_hot has no batching rule.
        one_hot = y[:, None] == torch.arange(self.population.outputs)
        inputs = torch.cat([numbers, one_hot.float()], 1)
        return self.call(name, tensors, inputs)[..., :height, :across]

    def call(self, name: str, tensors: Tensors, x: Tensor) -> Tensor:
        """Call one submodule on x, with the tensors of the whole module."""
        start = f"{name}."
        own = {n.removeprefix(start): v for n, v in tensors.items() if n.startswith(start)}
        with self._copy_of(self._training) as module:
            submodule = module.get_submodule(name)
            result: Tensor = functional_call(submodule, own, (x,), tie_weights=False)
        return result


@dataclass(frozen=True)
class GeneratorClient(Client):
    """Local training of a `GeneratorTask`."""

    def draws(self, task: Task) -> int:
        assert isinstance(task, GeneratorTask)
        return self.batch * task.latent

    def objective(self, task: Task, message: Tensors) -> Objective:
        return Objective(at=(), custom=Custom(self.loss))

    def loss(self, task: Task, vectors: Tensors, batch: Batch) -> Tensor:
        """The task's loss of a batch."""
        assert isinstance(task, GeneratorTask)
        rows = len(batch.y)
        per_row = vectors["noise"][: rows * task.latent].view(rows, task.latent)
        return task.generator_loss(vectors["w"], batch, per_row)


@dataclass(frozen=True, eq=False)
class Generating(Synthetic):
    """The common part of FedCGAN and FedCVAE; a subclass builds the generator.

    spc: synthetic samples per class; latent: random numbers per row; width: of the first layer
    epochs, steps, batch, lr, decay, decay_every: of a client's training by Adam
    classifier_epochs: epochs of the server's classifier on the synthetic samples
    """

    task: Task
    population: Population
    rule: Rule
    server: ServerOptimizer
    rounds: int = 100
    seed: int = 0
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
        self._check_fields("spc", "latent", "width", "epochs", "batch", least=1)
        self._check_fields("decay_every", "classifier_epochs", least=1)
        self._check_fields("lr", "decay", "steps", above=0)
        self._check_classes()
        shape = self.population.shape
        if len(shape) != 3 or min(shape[1:]) < 4:
            raise ConfigError(
                f"{type(self).__name__.lower()} makes images (channels, height, width) of at "
                f"least 4 x 4, but rows are {shape}"
            )

    def build(self) -> GeneratorTask:
        """The generator and what trains it, as one task."""
        raise NotImplementedError

    @cached_property
    def client_task(self) -> GeneratorTask:
        rng = stream(self.seed, 0, 0, BEGIN)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(draw_seed(rng))
            return self.build()

    @cached_property
    def client(self) -> Client:  # type: ignore[override]  # a field elsewhere
        return GeneratorClient(
            epochs=self.epochs,
            steps=self.steps,
            batch=self.batch,
            lr=self.lr,
            decay=self.decay,
            decay_every=self.decay_every,
            optimizer="adam",
            beta1=BETAS[0],
            beta2=BETAS[1],
            weight_decay=WEIGHT_DECAY,
        )

    @cached_property
    def averaging(self) -> Averaging:
        parts = self.client_task, self.rule, self.client, self.server
        return Averaging(*parts, rounds=self.rounds, seed=self.seed)

    @property
    def epochs_of_classifier(self) -> int:
        return self.classifier_epochs

    @property
    def training_loss(self) -> TrainingLoss:
        return self.averaging.training_loss

    def init(self, population: Population) -> State:
        return self.averaging.init(population) | {"classifier": self.task.initial.clone()}

    def round(self, state: State, sample: Sample) -> Conversation:
        return self.averaging.round(state, sample)

    def init_client(self, seed: int) -> ClientState:
        return self.averaging.init_client(seed)

    def answer(self, request: Request, group: Group) -> tuple[Tensors, ClientState]:
        for client in group.ids.tolist():
            check_unit(group.rows.client(client).x)
        return self.averaging.answer(request, group)

    def samples(self, state: State) -> tuple[Tensor, Tensor]:
        """Synthetic samples and their labels, from the same random numbers in every round."""
        y = torch.arange(self.population.outputs).repeat_interleave(self.spc)
        rng = stream(self.seed, 0, 0, SAMPLE)
        noise = rng.random((len(y), self.latent), dtype=np.float32)
        w = self.averaging.model(state)
        with torch.no_grad():
            x = self.client_task.generate(w, y, torch.from_numpy(noise))
        return x, y


def up(inputs: int, shape: tuple[int, ...], width: int) -> nn.Module:
    """From numbers to images in [0, 1]: a linear layer to a quarter of each side, doubled twice."""
    channels, height, across = shape
    small = (2 * width, -(-height // 4), -(-across // 4))
    return nn.Sequential(
        nn.Linear(inputs, math.prod(small)),
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
    """From images to numbers: each side halved twice, then a linear layer."""
    channels, height, across = shape
    flat = 2 * width * -(-height // 4) * -(-across // 4)
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(width, 2 * width, 3, 2, 1),
        nn.GroupNorm(1, 2 * width),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.Linear(flat, outputs),
    )
