"""A table whose columns were fitted on public rows may be used by a private run."""

from pathlib import Path

import numpy as np
import pytest

from commonweal.base.errors import ConfigError, DataError
from commonweal.config.experiment import Experiment
from commonweal.jobs.job import job_from_experiment
from commonweal.jobs.rounds import run

PRIVATE = {"name": "private", "noise": 1.0, "delta": 1e-3}


def write(path: Path, seed: int, more: str = "") -> Path:
    rng = np.random.default_rng(seed)
    lines = ["site,age,sex,ill" + more]
    for k in range(80):
        row = [f"s{k % 4}", f"{rng.normal(40 + seed, 9):.1f}", rng.choice(["f", "m"])]
        lines.append(",".join([*row, str(k % 2), *(["1.5"] if more else [])]))
    path.write_text("\n".join(lines))
    return path


def experiment(path: Path, **parts: object) -> Experiment:
    dataset = {"name": "table", "path": str(path), "label": "ill", "client": "site"}
    public = {"public": parts.pop("public")} if "public" in parts else {}
    return Experiment(dataset=dataset | public, rounds=2, **parts)


def test_only_public_statistics_are_taken(tmp_path: Path) -> None:
    open_data = write(tmp_path / "open.csv", seed=0)
    clinics = write(tmp_path / "clinics.csv", seed=5)
    run(experiment(open_data), out=tmp_path / "open").result()
    public = str(tmp_path / "open" / "preparation.json")
    with pytest.raises(ConfigError, match=r"private.*statistics of the features"):
        job_from_experiment(experiment(clinics, algorithm=PRIVATE))
    record = run(
        experiment(clinics, algorithm=PRIVATE, public=public), out=tmp_path / "private"
    ).result()
    used = record.whole().preprocessing()
    assert used is not None and used.statistics == "public"
    ages = next(column for column in used.columns if column.name == "age")
    assert ages.mean == pytest.approx(40, abs=3)  # of the open data, not of the clinics
    published = record.preprocessing()
    assert published is not None and published.columns == used.columns


def test_a_file_of_another_table_is_refused(tmp_path: Path) -> None:
    run(experiment(write(tmp_path / "open.csv", 0)), out=tmp_path / "open").result()
    public = str(tmp_path / "open" / "preparation.json")
    other = write(tmp_path / "other.csv", 1, more=",bmi")
    with pytest.raises(DataError, match="'bmi' is missing"):
        job_from_experiment(experiment(other, public=public))
    with pytest.raises(DataError, match="cannot be read"):
        job_from_experiment(experiment(other, public=str(tmp_path / "none.json")))
