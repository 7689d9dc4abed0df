"""Shares of whole numbers are those of the decimals that were written."""

import math
from fractions import Fraction

import numpy as np
import torch
from torch import nn

from cases import cases
from commonweal.base import randomness
from commonweal.base.shares import product
from commonweal.clients import Client
from commonweal.clients.blend import Blend
from commonweal.clients.fedrep import FedRep
from commonweal.config.experiment import RunSettings
from commonweal.data.federation import Federation
from commonweal.data.split import quota
from commonweal.datasets.noise import Symmetric
from commonweal.jobs.job import cohort_size
from commonweal.task.task import Task
from commonweal.training.batches import schedule

SHARES = [k / 100 for k in range(1, 100)] + [k / 1000 for k in range(1, 1000, 7)]
NUMBERS = [1, 3, 5, 10, 25, 99, 100, 200, 1000, 12_345, 10**9]


def exact(share: float, number: int) -> Fraction:
    return Fraction(str(share)) * number


def half_up(value: Fraction) -> int:
    return math.floor(value + Fraction(1, 2))


@cases("number", NUMBERS)
def test_products_round_as_those_of_decimals(number: int) -> None:
    together = [product(share, np.array([number, number]))[1] for share in SHARES]
    for share, value in zip(SHARES, together, strict=True):
        assert value == product(share, number)
        want = exact(share, number)
        assert math.ceil(value) == math.ceil(want), share
        assert math.floor(value) == math.floor(want), share
        assert round(value) == round(want), share
        assert math.floor(value + 0.5) == half_up(want), share
        rest = product(1 - share, number)
        assert math.ceil(rest) == math.ceil(number - want), share
        assert abs(value - float(want)) <= 1e-9 * float(want)


def test_other_numbers_stay() -> None:
    for value in (1 / 3, math.pi, 1e-300, 0.0, 7 + 1e-9, 2.5 - 1e-9):
        assert product(value, 1) == value


def steps(client: Client, batches: int) -> int:
    rows = 4 * batches
    x = torch.zeros(rows, 2)
    f = Federation.from_arrays(x, torch.zeros(rows, dtype=torch.int64), ["a"] * rows, test=0.0)
    streams = [randomness.stream(0, 1, 1, 2)]
    task = Task(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    return int(schedule(client, task, f.train, torch.tensor([0]), streams).steps[0])


@cases("batches", [1, 3, 10, 100])
def test_fractions_of_epochs_are_their_share_of_the_batches(batches: int) -> None:
    for k in range(1, 200):
        want = math.ceil(Fraction(k, 100) * batches)
        assert steps(Client(epochs=k / 100, batch=4), batches) == want, k


def test_fractions_add_up_over_phases() -> None:
    for k in range(1, 100):
        client = FedRep(head_epochs=2, epochs=k / 100, batch=4)
        assert steps(client, 100) == 200 + k, k


def test_shares_of_clients_and_rows_are_exact() -> None:
    sizes = np.array([7, 20, 100, 200, 1000])
    names = [str(k) for k in range(200)]
    f = Federation.from_arrays(
        torch.zeros(400, 1), torch.arange(400) % 2, np.repeat(np.arange(200), 2), names=names
    )
    for k in range(1, 100):
        share = k / 100
        want = exact(share, 200)
        assert cohort_size(RunSettings(cohort=share), 200) == max(1, round(want)), share
        held_out = f.hold_out(share).held_out
        assert held_out is not None and len(held_out.names) == max(1, round(want)), share
        rows = [min(max(1, half_up(exact(share, int(n)))), int(n) - 1) for n in sizes]
        assert quota(sizes, share).tolist() == rows, share
        labels = np.zeros(200, dtype=np.int64)
        assert int((Symmetric(share)(labels, 5, seed=0) > 0).sum()) == half_up(want), share
        if share <= 0.9:
            assert Blend(learn_at=share).scouted(100) == k
