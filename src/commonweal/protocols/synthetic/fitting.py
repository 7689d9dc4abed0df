"""Tools of algorithms for synthetic samples, and training as the authors' code does it."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from commonweal.base.errors import ConfigError, DataError
from commonweal.base.randomness import CLASSIFY, stream
from commonweal.base.tensors import State
from commonweal.data.population import Population
from commonweal.protocols.algorithm import Algorithm
from commonweal.rules.rule import Need, Rule
from commonweal.task.task import Batch, Task
from commonweal.training.optimizers import Optimizer

# What the authors' code trains everything with.
BETAS = (0.5, 0.999)
WEIGHT_DECAY = 1e-4


class Synthetic(Algorithm):
    """Gives the server labelled samples, on which it trains the classifier that is evaluated."""

    population: Population
    rule: Rule
    seed: int
    batch: int
    lr: float

    @property
    def needs(self) -> frozenset[Need]:
        return self.rule.needs

    @property
    def epochs_of_classifier(self) -> int:
        raise NotImplementedError

    def samples(self, state: State) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def before_evaluation(self, state: State) -> State:
        """Train the server's classifier on the synthetic samples alone."""
        rng = stream(self.seed, int(state["round"]), 0, CLASSIFY)
        samples = self.samples(state)
        w = fit_model(self.task, *samples, self.epochs_of_classifier, self.batch, self.lr, rng)
        return state | {"classifier": w}

    def model(self, state: State) -> Tensor:
        """The server's classifier, as of the last evaluation."""
        w: Tensor = state["classifier"]
        return w

    def _check_classes(self) -> None:
        """Raise ConfigError where the data has no classes."""
        if self.task.loss != "cross-entropy":
            name = type(self).__name__.lower()
            raise ConfigError(f"{name} needs classes, but the loss is {self.task.loss!r}")


def adam(lr: float) -> Optimizer:
    """Adam as the authors' code sets it."""
    return Optimizer("adam", lr, weight_decay=WEIGHT_DECAY, betas=BETAS)


def batches(
    n: int, size: int, epochs: int, steps: int | None, rng: np.random.Generator
) -> Iterator[Tensor]:
    """Row numbers of `steps` batches, or of `epochs` epochs, each in a random order."""
    per_epoch = -(-n // size)
    for step in range(steps or epochs * per_epoch):
        if step % per_epoch == 0:
            order = rng.permutation(n)
        begin = step % per_epoch * size
        yield torch.from_numpy(order[begin : begin + size])


def fit_model(
    task: Task, x: Tensor, y: Tensor, epochs: int, batch: int, lr: float, rng: np.random.Generator
) -> Tensor:
    """Train the task's model on these samples from a new random initialisation."""
    w = task.reinitialised(draw_seed(rng)).initial
    optimizer = adam(lr)
    memory = optimizer.memory(w)
    with torch.random.fork_rng(devices=[]):
        if task.has_dropout:  # it draws from torch's generator
            torch.manual_seed(draw_seed(rng))
        for index in batches(len(y), batch, epochs, None, rng):
            if task.has_batchnorm and len(index) == 1:
                continue  # BatchNorm cannot take a remainder of one row
            leaf = w.detach().requires_grad_()
            weight = torch.full((len(index),), 1 / len(index))
            loss, buffers = task.batch_loss(leaf, Batch(x[index], y[index], weight))
            optimizer.step(w, torch.autograd.grad(loss, leaf)[0], memory)
            if len(buffers):
                w[task.num_trainable :] = buffers.detach()
    return w


def scaled(x: Tensor) -> Tensor:
    """Rows as the model takes them: bytes become numbers in [0, 1]."""
    return x.to(torch.float32) / 255 if x.dtype == torch.uint8 else x


def check_unit(x: Tensor) -> Tensor:
    """The samples, if they are bytes or in [0, 1], as synthetic ones are; else raise DataError."""
    if x.dtype == torch.uint8:
        return x
    low, high = float(x.amin()), float(x.amax())
    if not x.is_floating_point() or low < 0 or high > 1:
        raise DataError(
            f"synthetic rows are in [0, 1], but there are rows of {x.dtype} from {low:g} to "
            f"{high:g}: scale them to [0, 1], or give images as bytes"
        )
    return x


def draw_seed(rng: np.random.Generator) -> int:
    """A seed for torch's generator."""
    return int(rng.integers(1 << 62))


def standard_normal(shape: Sequence[int], rng: np.random.Generator) -> Tensor:
    """Standard normal numbers."""
    return torch.from_numpy(rng.standard_normal(tuple(shape), dtype=np.float32))
