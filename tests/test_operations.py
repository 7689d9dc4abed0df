"""How many operators of torch a round takes: speed that can be tested, as seconds cannot.

A model that falls back from the closed form, a further pass over the samples or a copy per step
shows here. Where a change is meant to take more operators, print the counts and change the table.
"""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from commonweal.config import catalog
from commonweal.engines.simulator import Simulator
from commonweal.jobs.job import job_from_parts
from commonweal.protocols.algorithm import Request
from commonweal.task.task import Task
from helpers import SHAPES, federation, module

SIZES = dict.fromkeys("abcdefgh", 40)
CLIENT = {"batch": 8, "lr": 0.1}  # five steps

# Operators of one round of eight clients with five steps each.
MOST = {
    ("logistic", "sgd", "fedavg"): 110,
    ("mlp", "sgd", "fedavg"): 155,
    ("mlp", "sgd", "aaggff-s"): 152,
    ("mlp", "fedprox", "fedavg"): 171,
    ("mlp", "scaffold", "fedavg"): 222,
    ("mlp", "ditto", "fedavg"): 293,
    ("mlp", "apfl", "fedavg"): 337,
    ("mlp", "superfed-mm", "fedavg"): 519,
    ("mlp", "fedrep", "fedavg"): 780,
    ("cnn", "sgd", "fedavg"): 1580,
    ("cnn", "sgd", "aaggff-s"): 1782,
    ("cnn", "fedrep", "fedavg"): 13644,
}


class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operators, without those that only make views."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def operators(model: str, method: str, rule: str) -> int:
    """The operators of the second round's requests, when everything is prepared."""
    rows = federation(SIZES, SHAPES[model])
    options: dict[str, Any] = {"name": method, **CLIENT}
    job = job_from_parts(Task(module(model)), rows, rule=rule, client=options, rounds=2)
    assert isinstance(job.engine, Simulator)
    state = job.initial_state()
    everyone = torch.arange(rows.clients)
    counts = []
    for _ in range(2):
        message = job.algorithm.message(state)
        counter = Counter()  # type: ignore[no-untyped-call]
        with counter:
            job.engine.collect(job.algorithm, Request(everyone, message))
        counts.append(int(counter.count))
    return counts[1]


@pytest.mark.parametrize("case", MOST, ids=" ".join)
def test_a_round_takes_no_more_operators_than_before(case: tuple[str, str, str]) -> None:
    assert operators(*case) <= MOST[case]


def test_the_table_names_parts_of_the_catalog() -> None:
    assert {method for _, method, _ in MOST} <= set(catalog.entries("clients"))
