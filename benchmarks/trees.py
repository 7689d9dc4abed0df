"""Boosting together, relative to scikit-learn's boosting on the pooled rows, on one thread.

Processor time per tree (the median of the rounds, losses of clients included), test scores of the
same trees, and what a client sends per tree. Turns alternate, and the ratio is one of medians.
"adult" has its 14 columns, categories as numbers, and 25 clients of unequal size; "one-hot" are its
categories as 102 columns, and two clients; "dense" are 30 columns of normal numbers, of which no
value is frequent.

    python benchmarks/trees.py [NAME ...] [--turns N] [--trees N] [--rows N] [--clients N]
"""

import argparse
import os

os.environ["OMP_NUM_THREADS"] = "1"  # before scikit-learn is imported

import resource
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from sklearn.ensemble import HistGradientBoostingClassifier

from commonweal.config.experiment import Experiment
from commonweal.data.federation import Federation
from commonweal.data.sources.files import locate, read_text
from commonweal.jobs.job import build_dataset
from commonweal.jobs.rounds import run
from commonweal.models.trees import trees
from commonweal.task.task import Task

LEAVES, DEPTH = 15, 6
NUMBERS = (0, 2, 4, 10, 11, 12)  # Adult's columns that are no categories
time.perf_counter = time.process_time  # of rounds, too: others may use the machine


def adult() -> Federation:
    """Adult's 32,561 training rows and 14 columns, of 25 clients."""
    lines = read_text(locate("adult", "adult", ["adult.data"], None)[0]).splitlines()
    table = np.array([line.split(", ") for line in lines if line])
    columns = [
        table[:, c].astype(np.float32)
        if c in NUMBERS
        else np.unique(table[:, c], return_inverse=True)[1]
        for c in range(14)
    ]
    rng = np.random.default_rng(0)
    owner = rng.choice(25, len(table), p=rng.dirichlet(np.ones(25)))
    x = np.column_stack(columns).astype(np.float32)
    return Federation.from_arrays(x, (table[:, 14] == ">50K").astype(np.int64), owner, test=0.1)


def dense(rows: int, clients: int) -> Federation:
    """Two classes that follow from an interaction of normal columns."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 30)).astype(np.float32)
    y = (x[:, 0] + x[:, 1] * x[:, 2] > 0).astype(np.int64)
    return Federation.from_arrays(x, y, rng.integers(0, clients, rows), test=0.1)


def together(f: Federation, count: int) -> tuple[float, float, float]:
    """Seconds per tree, the share of test rows that is right, and KB that a client sends."""
    shape = tuple(f.train.x.shape[1:])
    task = Task(trees(shape, f.outputs, count, LEAVES, DEPTH))
    seconds = []
    for done in run(task, f, algorithm="boosting", rounds=count, evaluate_every=count):
        seconds.append(done.seconds["train"])
    outputs = done.module()(f.test.x)
    classes = outputs.argmax(1) if f.outputs > 1 else (outputs[:, 0] > 0).long()
    right = float((classes == f.test.y).double().mean())
    return statistics.median(seconds), right, done.bytes["up"] / f.clients / 1e3


def pooled(f: Federation, count: int) -> tuple[float, float]:
    """The same of scikit-learn's on all rows; a tree takes what more of them take longer."""
    x, y = f.train.x.numpy(), f.train.y.numpy()
    seconds = []
    for number in (1, 1 + count):
        begin = time.perf_counter()
        model = HistGradientBoostingClassifier(
            max_iter=number, max_leaf_nodes=LEAVES, max_depth=DEPTH, early_stopping=False
        ).fit(x, y)
        seconds.append(time.perf_counter() - begin)
    model.set_params(max_iter=count).fit(x, y)
    right = float(model.score(f.test.x.numpy(), f.test.y.numpy()))
    return (seconds[1] - seconds[0]) / count, right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="students, adult, one-hot or dense")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--trees", type=int, default=40)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--clients", type=int, default=100)
    given = parser.parse_args()
    torch.set_num_threads(1)
    federations: dict[str, Callable[[], Federation]] = {
        "students": lambda: build_dataset(Experiment(dataset="students")),
        "adult": adult,
        "one-hot": lambda: build_dataset(Experiment(dataset="adult")),
        "dense": lambda: dense(given.rows, given.clients),
    }
    for name in given.names or federations:
        f = federations[name]()
        ours, theirs = [], []
        for _ in range(given.turns):
            ours.append(together(f, given.trees))
            theirs.append(pooled(f, given.trees))
        one, other = (statistics.median(turn[0] for turn in turns) for turns in (ours, theirs))
        rows, columns = f.train.x.shape
        print(
            f"{name:9s} {rows:8d} rows {columns:4d} columns {f.clients:4d} clients: "
            f"{1000 * one:.1f} ms per tree, {one / other:.1f} x scikit-learn; "
            f"{100 * ours[0][1]:.2f} % right, {100 * theirs[0][1]:.2f} %; "
            f"{ours[0][2]:.0f} KB per client"
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"memory at most {peak:.2f} GB; load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
