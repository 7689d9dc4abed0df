"""The thesis's personal tables on MNIST (Hahn, ch. II): how well their own models serve clients.

    python benchmarks/personal.py table --clients 50 --rounds 40     # Table 2.3, MNIST column
    python benchmarks/personal.py noise --noise pair --rate 0.1      # Table 2.6, MNIST columns
    python benchmarks/personal.py memory --clients 10000             # memory of many client states
    python benchmarks/personal.py speed                              # processor time per step

Protocol of the thesis: TwoNN, 5 clients per round, B 10, lr 0.01 falling by 1 % per round, momentum
0.9, weight decay 1e-4, 80/20 split of each client's rows. Pathological: rows sorted by label, 2K
shards, client i holds shards i and i + K. Methods' own parameters are those printed; published
figures stand beside ours. $COMMONWEAL_DATA holds mnist/.
"""

import argparse
import itertools
import resource
import time
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from commonweal.base import randomness
from commonweal.clients import Client
from commonweal.config import catalog
from commonweal.data.federation import Federation
from commonweal.data.population import Population
from commonweal.datasets import Noise
from commonweal.datasets.mnist import mnist
from commonweal.datasets.noise import Pair, Symmetric
from commonweal.datasets.partition import DirichletByClass
from commonweal.jobs.job import Job, job_from_parts
from commonweal.jobs.rounds import Round, run
from commonweal.protocols.averaging import Averaging
from commonweal.protocols.samplers.sampler import Sampler
from commonweal.protocols.servers import SGD
from commonweal.report import figures
from commonweal.rules import FedAvg
from commonweal.study.interpolation import Curve, curve, evaluate_score
from commonweal.task.task import Task
from commonweal.task.vectorize import vmap_clients
from commonweal.training.batches import schedule
from commonweal.training.evaluation import Evaluation
from commonweal.training.local import train_locally
from published.table import find, names

# Methods here, and what the thesis calls them.
METHODS = {
    "sgd": "FedAvg",
    "fedprox": "FedProx",
    "scaffold": "SCAFFOLD",
    "lg-fedavg": "LG-FedAvg",
    "fedper": "FedPer",
    "apfl": "APFL",
    "pfedme": "pFedMe",
    "ditto": "Ditto",
    "fedrep": "FedRep",
    "superfed-mm": "SuPerFed-MM",
    "superfed-lm": "SuPerFed-LM",
}
LINES = ("apfl", "superfed-mm", "superfed-lm")  # methods whose lines between models are shown


def published(table: str, method: str) -> dict[str, float]:
    """A method's published cells by column; empty where the thesis has no such table."""
    if table not in names():
        return {}
    found = find(table)
    (row,) = (row for row in found.rows if row.name == METHODS[method])
    return dict(zip(found.columns, row.published, strict=True))


# The thesis's protocol


def pathological(y: np.ndarray, clients: int) -> np.ndarray:
    """Each row's client: shards i and i + K to client i, as in the authors' code."""
    owner = np.empty(len(y), dtype=np.int64)
    for shard, rows in enumerate(np.array_split(np.argsort(y, kind="stable"), 2 * clients)):
        owner[rows] = shard % clients
    return owner


def federation(owner: np.ndarray) -> Federation:
    """The 60,000 training images: the thesis's clients share these."""
    pool = mnist(part="train")
    return Federation.from_arrays(pool.x, pool.y, [f"{k:05d}" for k in owner], test=0.2)


def pathological_federation(clients: int) -> Federation:
    return federation(pathological(mnist(part="train").y, clients))


def build_task(seed: int, model: str = "mlp") -> Task:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Task(catalog.build("models", model, shape=(1, 28, 28), outputs=10))


def build_client(name: str, epochs: int, **more: float) -> Client:
    own: dict[str, dict[str, Any]] = {
        "fedrep": {"epochs": 1, "head_epochs": epochs},
        "pfedme": {"inner": 3, "inner_lr": 0.01, "lam": 15.0},
        "ditto": {"lam": 1.0},
    }
    common = {
        "epochs": epochs,
        "batch": 10,
        "lr": 0.01,
        "momentum": 0.9,
        "weight_decay": 1e-4,
        "decay": 0.99,
    }
    part = {"name": name, **common, **own.get(name, {}), **more}
    client: Client = catalog.build("clients", part)
    return client


class Finished(NamedTuple):
    """A run: its last round, how many clients took part, and the minutes it took."""

    job: Job
    last: Round
    visited: int
    minutes: float

    @property
    def shared(self) -> Evaluation:
        assert self.last.evaluation is not None
        return self.last.evaluation


def finish(f: Federation, name: str, a: argparse.Namespace) -> Finished:
    begun = time.perf_counter()
    job = job_from_parts(
        build_task(a.seed),
        f,
        client=build_client(name, a.epochs),
        rounds=a.rounds,
        cohort=5,
        seed=a.seed,
        evaluate_every=a.rounds,
    )
    visited: set[str] = set()
    for last in run(job):
        visited |= set(last.clients)
    return Finished(job, last, len(visited), (time.perf_counter() - begun) / 60)


# Tables


def table(a: argparse.Namespace) -> None:
    f = pathological_federation(a.clients)
    same = (a.rounds, a.epochs) == (500, 10)
    protocol = "as in the thesis" if same else "the thesis: T 500, E 10"
    rounds = f"K {a.clients}, T {a.rounds}, E {a.epochs} ({protocol}), seed {a.seed}"
    print(f"MNIST, pathological, {rounds}")
    print(f"{int(f.train.sizes[0])} training rows per client")
    print("accuracy over clients in %: mean (std)\n")
    print("| method | published | global model | personal model | visited | minutes |")
    print("|---|--:|--:|--:|--:|--:|")
    for name in a.methods or METHODS:
        done = finish(f, name, a)
        theirs = published(f"thesis/mnist-{a.clients}", name).get("own model", float("nan"))
        models = f"{spread(done.shared)} | {spread(done.shared.personal)}"
        visited = f"{done.visited} of {a.clients}"
        line = f"| {name} | {theirs:.2f} | {models} | {visited} | {done.minutes:.1f} |"
        print(line, flush=True)
        if name in LINES:
            show_line(done, a.out and a.out / f"curve-{name}-{a.clients}.svg")


def show_line(done: Finished, path: Path | None) -> None:
    """The scores between the global and the personal models."""
    line = curve(done.job, done.last.state)
    along = " ".join(f"{100 * v:.2f}" for v in line.scores.mean(0).tolist())
    print(f"|   | | {choices(line)} | m = 0, 0.1, ..., 1: {along} | | |", flush=True)
    if path is not None:
        figures.save(figures.interpolation(line, "accuracy"), path)


def choices(line: Curve) -> str:
    """The mean accuracy by how the point between global and own model is chosen."""
    return "; ".join(f"{label} {100 * v.mean():.2f}" for label, v in line.chosen().items())


def spread(evaluation: Evaluation | None) -> str:
    if evaluation is None:
        return "-"
    scores = 100 * evaluation.score
    return f"{scores.mean():.2f} ({scores.std():.2f})"


def noise(a: argparse.Namespace) -> None:
    f = federation(DirichletByClass(a.clients, 10.0)(mnist(part="train").y, a.seed))
    kind: Noise = Pair(a.rate) if a.noise == "pair" else Symmetric(a.rate)
    labels = [
        torch.from_numpy(kind(rows.y.numpy(), 10, a.seed + k))
        for k, rows in enumerate((f.train, f.test))
    ]
    noisy_test = replace(f.test, y=labels[1])
    f = replace(f, train=replace(f.train, y=labels[0]))
    rounds = f"K {a.clients}, T {a.rounds} (thesis 500), E {a.epochs} (10)"
    print(f"MNIST, Dirichlet 10, {a.noise} {a.rate}, {rounds}")
    print("ECE / MCE / accuracy with right test labels, and with as noisy ones (authors' code)\n")
    print("| method | published | global | personal | global, noisy | personal, noisy | minutes |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for name in a.methods or METHODS:
        done = finish(f, name, a)
        cells = []
        for rows, own in itertools.product((f.test, noisy_test), (False, True)):
            if own and done.shared.personal is None:
                cells.append("-")
                continue
            kinds = ("ece", "mce", "accuracy")
            each = [evaluate_score(done.job, done.last.state, k, own, rows).score for k in kinds]
            ece, mce, right = (float(scores.mean()) for scores in each)
            cells.append(f"{ece:.2f} / {mce:.2f} / {100 * right:.2f}")
        columns = f"{a.noise} {a.rate:g}: "
        cited = published("thesis/noise-mnist", name).items()
        theirs = " / ".join(f"{v:.2f}" for c, v in cited if c.startswith(columns)) or "-"
        print(f"| {name} | {theirs} | {' | '.join(cells)} | {done.minutes:.1f} |", flush=True)
        if name in LINES:
            line = curve(done.job, done.last.state)
            print(f"|   | | {choices(line)} | | | | |", flush=True)


# Costs


@dataclass(frozen=True)
class InOrder(Sampler):
    """Every client once: the first `cohort` in the first round, then the next."""

    def __call__(
        self,
        round: int,
        population: Population,
        size: int,
        weights: Tensor | None,
        rng: np.random.Generator,
    ) -> Tensor:
        return torch.arange(population.clients)[size * (round - 1) : size * round]


def memory(a: argparse.Namespace) -> None:
    """Every client takes part once and keeps its own model; then all are evaluated by theirs."""
    t = build_task(0, a.model)
    f = federation(np.arange(60_000) % a.clients)
    rounds = -(-a.clients // 20)
    job = job_from_parts(
        t,
        f,
        client={"name": "ditto", "steps": 1, "batch": 2},
        sampler=InOrder(),
        rounds=rounds,
        cohort=20,
        evaluate_every=rounds,
    )
    begun = time.perf_counter()
    out = a.out and a.out / f"memory-{a.model}-{a.clients}"
    last = deque(run(job, out=out), maxlen=1)[0]
    seconds = time.perf_counter() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    assert job.local is not None
    states = sum(state.num_bytes for state in job.local.states.values()) / 1e9
    print(f"{a.model}, {t.size} parameters, {a.clients} clients with states of {states:.2f} GB")
    print(f"peak resident memory {peak:.2f} GB")
    print(f"{seconds:.0f} s, evaluation of all {last.seconds['evaluate']:.0f} s of it", flush=True)


def speed(a: argparse.Namespace) -> None:
    """Processor time per step of five clients together, and as a multiple of that of sgd."""
    f = pathological_federation(50)
    t = build_task(0)
    base = 0.0
    for name in ["sgd", *(n for n in METHODS if n != "sgd")]:
        if name.startswith("superfed"):
            client = build_client(name, 1, begin=0.0)  # both models are trained
        else:
            client = build_client(name, 1)
        milliseconds = min(milliseconds_per_step(t, f, client) for _ in range(3))
        base = base or milliseconds
        ratio = milliseconds / base
        print(f"{name}: {milliseconds:.1f} ms per step, {ratio:.1f} times sgd's", flush=True)


def milliseconds_per_step(t: Task, f: Federation, client: Client, steps: int = 60) -> float:
    algorithm = Averaging(t, FedAvg(), client, SGD())
    state = algorithm.init(f.population) | {"round": torch.tensor(2)}
    streams = [randomness.stream(0, 2, i, randomness.TRAIN) for i in range(5)]
    own = {name: torch.stack([value] * 5) for name, value in client.init_client(t, 1).items()}
    plan = schedule(client, t, f.train, torch.arange(5), streams)
    plan = replace(plan, steps=np.minimum(plan.steps, steps))
    begun = time.process_time()
    train_locally(client, t, algorithm.ask(state), own, f.train, plan, vmap_clients)
    return (time.process_time() - begun) / steps * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = {"table": table, "noise": noise, "memory": memory, "speed": speed}
    parser.add_argument("what", choices=list(commands))
    for key, default in {"clients": 50, "rounds": 40, "epochs": 10, "seed": 0, "rate": 0.1}.items():
        parser.add_argument(f"--{key}", type=type(default), default=default)
    parser.add_argument("--noise", choices=["pair", "symmetric"], default="pair")
    parser.add_argument("--model", choices=["mlp", "cnn"], default="mlp")
    parser.add_argument("--methods", nargs="*")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    commands[arguments.what](arguments)


if __name__ == "__main__":
    main()
