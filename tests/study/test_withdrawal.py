"""A run without a client is that of a federation which never had it."""

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from commonweal.base.errors import CommonwealError, ConfigError, RunError
from commonweal.cli import app as command
from commonweal.config.experiment import Experiment
from commonweal.data.federation import Federation
from commonweal.jobs import rounds
from commonweal.jobs.job import build_dataset, job_from_experiment
from commonweal.record.verify import problems

CITIES = ("Aachen", "Bonn", "Celle", "Demmin")


def table(path: Path, cities: tuple[str, ...] = CITIES) -> Path:
    """Bonn alone has a text among the numbers, a category of its own and the extreme values."""
    rng = np.random.default_rng(1)
    lines = ["city,age,stage,died"]
    for k in range(240):
        city = CITIES[k % 4]
        age = "unknown" if k == 5 else f"{rng.normal(900 if city == 'Bonn' else 60, 9):.2f}"
        stage = "bonnish" if k == 9 else ["early", "late"][int(rng.integers(2))]
        died = ["no", "yes"][int(rng.integers(2))]
        if city in cities:
            lines.append(f"{city},{age},{stage},{died}")
    path.write_text("\n".join(lines) + "\n")
    return path


def run(folder: Path, file: Path, **more: object) -> Path:
    dataset = {"name": "table", "path": str(file), "label": "died", "client": "city"}
    values = {"dataset": dataset, "rule": "aaggff-s", "client": "ditto", "rounds": 3} | more
    given = Experiment(**values)
    list(rounds.run(job_from_experiment(given), out=folder))
    return folder


SAME = ("model.safetensors", "rounds.jsonl", "preparation.json", "clients.csv", "final.json")


def test_bytes_are_those_of_a_federation_that_never_had_it(tmp_path: Path) -> None:
    """A withdrawal by the command, compared with a file without the client's rows."""
    old = run(tmp_path / "runs" / "first", table(tmp_path / "all.csv"))
    never = run(tmp_path / "never", table(tmp_path / "some.csv", ("Aachen", "Celle", "Demmin")))
    (tmp_path / "runs" / "export.bin").write_bytes(b"x" + (old / "model.safetensors").read_bytes())
    (tmp_path / "runs" / "notes.txt").write_text("runs/first was good")
    (tmp_path / "runs" / "other.txt").write_text("nothing of it")
    done = CliRunner().invoke(command, ["withdraw", str(old), "--client", "Bonn"])
    assert done.exit_code == 0, done.output
    new = tmp_path / "runs" / "first-without-Bonn"
    compared = [name for name in SAME if (never / name).exists()]
    assert {"model.safetensors", "rounds.jsonl"} <= set(compared)
    for name in compared:
        assert (new / name).read_bytes() == (never / name).read_bytes(), name
    assert (old / "model.safetensors").read_bytes() != (new / "model.safetensors").read_bytes()
    assert not (old / "checkpoint.safetensors").exists() and problems(new) == []
    assert not list((old / "client_states").glob("*"))
    assert "export.bin" in done.output and "notes.txt" in done.output
    assert "first/model.safetensors" in done.output.replace("\n", "")
    assert "other.txt" not in done.output
    verify = ["withdraw", str(new), "--verify"]
    left = CliRunner().invoke(command, verify)
    assert isinstance(left.exception, RunError) and "are left" in str(left.exception)
    for path in (*old.glob("*"), tmp_path / "runs" / "export.bin", tmp_path / "runs" / "notes.txt"):
        if path.is_file():
            path.unlink()
    assert CliRunner().invoke(command, verify).exit_code == 0
    with open(new / "model.safetensors", "r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x7f")
    assert CliRunner().invoke(command, verify).exit_code != 0


def test_clients_that_are_not_there(tmp_path: Path) -> None:
    file = table(tmp_path / "all.csv")
    old = run(tmp_path / "runs" / "first", file)
    for arguments in (["--client", "Bon"], []):
        done = CliRunner().invoke(command, ["withdraw", str(old), *arguments])
        assert isinstance(done.exception, ConfigError)
    assert (old / "checkpoint.safetensors").exists()
    for without in ("Bon", CITIES):
        with pytest.raises(ConfigError, match="without"):
            run(tmp_path / "none", file, without=without)


def test_other_datasets_without_a_client() -> None:
    """Rows of the others are as they were; features of pooled statistics are refused."""
    parts = {"dataset": "digits", "partition": {"name": "iid", "clients": 4}}
    whole = build_dataset(Experiment(**parts))
    name = whole.names[1]
    some = build_dataset(Experiment(**parts, without=name))
    assert some.names == tuple(other for other in whole.names if other != name)
    for client, other in enumerate(some.names):
        own = whole.names.index(other)
        np.testing.assert_array_equal(some.train.client(client).y, whole.train.client(own).y)
        np.testing.assert_array_equal(some.test.client(client).x, whole.test.client(own).x)


def test_a_federation_of_ones_own() -> None:
    x = np.arange(24, dtype=np.float32).reshape(12, 2)
    owner = np.repeat(["a", "b", "c"], 4)
    federation = Federation.from_arrays(x, np.arange(12) % 2, owner, test=0.5)
    assert federation.without(["b"]).names == ("a", "c")
    with pytest.raises(CommonwealError):
        federation.without(["a", "b", "c"])
