"""The pieces of the online family, against the paper's own table and against autograd."""

from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from commonweal.base.errors import ConfigError, DivergedError
from commonweal.rules import online
from commonweal.rules.online import (
    CDFS,
    decision_gradient,
    doubly_robust,
    on_cohort,
    relative,
    response,
)
from rule_helpers import decision_loss

# Hahn et al. 2024, Table A1: what the losses .01, .10 and .02 become.
TABLE_A1 = {
    "weibull": (0.05, 1.00, 0.19),
    "frechet": (0.01, 0.65, 0.11),
    "gumbel": (0.12, 0.76, 0.18),
    "exponential": (0.21, 0.90, 0.37),
    "logistic": (0.32, 0.79, 0.37),
    "normal": (0.22, 0.90, 0.29),
}


def uniform(seed: int, *shape: int) -> Tensor:
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_table_a1_has_every_cdf() -> None:
    assert {*TABLE_A1, "clipped", "subtracted"} == set(CDFS)


@pytest.mark.parametrize("cdf", TABLE_A1)
def test_table_a1(cdf: str) -> None:
    """From the table's inputs, which have two digits; from the losses the last one may differ."""
    inputs = torch.tensor([0.23, 2.31, 0.46], dtype=torch.float64)
    assert CDFS[cdf](inputs).tolist() == pytest.approx(TABLE_A1[cdf], abs=0.005)
    assert response(torch.tensor([0.01, 0.10, 0.02]), cdf, high=1.0).tolist() == pytest.approx(
        TABLE_A1[cdf], abs=0.006
    )


def test_relative_losses_have_mean_one_and_ignore_scale() -> None:
    losses = torch.tensor([0.01, 0.10, 0.02], dtype=torch.float64)
    assert relative(losses).tolist() == pytest.approx([3 / 13, 30 / 13, 6 / 13], rel=1e-12)
    torch.testing.assert_close(relative(1e-30 * losses), relative(losses), rtol=1e-12, atol=0)
    torch.testing.assert_close(relative(1e30 * losses), relative(losses), rtol=1e-12, atol=0)


def test_relative_is_one_where_every_loss_is_zero() -> None:
    assert relative(torch.zeros(3)).tolist() == [1.0, 1.0, 1.0]


def test_relative_is_float64_and_leaves_its_input() -> None:
    losses = torch.tensor([1.0, 3.0])
    assert relative(losses).dtype == torch.float64
    assert losses.tolist() == [1.0, 3.0]


@pytest.mark.parametrize("cdf", CDFS)
def test_cdfs_rise_within_zero_and_one(cdf: str) -> None:
    x = torch.linspace(0, 50, 2001, dtype=torch.float64)
    y = CDFS[cdf](x)
    assert ((y >= 0) & (y <= 1)).all()
    assert (y.diff() >= 0).all()
    assert (y[:60].diff() > 0).all()  # up to x = 1.5 no CDF has saturated


@pytest.mark.parametrize("cdf", CDFS)
def test_cdfs_are_finite_at_the_ends(cdf: str) -> None:
    y = CDFS[cdf](torch.tensor([0.0, 1e-300, 1e300], dtype=torch.float64))
    assert torch.isfinite(y).all()
    assert y[2] == 1


@pytest.mark.parametrize("cdf", CDFS)
def test_responses_scale_with_their_upper_end(cdf: str) -> None:
    losses = uniform(0, 5)
    torch.testing.assert_close(
        response(losses, cdf, 0.25), 0.25 * response(losses, cdf, 1.0), rtol=1e-15, atol=0
    )


@pytest.mark.parametrize("cdf", CDFS)
def test_one_client_alone_stands_at_the_mean(cdf: str) -> None:
    one = torch.ones(1, dtype=torch.float64)
    assert response(torch.tensor([7.0]), cdf, 1.0).item() == CDFS[cdf](one).item()


def test_decision_gradient_is_that_of_autograd() -> None:
    p = uniform(0, 6).requires_grad_()
    r = uniform(100, 6)
    (expected,) = torch.autograd.grad(decision_loss(p, r), p)
    torch.testing.assert_close(decision_gradient(p.detach(), r), expected, rtol=1e-13, atol=1e-15)


def test_the_gradient_by_hand() -> None:
    p = torch.tensor([0.5, 0.5], dtype=torch.float64)
    r = torch.tensor([1.0, 3.0], dtype=torch.float64)
    assert decision_gradient(p, r).tolist() == pytest.approx([-1 / 3, -1.0], rel=1e-15)


@pytest.mark.parametrize("seed", range(5))
def test_decision_loss_is_convex_and_its_gradient_within_the_bound(seed: int) -> None:
    """Lemma 4.1: responses in [0, C2] give gradients of at most L = C2."""
    p = uniform(seed, 4).softmax(0)
    q = uniform(seed + 50, 4).softmax(0)
    r = uniform(seed + 90, 4) / 4
    assert decision_loss((p + q) / 2, r) <= (decision_loss(p, r) + decision_loss(q, r)) / 2
    assert decision_gradient(p, r).abs().max() <= 1 / 4


def test_doubly_robust_is_the_response_when_all_report() -> None:
    r = uniform(1, 6)
    torch.testing.assert_close(doubly_robust(r, torch.arange(6), 6), r, rtol=1e-15, atol=1e-15)


def test_doubly_robust_follows_ids() -> None:
    r = uniform(1, 4)
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(doubly_robust(r[order], order, 4), r, rtol=1e-15, atol=1e-15)


def test_doubly_robust_by_hand() -> None:
    """Eq. 10 with C = 1/2 and a mean of 2: others 2; reporters (1 - 2) * 2 + 2 r."""
    got = doubly_robust(torch.tensor([1.0, 3.0], dtype=torch.float64), torch.tensor([3, 1]), 4)
    assert got.tolist() == [2.0, 4.0, 2.0, 0.0]


def test_doubly_robust_keeps_the_cohorts_mean() -> None:
    r = uniform(3, 3)
    assert doubly_robust(r, torch.tensor([4, 1, 2]), 7).mean().item() == pytest.approx(
        r.mean().item(), rel=1e-14
    )


@pytest.mark.parametrize("size", [1, 2, 3, 5, 6])
def test_doubly_robust_is_unbiased_for_a_fixed_mean(size: int) -> None:
    """Lemma 4.3, over all cohorts of a size."""
    clients = 6
    r = uniform(4, 6)
    fixed = r.mean()
    sampled = size / 6
    total = torch.zeros(clients, dtype=torch.float64)
    cohorts = list(combinations(range(clients), size))
    for cohort in cohorts:
        ids = torch.tensor(cohort)
        own = r[ids].mean()
        # The library imputes the cohort's own mean m: m + [i in S] (r_i - m) / C. This replaces it
        # by the fixed mean.
        reported = torch.zeros(clients, dtype=torch.float64).index_fill(0, ids, 1.0)
        total += doubly_robust(r[ids], ids, clients) + (fixed - own) * (1 - reported / sampled)
    torch.testing.assert_close(total / len(cohorts), r, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("size", range(1, 7))
def test_doubly_robust_with_the_cohorts_own_mean_shrinks_each_deviation(size: int) -> None:
    """The bias is exactly (mean - r_i) (K - S) / (S (K - 1)): none for S = K."""
    clients = 6
    r = uniform(4, 6)
    cohorts = [torch.tensor(c) for c in combinations(range(clients), size)]
    mean = torch.stack([doubly_robust(r[ids], ids, clients) for ids in cohorts]).mean(0)
    bias = (r.mean() - r) * (clients - size) / (size * (clients - 1))
    torch.testing.assert_close(mean - r, bias, rtol=1e-12, atol=1e-14)


def test_on_cohort_restricts_and_renormalises() -> None:
    p = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    assert on_cohort(p, torch.tensor([3, 0])).tolist() == pytest.approx([0.8, 0.2], rel=1e-15)


def test_on_cohort_of_everyone_is_the_decision() -> None:
    p = torch.tensor([0.1, 0.2, 0.7], dtype=torch.float64)
    assert on_cohort(p, torch.arange(3)).tolist() == pytest.approx(p.tolist(), rel=1e-15)


def test_on_cohort_is_uniform_where_the_decision_is_zero() -> None:
    p = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)
    assert on_cohort(p, torch.tensor([1, 0])).tolist() == [0.5, 0.5]


DISTRIBUTIONS: dict[str, Callable[[float], Any]] = {
    "weibull": lambda s: stats.weibull_min(2, scale=s),
    "frechet": lambda s: stats.invweibull(1, scale=s),
    "gumbel": lambda s: stats.gumbel_r(loc=1, scale=s),
    "exponential": lambda s: stats.expon(scale=s),
    "logistic": lambda s: stats.logistic(loc=1, scale=s),
    "normal": lambda s: stats.norm(loc=1, scale=s),
}


@pytest.mark.parametrize("cdf", DISTRIBUTIONS)
def test_the_spacing_scale_is_the_best_of_a_fine_grid(cdf: str) -> None:
    """By scipy's own distributions."""
    rng = np.random.default_rng(0)
    x = rng.gamma(3, size=12)
    x = x / x.mean()
    ordered = np.concatenate([[-np.inf], np.sort(x), [np.inf]])

    def evenness(scale: float) -> float:
        return float(np.log(np.diff(DISTRIBUTIONS[cdf](scale).cdf(ordered)).clip(1e-12)).sum())

    grid = np.geomspace(0.05, 20, 4000)
    best = max(grid, key=evenness)
    found = online.spacing_scale(torch.tensor(x), cdf)
    assert evenness(found) >= evenness(best) - 1e-6
    assert found == pytest.approx(best, rel=0.01)


def test_equal_losses_have_no_spacing() -> None:
    assert online.spacing_scale(torch.ones(5, dtype=torch.float64), "normal") == 1.0
    response = online.response(torch.tensor([2.0]), "normal", 1.0, scale="spacing")
    assert response.tolist() == [0.5]


def test_losses_close_together_get_other_weights_by_spacing() -> None:
    losses = torch.tensor([0.99, 1.0, 1.01], dtype=torch.float64)
    plain = online.response(losses, "normal", 1.0)
    fitted = online.response(losses, "normal", 1.0, scale="spacing")
    assert float(fitted[2] - fitted[0]) > 5 * float(plain[2] - plain[0])


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_decision_that_is_not_finite_raises(value: float) -> None:
    """Whether or not the client with the wrong weight is in the cohort."""
    for index in ([0, 2], [0, 1]):
        with pytest.raises(DivergedError, match=f"{value} at position 2 of 3"):
            on_cohort(torch.tensor([0.5, 0.5, value]), torch.tensor(index))


def test_ranges_of_responses() -> None:
    online.check_range("rule", 0, None, "spacing")
    for low, high, scale in [(0, None, 0.5), (0.5, 0.6, 2.0), (0, 1, 1.0)]:
        online.check_range("rule", low, high, scale)
    for low, high, scale in [(-0.1, 1, 1.0), (0.5, None, 1.0), (0.5, 0.5, 1.0), (0, None, 0.0)]:
        with pytest.raises(ConfigError, match=f"rule low = {low}, high = {high}, scale = {scale}"):
            online.check_range("rule", low, high, scale)
