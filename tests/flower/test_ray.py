"""Simulation by Ray (`pip install 'commonweal[flower-sim]'`): FairStrategy works there too.

In a process of its own, since Ray starts others, which end with it.
"""

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'commonweal[flower]'")

from commonweal.config.experiment import read
from commonweal.flower.app_folder import write_app
from commonweal.record.record import Record
from flower_helpers import LocalGrid, configs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None,
        reason="Ray is not installed: pip install 'commonweal[flower-sim]'",
    ),
]

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation
from commonweal.flower import FairStrategy
from flower_helpers import distance, mean_app

def before(k, w, mine):
    return {"loss-before": distance(w, mine), "client": k}

app = ServerApp()

@app.main()
def main(grid, context):
    strategy = FairStrategy("aaggff-s", out=sys.argv[1], name_key="client", min_available_nodes=4)
    start = ArrayRecord([np.zeros(3, np.float32)])
    strategy.start(grid=grid, initial_arrays=start, num_rounds=3)

resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
run_simulation(app, mean_app(before), 4, backend_config=resources)
"""


def test_ray_gives_the_numbers_of_the_grid_in_this_process(tmp_path: Path) -> None:
    """Two runs on Ray, whose node ids differ, and one on the in-process Grid."""
    import numpy as np
    from flwr.app import ArrayRecord

    from commonweal.flower import FairStrategy
    from flower_helpers import distance, mean_app

    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "FLWR_TELEMETRY_ENABLED": "0"}
    for name in ("one", "two"):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", PROGRAM, str(tmp_path / name)],
            env=os.environ | quiet | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            timeout=540,
        )
        assert done.returncode == 0, done.stderr[-2000:]
    strategy = FairStrategy("aaggff-s", out=tmp_path / "here", name_key="client")
    app = mean_app(lambda k, w, mine: {"loss-before": distance(w, mine), "client": k})
    start = ArrayRecord([np.zeros(3, np.float32)])
    strategy.start(grid=LocalGrid(app, configs(4)), initial_arrays=start, num_rounds=3)
    one, two, here = (Record.read(tmp_path / name) for name in ("one", "two", "here"))
    for record in (one, two):
        assert record.finished and all(not line.dropped for line in record.rounds)
        for line, other in zip(record.rounds, here.rounds, strict=True):
            assert line.weights == pytest.approx(other.weights, rel=1e-6)
    models = [(record.folder / "model.safetensors").read_bytes() for record in (one, two, here)]
    assert models[0] == models[1] == models[2]
    facts = json.loads((one.folder / "run.json").read_text())
    assert facts["engine"] == "flower" and facts["clients"] == 4


def flwr_run(app: Path, nodes: int, home: Path) -> None:
    """Run an app by the command of the docs, and end the SuperLink that it leaves behind."""
    environment = os.environ | {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(ROOT / "src"),
    }
    command = ["flwr", "run", str(app), "local", "--stream"]
    try:
        done = subprocess.run(
            [*command, "--federation-config", f"num-supernodes={nodes}"],
            env=environment,
            cwd=home,
            capture_output=True,
            text=True,
            timeout=540,
        )
    finally:
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"FLWR_HOME={home}".encode() in (process / "environ").read_bytes():
                    os.kill(int(process.name), signal.SIGTERM)
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.skipif(sys.platform != "linux", reason="it looks for processes in /proc")
def test_flwr_run_works_from_a_checkout(tmp_path: Path) -> None:
    """The example and an exported experiment, without an index that has Commonweal."""
    shutil.copytree(ROOT / "examples" / "flower", tmp_path / "example")
    flwr_run(tmp_path / "example", 5, tmp_path)
    record = Record.read(tmp_path / "runs" / "flower")
    assert record.finished and set(record.rounds[-1].weights) == set("01234")
    write_app(read(ROOT / "examples" / "vowel.toml", ["rounds=2"]), tmp_path / "vowel-app", 3)
    flwr_run(tmp_path / "vowel-app", 3, tmp_path)
    (folder,) = (tmp_path / "runs").glob("flower-*-0")
    assert Record.read(folder).finished
