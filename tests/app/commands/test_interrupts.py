"""Ctrl-C at any command: a sentence, exit code 130, no process left, nothing lost."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from commonweal.record.record import Record
from commonweal.record.verify import problems

SLOW = 'dataset = "vowel"\nrounds = 100000\nclient = "sgd(epochs=5)"\nevaluate_every = 50\n'


def started(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", "from commonweal.cli import main; main()", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        # In the background of a shell Ctrl-C is ignored, and children would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        start_new_session=True,
    )


def when(process: subprocess.Popen[str], ready: Callable[[], bool]) -> None:
    while not ready():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


def is_anyone_left(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def interrupted(process: subprocess.Popen[str]) -> str:
    """What is printed after Ctrl-C, which a terminal sends to all processes."""
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert "Traceback" not in said, said
    deadline = time.monotonic() + 30
    while is_anyone_left(process.pid):  # workers are in the same group
        assert time.monotonic() < deadline, "a worker is left"
        time.sleep(0.05)
    return said


def test_a_comparison_ends_with_its_workers(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text(SLOW)
    given = ["--rules", "fedavg,afl", "--seeds", "1", "--jobs", "2", "--out", "runs"]
    process = started(tmp_path, "compare", "e.toml", *given)
    folders = [tmp_path / "runs" / rule / "seed-0" for rule in ("fedavg", "afl")]
    when(process, lambda: all((f / "checkpoint.safetensors").exists() for f in folders))
    said = interrupted(process)
    assert "the same command continues" in said
    for folder in folders:
        assert problems(folder) == []
        assert Record.read(folder).rounds


def test_before_the_first_round(tmp_path: Path) -> None:
    source = "import time\n\n\ndef rows():\n    open('here', 'w').close()\n    time.sleep(600)\n"
    (tmp_path / "slow.py").write_text(source)
    (tmp_path / "e.toml").write_text('dataset = "slow.py:rows"\nrounds = 1\n')
    process = started(tmp_path, "run", "e.toml", "--out", "run")
    when(process, (tmp_path / "here").exists)
    assert "stopped; what was saved before is intact" in interrupted(process)
    assert not (tmp_path / "run").exists()


def test_while_the_command_is_imported(tmp_path: Path) -> None:
    (tmp_path / "rich").mkdir()
    (tmp_path / "rich" / "__init__.py").write_text("raise KeyboardInterrupt\n")
    ended = subprocess.run(
        [sys.executable, "-m", "commonweal", "list"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (ended.stdout, ended.stderr, ended.returncode) == ("", "", 130)


def workers(process: int) -> list[int]:
    """The processes that a process started for runs."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [int(child) for child in children if b"spawn_main" in _command(child)]


def _command(process: str) -> bytes:
    return Path(f"/proc/{process}/cmdline").read_bytes()


def test_a_worker_that_is_killed_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text(SLOW)
    given = ["--rules", "fedavg", "--seeds", "2", "--jobs", "2", "--out", "runs"]
    process = started(tmp_path, "compare", "e.toml", *given)
    folder = tmp_path / "runs" / "fedavg" / "seed-0"
    when(process, (folder / "checkpoint.safetensors").exists)
    os.kill(workers(process.pid)[0], signal.SIGKILL)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 2
    assert "a worker process was killed" in said
    assert "Traceback" not in said
    assert problems(folder) == []
