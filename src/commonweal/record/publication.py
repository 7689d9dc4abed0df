"""Public and private parts of a private run.

The promise of a private run covers its model and the numbers that were released with it. All else
(losses, scores, cohorts, failures, times, states of clients) is in the folder `private` within the
run's folder, which is a run's folder itself: `show RUN/private` reads it.
"""

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

from commonweal.base.errors import RunError
from commonweal.base.files import read_plain, write_file
from commonweal.base.plain import to_json
from commonweal.config.experiment import to_toml
from commonweal.record.artifacts import MODEL, PREPARATION
from commonweal.record.facts import write_facts
from commonweal.record.record import PRIVATE, Record
from commonweal.record.rounds import ROUNDS
from commonweal.record.store import remove_leftovers

MARK = "PRIVATE.txt"
# The facts that are counted in clients' samples, left out of what is published.
COUNTED = (
    "unscored",
    "notes",
    "train_rows",
    "test_rows",
    "validation_rows",
    "held_out",
    "majority",
)
HASHES = ("data", "samples", "federation")  # of the data, by which guesses could be confirmed
ABOUT = """Values of single clients: losses, scores, cohorts, failures, times and states.

The promise of privacy does not cover this folder. Publish the folder above, without this one.
"""


def private_folder(folder: Path, force: bool = False) -> Path:
    """Return where a private run is written; raises RunError where there is another run.

    Args:
        folder: That of the run.
        force: Another run there will be deleted.
    """
    private = folder / PRIVATE
    if not force and (folder / "experiment.toml").exists() and not private.exists():
        raise RunError(f"{str(folder)!r} holds a run that is not private: choose another folder")
    return private


def publish(private: Path) -> None:
    """Write what may be published of a run to the folder above it."""
    record = Record.read(private)
    public = private.parent
    remove_leftovers(public)
    remove_leftovers(private)
    write_file(private / MARK, ABOUT.encode())
    write_file(public / "experiment.toml", _experiment(private))
    uncounted: dict[str, Any] = dict.fromkeys((*COUNTED, *HASHES))
    write_facts(public, replace(record.facts, **uncounted))
    lines = [{"round": entry.number, "public": entry.public} for entry in record.rounds]
    write_file(public / ROUNDS, b"".join(to_json(line, indent=None) for line in lines))
    if (private / PREPARATION).exists():  # with public statistics: others are refused
        write_file(public / PREPARATION, read_plain(private / PREPARATION))
    if record.finished:
        write_file(public / MODEL, read_plain(private / MODEL))
    else:  # of an earlier end
        (public / MODEL).unlink(missing_ok=True)


def _experiment(private: Path) -> bytes:
    """The experiment without a hash of the data, by which guesses could be confirmed."""
    data = read_plain(private / "experiment.toml")
    tables = tomllib.loads(data.decode())
    dataset = tables.get("dataset")
    if not isinstance(dataset, dict) or "digest" not in dataset:
        return data
    del dataset["digest"]
    return to_toml(tables).encode()
