"""What a client does with the model it receives: the base class is plain local SGD, variants override a method.

Client code speaks of a single client. An engine lifts it: `many` runs a group of clients at once by vmap, `alone` runs
one as it is. What is random was drawn before (`Plan`), so both give the same numbers.

Besides the methods of `Local` a variant may have

    personal(task, seen, kept)       the model (d,) that the client is served with, where it is not the received one
    ends(task, seen, kept)           two models (d,) that it may mix as it likes: the received one and its own
    share(task)                      what the server remembers for the clients and sends along, beside the model
    absorb(shared, replies, clients) the same after a round
    bind(rounds)                     itself with what it takes from an experiment
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from commonweal import scores
from commonweal.errors import ConfigError, DataError
from commonweal.federation import Rows
from commonweal.task import Batch, Task

__all__ = ["Lift", "Local", "Plan", "Tensors", "alone", "at_least", "bound", "distance", "judge", "judge_each"]
__all__ += ["many", "measure", "measure_each", "plan", "visit"]

Tensors = dict[str, Tensor]
Lift = Callable[[Callable[..., Any], tuple[int | None, ...]], Callable[..., Any]]
Gradient = Callable[[Tensors], tuple[Tensors, Tensor]]


@dataclass(frozen=True)
class Local:
    """Plain local SGD, from the received model, over the client's own rows.

    epochs: passes over the rows; steps: a number of batches instead, the same for every client
    batch: rows a step (0: all of them); lr, momentum, weight_decay: as in torch.optim.SGD
    clip: the largest norm of a gradient; decay: lr is multiplied by it every `decay_every` rounds
    """

    epochs: int = 1
    steps: int | None = None
    batch: int = 20
    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None
    decay: float = 1.0
    decay_every: int = 1

    def __post_init__(self) -> None:
        at_least(self, epochs=1, batch=0, decay_every=1, momentum=0, weight_decay=0)
        if self.momentum >= 1:
            raise ConfigError(f"client momentum = {self.momentum}: it must be below 1, or steps add up without end")
        for name in ("lr", "decay", "clip", "steps"):
            if (value := getattr(self, name)) is not None and not value > 0:
                raise ConfigError(f"client {name} = {value}: it must be above 0")

    def rate(self, round: int) -> float:
        """The learning rate of round 1, 2, ..."""
        return self.lr * self.decay ** ((round - 1) // self.decay_every)

    @property
    def passes(self) -> int:
        """How often a visit goes over the client's rows, unless `steps` says otherwise."""
        return self.epochs

    def private(self, task: Task) -> Tensor | None:
        """Which coordinates (d,) of the model stay with the client; None: it has no part of its own."""
        return None

    def keep(self, task: Task, seed: int) -> Tensors:
        """What a client holds for itself before its first round."""
        private = self.private(task)
        return {} if private is None else {"part": task.initial[private]}

    def draws(self, task: Task) -> int:
        """How many uniform random numbers a step needs."""
        return 0

    def start(self, task: Task, seen: Tensors, kept: Tensors) -> Tensors:
        """The vectors to be trained. `w` is the received model with the client's own part; its loss is reported."""
        private = self.private(task)
        return {"w": seen["w"] if private is None else _pieced(seen["w"], kept["part"], private)}

    def loss(
        self, task: Task, v: Tensors, batch: Batch, seen: Tensors, kept: Tensors, u: Tensor
    ) -> tuple[Tensor, Tensor]:
        """What a step lowers, and the module's statistics after it: w's (s,), or those of every vector (n, s)."""
        return task.loss(v["w"], batch)

    def step(
        self, task: Task, v: Tensors, memory: Tensors, gradient: Gradient, lr: float, passed: Tensor
    ) -> tuple[Tensors, Tensors]:
        """One step on a batch. `gradient(v)` gives the gradient of `loss`; vectors have a clients' axis in front.

        `memory` is empty at a visit's first step; `passed` (S,) counts the passes that each client has finished.
        """
        slope, statistics = gradient(v)
        v, memory = self.descend(v, slope, memory, lr)
        return self.settle(task, v, statistics), memory

    def descend(self, v: Tensors, slope: Tensors, memory: Tensors, lr: float) -> tuple[Tensors, Tensors]:
        """SGD with clipping, weight decay and momentum, in torch's order, for each vector by itself.

        Written over the gradient and the memory, which are spent: these vectors are too large for the cache, and memory
        that is given back at every step comes back page by page.
        """
        slope = _unshared(slope)
        for name, g in slope.items():
            if self.clip is not None:
                g.mul_((self.clip / (g.square().sum(-1, keepdim=True) ** 0.5 + 1e-6)).clamp(max=1))
            if self.weight_decay:
                g.add_(v[name], alpha=self.weight_decay)
        if not self.momentum:
            return {name: torch.sub(v[name], g, alpha=lr, out=g) for name, g in slope.items()}, memory
        if not memory:
            return {name: torch.sub(v[name], g, alpha=lr) for name, g in slope.items()}, slope
        for name, g in slope.items():
            torch.add(g, memory[name], alpha=self.momentum, out=memory[name])
        return {name: torch.sub(v[name], memory[name], alpha=lr, out=g) for name, g in slope.items()}, memory

    def settle(self, task: Task, v: Tensors, statistics: Tensor) -> Tensors:
        """The vectors with the module's statistics put in their place, which no gradient reaches."""
        if not statistics.shape[-1]:
            return v
        rows = statistics.unbind(-2) if statistics.ndim > v["w"].ndim else [statistics]
        return v | {
            name: torch.cat([v[name][..., : task.trained], new], -1) for name, new in zip(v, rows, strict=False)
        }

    def reply(self, task: Task, v: Tensors, seen: Tensors, kept: Tensors, steps: Tensor) -> tuple[Tensors, Tensors]:
        """What the server is told, and what the client keeps. Of private coordinates nothing is told."""
        private, update = self.private(task), seen["w"] - v["w"]
        if private is None:
            return {"update": update}, kept
        return {"update": update[..., ~private]}, kept | {"part": v["w"][..., private]}


def _unshared(slope: Tensors) -> Tensors:
    """The gradients, each in memory of its own: autograd may repeat one number, or give two vectors the same tensor."""
    places = [g.data_ptr() for g in slope.values()]
    single = {name: g.is_contiguous() and places.count(g.data_ptr()) == 1 for name, g in slope.items()}
    return {name: g if single[name] else g.clone(memory_format=torch.contiguous_format) for name, g in slope.items()}


def bound(local: Any, rounds: int) -> Any:
    """The local objective with what it takes from an experiment; most take nothing."""
    return local.bind(rounds) if hasattr(local, "bind") else local


def at_least(how: Any, **bounds: int) -> None:
    """Refuse parameters below their bounds, such as a penalty that would reward what it is there to hold back."""
    for name, least in bounds.items():
        if not getattr(how, name) >= least:  # NaN is not
            raise ConfigError(f"client {name} = {getattr(how, name)}: it must be at least {least}")


def distance(task: Task, a: Tensor, b: Tensor) -> Tensor:
    """|a - b|^2 over what gradients train."""
    return (task.moving(a) - task.moving(b)).square().sum()


def _pieced(w: Tensor, part: Tensor, private: Tensor) -> Tensor:
    """w with the client's part at the private coordinates: one gather, which vmap takes as it is."""
    place = torch.arange(len(w))
    place[private] = len(w) + torch.arange(len(part))
    return torch.cat([w, part])[place]


def many(f: Callable[..., Any], dims: tuple[int | None, ...]) -> Callable[..., Any]:
    """One client's function, run for a group of clients at once."""
    return torch.vmap(f, in_dims=dims)


def alone(f: Callable[..., Any], dims: tuple[int | None, ...]) -> Callable[..., Any]:
    """One client's function, run for a group of one."""

    def call(*arguments: Any) -> Any:
        single = [_each(a, Tensor.squeeze) if d == 0 else a for a, d in zip(arguments, dims, strict=True)]
        return _each(f(*single), Tensor.unsqueeze)

    return call


def _each(tree: Any, change: Callable[[Tensor, int], Tensor]) -> Any:
    """Take away or add the clients' axis of every tensor in a dict or tuple (torch's tree_map is many times slower)."""
    if isinstance(tree, Tensor):
        return change(tree, 0)
    if isinstance(tree, dict):
        return {name: change(value, 0) for name, value in tree.items()}
    return tuple(_each(value, change) for value in tree)


@dataclass(frozen=True, eq=False)
class Plan:
    """Which rows each of S clients takes at which step, and the random numbers it will need."""

    order: np.ndarray  # row numbers in the order they are taken, client after client
    base: np.ndarray  # (S,) where in `order` a client's rows begin
    sizes: np.ndarray  # (S,)
    batch: np.ndarray  # (S,) rows a step
    per_pass: np.ndarray  # (S,) steps in a pass over a client's rows
    steps: np.ndarray  # (S,)
    u: np.ndarray  # (sum of steps, draws), client after client
    seeds: tuple[int, ...]  # for modules that draw inside (dropout)

    def at(self, t: int, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Step t of the first k clients: row numbers (k, B), shares in the loss (k, B), uniform numbers (k, draws)."""
        times, step = np.divmod(t, self.per_pass[:k])
        before = step * self.batch[:k]  # rows taken earlier in the same pass
        length = np.minimum(self.batch[:k], self.sizes[:k] - before)[:, None]
        column = np.arange(length.max())
        real = column < length
        begin = self.base[:k] + times * self.sizes[:k] + before
        # Padding repeats the batch's first row, with no share in the loss.
        rows = self.order[begin[:, None] + np.where(real, column, 0)]
        share = (real / length).astype(np.float32)
        u = self.u[np.cumsum(self.steps[:k]) - self.steps[:k] + t]
        return torch.from_numpy(rows), torch.from_numpy(share), torch.from_numpy(u)


def plan(local: Local, task: Task, rows: Rows, ids: Tensor, streams: Sequence[np.random.Generator]) -> Plan:
    """Draw everything that is random in the visits of these clients."""
    n = rows.sizes[ids].numpy()
    b = np.minimum(n, local.batch or n)
    # BatchNorm cannot take a batch of one row: such a rest at the end of a pass is left out.
    per_pass = np.maximum(1, -(-(n - int(task.normalises)) // b))
    if task.normalises and b.min() < 2:
        raise DataError("BatchNorm needs two rows a step: a client has one training row, or batch = 1")
    steps = np.full(len(n), local.steps) if local.steps else local.passes * per_pass
    passes = -(-steps // per_pass)
    order, u, seeds = [], [], []
    for size, first, count, times, rng in zip(n, rows.offsets[ids].tolist(), steps, passes, streams, strict=True):
        order += [first + rng.permutation(size) for _ in range(times)]
        u.append(rng.random((count, local.draws(task)), dtype=np.float32))
        seeds.append(int(rng.integers(1 << 62)))
    base = np.cumsum(passes * n) - passes * n
    return Plan(np.concatenate(order), base, n, b, per_pass, steps, np.concatenate(u), tuple(seeds))


def visit(
    local: Local, task: Task, seen: Tensors, kept: Tensors, rows: Rows, planned: Plan, lift: Lift
) -> tuple[Tensors, Tensors]:
    """Train a group of clients from what they were sent and what they keep; give their replies and what they keep now.

    The clients come by falling number of steps: those that are done leave at the end, and only the others are computed.
    """
    steps = torch.from_numpy(planned.steps)
    v: Tensors = lift(lambda k, _: local.start(task, seen, k), (0, 0))(kept, steps)
    loss = lift(lambda w, x, y, share, k, u: local.loss(task, w, Batch(x, y, share), seen, k, u), (0,) * 6)
    memory: Tensors = {}
    left: list[Tensors] = []
    lr = local.rate(int(seen["round"]))
    with _seeded(planned.seeds):
        for t in range(planned.steps[0]):
            k = int((planned.steps > t).sum())
            if k < len(v["w"]):
                left.append({name: value[k:].clone() for name, value in v.items()})
                v, memory = ({name: value[:k] for name, value in part.items()} for part in (v, memory))
            gradient = _gradient(loss, planned.at(t, k), rows, {name: value[:k] for name, value in kept.items()})
            v, memory = local.step(task, v, memory, gradient, lr, torch.from_numpy(t // planned.per_pass[:k]))
    if left:
        v = {name: torch.cat([part[name] for part in [v, *reversed(left)]]) for name in v}
    replies, kept = lift(lambda w, k, n: local.reply(task, w, seen, k, n), (0, 0, 0))(v, kept, steps)
    return replies, kept


@contextmanager
def _seeded(seeds: tuple[int, ...]) -> Iterator[None]:
    """Torch's generator seeded for a client alone, whose module may draw inside, and put back after it.

    By hand: torch.random.fork_rng takes as long as a visit of a small client. Under vmap torch refuses such modules.
    """
    generator = torch.default_generator
    before = generator.get_state()
    if len(seeds) == 1:
        generator.manual_seed(seeds[0])
    try:
        yield
    finally:
        generator.set_state(before)


def _gradient(loss: Callable[..., Any], at: tuple[Tensor, Tensor, Tensor], rows: Rows, kept: Tensors) -> Gradient:
    """The gradient of a group's losses on a batch each: they are separate, so the sum's gradient is each one's own."""
    index, share, u = at
    x, y = rows.x[index], rows.y[index]

    def gradient(v: Tensors) -> tuple[Tensors, Tensor]:
        leaves = {name: value.detach().requires_grad_() for name, value in v.items()}
        losses, statistics = loss(leaves, x, y, share, kept, u)
        slopes = torch.autograd.grad(losses.sum(), list(leaves.values()), materialize_grads=True)
        return dict(zip(leaves, slopes, strict=True)), statistics

    return gradient


PASS = 1 << 24  # numbers a judging pass may hold: 64 MB


def measure(task: Task, w: Tensor, rows: Rows, ids: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The loss and the score of one model on each client's rows: one pass over all rows, then a reduction by client."""
    index, offsets = (None, rows.offsets) if ids is None else rows.where(ids)
    losses, evidence = judge(task, w, rows, index)
    return scores.by_client(losses, offsets), scores.named(task.score).clients(evidence, offsets)


def judge(task: Task, w: Tensor, rows: Rows, index: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The loss and the evidence of every row, or of those with these numbers, by one model."""
    total, at_once = len(rows.y) if index is None else len(index), max(1, PASS // task.width(rows.x))
    losses, evidence = [], []
    with torch.no_grad():
        for a in range(0, max(total, 1), at_once):  # without rows one empty pass: every client's value is NaN
            part = slice(a, a + at_once) if index is None else index[a : a + at_once]
            loss, row = task.judge(w, rows.x[part], rows.y[part])
            losses.append(loss)
            evidence.append(row)
    return torch.cat(losses), torch.cat(evidence)


def measure_each(task: Task, models: Tensor, rows: Rows, ids: Tensor, lift: Lift) -> tuple[Tensor, Tensor]:
    """The loss and the score of each client's own model (S, d) on its own rows."""
    (losses, evidence), offsets = judge_each(task, models, rows, ids, lift), rows.edges(ids)
    return scores.by_client(losses, offsets), scores.named(task.score).clients(evidence, offsets)


def judge_each(task: Task, models: Tensor, rows: Rows, ids: Tensor, lift: Lift) -> tuple[Tensor, Tensor]:
    """Every row's loss and evidence by its client's own model, one client after the other."""
    each, width = lift(task.judge, (0, 0, 0)), task.width(rows.x)
    losses, evidence = [], []
    with torch.no_grad():
        for a, b in _together(rows.sizes[ids].tolist(), task.size, width, lift is alone):
            index, offsets = rows.where(ids[a:b])
            size, first = offsets.diff()[:, None], offsets[:-1, None]
            for column in torch.split(torch.arange(int(size.max())), max(1, PASS // width)):
                real = column < size  # padding repeats a client's first row, and is left out below
                row = index[torch.where(real, first + column, first)]
                loss, found = each(models[a:b], rows.x[row], rows.y[row])
                losses.append(loss[real])
                evidence.append(found[real])
    return torch.cat(losses), torch.cat(evidence)


def _together(sizes: list[int], parameters: int, width: int, single: bool) -> Iterator[tuple[int, int]]:
    """Runs of clients that are judged at once: of like size, so that padding is little, and under the budget."""
    start = 0
    for i in range(1, len(sizes) + 1):
        group = sizes[start : i + 1]
        cost = len(group) * (parameters + max(group) * width)
        if i == len(sizes) or single or 2 * min(group) < max(group) or cost > PASS:
            yield start, i
            start = i
