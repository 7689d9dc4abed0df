"""The thesis' personal tables on MNIST (Hahn, ch. II): who is served how well by a model of its own.

    python benchmarks/personal.py table --clients 50 --rounds 40     # Table 2.3, MNIST column
    python benchmarks/personal.py noise --noise pair --rate 0.1      # Table 2.6, MNIST columns
    python benchmarks/personal.py memory --clients 10000             # resident memory of a large store
    python benchmarks/personal.py speed                              # processor time of a step, by method

Protocol of the thesis: TwoNN, 5 clients a round, B 10, lr 0.01 falling by 1 % a round, momentum 0.9, weight decay 1e-4,
80/20 split of each client's rows. Pathological: rows sorted by label, 2K shards, client i holds shards i and i + K.
Methods' own parameters are those printed; published figures stand beside ours.
"""

import argparse
import gzip
import itertools
import os
import resource
import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from commonweal import catalog, personal, randomness, report
from commonweal.algorithm import Averaging
from commonweal.federation import Federation
from commonweal.local import many, plan, visit
from commonweal.models.mlp import mlp
from commonweal.noise import Pair, Symmetric
from commonweal.partition import Dirichlet
from commonweal.rules.fedavg import FedAvg
from commonweal.run import given, run
from commonweal.server import SGD
from commonweal.task import Task

DATA = Path(os.environ.get("COMMONWEAL_DATA", ".")) / "mnist"
# Table 2.3, MNIST, K = 50 / 100 / 500 (accuracy in per cent; SuPerFed at each client's best m on its test rows).
PUBLISHED = {
    "sgd": {50: 95.69, 100: 89.78, 500: 96.04},
    "fedprox": {50: 95.13, 100: 93.25, 500: 96.50},
    "scaffold": {50: 95.50, 100: 90.58, 500: 96.60},
    "lg-fedavg": {50: 98.21, 100: 97.52, 500: 96.05},
    "fedper": {50: 99.23, 100: 99.14, 500: 98.67},
    "apfl": {50: 99.40, 100: 99.19, 500: 98.98},
    "pfedme": {50: 81.10, 100: 82.48, 500: 81.96},
    "ditto": {50: 97.07, 100: 97.13, 500: 97.20},
    "fedrep": {50: 99.11, 100: 99.04, 500: 97.94},
    "superfed-mm": {50: 99.45, 100: 99.38, 500: 99.24},
    "superfed-lm": {50: 99.48, 100: 99.31, 500: 98.83},
}
# Table 2.6, MNIST, K = 100, Dirichlet 10: ECE, MCE, accuracy.
NOISY = {
    ("pair", 0.1): {
        "sgd": (0.17, 0.58, 82.40),
        "fedprox": (0.17, 0.58, 82.05),
        "scaffold": (0.16, 0.58, 60.86),
        "lg-fedavg": (0.23, 0.66, 73.65),
        "fedper": (0.17, 0.57, 82.43),
        "apfl": (0.18, 0.60, 80.18),
        "pfedme": (0.23, 0.66, 72.05),
        "ditto": (0.22, 0.66, 72.39),
        "fedrep": (0.20, 0.62, 77.95),
        "superfed-mm": (0.16, 0.53, 83.67),
        "superfed-lm": (0.14, 0.49, 84.78),
    },
    ("symmetric", 0.6): {
        "sgd": (0.42, 0.75, 49.52),
        "fedprox": (0.42, 0.74, 49.98),
        "scaffold": (0.44, 0.73, 51.46),
        "lg-fedavg": (0.45, 0.75, 47.79),
        "fedper": (0.40, 0.73, 52.41),
        "apfl": (0.40, 0.79, 52.15),
        "pfedme": (0.44, 0.76, 45.79),
        "ditto": (0.41, 0.77, 45.11),
        "fedrep": (0.43, 0.74, 51.30),
        "superfed-mm": (0.30, 0.69, 56.07),
        "superfed-lm": (0.32, 0.72, 54.69),
    },
}


def mnist() -> tuple[np.ndarray, np.ndarray]:
    """The 60,000 training images and labels: the thesis' clients share these, 960 training rows each at K = 50."""
    with gzip.open(DATA / "train-images-idx3-ubyte.gz") as images, gzip.open(DATA / "train-labels-idx1-ubyte.gz") as y:
        return (
            np.frombuffer(images.read(), np.uint8, offset=16).reshape(-1, 1, 28, 28).copy(),
            np.frombuffer(y.read(), np.uint8, offset=8).astype(np.int64),
        )


def pathological(y: np.ndarray, clients: int) -> np.ndarray:
    """Each row's client: 2K shards of rows sorted by label, shards i and i + K to client i, as in the authors' code."""
    owner = np.empty(len(y), dtype=np.int64)
    for shard, rows in enumerate(np.array_split(np.argsort(y, kind="stable"), 2 * clients)):
        owner[rows] = shard % clients
    return owner


def federation(owner: np.ndarray, x: np.ndarray, y: np.ndarray) -> Federation:
    return Federation.from_arrays(x, y, [f"{k:05d}" for k in owner], test=0.2)


def task(seed: int) -> Task:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Task(mlp((1, 28, 28), 10))


def client(name: str, epochs: int) -> Any:
    own = {
        "fedrep": {"epochs": 1, "head_epochs": epochs},
        "pfedme": {"inner": 3, "inner_lr": 0.01, "lam": 15.0},
        "ditto": {"lam": 1.0},
    }
    common = {"epochs": epochs, "batch": 10, "lr": 0.01, "momentum": 0.9, "weight_decay": 1e-4, "decay": 0.99}
    return catalog.build("clients", {"name": name, **common, **own.get(name, {})})


def finished(f: Federation, name: str, epochs: int, **how: Any) -> tuple[Any, Any, float]:
    """The job and the last round of a run, and the minutes it took."""
    begun = time.perf_counter()
    parts = {"rule": "fedavg", "client": client(name, epochs), "server": "sgd"}
    job = given(task(how["seed"]), f, **parts, evaluate_every=how["rounds"], **how)
    done = deque(run(job), maxlen=1)[0]
    return job, done, (time.perf_counter() - begun) / 60


def table(a: argparse.Namespace) -> None:
    x, y = mnist()
    f = federation(pathological(y, a.clients), x, y)
    shortened = "as in the thesis" if (a.rounds, a.epochs) == (500, 10) else "the thesis: T 500, E 10"
    print(f"MNIST, pathological, K {a.clients}, T {a.rounds}, E {a.epochs} ({shortened}), seed {a.seed}")
    print(f"{int(f.train.sizes[0])} training rows a client; accuracy over clients in %: mean (std)\n")
    print("| method | published | global model | personal model | visits | minutes |\n|---|--:|--:|--:|--:|--:|")
    for name in a.methods or PUBLISHED:
        job, done, minutes = finished(f, name, a.epochs, rounds=a.rounds, cohort=5, seed=a.seed)
        shared, own = (spread(e) for e in (done.evaluation, done.personal))
        seen = len(job.simulator.kept) or len({i for t in range(a.rounds) for i in job.cohort_of(t + 1).tolist()})
        published = PUBLISHED[name].get(a.clients, float("nan"))
        print(f"| {name} | {published:.2f} | {shared} | {own} | {seen} of {a.clients} | {minutes:.1f} |", flush=True)
        if hasattr(job.algorithm.local, "ends"):
            curve = personal.curve(job, done.server)
            along = " ".join(f"{100 * v:.2f}" for v in curve.scores.mean(0).tolist())
            print(f"|   | | {choices(curve)} | m = 0, 0.1, ..., 1: {along} | | |", flush=True)
            if a.out:
                report.draw_curve(a.out / f"curve-{name}-{a.clients}.svg", curve, "accuracy")


def choices(curve: personal.Curve) -> str:
    """The mean accuracy by how the point between the shared model and the client's own is chosen."""
    return "; ".join(f"{label} {100 * v.mean():.2f}" for label, v in curve.chosen().items())


def spread(evaluation: tuple[Tensor, Tensor] | None) -> str:
    return "-" if evaluation is None else f"{100 * evaluation[1].mean():.2f} ({100 * evaluation[1].std():.2f})"


def noise(a: argparse.Namespace) -> None:
    x, y = mnist()
    f = federation(Dirichlet(a.clients, 10.0)(y, a.seed), x, y)
    flip: Any = Pair(a.rate) if a.noise == "pair" else Symmetric(a.rate)
    labels = [torch.from_numpy(flip(rows.y.numpy(), 10, a.seed + k)) for k, rows in enumerate((f.train, f.test))]
    train, wrong = replace(f.train, y=labels[0]), replace(f.test, y=labels[1])
    f = replace(f, train=train)
    print(f"MNIST, Dirichlet 10, {a.noise} {a.rate}, K {a.clients}, T {a.rounds} (thesis 500), E {a.epochs} (10)")
    print("ECE / MCE / accuracy by test labels as they are; by test labels with the same noise, as the authors' code\n")
    print("| method | published | global | personal | global, noisy test | personal, noisy test | minutes |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for name in a.methods or PUBLISHED:
        job, done, minutes = finished(f, name, a.epochs, rounds=a.rounds, cohort=5, seed=a.seed)
        cells = []
        for rows, own in itertools.product((f.test, wrong), (False, True)):
            if own and done.personal is None:
                cells.append("-")
                continue
            kinds = ("ece", "mce", "accuracy")
            ece, mce, right = (personal.scored(job, done.server, kind, own, rows)[1].mean() for kind in kinds)
            cells.append(f"{ece:.2f} / {mce:.2f} / {100 * right:.2f}")
        theirs = " / ".join(f"{v:.2f}" for v in NOISY.get((a.noise, a.rate), {}).get(name, ())) or "-"
        print(f"| {name} | {theirs} | {' | '.join(cells)} | {minutes:.1f} |", flush=True)
        if hasattr(job.algorithm.local, "ends"):
            print(f"|   | | {choices(personal.curve(job, done.server))} | | | | |", flush=True)


def memory(a: argparse.Namespace) -> None:
    """Every client takes part once and keeps a model of its own; then all are judged by theirs."""
    x, y = mnist()
    if a.model == "cnn":  # TwoCNN, 1.66 M parameters
        layers = [nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5, padding=2)]
        layers += [nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 10)]
        t = Task(nn.Sequential(*layers))
    else:
        t = task(0)
    f = federation(np.arange(len(y)) % a.clients, x, y)
    parts = {"rule": "fedavg", "client": {"name": "ditto", "steps": 1, "batch": 2}, "server": "sgd"}
    rounds = -(-a.clients // 20)
    job = given(t, f, **parts, rounds=rounds, cohort=20, seed=0, evaluate_every=rounds)
    object.__setattr__(job, "cohort_of", lambda n: torch.arange(a.clients)[20 * (n - 1) : 20 * n])
    begun = time.perf_counter()
    done = deque(run(job, out=a.out / f"memory-{a.model}-{a.clients}" if a.out else None), maxlen=1)[0]
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    kept = sum(v.numel() * v.element_size() for v in job.simulator.kept[0].values()) * len(job.simulator.kept) / 1e9
    print(f"{a.model}, {t.size} parameters, {a.clients} clients, who keep {kept:.2f} GB")
    print(f"peak resident memory {rss:.2f} GB")
    print(f"{time.perf_counter() - begun:.0f} s, judging all {done.seconds['evaluate']:.0f} s of it", flush=True)


def speed(a: argparse.Namespace) -> None:
    """Processor time of a step of five clients together, and as a multiple of that of sgd."""
    x, y = mnist()
    f, t, ids = federation(pathological(y, 50), x, y), task(0), torch.arange(5)
    streams = [randomness.stream(0, 2, i, randomness.TRAIN) for i in range(5)]
    base = 0.0
    for name in ["sgd", *(n for n in PUBLISHED if n != "sgd")]:
        local = replace(client(name, 1), **({"begin": 0.0} if name.startswith("superfed") else {}))
        algorithm = Averaging(FedAvg(), local, SGD())
        seen = algorithm.ask(algorithm.init(t, 50) | {"round": torch.tensor(2)})
        kept = {n: torch.stack([v] * 5) for n, v in local.keep(t, 1).items()}
        planned = plan(local, t, f.train, ids, streams)
        planned = replace(planned, steps=np.minimum(planned.steps, 60))
        times = []
        for _ in range(3):
            begun = time.process_time()
            visit(local, t, seen, kept, f.train, planned, many)
            times.append((time.process_time() - begun) / 60 * 1e3)
        base = base or min(times)
        print(f"{name}: {min(times):.1f} ms a step, {min(times) / base:.1f} times sgd's", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["table", "noise", "memory", "speed"])
    for key, default in {"clients": 50, "rounds": 40, "epochs": 10, "seed": 0, "rate": 0.1}.items():
        parser.add_argument(f"--{key}", type=type(default), default=default)
    parser.add_argument("--noise", choices=["pair", "symmetric"], default="pair")
    parser.add_argument("--model", choices=["mlp", "cnn"], default="mlp")
    parser.add_argument("--methods", nargs="*")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    {"table": table, "noise": noise, "memory": memory, "speed": speed}[arguments.what](arguments)
