"""Writes that fail and Ctrl-C at every step of a run: the reason is reported, and it resumes."""

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from commonweal.base.errors import DivergedError, RunError
from commonweal.engines.simulator import Simulator
from commonweal.jobs import rounds
from commonweal.jobs.job import Job
from commonweal.jobs.rounds import Run, run
from commonweal.record.client_states import ClientStates
from commonweal.record.facts import read_facts
from commonweal.record.record import Record
from commonweal.record.store import Store
from run_helpers import contents, federation, job, task

PRIVATE: dict[str, Any] = {
    # Reproducible, so that a resumed run can be compared with a whole one.
    "algorithm": {"name": "private", "noise": 2.0, "delta": 1e-3, "entropy": "seed"},
    "rule": "aaggff-d",
    "sampler": "poisson",
    "cohort": 2,
}


def with_files() -> Job:
    """A job whose clients' states are in files."""
    f = federation()
    engine = Simulator(f)
    engine.states = ClientStates(f.clients, 0, 0)
    return job(task(), f, engine, client="ditto", rounds=3)


Start = Callable[..., Run]
RUNS: dict[str, Start] = {
    "plain": lambda **how: run(task(), federation(), rounds=3, validation=0.2, **how),
    "states in files": lambda **how: run(with_files(), **how),
    "private": lambda **how: run(task(), federation(), rounds=3, **PRIVATE, **how),
}
FAILURES = {
    "full disk": (OSError(errno.ENOSPC, "No space left on device"), RunError),
    "ctrl-c": (KeyboardInterrupt(), KeyboardInterrupt),
}


class Failing:
    """Replaces os.replace: raises an error at one call, or at all from then on."""

    def __init__(self, error: BaseException, at: int, stays: bool) -> None:
        self.error = error
        self.at = at
        self.stays = stays
        self.calls = 0
        self.plain = os.replace

    def __call__(self, source: Path, target: Path) -> None:
        self.calls += 1
        if self.calls == self.at or (self.stays and self.calls > self.at):
            raise self.error
        self.plain(source, target)


def _failure(start: Start, folder: Path) -> BaseException | None:
    """What a run ends with; None: it finishes."""
    try:
        list(start(out=folder))
    except (Exception, KeyboardInterrupt) as error:
        return error
    return None


@pytest.mark.filterwarnings("ignore::commonweal.base.errors.CommonwealWarning")
@pytest.mark.parametrize("stays", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("kind", RUNS)
def test_a_failure_at_any_write_is_reported_and_the_run_resumes(
    kind: str, failure: str, stays: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "SAVE_EVERY", -1.0)  # a checkpoint after every round
    start, (error, expected) = RUNS[kind], FAILURES[failure]
    list(start(out=tmp_path / "whole"))
    whole = contents(tmp_path / "whole")
    at = 0
    while True:
        at += 1
        folder = tmp_path / str(at)
        failing = Failing(error, at, stays)
        with monkeypatch.context() as patched:
            patched.setattr(os, "replace", failing)
            reason = _failure(start, folder)
        if failing.calls < at:
            break
        assert reason is None or type(reason) is expected
        assert "No space left on device" in str(reason) or not isinstance(reason, RunError)
        list(start(out=folder, resume=True))
        assert contents(folder) == whole, at
    assert at > 6


def test_a_failure_to_publish_is_not_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def full(job: Job, store: object) -> None:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise RunError("cannot write 'run.json': no space left on device")

    monkeypatch.setattr(rounds, "_publish", full)
    with pytest.raises(RunError, match="no space left"):
        run(task(), federation(), rounds=2, out=tmp_path / "run").result()


# What a run wrote at its end

ENDS: dict[str, Callable[..., Run]] = {
    "plain": lambda **how: run(task(), federation(), client="sgd(lr=0.01)", **how),
    "held out": lambda **how: run(
        task(), federation(6), holdout_clients=0.4, client="sgd(lr=0.01)", **how
    ),
}


@pytest.mark.parametrize("kind", ENDS)
def test_a_continued_run_drops_what_it_wrote_at_its_earlier_end(kind: str, tmp_path: Path) -> None:
    start, folder = ENDS[kind], tmp_path / "run"
    start(rounds=1, out=folder).result()
    at_the_end = {name for name in contents(folder) if name in {"final.json", "clients.csv"}}
    assert at_the_end == {"final.json", "clients.csv"}
    (folder / "test-scores.safetensors").write_bytes(b"of the earlier end")
    continued = start(rounds=30, out=folder, resume=True)
    assert next(continued).number == 2
    left = set(contents(folder))
    continued.close()
    ended = {"final.json", "clients.csv", "unseen.csv", "model.safetensors"}
    assert not left & {*ended, "test-scores.safetensors"}
    start(rounds=30, out=folder, resume=True).result()
    start(rounds=30, out=tmp_path / "whole").result()
    for name in ended & contents(tmp_path / "whole").keys():
        assert contents(folder)[name] == contents(tmp_path / "whole")[name], name


def test_a_continued_run_that_diverges_has_no_earlier_intervals(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    parts: dict[str, Any] = {"client": "sgd(lr=1, weight_decay=4)"}
    run(task(), federation(), rounds=1, out=folder, **parts).result()
    assert (folder / "final.json").exists()
    with pytest.raises(DivergedError):
        run(task(), federation(), rounds=200, out=folder, resume=True, **parts).result()
    assert not (folder / "final.json").exists()
    assert not Record.read(folder).finished


def test_a_run_that_begins_again_drops_all_results(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    parts: dict[str, Any] = {"rounds": 3, "validation": 0.2}
    run(task(), federation(), out=folder, **parts).result()
    whole = contents(folder)
    assert "best.safetensors" in whole
    (folder / "synthetic.npz").write_bytes(b"of an earlier run")
    (folder / "checkpoint.safetensors").unlink()
    opened = Store(folder)
    facts = replace(read_facts(folder), notes=("another machine",))
    last, _ = opened.open((folder / "experiment.toml").read_text(), facts, resume=True)
    opened.remove_results(last)
    assert set(contents(folder)) == {
        "experiment.toml",
        "run.json",
        "data.json",
        "rounds.jsonl",
        "clients.chunks",
    }
    assert read_facts(folder).notes == ("another machine",)
    run(task(), federation(), out=folder, resume=True, **parts).result()
    assert contents(folder) == whole
