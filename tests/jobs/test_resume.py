"""Kills at every kind of instant: a resumed run ends with the bytes of one that was left alone.

A process that has imported the package forks the runs to be killed, so that a kill costs
milliseconds, not an import.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from typer.testing import CliRunner

from commonweal.base.tensors import Tensors
from commonweal.cli import app
from commonweal.config.experiment import Experiment, read
from commonweal.data.federation import Federation
from commonweal.jobs.rounds import run
from commonweal.record.record import Record
from commonweal.task.task import Task
from commonweal.training.client import Client
from run_helpers import contents, stop, stop_after

EXPERIMENT = """
dataset = "vowel"
rounds = {rounds}
cohort = {cohort}
evaluate_every = {every}
rule = "{rule}"
client = "{client}"

[model]
name = "mlp"
hidden = [8]

[server]
name = "sgd"
momentum = 0.9
"""

DRIVER = '''
import builtins, json, os, random, signal, sys, time
from pathlib import Path

import piqp
from commonweal import cli
from commonweal.jobs import rounds
from commonweal.record.client_states import ClientStates


def forked(work):
    """The id of a child process that does this."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except SystemExit as done:
            os._exit(done.code or 0)
        except BaseException as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\\n")
            os._exit(70)
        os._exit(0)
    return child


def command(file, folder, seconds):
    rounds.SAVE_EVERY = seconds
    sys.argv = ["commonweal", "run", str(file), "--out", str(folder), "--resume", "--quiet"]
    cli.main()


def ended(child):
    """How a child ended: its exit code, or minus the signal."""
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def at_random(file, folder, seed, seconds, longest):
    """Kill after random delays until a run ends by itself; how often it was killed."""
    chance, kills = random.Random(seed), 0
    while True:
        child = forked(lambda: command(file, folder, seconds))
        time.sleep(chance.uniform(0, longest))
        os.kill(child, signal.SIGKILL)
        code = ended(child)
        if code == 0:
            return kills
        if code != -signal.SIGKILL:
            return f"exit code {code}"
        kills += 1
        longest *= 1.1  # however slow the machine, a run ends


def dying(at):
    """Count every step that touches the disk from now on, and die at number `at`."""
    count, plain_open = 0, builtins.open

    def step(what):
        nonlocal count
        count += 1
        if count == at:
            Path(os.environ["POINT"]).write_text(what)
            os.kill(os.getpid(), signal.SIGKILL)

    class Torn:
        def __init__(self, file, name):
            self.file, self.name = file, name

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def __getattr__(self, name):
            return getattr(self.file, name)

        def write(self, data):
            half = len(data) // 2
            self.file.write(data[:half])
            self.file.flush()
            step(f"half of {self.name}")
            self.file.write(data[half:])
            return len(data)

    def opening(path, mode="r", *args, **kwargs):
        file = plain_open(path, mode, *args, **kwargs)
        if mode not in ("wb", "ab"):
            return file
        name = Path(path).name.replace(f".{os.getpid()}.part", ".part")
        step(f"opened {name}")
        return Torn(file, name)

    def replacing(a, b, plain=os.replace):
        step(f"before {Path(b).name}")
        plain(a, b)
        step(f"after {Path(b).name}")

    builtins.open, os.replace = opening, replacing


def everywhere(file, folder, seconds):
    """Kill a run at the first step that touches the disk, one at the second, ...; resume each."""
    points, at = {}, 0
    while True:
        at += 1
        place = folder / f"{at:03d}"
        os.environ["POINT"] = str(folder / f"{at:03d}.txt")
        if ended(forked(lambda: (dying(at), command(file, place, seconds)))) != -signal.SIGKILL:
            return points
        what = Path(os.environ["POINT"]).read_text()
        points[at] = [what, ended(forked(lambda: command(file, place, seconds)))]


job = json.loads(sys.argv[1])
work = Path(job["work"])
if job["states"] == "files":
    ClientStates.__init__.__defaults__ = (0, 0)
try:
    command(job["file"], work / "warm", 1e9)  # what is imported now is not imported in every child
except SystemExit as done:
    assert not done.code
start = time.monotonic()
result = {"whole": ended(forked(lambda: command(job["file"], work / "whole", 1e9)))}
longest = 0.7 * (time.monotonic() - start)
if job["do"] == "random":
    result["kills"] = {
        seed: at_random(job["file"], work / str(seed), seed, job["seconds"], longest)
        for seed in job["seeds"]
    }
else:
    result["points"] = everywhere(Path(job["file"]), work / "points", job["seconds"])
print(json.dumps(result))
'''


def written(
    folder: Path, rounds: int, cohort: object, rule: str, every: int = 2, client: str = "sgd"
) -> Path:
    path = folder / "e.toml"
    values = {"rounds": rounds, "cohort": json.dumps(cohort), "every": every}
    path.write_text(EXPERIMENT.format(rule=rule, client=client, **values))
    return path


def environment() -> dict[str, str]:
    """One thread, as the tests themselves run: sums over many threads may round differently."""
    return os.environ | {"OMP_NUM_THREADS": "1"}


def drive(work: Path, file: Path, states: str = "checkpoint", **job: Any) -> dict[str, Any]:
    job |= {"work": str(work), "file": str(file), "states": states}
    (work / "points").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, json.dumps(job)],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert result["whole"] == 0, done.stderr
    return result


@pytest.mark.parametrize(
    ("rule", "cohort", "seconds"),
    [("aaggff-s", 6, 0.05), ("fedavg", 0.5, -1.0)],
    ids=["a checkpoint now and then", "a checkpoint every round"],
)
def test_kills_after_random_delays_leave_no_trace(
    tmp_path: Path, rule: str, cohort: object, seconds: float
) -> None:
    file = written(tmp_path, 30, cohort, rule)
    seeds = [1, 2]
    result = drive(tmp_path, file, do="random", seconds=seconds, seeds=seeds)
    assert all(type(kills) is int for kills in result["kills"].values()), result["kills"]
    assert sum(result["kills"].values()) >= len(seeds)
    for seed in seeds:
        assert contents(tmp_path / str(seed)) == contents(tmp_path / "whole")


TREES = """
dataset = "vowel"
rounds = 12
cohort = 5
rule = "afl"
validation = 0.2

[algorithm]
name = "boosting"
sample_rows = 0.8
personal = "client"

[model]
name = "trees"
leaves = 4
depth = 2
"""


def test_kills_leave_no_trace_in_trees(tmp_path: Path) -> None:
    file = tmp_path / "e.toml"
    file.write_text(TREES)
    result = drive(tmp_path, file, do="random", seconds=-1.0, seeds=[1])
    assert result["kills"]["1"] >= 1
    assert contents(tmp_path / "1") == contents(tmp_path / "whole")


Steps = tuple[list[str], dict[str, tuple[str, int]]]


def traces(work: Path, client: str = "sgd", states: str = "checkpoint") -> Steps:
    """Kill runs of two rounds at every step that touches the disk, and resume each.

    Returns the steps, and those after which resuming failed or gave other bytes.
    """
    file = written(work, 2, 3, "aaggff-s", every=1, client=client)
    points = drive(work, file, states, do="everywhere", seconds=-1.0)["points"]
    whole = contents(work / "whole")
    bad = {}
    for at, (what, code) in points.items():
        if code != 0 or contents(work / "points" / f"{int(at):03d}") != whole:
            bad[at] = (what, code)
    return [what for what, _ in points.values()], bad


NAMES = [
    "rounds.jsonl",
    "timings.jsonl",
    "clients.chunks",
    "clients.csv.part",
    "checkpoint.safetensors.part",
    "model.safetensors.part",
]


def test_a_kill_at_any_step_of_a_run_leaves_no_trace(tmp_path: Path) -> None:
    """Also before the experiment is written."""
    steps, bad = traces(tmp_path)
    assert {f"half of {name}" for name in ["experiment.toml.part", *NAMES]} <= set(steps)
    assert bad == {}


def test_a_kill_at_any_step_leaves_no_trace_in_files_of_clients_states(tmp_path: Path) -> None:
    steps, bad = traces(tmp_path, client="ditto", states="files")
    halves = {step for step in steps if step.startswith("half of")}
    assert {f"half of {name}" for name in NAMES} <= halves
    assert any(step.endswith("-000002.safetensors.part") for step in halves)
    assert bad == {}


def command(file: Path, folder: Path, *more: str) -> subprocess.Popen[str]:
    """The real command, in a process of its own."""
    main = [sys.executable, "-c", "from commonweal.cli import main; main()"]
    return subprocess.Popen(
        [*main, "run", str(file), "--out", str(folder), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        # In the background of a shell Ctrl-C is ignored, and children would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def wait_for(process: subprocess.Popen[str], folder: Path, lines: int) -> None:
    """Until the run's record has so many lines."""
    path = folder / "rounds.jsonl"
    while process.poll() is None:
        if path.exists() and path.read_bytes().count(b"\n") >= lines:
            break
        time.sleep(0.01)
    assert process.poll() is None, process.communicate()


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An experiment that runs for a second or two, and the folder of its uninterrupted run."""
    work = tmp_path_factory.mktemp("long")
    file = written(work, 120, "all", "aaggff-s")
    list(run(read(file), out=work / "whole"))
    return file, work / "whole"


def test_the_command_killed_and_resumed_ends_the_same(
    long: tuple[Path, Path], tmp_path: Path
) -> None:
    file, whole = long
    folder = tmp_path / "killed"
    process = command(file, folder, "--quiet")
    wait_for(process, folder, 40)
    process.kill()
    assert process.communicate() == ("", "")
    assert process.returncode == -signal.SIGKILL
    assert not Record.read(folder).finished
    result = CliRunner().invoke(
        app, ["run", str(file), "--out", str(folder), "--resume", "--quiet"]
    )
    assert (result.exit_code, result.output) == (0, "")
    assert contents(folder) == contents(whole)


def test_ctrl_c_saves_and_resume_ends_the_same(long: tuple[Path, Path], tmp_path: Path) -> None:
    file, whole = long
    folder = tmp_path / "stopped"
    process = command(file, folder)
    wait_for(process, folder, 20)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    sentence = r"stopped after round (\d+); .*with the same command and --resume"
    said = re.search(sentence, " ".join(err.split()))
    assert said, err
    # The round in which it came may be written already, and is computed again.
    saved = int(load_file(folder / "checkpoint.safetensors")["last"])
    assert 19 <= int(said[1]) <= saved <= len(Record.read(folder).rounds)
    result = CliRunner().invoke(app, ["run", str(file), "--out", str(folder), "--resume", "--json"])
    assert (result.exit_code, result.stderr) == (0, "")
    assert json.loads(result.stdout)["finished"] is True
    assert contents(folder) == contents(whole)
    numbers = [int(each["round"]) for each in Record.read(folder).timings()]
    assert numbers == list(range(1, 121))


SMALL: dict[str, Any] = {
    "dataset": "vowel",
    "rule": "aaggff-s",
    "server": {"name": "sgd", "momentum": 0.9},
    "rounds": 6,
}


def stopped(folder: Path, rounds: int) -> None:
    stop_after(rounds, run(Experiment(**SMALL), out=folder))


def resumed(folder: Path) -> list[int]:
    return [done.number for done in run(Experiment(**SMALL), out=folder, resume=True)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small") / "whole"
    list(run(Experiment(**SMALL), out=folder))
    return folder


@pytest.mark.parametrize("rounds", [1, 2, 3, 4, 5, 6])
def test_stopping_after_any_round(tmp_path: Path, whole: Path, rounds: int) -> None:
    stopped(tmp_path / "run", rounds)
    assert resumed(tmp_path / "run") == list(range(rounds + 1, 7))
    assert contents(tmp_path / "run") == contents(whole)


def test_stopping_after_every_round(tmp_path: Path, whole: Path) -> None:
    for number in range(1, 7):
        rounds = run(Experiment(**SMALL), out=tmp_path / "run", resume=True)
        assert next(rounds).number == number
        stop(rounds)
    assert resumed(tmp_path / "run") == []
    assert contents(tmp_path / "run") == contents(whole)


@pytest.mark.parametrize(
    "torn", [b'{"round": 4, "cli', b"{", b'{"round": 4}\n{"round": 5}\n{"rou', b"\n\n\xff"]
)
def test_a_torn_last_line_is_survived(tmp_path: Path, whole: Path, torn: bytes) -> None:
    stopped(tmp_path / "run", 3)
    for name in ("rounds.jsonl", "timings.jsonl"):
        with open(tmp_path / "run" / name, "ab") as file:
            file.write(torn)
    assert resumed(tmp_path / "run") == [4, 5, 6]
    assert contents(tmp_path / "run") == contents(whole)


def test_a_torn_last_chunk_is_survived(tmp_path: Path, whole: Path) -> None:
    stopped(tmp_path / "run", 3)
    with open(tmp_path / "run" / "clients.chunks", "ab") as file:
        file.write(b"half of a chunk")
    assert resumed(tmp_path / "run") == [4, 5, 6]
    assert contents(tmp_path / "run") == contents(whole)


@pytest.mark.parametrize(
    "name",
    [
        "checkpoint.safetensors",
        "model.safetensors",
        "clients.csv",
        "unseen.csv",
        "rounds.jsonl",
    ],
)
def test_a_leftover_half_file_is_survived(tmp_path: Path, whole: Path, name: str) -> None:
    stopped(tmp_path / "run", 3)
    (tmp_path / "run" / f"{name}.part").write_bytes(b"half")
    resumed(tmp_path / "run")
    assert contents(tmp_path / "run") == contents(whole)


def test_a_missing_model_comes_back(tmp_path: Path, whole: Path) -> None:
    """Killed between the last checkpoint and the model."""
    stopped(tmp_path / "run", 6)
    (tmp_path / "run" / "model.safetensors").unlink(missing_ok=True)
    assert resumed(tmp_path / "run") == []
    assert contents(tmp_path / "run") == contents(whole)


@dataclass(frozen=True)
class Anchored(Client):
    """A client that remembers the last model it trained and replies half way back to it."""

    def init_client(self, task: Task, seed: int) -> Tensors:
        own = torch.tensor(float(seed % 7))
        return {"last": torch.zeros(task.size), "visits": torch.tensor(0), "own": own}

    def reply(
        self, task: Task, vectors: Tensors, message: Tensors, state: Tensors, steps: Tensor
    ) -> tuple[Tensors, Tensors]:
        w = vectors["w"]
        update = message["w"] - (w + state["last"]) / 2 - 0.01 * state["own"]
        after = {"last": w, "visits": state["visits"] + 1, "own": state["own"]}
        return {"update": update}, after


PARTS: list[dict[str, Any]] = [
    {"client": Anchored()},
    {"client": "scaffold", "server": "adam"},
    {"algorithm": "two-phase", "rule": "aaggff-s", "client": Anchored()},
    {"algorithm": "drfa", "client": "sgd(steps=3)"},
    {"rule": "afl", "sampler": "weight", "client": "ditto"},
    {"rule": {"name": "grouped", "rule": "aaggff-s", "domains": 2}, "sampler": "poisson"},
]


@pytest.mark.parametrize("parts", PARTS, ids=lambda parts: "-".join(parts))
def test_whatever_the_parts_a_resumed_run_ends_the_same(
    tmp_path: Path, parts: dict[str, Any]
) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 3))
    f = Federation.from_arrays(x, rng.integers(0, 2, 80), np.repeat(list("abcdefgh"), 10))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        task = Task(nn.Linear(3, 2))

    def go(folder: str) -> Any:
        return run(task, f, cohort=3, rounds=7, out=tmp_path / folder, resume=True, **parts)

    list(go("whole"))
    for _ in range(7):
        rounds = go("part")
        next(rounds)
        stop(rounds)
    assert list(go("part")) == []
    assert contents(tmp_path / "part") == contents(tmp_path / "whole")
