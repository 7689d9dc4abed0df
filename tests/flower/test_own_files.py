"""Nodes with files of their own: one preprocessing, agreed by sums and counts that they tell."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'commonweal[flower]'")

from typer.testing import CliRunner

from commonweal.base.errors import ConfigError, DataError, RunError
from commonweal.cli import app as command
from commonweal.config.experiment import Experiment
from commonweal.flower import FlowerEngine, make_client_app
from commonweal.flower.app import job_of, run_on
from commonweal.jobs import rounds
from commonweal.jobs.job import job_from_experiment
from commonweal.record.record import Record
from flower_helpers import LocalGrid
from flower_tables import CLINICS, Rows, patients, write
from flower_tables import table_experiment as experiment
from helpers import close


def grid_of(given: Experiment, folder: Path, tables: dict[str, Rows]) -> LocalGrid:
    """A node per clinic, which has its own file only."""
    configs = []
    for k, (name, rows) in enumerate(tables.items()):
        file = write(folder / str(k) / "own.csv", rows)
        configs.append({"client": name, "data": str(file), "state-dir": str(folder / str(k))})
    return LocalGrid(make_client_app(given), configs)


def clinics() -> dict[str, Rows]:
    return {name: patients(k) for k, name in enumerate(CLINICS)}


def in_one_table(path: Path, tables: dict[str, Rows]) -> Path:
    """All rows in one file, with a column of clients."""
    return write(path, [row | {"client": name} for name in tables for row in tables[name]])


def same(a: Record, b: Record) -> None:
    for one, other in zip(a.rounds, b.rounds, strict=True):
        assert one.dropped == {} and one.weights == pytest.approx(other.weights, rel=1e-3)
        assert one.metrics == pytest.approx(other.metrics, rel=1e-3, abs=1e-5, nan_ok=True)
        assert one.personal == pytest.approx(other.personal, rel=1e-3, abs=1e-5)
    assert a.state_dict().keys() == b.state_dict().keys()
    for name, value in a.state_dict().items():
        close(value, b.state_dict()[name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("scale", [True, False])
def test_the_numbers_are_those_of_all_rows_in_one_table(tmp_path: Path, scale: bool) -> None:
    """No clinic has all classes or all wards."""
    tables = clinics()
    every = in_one_table(tmp_path / "all.csv", tables)
    client = {"name": "ditto", "lr": 0.1 if scale else 1e-9, "batch": 16}
    parts: dict[str, Any] = {"dataset": {"scale": scale}, "validation": 0.2, "client": client}
    whole = experiment(every, **parts)
    list(rounds.run(job_from_experiment(whole), out=tmp_path / "simulator"))
    given = experiment("unknown to the server.csv", **parts)
    run_on(grid_of(given, tmp_path, tables), given, tmp_path / "flower", nodes=3)
    flower, simulator = (Record.read(tmp_path / name) for name in ("flower", "simulator"))
    same(flower, simulator)
    assert flower.facts.class_names == ("dead", "ill", "well")
    assert [line.validation for line in flower.rounds] == [
        pytest.approx(line.validation, rel=1e-3) for line in simulator.rounds
    ]
    ours, theirs = (record.preprocessing() for record in (flower, simulator))
    assert ours is not None and theirs is not None and ours.features == theirs.features
    new = {key: [row[key] for row in tables["c"]] for key in tables["c"][0]}
    np.testing.assert_allclose(ours.rows(new), theirs.rows(new), rtol=1e-5, atol=1e-5)
    kept = {path.parent.parent.name for path in tmp_path.glob("*/*/*/*.safetensors")}
    assert kept >= {"clinic%20a", "clinic%2Fb", "c"}


def test_the_run_predicts_a_new_table(tmp_path: Path) -> None:
    given = experiment("nowhere.csv")
    run_on(grid_of(given, tmp_path, clinics()), given, tmp_path / "run", nodes=3)
    new = write(tmp_path / "new.csv", patients(1, 5))
    arguments = ["predict", str(tmp_path / "run"), str(new), "-o", str(tmp_path / "out.csv")]
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 0, done.output
    with open(tmp_path / "out.csv") as file:
        found = list(csv.DictReader(file))
    assert len(found) == 5
    assert {row["predicted state"] for row in found} <= {"well", "ill", "dead"}
    assert "predicted by the global model" in done.output
    refused = CliRunner().invoke(command, [*arguments, "--client", "c"])
    assert isinstance(refused.exception, ConfigError) and "nodes" in str(refused.exception)


def test_values_are_scaled_by_all_clients_sums(tmp_path: Path) -> None:
    tables = {
        name: [{**row, "state": row["age"]} for row in rows] for name, rows in clinics().items()
    }
    for rows in tables.values():
        for row in rows:
            del row["age"]
    whole = experiment(in_one_table(tmp_path / "all.csv", tables), client="sgd")
    list(rounds.run(job_from_experiment(whole), out=tmp_path / "simulator"))
    given = experiment("nowhere.csv", client="sgd")
    run_on(grid_of(given, tmp_path, tables), given, tmp_path / "flower", nodes=3)
    flower, simulator = (Record.read(tmp_path / name) for name in ("flower", "simulator"))
    same(flower, simulator)
    target, expected = flower.facts.target, simulator.facts.target
    assert target is not None and expected is not None
    for name in ("mean", "deviation"):
        assert vars(target)[name] == pytest.approx(vars(expected)[name], rel=1e-5)


def test_numbered_classes_mean_the_labels_of_the_files(tmp_path: Path) -> None:
    """Of 0 and 1, 0 and 2, 0 and 3; the simulator has all four."""
    tables = clinics()
    for k, rows in enumerate(tables.values()):
        for row in rows:
            row["state"] = "0" if row["state"] == "well" else str(k + 1)
    whole = experiment(in_one_table(tmp_path / "all.csv", tables))
    list(rounds.run(job_from_experiment(whole), out=tmp_path / "simulator"))
    given = experiment("nowhere.csv")
    run_on(grid_of(given, tmp_path, tables), given, tmp_path / "flower", nodes=3)
    same(Record.read(tmp_path / "flower"), Record.read(tmp_path / "simulator"))


def test_gaps_in_numbers_become_the_mean_of_all_clients(tmp_path: Path) -> None:
    tables = clinics()
    for row in tables["c"][::4]:
        row["age"] = ""
    given = experiment("nowhere.csv", dataset={"scale": False})
    engine = FlowerEngine(grid_of(given, tmp_path, tables), nodes=3)
    assert engine.preprocessing is not None
    age = engine.preprocessing.columns[0]
    known = [float(row["age"]) for rows in tables.values() for row in rows if row["age"]]
    assert age.indicator and age.median == pytest.approx(np.mean(known), abs=2)
    assert min(known) < age.median < max(known)
    features = engine.preprocessing.rows({key: [""] for key in tables["c"][0]})
    assert features[0, 0] == pytest.approx(age.median) and features[0, 1] == 1


def test_units_and_missing_numbers_of_the_files_are_read_in_new_rows(tmp_path: Path) -> None:
    """One clinic leaves the unit out, and one writes a limit of detection."""
    tables = clinics()
    for name, rows in tables.items():
        for row in rows:
            row["age"] += "" if name == "c" else " kg"
        for row in rows[::5]:
            row["creatinine"] = "999"
    tables["clinic a"][1]["creatinine"] = "<0.1"
    given = experiment("nowhere.csv", dataset={"missing": "creatinine=999"})
    engine = FlowerEngine(grid_of(given, tmp_path, tables), nodes=3)
    assert engine.preprocessing is not None
    new = {key: [value] * 4 for key, value in tables["c"][1].items()}
    new |= {"age": ["70.5 kg", "70.5"] * 2, "creatinine": ["999", "<0.1", "", "1.5"]}
    age, creatinine, is_missing = engine.preprocessing.rows(new).T[:3]
    assert len(set(age.tolist())) == 1
    assert creatinine[:3].tolist() == [0, 0, 0] and is_missing.tolist() == [1, 1, 1, 0]


# What does not fit is said, with names


def refused(tmp_path: Path, tables: dict[str, Rows], words: str) -> None:
    given = experiment("nowhere.csv")
    with pytest.raises((DataError, RunError), match=words):
        FlowerEngine(grid_of(given, tmp_path, tables), nodes=len(tables), wait=0.2, timeout=2)


def changed(column: str, value: str, name: str = "c") -> dict[str, Rows]:
    tables = clinics()
    tables[name] = [row | {column: value} for row in tables[name]]
    return tables


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    tables = clinics()
    tables["c"] = [{k.replace("age", "Age"): v for k, v in row.items()} for row in tables["c"]]
    refused(tmp_path / "1", tables, "'clinic a' has no column 'Age', but that of 'c' has")
    refused(
        tmp_path / "2",
        changed("age", "old"),
        "'age' holds words at 'c', but numbers at 'clinic a': correct the file",
    )
    refused(tmp_path / "3", changed("admitted", "12/31/2024"), "dates as 2026-11-16")
    refused(tmp_path / "4", changed("state", "1"), "'state' holds numbers at 'c', but words at")
    refused(tmp_path / "5", changed("state", ""), "no row has a label in column 'state'")


@pytest.mark.parametrize("column", ["age", "state"])
def test_different_units_are_refused(tmp_path: Path, column: str) -> None:
    tables = clinics()
    for name, rows in tables.items():
        for row in rows:
            row[column] = f"{row['creatinine']} {'lb' if name == 'c' else 'kg'}"
    refused(tmp_path, tables, f"'{column}' holds lb at 'c', but kg at 'clinic a': use one unit")


def test_a_late_clinic_with_another_unit_is_refused(tmp_path: Path) -> None:
    tables = {name: patients(0) for name in ("a", "late")}
    for name, rows in tables.items():
        for row in rows:
            row["age"] += " kg" if name == "a" else " lb"
    given = experiment("nowhere.csv", rounds=3)
    grid = grid_of(given, tmp_path, tables)
    late = dict([grid.nodes.popitem()])
    engine = FlowerEngine(grid, nodes=1, timeout=0.5)
    for _ in rounds.run(job_of(given, engine)):
        grid.nodes |= late
    assert any("'age' holds lb, but kg at the others" in why for why in engine.refused.values())


def test_files_of_other_clients_are_refused(tmp_path: Path) -> None:
    tables = {"a": [row | {"client": "b"} for row in patients(0)]}
    refused(tmp_path, tables, r"rows of \['b'\], but this node is 'a'")


def test_a_clinic_that_joins_late_follows_the_agreement(tmp_path: Path) -> None:
    """One with a class of its own cannot; the others go on."""
    tables = {"a": patients(0), "b": patients(0, 30), "late": patients(1), "other": patients(2)}
    given = experiment("nowhere.csv", rounds=4)
    grid = grid_of(given, tmp_path, tables)
    late = {node: grid.nodes.pop(node) for node in list(grid.nodes)[2:]}
    engine = FlowerEngine(grid, nodes=2, timeout=0.5)
    weighed = []
    for done in rounds.run(job_of(given, engine)):
        weighed.append(sorted(done.weights))
        grid.nodes |= late
    assert weighed == [["a", "b"], ["a", "b"], ["a", "b", "late"], ["a", "b", "late"]]
    assert any("'dead' is not among the classes" in why for why in engine.refused.values())


@pytest.mark.parametrize("away", ["clinic a", "clinic/b"])
def test_a_resumed_run_keeps_its_preprocessing_and_ids(tmp_path: Path, away: str) -> None:
    """Even where a clinic is away at first: features and the rule's memory are whose they were."""
    tables = clinics()
    given = experiment("nowhere.csv", rounds=4)
    grid = grid_of(given, tmp_path, tables)
    engine = FlowerEngine(grid, nodes=3)
    for done in rounds.run(job_of(given, engine), out=tmp_path / "run"):
        if done.number == 2:
            break
    before = (tmp_path / "run" / "preparation.json").read_text()
    names = Record.read(tmp_path / "run").clients().names
    again = grid_of(given, tmp_path, tables)
    del again.nodes[engine.nodes[away]]
    run_on(again, given, tmp_path / "run", resume=True, nodes=2)
    assert (tmp_path / "run" / "preparation.json").read_text() == before
    record = Record.read(tmp_path / "run")
    last = record.rounds[-1]
    assert last.number == 4 and set(last.weights) == set(names) - {away}
    assert record.clients().names == names


def test_no_row_leaves_a_clinic(tmp_path: Path) -> None:
    """What a node tells of its file has sums and counts; no number of a row is in it."""
    tables = clinics()
    given = experiment("nowhere.csv")
    engine = FlowerEngine(grid_of(given, tmp_path, tables), nodes=3)
    told = json.dumps([about.table for about in engine.clients.values()])
    for rows in tables.values():
        for row in rows:
            assert f" {row['age']}" not in told and f" {row['creatinine']}" not in told


def test_the_server_learns_which_node_lacks_which_columns(tmp_path: Path) -> None:
    tables = clinics()
    lacking = {"clinic/b": ["smoker", "admitted"], "c": ["ward"]}
    for name, columns in lacking.items():
        tables[name] = [{k: v for k, v in row.items() if k not in columns} for row in tables[name]]
    parts: dict[str, Any] = {"client": "sgd", "rule": "fedavg"}
    same = experiment("unknown to the server.csv", **parts)
    with pytest.raises(DataError, match="has no column"):
        run_on(grid_of(same, tmp_path / "same", tables), same, tmp_path / "refused", nodes=3)
    given = experiment("unknown to the server.csv", dataset={"columns": "union"}, **parts)
    run_on(grid_of(given, tmp_path, tables), given, tmp_path / "run", nodes=3)
    record = Record.read(tmp_path / "run")
    assert record.facts.notes is not None
    (note,) = [note for note in record.facts.notes if "without any value" in note]
    assert "'smoker', 'admitted' at 'clinic/b'" in note and "'ward' at 'c'" in note
    preprocessing = record.preprocessing()
    assert preprocessing is not None
    optional = {column.name for column in preprocessing.columns if column.optional}
    assert optional == {"smoker", "admitted", "ward"}
    # Sums over the nodes that have a column, and a flag at those that lack it.
    new = {key: [row[key] for row in tables["c"]] for key in tables["c"][0]}
    x = preprocessing.rows(new)
    wards = [k for k, name in enumerate(preprocessing.features) if name.startswith("ward = ")]
    assert preprocessing.features[wards[-1]] == "ward = missing"
    np.testing.assert_array_equal(x[:, wards], np.eye(len(wards))[[-1] * len(x)])
    smoker = preprocessing.features.index("smoker is missing")
    assert not x[:, smoker].any()
    ages = np.array([float(row["age"]) for rows in tables.values() for row in rows])
    (age,) = [column for column in preprocessing.columns if column.name == "age"]
    assert abs(age.mean - ages.mean()) < 3  # of training rows
