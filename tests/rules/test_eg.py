"""Exponentiated gradient against eq. 3 as it is printed, and its bound on the regret."""

from typing import cast

import numpy as np
import pytest
import torch

from commonweal.base.errors import ConfigError
from commonweal.rules import EG, TERM
from commonweal.rules.online import CDF
from rule_helpers import ORACLE_CDFS, build, play, reports, weigh


@pytest.mark.parametrize("size", [1, 3, 7])
def test_it_is_equation_3_from_the_last_decision(size: int) -> None:
    """With an entry of p for every client, and eq. 10 for those who do not report."""
    for cdf in ORACLE_CDFS:
        rng = np.random.default_rng(size)
        rule = EG(lr=0.7, cdf=cast(CDF, cdf))
        state = rule.init(7)
        p = np.full(7, 1 / 7)
        for _ in range(20):
            ids = rng.choice(7, size, replace=False)
            f = 0.05 + rng.exponential(size=size)
            C = size / 7
            r = C * np.array([ORACLE_CDFS[cdf](x) for x in f / f.mean()])
            robust = np.full(7, r.mean())
            robust[ids] = (1 - 1 / C) * r.mean() + r / C
            p = p * np.exp(0.7 * robust)
            p /= p.sum()
            told = reports(torch.from_numpy(f), ids=ids.tolist(), clients=7)
            weights, state = play(rule, told, state)
            np.testing.assert_allclose(weights.numpy(), p[ids] / p[ids].sum(), rtol=1e-12)
            np.testing.assert_allclose(rule.distribution(state, 7).numpy(), p, rtol=1e-12)
            given = rule.cohort_response(told.losses, 7)
            np.testing.assert_allclose(given.numpy(), r, rtol=1e-12)


@pytest.mark.parametrize(("lr", "clients"), [(0.02, 2), (0.1, 5), (0.5, 20)])
def test_the_regret_is_within_its_bound(lr: float, clients: int) -> None:
    """On random losses, and on losses that answer the decision."""
    generator = torch.Generator().manual_seed(clients)
    for against in (False, True):
        rule = EG(lr=lr, cdf="clipped")
        state = rule.init(clients)
        paid = 0.0
        earned = torch.zeros(clients, dtype=torch.float64)
        for t in range(1, 301):
            p = rule.distribution(state, clients)
            losses = torch.rand(clients, dtype=torch.float64, generator=generator)
            if against:  # a large loss for whoever has the least weight
                losses = torch.where(p == p.min(), 5.0, 0.01)
            r = rule.response(losses)
            paid -= float(p @ r)
            earned += r
            assert paid + float(earned.max()) <= rule.bound(t, clients) + 1e-9
            state = rule(reports(losses), state).state


def test_the_bound_is_least_at_the_documented_step() -> None:
    best = EG(lr=float(np.sqrt(8 * np.log(10) / 400)))
    assert best.bound(400, 10) == pytest.approx(np.sqrt(400 * np.log(10) / 2))
    for factor in (0.9, 1.1):
        assert EG(lr=factor * best.lr).bound(400, 10) > best.bound(400, 10)


def test_it_remembers_where_a_mixture_forgets() -> None:
    """Equal losses after a bad round: TERM is back at equal weights, this rule is not."""
    rule = EG(lr=1.0)
    _, state = play(rule, reports([1.0, 4.0]), rule.init(2))
    later = reports([1.0, 1.0])
    assert weigh(TERM(), later).tolist() == [0.5, 0.5]
    assert weigh(rule, later, state)[1] > 0.55


@pytest.mark.parametrize("parameters", [{"lr": 0.0}, {"lr": -1.0}, {"scale": 0.0}])
def test_wrong_parameters(parameters: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"eg .* above 0"):
        build("eg", **parameters)
