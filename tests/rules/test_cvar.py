"""CVaR against its dual form as a linear program, its ends, and the authors' quantile."""

import numpy as np
import pytest
from scipy.optimize import linprog

from commonweal.base.errors import ConfigError
from commonweal.rules import CVaR
from rule_helpers import reports, uniforms, vowel, weigh


def dual(losses: list[float], sizes: list[int], theta: float) -> float:
    """The largest <w, f> over the simplex with w_i <= p_i / (1 - theta)."""
    p = np.array(sizes) / sum(sizes)
    bounds = [(0, q / (1 - theta)) for q in p]
    found = linprog(-np.array(losses), A_eq=np.ones((1, len(p))), b_eq=[1], bounds=bounds)
    return float(np.array(losses) @ found.x)


@pytest.mark.parametrize("theta", [0.0, 0.2, 0.5, 0.8, 0.99])
def test_it_is_the_dual_form(theta: float) -> None:
    for seed in range(5):
        losses = uniforms(seed, 7).tolist()
        sizes = [int(n) for n in 1 + 50 * uniforms(seed + 9, 7)]
        got = weigh(CVaR(theta), reports(losses, sizes=sizes)).numpy()
        p = np.array(sizes) / sum(sizes)
        assert got @ np.array(losses) == pytest.approx(dual(losses, sizes, theta), rel=1e-9)
        assert (got <= p / (1 - theta) + 1e-12).all()


def test_by_hand() -> None:
    """Half of the rows: the worst client's 0.2 whole, 0.3 of the next one's 0.5."""
    got = weigh(CVaR(0.5), reports([1.0, 3.0, 2.0], sizes=[3, 2, 5]))
    assert got.tolist() == pytest.approx([0.0, 0.4, 0.6], rel=1e-12)


def test_clients_at_the_threshold_share_by_their_rows() -> None:
    got = weigh(CVaR(0.5), reports([1.0, 1.0, 2.0], sizes=[6, 2, 2]))
    assert got.tolist() == pytest.approx([0.45, 0.15, 0.4], rel=1e-12)


def test_the_authors_keep_them_whole() -> None:
    got = weigh(CVaR(0.5, share=False), reports([1.0, 3.0, 2.0], sizes=[3, 2, 5]))
    assert got.tolist() == pytest.approx([0.0, 2 / 7, 5 / 7], rel=1e-12)


def test_theta_zero_is_fedavg_and_near_one_the_worst_client() -> None:
    told = reports([1.0, 3.0, 2.0], sizes=[3, 2, 5])
    assert weigh(CVaR(0.0), told).tolist() == pytest.approx([0.3, 0.2, 0.5], rel=1e-12)
    assert weigh(CVaR(0.999), told).tolist() == pytest.approx([0.0, 1.0, 0.0], abs=1e-12)


def test_an_experiment_runs() -> None:
    assert all(sum(done.weights.values()) == pytest.approx(1) for done in vowel("cvar"))


@pytest.mark.parametrize("theta", [-0.1, 1.0])
def test_theta_out_of_range_is_an_error(theta: float) -> None:
    with pytest.raises(ConfigError, match="theta ="):
        CVaR(theta)
