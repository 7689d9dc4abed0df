"""Schedules: formulas against the same written in Python, and in servers and clients."""

import math
from collections.abc import Callable

import pytest
import torch

import commonweal
from cases import cases
from commonweal.base.errors import ConfigError
from commonweal.clients import Client
from commonweal.protocols.servers import SGD, Adam, Optimistic, Polyak
from commonweal.training.client import learning_rate
from commonweal.training.schedules import check_schedule, factor
from run_helpers import federation, task

FORMULAS: dict[str, Callable[[int], float]] = {
    "1/t": lambda t: 1 / t,
    "1/sqrt(t)": lambda t: t**-0.5,
    "0.99^(t-1)": lambda t: 0.99 ** (t - 1),
    "1.01**t": lambda t: 1.01**t,
    "0.5^((t - 1) // 10)": lambda t: 0.5 ** ((t - 1) // 10),
    "max(0.1, 1 - t/100)": lambda t: max(0.1, 1 - t / 100),
    "(1 + cos(pi * t / 400)) / 2": lambda t: (1 + math.cos(math.pi * t / 400)) / 2,
    "1 / (1 + log(t))": lambda t: 1 / (1 + math.log(t)),
    "2 * exp(-t / 50)": lambda t: 2 * math.exp(-t / 50),
}


@cases("formula", FORMULAS)
def test_a_formula_is_what_python_computes(formula: str) -> None:
    for t in (1, 2, 3, 10, 11, 99, 200):
        assert factor(formula, t) == pytest.approx(FORMULAS[formula](t), rel=1e-14)


def test_without_a_schedule_nothing_changes() -> None:
    assert factor(None, 7) == 1.0
    check_schedule(None, 10**12)  # at once


WRONG = ["", "1/", "x", "__import__('os')", "t.real", "(lambda: 1)()", "[1][0]", "1 if t else 2"]
WRONG += [
    "9^9^9^9",
    "1/(t-1)",
    "'a'",
    "True",
    "sqrt(t, base=2)",
    "sqrt",
    "t" * 300,
    "0",
    "log(t)-9",
]


@cases("formula", WRONG)
def test_what_is_no_formula_is_an_error(formula: str) -> None:
    with pytest.raises(ConfigError, match="schedule = "):
        factor(formula, 1)


def test_a_schedule_that_falls_to_zero_is_found_before_the_run() -> None:
    check_schedule("1 - t/100", 99)
    with pytest.raises(ConfigError, match="in round 100"):
        check_schedule("1 - t/100", 100)
    for parts in ({"client": Client(schedule="1 - t/3")}, {"server": SGD(schedule="1 - t/3")}):
        with pytest.raises(ConfigError, match="in round 3"):
            next(commonweal.run(task(), federation(), rounds=4, **parts))


def test_the_clients_learning_rate_follows_it() -> None:
    client = Client(lr=0.5, schedule="1/t", decay=0.9)
    assert [learning_rate(client, t) for t in (1, 2, 4)] == pytest.approx(
        [0.5, 0.225, 0.125 * 0.9**3]
    )


def test_the_servers_steps_follow_it() -> None:
    """sgd with lr k/t on a constant direction: the sum of k/t."""
    w = torch.zeros(2, dtype=torch.float64)
    direction = torch.ones(2, dtype=torch.float64)
    server = SGD(lr=0.5, schedule="1/t")
    state = server.init(w)
    for _ in range(5):
        w, state = server(w, direction, state)
    assert w.tolist() == pytest.approx([-0.5 * (1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 / 5)] * 2)


def test_adaptive_and_nested_servers_follow_it() -> None:
    w = torch.zeros(3, dtype=torch.float64)
    direction = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    plain, halved = Adam(), Adam(schedule="1/t")
    a, b = plain.init(w), halved.init(w)
    x, y = w, w
    for t in (1, 2, 3):
        moved, a = plain(x, direction, a)
        slower, b = halved(y, direction, b)
        torch.testing.assert_close(slower - y, (moved - x) / t)
        x, y = moved, slower
    for outer in (Polyak(SGD(schedule="1 - t/3")), Optimistic(SGD(schedule="1 - t/3"))):
        with pytest.raises(ConfigError, match="in round 3"):
            outer.check(4)
