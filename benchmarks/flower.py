"""What Flower costs per round, in one process: PYTHONPATH=src:tests python benchmarks/flower.py

Messages are Flower's own objects, carried by a Grid in this process: no sockets, no new process
per message. What a deployment adds to it is in docs/flower.md.
"""

import logging
import os
import tempfile
import time
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg

from commonweal import rounds
from commonweal.experiment import Experiment
from commonweal.flower import FairStrategy, make_client_app, run_on
from commonweal.job import job_from_experiment
from flower_helpers import LocalGrid, configs, mean_app

ROUNDS = 30
CLIENTS = 20


def strategies() -> None:
    """Flower's FedAvg against FairStrategy, on clients that do next to nothing."""
    start = ArrayRecord([np.zeros(3, np.float32)])
    with tempfile.TemporaryDirectory() as folder:
        chosen = {
            "Flower's FedAvg": FedAvg(),
            "FairStrategy('fedavg')": FairStrategy("fedavg", out=None),
            "FairStrategy('aaggff-s')": FairStrategy("aaggff-s", out=None),
            "... with its record": FairStrategy("aaggff-s", out=Path(folder) / "run"),
        }
        for name, strategy in chosen.items():
            grid = LocalGrid(mean_app(), configs(CLIENTS))
            began = time.perf_counter()
            strategy.start(grid=grid, initial_arrays=start, num_rounds=ROUNDS)
            spent = 1000 * (time.perf_counter() - began) / ROUNDS
            print(f"{name:26} {spent:7.1f} ms per round of {CLIENTS} clients")


def engines() -> None:
    """The same experiment in the simulator and on Flower's objects."""
    given = Experiment(
        dataset="digits",
        partition={"name": "dirichlet", "clients": CLIENTS},
        rule="aaggff-s",
        rounds=ROUNDS,
    )
    for mode in ("auto", "loop"):
        job = job_from_experiment(given.change(vectorize=mode))
        began = time.perf_counter()
        list(rounds.run(job))
        spent = 1000 * (time.perf_counter() - began) / ROUNDS
        print(f"{'simulator, ' + mode:26} {spent:7.1f} ms per round of {CLIENTS} clients")
    with tempfile.TemporaryDirectory() as folder:
        grid = LocalGrid(make_client_app(given), configs(CLIENTS))
        began = time.perf_counter()
        run_on(grid, given, Path(folder) / "run", nodes=CLIENTS)
        spent = 1000 * (time.perf_counter() - began) / ROUNDS
        print(f"{'FlowerEngine':26} {spent:7.1f} ms per round of {CLIENTS} clients")


if __name__ == "__main__":
    logging.getLogger("flwr").setLevel(logging.ERROR)
    print("load", os.getloadavg())
    strategies()
    engines()
