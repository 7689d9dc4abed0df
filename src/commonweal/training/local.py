"""Local training: the loop over the steps of a group of clients.

A client method speaks of one client, and says what it minimises; a trainer evaluates that for a
group. What is random was drawn before (`BatchSchedule`), so that every trainer and every engine
computes the same numbers.

From top to bottom: `train_locally` forms groups of clients. `_Group.train` trains one of them:
vectors to start with, steps, replies. `_Group.trainers` decides how the steps are computed.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from commonweal.base.errors import DataError
from commonweal.base.generator import shared_generator
from commonweal.base.tensors import Tensors, move, select
from commonweal.data.rows import Rows
from commonweal.data.samples import Inputs, Lazy, Stacked, Transform
from commonweal.training.autograd import AutogradTrainer, Head
from commonweal.training.batches import BatchSchedule, chunks
from commonweal.training.client import Client, learning_rate
from commonweal.training.dense import DenseTrainer
from commonweal.training.memory_format import channels_last
from commonweal.training.objective import Objective, Phase
from commonweal.training.optimizers import Optimizer
from commonweal.training.task import Batch, Task
from commonweal.training.trainer import Features, Memory, Steps, Trainer
from commonweal.training.vectorize import Vectorize, single, vmap_clients


class Trained(NamedTuple):
    """What local training gave, each with a client axis."""

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
    gathered: tuple[Tensors, Tensors, Tensors] = ({}, {}, {})
    for positions in chunks(task, rows, plan, at_once):
        where = _adjacent(positions)
        is_whole = where == slice(0, clients)
        place = None
        if isinstance(where, slice) and not is_whole and not models:  # updates stay where written
            if "update" not in gathered[0]:
                gathered[0]["update"] = message["w"].new_empty(clients, task.size)
            place = gathered[0]["update"][where]
        own_plan = plan.of(positions)
        group = _Group(client, task, message, select(states, where), rows, own_plan, vectorize)
        first_epoch = own_plan.first_epoch() if losses else np.empty((0, len(positions)), "f4")
        batches = torch.from_numpy(first_epoch).to(rows.device)  # (steps, S) their sizes
        watched = torch.zeros_like(batches)  # their losses
        trained = group.train(models, place, watched)
        if losses:
            # A loss of a later epoch may be infinite, which times 0 is not 0.
            totals = torch.where(batches > 0, watched * batches, 0.0)
            trained[0]["train_loss"] = totals.sum(0) / batches.sum(0)
        for target, values in zip(gathered, trained, strict=True):
            for name, value in values.items():
                if is_whole:
                    target[name] = value
                elif value is not place:
                    if name not in target:
                        target[name] = value.new_empty(clients, *value.shape[1:])
                    target[name][where] = value
    replies, states, trained_models = (move(values, "cpu") for values in gathered)
    return Trained(replies, states, trained_models["w"])


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
    """Where a tensor begins in memory."""
    return _storage(value), int(value.storage_offset())


class _Vectors(dict[str, Tensor]):
    """Vectors after training. w may be given by the update alone: few replies need w."""

    def __missing__(self, name: str) -> Tensor:
        if name == "w":
            return self["received"] - self["update"]
        raise KeyError(name)


@dataclass(frozen=True, eq=False)
class _Group:
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

    @cached_property
    def trainers(self) -> tuple[Trainer, ...]:
        """A trainer for every phase of a round: the closed form where it is possible."""
        features = Features(self.plan.sizes, self.plan.first_row)
        is_plain = isinstance(self.rows.inputs, Tensor) and self.rows.transform is None
        if self.vectorize is vmap_clients and is_plain:
            dense = DenseTrainer.of(
                self.task, self.objective, self.optimizer, self.phases, features
            )
            if dense is not None:
                return dense
        alone = self.vectorize is single
        task = channels_last(self.task, self.rows.inputs) if alone else self.task
        trainers: list[Trainer] = []
        for phase in self.phases:
            mask = None if phase.trains is None else phase.trains.to(self.rows.device)
            head = None
            if alone and not trainers:  # nothing has moved before
                head = Head.of(self.task, self.objective, phase.trains, self.rows, features)
            trainer = AutogradTrainer(
                self.objective, self.optimizer, mask, task, self.vectorize, head
            )
            trainers.append(trainer)
        return tuple(trainers)

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
        taken = 0
        starts_at_received = _begin(vectors["w"]) == _begin(received)
        if self.trainers[0].first_is_shared and starts_at_received:
            index, weight, _ = self._drawn(0, clients)
            batch = Batch(self.rows.inputs[index], self.rows.y[index], weight)
            update = self.trainers[0].first_updates(received, batch, place, watched)
            if self.plan.steps[0] == 1 and not models:
                del vectors["w"]
                return self._replied(vectors | {"update": update}, models, update)
            vectors["w"] = torch.sub(received, update, out=update)
            taken = 1
        self._own_copies(vectors, None if taken else place)
        vectors["received"] = received.expand(clients, -1)
        with _seeded(self.task, self.plan.seeds, self.rows):
            self._take_steps(vectors, taken, watched)
        return self._replied(vectors, models, place)

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

    # The steps

    def _take_steps(self, vectors: Tensors, taken: int, watched: Tensor) -> None:
        """Change the vectors by all steps of their clients but the first `taken`."""
        memory = {name: self.optimizer.memory(vectors[name]) for name in self.objective.trained}
        phase_ends = np.cumsum([int(phase.epochs) for phase in self.phases[:-1]])  # epochs
        before = np.zeros(len(self.plan.steps), dtype=np.int64)
        by_part: dict[tuple[int, int, int], Steps] = {}  # to slice takes time
        reading = self._reading(taken)
        for step in range(taken, self.plan.steps[0]):
            active = self._count_active(step)
            index, weight, noise = self._drawn(step, active)
            read = None if reading is None else reading()
            reading = self._reading(step + 1)  # while this step is computed
            epochs = step // self.plan.steps_per_epoch[:active]
            phases = np.searchsorted(phase_ends, epochs, side="right")
            _reset(memory, phases != before[:active])
            before[:active] = phases
            for a, b in _runs(phases, epochs, self.trainers):
                phase = int(phases[a])
                if (a, b, phase) not in by_part:
                    by_part[a, b, phase] = self._steps(phase, vectors, memory, a, b)
                steps = by_part[a, b, phase]
                rows = index[a:b]
                if read is None:
                    x = steps.inputs(self.rows, rows, int(epochs[a]))
                else:
                    x = read[slice(a, b)]
                if self.rows.transform is not None:
                    seeds = [seed + step for seed in self.plan.seeds[a:b]]
                    x = _transformed(self.rows.transform, x, seeds)
                batch = Batch(x, self.rows.y[rows], weight[a:b])
                is_watched = step < len(watched)
                losses = self._step(steps, batch, noise[a:b], step == 0, is_watched)
                if is_watched and losses is not None:
                    watched[step, a:b] = losses

    def _count_active(self, step: int) -> int:
        """How many clients, the first ones, take this step."""
        return int((self.plan.steps > step).sum())

    def _drawn(self, step: int, clients: int) -> tuple[Tensor, Tensor, Tensor]:
        """Sample numbers (k, B), weights (k, B) and noise (k, draws) of the first k clients."""
        device = self.rows.device
        index, weight, noise = self.plan.at(step, clients)
        return index.to(device), weight.to(device), noise.to(device)

    def _reading(self, step: int) -> Callable[[], Tensor | Stacked] | None:
        """Begin to read a step's inputs (k, B, ...), where they are read when needed."""
        if not isinstance(self.rows.inputs, Lazy) or step >= self.plan.steps[0]:
            return None
        index, _, _ = self.plan.at(step, self._count_active(step))
        return self.rows.inputs.begin(index)

    def _steps(self, phase: int, vectors: Tensors, memory: Memory, a: int, b: int) -> Steps:
        """The steps of the clients a, ..., b - 1 in a phase."""
        part = slice(a, b)
        own_memory = {name: select(values, part) for name, values in memory.items()}
        return self.trainers[phase].on(select(vectors, part), own_memory, a)

    def _step(
        self, steps: Steps, batch: Batch, noise: Tensor, first: bool, watched: bool
    ) -> Tensor | None:
        """Take the gradient steps on a batch. Returns its losses before them, if `watched`."""
        losses = steps(batch, noise, first, watched)
        for _ in range(1, self.objective.steps):
            steps(batch, noise, False, False)
        if self.objective.after is not None:
            for name, value in self.objective.after(steps.vectors, self.lr).items():
                steps.vectors[name].copy_(value)
        return losses

    # After the steps

    def _replied(
        self, vectors: Tensors, models: bool, place: Tensor | None
    ) -> tuple[Tensors, Tensors, Tensors]:
        """What the clients reply after training, their next states and {"w": models}."""
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
        """What the clients send in addition to their updates, and their next states."""
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


def _runs(
    phases: np.ndarray, epochs: np.ndarray, trainers: tuple[Trainer, ...]
) -> list[tuple[int, int]]:
    """Clients whose steps are alike: neighbours in the same phase.

    Where layers are frozen, the first epoch differs from the others: it computes their outputs.
    """
    has_features = trainers[0].has_features
    if len(trainers) == 1 and not has_features:
        return [(0, len(epochs))]
    keys = 2 * phases + (epochs > 0) if has_features else phases
    cuts = np.flatnonzero(np.diff(keys)) + 1
    return list(pairwise([0, *cuts.tolist(), len(keys)]))


def _reset(memory: Memory, clients: np.ndarray) -> None:
    """Let the optimizer forget everything of these clients, a mask of the first ones."""
    if not clients.any():
        return
    positions = torch.from_numpy(np.flatnonzero(clients))
    for values in memory.values():
        for value in values.values():
            value[positions] = 0


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
