"""Deleting a run: of its folder, what a run has written, and nothing else."""

import re
from contextlib import suppress
from pathlib import Path

from commonweal.base.files import writing
from commonweal.record.artifacts import BEST, MODEL, PREPARATION, SAMPLES
from commonweal.record.checkpoint import CHECKPOINT
from commonweal.record.client_states import OURS
from commonweal.record.facts import NAME as FACTS
from commonweal.record.final import NAME as FINAL
from commonweal.record.identity import NAME as DATA
from commonweal.record.publication import MARK
from commonweal.record.record import MARKS, PRIVATE
from commonweal.record.rounds import ROUNDS, VALUES
from commonweal.record.store import EXPERIMENT, TIMINGS, remove_leftovers
from commonweal.record.test_scores import NAME as TEST_SCORES

# The checkpoint first: without it what is left counts as nothing.
FILES = (
    CHECKPOINT,
    MODEL,
    BEST,
    FINAL,
    ROUNDS,
    VALUES,
    TIMINGS,
    "clients.csv",
    "card.md",
    "card.svg",
    "regret.png",
    "unseen.csv",
    TEST_SCORES,
    SAMPLES,
    PREPARATION,
    DATA,
    MARK,
    "withdrawal.json",
    FACTS,
    EXPERIMENT,
)
REFIT = "refit"  # the same method, trained again on all samples
BELOW = {"client_states": OURS, "pictures": r"\d{6,}\.png"}  # folders, and what files are called


def remove_run(folder: Path) -> bool:
    """Delete the run in a folder. Returns whether there was one."""
    if not any((folder / name).exists() for name in MARKS):
        return False
    with writing(folder):
        for name in FILES:
            (folder / name).unlink(missing_ok=True)
        for name, pattern in BELOW.items():
            for path in (folder / name).glob("*"):
                if re.fullmatch(pattern, path.name) and path.is_file():
                    path.unlink()
            _remove_empty(folder / name)
    remove_leftovers(folder)
    for name in (PRIVATE, REFIT):
        remove_run(folder / name)
        _remove_empty(folder / name)
    return True


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):  # it is not there, or has something else in it
        folder.rmdir()
