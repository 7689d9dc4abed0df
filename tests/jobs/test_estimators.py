"""The estimators keep scikit-learn's conventions, and predict with each client's own models."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.utils.estimator_checks import check_estimator

import commonweal as cw
from commonweal.base.errors import CommonwealError

ESTIMATORS = [cw.FederatedClassifier(rounds=3, batch=5), cw.FederatedRegressor(rounds=3, batch=5)]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_scikit_learns_checks(estimator: object) -> None:
    check_estimator(estimator)


def opposed(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two sites that read the same feature in opposite ways, and a third like the first."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(600, 3))
    site = np.repeat(["a", "b", "c"], 200)
    sign = np.where(site == "b", -1, 1)
    return X, sign * X[:, 0] + 0.3 * rng.normal(size=600), site


def test_every_client_is_predicted_by_its_own_models() -> None:
    X, value, site = opposed()
    y = np.where(value > 0, "ill", "well")
    train = np.arange(600) % 3 > 0
    model = cw.FederatedClassifier(rounds=20).fit(X[train], y[train], client=site[train])
    X, y, site = X[~train], y[~train], site[~train]
    assert model.score(X, y, client=site) > 0.8
    by_hand = np.mean(model.predict(X, client=site) == y)
    assert model.score(X, y, client=site) == pytest.approx(by_hand)
    pooled = LogisticRegression().fit(X, y).score(X, y)
    assert model.score(X, y, client=site) > pooled + 0.1
    shares = model.predict_proba(X, client=site)
    assert model.classes_.tolist() == ["ill", "well"]
    np.testing.assert_allclose(shares.sum(1), 1)
    elsewhere = model.predict_proba(X, client=np.full(len(X), "new"))
    np.testing.assert_array_equal(elsewhere, model.predict_proba(X))  # the global model


def test_regression_is_in_the_units_of_the_target() -> None:
    X, value, site = opposed(1)
    y = 1000 + 50 * value
    model = cw.FederatedRegressor(rounds=30, lr=0.05).fit(X, y, client=site)
    assert model.score(X, y, client=site) > 0.8 > Ridge().fit(X, y).score(X, y)


def test_the_same_seed_gives_the_same_predictions() -> None:
    X, value, site = opposed()
    y = value > 0
    first = cw.FederatedClassifier(rounds=3, batch=5).fit(X, y, client=site)
    again = clone(first).fit(X, y, client=site)
    np.testing.assert_array_equal(
        first.predict_proba(X, client=site), again.predict_proba(X, client=site)
    )


def test_clients_must_match_the_samples() -> None:
    X, value, site = opposed()
    with pytest.raises(CommonwealError, match="client of each sample"):
        cw.FederatedClassifier().fit(X, value > 0, client=site[:10])
