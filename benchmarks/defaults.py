"""All rules with their defaults on five federations, as a table for docs/results.md.

Seeds are the outer loop: a seed in which the time is up is left out, so that every rule has the
same seeds. Results are kept in a file, a line for each run, and not computed again. Differences to
FedAvg are paired by seed; * marks those whose p value of a paired t test, corrected by Holm over
all rules of a federation, is below 0.05. "weight and loss" is the correlation of weights and losses
over the clients of a round, as a mean over rounds and seeds: what a rule favours.

    COMMONWEAL_DATA=... python benchmarks/defaults.py --seeds 10 --minutes 60 --kept defaults.jsonl

`benchmarks/recorded/defaults.jsonl` has the runs of docs/results.md.
"""

import argparse
import json
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import ttest_rel

from commonweal.config import catalog
from commonweal.config.experiment import Experiment
from commonweal.data.federation import Federation
from commonweal.jobs.job import build_dataset, job_from_experiment
from commonweal.jobs.rounds import Round, run

Array = npt.NDArray[np.float64]


class Cell(NamedTuple):
    """A run."""

    federation: str
    rule: str
    seed: int


# The mean and the worst score in per cent, and the correlation of weights and losses.
Scores = dict[Cell, tuple[float, float, float]]

COMBINATORS = ("excess", "grouped", "guarded")
MLP = {"name": "mlp", "hidden": [32]}
SETS: dict[str, dict[str, Any]] = {
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
    """The metric of those worst off: the worst 10 % where there are many clients."""
    return "worst_10" if "writers" in name else "worst"


def experiment(name: str, rule: str, seed: int) -> Experiment:
    settings = SETS[name]
    losses = {"name": "averaging", "loss": "always"}  # to correlate them with weights
    return Experiment(
        **settings, algorithm=losses, rule=rule, seed=seed, evaluate_every=settings["rounds"]
    )


def result(cell: Cell, rows: Federation) -> tuple[float, float, float]:
    """The scores after the last round, and what the rule favoured."""
    setting = experiment(*cell)
    done = list(run(job_from_experiment(setting, rows)))
    metrics = done[-1].metrics
    favoured = [value for each in done if not np.isnan(value := favour(each))]
    mean = float(np.mean(favoured)) if favoured else 0.0
    return 100 * metrics["mean"], 100 * metrics[tail(cell.federation)], mean


def favour(done: Round) -> float:
    """The correlation of weights and losses over a round's clients; NaN where all are equal."""
    losses = dict(zip(done.clients, done.losses, strict=True))
    weights = np.array(list(done.weights.values()))
    told = np.array([losses[name] for name in done.weights])
    if len(weights) < 2 or np.ptp(weights) < 1e-12 or np.ptp(told) == 0:
        return float("nan")
    return float(np.corrcoef(weights, told)[0, 1])


def read(path: Path) -> Scores:
    """The runs that are kept."""
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {Cell(*line["cell"]): tuple(line["scores"]) for line in lines}


def collect(seeds: int, minutes: float, names: list[str], path: Path) -> Scores:
    """Run what is not kept yet, until the time is up."""
    scores = read(path)
    start = time.monotonic()
    for seed in range(seeds):
        for name in names:
            missing = [rule for rule in rules() if Cell(name, rule, seed) not in scores]
            rows = build_dataset(experiment(name, "fedavg", seed)) if missing else None
            for rule in missing:
                if time.monotonic() - start > 60 * minutes:
                    return scores
                assert rows is not None
                cell = Cell(name, rule, seed)
                scores[cell] = result(cell, rows)
                line = {"cell": cell, "scores": scores[cell]}
                with path.open("a") as file:
                    file.write(json.dumps(line) + "\n")
        print(f"seed {seed}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    return scores


def complete(name: str, scores: Scores) -> dict[str, Array]:
    """Every rule's scores (seeds, 3), of the seeds that all rules have."""
    cells = [cell for cell in scores if cell.federation == name]
    names = dict.fromkeys(cell.rule for cell in cells)
    seeds = sorted({cell.seed for cell in cells})
    whole = [s for s in seeds if all(Cell(name, rule, s) in scores for rule in names)]
    return {rule: np.array([scores[Cell(name, rule, s)] for s in whole]) for rule in sorted(names)}


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


def table(name: str, values: dict[str, Array]) -> Iterator[str]:
    """The lines of one federation's table."""
    base = values["fedavg"]
    others = [rule for rule in values if rule != "fedavg"]
    marks = {}
    for column in (0, 1):
        found = p_values([values[rule][:, column] - base[:, column] for rule in others])
        marks[column] = {
            rule: "*" if p < 0.05 else "" for rule, p in zip(others, found, strict=True)
        }
    last = "worst 10 %" if tail(name) == "worst_10" else "worst client"
    yield f"**{name}** ({SETS[name]['rounds']} rounds, {len(base)} seeds)\n"
    yield f"| rule | mean | {last} | mean vs FedAvg | {last} vs FedAvg | weight and loss |"
    yield "|---|--:|--:|--:|--:|--:|"
    mean, worst, favoured = base.mean(0)
    yield f"| fedavg | {mean:.1f} | {worst:.1f} | | | {favoured:+.2f} |"
    for rule in others:
        mean, worst, favoured = values[rule].mean(0)
        change = (values[rule] - base).mean(0)
        yield (
            f"| {rule} | {mean:.1f} | {worst:.1f} | {change[0]:+.1f}{marks[0][rule]} "
            f"| {change[1]:+.1f}{marks[1][rule]} | {favoured:+.2f} |"
        )
    yield ""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--sets", nargs="*", default=list(SETS), choices=list(SETS))
    parser.add_argument("--kept", type=Path, default=Path("defaults.jsonl"))
    given = parser.parse_args()
    scores = collect(given.seeds, given.minutes, given.sets, given.kept)
    for name in given.sets:
        values = complete(name, scores)
        if len(values["fedavg"]):
            print("\n".join(table(name, values)))


if __name__ == "__main__":
    main()
