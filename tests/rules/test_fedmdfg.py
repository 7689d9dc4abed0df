"""FedMDFG against SciPy's minimum norm on vectors, descent for all, and the angle that falls."""

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.optimize import nnls
from torch import Tensor

from commonweal.base.errors import ConfigError
from commonweal.rules import FedMDFG, FedMGDA
from rule_helpers import normals, reports, uniforms, vowel, weigh

Array = npt.NDArray[np.float64]


def even(U: Tensor) -> Tensor:
    """Updates of their mean length."""
    scaled: Tensor = U / U.norm(dim=1, keepdim=True) * U.norm(dim=1).mean()
    return scaled


def angle(f: Array) -> float:
    """To equal losses, in degrees."""
    cosine = f.sum() / (np.linalg.norm(f) * math.sqrt(len(f)))
    return math.degrees(math.acos(min(1.0, cosine)))


def shortest(vectors: Array) -> Array:
    """The shortest vector of a convex hull, by non-negative least squares.

    A row of ones, much heavier than the rest, makes the weights sum to 1 (up to 1e-8).
    """
    heavy = 1e4
    rows = np.vstack([vectors.T, heavy * np.ones(len(vectors))])
    target = np.append(np.zeros(vectors.shape[1]), heavy)
    lam, _ = nnls(rows, target)
    point: Array = lam / lam.sum() @ vectors
    return point


def numeric_guidance(f: Array) -> Array:
    """The unit gradient of the angle, by central differences."""
    h = 1e-6
    steps = h * np.eye(len(f))
    gradient: Array = np.array([angle(f + step) - angle(f - step) for step in steps])
    unit: Array = gradient / np.linalg.norm(gradient)
    return unit


def test_it_is_the_shortest_vector_with_the_angles_gradient() -> None:
    for seed in range(5):
        U = even(normals(seed, 4, 9) + 0.3).numpy()
        f = 0.1 + 3 * uniforms(seed, 4).numpy()
        vectors = U
        if angle(f) > 11.25:
            vectors = np.vstack([U, numeric_guidance(f) @ U])
        rule = FedMDFG(scale="none")
        got = weigh(rule, reports(f.tolist(), updates=U.tolist())).numpy() @ U
        np.testing.assert_allclose(got, shortest(vectors), atol=2e-4)


def test_updates_are_set_to_their_mean_length() -> None:
    U = normals(3, 4, 9)
    f = [1.0, 2.0, 0.5, 3.0]
    scaled = even(U)
    one = weigh(FedMDFG(scale="none"), reports(f, updates=U)) @ U
    other = weigh(FedMDFG(scale="none"), reports(f, updates=scaled)) @ scaled
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


def test_all_descend_and_losses_become_more_alike() -> None:
    for seed in range(10):
        U = normals(seed, 5, 30)
        f = 0.1 + 3 * uniforms(seed, 5)
        D = weigh(FedMDFG(), reports(f, updates=U)) @ U
        rates = U @ D
        assert (rates > 0).all()
        assert angle((f - 1e-4 * rates).numpy()) < angle(f.numpy())
        assert D.norm() == pytest.approx(U.mean(0).norm().item(), rel=1e-6)


def test_losses_that_are_alike_need_no_guidance() -> None:
    U = even(normals(1, 4, 9))
    told = reports([1.0, 1.1, 0.9, 1.0], updates=U)
    rule = FedMDFG(scale="none")
    torch.testing.assert_close(weigh(rule, told), weigh(FedMGDA(), told), rtol=1e-6, atol=1e-8)


def test_an_experiment_runs() -> None:
    rounds = vowel("fedmdfg", cohort=5, rounds=4)
    assert all(math.isfinite(loss) for loss in rounds[-1].losses)


def test_theta_out_of_range_is_an_error() -> None:
    with pytest.raises(ConfigError, match="theta = 91"):
        FedMDFG(91.0)
