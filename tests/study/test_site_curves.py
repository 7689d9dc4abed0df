"""Curves of clients against loops over thresholds, bins and times."""

import numpy as np
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import auc, roc_auc_score

from commonweal.base.errors import ConfigError
from commonweal.report import figures
from commonweal.study.site_curves import (
    THRESHOLDS,
    calibration_curve,
    decision_curve,
    kaplan_meier,
    roc_line,
    site_curves,
)
from commonweal.task.scores import find_score

quick = settings(derandomize=True, max_examples=40, deadline=None, database=None)


def predicted(rows: int = 90, seed: int = 0) -> pyarrow.Table:
    rng = np.random.default_rng(seed)
    p = np.round(rng.random(rows), 2)
    y = rng.random(rows) < p
    return pyarrow.table(
        {
            "client": rng.choice(["Ulm", "Bonn", "Cham"], rows, p=[0.5, 0.4, 0.1]),
            "label": np.where(y, "yes", "no"),
            "probability of no": 1 - p,
            "probability of yes": p,
        }
    )


def test_curves_are_their_definitions() -> None:
    import torch

    table = predicted()
    p, y = table["probability of yes"].to_numpy(), np.array(table["label"].to_pylist()) == "yes"
    logits = torch.tensor(np.log(p.clip(1e-9)) - np.log1p(-p.clip(max=1 - 1e-9)))[:, None]
    _, benefit = decision_curve(p, y)
    for k in (9, 32, 76):  # no probability is exactly at these thresholds
        at = float(THRESHOLDS[k]) + 1e-4
        score = find_score(f"net-benefit@{at}")
        stats = score.row_stats(logits, torch.tensor(y).long())
        expected = float(score.reduce(stats, torch.tensor([0, len(y)])))
        own = decision_curve(np.where(p == THRESHOLDS[k], p - 1e-6, p), y)[1][k]
        assert own == pytest.approx(expected, abs=0.01)
    assert benefit[0] == pytest.approx((y & (p >= 0.01)).mean() - (~y & (p >= 0.01)).mean() / 99)
    assert auc(*roc_line(p, y)) == pytest.approx(roc_auc_score(y, p))
    mean, share = calibration_curve(p, y, 6)
    assert len(mean) == 6 and (np.diff(mean) >= 0).all()
    assert np.mean(share) == pytest.approx(y.mean()) and np.mean(mean) == pytest.approx(p.mean())


@quick
@given(st.integers(1, 40), st.integers(0, 99))
def test_kaplan_meier_is_the_product_over_event_times(rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    time, event = rng.integers(1, 9, rows).astype(float), rng.random(rows) < 0.6
    times, survives = kaplan_meier(time, event)
    for at in np.arange(0, 10, 0.5):
        share = 1.0
        for t in np.unique(time[event]):
            if t <= at:
                share *= 1 - (event & (time == t)).sum() / (time >= t).sum()
        assert survives[np.searchsorted(times, at, side="right") - 1] == pytest.approx(share)


def test_groups_of_risk_are_ordered_and_drawn() -> None:
    rng = np.random.default_rng(1)
    risk = rng.normal(size=300)
    time = rng.exponential(np.exp(-2 * risk))
    table = pyarrow.table(
        {
            "client": ["Ulm"] * 280 + ["Bonn"] * 20,
            "label": time,
            "event": rng.random(300) < 0.8,
            "prediction": risk,
        }
    )
    curves = site_curves(table)
    assert set(curves.survival) == {"", "Ulm", "Bonn"}
    at = [line[1][np.searchsorted(line[0], 0.3)] for line in curves.survival[""]]
    assert at[0] > at[1] > at[2]
    assert len(figures.draw(figures.sites(curves, "Ulm"), "png")) > 5000


def test_clients_with_few_samples_are_only_part_of_the_whole() -> None:
    curves = site_curves(predicted(90))
    assert "" in curves.roc and "Ulm" in curves.roc and "Cham" not in curves.roc
    assert len(figures.draw(figures.sites(curves), "png")) > 5000
    with pytest.raises(ConfigError, match="two classes"):
        site_curves(predicted().drop_columns(["probability of no"]))
