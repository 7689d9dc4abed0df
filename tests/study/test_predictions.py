"""Predictions as a table: they are the record's, of the file's rows, every one once."""

import csv
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest

from cases import cases
from command_helpers import Command, command  # noqa: F401
from commonweal.base.errors import CommonwealError, ConfigError, RunError
from commonweal.config.experiment import Experiment
from commonweal.jobs.rounds import run
from commonweal.record.record import Record
from commonweal.study.predictions import predictions


def write_table(path: Path, regression: bool = False) -> list[dict[str, str]]:
    """Rows of clients in any order, some without a label, with a column that is no feature."""
    rng = np.random.default_rng(0)
    lines = []
    for _ in range(240):
        x, sex = rng.normal(), rng.integers(2)
        died = x + 0.5 * sex + rng.normal() > 0
        label = f"{x + rng.normal():.3f}" if regression else ("no", "yes")[int(died)]
        lines.append(
            {
                "site": ("Ulm", "Bonn", "=Cham")[int(rng.integers(3))],
                "x": f"{x:.4f}",
                "sex": "fm"[sex],
                "died": "" if rng.random() < 0.1 else label,
                "note": "007",
            }
        )
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)
    return lines


def experiment(path: Path, seed: int = 0, **more: Any) -> Experiment:
    dataset = {
        "name": "table",
        "path": str(path),
        "label": "died",
        "client": "site",
        "drop": ["sex", "note"],
    }
    settings = {"rounds": 4, "evaluate_every": 4, "model": "logistic"} | more
    return Experiment(dataset=dataset, seed=seed, **settings)


def folds(folder: Path, count: int = 1, regression: bool = False, **more: Any) -> list[Path]:
    path = folder / "table.csv"
    write_table(path, regression)
    runs = []
    for seed in range(count):
        runs.append(folder / f"run-{seed}")
        run(experiment(path, seed, **more), out=runs[-1]).result()
    return runs


def by_client(table: pyarrow.Table) -> dict[str, list[dict[str, Any]]]:
    parts = defaultdict(list)
    for line in table.to_pylist():
        parts[line["client"]].append(line)
    return parts


@cases("client", ["sgd", "ditto", {"name": "blend", "trees": False}])
def test_predictions_are_those_of_the_record(
    client: object, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("runs")
    (run_folder,) = folds(folder, client=client, score=["accuracy", "brier"])
    record = Record.read(run_folder)
    evaluation = record.clients().evaluation
    if record.evaluated[-1].personal:
        assert evaluation.personal is not None
        evaluation = evaluation.personal
    table = predictions([run_folder], ["sex", "note"])
    file = write_table(folder / "again.csv")
    parts = by_client(table)
    assert set(parts) == set(record.clients().names)
    for k, name in enumerate(record.clients().names):
        lines = parts[name]
        right = [line["label"] == line["prediction"] for line in lines]
        squares = [(line["probability of yes"] - (line["label"] == "yes")) ** 2 for line in lines]
        assert np.mean(right) == pytest.approx(float(evaluation.scores["accuracy"][k]), abs=1e-6)
        assert np.mean(squares) == pytest.approx(float(evaluation.scores["brier"][k]), abs=1e-6)
        for line in lines:
            row = file[line["row"]]
            assert (row["site"], row["died"], row["sex"], row["note"]) == (
                name,
                line["label"],
                line["sex"],
                line["note"],
            )


def test_folds_predict_every_row_with_a_label_once(tmp_path: Path) -> None:
    table = predictions(folds(tmp_path, count=5))
    rows = Counter(table["row"].to_pylist())
    labelled = [k for k, line in enumerate(write_table(tmp_path / "b.csv")) if line["died"]]
    assert sorted(rows) == labelled and set(rows.values()) == {1}
    assert set(table["seed"].to_pylist()) == {0, 1, 2, 3, 4}


def test_all_splits_divide_the_rows(tmp_path: Path) -> None:
    runs = folds(tmp_path, validation=0.2)
    table = predictions(runs, split="all")
    assert max(Counter(table["row"].to_pylist()).values()) == 1
    counts = Counter(table["split"].to_pylist())
    assert set(counts) == {"train", "validation", "test"}
    assert counts["test"] == predictions(runs).num_rows


def test_values_are_in_the_labels_units(tmp_path: Path) -> None:
    (folder,) = folds(tmp_path, regression=True, score="mae")
    table = predictions([folder])
    clients = Record.read(folder).clients()
    for k, name in enumerate(clients.names):
        lines = by_client(table)[name]
        error = np.mean([abs(line["label"] - line["prediction"]) for line in lines])
        assert error == pytest.approx(float(clients.evaluation.score[k]), abs=1e-6)


def test_the_command_writes_parquet_and_csv(command: Command) -> None:  # noqa: F811
    folds(Path())
    for name in ("rows.parquet", "rows.csv"):
        done = command("predictions", "run-0", "--columns", "sex", "-o", name)
        assert (done.code, done.out) == (0, "") and name in done.err
    parquet = pyarrow.parquet.read_table("rows.parquet")
    text = pyarrow.csv.read_csv("rows.csv")
    assert text.column_names == parquet.column_names
    assert parquet["client"].to_pylist().count("=Cham") > 0
    # A spreadsheet would compute it.
    assert set(text["client"].to_pylist()) == {"Ulm", "Bonn", "'=Cham"}
    assert text["probability of yes"].to_pylist() == parquet["probability of yes"].to_pylist()


@cases(
    ("columns", "split", "words"),
    [
        (["sexx"], "test", "did you mean 'sex'"),
        (["client"], "test", "client"),
        ([], "tests", "choose one of"),
        ([], "validation", "no validation samples"),
    ],
)
def test_wrong_arguments_raise(
    columns: list[str], split: str, words: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    runs = folds(tmp_path_factory.mktemp("runs"))
    with pytest.raises(ConfigError, match=words):
        predictions(runs, columns, split)


def test_a_changed_table_is_refused(tmp_path: Path) -> None:
    runs = folds(tmp_path)
    path = tmp_path / "table.csv"
    path.write_text(path.read_text().replace("yes", "no", 1))
    with pytest.raises(CommonwealError, match=r"table\.csv"):
        predictions(runs)


def test_private_runs_are_refused(tmp_path: Path) -> None:
    settings = Experiment(
        dataset={"name": "synthetic", "clients": 30},
        sampler="poisson",
        cohort=10,
        rounds=2,
        algorithm={"name": "private", "noise": 1.0, "entropy": "seed"},
    )
    run(settings, out=tmp_path / "run").result()
    for folder in (tmp_path / "run", tmp_path / "run" / "private"):
        with pytest.raises(RunError, match="private"):
            predictions([folder])


def test_fairlearn_gives_the_records_scores_by_client_and_sex(tmp_path: Path) -> None:
    fairlearn = pytest.importorskip("fairlearn.metrics", reason="fairlearn is not installed")
    from sklearn.metrics import accuracy_score

    (folder,) = folds(tmp_path)
    rows = predictions([folder], ["sex"]).to_pandas()
    frame = fairlearn.MetricFrame(
        metrics=accuracy_score,
        y_true=rows["label"],
        y_pred=rows["prediction"],
        control_features=rows["client"],
        sensitive_features=rows["sex"],
    )
    clients = Record.read(folder).clients()
    for name, value in zip(clients.names, clients.evaluation.score.tolist(), strict=True):
        assert frame.overall[name] == pytest.approx(value, abs=1e-6)
    assert set(frame.by_group.index) == {(name, sex) for name in clients.names for sex in "fm"}
