"""All rules with their defaults on five federations, as a table for docs/results.md.

Seeds are the outer loop: a seed in which the time is up is left out, so that every rule has the
same seeds. Differences to FedAvg are paired by seed; * marks those whose p value of a
paired t test, corrected by Holm over all rules of a federation, is below 0.05.

    COMMONWEAL_DATA=... python benchmarks/defaults.py --seeds 10 --minutes 60
"""

import argparse
import sys
import time
import warnings
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from scipy.stats import ttest_rel

from commonweal import catalog
from commonweal.experiment import Experiment
from commonweal.rounds import run
from commonweal.values import Values

Array = npt.NDArray[np.float64]
Scores = dict[tuple[str, str], list[tuple[float, float]]]  # set, rule -> (mean, worst) per seed

COMBINATORS = ("excess", "grouped", "guarded")
MLP = {"name": "mlp", "hidden": [32]}
SETS: dict[str, Values] = {
    "vowel": {
        "dataset": {"name": "vowel", "test": 0.5},
        "model": MLP,
        "client": {"name": "sgd", "lr": 0.2, "batch": 10},
        "rounds": 100,
    },
    "heart": {
        "dataset": "heart",
        "model": "logistic",
        "client": {"name": "sgd", "lr": 0.05, "batch": 20},
        "rounds": 50,
    },
    "digits, Dirichlet 0.1": {
        "dataset": "digits",
        "partition": {"name": "dirichlet-by-class", "alpha": 0.1, "clients": 20},
        "model": MLP,
        "client": {"name": "sgd", "lr": 0.1, "batch": 20},
        "rounds": 40,
    },
    "adult": {
        "dataset": "adult",
        "model": "logistic",
        "client": {"name": "sgd", "lr": 0.1, "batch": 100, "steps": 20},
        "rounds": 20,
    },
    "mnist-writers, 10 per round": {
        "dataset": "mnist-writers",
        "model": MLP,
        "client": {"name": "sgd", "lr": 0.1, "batch": 20},
        "rounds": 80,
        "cohort": 10,
    },
}


def rules() -> list[str]:
    names = [name for name in catalog.entries("rules") if name not in COMBINATORS]
    return ["fedavg", *(name for name in names if name != "fedavg")]


def tail(name: str) -> str:
    """The metric of those worst off: the worst tenth where there are many clients."""
    return "worst_10" if "writers" in name else "worst"


def result(name: str, rule: str, seed: int) -> tuple[float, float]:
    """The mean and the worst score in per cent after the last round."""
    settings = SETS[name]
    experiment = Experiment(**settings, rule=rule, seed=seed, evaluate_every=settings["rounds"])
    metrics = list(run(experiment))[-1].metrics
    return 100 * metrics["mean"], 100 * metrics[tail(name)]


def collect(seeds: int, minutes: float, names: list[str]) -> Scores:
    scores: Scores = {(name, rule): [] for name in names for rule in rules()}
    start = time.monotonic()
    for seed in range(seeds):
        done: dict[tuple[str, str], tuple[float, float]] = {}
        for name, rule in scores:
            done[name, rule] = result(name, rule, seed)
            if time.monotonic() - start > 60 * minutes:
                return scores
        for cell, found in done.items():
            scores[cell].append(found)
        print(f"seed {seed}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    return scores


def holm(p: list[float]) -> list[float]:
    """Holm's corrected p values."""
    corrected = [1.0] * len(p)
    largest = 0.0
    for rank, i in enumerate(np.argsort(p)):
        largest = max(largest, (len(p) - rank) * p[i])
        corrected[i] = min(1.0, largest)
    return corrected


def p_values(differences: list[Array]) -> list[float]:
    found = []
    for difference in differences:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # differences that are all alike have no t value
            p = ttest_rel(difference, np.zeros(len(difference))).pvalue
        found.append(1.0 if np.isnan(p) else float(p))
    return holm(found)


def table(name: str, scores: Scores) -> Iterator[str]:
    """The lines of one federation's table."""
    values = {rule: np.array(scores[name, rule]) for rule in rules()}
    base = values["fedavg"]
    others = rules()[1:]
    marks = {}
    for column in (0, 1):
        found = p_values([values[rule][:, column] - base[:, column] for rule in others])
        marks[column] = {
            rule: "*" if p < 0.05 else "" for rule, p in zip(others, found, strict=True)
        }
    last = "worst tenth" if tail(name) == "worst_10" else "worst client"
    yield f"**{name}** ({SETS[name]['rounds']} rounds, {len(base)} seeds)\n"
    yield f"| rule | mean | {last} | mean vs FedAvg | {last} vs FedAvg |\n|---|--:|--:|--:|--:|"
    yield f"| fedavg | {base[:, 0].mean():.1f} | {base[:, 1].mean():.1f} | | |"
    for rule in others:
        mean, worst = values[rule].mean(0)
        change = (values[rule] - base).mean(0)
        yield (
            f"| {rule} | {mean:.1f} | {worst:.1f} | {change[0]:+.1f}{marks[0][rule]} "
            f"| {change[1]:+.1f}{marks[1][rule]} |"
        )
    yield ""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--sets", nargs="*", default=list(SETS), choices=list(SETS))
    given = parser.parse_args()
    scores = collect(given.seeds, given.minutes, given.sets)
    for name in given.sets:
        print("\n".join(table(name, scores)))


if __name__ == "__main__":
    main()
