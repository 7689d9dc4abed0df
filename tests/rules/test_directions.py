"""directions: properties that the papers of TorchJD's methods state, and TorchJD as an oracle."""

import pytest
import torch

from commonweal.base.errors import ConfigError
from commonweal.rules import Directions, FedMGDA
from rule_helpers import build, normals, reports, vowel, weigh

aggregation = pytest.importorskip("torchjd.aggregation")


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0])
def test_fairgrad_is_alpha_fair(alpha: float) -> None:
    """G w is proportional to w^(-1/alpha)."""
    U = normals(0, 5, 12) + 0.5
    w = weigh(Directions("fairgrad", alpha), reports([1.0] * 5, updates=U))
    product = (U @ U.T @ w) * w ** (1 / alpha)
    torch.testing.assert_close(product / product[0], torch.ones(5).double(), rtol=1e-3, atol=0)


def test_imtl_g_has_equal_cosines_with_all_updates() -> None:
    U = normals(1, 4, 12) + 0.5
    D = weigh(Directions("imtl-g"), reports([1.0] * 4, updates=U)) @ U
    cosines = torch.cosine_similarity(U, D[None])
    torch.testing.assert_close(cosines, cosines[:1].expand(4), rtol=1e-6, atol=0)


@pytest.mark.parametrize("method", ["fairgrad", "aligned-mtl", "imtl-g"])
def test_the_direction_has_the_length_of_the_mean_update(method: str) -> None:
    U = normals(2, 4, 12) + 0.5
    D = weigh(build("directions", method=method), reports([1.0] * 4, updates=U)) @ U
    assert D.norm() == pytest.approx(U.mean(0).norm().item(), rel=1e-9)


def test_torchjds_mgda_is_fedmgda() -> None:
    """Two programs for the minimum norm; TorchJD's is a Frank-Wolfe method."""
    for seed in range(3):
        U = normals(seed, 4, 12)
        theirs = aggregation.MGDAWeighting(epsilon=1e-12, max_iters=20000)(U @ U.T)
        ours = weigh(FedMGDA(), reports([1.0] * 4, updates=U))
        assert (ours @ U).norm() == pytest.approx((theirs @ U).norm().item(), rel=1e-5)
        assert (ours @ U).norm() <= (theirs @ U).norm() + 1e-12


def test_a_method_whose_solver_is_not_installed_names_the_library() -> None:
    try:
        aggregation.UPGradWeighting()(torch.eye(2))
    except ImportError:
        with pytest.raises(ConfigError, match="pip install"):
            weigh(Directions("upgrad"), reports([1.0, 2.0], updates=normals(0, 2, 3)))
    else:
        assert (weigh(Directions("upgrad"), reports([1.0, 2.0], updates=torch.eye(2))) > 0).all()


def test_an_experiment_runs() -> None:
    rounds = vowel("directions", cohort=5, rounds=3)
    assert all(loss < 3 for loss in rounds[-1].losses)


@pytest.mark.parametrize("wrong", [{"alpha": 0.0}, {"c": 1.0}])
def test_parameters_out_of_range_are_errors(wrong: dict[str, float]) -> None:
    with pytest.raises(
        ConfigError, match=f"directions {next(iter(wrong))} = {next(iter(wrong.values()))}"
    ):
        build("directions", **wrong)
