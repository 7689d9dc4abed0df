"""Local training: the loop over the steps of a group of clients.

A client method speaks of one client, and says what it minimises; a trainer evaluates that for a
group. What is random was drawn before (`BatchSchedule`), so that every trainer and every engine
computes the same numbers.
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
from commonweal.data.federation import Rows
from commonweal.data.samples import Inputs, Lazy, Stacked, Transform
from commonweal.training.autograd import AutogradTrainer, Head
from commonweal.training.batches import BatchSchedule, chunks, schedule
from commonweal.training.client import Client, learning_rate
from commonweal.training.dense import DenseTrainer
from commonweal.training.memory_format import channels_last
from commonweal.training.objective import Objective, Phase
from commonweal.training.optimizers import Optimizer
from commonweal.training.task import Batch, Task
from commonweal.training.trainer import Features, Memory, Steps, Trainer
from commonweal.training.vectorize import Vectorize, single, vmap_clients

__all__ = [
    "BatchSchedule",
    "Trained",
    "Vectorize",
    "chunks",
    "keep_freed_memory",
    "schedule",
    "single",
    "start_models",
    "train_locally",
    "vmap_clients",
]

Reply = Callable[[Tensors, Tensors, Tensor], tuple[Tensors, Tensors]]


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
    """Train a group of clients from the message and their states, on the device of the samples.

    Message, states and what is returned are on the CPU.

    Args:
        client: The method.
        task: What is trained.
        message: What the server sent.
        states: The clients' states (S, ...).
        rows: The samples of all clients.
        plan: The batches of the clients.
        vectorize: How functions of one client are run for a group.
        at_once: The numbers that clients who are trained together may hold. None: any.
        models: Whether the trained models are returned along with the replies.
        losses: Whether replies have "train_loss", the mean over the batches of the first epoch.
    """
    message = move(message, rows.device)
    states = move(states, rows.device)
    gathered = _Gathered(len(plan.sizes))
    for part in chunks(task, rows, plan, at_once):
        where = _adjacent(part)
        group = _Group(client, task, message, select(states, where), rows, plan.of(part), vectorize)
        place = None if models else gathered.place("update", where, message["w"])
        watched = _FirstEpoch(group.plan, rows.device) if losses else None
        done = group.train(models, place, watched)
        if watched is not None:
            done.replies["train_loss"] = watched.means()
        gathered.put(where, done)
    trained = gathered.trained()
    return Trained(move(trained.replies, "cpu"), move(trained.states, "cpu"), trained.models.cpu())


def start_models(
    client: Client, task: Task, message: Tensors, states: Tensors, count: int, vectorize: Vectorize
) -> Tensor:
    """The models (S, d) with which some clients start.

    Args:
        client: The method.
        task: What is trained.
        message: What the server sent.
        states: The clients' states (S, ...).
        count: The number S of the clients.
        vectorize: How functions of one client are run for a group.
    """
    # The second argument gives vmap the size of the group where clients have no state.
    start = vectorize(lambda state, _: client.start(task, message, state)["w"], (0, 0))
    return start(states, torch.empty(count))


def _adjacent(positions: np.ndarray) -> slice | Tensor:
    """Positions as a slice where they follow each other: then what is selected is a view."""
    if (np.diff(positions) == 1).all():
        return slice(int(positions[0]), int(positions[-1]) + 1)
    return torch.from_numpy(positions)


def _storage(value: Tensor) -> int:
    """The identity of a tensor's storage, which views share. Some have no address."""
    identity: int = value.untyped_storage()._cdata
    return identity


def _place(value: Tensor) -> tuple[int, int]:
    """Where a tensor begins."""
    return _storage(value), int(value.storage_offset())


class _Gathered:
    """The results of groups, written to the places of their clients as they come."""

    def __init__(self, clients: int) -> None:
        self.clients = clients
        self.replies: Tensors = {}
        self.states: Tensors = {}
        self.models: Tensors = {}

    def _is_whole(self, where: slice | Tensor) -> bool:
        return isinstance(where, slice) and where == slice(0, self.clients)

    def place(self, name: str, where: slice | Tensor, like: Tensor) -> Tensor | None:
        """Where the reply (S, d) of some clients goes; None: it must be written later."""
        if self._is_whole(where) or not isinstance(where, slice):
            return None
        if name not in self.replies:
            self.replies[name] = like.new_empty(self.clients, *like.shape)
        return self.replies[name][where]

    def put(self, where: slice | Tensor, part: Trained) -> None:
        values = (part.replies, part.states, {"w": part.models})
        for mine, new in zip((self.replies, self.states, self.models), values, strict=True):
            if self._is_whole(where):
                mine |= new
                continue
            for name, value in new.items():
                if name not in mine:
                    mine[name] = value.new_empty(self.clients, *value.shape[1:])
                if _place(mine[name][where]) != _place(value):
                    mine[name][where] = value

    def trained(self) -> Trained:
        return Trained(self.replies, self.states, self.models["w"])


class _FirstEpoch:
    """The mean losses of clients over the batches of their first epoch."""

    def __init__(self, plan: BatchSchedule, device: torch.device) -> None:
        self.samples = torch.from_numpy(plan.first_epoch()).to(device)  # (steps, S)
        self.losses = torch.zeros_like(self.samples)

    @property
    def steps(self) -> int:
        return len(self.losses)

    def means(self) -> Tensor:
        # A loss of a later epoch may be infinite, which times 0 is not 0.
        totals = torch.where(self.samples > 0, self.losses * self.samples, 0.0).sum(0)
        return totals / self.samples.sum(0)


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

    def train(self, models: bool, place: Tensor | None, watched: _FirstEpoch | None) -> Trained:
        """All steps of the clients, and their replies.

        Args:
            models: Whether the trained models are returned along with the replies.
            place: Where the updates (S, d) go, if that is known.
            watched: Gets the losses of the first epoch, if they are asked for.
        """
        received = self.message["w"]
        steps = torch.from_numpy(self.plan.steps).to(self.rows.device)
        vectors = self._start(len(steps))
        taken = 0
        if self.trainers[0].first_is_shared and _place(vectors["w"]) == _place(received):
            update = self._first_updates(place, watched)
            if self.plan.steps[0] == 1 and not models:
                del vectors["w"]
                return self._replied(vectors | {"update": update}, steps, models, update)
            vectors["w"] = torch.sub(received, update, out=update)
            taken = 1
        self._own_copies(vectors, None if taken else place)
        vectors["received"] = received.expand(len(steps), -1)
        with _seeded(self.task, self.plan.seeds, self.rows):
            self._take_steps(vectors, taken, watched)
        return self._replied(vectors, steps, models, place)

    def _first_updates(self, place: Tensor | None, watched: _FirstEpoch | None) -> Tensor:
        """The updates (S, d) after a first step that all clients take from the received model."""
        index, weight, _ = self._drawn(0, len(self.plan.steps))
        batch = Batch(self.rows.inputs[index], self.rows.y[index], weight)
        received = self.message["w"]
        first = self.trainers[0]
        update, losses = first.first_updates(received, batch, place, watched is not None)
        if watched is not None and losses is not None:
            watched.losses[0] = losses
        return update

    def _start(self, clients: int) -> Tensors:
        """The vectors (S, ...) with which the clients start."""
        if self.states:
            start = self.vectorize(lambda s: self.client.start(self.task, self.message, s), (0,))
            vectors: Tensors = start(self.states)
            return vectors
        # Clients without a state start alike: vmap would take as long as a step of a small model.
        alike = self.client.start(self.task, self.message, {})
        return {name: value.expand(clients, *value.shape) for name, value in alike.items()}

    @cached_property
    def trainers(self) -> tuple[Trainer, ...]:
        """A trainer for every phase of a round."""
        client, objective = self.client, self.objective
        optimizer = Optimizer(
            client.optimizer,
            self.lr if objective.lr is None else objective.lr,
            client.momentum,
            client.weight_decay,
            client.clip,
            (client.beta1, client.beta2),
        )
        features = Features(self.plan.sizes, self.plan.first_row)
        alone = self.vectorize is single
        is_plain = isinstance(self.rows.inputs, Tensor) and self.rows.transform is None
        if self.vectorize is vmap_clients and is_plain:
            dense = DenseTrainer.of(self.task, objective, optimizer, self.phases, features)
            if dense is not None:
                return dense
        task = channels_last(self.task, self.rows.inputs) if alone else self.task
        trainers: list[Trainer] = []
        for phase in self.phases:
            mask = None if phase.trains is None else phase.trains.to(self.rows.device)
            head = None
            if alone and not trainers:  # nothing has moved before
                head = Head.of(self.task, objective, phase.trains, self.rows, features)
            trainers.append(AutogradTrainer(objective, optimizer, mask, task, self.vectorize, head))
        return tuple(trainers)

    def _own_copies(self, vectors: Tensors, place: Tensor | None) -> None:
        """Let steps change the vectors without changing the message, the states or each other.

        place: where w is copied to, if it is
        """
        used = {_storage(value) for value in self.message.values()}
        used |= {_storage(value) for value in self.states.values()}
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

    def _drawn(self, step: int, clients: int) -> tuple[Tensor, Tensor, Tensor]:
        """Sample numbers (k, B), weights (k, B) and noise (k, draws) of the first k clients."""
        device = self.rows.device
        index, weight, noise = self.plan.at(step, clients)
        return index.to(device), weight.to(device), noise.to(device)

    def _transformed(self, x: Inputs, transform: Transform, part: slice, step: int) -> Inputs:
        """The batches (S, B, ...) of some clients, each changed by numbers of its own stream."""
        if not isinstance(x, Tensor):
            kind = type(x).__name__
            raise DataError(f"transform needs samples with one input, not {kind}: leave it out")
        batches = []
        for batch, seed in zip(x, self.plan.seeds[part], strict=True):
            own_seed = (seed + step) % (1 << 62)
            generator = torch.Generator().manual_seed(own_seed)
            with shared_generator() as shared:
                shared.manual_seed(own_seed)  # of transforms that draw from torch's generator
                batches.append(_one_transformed(transform, batch, generator))
        return torch.stack(batches)

    def _reading(self, step: int) -> Callable[[], Tensor | Stacked] | None:
        """Begin to read a step's inputs (k, B, ...), where they are read when needed."""
        if not isinstance(self.rows.inputs, Lazy) or step >= self.plan.steps[0]:
            return None
        index, _, _ = self.plan.at(step, int((self.plan.steps > step).sum()))
        return self.rows.inputs.begin(index)

    def _take_steps(self, vectors: Tensors, taken: int, watched: _FirstEpoch | None) -> None:
        """Change the vectors by all steps of their clients but the first `taken`."""
        optimizer = self.trainers[0].optimizer
        memory = {name: optimizer.memory(vectors[name]) for name in self.objective.trained}
        phase_ends = np.cumsum([int(phase.epochs) for phase in self.phases[:-1]])  # epochs
        before = np.zeros(len(self.plan.steps), dtype=np.int64)
        views: dict[tuple[int, int, int], _View] = {}  # to slice takes time
        watched_steps = 0 if watched is None else watched.steps
        reading = self._reading(taken)
        for step in range(taken, self.plan.steps[0]):
            active = int((self.plan.steps > step).sum())
            drawn = self._drawn(step, active)
            read = None if reading is None else reading()
            reading = self._reading(step + 1)  # while this step is computed
            epochs = step // self.plan.steps_per_epoch[:active]
            phases = np.searchsorted(phase_ends, epochs, side="right")
            _reset(memory, phases != before[:active])
            before[:active] = phases
            for a, b in _runs(phases, epochs, self.trainers):
                phase = int(phases[a])
                if (a, b, phase) not in views:
                    views[a, b, phase] = _View.of(self.trainers[phase], vectors, memory, a, b)
                index, weight, noise = (value[a:b] for value in drawn)
                if read is None:
                    x = views[a, b, phase].steps.inputs(self.rows, index, int(epochs[a]))
                else:
                    x = read[slice(a, b)]
                if self.rows.transform is not None:
                    x = self._transformed(x, self.rows.transform, slice(a, b), step)
                batch = Batch(x, self.rows.y[index], weight)
                is_watched = step < watched_steps
                losses = self._step(views[a, b, phase], batch, noise, step == 0, is_watched)
                if is_watched and watched is not None and losses is not None:
                    watched.losses[step, a:b] = losses

    def _step(
        self, view: "_View", batch: Batch, noise: Tensor, first: bool, watched: bool
    ) -> Tensor | None:
        """Take the gradient steps on a batch. Returns its losses before them, if `watched`."""
        losses = view.steps(batch, noise, first, watched)
        for _ in range(1, self.objective.steps):
            view.steps(batch, noise, False, False)
        if self.objective.after is not None:
            for name, value in self.objective.after(view.vectors, self.lr).items():
                view.vectors[name].copy_(value)
        return losses

    def _replied(
        self, vectors: Tensors, steps: Tensor, models: bool, place: Tensor | None
    ) -> Trained:
        """What the clients reply after training, and their next states."""
        client, task, message = self.client, self.task, self.message

        def reply(vectors: Tensors, state: Tensors, steps: Tensor) -> tuple[Tensors, Tensors]:
            named = _Vectors(vectors | {"received": message["w"]})
            return client.reply(task, named, message, state, steps)

        replies, states = self._replies(reply, vectors, steps)
        if "w" not in vectors:
            update = vectors["update"]
            return Trained({"update": update, **replies}, states, update[:, :0])
        w = vectors["w"]
        if models:
            return Trained({"update": message["w"] - w, **replies}, states, w)
        target = w if place is None else place
        replies = _apart(replies, target)
        states = _apart(states, target)
        update = torch.sub(message["w"], w, out=target)
        return Trained({"update": update, **replies}, states, w[:, :0])

    def _replies(self, reply: Reply, vectors: Tensors, steps: Tensor) -> tuple[Tensors, Tensors]:
        if not self.states:
            # What a method replies does not depend on the client: mostly, nothing but the update.
            first = reply({name: v[0] for name, v in vectors.items()}, {}, steps[0])
            if not any(first):
                return {}, {}
        replies: tuple[Tensors, Tensors]
        replies = self.vectorize(reply, (0, 0, 0))(vectors, self.states, steps)
        return replies


def _one_transformed(transform: Transform, x: Tensor, generator: torch.Generator) -> Tensor:
    """A client's batch as a user's function returns it."""
    try:
        changed = transform(x, generator)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise DataError(
            f"transform raised {reason[:200]}: give a function of a batch and a torch.Generator"
        ) from error
    if not isinstance(changed, Tensor) or changed.shape != x.shape:
        shape = tuple(changed.shape) if isinstance(changed, Tensor) else type(changed).__name__
        raise DataError(
            f"transform made {shape} of a batch of shape {tuple(x.shape)}: let it return a tensor "
            "of the same shape"
        )
    return changed


class _View(NamedTuple):
    """Some neighbouring clients, and their steps."""

    vectors: Tensors
    steps: Steps

    @classmethod
    def of(cls, trainer: Trainer, vectors: Tensors, memory: Memory, a: int, b: int) -> "_View":
        own = select(vectors, slice(a, b))
        remembered = {name: select(values, slice(a, b)) for name, values in memory.items()}
        return cls(own, trainer.on(own, remembered, a))


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
    generator = torch.default_generator
    before = generator.get_state()
    if rows.device.type == "cpu":
        generator.manual_seed(seeds[0])
    else:
        torch.manual_seed(seeds[0])  # the generators of all devices
    try:
        yield
    finally:
        generator.set_state(before)


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
