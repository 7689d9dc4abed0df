"""Real processes over the loopback, with TLS and node authentication: a SuperLink, 3 SuperNodes."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'commonweal[flower]'")

from commonweal import _flower_local, rounds
from commonweal._flower_runtime import Runtime, export
from commonweal.errors import RunError
from commonweal.experiment import Experiment
from commonweal.job import job_from_experiment
from commonweal.store import Record
from helpers import close

PATIENCE = 300.0  # seconds for each step; a quiet machine needs far less
TIMEOUT = 25.0


def experiment(**parts: Any) -> Experiment:
    return Experiment(
        **{
            "dataset": "digits",
            "partition": {"name": "dirichlet", "clients": 3},
            "rule": "aaggff-s",
            "client": {"name": "ditto", "lr": 0.1, "batch": 32},
            "seed": 5,
            **parts,
        }
    )


def written(folder: Path) -> list[dict[str, Any]]:
    path = folder / "rounds.jsonl"
    lines = path.read_text().split("\n") if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def wait_until(ready: Callable[[], object], runtime: Runtime) -> None:
    deadline = time.monotonic() + PATIENCE
    while not ready():
        ended = runtime.processes["run"].poll() is not None
        if (ended and not ready()) or time.monotonic() > deadline:
            raise AssertionError(runtime.log("run")[-3000:] + runtime.log("superlink")[-2000:])
        time.sleep(0.1)


def test_a_killed_node_is_named_and_comes_back_with_its_state(tmp_path: Path) -> None:
    given = experiment(rounds=50, evaluate_every=50)
    configs = _flower_local.node_configs(given, 3, tmp_path / "states")
    app = tmp_path / "app"
    export(given.toml(), app, 3)
    out = tmp_path / "run"
    name = str(configs["node-2"]["client"])
    with Runtime(tmp_path / "runtime", configs) as runtime:
        runtime.start()
        runtime.submit(app, out=str(out), nodes=3, timeout=TIMEOUT, wait=PATIENCE)
        wait_until(lambda: any(name in line["weights"] for line in written(out)), runtime)
        runtime.kill("node-2")  # while the second round, or the next, is under way
        killed = len(written(out))
        wait_until(lambda: any(name in line["dropped"] for line in written(out)[killed:]), runtime)
        before = set((tmp_path / "states" / name).rglob("*.safetensors"))

        def returned() -> bool:
            # Until the SuperLink has noticed that a node is gone, it refuses it, and it ends.
            if runtime.ended("node-2"):
                runtime.start_node("node-2")
            return name in written(out)[-1]["weights"]

        wait_until(returned, runtime)
        processes = list(runtime.processes.values())
        lines = written(out)
    assert all(process.returncode is not None for process in processes)
    last = lines[-1]
    assert name in last["weights"] and sum(last["weights"].values()) == pytest.approx(1)
    lost = next(line for line in lines[killed:] if name in line["dropped"])
    assert killed < lost["round"] < last["round"]
    assert (
        "no reply within 25 s" in lost["dropped"][name] or "Flower's error" in lost["dropped"][name]
    )
    assert name not in lost["weights"] and sum(lost["weights"].values()) == pytest.approx(1)
    # The state of the rounds before is still there, and the new one follows it.
    after = sorted((tmp_path / "states" / name).rglob("*.safetensors"))
    assert before and len({path.parent for path in [*before, *after]}) == 1
    assert int(after[-1].name[:8]) >= last["round"]


@pytest.mark.slow
def test_a_run_survives_the_superlink(tmp_path: Path) -> None:
    """Everything is killed after two rounds; --resume ends with the simulator's numbers."""
    given = experiment(rounds=4)
    list(rounds.run(job_from_experiment(given), out=tmp_path / "simulator"))
    folder = tmp_path / "run"
    configs = _flower_local.node_configs(given, 3, tmp_path / "run.flower" / "states")
    export(given.toml(), tmp_path / "run.flower" / "app", 3)
    with Runtime(tmp_path / "run.flower", configs) as runtime:
        runtime.start()
        runtime.submit(runtime.folder / "app", out=str(folder), nodes=3, timeout=60.0)
        wait_until(lambda: len(written(folder)) >= 2, runtime)
        runtime.kill("superlink")
    with pytest.raises(RunError, match="--resume"):
        _flower_local.run(given, folder, 3, False, 60.0, print)
    _flower_local.run(given, folder, 3, True, 60.0, print)
    flower, simulator = Record.read(folder), Record.read(tmp_path / "simulator")
    assert len(flower.rounds) == 4 and flower.finished
    for a, b in zip(flower.rounds, simulator.rounds, strict=True):
        assert a.weights == pytest.approx(b.weights, rel=1e-3) and a.dropped == {}
        assert a.personal == pytest.approx(b.personal, rel=1e-3, abs=1e-5)
    for name, value in simulator.model().items():
        close(flower.model()[name], value, rtol=1e-3, atol=1e-5)
