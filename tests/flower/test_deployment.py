"""Real processes over the loopback, with TLS and node authentication: a SuperLink, 3 SuperNodes."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'commonweal[flower]'")

from commonweal.base.errors import RunError
from commonweal.config.experiment import Experiment
from commonweal.flower import local, member
from commonweal.flower.runtime import Runtime, export
from commonweal.jobs import rounds
from commonweal.jobs.job import job_from_experiment
from commonweal.record.store import Record
from flower_tables import patients, write
from flower_tables import table_experiment as own_experiment
from helpers import close
from run_helpers import as_documented, weights_of

PATIENCE = 300.0  # seconds for each step; a quiet machine needs far less


@cache
def timeout() -> float:
    """Seconds in which clients can answer here: Flower starts a Python process per message."""
    began = time.monotonic()
    importing = [sys.executable, "-c", "import commonweal.flower.engine"]
    started = [subprocess.Popen(importing) for _ in range(3)]
    assert [process.wait() for process in started] == [0, 0, 0]
    return round(min(300.0, 5 + 3 * (time.monotonic() - began)))


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
    lines = as_documented(folder) if (folder / "rounds.jsonl").exists() else []
    return [line | {"weights": weights_of(line)} for line in lines]


def wait_until(ready: Callable[[], object], runtime: Runtime) -> None:
    deadline = time.monotonic() + max(PATIENCE, 10 * timeout())
    while not ready():
        ended = runtime.processes["run"].poll() is not None
        if (ended and not ready()) or time.monotonic() > deadline:
            raise AssertionError(runtime.log("run")[-3000:] + runtime.log("superlink")[-2000:])
        time.sleep(0.1)


FAULTS = {"node-4": "raises", "node-5": "broken", "node-6": "lies", "node-7": "sleeps"}


def clinics_with_faults(folder: Path, given: Experiment) -> dict[str, dict[str, Any]]:
    """The nodes' configurations: clients with files of their own, of which the last four fail."""
    configs: dict[str, dict[str, Any]] = {}
    for k in range(7):
        name = f"node-{k + 1}"
        file = write(folder / f"{name}.csv", patients(k % 2))
        config: dict[str, Any] = {"client": f"clinic {k + 1}", "data": str(file)}
        configs[name] = config | {"state-dir": str(folder / "states")}
        if name in FAULTS:
            about = folder / f"{name}.json"
            about.write_text(json.dumps(member(given, configs[name]).about.values()))
            configs[name] |= {"fault": FAULTS[name], "seconds": timeout() + 2, "about": str(about)}
    return configs


def test_faulty_clients_are_named_and_a_killed_one_too(tmp_path: Path) -> None:
    """Seven nodes: one raises, one sends NaN or wrong shapes, one lies, one is late, one dies."""
    given = own_experiment("unknown to the server.csv", rounds=50, evaluate_every=50)
    configs = clinics_with_faults(tmp_path, given)
    app = tmp_path / "app"
    package = export(given.toml(), app, len(configs))
    faulty = Path(__file__).with_name("faulty_app.py").read_text()
    (app / package / "client_app.py").write_text(faulty)
    out = tmp_path / "run"
    with Runtime(tmp_path / "runtime", configs) as runtime:
        runtime.start()
        runtime.submit(app, out=str(out), nodes=len(configs), timeout=timeout(), wait=PATIENCE)
        wait_until(lambda: any("clinic 3" in line["weights"] for line in written(out)), runtime)
        runtime.kill("node-3")
        killed = len(written(out))

        def named() -> bool:
            lines = written(out)[killed:]
            lost = any("clinic 3" in line["dropped"] and line["weights"] for line in lines)
            return lost and len(said_of(out)) == 5

        wait_until(named, runtime)
        processes = list(runtime.processes.values())
        lines = written(out)
    assert all(process.returncode is not None for process in processes)
    for line in lines:
        assert set(line["weights"]) <= {"clinic 1", "clinic 2", "clinic 3"}
        if line["weights"]:
            assert sum(line["weights"].values()) == pytest.approx(1)
    lost = next(line for line in lines[killed:] if "clinic 3" in line["dropped"])
    assert f"no reply within {timeout():g} s" in lost["dropped"]["clinic 3"]


def said_of(folder: Path) -> dict[str, str]:
    """What has been said of the faulty clients that is true."""
    expected = {
        "clinic 4": ["the disk is full"],
        "clinic 5": ["update is not finite", "shape (1, 7)"],
        "clinic 6": ["it reports [1000000] rows, but said that it has 32"],
        "clinic 7": [f"no reply within {timeout():g} s"],
    }
    found = {}
    for line in written(folder):
        for client, words in expected.items():
            for each in words:
                if each in line["dropped"].get(client, ""):
                    found[f"{client}: {each}"] = line["dropped"][client]
    return found


@pytest.mark.slow
def test_a_killed_node_comes_back_with_its_state(tmp_path: Path) -> None:
    given = experiment(rounds=50, evaluate_every=50)
    configs = local.node_configs(given, 3, tmp_path / "states")
    app = tmp_path / "app"
    export(given.toml(), app, 3)
    out = tmp_path / "run"
    name = str(configs["node-2"]["client"])
    with Runtime(tmp_path / "runtime", configs) as runtime:
        runtime.start()
        runtime.submit(app, out=str(out), nodes=3, timeout=timeout(), wait=PATIENCE)
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
    said = lost["dropped"][name]
    assert f"no reply within {timeout():g} s" in said or "Flower's error" in said
    assert name not in lost["weights"] and sum(lost["weights"].values()) == pytest.approx(1)
    # The state of the rounds before is still there, and the new one follows it.
    after = sorted((tmp_path / "states" / name).rglob("*.safetensors"))
    assert before and len({path.parent for path in [*before, *after]}) == 1
    assert int(after[-1].name[:8]) >= last["round"]


@pytest.mark.slow
def test_a_run_survives_the_superlink(tmp_path: Path) -> None:
    """Everything is killed after two rounds; --resume ends with the simulator's numbers."""
    given = experiment(rounds=4)
    patient = max(60.0, 2 * timeout())
    list(rounds.run(job_from_experiment(given), out=tmp_path / "simulator"))
    folder = tmp_path / "run"
    configs = local.node_configs(given, 3, tmp_path / "run.flower" / "states")
    export(given.toml(), tmp_path / "run.flower" / "app", 3)
    with Runtime(tmp_path / "run.flower", configs) as runtime:
        runtime.start()
        runtime.submit(
            runtime.folder / "app", out=str(folder), nodes=3, timeout=patient, wait=PATIENCE
        )
        wait_until(lambda: len(written(folder)) >= 2, runtime)
        runtime.kill("superlink")
    with pytest.raises(RunError, match="--resume"):
        local.run(given, folder, 3, False, patient, print)
    local.run(given, folder, 3, True, patient, print)
    flower, simulator = Record.read(folder), Record.read(tmp_path / "simulator")
    assert len(flower.rounds) == 4 and flower.finished
    for a, b in zip(flower.rounds, simulator.rounds, strict=True):
        assert a.weights == pytest.approx(b.weights, rel=1e-3) and a.dropped == {}
        assert a.personal == pytest.approx(b.personal, rel=1e-3, abs=1e-5)
    for name, value in simulator.model().items():
        close(flower.model()[name], value, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_too_few_nodes_end_the_run_with_a_sentence(tmp_path: Path) -> None:
    given = experiment(rounds=2)
    configs = local.node_configs(given, 1, tmp_path / "states")
    export(given.toml(), tmp_path / "app", 2)
    with Runtime(tmp_path / "runtime", configs) as runtime:
        runtime.start()
        run = runtime.submit(tmp_path / "app", out=str(tmp_path / "run"), nodes=2, wait=5.0)
        run.wait(PATIENCE)
        said = runtime.log("run")
    assert "1 nodes are connected, but 2 are needed: none came within 5 s" in " ".join(said.split())
    assert not (tmp_path / "run" / "rounds.jsonl").exists()
