"""Trackers: what they really hold after an export, read back without the code that wrote it."""

import csv
import json
import sqlite3
import struct
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import commonweal
from commonweal import cli
from commonweal.app.trackers import tensorboard
from commonweal.app.trackers.sending import send_rounds
from commonweal.app.trackers.tracker import Moment
from commonweal.base.errors import ConfigError, RunError
from commonweal.record.record import Record
from flower_helpers import LocalGrid, configs, mean_app
from run_helpers import federation, stop_after, task

ROUNDS = 6
BLOCK = 1 << 15


def make(folder: Path, clients: int = 4, **more: Any) -> Record:
    given: dict[str, Any] = {"rounds": ROUNDS, "evaluate_every": 2, "rule": "aaggff-s"} | more
    for _ in commonweal.run(task(), federation(clients), out=folder, **given):
        pass
    return Record.read(folder)


@pytest.fixture
def record(tmp_path: Path) -> Record:
    return make(tmp_path / "run")


# TensorBoard


def events(folder: Path) -> Any:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = reader.EventAccumulator(str(folder), size_guidance={"scalars": 0, "histograms": 0})
    found.Reload()
    return found


def scalars(folder: Path, name: str) -> dict[int, float]:
    """The values of a series by step; a step that was written twice fails."""
    found = events(folder).Scalars(name)
    assert len({event.step for event in found}) == len(found)
    return {event.step: event.value for event in found}


def test_tensorboard_holds_every_round(record: Record) -> None:
    written, place = send_rounds(record, "tensorboard", "p")
    folder = record.folder / "tensorboard"
    assert written == ROUNDS and str(folder) in place
    means = {each.number: each.metrics["mean"] for each in record.evaluated}
    assert sorted(means) == [2, 4, 6]
    assert scalars(folder, "test/mean") == pytest.approx(means)
    losses = {each.number: max(each.losses) for each in record.rounds}
    assert scalars(folder, "cohort/loss_max") == pytest.approx(losses)
    assert sorted(scalars(folder, "seconds/train")) == list(range(1, ROUNDS + 1))


def test_clients_are_distributions_and_a_table_not_series(tmp_path: Path) -> None:
    many = make(tmp_path / "many", clients=300)
    send_rounds(many, "tensorboard", "p")
    found = events(many.folder / "tensorboard")
    assert len(found.Tags()["scalars"]) < 40
    last = found.Histograms("test/scores")[-1]
    scores = many.clients().evaluation.score
    assert last.histogram_value.num == 300
    assert last.histogram_value.sum == pytest.approx(float(scores.sum()))
    text = found.Tensors("clients/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert "| c0 |" in text and "200 of 300" not in text and "of 300 clients" in text


def test_the_same_command_continues_with_new_rounds(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    parts: dict[str, Any] = {"rounds": ROUNDS, "rule": "afl"}
    stop_after(3, commonweal.run(task(), federation(), out=folder, **parts))
    assert send_rounds(Record.read(folder), "tensorboard", "p")[0] == 3
    for _ in commonweal.run(task(), federation(), out=folder, resume=True, **parts):
        pass
    ended = Record.read(folder)
    assert send_rounds(ended, "tensorboard", "p")[0] == ROUNDS - 3
    assert send_rounds(ended, "tensorboard", "p")[0] == 0
    means = {each.number: each.metrics["mean"] for each in ended.rounds}
    assert scalars(folder / "tensorboard", "test/mean") == pytest.approx(means)


def test_what_was_deleted_or_started_again_is_written_anew(record: Record) -> None:
    send_rounds(record, "tensorboard", "p")
    for path in (record.folder / "tensorboard").iterdir():
        path.unlink()
    assert send_rounds(record, "tensorboard", "p")[0] == ROUNDS
    memory = json.loads((record.folder / "trackers.json").read_text())
    memory["tensorboard"]["round"] = ROUNDS + 5  # the run was longer once
    (record.folder / "trackers.json").write_text(json.dumps(memory))
    assert send_rounds(record, "tensorboard", "p")[0] == ROUNDS
    assert len(scalars(record.folder / "tensorboard", "test/mean")) == 3


def test_a_run_is_followed_while_it_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    rounds = commonweal.run(task(), federation(), out=folder, rounds=ROUNDS, evaluate_every=2)
    next(rounds)
    found: list[int] = []

    def follow() -> None:
        found.append(send_rounds(Record.read(folder), "tensorboard", "p", tmp_path / "tb", True)[0])

    thread = threading.Thread(target=follow)
    thread.start()
    for _ in rounds:
        assert not found, "it ended before the run did"
    thread.join(timeout=60)
    assert found == [ROUNDS]
    assert sorted(scalars(tmp_path / "tb" / "run", "test/mean")) == [2, 4, 6]


def test_a_tracker_that_fails_is_an_error_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    rounds = commonweal.run(task(), federation(), out=folder, rounds=ROUNDS)
    next(rounds)
    next(rounds)
    log = tensorboard.TensorBoard.log

    def fail(self: tensorboard.TensorBoard, moments: Sequence[Moment]) -> None:
        raise OSError("the cable was pulled\nlong trace")

    monkeypatch.setattr(tensorboard.TensorBoard, "log", fail)
    with pytest.raises(RunError, match=r"tensorboard failed after round 0 .*the cable was pulled"):
        send_rounds(Record.read(folder), "tensorboard", "p")
    assert [done.number for done in rounds] == [3, 4, 5, 6]
    monkeypatch.setattr(tensorboard.TensorBoard, "log", log)
    assert send_rounds(Record.read(folder), "tensorboard", "p")[0] == ROUNDS
    assert len(scalars(folder / "tensorboard", "test/mean")) == ROUNDS


def test_a_flower_run_goes_the_same_way(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    import numpy as np
    from flwr.app import ArrayRecord

    from commonweal.flower import FairStrategy

    strategy = FairStrategy("fedavg", out=tmp_path / "run")
    start = ArrayRecord([np.zeros(3, np.float32)])
    strategy.start(grid=LocalGrid(mean_app(), configs(4)), initial_arrays=start, num_rounds=3)
    flower = Record.read(tmp_path / "run")
    assert send_rounds(flower, "tensorboard", "p")[0] == 3
    means = {each.number: each.metrics["mean"] for each in flower.evaluated}
    assert scalars(tmp_path / "run" / "tensorboard", "test/mean") == pytest.approx(means)


def test_names_of_clients_are_text_only(tmp_path: Path) -> None:
    mean = "<img onerror=alert(1)>|x"
    made = federation(2)
    named = replace(made, names=(mean, "b"))
    for _ in commonweal.run(task(), named, out=tmp_path / "run", rounds=1):
        pass
    send_rounds(Record.read(tmp_path / "run"), "tensorboard", "p")
    found = events(tmp_path / "run" / "tensorboard")
    text = found.Tensors("clients/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert "<img" not in text.replace("\\<", "") and "\\|x" in text


# MLflow


def test_mlflow_holds_every_round(record: Record, tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    written, place = send_rounds(record, "mlflow", "hearts", tmp_path / "ml")
    assert written == ROUNDS and "mlflow.db" in place
    assert send_rounds(record, "mlflow", "hearts", tmp_path / "ml")[0] == 0
    with sqlite3.connect(tmp_path / "ml" / "mlflow.db") as base:
        steps = dict(base.execute("select step, value from metrics where key = 'test/mean'"))
        keys = base.execute("select count(distinct key) from metrics").fetchone()[0]
        (name, status) = base.execute("select name, status from runs").fetchone()
        projects = {row[0] for row in base.execute("select name from experiments")}
        rule = base.execute("select value from params where key = 'rule.name'").fetchone()[0]
    assert steps == pytest.approx({e.number: e.metrics["mean"] for e in record.evaluated})
    assert keys < 40
    assert (name, status, rule) == ("run", "FINISHED", "aaggff-s")
    assert "hearts" in projects
    (table,) = (tmp_path / "ml" / "mlartifacts").rglob("clients.csv")
    with open(table, encoding="utf-8", newline="") as file:
        written_scores = {line["client"]: line["accuracy"] for line in csv.DictReader(file)}
    with open(record.folder / "clients.csv", encoding="utf-8", newline="") as file:
        scores = {line["client"]: line["score"] for line in csv.DictReader(file)}
    assert written_scores == scores


# Weights & Biases and Trackio: they do not fit into one environment with Flower's bounds, so that
# these two run where they are installed.


def log_entries(path: Path) -> Iterator[bytes]:
    """The entries of a file of W&B: LevelDB's log format after a header of seven bytes."""
    data = path.read_bytes()
    assert data[:4] == b":W&B"
    place = 7
    entry = b""
    while place + 7 <= len(data):
        left = BLOCK - place % BLOCK
        if left < 7:  # too little for a record: the rest of the block is empty
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        entry += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield entry
            entry = b""


def test_wandb_holds_every_round_offline(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    internal = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    monkeypatch.setenv("WANDB_MODE", "offline")
    written, place = send_rounds(record, "wandb", "p", tmp_path / "wb")
    assert written == ROUNDS and "wandb sync" in place
    (path,) = (tmp_path / "wb").rglob("*.wandb")
    means = {}
    keys = set()
    for data in log_entries(path):
        entry = internal.Record()
        entry.ParseFromString(data)
        items = {item.key or item.nested_key[0]: item.value_json for item in entry.history.item}
        keys |= set(items)
        if "test/mean" in items:
            means[int(items["_step"])] = float(items["test/mean"])
    assert means == pytest.approx({e.number: e.metrics["mean"] for e in record.evaluated})
    assert {"clients", "test/scores"} <= keys and len(keys) < 50


def test_trackio_holds_every_round(record: Record, tmp_path: Path) -> None:
    if find_spec("trackio") is None:  # imported, it would know its folder already
        pytest.skip("trackio is not installed")
    written, place = send_rounds(record, "trackio", "p", tmp_path / "tr")
    assert written == ROUNDS and "trackio show" in place
    with sqlite3.connect(tmp_path / "tr" / "p.db") as base:
        rows = base.execute("select step, metrics from metrics").fetchall()
    means = {s: json.loads(m)["test/mean"] for s, m in rows if "test/mean" in json.loads(m)}
    assert means == pytest.approx({e.number: e.metrics["mean"] for e in record.evaluated})
    tables = [json.loads(m)["clients"] for _, m in rows if "clients" in json.loads(m)]
    assert [row["client"] for row in tables[-1]["_value"]] == ["c0", "c1", "c2", "c3"]


# The command


def command(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["commonweal", *words])
    cli.app(standalone_mode=False)


def test_all_runs_below_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for rule in ("afl", "term"):
        make(tmp_path / "comparison" / rule / "seed-0", rule=rule)
    folder = str(tmp_path / "comparison")
    command(monkeypatch, "export", folder, "--to", "tensorboard", "-o", str(tmp_path / "tb"))
    for rule in ("afl", "term"):
        found = scalars(tmp_path / "tb" / "comparison" / rule / "seed-0", "test/mean")
        assert sorted(found) == [2, 4, 6]
    assert f"comparison/afl/seed-0: {ROUNDS} new rounds" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="--follow takes one run"):
        command(monkeypatch, "export", folder, "--to", "tensorboard", "--follow")


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb", "trackio"])
def test_the_error_of_a_missing_library_has_the_command(
    record: Record, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = "torch.utils.tensorboard" if name == "tensorboard" else name
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ConfigError, match=rf'pip install "commonweal\[{name}\]"'):
        command(monkeypatch, "export", str(record.folder), "--to", name)


def test_options_of_models_and_trackers_are_separate(
    record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(record.folder)
    with pytest.raises(ConfigError, match="did you mean 'tensorboard'"):
        command(monkeypatch, "export", folder, "--to", "tensorbord")
    with pytest.raises(ConfigError, match="--follow is for trackers"):
        command(monkeypatch, "export", folder, "--to", "card", "--follow")
    with pytest.raises(ConfigError, match="--client and --choice are for models"):
        command(monkeypatch, "export", folder, "--to", "mlflow", "--client", "c0")
