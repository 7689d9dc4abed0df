"""Where the time of a round goes, and what each way to save some of it gives.

Processor time of one thread, medians.
"""

from collections.abc import Callable
from functools import partial
from unittest import mock

import torch
from torch import Tensor

from commonweal.base import randomness
from commonweal.base.tensors import is_finite
from commonweal.clients import Client
from commonweal.engines.simulator import CHUNK, Simulator
from commonweal.protocols.algorithm import Request
from commonweal.protocols.averaging import Averaging
from commonweal.protocols.servers import SGD
from commonweal.rules import FedAvg
from commonweal.rules.rule import Reports
from commonweal.task import vectorize
from commonweal.training import batches, local
from commonweal.training.dense import DenseTrainer
from commonweal.training.evaluation import evaluate

from .report import Target, table
from .timing import InProcess, Spread, in_turns, spread
from .work import Work

__all__ = ["gram", "profile", "ways_to_train"]

COHORTS = {"10 x 100 rows": (10, 100), "100 x 20 rows": (100, 20)}

Round = Callable[[], object]


class Bench:
    """A cohort of all clients, and the parts of its round."""

    def __init__(self, model: str, clients: int, rows: int) -> None:
        work = Work("", model, clients=clients, rows=rows, cohort=clients)
        self.task = work.task()
        self.data = work.federation()
        self.ids = torch.arange(clients)
        self.algorithm = Averaging(self.task, FedAvg(), Client(), SGD())
        self.state = self.algorithm.init(self.data.population)
        self.message = self.algorithm.ask(self.state)
        self.engine = Simulator(self.data)

    def draw(self) -> batches.BatchSchedule:
        keys = [self.data.population.key(i) for i in self.ids.tolist()]
        streams = [randomness.stream(0, 1, key, randomness.TRAIN) for key in keys]
        client = self.algorithm.client
        return batches.schedule(client, self.task, self.data.train, self.ids, streams)

    def report(self) -> object:
        return evaluate(self.task, self.message["w"], self.data.train, self.ids)

    def train(self, plan: batches.BatchSchedule, chunk: int | None = CHUNK) -> Tensor:
        trained = local.train_locally(
            self.algorithm.client,
            self.task,
            self.message,
            {},
            self.data.train,
            plan,
            vectorize.vmap_clients,
            chunk,
            models=False,
        )
        return trained.replies["update"]

    def round(self) -> object:
        replies = self.engine.collect(self.algorithm, Request(self.ids, self.message))
        return self.algorithm.tell(self.state, replies, len(self.ids))

    def parts(self) -> dict[str, Round]:
        plan = self.draw()
        update = self.train(plan)
        weights = torch.full((len(update),), 1 / len(update))
        return {
            "random streams and batches": self.draw,
            "loss of the received model, for fair rules": self.report,
            "local training": lambda: self.train(plan),
            "replies checked": lambda: is_finite(update),
            "weighted sum": lambda: weights @ update,
            "whole round": self.round,
        }


def spreads(ways: dict[str, Round], turns: int) -> dict[str, Spread]:
    """The processor milliseconds of each way, taken in turns by one thread."""
    times = in_turns([InProcess(name, way) for name, way in ways.items()], turns)
    return {name: spread(1e3 * turn.processor for turn in v) for name, v in times.items()}


def print_columns(title: str, columns: dict[str, dict[str, Spread]]) -> None:
    """A table with a column per key; rows are the ways."""
    rows = []
    for way in next(iter(columns.values())):
        rows.append([way, *(values[way].text(1) for values in columns.values())])
    print(f"\n### {title}\n\n{table(['processor ms', *columns], rows)}", flush=True)


def profile(turns: int) -> list[Target]:
    """The parts of a round with FedAvg."""
    columns = {}
    for model in ("logistic", "mlp"):
        for label, (clients, rows) in COHORTS.items():
            columns[f"{model}, {label}"] = spreads(Bench(model, clients, rows).parts(), turns)
    print_columns("Where the time of a round goes", columns)
    return []


def by_autograd(bench: Bench, plan: batches.BatchSchedule) -> Tensor:
    with mock.patch.object(DenseTrainer, "of", return_value=None):
        return bench.train(plan)


def ways_to_train(turns: int) -> list[Target]:
    """Local training of the MLP, by autograd and by chunks of several sizes."""
    columns = {}
    for label, (clients, rows) in COHORTS.items():
        bench = Bench("mlp", clients, rows)
        plan = bench.draw()
        ways: dict[str, Round] = {"vmap and autograd": partial(by_autograd, bench, plan)}
        for power in (18, 19, 20, 21, 22, 24):
            ways[f"closed form, chunks of 2^{power}"] = partial(bench.train, plan, 1 << power)
        ways["closed form, all at once"] = partial(bench.train, plan, None)
        columns[f"mlp, {label}"] = spreads(ways, turns)
    print_columns("Ways to train dense models", columns)
    return []


def gram(turns: int, parameters: int, clients: int = 100) -> list[Target]:
    """The inner products of a cohort's updates in float64 and float32."""
    generator = torch.Generator().manual_seed(0)
    updates = torch.randn(clients, parameters, generator=generator)
    exact = _reports(updates).gram

    def single(columns: int) -> Tensor:
        total = torch.zeros(clients, clients, dtype=torch.float64)
        for block in torch.split(updates, columns, dim=1):
            total += (block @ block.T).double()
        return total

    def double(columns: int) -> Tensor:
        total = torch.zeros(clients, clients, dtype=torch.float64)
        for block in torch.split(updates, columns, dim=1):
            wide = block.double()
            total = total + wide @ wide.T
        return total

    ways: dict[str, Callable[[], Tensor]] = {
        "float64, blocks in one place (now)": lambda: _reports(updates).gram,
        "float64, fresh blocks of 2^16 columns": lambda: double(1 << 16),
        "float32, blocks of 2^10 columns": lambda: single(1 << 10),
        "float32, one product": lambda: single(parameters),
    }
    scale = exact.diagonal().outer(exact.diagonal()).sqrt()
    times = spreads(dict(ways), turns)
    rows = []
    for name, way in ways.items():
        error = float(((way() - exact).abs() / scale).max())
        rows.append([name, times[name].text(0), f"{error:.0e}"])
    print(f"\n### Gram matrix of {clients} updates of {parameters:,} parameters\n")
    print(table(["", "processor ms", "largest error"], rows), flush=True)
    return []


def _reports(updates: Tensor) -> Reports:
    ones = torch.ones(len(updates))
    ids = torch.arange(len(updates))
    return Reports(ids=ids, sizes=ones, losses=ones, clients=len(updates), updates=updates)
