"""The estimators keep scikit-learn's conventions, and predict with each client's own models."""

import pickle
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.utils.estimator_checks import check_estimator

import commonweal as cw
from commonweal.base.errors import CommonwealError
from commonweal.data.tables import plain_table

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


# DataFrames, missing values, and who gains


def frame(seed: int = 0) -> tuple[pyarrow.Table, np.ndarray, np.ndarray]:
    """A table as people have it: categories, dates, yes and no, gaps."""
    rng = np.random.default_rng(seed)
    rows = 300
    ward = rng.choice(["eyes", "heart", "skin"], rows)
    smoker = rng.choice(["yes", "no"], rows)
    age = rng.normal(60, 10, rows)
    label = (ward == "heart") ^ (smoker == "yes") ^ (rng.random(rows) < 0.05)
    gone = rng.random(rows) < 0.2
    days = np.datetime64("2024-01-01") + rng.integers(300, size=rows).astype("timedelta64[D]")
    columns = {
        "age": pyarrow.array(age, mask=gone),
        "ward": pyarrow.array(ward, mask=gone),
        "smoker": smoker,
        "admitted": days,
        "note": [f"patient {i} was seen by a doctor" for i in range(rows)],
    }
    return pyarrow.table(columns), np.where(label, "ill", "well"), np.repeat(["a", "b", "c"], 100)


def test_frames_become_features_as_the_command_has_them(tmp_path: Path) -> None:
    table, y, site = frame()
    model = cw.FederatedClassifier(rounds=30).fit(table, y, client=site)
    becomes = {column.name: column.becomes for column in model.columns_}
    assert becomes == {
        "age": "number", "ward": "text", "smoker": "boolean", "admitted": "date", "note": "nothing"
    }  # fmt: skip
    assert model.feature_names_in_.tolist() == table.column_names
    whole = table.append_column("label", pyarrow.array(y))
    whole = whole.append_column("site", pyarrow.array(site))
    parts = []
    for name, rows in (("train", whole), ("test", whole.slice(0, 6))):
        parts.append(rows.append_column("split", pyarrow.array([name] * len(rows))))
    parquet.write_table(pyarrow.concat_tables(parts), tmp_path / "t.parquet")
    path = str(tmp_path / "t.parquet")
    loaded = cw.dataset("table", path=path, client="site", split="split")
    names = [n for c in model.columns_ for n in plain_table.column_names(c)]
    assert isinstance(loaded, cw.Federation) and loaded.preprocessing is not None
    assert names == loaded.preprocessing.features
    np.testing.assert_allclose(model._features(table), loaded.train.x, rtol=1e-4, atol=1e-4)
    known = table["ward"].is_valid().to_numpy()
    assert model.score(table.filter(known), y[known], client=site[known]) > 0.8
    alone = model.predict_proba(table.slice(0, 5), client=site[:5])
    np.testing.assert_allclose(alone, model.predict_proba(table, client=site)[:5], rtol=1e-5)


def test_missing_numbers_are_filled_and_marked() -> None:
    X, value, site = opposed()
    y = value > 0
    gone = np.random.default_rng(1).random(len(X)) < 0.3
    X[:, 1] += 10
    X[gone, 1] = np.nan
    model = cw.FederatedClassifier(rounds=5).fit(X, y, client=site)
    features = model._features(X).numpy()
    np.testing.assert_array_equal(features[:, 2], gone)  # column 1 is marked by the next
    known = X[~gone, 1]
    filled = (np.sort(known)[(len(known) - 1) // 2] - known.mean()) / known.std()
    np.testing.assert_allclose(features[gone, 1], filled, rtol=1e-4, atol=1e-6)
    assert np.isfinite(model.predict_proba(X, client=site)).all()
    with pytest.raises(ValueError, match="infinity"):
        model.predict(np.full_like(X, np.inf), client=site)


def test_who_gains_is_the_judges_verdict_on_held_back_samples() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 20))
    site = np.repeat([f"s{k}" for k in range(20)], 30)
    y = np.where(X[:, :10].sum(1) > 0, "ill", "well")
    model = cw.FederatedClassifier(method="sgd", rounds=15, hidden=()).fit(X, y, client=site)
    gains = model.who_gains_
    assert gains.says == "helps" and gains.verdict.startswith("Joining helps: with sgd, the mean")
    assert set(gains.clients) == set(site) and set(gains.better) <= set(site)
    assert gains.worse == ()
    assert model.who_gains_ is gains
    stored = pickle.loads(pickle.dumps(model))
    assert stored.who_gains_ == gains and stored._given is None
    with pytest.raises(AttributeError, match="two clients"):
        _ = cw.FederatedRegressor(rounds=2).fit(X, X[:, 0]).who_gains_
