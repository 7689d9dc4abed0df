"""Follow the regularised leader against closed forms of eq. 6, with a user's own regularisers."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from commonweal.base.errors import DataError
from commonweal.checks.rules import check_rule
from commonweal.rules import AAggFFS
from commonweal.rules.ftrl import FTRL
from commonweal.rules.simplex import minimize
from rule_helpers import ORACLE_CDFS, normals, play, reports


@dataclass(frozen=True)
class Entropy(FTRL):
    """eta sqrt(t) sum p log p"""

    eta: float = 0.3

    def regularizer(self, p: Tensor, t: int) -> Tensor:
        return self.eta * math.sqrt(t) * (p * p.log()).sum()


@dataclass(frozen=True)
class Square(FTRL):
    """alpha / 2 |p|^2"""

    alpha: float = 0.05

    def regularizer(self, p: Tensor, t: int) -> Tensor:
        return self.alpha / 2 * p.square().sum()


def projected(v: np.ndarray) -> np.ndarray:
    """The nearest point of the simplex, by bisection on the threshold."""
    low, high = v.min() - 1, v.max()
    for _ in range(200):
        middle = (low + high) / 2
        if np.clip(v - middle, 0, None).sum() > 1:
            low = middle
        else:
            high = middle
    p: np.ndarray = np.clip(v - high, 0, None)
    return p


@pytest.mark.parametrize("rule", [Entropy(), Entropy(eta=0.01), Square(), Square(alpha=2.0)])
@pytest.mark.parametrize("size", [7, 3])
def test_it_is_equation_6(rule: Entropy | Square, size: int) -> None:
    """With an entry of p for every client, and eq. 10 for those who do not report."""
    rng = np.random.default_rng(size)
    state = rule.init(7)
    p = np.full(7, 1 / 7)
    linear = np.zeros(7)
    for t in range(1, 16):
        ids = rng.choice(7, size, replace=False)
        f = 0.05 + rng.exponential(size=size)
        r = np.array([ORACLE_CDFS["normal"](x) for x in f / f.mean()]) / 7
        robust = np.full(7, r.mean())
        robust[ids] = r.mean() + (r - r.mean()) * 7 / size
        linear -= robust / (1 + p @ robust)
        if isinstance(rule, Entropy):
            p = np.exp(-linear / (rule.eta * math.sqrt(t)))
            p /= p.sum()
        else:
            p = projected(-linear / rule.alpha)
        told = reports(torch.from_numpy(f), ids=ids.tolist(), clients=7)
        weights, state = play(rule, told, state)
        got = rule.distribution(state, 7)
        np.testing.assert_allclose(got.numpy(), p, rtol=1e-5, atol=1e-8)
        if p[ids].sum() > 1e-3:
            want = p[ids] / p[ids].sum()
            np.testing.assert_allclose(weights.numpy(), want, rtol=1e-4, atol=1e-6)


def test_aaggff_s_without_curvature_is_a_square_regulariser() -> None:
    own = Square(alpha=0.3)
    paper = AAggFFS(alpha=0.3, beta=0.0)
    states = [own.init(6), paper.init(6)]
    for t in range(10):
        told = reports(normals(t, 6).abs() + 0.1)
        mine, states[0] = play(own, told, states[0])
        theirs, states[1] = play(paper, told, states[1])
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("rule", [Entropy(), Square()])
def test_rules_with_a_regulariser_pass_the_checks(rule: FTRL) -> None:
    check_rule(rule)


def test_a_quadratic_on_the_boundary() -> None:
    p = minimize(lambda p: (p - torch.tensor([1.5, 0.0, -0.5])).square().sum(), 3)
    torch.testing.assert_close(p, torch.tensor([1.0, 0.0, 0.0]).double(), rtol=0, atol=1e-8)


def test_an_objective_that_is_not_finite() -> None:
    with pytest.raises(DataError, match=r"the value nan"):
        minimize(lambda p: (p - 2).log().sum(), 3)
