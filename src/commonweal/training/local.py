"""Local training: the batch schedule of a group of clients, and the loop over their steps.

A client method speaks of one client. `vmap_clients` runs its functions for a group of clients at
once, `single` for a group of one. What is random was drawn before (`BatchSchedule`), so that both
give the same numbers.
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from commonweal.base.errors import DataError
from commonweal.base.tensors import State, Tensors, merge_into, move, select, take
from commonweal.base.values import Function, Value
from commonweal.data.federation import Rows
from commonweal.training.client import Client, Term
from commonweal.training.dense import (
    DenseTask,
    Pair,
    PairTerms,
    PlainSGD,
    Pulls,
    RowFactors,
    dense_task,
    forward,
)
from commonweal.training.memory_format import channels_last
from commonweal.training.task import Batch, Task

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

# Turns a function of one client into one of a group. The second argument says which arguments have
# a client axis (0) and which are the same for all (None).
Vectorize = Callable[[Function, tuple[int | None, ...]], Function]


def vmap_clients(f: Function, dims: tuple[int | None, ...]) -> Function:
    """Run a function of one client for a group of clients at once."""
    return torch.vmap(f, in_dims=dims)


def as_it_is(f: Function, dims: tuple[int | None, ...]) -> Function:
    """Run a function that was written for one client, but takes a group as well."""
    return f


def single(f: Function, dims: tuple[int | None, ...]) -> Function:
    """Run a function of one client for a group of one."""

    def call(*arguments: Value) -> Value:
        pairs = zip(arguments, dims, strict=True)
        squeezed = [_map_tensors(a, Tensor.squeeze) if dim == 0 else a for a, dim in pairs]
        return _map_tensors(f(*squeezed), Tensor.unsqueeze)

    return call


def _map_tensors(tree: Value, change: Callable[[Tensor, int], Tensor]) -> Value:
    """Change axis 0 of every tensor in nested dicts and tuples (torch's tree_map is far slower)."""
    if isinstance(tree, Tensor):
        return change(tree, 0)
    if isinstance(tree, dict):
        return {name: _map_tensors(value, change) for name, value in tree.items()}
    return tuple(_map_tensors(value, change) for value in tree)


@dataclass(frozen=True, eq=False)
class BatchSchedule:
    """Which rows each of S clients takes at which step, and the random numbers of each step."""

    order: np.ndarray  # row numbers in the order they are taken, client after client
    base: np.ndarray  # (S,) where in `order` a client's rows begin
    first_row: np.ndarray  # (S,) the number of a client's first row
    sizes: np.ndarray  # (S,)
    batch: np.ndarray  # (S,) rows per step
    steps_per_epoch: np.ndarray  # (S,)
    steps: np.ndarray  # (S,)
    noise: np.ndarray  # (sum of steps, draws), client after client
    first_noise: np.ndarray  # (S,) where in `noise` a client's draws begin
    seeds: tuple[int, ...]  # for modules that draw inside (dropout)

    def of(self, positions: np.ndarray) -> "BatchSchedule":
        """The schedule of some of the clients, in this order."""
        return replace(
            self,
            base=self.base[positions],
            first_row=self.first_row[positions],
            sizes=self.sizes[positions],
            batch=self.batch[positions],
            steps_per_epoch=self.steps_per_epoch[positions],
            steps=self.steps[positions],
            first_noise=self.first_noise[positions],
            seeds=tuple(self.seeds[k] for k in positions),
        )

    def at(self, step: int, clients: int) -> tuple[Tensor, Tensor, Tensor]:
        """Row numbers (k, B), loss weights (k, B) and noise (k, draws) of the first k clients."""
        begin, length = self._batches_at(step, clients)
        column = np.arange(length.max())
        real = column < length[:, None]
        # Padding repeats the first row of the batch, with weight 0.
        rows = self.order[begin[:, None] + np.where(real, column, 0)]
        weight = (real / length[:, None]).astype(np.float32)
        noise = self.noise[self.first_noise[:clients] + step]
        return torch.from_numpy(rows), torch.from_numpy(weight), torch.from_numpy(noise)

    def _batches_at(self, step: int, clients: int) -> tuple[np.ndarray, np.ndarray]:
        """Where in `order` the batches begin, and their lengths, (k,) each."""
        k = clients
        epoch, position = np.divmod(step, self.steps_per_epoch[:k])
        taken = position * self.batch[:k]  # rows of this epoch that were taken before
        length = np.minimum(self.batch[:k], self.sizes[:k] - taken)
        return self.base[:k] + epoch * self.sizes[:k] + taken, length


def schedule(
    client: Client,
    task: Task,
    rows: Rows,
    ids: Tensor,
    streams: Sequence[np.random.Generator],
) -> BatchSchedule:
    """Draw everything that is random in the local training of these clients."""
    n = rows.sizes[ids].numpy()
    batch = np.minimum(n, client.batch or n)
    per_epoch = _steps_per_epoch(task, n, batch)
    steps = np.ceil(client.total_epochs * per_epoch).astype(np.int64)
    if client.steps is not None:
        steps = np.full(len(n), client.steps)
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
                "BatchNorm needs two rows per step: a client has one training row, or batch = 1"
            )
        sizes = sizes - 1  # BatchNorm cannot take a remainder of one row: it is left out
    steps: np.ndarray = np.maximum(1, -(-sizes // batch))
    return steps


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
) -> Trained:
    """Train a group of clients from the message and their states, on the device of the rows.

    Message, states and what is returned are on the CPU.

    at_once: the numbers that clients who are trained together may hold (None: any)
    models: whether the trained models are returned beside what the clients reply
    """
    message = move(message, rows.device)
    states = move(states, rows.device)
    trained = _train_in_chunks(
        client, task, message, states, rows, plan, vectorize, at_once, models
    )
    return Trained(move(trained.replies, "cpu"), move(trained.states, "cpu"), trained.models.cpu())


def _train_in_chunks(
    client: Client,
    task: Task,
    message: Tensors,
    states: Tensors,
    rows: Rows,
    plan: BatchSchedule,
    vectorize: Vectorize,
    at_once: int | None,
    models: bool,
) -> Trained:
    parts = chunks(task, rows, plan, at_once)
    plain = _plain_sgd(client, task, message, plan) if vectorize is vmap_clients else None
    if plain is not None and not models and client.trains_received(message):
        return _plain_updates(plain, states, rows, plan, parts)
    in_order = len(parts) == 1 and bool((np.diff(parts[0]) > 0).all())
    gathered = _Gathered(len(plan.sizes))
    for part in parts:
        own = states if in_order else select(states, torch.from_numpy(part))
        schedule = plan if in_order else plan.of(part)
        trained = _train_together(client, task, message, own, rows, schedule, vectorize)
        if not models:
            trained = trained._replace(models=trained.models.new_empty(len(part), 0))
        if in_order:
            return trained
        gathered.put(torch.from_numpy(part), trained)
    return gathered.trained()


def chunks(task: Task, rows: Rows, plan: BatchSchedule, at_once: int | None) -> list[np.ndarray]:
    """Positions of the clients that are trained together, by falling size.

    Batches of very different lengths are never padded to each other; with normalisation layers
    none are, as padding would enter their buffers.
    """
    order = np.argsort(-plan.sizes, kind="stable")
    sizes = plan.sizes[order]
    widths = plan.batch[order]
    most = len(order)
    if at_once is not None:
        most = max(1, at_once // (task.size + int(widths[0]) * task.width(rows.x)))
    exact = task.size > task.num_trainable
    parts = []
    start = 0
    for i in range(1, len(order) + 1):
        if i < len(order) and i - start < most:
            alike = sizes[i] == sizes[start] if exact else 2 * widths[i] >= widths[start]
            if alike:
                continue
        parts.append(order[start:i])
        start = i
    return parts


class _Gathered:
    """The results of chunks, written to the places of their clients as they come."""

    def __init__(self, clients: int) -> None:
        self.clients = clients
        self.parts: tuple[Tensors, Tensors, Tensors] = ({}, {}, {})

    def put(self, positions: Tensor, part: Trained) -> None:
        values = (part.replies, part.states, {"w": part.models})
        for mine, new in zip(self.parts, values, strict=True):
            for name, value in new.items():
                if name not in mine:
                    mine[name] = value.new_empty(self.clients, *value.shape[1:])
                mine[name].index_copy_(0, positions.to(value.device), value)

    def trained(self) -> Trained:
        replies, states, models = self.parts
        return Trained(replies, states, models["w"])


def _train_together(
    client: Client,
    task: Task,
    message: Tensors,
    states: Tensors,
    rows: Rows,
    plan: BatchSchedule,
    vectorize: Vectorize,
) -> Trained:
    """Train clients step by step together.

    They come by falling number of steps: those that are done leave at the end of the group, and
    only the others are computed.
    """
    steps = torch.from_numpy(plan.steps).to(rows.device)
    plain = _plain_sgd(client, task, message, plan) if vectorize is vmap_clients else None
    if plain is not None:
        params = _own_copies(client, task, message, states, len(steps))
        plain.train(params, states, rows, plan)
    else:
        # `steps` gives vmap the size of the group where clients have no state.
        start = vectorize(lambda state, _: client.start(task, message, state), (0, 0))
        train_on_batch = _batch_function(client, task, message, rows, plan, vectorize)
        with _seeded(task, plan.seeds, rows):
            params = _all_steps(start(states, steps), states, plan, train_on_batch)
    reply = vectorize(lambda p, s, n: client.reply(task, p, message, s, n), (0, 0, 0))
    replies, new_states = reply(params, states, steps)
    return Trained(replies, new_states, params["w"])


def start_models(
    client: Client, task: Task, message: Tensors, states: Tensors, count: int, vectorize: Vectorize
) -> Tensor:
    """The models (S, d) with which some clients start."""
    if vectorize is vmap_clients and _base_start(client):
        models = message["w"].new_empty(count, task.size)
        _write_start(message, states, client.private_mask(task), models)
        return models
    # The second argument gives vmap the size of the group where clients have no state.
    start = vectorize(lambda state, _: client.start(task, message, state)["w"], (0, 0))
    started: Tensor = start(states, torch.empty(count))
    return started


def _write_start(message: Tensors, states: Tensors, private: Tensor | None, models: Tensor) -> None:
    """The same in place, where `start` is that of the base class. private: the mask"""
    if private is None:
        models.copy_(message["w"])
    else:
        merge_into(models, message["w"], states["private"], private)


def _own_copies(
    client: Client, task: Task, message: Tensors, states: Tensors, count: int
) -> Tensors:
    """The vectors that clients start with, which may be changed in place."""
    if _base_start(client):
        return {"w": start_models(client, task, message, states, count, vmap_clients)}
    start = vmap_clients(lambda state, _: client.start(task, message, state), (0, 0))
    params: Tensors = start(states, torch.empty(count, device=message["w"].device))
    if _has_line(client, params):  # they are copied when they are put side by side
        return params
    return {n: v.clone(memory_format=torch.contiguous_format) for n, v in params.items()}


def _has_line(client: Client, params: Tensors) -> bool:
    """Whether w and own are trained on a line between them."""
    return type(client).line is not Client.line and "own" in params


def _base_start(client: Client) -> bool:
    """Whether a client trains the received model with its private part, and nothing else."""
    return type(client).start is Client.start


def _plain_sgd(
    client: Client, task: Task, message: Tensors, plan: BatchSchedule
) -> "_PlainTraining | None":
    """The training of a dense stack by plain SGD, in whole layers; None: it is another one."""
    dense = dense_task(task)
    if dense is None or not client.plain_steps:
        return None
    if client.optimizer != "sgd" or client.clip is not None:
        return None
    epochs = int(((plan.steps - 1) // plan.steps_per_epoch).max()) + 1
    turns = _turns(client, task, dense, epochs)
    if turns is None or not _fits_pairs(client, turns):
        return None
    rate = client.inner_rate(client.rate(int(message["round"])))
    sgd = PlainSGD(rate, client.momentum, client.weight_decay)
    return _PlainTraining(client, dense, message, sgd, turns, client.private_mask(task))


def _fits_pairs(client: Client, turns: tuple[tuple[bool, ...], ...]) -> bool:
    """Whether a method with a line has nothing else that steps of a pair do not know."""
    method = type(client)
    whole = all(all(turn) for turn in turns) and client.steps_per_batch == 1
    base = method.row_factors is Client.row_factors and method.after_batch is Client.after_batch
    return method.line is Client.line or (whole and base)


def _turns(
    client: Client, task: Task, dense: DenseTask, epochs: int
) -> tuple[tuple[bool, ...], ...] | None:
    """The layers that are trained, by epoch; None: parts of some, or none."""
    turns = []
    before = None
    for epoch in range(epochs):
        mask = client.active(task, torch.tensor(epoch))
        if before is None or mask is None or not torch.equal(mask, before):
            layers = dense.layers_in(mask)
        if layers is None or not any(layers):
            return None
        turns.append(layers)
        before = mask
    return tuple(turns)


class _PlainTraining(NamedTuple):
    """Steps of plain SGD on a dense stack, in closed form and in place."""

    client: Client
    task: DenseTask
    message: Tensors
    sgd: PlainSGD
    turns: tuple[tuple[bool, ...], ...]  # the layers that are trained, by epoch
    private: Tensor | None  # the mask of the coordinates that stay with the clients

    @property
    def factors(self) -> RowFactors | None:
        """What the rows' gradients are multiplied by; None: their weights."""
        base = type(self.client).row_factors is Client.row_factors
        return None if base else self.client.row_factors

    @property
    def frozen(self) -> int:
        """How many of the lowest layers the first epoch does not train."""
        return self.turns[0].index(True)

    def is_frozen(self, epoch: int) -> bool:
        """Whether these layers are still as they were in the first epoch."""
        return not any(any(turn[: self.frozen]) for turn in self.turns[: epoch + 1])

    def update(
        self,
        states: Tensors,
        rows: Rows,
        plan: BatchSchedule,
        update: Tensor,
        private: Tensor | None,
    ) -> None:
        """Write the clients' updates (S, d), and their next private parts (S, p) if they have."""
        received = self.message["w"]
        if private is None and self._first_is_plain(states):  # from the same model
            batch, _ = _next_batch(rows, plan, 0, len(update))
            with torch.no_grad():
                self.task.first_updates(received, batch, self.sgd.lr, update, self.factors)
            if plan.steps[0] == 1:
                return
            torch.sub(received, update, out=update)
            self.train({"w": update}, states, rows, plan, taken=1)
        else:
            _write_start(self.message, states, self.private, update)
            self.train({"w": update}, states, rows, plan)
        if private is not None and self.private is not None:
            private.copy_(take(update, self.private))
        torch.sub(received, update, out=update)

    def _first_is_plain(self, states: Tensors) -> bool:
        """Whether the first step is along the gradient of the rows alone, in all layers."""
        received = self.message["w"]
        term = self.client.terms({"w": received}, self.message, states)["w"]
        no_pull = term.slope is None and (term.anchor is None or term.anchor is received)
        plain = not self.sgd.momentum and not self.sgd.weight_decay and all(self.turns[0])
        return no_pull and plain and self.client.steps_per_batch == 1

    def train(
        self, params: Tensors, states: Tensors, rows: Rows, plan: BatchSchedule, taken: int = 0
    ) -> None:
        """Change the vectors (S, d) by all steps of their clients but the first `taken`."""
        if _has_line(self.client, params):
            self._train_pair(params, states, rows, plan)
            return
        terms = self.client.terms(params, self.message, states)
        velocity = {n: torch.zeros_like(params[n]) if self.sgd.momentum else None for n in terms}
        features = _Features(plan)
        views: dict[tuple[int, int], list[_Vector]] = {}  # by clients: to slice takes time
        with torch.no_grad():
            for step in range(taken, plan.steps[0]):
                active = int((plan.steps > step).sum())
                index, weight, _ = plan.at(step, active)
                weight = weight.to(rows.device)
                epochs = step // plan.steps_per_epoch[:active]
                for a, b in self._runs(epochs):
                    epoch = int(epochs[a])
                    if (a, b) not in views:
                        views[a, b] = [
                            _Vector(self.task, params[n][a:b], _part(velocity[n], a, b), term, a, b)
                            for n, term in terms.items()
                        ]
                    vectors = views[a, b]
                    inputs = self._inputs(vectors[0], rows, index[a:b], epoch, features)
                    batch = Batch(inputs, rows.y[index[a:b]], weight[a:b])
                    self._steps(vectors, batch, epoch)
                    self._after({n: v[a:b] for n, v in params.items()})

    @torch.no_grad()
    def _train_pair(
        self, params: Tensors, states: Tensors, rows: Rows, plan: BatchSchedule
    ) -> None:
        """The same where w and own are trained on a line between them."""
        models = torch.stack([params["w"], params["own"]], 1)
        room = torch.zeros_like(models) if self.sgd.momentum else torch.empty_like(models)
        pair = Pair(models, room, torch.empty_like(params["own"]))
        pull = self.client.terms(params, self.message, states)["w"]
        swaps = False
        for step in range(plan.steps[0]):
            active = int((plan.steps > step).sum())
            batch, noise = _next_batch(rows, plan, step, active)
            batch = batch._replace(x=self.task.rows(batch.x))
            some = pair.of(active)
            params["w"], params["own"] = pair.models.unbind(1)
            line = self.client.line(self.task, select(params, slice(active)), self.message, noise)
            assert line is not None  # as there is an own model
            m = line.m.expand(active, len(self.task.stack))
            if line.learns and step == 0:
                grad = self.task.point_gradient(some, batch, m)
                params |= self.client.move_point(params, grad, self.sgd.lr)
            terms = PairTerms(pull.pull, pull.anchor, line.angle)
            swaps = self.task.descend_pair(some, batch, m, line.both, self.sgd, terms)
            if swaps:
                pair = pair.swapped()
        if swaps:  # those who were done earlier may be on the other side
            before = torch.from_numpy((plan.steps[0] - plan.steps) % 2 == 1)
            pair.models[before] = pair.other[before]
        params["w"], params["own"] = pair.models.unbind(1)

    def _after(self, params: Tensors) -> None:
        lr = self.client.rate(int(self.message["round"]))
        for name, value in self.client.after_batch(params, lr).items():
            params[name].copy_(value)

    def _runs(self, epochs: np.ndarray) -> list[tuple[int, int]]:
        """Clients whose steps are alike: neighbours of equal epoch, where epochs differ."""
        if epochs[0] == epochs[-1] or (not self.frozen and len(set(self.turns)) == 1):
            return [(0, len(epochs))]
        cuts = np.flatnonzero(np.diff(epochs)) + 1
        return list(pairwise([0, *cuts.tolist(), len(epochs)]))

    def _inputs(
        self, vector: "_Vector", rows: Rows, index: Tensor, epoch: int, features: "_Features"
    ) -> Tensor:
        """The inputs of the lowest layer that is trained from the first epoch on.

        As long as those below are not trained, their outputs are computed for every row once.
        """
        if not self.frozen or not self.is_frozen(epoch):
            return self.task.rows(rows.x[index])
        if epoch:
            return features.read(index, vector.first)
        _, outputs = forward(vector.layers[: self.frozen], self.task.rows(rows.x[index]))
        features.write(index, vector.first, outputs)
        return outputs

    def _steps(self, vectors: list["_Vector"], batch: Batch, epoch: int) -> None:
        """All steps of a batch, from the lowest layer that is trained from the first epoch on."""
        k = self.frozen if self.is_frozen(epoch) else 0
        turn = self.turns[epoch][k:]
        for _ in range(self.client.steps_per_batch):
            for v in vectors:
                velocity = None if v.velocity is None else v.velocity[k:]
                pulls = v.pulls.above(k)
                self.task.descend(
                    v.layers[k:], velocity, turn, batch, self.sgd, pulls, self.factors
                )


class _Vector:
    """A trained vector of some neighbouring clients (S, d), by layers."""

    def __init__(
        self, task: DenseTask, w: Tensor, velocity: Tensor | None, term: Term, a: int, b: int
    ) -> None:
        self.first = a
        self.layers = task.affine(w)
        self.velocity = None if velocity is None else task.affine(velocity)
        anchor = None if term.anchor is None else task.affine(_clients(term.anchor, a, b))
        slope = None if term.slope is None else task.affine(_clients(term.slope, a, b))
        self.pulls = Pulls(term.pull, anchor, slope)


def _part(value: Tensor | None, a: int, b: int) -> Tensor | None:
    return None if value is None else value[a:b]


def _clients(value: Tensor, a: int, b: int) -> Tensor:
    """Some clients' rows; where it is the same for all (d,), a single one."""
    return value[None] if value.ndim == 1 else value[a:b]


class _Features:
    """What layers that are not trained give for each row of some clients."""

    def __init__(self, plan: BatchSchedule) -> None:
        self.rows = int(plan.sizes.sum())
        begin = np.cumsum(plan.sizes) - plan.sizes
        self.shift = torch.from_numpy(begin - plan.first_row)[:, None]  # (S, 1)
        self.values: Tensor | None = None

    def write(self, index: Tensor, first: int, outputs: Tensor) -> None:
        if self.values is None:
            self.values = outputs.new_empty(self.rows, outputs.shape[-1])
        self.values[index + self.shift[first : first + len(index)]] = outputs

    def read(self, index: Tensor, first: int) -> Tensor:
        assert self.values is not None  # the first epoch writes them
        return self.values[index + self.shift[first : first + len(index)]]


def _plain_updates(
    training: _PlainTraining,
    states: Tensors,
    rows: Rows,
    plan: BatchSchedule,
    parts: list[np.ndarray],
) -> Trained:
    """The updates (S, d) of clients that train the received model, by plain SGD.

    They are trained in the place of their replies: to write (S, d) once more takes as long as a
    step.
    """
    received = training.message["w"]
    replies = {"update": received.new_empty(len(plan.sizes), len(received))}
    if training.private is not None:
        replies["private"] = torch.empty_like(states["private"])
    for part in parts:
        positions = torch.from_numpy(part)
        adjacent = bool((np.diff(part) == 1).all())
        where = slice(int(part[0]), int(part[-1]) + 1) if adjacent else positions
        places = select(replies, where)  # views, where they are adjacent
        own = select(states, where)
        training.update(own, rows, plan.of(part), places["update"], places.get("private"))
        if not adjacent:
            for name, value in places.items():
                replies[name].index_copy_(0, positions.to(value.device), value)
    update = replies.pop("update")
    return Trained({"update": update}, states | replies, update[:, :0])


def _next_batch(rows: Rows, plan: BatchSchedule, step: int, clients: int) -> tuple[Batch, Tensor]:
    """The batches (k, B) of the first k clients, and the noise (k, draws) of their step."""
    index, weight, noise = (value.to(rows.device) for value in plan.at(step, clients))
    return Batch(rows.x[index], rows.y[index], weight), noise


# (number of the step, params, opt_state, client states) -> params, opt_state
BatchFunction = Callable[[int, Tensors, State, Tensors], tuple[Tensors, State]]


def _all_steps(
    params: Tensors, states: Tensors, plan: BatchSchedule, train_on_batch: BatchFunction
) -> Tensors:
    """The vectors of all clients after their last steps."""
    opt_state: State = {}
    finished: list[Tensors] = []
    for step in range(plan.steps[0]):
        active = int((plan.steps > step).sum())
        if active < len(params["w"]):
            left = select(params, slice(active, None))
            finished.append({name: value.clone() for name, value in left.items()})
            params = select(params, slice(active))
            opt_state = _first(opt_state, active)
        active_states = select(states, slice(active))
        params, opt_state = train_on_batch(step, params, opt_state, active_states)
    return _joined([params, *reversed(finished)])


def _first(state: State, clients: int) -> State:
    """The optimizer state of the first clients."""
    first: State = {}
    for name, value in state.items():
        first[name] = _first(value, clients) if isinstance(value, dict) else value[:clients]
    return first


def _joined(parts: list[Tensors]) -> Tensors:
    """Concatenate along the client axis."""
    if len(parts) == 1:
        return parts[0]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _batch_function(
    client: Client,
    task: Task,
    message: Tensors,
    rows: Rows,
    plan: BatchSchedule,
    vectorize: Vectorize,
) -> BatchFunction:
    """The function that takes a group's gradient steps on its next batches."""
    lr = client.rate(int(message["round"]))
    dense = dense_task(task) if vectorize is vmap_clients and client.takes_groups else None
    if dense is not None:
        task = dense
        vectorize = as_it_is
    if vectorize is single:
        task = channels_last(task, rows.x)

    def loss(p: Tensors, x: Tensor, y: Tensor, weight: Tensor, s: Tensors, u: Tensor) -> Value:
        return client.loss(task, p, Batch(x, y, weight), message, s, u)

    def step(p: Tensors, grads: Tensors, opt_state: State, epoch: Tensor, last: bool) -> Value:
        return client.step(task, p, grads, opt_state, lr, epoch, last)

    loss_of_group = vectorize(loss, (0,) * 6)
    # The base class's step is elementwise: it takes a group as it is, which saves a vmap per step.
    step_of_group = step if _base_step(client) else vectorize(step, (0, 0, 0, 0, None))

    def train_on_batch(
        number: int, params: Tensors, opt_state: State, states: Tensors
    ) -> tuple[Tensors, State]:
        active = len(params["w"])
        batch, noise = _next_batch(rows, plan, number, active)
        epoch = torch.from_numpy(number // plan.steps_per_epoch[:active]).to(rows.device)
        for substep in range(1, client.steps_per_batch + 1):
            grads, buffers = _gradients(loss_of_group, params, *batch, states, noise)
            last = substep == client.steps_per_batch
            with torch.no_grad():
                moved, opt_state = step_of_group(params, grads, opt_state, epoch, last)
            params = _write_buffers(task, params | moved, buffers)
        return params, opt_state

    return train_on_batch


def _base_step(client: Client) -> bool:
    method = type(client)
    return method.step is Client.step and method.descend is Client.descend


def _gradients(
    loss: Function, params: Tensors, *batch: Tensor | Tensors
) -> tuple[Tensors, Tensors]:
    """All clients' gradients and buffers. Losses are separate: one backward of the sum suffices."""
    leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
    losses, buffers = loss(leaves, *batch)
    grads = torch.autograd.grad(losses.sum(), list(leaves.values()), allow_unused=True)
    # A vector that has no part in the loss has a zero, not a vector of zeros.
    zero = losses.new_zeros(())
    pairs = zip(leaves.items(), grads, strict=True)
    return {n: zero.expand_as(leaf) if g is None else g for (n, leaf), g in pairs}, buffers


def _write_buffers(task: Task, params: Tensors, buffers: Tensors) -> Tensors:
    """Write the updated BatchNorm buffers (S, b) into the vectors of the same names."""
    n = task.num_trainable
    written = {}
    for name, values in buffers.items():
        if values.shape[-1]:
            written[name] = torch.cat([params[name][..., :n], values.detach()], -1)
    return params | written


@contextmanager
def _seeded(task: Task, seeds: tuple[int, ...], rows: Rows) -> Iterator[None]:
    """Seed torch's generator for a single client whose module draws inside (dropout).

    torch.random.fork_rng takes as long as training a small client. vmap refuses such modules.
    """
    if len(seeds) > 1 or not task.draws_inside(rows.x):
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
