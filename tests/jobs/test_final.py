"""The threshold that is chosen on validation samples, and classes that are never predicted."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score

import commonweal
from commonweal.app.export.prediction import predict_table
from commonweal.base.errors import ConfigError
from commonweal.config.experiment import Experiment
from commonweal.jobs.final import best_cut
from commonweal.jobs.job import job_from_experiment
from commonweal.record.final import read_final
from commonweal.record.record import Record


def written(path: Path) -> Path:
    rng = np.random.default_rng(0)
    lines = ["site,a,b,ill"]
    for i in range(1200):
        a, b = rng.normal(size=2)
        ill = rng.random() < 1 / (1 + np.exp(4.5 - 1.5 * a - b))
        lines.append(f"s{i % 5},{a:.4f},{b:.4f},{'yes' if ill else 'no'}")
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def run(path: Path, folder: Path, **settings: object) -> Record:
    part = {"name": "table", "path": str(path), "label": "ill", "client": "site"}
    client = {"name": "sgd", "lr": 0.3, "batch": 0}
    values = {"dataset": part, "rounds": 20, "score": "f1", "client": client} | settings
    for _ in commonweal.run(Experiment(**values), out=folder):
        pass
    return Record.read(folder)


def test_the_threshold_is_the_best_on_validation_samples(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv")
    record = run(path, tmp_path / "run", validation=0.3, threshold="f1")
    final = read_final(record.folder)
    assert final.threshold is not None
    job = job_from_experiment(Experiment(**record.experiment))
    assert job.local is not None
    validation = job.local.federation.validation
    assert validation is not None
    with torch.no_grad():
        shares = record.module()(validation.x).softmax(1)[:, 1].numpy()
    truth = validation.y.numpy()

    def at(limit: float) -> float:
        return float(f1_score(truth, shares >= limit, zero_division=0))

    assert at(final.threshold.value) == pytest.approx(max(at(t) for t in shares), abs=0.02)
    assert final.threshold.after["f1"] > final.threshold.before["f1"]
    predictions = predict_table(record, path)
    column = predictions.header.index("predicted ill")
    probability = predictions.header.index("probability of yes")
    for row in predictions.rows:
        is_above = float(row[probability]) >= final.threshold.value
        assert (row[column] == "yes") == is_above or abs(
            float(row[probability]) - final.threshold.value
        ) < 1e-5
    assert json.loads((record.folder / "preparation.json").read_text())["threshold"] is not None


def test_a_class_that_is_never_predicted_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv")
    record = run(path, tmp_path / "a", rounds=1, client={"name": "sgd", "lr": 0.01, "batch": 0})
    assert read_final(record.folder).never_predicted == ("yes",)
    balanced = run(path, tmp_path / "b", class_weight="balanced")
    assert read_final(balanced.folder).never_predicted == ()


def test_what_a_threshold_needs(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv")
    with pytest.raises(ConfigError, match="needs validation rows"):
        run(path, tmp_path / "a", threshold="f1")
    values = {"name": "table", "path": str(path), "label": "a", "client": "site"}
    with pytest.raises(ConfigError, match="needs classes"):
        run(path, tmp_path / "b", dataset=values, score="r2", threshold="f1", validation=0.2)


def test_the_best_cut_is_found_by_trying_all() -> None:
    rng = np.random.default_rng(0)
    y = (rng.random(60) < 0.3).astype(float)
    margin = rng.normal(y - 1)
    cut = best_cut("f1", torch.from_numpy(margin), torch.from_numpy(y))
    best = max(f1_score(y, margin >= t) for t in margin)
    assert f1_score(y, margin > cut) == pytest.approx(best)
