"""One writer per folder, files that know when they were changed, and data that changed."""

import errno
import fcntl
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from commonweal.base.errors import CommonwealWarning, RunError
from commonweal.base.files import locked
from commonweal.engines.simulator import Simulator
from commonweal.jobs import rounds as rounds_module
from commonweal.jobs.job import Job
from commonweal.jobs.rounds import run
from commonweal.record import store
from commonweal.record.checksums import pack, unpack
from commonweal.record.client_states import ClientStates
from commonweal.record.final import Final, read_final
from commonweal.record.record import Record
from commonweal.record.verify import problems
from run_helpers import contents, federation, job, stop, stop_after, task

PARTS: dict[str, Any] = {"rule": "aaggff-s", "server": "sgd(momentum=0.5)", "rounds": 5}
TOML = 'dataset = "vowel"\nrounds = 60\nclient = "sgd(lr=0.1)"\n'


def finish(folder: Path, **how: Any) -> None:
    list(run(task(), federation(), out=folder, **(PARTS | how)))


def files_job() -> Job:
    """A job of a personal method, whose clients' states are in files."""
    f = federation()
    engine = Simulator(f)
    engine.states = ClientStates(f.clients, 0, 0)
    return job(task(), f, engine, client="ditto", **PARTS)


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with states in files, stopped after three of five rounds."""
    folder = tmp_path_factory.mktemp("half") / "run"
    stop_after(3, run(files_job(), out=folder))
    return folder


@pytest.fixture
def copy(half: Path, tmp_path: Path) -> Path:
    return shutil.copytree(half, tmp_path / "copy")


# One writer


def test_a_second_writer_is_refused_with_a_sentence(tmp_path: Path) -> None:
    first = run(task(), federation(), out=tmp_path / "run", **PARTS)
    next(first)
    sentence = rf"is being written by another process \(id {os.getpid()}\)"
    with pytest.raises(RunError, match=sentence):
        finish(tmp_path / "run", resume=True)
    stop(first)
    finish(tmp_path / "run", resume=True)
    finish(tmp_path / "whole")
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def test_a_lock_that_a_kill_left_behind_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "lock").write_text("1\n")
    finish(tmp_path / "run")
    assert not (tmp_path / "run" / "lock").exists()


def test_a_lock_is_gone_with_the_process_that_failed(tmp_path: Path) -> None:
    with pytest.raises(KeyError), locked(tmp_path):
        raise KeyError
    with locked(tmp_path):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_two_processes_on_one_folder_leave_one_whole_run(tmp_path: Path) -> None:
    """Both start at once: one runs, the other says so. None of them damages the record."""
    file = tmp_path / "e.toml"
    file.write_text(TOML)
    main = [sys.executable, "-c", "from commonweal.cli import main; main()"]
    go = [*main, "run", str(file), "--out", str(tmp_path / "run"), "--resume", "--quiet"]
    both = [subprocess.Popen(go, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    errors = [process.communicate(timeout=300)[1] for process in both]
    codes = [process.returncode for process in both]
    assert 0 in codes and set(codes) <= {0, 2}, errors
    for code, error in zip(codes, errors, strict=True):
        assert ("is being written by another process" in error) == (code == 2), error
    record = Record.read(tmp_path / "run")
    assert [each.number for each in record.rounds] == list(range(1, 61))
    assert record.finished and problems(tmp_path / "run") == []


def test_lines_that_are_not_rounds_1_2_3_are_refused(copy: Path) -> None:
    path = copy / "rounds.jsonl"
    first, second, third = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + third + second)
    with pytest.raises(RunError, match=r"rounds\.jsonl' is damaged: line 2 is not round 2"):
        list(run(files_job(), out=copy, resume=True))


# Files that know when they were changed


def tracked(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != "timings.jsonl":
            yield path


def test_every_flipped_bit_of_every_file_is_noticed(half: Path, copy: Path) -> None:
    """By `verify`, and by a resumed run; what is not noticed would give the same bytes."""
    draw = random.Random(0)
    files = [path.relative_to(half) for path in tracked(half)]
    assert {"client_states", "clients.chunks"} <= {file.parts[0] for file in files}
    for file in files:
        data = (half / file).read_bytes()
        for _ in range(8):
            at = draw.randrange(len(data))
            changed = bytearray(data)
            changed[at] ^= 1 << draw.randrange(8)
            (copy / file).write_bytes(bytes(changed))
            assert problems(copy), f"{file}: byte {at}"
        if file.name != "experiment.toml":
            with pytest.raises(RunError, match=file.name):
                list(run(files_job(), out=copy, resume=True))
        shutil.rmtree(copy)
        shutil.copytree(half, copy)
    assert problems(copy) == []


def test_every_damaged_file_is_reported(copy: Path) -> None:
    """Whoever restores them from a backup needs all their names."""
    files = [*(copy / "client_states").iterdir(), copy / "run.json", copy / "rounds.jsonl"]
    files.append(copy / "experiment.toml")
    assert len(files) > 4
    for file in files:
        file.write_bytes(file.read_bytes().replace(b"0", b"1", 1))
    damage = problems(copy)
    assert len(damage) == len(files)
    assert all(any(repr(str(file)) in problem for problem in damage) for file in files)


@pytest.mark.parametrize("name", ["run.json", "clients.chunks"])
def test_a_missing_file_is_noticed(copy: Path, name: str) -> None:
    (copy / name).unlink()
    assert name in problems(copy)[0]
    with pytest.raises(RunError, match=name):
        list(run(files_job(), out=copy, resume=True))


def test_every_damage_of_the_last_numbers_is_noticed(tmp_path: Path) -> None:
    """By `verify`, and by whoever would show them."""
    finish(tmp_path)
    path = tmp_path / "final.json"
    data = path.read_bytes()
    wrong = [b"", b"[1]", b"\xff", b"[" * 60_000, data[:-9], data.replace(b"0.", b"1.", 1)]
    for at in random.Random(0).sample(range(len(data)), 20):
        wrong.append(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    for changed in wrong:
        path.write_bytes(changed)
        assert changed != data and "final.json" in problems(tmp_path)[0]
        with pytest.raises(RunError, match=r"final\.json' is damaged: restore it, or delete it"):
            read_final(tmp_path)
    path.unlink()
    assert read_final(tmp_path) == Final()
    path.write_bytes(data)
    assert problems(tmp_path) == [] and read_final(tmp_path).bounds


def test_two_swapped_client_states_are_noticed(copy: Path) -> None:
    one, other = sorted((copy / "client_states").iterdir())[:2]
    held = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(held)
    with pytest.raises(RunError, match="under another name"):
        list(run(files_job(), out=copy, resume=True))


def craft(folder: Path, **changes: torch.Tensor) -> None:
    """Change tensors of a checkpoint as someone who knows how digests are made."""
    path = folder / "checkpoint.safetensors"
    tensors, facts = unpack(path.read_bytes(), "it")
    named = {_path(name): value for name, value in changes.items()}
    path.write_bytes(pack(tensors | named, **facts))


def _path(name: str) -> str:
    """The name of a tensor: "server_w" stands for "server/w"."""
    if name.startswith("client_"):
        kind, _, rest = name.removeprefix("client_").partition("_")
        return f"client_{kind}" + (f"/{rest.replace('_', '/')}" if rest else "")
    return name.replace("_", "/")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"last": torch.tensor(2)}, r"rounds\.jsonl"),
        ({"last": torch.tensor([2, 3])}, "is not a checkpoint"),
        ({"server_round": torch.tensor(9)}, "of round 3, but the server would continue with 9"),
        ({"server_w": torch.zeros(9).double()}, "server/w"),
        ({"server_server_velocity": torch.zeros(1)}, "server/server/velocity"),
        ({"server_server": torch.zeros(1)}, "is not a checkpoint"),
        ({"last": torch.tensor(math.nan)}, "is not a checkpoint"),
        ({"last": torch.tensor(-3)}, "is not a checkpoint"),
        ({"_".join("a" * 3000): torch.zeros(1)}, "is not a checkpoint"),
        ({"client_states_foo": torch.zeros(1)}, "client_states are not by client"),
        ({"client_states_3": torch.zeros(1)}, "client_states/3 is a tensor"),
        ({"client_states_³_w": torch.zeros(1)}, "client_states are not by client"),
        ({"client_rounds": torch.zeros(1, 2)}, "client_rounds are not pairs of numbers"),
        ({"client_rounds": torch.ones(3)}, "client_rounds are not pairs of numbers"),
    ],
)
def test_a_crafted_checkpoint_is_a_sentence(
    tmp_path: Path, changes: dict[str, torch.Tensor], sentence: str
) -> None:
    stop_after(3, run(task(), federation(), out=tmp_path / "run", **PARTS))
    craft(tmp_path / "run", **changes)
    problems(tmp_path / "run")  # raises nothing
    with pytest.raises(RunError, match=sentence):
        finish(tmp_path / "run", resume=True)


def test_other_readers_open_sealed_tensors() -> None:
    tensors = {"a": torch.arange(3), "b/c": torch.tensor(True), "e": torch.zeros(0, 2).bfloat16()}
    read = safetensors.torch.load(pack(tensors, round="3"))
    assert all(torch.equal(read[name], value) for name, value in tensors.items())
    assert unpack(pack(tensors, round="3"), "it")[1] == {"round": "3"}


# A model that is not this run's


def test_a_stale_model_does_not_make_a_run_finished(tmp_path: Path) -> None:
    finish(tmp_path / "run")
    (tmp_path / "run" / "checkpoint.safetensors").unlink()
    begun = run(task(), federation(), out=tmp_path / "run", resume=True, **PARTS)
    next(begun)
    assert not (tmp_path / "run" / "model.safetensors").exists()
    stop(begun)
    shutil.copy(half_model(tmp_path), tmp_path / "run" / "model.safetensors")
    assert not Record.read(tmp_path / "run").finished


def half_model(folder: Path) -> Path:
    finish(folder / "other")
    return folder / "other" / "model.safetensors"


# Data that changed


def test_data_that_changed_since_the_kill_is_named(tmp_path: Path) -> None:
    before = federation()
    parts = PARTS | {"rounds": 4}
    original = job(task(), before, **parts)
    stop_after(2, run(original, out=tmp_path / "run"))
    fewer = replace(original, engine=Simulator(federation(3)))
    with pytest.raises(RunError, match=r"data changed since .*\(clients was 4 and is 3"):
        list(run(fewer, out=tmp_path / "run", resume=True))
    before.train.x[0, 0] += 1
    with pytest.raises(RunError, match="some value not"):
        list(run(replace(original, engine=Simulator(before)), out=tmp_path / "run", resume=True))
    before.train.x[0, 0] -= 1


# Users' files


@pytest.mark.parametrize(
    "name", ["thesis.part", "client_states/mine.safetensors", "clients.part", "clients.txt"]
)
def test_users_files_in_a_run_folder_stay(copy: Path, name: str) -> None:
    (copy / name).write_text("years of work")
    (copy / "client_states" / "000001-000009.safetensors").mkdir()
    list(run(files_job(), out=copy, resume=True))
    assert (copy / name).read_text() == "years of work"


def test_leftovers_of_a_killed_process_are_deleted(copy: Path) -> None:
    written = re.findall(r"^ {4}(\w+\.\w+) ", str(store.__doc__), re.M)
    assert {"preparation.json", "final.json", "best.safetensors"} < set(written)
    left = [f"{name}.123.part" for name in written]
    left += ["client_states/000001-000003.safetensors.77.part"]
    for name in left:
        (copy / name).write_text("half")
    list(run(files_job(), out=copy, resume=True))
    assert not any((copy / name).exists() for name in left)


def test_a_file_system_without_locks_is_reported_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(handle: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with pytest.warns(CommonwealWarning, match="has no locks") as warned:
        finish(tmp_path / "run")
    assert len(warned) == 1
    assert Record.read(tmp_path / "run").finished


NAMES = ["rounds.jsonl", "run.json", "checkpoint.safetensors", "timings.jsonl"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_a_pipe_or_a_folder_in_a_files_place_is_a_sentence(
    copy: Path, name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds_module, "SAVE_EVERY", -1.0)
    (copy / name).unlink()
    if kind == "pipe":
        os.mkfifo(copy / name)
    else:
        (copy / name).mkdir()
    with pytest.raises(RunError, match=name):
        list(run(files_job(), out=copy, resume=True))
    assert problems(copy) or name == "timings.jsonl"  # which may differ


def test_verify_says_that_a_run_is_whole(half: Path, tmp_path: Path) -> None:
    assert problems(half) == []
    finish(tmp_path / "run")
    assert problems(tmp_path / "run") == []
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    (tmp_path / "run" / "run.json").write_text(json.dumps(facts | {"clients": 5}))
    assert "run.json' was changed" in problems(tmp_path / "run")[0]
