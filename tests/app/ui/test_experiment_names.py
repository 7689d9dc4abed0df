"""Experiments on one table are listed with what differs, so that a person knows which is which."""

from pathlib import Path

import numpy as np

from commonweal.app.ui import runs
from commonweal.config.experiment import Experiment
from commonweal.jobs.rounds import run


def start(folder: Path, **dataset: object) -> None:
    known: dict[str, object] = {"name": "table", "client": "site"} | dataset
    experiment = Experiment(dataset=known, model="logistic", rounds=1, score="accuracy")
    for _ in run(experiment, out=folder):
        pass


def test_equal_names_are_followed_by_what_differs(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = ["site,use,urban,x"]
    lines += [
        f"{'ab'[i % 2]},{rng.integers(2)},{rng.integers(2)},{rng.normal()}" for i in range(60)
    ]
    for name in ("contra", "other"):
        lines.append("a,1,1,2")
        (tmp_path / f"{name}.csv").write_text("\n".join(lines), encoding="utf-8")
    path = str(tmp_path / "contra.csv")
    start(tmp_path / "runs" / "first", path=path, label="use")
    assert [f.name for f in runs.federations(runs.scan(tmp_path / "runs"))] == ["contra"]
    start(tmp_path / "runs" / "second", path=path, label="urban", drop=["use"])
    start(tmp_path / "runs" / "third", path=str(tmp_path / "other.csv"), label="use")
    listed = runs.federations(runs.scan(tmp_path / "runs"))
    names = sorted(federation.name for federation in listed)
    assert names == ["contra (label urban, drop ['use'])", "contra (label use)", "other"]
