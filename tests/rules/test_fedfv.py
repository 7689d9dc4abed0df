"""FedFV against the same projections on vectors, one after the other, and what they achieve."""

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch

from commonweal.base.errors import ConfigError
from commonweal.rules import FedFV
from rule_helpers import normals, reports, uniforms, updates_of, vowel, weigh

Array = npt.NDArray[np.float64]


def direction(U: Array, losses: Array, alpha: float) -> Array:
    """Algorithm 1 of the paper (tau = 0), on vectors."""
    size = len(U)
    rising = np.argsort(losses)
    kept = set(rising[math.ceil((size - 1) * (1 - alpha)) :].tolist())
    total = np.zeros(U.shape[1])
    for i in range(size):
        v = U[i].copy()
        for j in rising:
            if i not in kept and j != i and v @ U[j] < 0:
                v = v - (v @ U[j]) / (U[j] @ U[j]) * U[j]
        total += v / size
    scale = np.linalg.norm(U.mean(0)) / np.linalg.norm(total)
    return np.asarray(scale * total)


@pytest.mark.parametrize("alpha", [0.0, 0.1, 1 / 3, 0.5, 1.0])
def test_it_is_the_papers_loop_on_vectors(alpha: float) -> None:
    for seed in range(4):
        U = normals(seed, 7, 12)
        losses = uniforms(seed, 7)
        told = reports(losses, updates=U)
        got = (weigh(FedFV(alpha), told) @ U).numpy()
        np.testing.assert_allclose(got, direction(U.numpy(), losses.numpy(), alpha), rtol=1e-9)


def test_by_hand() -> None:
    """The first client's conflict with the second, who keeps its update, is removed."""
    told = reports([1.0, 2.0], updates=[[1.0, -1.0], [0.0, 1.0]])
    got = weigh(FedFV(), told) @ updates_of(told)
    # v = (1, 0) and (0, 1): their mean has the length 0.707, that of the updates 0.5.
    assert got.tolist() == pytest.approx([0.5 / math.sqrt(2)] * 2, rel=1e-12)


def test_of_two_clients_the_worse_served_one_is_not_harmed() -> None:
    """Whatever the length of the other's update, by which an average would harm it."""
    for seed in range(10):
        U = normals(seed, 2, 3) * torch.tensor([[10.0], [1.0]])
        direction = weigh(FedFV(), reports([1.0, 2.0], updates=U)) @ U
        assert U[1] @ direction > -1e-12


def test_averaging_would_harm_it() -> None:
    gaps = []
    for seed in range(10):
        U = normals(seed, 2, 3) * torch.tensor([[10.0], [1.0]])
        gaps.append(float(U[1] @ U.mean(0)))
    assert min(gaps) < -1


def test_updates_that_agree_are_averaged() -> None:
    told = reports([1.0, 2.0, 3.0], updates=[[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    assert weigh(FedFV(), told).tolist() == pytest.approx([1 / 3] * 3, rel=1e-12)


def test_an_experiment_runs() -> None:
    rounds = vowel("fedfv", cohort=5, rounds=4)
    assert sum(rounds[-1].losses) / 5 < 2.4


def test_alpha_out_of_range_is_an_error() -> None:
    with pytest.raises(ConfigError, match="alpha = 2"):
        FedFV(2.0)
