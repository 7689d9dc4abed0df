"""Rules on six very different clients, as in Flower's quickstart-pytorch, in the simulator.

Its CNN on MNIST, 6 clients with 720 samples each (a sixth for testing), Dirichlet 0.3, rounds of
one epoch, lr 0.1, momentum 0.9, batches of 32, means over three seeds:
`COMMONWEAL_DATA=FOLDER python benchmarks/few_clients.py`.
"""

import gzip
import os
from pathlib import Path

import numpy as np
import torch
from torch import nn

from commonweal import Federation, Task, run

SEEDS = (0, 1, 2)
CLIENTS = 6
SAMPLES = 720
RULES = ("fedavg", "aaggff-s", "adafed", "adafed(gamma=1)")
ROUNDS = (8, 16, 32)  # after which the models are scored


def net() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    layers += [nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)]
    return nn.Sequential(*layers)


def read(name: str, header: int) -> np.ndarray:
    path = Path(os.environ["COMMONWEAL_DATA"]) / "mnist" / name
    return np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=header)


def federation(seed: int) -> Federation:
    images = read("train-images-idx3-ubyte.gz", 16).reshape(-1, 1, 28, 28)[:20000]
    labels = read("train-labels-idx1-ubyte.gz", 8)[:20000].astype(np.int64)
    rng = np.random.default_rng(seed)
    pools = [list(rng.permutation(np.where(labels == digit)[0])) for digit in range(10)]
    rows: list[int] = []
    owners: list[str] = []
    for client in range(CLIENTS):
        counts = rng.multinomial(SAMPLES, rng.dirichlet([0.3] * 10))
        for digit, count in enumerate(counts):
            drawn = [pools[digit].pop() for _ in range(min(count, len(pools[digit])))]
            rows += drawn
            owners += [f"c{client}"] * len(drawn)
    x = images[rows].astype(np.float32) / 255 * 2 - 1
    return Federation.from_arrays(x, labels[rows], np.array(owners), test=1 / 6, seed=seed)


def scores(rule: str) -> np.ndarray:
    """The mean accuracy and the worst client's after some rounds (3, 2), as means over seeds."""
    results = []
    for seed in SEEDS:
        torch.manual_seed(seed)
        history = run(
            Task(net()),
            federation(seed),
            rule=rule,
            client={"name": "sgd", "lr": 0.1, "momentum": 0.9, "batch": 32, "epochs": 1},
            rounds=ROUNDS[-1],
            cohort="all",
            seed=seed,
        )
        done = [line.metrics for line in history if line.number in ROUNDS]
        results.append([[metrics["mean"], metrics["worst"]] for metrics in done])
    return np.asarray(np.mean(results, 0))


if __name__ == "__main__":
    torch.set_num_threads(1)
    head = [f"{rounds} rounds: mean | worst" for rounds in ROUNDS]
    print(f"| rule | {' | '.join(head)} |\n|---|{'--:|' * 2 * len(ROUNDS)}")
    for rule in RULES:
        cells = [f"{value:.3f}" for value in scores(rule).ravel()]
        print(f"| `{rule}` | {' | '.join(cells)} |", flush=True)
