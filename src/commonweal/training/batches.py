"""Which samples each client takes at which step of a round: everything random, drawn beforehand."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from commonweal.base.errors import DataError
from commonweal.data.rows import Rows
from commonweal.training.client import Client
from commonweal.training.task import Task

BY_CLIENT = ("base", "first_row", "sizes", "batch", "steps_per_epoch", "steps", "first_noise")


@dataclass(frozen=True, eq=False)
class BatchSchedule:
    """Which samples each of S clients takes at which step, and the random numbers of each step."""

    order: np.ndarray  # sample numbers in the order they are taken, client after client
    base: np.ndarray  # (S,) where in `order` a client's samples begin
    first_row: np.ndarray  # (S,) the number of a client's first sample
    sizes: np.ndarray  # (S,)
    batch: np.ndarray  # (S,) samples per step
    steps_per_epoch: np.ndarray  # (S,)
    steps: np.ndarray  # (S,)
    noise: np.ndarray  # (sum of steps, draws), client after client
    first_noise: np.ndarray  # (S,) where in `noise` a client's draws begin
    seeds: tuple[int, ...]  # for modules that draw inside (dropout)

    def of(self, positions: np.ndarray) -> "BatchSchedule":
        """The schedule of some of the clients, in this order."""
        chosen = {name: vars(self)[name][positions] for name in BY_CLIENT}
        return replace(self, **chosen, seeds=tuple(self.seeds[k] for k in positions))

    def at(self, step: int, clients: int) -> tuple[Tensor, Tensor, Tensor]:
        """Sample numbers (k, B), weights (k, B) and noise (k, draws) of the first k clients."""
        k = clients
        epoch, position = np.divmod(step, self.steps_per_epoch[:k])
        taken = position * self.batch[:k]  # samples of this epoch that were taken before
        begin = self.base[:k] + epoch * self.sizes[:k] + taken
        length = np.minimum(self.batch[:k], self.sizes[:k] - taken)
        column = np.arange(length.max())
        real = column < length[:, None]
        # Padding repeats the first sample of the batch, with weight 0.
        rows = self.order[begin[:, None] + np.where(real, column, 0)]
        weight = (real / length[:, None]).astype(np.float32)
        noise = self.noise[self.first_noise[:k] + step]
        return torch.from_numpy(rows), torch.from_numpy(weight), torch.from_numpy(noise)

    def first_epoch(self) -> np.ndarray:
        """The samples (steps, S) that clients take at the steps of their first epoch, else 0."""
        last = np.minimum(self.steps_per_epoch, self.steps)
        step = np.arange(last.max())[:, None]
        lengths = np.minimum(self.batch, self.sizes - step * self.batch)
        return np.where(step < last, lengths, 0).astype(np.float32)


def schedule(
    client: Client,
    task: Task,
    rows: Rows,
    ids: Tensor,
    streams: Sequence[np.random.Generator],
    times: np.ndarray | int = 1,
) -> BatchSchedule:
    """Draw everything that is random in the local training of these clients, from their streams.

    ids: the positions (S,) of the clients in `rows`
    times: how many rounds of the method each (S,) makes up for
    """
    n = rows.sizes[ids].numpy()
    batch = np.minimum(n, client.batch or n)
    per_epoch = _steps_per_epoch(task, n, batch)
    epochs_of_round = sum(phase.epochs for phase in client.phases(task))
    steps = np.ceil(epochs_of_round * per_epoch * times).astype(np.int64)
    if client.steps is not None:
        steps = np.full(len(n), client.steps) * times
    epochs = -(-steps // per_epoch)
    first_row = rows.offsets[ids].numpy()
    draws = client.draws(task)
    order, noise, seeds = [], [], []
    for k, rng in zip(range(len(n)), streams, strict=True):
        order += [first_row[k] + rng.permutation(n[k]) for _ in range(epochs[k])]
        noise.append(rng.random((steps[k], draws), dtype=np.float32))
        seeds.append(int(rng.integers(1 << 62)))
    return BatchSchedule(
        order=np.concatenate(order),
        base=np.cumsum(epochs * n) - epochs * n,
        first_row=first_row,
        sizes=n,
        batch=batch,
        steps_per_epoch=per_epoch,
        steps=steps,
        noise=np.concatenate(noise),
        first_noise=np.cumsum(steps) - steps,
        seeds=tuple(seeds),
    )


def _steps_per_epoch(task: Task, sizes: np.ndarray, batch: np.ndarray) -> np.ndarray:
    if task.has_batchnorm:
        if batch.min() < 2:
            raise DataError(
                "BatchNorm needs two samples per step: a client has one training sample, "
                "or batch = 1"
            )
        sizes = sizes - 1  # BatchNorm cannot take a remainder of one sample: it is left out
    steps: np.ndarray = np.maximum(1, -(-sizes // batch))
    return steps


def chunks(task: Task, rows: Rows, plan: BatchSchedule, at_once: int | None) -> list[np.ndarray]:
    """The positions of the clients that are trained together, by falling steps and size.

    Batches of very different lengths are never padded to each other; with normalisation layers
    none are, as padding would enter their statistics.

    at_once: the numbers that clients who are trained together may hold; None: any
    """
    order = np.lexsort((-plan.sizes, -plan.steps))
    sizes = plan.sizes[order]
    widths = plan.batch[order]
    most = len(order)
    if at_once is not None:
        activations = int(widths.max()) * task.width(rows.inputs)
        most = max(1, at_once // (task.size + activations))
    has_buffers = task.size > task.num_trainable
    cuts = []
    start = 0
    for i in range(1, len(order)):
        group = widths[start : i + 1]
        is_alike = sizes[i] == sizes[start] if has_buffers else 2 * group.min() >= group.max()
        if i - start == most or not is_alike:
            cuts.append(i)
            start = i
    return np.split(order, cuts)
