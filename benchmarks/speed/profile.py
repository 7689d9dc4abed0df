"""Where the time of a round goes, and what each way to save some of it gives.

Processor time of one thread, medians; contenders are taken in turns, because machines are shared
and noisy. `benchmarks/speed` compares whole rounds with a hand-written loop, with the limit and
with other libraries.

    python benchmarks/round.py [--turns N]
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from unittest import mock

import torch
from torch import Tensor

from commonweal.algorithms.algorithm import Request
from commonweal.algorithms.averaging import Averaging
from commonweal.base import randomness
from commonweal.base.tensors import is_finite
from commonweal.clients import Client
from commonweal.config import catalog
from commonweal.data.federation import Federation, Rows
from commonweal.engines.simulator import CHUNK, Simulator
from commonweal.rules import FedAvg
from commonweal.rules.rule import Reports
from commonweal.servers import SGD
from commonweal.training import local
from commonweal.training.dense import DenseTrainer
from commonweal.training.evaluation import evaluate
from commonweal.training.task import Task

SHAPE = (1, 28, 28)
MODELS: dict[str, object] = {"logistic": "logistic", "mlp": {"name": "mlp", "hidden": [200]}}
COHORTS = {"10 x 100 rows": (10, 100), "100 x 20 rows": (100, 20)}

Work = Callable[[], object]


def federation(clients: int, rows: int) -> Federation:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(clients * rows, *SHAPE, generator=generator)
    y = torch.randint(0, 10, (clients * rows,), generator=generator)
    part = Rows(x, y, torch.arange(clients + 1) * rows)
    return Federation(part, part, tuple(map(str, range(clients))), outputs=10)


class Bench:
    """A cohort of all clients, and the parts of its round."""

    def __init__(self, model: str, clients: int, rows: int, client: Client | None = None) -> None:
        torch.manual_seed(0)
        self.task = Task(catalog.build("models", MODELS[model], shape=SHAPE, outputs=10))
        self.data = federation(clients, rows)
        self.ids = torch.arange(clients)
        self.algorithm = Averaging(self.task, FedAvg(), client or Client(), SGD())
        self.state = self.algorithm.init(self.data.population)
        self.message = self.algorithm.ask(self.state)
        self.engine = Simulator(self.data)

    def draw(self) -> local.BatchSchedule:
        keys = [self.data.population.key(i) for i in self.ids.tolist()]
        streams = [randomness.stream(0, 1, key, randomness.TRAIN) for key in keys]
        client = self.algorithm.client
        return local.schedule(client, self.task, self.data.train, self.ids, streams)

    def report(self) -> object:
        return evaluate(self.task, self.message["w"], self.data.train, self.ids)

    def train(self, plan: local.BatchSchedule, chunk: int | None = CHUNK) -> Tensor:
        trained = local.train_locally(
            self.algorithm.client,
            self.task,
            self.message,
            {},
            self.data.train,
            plan,
            local.vmap_clients,
            chunk,
            models=False,
        )
        return trained.replies["update"]

    def round(self) -> object:
        replies = self.engine.collect(self.algorithm, Request(self.ids, self.message))
        return self.algorithm.tell(self.state, replies, len(self.ids))

    def parts(self) -> dict[str, Work]:
        plan = self.draw()
        update = self.train(plan)
        weights = torch.full((len(update),), 1 / len(update))
        return {
            "random streams and batches": self.draw,
            "loss of the received model": self.report,
            "local training": lambda: self.train(plan),
            "replies checked": lambda: is_finite(update),
            "weighted sum": lambda: weights @ update,
            "whole round": self.round,
        }


def in_turns(ways: dict[str, Work], turns: int) -> dict[str, float]:
    """The median processor milliseconds of each way, taken in turns."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(turns + 1):
        for name, way in ways.items():
            start = time.process_time()
            way()
            if turn:  # the first one is to warm up
                taken[name].append(1e3 * (time.process_time() - start))
    return {name: statistics.median(values) for name, values in taken.items()}


def print_table(title: str, columns: dict[str, dict[str, float]]) -> None:
    """One column per key, in markdown; rows are the ways."""
    print(f"\n| {title}, processor ms | " + " | ".join(columns) + " |")
    print("|---|" + "--:|" * len(columns))
    for way in next(iter(columns.values())):
        cells = " | ".join(f"{values[way]:.1f}" for values in columns.values())
        print(f"| {way} | {cells} |")


def profile(turns: int) -> None:
    columns = {}
    for model in MODELS:
        for label, (clients, rows) in COHORTS.items():
            columns[f"{model}, {label}"] = in_turns(Bench(model, clients, rows).parts(), turns)
    print_table("a round", columns)


def by_autograd(bench: Bench, plan: local.BatchSchedule) -> Tensor:
    with mock.patch.object(DenseTrainer, "of", return_value=None):
        return bench.train(plan)


def ways_to_train(turns: int) -> None:
    columns = {}
    for label, (clients, rows) in COHORTS.items():
        bench = Bench("mlp", clients, rows)
        plan = bench.draw()
        ways: dict[str, Work] = {"vmap and autograd": partial(by_autograd, bench, plan)}
        for power in (18, 19, 20, 21, 22, 24):
            ways[f"closed form, chunks of 2^{power}"] = partial(bench.train, plan, 1 << power)
        ways["closed form, all at once"] = partial(bench.train, plan, None)
        columns[f"mlp, {label}"] = in_turns(ways, turns)
    print_table("local training", columns)


def gram(turns: int, clients: int = 100, parameters: int = 1_663_370) -> None:
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
    times = in_turns(dict(ways), turns)
    print(f"\n| Gram matrix of {clients} x {parameters} | processor ms | largest error |")
    print("|---|--:|--:|")
    for name, way in ways.items():
        error = float(((way() - exact).abs() / scale).max())
        print(f"| {name} | {times[name]:.0f} | {error:.0e} |")


def _reports(updates: Tensor) -> Reports:
    ones = torch.ones(len(updates))
    ids = torch.arange(len(updates))
    return Reports(ids=ids, sizes=ones, losses=ones, clients=len(updates), updates=updates)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=11)
    turns = parser.parse_args(arguments).turns
    torch.set_num_threads(1)
    profile(turns)
    ways_to_train(turns)
    gram(max(1, turns // 4))


if __name__ == "__main__":
    main()
