"""Real processes over the loopback, with TLS and node authentication."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'commonweal[flower]'")

from commonweal.config.experiment import Experiment
from commonweal.flower.app import open_node
from commonweal.flower.app_folder import write_app
from commonweal.flower.node import to_settings
from commonweal.jobs import rounds
from commonweal.jobs.job import job_from_experiment
from commonweal.record.record import Record
from flower_runtime import PATIENCE, NodeConfig, Runtime, node_configs, timeout
from flower_tables import patients, write
from flower_tables import table_experiment as own_experiment
from helpers import close
from run_helpers import as_documented, weights_of


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


def clinics(folder: Path, given: Experiment, faults: list[str]) -> dict[str, NodeConfig]:
    """The nodes' configurations: clients with files of their own, some of which fail."""
    configs: dict[str, NodeConfig] = {}
    for k, fault in enumerate(faults, start=1):
        name = f"node-{k}"
        file = write(folder / f"{name}.csv", patients(k % 2))
        config = {"client": f"clinic {k}", "data": str(file), "state-dir": str(folder / "states")}
        if fault:
            about = folder / f"{name}.json"
            about.write_text(json.dumps(to_settings(open_node(given, config).schema)))
            config |= {"fault": fault, "about": str(about)}
        configs[name] = config | {"seconds": timeout() + 2}
    return configs


def faulty_app(folder: Path, given: Experiment, nodes: int) -> Path:
    """An exported app whose clients have the fault that their configuration names."""
    package = write_app(given, folder, nodes)
    faulty = Path(__file__).with_name("faulty_app.py").read_text()
    (folder / package / "client_app.py").write_text(faulty)
    return folder


def test_a_deployment_ends_with_a_model_though_a_client_fails(tmp_path: Path) -> None:
    given = own_experiment("unknown to the server.csv", rounds=1)
    configs = clinics(tmp_path, given, ["", "raises"])
    app = faulty_app(tmp_path / "app", given, 2)
    with Runtime(tmp_path / "runtime", configs) as runtime:
        runtime.start()
        run = runtime.submit(app, out=str(tmp_path / "run"), nodes=2, timeout=PATIENCE)
        run.wait(2 * PATIENCE)
        processes = list(runtime.processes.values())
        log = runtime.log("run")
    assert all(process.returncode is not None for process in processes)
    record = Record.read(tmp_path / "run")
    assert record.finished, log[-3000:]
    (line,) = record.rounds
    assert line.weights == {"clinic 1": 1} and "the disk is full" in line.dropped["clinic 2"]


@pytest.mark.slow
def test_a_node_with_another_key_cannot_take_a_clients_name(tmp_path: Path) -> None:
    """Both nodes are registered and say that they are clinic 1: who comes first is believed."""
    given = own_experiment("unknown to the server.csv", rounds=1)
    configs = clinics(tmp_path, given, ["", "", ""])
    configs["node-3"] = configs["node-1"]
    write_app(given, tmp_path / "app", 2)
    with Runtime(tmp_path / "runtime", configs) as runtime:
        runtime.start()
        out = str(tmp_path / "run")
        run = runtime.submit(tmp_path / "app", out=out, nodes=2, wait=PATIENCE, timeout=PATIENCE)
        run.wait(2 * PATIENCE)
        log = runtime.log("run")
    (line,) = Record.read(tmp_path / "run").rounds
    assert set(line.weights) == {"clinic 1", "clinic 2"} and not line.dropped, log[-3000:]
    (refusal,) = [text for text in log.splitlines() if "cannot take part" in text]
    for name in ("node-1", "node-3"):
        path = tmp_path / "runtime" / "keys" / f"{name}.pub"
        printed = subprocess.run(["ssh-keygen", "-lf", path], capture_output=True, text=True)
        assert printed.stdout.split()[1] in refusal


@pytest.mark.slow
def test_faulty_clients_are_named_and_a_killed_one_too(tmp_path: Path) -> None:
    """Seven nodes: one raises, one sends NaN or wrong shapes, one lies, one is late, one dies."""
    given = own_experiment("unknown to the server.csv", rounds=50, evaluate_every=50)
    configs = clinics(tmp_path, given, ["", "", "", "raises", "broken", "lies", "sleeps"])
    app = faulty_app(tmp_path / "app", given, len(configs))
    out = tmp_path / "run"
    with Runtime(tmp_path / "runtime", configs) as runtime:
        runtime.start()
        runtime.submit(app, out=str(out), nodes=len(configs), timeout=timeout(), wait=PATIENCE)
        runtime.wait_until(lambda: any("clinic 3" in line["weights"] for line in written(out)))
        runtime.kill("node-3")
        killed = len(written(out))

        def all_named() -> bool:
            lines = written(out)[killed:]
            lost = any("clinic 3" in line["dropped"] and line["weights"] for line in lines)
            return lost and len(reasons_of(out)) == 5

        runtime.wait_until(all_named)
        lines = written(out)
    for line in lines:
        assert set(line["weights"]) <= {"clinic 1", "clinic 2", "clinic 3"}
        if line["weights"]:
            assert sum(line["weights"].values()) == pytest.approx(1)
    lost = next(line for line in lines[killed:] if "clinic 3" in line["dropped"])
    # Which of them is right depends on when Flower notices that the node is gone.
    right = (f"no reply within {timeout():g} s", "Flower's error 5", "its node is not connected")
    assert any(reason in lost["dropped"]["clinic 3"] for reason in right)


def reasons_of(folder: Path) -> set[str]:
    """The expected reasons for which faulty clients have been dropped so far."""
    expected = {
        "clinic 4": ["the disk is full"],
        "clinic 5": ["update is not finite", "shape (1, 7)"],
        "clinic 6": ["it reports [1000000] samples, but 32 when the run started"],
        "clinic 7": [f"no reply within {timeout():g} s"],
    }
    reasons = set()
    for line in written(folder):
        for client, words in expected.items():
            reasons |= {reason for reason in words if reason in line["dropped"].get(client, "")}
    return reasons


@pytest.mark.slow
def test_a_killed_node_comes_back_with_its_state(tmp_path: Path) -> None:
    given = experiment(rounds=50, evaluate_every=50)
    configs = node_configs(given, 3, tmp_path / "states")
    write_app(given, tmp_path / "app", 3)
    out = tmp_path / "run"
    name = str(configs["node-2"]["client"])
    with Runtime(tmp_path / "runtime", configs) as runtime:
        runtime.start()
        runtime.submit(tmp_path / "app", out=str(out), nodes=3, timeout=timeout(), wait=PATIENCE)
        runtime.wait_until(lambda: any(name in line["weights"] for line in written(out)))
        runtime.kill("node-2")  # while the second round, or the next, is under way
        killed = len(written(out))
        runtime.wait_until(lambda: any(name in line["dropped"] for line in written(out)[killed:]))
        before = set((tmp_path / "states" / name).rglob("*.safetensors"))

        def returned() -> bool:
            # Until the SuperLink has noticed that a node is gone, it refuses it, and it ends.
            if runtime.ended("node-2"):
                runtime.start_node("node-2")
            return name in written(out)[-1]["weights"]

        runtime.wait_until(returned)
        lines = written(out)
    last = lines[-1]
    assert name in last["weights"] and sum(last["weights"].values()) == pytest.approx(1)
    lost = next(line for line in lines[killed:] if name in line["dropped"])
    assert killed < lost["round"] < last["round"]
    assert name not in lost["weights"] and sum(lost["weights"].values()) == pytest.approx(1)
    # The state of the rounds before is still there, and the new one follows it.
    after = sorted((tmp_path / "states" / name).rglob("*.safetensors"))
    assert before and len({path.parent for path in [*before, *after]}) == 1
    assert max(path.name for path in after) > max(path.name for path in before)


@pytest.mark.slow
def test_a_run_survives_the_superlink(tmp_path: Path) -> None:
    """Everything is killed after two rounds; a resumed run ends with the simulator's numbers."""
    given = experiment(rounds=4)
    list(rounds.run(job_from_experiment(given), out=tmp_path / "simulator"))
    folder = tmp_path / "run"
    configs = node_configs(given, 3, tmp_path / "states")
    write_app(given, tmp_path / "app", 3)
    settings: dict[str, str | float] = {"out": str(folder), "nodes": 3, "wait": PATIENCE}
    settings["timeout"] = max(60.0, 2 * timeout())
    with Runtime(tmp_path / "first", configs) as runtime:
        runtime.start()
        runtime.submit(tmp_path / "app", **settings)
        runtime.wait_until(lambda: len(written(folder)) >= 2)
        runtime.kill("superlink")
    with Runtime(tmp_path / "second", configs, runtime.keys) as runtime:
        runtime.start()
        run = runtime.submit(tmp_path / "app", resume=True, **settings)
        run.wait(10 * PATIENCE)
    flower, simulator = Record.read(folder), Record.read(tmp_path / "simulator")
    assert len(flower.rounds) == 4 and flower.finished
    for a, b in zip(flower.rounds, simulator.rounds, strict=True):
        assert a.weights == pytest.approx(b.weights, rel=1e-3) and a.dropped == {}
        assert a.personal == pytest.approx(b.personal, rel=1e-3, abs=1e-5)
    for name, value in simulator.state_dict().items():
        close(flower.state_dict()[name], value, rtol=1e-3, atol=1e-5)
