"""A node's policy: what leaves it, what is refused, and the lists at both ends."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'commonweal[flower]'")

from typer.testing import CliRunner

from commonweal.base.errors import PolicyError, RunError
from commonweal.cli import app as command
from commonweal.flower import make_client_app
from commonweal.flower.app import run_on
from commonweal.flower.sent import Entry, append, rounds_today
from commonweal.record.record import Record
from flower_helpers import LocalGrid
from flower_tables import CLINICS, patients, table_experiment, write

TEXT = """\
min_rows = 5
min_count = 3
purposes = ["describe", "train", "evaluate"]
metrics = "all"
rounds_per_day = "all"
"""


def trial(folder: Path, policies: list[str], out: str = "run", **parts: Any) -> Record:
    """A run of three clinics, the first of which has a patient with a unique diagnosis."""
    configs = []
    for k, (name, text) in enumerate(zip(CLINICS, policies, strict=True)):
        rows = [row | {"diagnosis": ("flu", "gout")[i % 2]} for i, row in enumerate(patients(k))]
        if k == 0:
            for row in rows[:1]:
                row["diagnosis"] = "zebra-fever"
            for row in rows:
                row["rare"] = "no"
            rows[3]["rare"] = "yes"
        else:
            for i, row in enumerate(rows):
                row["rare"] = ("no", "yes")[i % 2]
        file = write(folder / str(k) / "own.csv", rows)
        (folder / str(k) / "policy.toml").write_text(text)
        configs.append(
            {
                "client": name,
                "data": str(file),
                "state-dir": str(folder / str(k)),
                "policy": str(folder / str(k) / "policy.toml"),
            }
        )
    given = table_experiment("nowhere.csv", rule="fedavg", client="sgd", **parts)
    run_on(LocalGrid(make_client_app(given), configs), given, folder / out, nodes=1, wait=0)
    return Record.read(folder / out)


def test_a_unique_diagnosis_stays_at_its_node(tmp_path: Path) -> None:
    record = trial(tmp_path, [TEXT] * 3, validation=0.2)
    assert len(record.rounds) == 2 and not record.rounds[0].dropped
    written = b"".join(
        path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()
    )
    assert b"zebra" not in written and b"gout" in written
    arguments = ["flower", "sent", "--state-dir", str(tmp_path / "0")]
    shown = CliRunner().invoke(command, arguments).output
    assert "zebra" not in shown and "column 'diagnosis': flu" in shown
    assert "column 'rare': its name" in shown  # one of its two values is of one patient
    assert "sent update (" in shown and ", train (2 times" in shown


def test_refusals_are_at_both_ends(tmp_path: Path) -> None:
    no_training = TEXT.replace('"train", ', "")
    record = trial(tmp_path, [TEXT, no_training, TEXT.replace("5", "9")])
    reason = record.rounds[0].dropped["clinic/b"]
    assert "purpose 'train' is not permitted" in reason
    assert any(
        "min_rows" in text and text.startswith("evaluation: c")
        for text in record.rounds[0].warnings
    )
    arguments = ["flower", "sent", "--state-dir", str(tmp_path / "1"), "--client", "clinic/b"]
    shown = CliRunner().invoke(command, arguments).output
    assert "refused: PolicyError: purpose 'train' is not permitted" in shown
    assert "sent update" not in shown and "sent score/accuracy" in shown


@pytest.mark.parametrize("text", ["", TEXT[:-1], TEXT + "x = 1\n", TEXT.replace("3", "100")])
def test_policies_fail_closed(tmp_path: Path, text: str) -> None:
    with pytest.raises(RunError):
        trial(tmp_path, [text] * 3)
    assert not list(tmp_path.glob("run/*"))


def test_rounds_of_a_day(tmp_path: Path) -> None:
    record = trial(tmp_path, [TEXT.replace('y = "all"', "y = 1")] + [TEXT] * 2)
    assert not record.rounds[0].dropped
    assert "1 rounds a day" in record.rounds[1].dropped["clinic a"]
    assert rounds_today(tmp_path / "0" / "clinic%20a", "another run", 1) == 2
    append(tmp_path, Entry("train", run="0", round=1))
    (tmp_path / "sent.jsonl").write_text("{")
    with pytest.raises(PolicyError, match="damaged"):
        rounds_today(tmp_path, "0", 1)


def test_errors_with_values_do_not_leave(tmp_path: Path) -> None:
    """A number that cannot be read is quoted in an error, which stays at the node."""
    given = table_experiment("nowhere.csv", dataset={"label": "missing"})
    file = write(tmp_path / "own.csv", [{"a": "zebra-fever", "b": "1"}] * 9)
    (tmp_path / "policy.toml").write_text(TEXT)
    config = {"client": "c", "data": str(file), "state-dir": str(tmp_path)}
    grid = LocalGrid(make_client_app(given), [config | {"policy": str(tmp_path / "policy.toml")}])
    with pytest.raises(RunError, match="the reason is in this node's list"):
        run_on(grid, given, tmp_path / "run", wait=0)
    assert "DataError" in (tmp_path / "c" / "sent.jsonl").read_text()
