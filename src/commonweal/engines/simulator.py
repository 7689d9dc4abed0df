"""All clients on this machine: a cohort at once by vmap, in chunks under a memory budget, or one after the other.

The three ways compute the same numbers up to float rounding. Which one `auto` takes depends on the module only, so it
is the same on every machine, and the record of a run states it.
"""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn

from commonweal import randomness
from commonweal.algorithm import Algorithm, Server
from commonweal.engines.kept import Kept
from commonweal.errors import ConfigError, did_you_mean
from commonweal.federation import Federation, Rows
from commonweal.local import Lift, Local, Tensors, alone, many, measure, measure_each
from commonweal.task import Batch, Task

__all__ = ["MODES", "Simulator"]

MODES = ("auto", "vmap", "chunked", "loop")
BUDGET = 1 << 28  # numbers that a chunk of clients may hold at once: 1 GB
LARGE = 1 << 19  # parameters from which a client alone keeps the cores busy


@dataclass(frozen=True, eq=False)
class Simulator:
    """Runs the clients of a federation in this process."""

    task: Task
    federation: Federation
    mode: str = "auto"
    budget: int = BUDGET
    trains: Task | None = None  # what a visit trains, where that is not the task itself but a generator
    kept: Kept = field(init=False)  # what clients that have taken part hold for themselves

    def __post_init__(self) -> None:
        object.__setattr__(self, "kept", Kept(self.federation.clients))
        if self.mode not in MODES:
            raise ConfigError(f"no engine is called {self.mode!r}: {did_you_mean(self.mode, MODES)}")
        if self.mode in ("vmap", "chunked") and self.task.random:
            raise ConfigError(f"engine {self.mode!r} cannot run a model with dropout: use 'loop' or 'auto'")

    @cached_property
    def decision(self) -> tuple[str, str]:
        """The way clients are run, and why."""
        way, why = self._wanted()
        if way != "loop" and (problem := _apart(self.task, self.federation)):
            return "loop", f"the model cannot be run for several clients at once ({problem})"
        return way, why

    def _wanted(self) -> tuple[str, str]:
        if self.mode != "auto":
            return self.mode, "asked for"
        task = self.trains or self.task
        kinds = {type(m) for m in task.module.modules()}
        if task.random:
            return "loop", "the model draws random numbers (dropout)"
        if any(issubclass(kind, nn.modules.conv._ConvNd | nn.RNNBase) for kind in kinds):
            return "loop", "convolutions and recurrent layers are faster client by client"
        if task.size >= LARGE:
            return "loop", f"{task.size} parameters keep the cores busy client by client"
        return "chunked", f"{task.size} parameters in layers that are faster together"

    def collect(self, algorithm: Algorithm, seen: Tensors, ids: Tensor, seed: int) -> Tensors:
        """Have each client of the cohort do its work; give their replies in the cohort's order."""
        round, parts = int(seen["round"]), []
        order = torch.argsort(self.federation.train.sizes[ids], descending=True, stable=True)
        for group in self._groups(algorithm, ids[order]):
            streams = [randomness.stream(seed, round, self.key(i), randomness.TRAIN) for i in group.tolist()]
            kept = self._kept(algorithm, group, seed)
            lift: Lift = alone if len(group) == 1 else many
            replies, kept = algorithm.work(self.task, seen, kept, self.federation.train, group, streams, lift)
            for k, i in enumerate(group.tolist() if kept else []):
                self.kept.put(i, {n: value[k].clone() for n, value in kept.items()}, round)
            parts.append(replies)
        back = torch.argsort(order)
        joined = parts[0] if len(parts) == 1 else {n: torch.cat([p[n] for p in parts]) for n in parts[0]}
        if torch.equal(back, torch.arange(len(back))):
            return joined
        return {name: value[back] for name, value in joined.items()}

    def evaluate(self, algorithm: Algorithm, server: Server) -> tuple[Tensor, Tensor]:
        """Every client's loss and score (K,) of the server's model on its test rows; NaN where a client has none."""
        return measure(self.task, algorithm.model(self.task, server), self.federation.test)

    @property
    def lift(self) -> Lift:
        """How the clients' own models are judged: as they are run."""
        return alone if self.decision[0] == "loop" else many

    def personal(
        self, algorithm: Algorithm, server: Server, shared: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor] | None:
        """As `evaluate`, of the models that the clients are served with; None where that is the server's model.

        shared: what `evaluate` gave, where that is known already
        """
        own = getattr(algorithm, "personal", None)
        if own is None:
            return None
        seen = self.seen(algorithm, server)
        return self.judge(lambda kept: own(self.task, seen, kept), shared or self.evaluate(algorithm, server))

    def seen(self, algorithm: Algorithm, server: Server) -> Tensors:
        """What a client would be sent now."""
        return algorithm.ask(server) | {"w": algorithm.model(self.task, server)}

    def judge(
        self,
        own: Callable[[Tensors], Tensor],
        others: tuple[Tensor, Tensor],
        task: Task | None = None,
        rows: Rows | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Every client's loss and score (K,) of its own model, made from what it keeps; `others` of those without."""
        rows, task = rows or self.federation.test, task or self.task
        losses, scores = (value.clone() for value in others)
        for ids, models in self.models(own, rows):
            losses[ids], scores[ids] = measure_each(task, models, rows, ids, self.lift)
        return losses, scores

    def models(self, own: Callable[[Tensors], Tensor], rows: Rows) -> Iterator[tuple[Tensor, Tensor]]:
        """The clients that have taken part and have rows, by falling size, a budget's worth at a time: ids, (S, d)."""
        ids = torch.tensor([i for i in self.kept if rows.sizes[i] > 0], dtype=torch.int64)
        ids = ids[torch.argsort(rows.sizes[ids], descending=True, stable=True)]
        for group in torch.split(ids, max(1, self.budget // (16 * self.task.size))) if len(ids) else ():
            each = [self.kept[i] for i in group.tolist()]
            yield group, torch.vmap(own)({name: torch.stack([k[name] for k in each]) for name in each[0]})

    def key(self, client: int) -> int:
        return randomness.key(self.federation.names[client])

    def _groups(self, algorithm: Algorithm, ids: Tensor) -> Iterator[Tensor]:
        """Clients to be run together, by falling size, so that batches of very different length never meet."""
        way, most = self.decision[0], len(ids)
        local = getattr(algorithm, "local", None)
        if way == "loop" or local is None:
            yield from torch.split(ids, 1)
            return
        if way == "chunked":
            most = max(1, self.budget // self._cost(local, int(self.federation.train.sizes[ids[0]])))
        sizes = self.federation.train.sizes[ids].tolist()
        widths = [min(n, local.batch or n) for n in sizes]
        exact = self.task.size > self.task.trained  # padding would enter a BatchNorm's statistics
        start = 0
        for i in range(1, len(ids) + 1):
            apart = i < len(ids) and (sizes[i] != sizes[start] if exact else 2 * widths[i] < widths[start])
            if i == len(ids) or apart or i - start == most:
                yield ids[start:i]
                start = i

    def _cost(self, local: Local, rows: int) -> int:
        """How many numbers a client holds in a step: vectors with their gradients, and what its rows become."""
        vectors, width = 6 * (self.trains or self.task).size, self.task.width(self.federation.train.x)
        return vectors + 3 * min(local.batch or rows, rows) * width

    def _kept(self, algorithm: Algorithm, ids: Tensor, seed: int) -> Tensors:
        each = []
        for i in ids.tolist():
            rng = randomness.stream(seed, 0, self.key(i), randomness.KEEP)
            each.append(self.kept[i] if i in self.kept else algorithm.keep(self.task, int(rng.integers(1 << 62))))
        return {name: torch.stack([k[name] for k in each]) for name in each[0]}


def _apart(task: Task, federation: Federation) -> str:
    """Why clients of this model must be run one by one, found by one small step of two; empty where they need not.

    An operator without a batching rule fails, or warns that it will be slow.
    """
    rows = torch.zeros(2, 2, dtype=torch.int64)
    x, y, share = federation.train.x[rows], federation.train.y[rows], torch.full((2, 2), 0.5)
    w = torch.stack([task.initial, task.initial]).requires_grad_()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*batching rule.*")
            losses, _ = torch.vmap(lambda w, x, y, s: task.loss(w, Batch(x, y, s)))(w, x, y, share)
            torch.autograd.grad(losses.sum(), w)
    except (RuntimeError, ValueError, NotImplementedError, UserWarning) as error:
        return str(error).split("\n")[0][:200]
    return ""
