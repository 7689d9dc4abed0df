"""Local training: the loop over the steps of a group of clients.

A client method speaks of one client, and says what it minimises; a trainer evaluates that for a
group. What is random was drawn before (`BatchSchedule`), so that every trainer and every engine
computes the same numbers.

From top to bottom: `train_locally` forms groups of clients. `_Training.train` trains one of them:
vectors to start with, phase after phase, replies. `_Training._trainer` decides how steps are
computed, and `_Phase` takes those of a phase.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from commonweal.base.errors import DataError
from commonweal.base.generator import shared_generator
from commonweal.base.tensors import Tensors, move, select
from commonweal.base.threads import in_threads
from commonweal.data.rows import Rows
from commonweal.data.samples import Inputs, Lazy, Stacked, Transform
from commonweal.task.memory_format import channels_last
from commonweal.task.task import Batch, Task
from commonweal.task.vectorize import Vectorize, single, vmap_clients
from commonweal.training.autograd import AutogradTrainer
from commonweal.training.batches import BatchSchedule, Drawn, chunks
from commonweal.training.client import Client, learning_rate
from commonweal.training.dense import DenseTrainer
from commonweal.training.head import divided, rows_above
from commonweal.training.objective import Objective, Phase, Vectors
from commonweal.training.optimizers import Optimizer
from commonweal.training.trainer import Steps, Trainer


class Trained(NamedTuple):
    """The results of local training, each with a client axis."""

    replies: Tensors
    states: Tensors
    models: Tensor  # (S, d) the trained w; (S, 0) where nobody asked for them


def train_locally(
    client: Client,
    task: Task,
    message: Tensors,
    states: Tensors,
    rows: Rows,
    plan: BatchSchedule,
    vectorize: Vectorize,
    at_once: int | None = None,
    models: bool = True,
    losses: bool = False,
) -> Trained:
    """Train clients from the message and their states (S, ...), on the device of the samples.

    Message, states and what is returned are on the CPU.

    Args:
        rows: The samples of all clients.
        plan: The batches of the clients that train.
        at_once: The numbers that clients who are trained together may hold. None: any.
        models: Whether the trained models are returned along with the replies.
        losses: Whether replies have "train_loss", the mean over the batches of the first epoch.
    """
    message = move(message, rows.device)
    states = move(states, rows.device)
    clients = len(plan.sizes)
    parts = chunks(task, rows, plan, at_once)
    threads = len(parts) if rows.device.type == "cpu" else 1
    gathered: tuple[Tensors, Tensors, Tensors] = ({}, {}, {})
    updates: Tensor | None = None
    if len(parts) > 1 and not models:  # each part writes its own
        updates = message["w"].new_empty(clients, task.size)
        gathered[0]["update"] = updates

    def train(positions: np.ndarray) -> tuple[Tensors, Tensors, Tensors]:
        where = _adjacent(positions)
        place = None
        if updates is not None and isinstance(where, slice):
            place = updates[where].data  # autograd may not ask what other parts write meanwhile
        own_plan = plan.of(positions)
        group = _Training(client, task, message, select(states, where), rows, own_plan, vectorize)
        first_epoch = own_plan.first_epoch() if losses else np.empty((0, len(positions)), "f4")
        batches = torch.from_numpy(first_epoch).to(rows.device)  # (steps, S) their sizes
        if task.counted is not None:
            batches = _counted(task, rows, own_plan, batches)
        watched = torch.zeros_like(batches)  # their losses
        trained = group.train(models, place, watched)
        if losses:
            # A loss of a later epoch may be infinite, which times 0 is not 0.
            totals = torch.where(batches > 0, watched * batches, 0.0)
            trained[0]["train_loss"] = totals.sum(0) / batches.sum(0)
        if updates is not None:
            update = trained[0].pop("update")
            if update is not place:
                updates[where] = update
        return trained

    for positions, trained in zip(parts, in_threads(train, parts, threads), strict=True):
        where = _adjacent(positions)
        for target, values in zip(gathered, trained, strict=True):
            for name, value in values.items():
                if where == slice(0, clients):
                    target[name] = value
                    continue
                if name not in target:
                    target[name] = value.new_empty(clients, *value.shape[1:])
                target[name][where] = value
    replies, states, trained_models = (move(values, "cpu") for values in gathered)
    return Trained(replies, states, trained_models["w"])


def _counted(task: Task, rows: Rows, plan: BatchSchedule, batches: Tensor) -> Tensor:
    """How many positions count in the batches (steps, S) of an epoch."""
    counted = torch.zeros_like(batches)
    for step, sizes in enumerate(batches):
        active = int((sizes > 0).sum())
        drawn = plan.at(step, active)
        y = rows.y[drawn.samples.to(rows.device)]
        counts = task.counts(y.flatten(0, 1))
        assert counts is not None
        real = drawn.weight.to(rows.device) > 0
        counted[step, :active] = (counts.view(real.shape) * real).sum(1).to(batches.dtype)
    return counted


def start_vectors(
    client: Client, task: Task, message: Tensors, states: Tensors, count: int, vectorize: Vectorize
) -> Tensors:
    """The vectors (S, ...) with which S = `count` clients start, from their states (S, ...)."""
    if states:

        def start(state: Tensors) -> Tensors:
            return client.start(task, message, state)

        return vectorize(start, (0,))(states)
    # Clients without a state start alike: vmap would take as long as a step of a small model.
    alike = client.start(task, message, {})
    return {name: value.expand(count, *value.shape) for name, value in alike.items()}


def _adjacent(positions: np.ndarray) -> slice | Tensor:
    """Positions as a slice where they follow each other: then what is selected is a view."""
    if (np.diff(positions) == 1).all():
        return slice(int(positions[0]), int(positions[-1]) + 1)
    return torch.from_numpy(positions)


def _storage(value: Tensor) -> int:
    """The identity of a tensor's storage, which views share. Some have no address."""
    identity: int = value.untyped_storage()._cdata
    return identity


def _begin(value: Tensor) -> tuple[int, int]:
    """Return the address at which a tensor begins in memory."""
    return _storage(value), int(value.storage_offset())


class _Vectors(Vectors):
    """Vectors after training. w may be given by the update alone: few replies need w."""

    def __missing__(self, name: str) -> Tensor:
        if name == "w" and "update" in self:
            return self["received"] - self["update"]
        return super().__missing__(name)


@dataclass(frozen=True, eq=False)
class _Training:
    """Clients that are trained step by step together.

    They come by falling number of steps: those that are done leave at the end of the group, and
    only the others are computed.
    """

    client: Client
    task: Task
    message: Tensors
    states: Tensors
    rows: Rows
    plan: BatchSchedule
    vectorize: Vectorize

    @cached_property
    def objective(self) -> Objective:
        return self.client.objective(self.task, self.message)

    @cached_property
    def lr(self) -> float:
        return learning_rate(self.client, int(self.message["round"]))

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        return self.client.phases(self.task)

    @cached_property
    def optimizer(self) -> Optimizer:
        client = self.client
        return Optimizer(
            client.optimizer,
            self.lr if self.objective.lr is None else self.objective.lr,
            client.momentum,
            client.weight_decay,
            client.clip,
            (client.beta1, client.beta2),
        )

    def _trainer(self, task: Task, rows: Rows, trains: Tensor | None) -> Trainer:
        """Return the trainer of a phase: the closed form where it is possible.

        trains: the coordinates of the task's vector that move; None: all of them
        """
        is_plain = isinstance(rows.inputs, Tensor) and rows.transform is None
        if self.vectorize is vmap_clients and is_plain:
            dense = DenseTrainer.of(task, self.objective, self.optimizer, trains)
            if dense is not None:
                return dense
        if self.vectorize is single:
            task = channels_last(task, rows.inputs)
        mask = None if trains is None else trains.to(rows.device)
        at_once = None
        if self.objective.is_sum:
            samples = int(self.plan.batch.max()) * len(self.plan.batch)
            at_once = task.at_once(rows.inputs, rows.y, samples)
        vectorize = self.vectorize
        return AutogradTrainer(self.objective, self.optimizer, mask, task, vectorize, at_once)

    def train(
        self, models: bool, place: Tensor | None, watched: Tensor
    ) -> tuple[Tensors, Tensors, Tensors]:
        """All steps of the clients. Returns their replies, their states and {"w": models}.

        Args:
            models: Whether the trained models (S, d) are returned; otherwise they are (S, 0).
            place: Where the updates (S, d) go, if that is known.
            watched: Gets the losses of the first batches (steps, S), as many as it has rows.
        """
        received = self.message["w"]
        clients = len(self.plan.steps)
        vectors = start_vectors(
            self.client, self.task, self.message, self.states, clients, self.vectorize
        )
        known = Vectors(vectors | {"received": received, "noise": received})
        for name in self.objective.names:
            known[name]  # raises where there is none
        taken = 0
        phases = self._phases(watched)
        first = phases[0]
        starts_at_received = _begin(vectors["w"]) == _begin(received)
        if first.trainer.first_is_shared and starts_at_received:
            batch = first.batch(first.drawn(0, clients))
            update = first.trainer.first_updates(received, batch, place, watched)
            if self.plan.steps[0] == 1 and not models:
                del vectors["w"]
                return self._replied(vectors | {"update": update}, models, update)
            vectors["w"] = torch.sub(received, update, out=update)
            taken = 1
        self._own_copies(vectors, None if taken else place)
        vectors["received"] = received.expand(clients, -1)
        with _seeded(self.task, self.plan.seeds, self.rows):
            self._train_first(first, vectors, taken)
            for phase in phases[1:]:
                phase.train(vectors)
        return self._replied(vectors, models, place)

    def _phases(self, watched: Tensor) -> "list[_Phase]":
        """The phases of the round. watched: as in `train`"""
        phases = []
        begins = (0, *self.plan.phase_ends)  # epochs
        for phase, plan, begin in zip(self.phases, self.plan.phases(), begins, strict=True):
            phases.append(
                _Phase(
                    self._trainer(self.task, self.rows, phase.trains),
                    self.task,
                    self.rows,
                    plan,
                    self.lr,
                    is_first=begin == 0,
                    watched=watched if begin == 0 else watched[:0],
                )
            )
        return phases

    def _train_first(self, phase: "_Phase", vectors: Tensors, taken: int) -> None:
        """Train the first phase: as a task of its own where only the last layers move."""
        parts = self._divided(phase.plan)
        if parts is not None:
            body, head = parts
            w = self.message["w"][: body.size]
            if torch.equal(vectors["w"][:, : body.size], w.expand(len(phase.plan.steps), -1)):
                rows = rows_above(body, w, self.rows, phase.plan)
                plan = replace(phase.plan, first_row=rows.offsets[:-1].numpy())
                trainer = self._trainer(head, rows, None)
                phase = replace(phase, trainer=trainer, rows=rows, plan=plan)
                vectors = {"w": vectors["w"][:, body.size :]}
        phase.train(vectors, taken)

    def _divided(self, plan: BatchSchedule) -> tuple[Task, Task] | None:
        """The layers that the first phase leaves as they are, and those above, which it trains.

        None: it trains other layers, or what the layers below give may differ from step to step.
        """
        trains = self.phases[0].trains
        if trains is None or self.objective != Objective() or self.rows.transform is not None:
            return None
        if (plan.steps < plan.steps_per_epoch).any() or self.task.draws_inside(self.rows.inputs):
            return None
        return divided(self.task, trains)

    def _own_copies(self, vectors: Tensors, place: Tensor | None) -> None:
        """Let steps change the vectors without changing the message, the states or each other.

        place: where w is copied to, if it is
        """
        given = (*self.message.values(), *self.states.values())
        used = {_storage(value) for value in given}
        constants = self.objective.constants
        for name, value in vectors.items():
            storage = _storage(value)
            is_shared = storage in used or not value.is_contiguous()
            used.add(storage)
            if name in constants or not is_shared:
                continue
            if name == "w" and place is not None:
                vectors[name] = place.copy_(value)
            else:
                vectors[name] = value.clone(memory_format=torch.contiguous_format)

    def _replied(
        self, vectors: Tensors, models: bool, place: Tensor | None
    ) -> tuple[Tensors, Tensors, Tensors]:
        """Return the clients' replies after training, their next states and {"w": models}."""
        received = self.message["w"]
        replies, states = self._replies(vectors)
        if "w" not in vectors:
            update = vectors["update"]
            return {"update": update, **replies}, states, {"w": update[:, :0]}
        w = vectors["w"]
        if models:
            return {"update": received - w, **replies}, states, {"w": w}
        target = w if place is None else place
        replies = _apart(replies, target)
        states = _apart(states, target)
        update = torch.sub(received, w, out=target)
        return {"update": update, **replies}, states, {"w": w[:, :0]}

    def _replies(self, vectors: Tensors) -> tuple[Tensors, Tensors]:
        """Return the clients' replies besides their updates, and their next states."""
        client, task, message = self.client, self.task, self.message
        steps = torch.from_numpy(self.plan.steps).to(self.rows.device)

        def reply(vectors: Tensors, state: Tensors, steps: Tensor) -> tuple[Tensors, Tensors]:
            named = _Vectors(vectors | {"received": message["w"]})
            return client.reply(task, named, message, state, steps)

        if not self.states:
            # What a method replies does not depend on the client: mostly, nothing but the update.
            first = {name: value[0] for name, value in vectors.items()}
            if not any(reply(first, {}, steps[0])):
                return {}, {}
        return self.vectorize(reply, (0, 0, 0))(vectors, self.states, steps)


@dataclass(frozen=True, eq=False)
class _Phase:
    """Epochs of a group of clients in which the same coordinates move."""

    trainer: Trainer
    task: Task
    rows: Rows
    plan: BatchSchedule  # of these epochs
    lr: float  # of the round
    is_first: bool  # in the round
    watched: Tensor  # gets the losses of the first batches (steps, S), as many as it has rows

    def train(self, vectors: Tensors, taken: int = 0) -> None:
        """Change the vectors (S, ...) by all steps of their clients but the first `taken`."""
        objective, optimizer = self.trainer.objective, self.trainer.optimizer
        memory = {name: optimizer.memory(vectors[name]) for name in objective.trained}
        by_count: dict[int, Steps] = {}  # to slice takes time
        reading = self._reading(taken)
        for step in range(taken, self.plan.steps[0]):
            active = self._count_active(step)
            drawn = self.drawn(step, active)
            read = None if reading is None else reading()
            reading = self._reading(step + 1)  # while this step is computed
            if active not in by_count:
                part = slice(active)
                own_memory = {name: select(values, part) for name, values in memory.items()}
                by_count[active] = self.trainer.on(select(vectors, part), own_memory)
            batch = self.batch(drawn, read, step)
            self._step(by_count[active], batch, drawn.noise, step)

    def batch(self, drawn: Drawn, read: Inputs | None = None, step: int = 0) -> Batch:
        """The batches of a step. read: their inputs, if they are read already"""
        x = self.rows.inputs[drawn.samples] if read is None else read
        if self.rows.transform is not None:
            seeds = [seed + step for seed in self.plan.seeds[: len(drawn.samples)]]
            x = _transformed(self.rows.transform, x, seeds)
        y = self.rows.y[drawn.samples]
        return self.trainer.ready(Batch(x, y, self.task.weighted(drawn.weight, y)))

    def drawn(self, step: int, clients: int) -> Drawn:
        """Return the numbers that were drawn for a step of the first k clients."""
        return Drawn(*(value.to(self.rows.device) for value in self.plan.at(step, clients)))

    def _count_active(self, step: int) -> int:
        """Return the number of clients, the first ones, that take this step."""
        return int((self.plan.steps > step).sum())

    def _reading(self, step: int) -> Callable[[], Tensor | Stacked] | None:
        """Begin to read a step's inputs (k, B, ...), where they are read when needed."""
        if not isinstance(self.rows.inputs, Lazy) or step >= self.plan.steps[0]:
            return None
        return self.rows.inputs.begin(self.plan.at(step, self._count_active(step)).samples)

    def _step(self, steps: Steps, batch: Batch, noise: Tensor, step: int) -> None:
        """Take the gradient steps on a batch."""
        objective = self.trainer.objective
        is_watched = step < len(self.watched)
        losses = steps(batch, noise, self.is_first and step == 0, is_watched)
        if is_watched and losses is not None:
            self.watched[step, : len(losses)] = losses
        for _ in range(1, objective.steps):
            steps(batch, noise, False, False)
        if objective.after is not None:
            for name, value in objective.after(steps.vectors, self.lr).items():
                steps.vectors[name].copy_(value)


def _transformed(transform: Transform, x: Inputs, seeds: list[int]) -> Tensor:
    """The batches (S, B, ...) of some clients, each changed by numbers of its own stream."""
    if not isinstance(x, Tensor):
        kind = type(x).__name__
        raise DataError(f"transform needs samples with one input, not {kind}: leave it out")
    batches = []
    for batch, seed in zip(x, seeds, strict=True):
        generator = torch.Generator().manual_seed(seed % (1 << 62))
        with shared_generator() as shared:
            shared.manual_seed(seed % (1 << 62))  # of transforms that draw from torch's generator
            try:
                changed = transform(batch, generator)
            except Exception as error:  # of a user's own code
                reason = f"{type(error).__name__}: {error}"[:200]
                raise DataError(
                    f"transform raised {reason}: give a function of a batch and a torch.Generator"
                ) from error
        if not isinstance(changed, Tensor) or changed.shape != batch.shape:
            shape = tuple(changed.shape) if isinstance(changed, Tensor) else type(changed).__name__
            raise DataError(
                f"transform made {shape} of a batch of shape {tuple(batch.shape)}: let it return a "
                "tensor of the same shape"
            )
        batches.append(changed)
    return torch.stack(batches)


def _apart(values: Tensors, target: Tensor) -> Tensors:
    """Values that stay as they are when another tensor is written to."""
    storage = _storage(target)
    apart = {}
    for name, value in values.items():
        shares = _storage(value) == storage
        apart[name] = value.clone() if shares else value
    return apart


@contextmanager
def _seeded(task: Task, seeds: tuple[int, ...], rows: Rows) -> Iterator[None]:
    """Seed torch's generator for a single client whose module draws inside (dropout).

    torch.random.fork_rng takes as long as training a small client. vmap refuses such modules.
    """
    if len(seeds) > 1 or not task.draws_inside(rows.inputs):
        yield
        return
    with shared_generator() as generator:
        if rows.device.type == "cpu":
            generator.manual_seed(seeds[0])
        else:
            torch.manual_seed(seeds[0])  # the generators of all devices
        yield


# Parameters of glibc's mallopt.
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3


def keep_freed_memory(limit: int = 1 << 30) -> None:
    """Let glibc keep up to `limit` freed bytes for reuse, for the rest of the process.

    A step allocates vectors (S, d) of some megabytes, which glibc would return to the system and
    request again page by page: up to a third of the time of training.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library
        return
    mallopt(M_MMAP_THRESHOLD, limit)
    mallopt(M_TRIM_THRESHOLD, limit)
