"""One writer per folder, and whose files it may delete."""

import errno
import fcntl
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import safetensors.torch
import torch

from commonweal.base import files
from commonweal.base.errors import CommonwealWarning, LockedError, RunError
from commonweal.base.files import locked
from commonweal.jobs.rounds import run
from commonweal.record import store
from commonweal.record.checksums import from_bytes, to_bytes
from commonweal.record.record import Record
from commonweal.record.verify import problems
from run_helpers import contents, federation, stop, task
from stored_runs import PARTS, files_job, finish, stop_in_round_three

TOML = 'dataset = "vowel"\nrounds = 60\nclient = "sgd(lr=0.1)"\n'


# One writer


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    first = run(task(), federation(), out=tmp_path / "run", **PARTS)
    next(first)
    message = rf"is being written by another process \(id {os.getpid()}\)"
    with pytest.raises(RunError, match=message):
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


def test_windows_has_one_writer_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: set[int] = set()

    def locking(handle: int, mode: int, count: int) -> None:
        assert (mode, count) == (2, 1)
        assert os.lseek(handle, 0, os.SEEK_CUR) >= 1 << 20  # the id stays readable
        if os.fstat(handle).st_ino in taken:
            raise PermissionError(errno.EACCES, "Permission denied")
        taken.add(os.fstat(handle).st_ino)

    monkeypatch.setattr(files, "sys", SimpleNamespace(platform="win32"))
    monkeypatch.setitem(sys.modules, "msvcrt", SimpleNamespace(locking=locking, LK_NBLCK=2))
    monkeypatch.setitem(sys.modules, "fcntl", None)  # importing it is an error
    with locked(tmp_path / "run"):
        assert (tmp_path / "run" / "lock").read_text() == f"{os.getpid()}\n"
        with (
            pytest.raises(LockedError, match=rf"process \(id {os.getpid()}\)"),
            locked(tmp_path / "run"),
        ):
            pass
    assert len(taken) == 1 and not (tmp_path / "run" / "lock").exists()


# Other files in the folder


@pytest.mark.parametrize(
    "name", ["thesis.part", "client_states/mine.safetensors", "clients.part", "clients.txt"]
)
def test_users_files_in_a_run_folder_stay(tmp_path: Path, name: str) -> None:
    copy = stop_in_round_three(tmp_path / "run")
    (copy / name).write_text("years of work")
    (copy / "client_states" / "000001-000009.safetensors").mkdir()
    list(run(files_job(), out=copy, resume=True))
    assert (copy / name).read_text() == "years of work"


def test_leftovers_of_a_killed_process_are_deleted(tmp_path: Path) -> None:
    copy = stop_in_round_three(tmp_path / "run")
    written = re.findall(r"^ {4}(\w+\.\w+) ", str(store.__doc__), re.M)
    assert {"preparation.json", "final.json", "best.safetensors"} < set(written)
    left = [f"{name}.123.part" for name in written]
    left += ["client_states/000001-000003.safetensors.77.part"]
    for name in left:
        (copy / name).write_text("half")
    list(run(files_job(), out=copy, resume=True))
    assert not any((copy / name).exists() for name in left)


def test_other_readers_open_sealed_tensors() -> None:
    tensors = {"a": torch.arange(3), "b/c": torch.tensor(True), "e": torch.zeros(0, 2).bfloat16()}
    read = safetensors.torch.load(to_bytes(tensors, round="3"))
    assert all(torch.equal(read[name], value) for name, value in tensors.items())
    assert from_bytes(to_bytes(tensors, round="3"), "it")[1] == {"round": "3"}
