"""Schedules of the samples of each step of a round: everything random, drawn beforehand."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from commonweal.base.errors import DataError
from commonweal.base.packing import pack
from commonweal.base.shares import product
from commonweal.data.rows import Rows
from commonweal.task.task import Task
from commonweal.training.client import Client

BY_CLIENT = ("base", "first_row", "sizes", "batch", "steps_per_epoch", "steps", "first_noise")


class Drawn(NamedTuple):
    """The numbers that were drawn for a step of k clients."""

    samples: Tensor  # (k, B) their numbers
    weight: Tensor  # (k, B) of the samples' losses: 0 for padding
    noise: Tensor  # (k, draws)


@dataclass(frozen=True, eq=False)
class BatchSchedule:
    """The samples that each of S clients takes at each step, and each step's random numbers."""

    order: np.ndarray  # each client's samples, from 0, in the order they are taken
    base: np.ndarray  # (S,) where in `order` a client's samples begin
    first_row: np.ndarray  # (S,) the number of a client's first sample among those of all
    sizes: np.ndarray  # (S,)
    batch: np.ndarray  # (S,) samples per step
    steps_per_epoch: np.ndarray  # (S,)
    steps: np.ndarray  # (S,)
    noise: np.ndarray  # (sum of steps, draws), client after client
    first_noise: np.ndarray  # (S,) where in `noise` a client's draws begin
    seeds: tuple[int, ...]  # for modules that draw inside (dropout)
    phase_ends: tuple[int, ...] = ()  # the epochs after which other coordinates move

    def of(self, positions: np.ndarray) -> "BatchSchedule":
        """The schedule of some of the clients, in this order."""
        chosen = {name: vars(self)[name][positions] for name in BY_CLIENT}
        return replace(self, **chosen, seeds=tuple(self.seeds[k] for k in positions))

    def phases(self) -> "list[BatchSchedule]":
        """The schedule of each phase of the round."""
        if not self.phase_ends:
            return [self]
        begins = (0, *self.phase_ends)
        ends = (*self.phase_ends, None)
        return [self._between(begin, end) for begin, end in zip(begins, ends, strict=True)]

    def _between(self, begin: int, end: int | None) -> "BatchSchedule":
        """The steps of the epochs begin, ..., end - 1 (None: of all from begin on)."""
        before = np.minimum(begin * self.steps_per_epoch, self.steps)
        until = self.steps if end is None else np.minimum(end * self.steps_per_epoch, self.steps)
        return replace(
            self,
            base=self.base + begin * self.sizes,
            steps=until - before,
            first_noise=self.first_noise + before,
            seeds=tuple(seed + int(k) for seed, k in zip(self.seeds, before, strict=True)),
            phase_ends=(),
        )

    def at(self, step: int, clients: int) -> Drawn:
        """Return the numbers that were drawn for a step of the first k clients."""
        k = clients
        epoch, position = np.divmod(step, self.steps_per_epoch[:k])
        taken = position * self.batch[:k]  # samples of this epoch that were taken before
        begin = self.base[:k] + epoch * self.sizes[:k] + taken
        length = np.minimum(self.batch[:k], self.sizes[:k] - taken)
        column = np.arange(length.max())
        real = column < length[:, None]
        # Padding repeats the first sample of the batch, with weight 0.
        rows = self.order[begin[:, None] + np.where(real, column, 0)]
        rows += self.first_row[:k, None]
        weight = (real / length[:, None]).astype(np.float32)
        noise = self.noise[self.first_noise[:k] + step]
        return Drawn(torch.from_numpy(rows), torch.from_numpy(weight), torch.from_numpy(noise))

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
    epochs_by_phase = [phase.epochs for phase in client.phases(task)]
    epochs_of_round = sum(epochs_by_phase)
    steps = np.ceil(product(epochs_of_round, per_epoch * times)).astype(np.int64)
    if client.steps is not None:
        steps = np.full(len(n), client.steps) * times
    epochs = -(-steps // per_epoch)
    first_row = rows.offsets[ids].numpy()
    draws = client.draws(task)
    order, noise, seeds = [], [], []
    for k, rng in zip(range(len(n)), streams, strict=True):
        order += [rng.permutation(n[k]) for _ in range(epochs[k])]
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
        phase_ends=tuple(accumulate(int(count) for count in epochs_by_phase[:-1])),
    )


def first_batches(
    client: Client, rows: Rows, ids: Tensor, streams: Sequence[np.random.Generator]
) -> Rows:
    """The samples that clients take at their first step, if a schedule draws from these streams.

    ids: the positions (S,) of the clients in `rows`
    """
    parts = []
    for i, rng in zip(ids.tolist(), streams, strict=True):
        n = int(rows.sizes[i])
        order = torch.from_numpy(rng.permutation(n))
        parts.append(int(rows.offsets[i]) + order[: client.batch or n])
    sizes = torch.tensor([0, *map(len, parts)])
    return rows.take(torch.cat(parts), sizes.cumsum(0))


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

    Batches of very different lengths are never padded to each other. None are if a sample's output
    depends on the others, as padding would enter the statistics of a batch.

    at_once: the numbers that clients who are trained together may hold; None: any
    """
    order = np.lexsort((-plan.sizes, -plan.steps))
    widths = plan.batch[order]
    costs = task.size + widths * task.width(rows.inputs)
    by_phase = np.stack([phase.steps[order] for phase in plan.phases()])
    # In every phase, those who are done must be the last ones.
    apart = np.any(np.diff(by_phase, prepend=by_phase[:, :1]) > 0, axis=0)
    if task.mixes(rows.inputs):
        sizes = plan.sizes[order]
        apart |= np.diff(sizes, prepend=sizes[:1]) != 0
    groups = pack(costs.tolist(), at_once, widths.tolist(), apart.tolist())
    return [order[group] for group in groups]
