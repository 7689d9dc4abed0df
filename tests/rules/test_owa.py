"""OWA against ranks from SciPy, the Gini theorem at delta = 2, and its ends."""

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.stats import rankdata

from commonweal.base.errors import ConfigError
from commonweal.rules import OWA
from rule_helpers import reports, uniforms, vowel, weigh


@pytest.mark.parametrize("delta", [1.0, 1.5, 2.0, 6.0])
def test_weights_follow_the_ranks(delta: float) -> None:
    for seed in range(3):
        losses = uniforms(seed, 9)
        ranks = rankdata(losses.numpy())
        expected = (ranks**delta - (ranks - 1) ** delta) / 9**delta
        np.testing.assert_allclose(weigh(OWA(delta), reports(losses)).numpy(), expected, rtol=1e-10)


def gini(losses: npt.NDArray[np.float64]) -> float:
    """Half the mean absolute difference over the mean."""
    return float(np.abs(losses[:, None] - losses).mean() / (2 * losses.mean()))


@pytest.mark.parametrize("losses", [[1.0, 3.0, 2.0, 8.0], [1.0, 1.0, 5.0], [2.0, 2.0, 2.0], [7.0]])
def test_delta_two_prices_the_mean_by_the_gini_coefficient(losses: list[float]) -> None:
    f = np.array(losses)
    priced = weigh(OWA(2.0), reports(losses)).numpy() @ f
    assert priced == pytest.approx(f.mean() * (1 + gini(f)), rel=1e-12)


def test_ties_share_their_places() -> None:
    got = weigh(OWA(2.0), reports([1.0, 2.0, 2.0]))
    assert got.tolist() == pytest.approx([1 / 9, 4 / 9, 4 / 9], rel=1e-12)


def test_with_sizes_a_client_of_two_rows_is_two_clients() -> None:
    two = weigh(OWA(3.0), reports([1.0, 2.0, 2.0]))
    one = weigh(OWA(3.0, prior="sizes"), reports([1.0, 2.0], sizes=[1, 2]))
    assert one.tolist() == pytest.approx([two[0].item(), 2 * two[1].item()], rel=1e-12)


def test_delta_one_is_uniform_and_a_large_one_the_worst_client() -> None:
    told = reports([1.0, 3.0, 2.0])
    assert weigh(OWA(1.0), told).tolist() == pytest.approx([1 / 3] * 3)
    torch.testing.assert_close(
        weigh(OWA(200.0), told), torch.tensor([0.0, 1.0, 0.0]).double(), rtol=0, atol=1e-12
    )


def test_an_experiment_runs() -> None:
    assert all(sum(done.weights.values()) == pytest.approx(1) for done in vowel("owa"))


def test_delta_below_one_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"delta = 0\.5"):
        OWA(0.5)
