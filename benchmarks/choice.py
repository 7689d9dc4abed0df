"""How defaults were chosen: settings of some rules on validation rows, against FedAvg.

Seeds are 100, 101, ..., which the table of defaults does not use, and scores are of validation rows
(a fifth of the training rows): nothing is chosen on test rows. A cell is the change of the mean and
of the worst client (mnist-writers: worst tenth) in points, as a mean over seeds.

    COMMONWEAL_DATA=... nice -n 10 python benchmarks/choice.py --seeds 3 --kept choice.jsonl
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from commonweal.config.experiment import Experiment
from commonweal.jobs.rounds import run
from defaults import SETS, Cell, tail

FIRST_SEED = 100
FEDERATIONS: dict[str, dict[str, Any]] = SETS | {
    "synthetic": {
        "dataset": {"name": "synthetic", "clients": 20},
        "model": "logistic",
        "client": {"name": "sgd", "lr": 0.05, "batch": 20},
        "rounds": 40,
    }
}
CANDIDATES = (
    "adafed(gamma=1.0,scale=theorem)",
    "adafed(gamma=1.0,scale=largest)",
    "adafed(gamma=5.0,scale=largest)",
    "adafed(gamma=5.0,scale=mean)",
    "adafed(gamma=5.0,scale=mean,ridge=0.3)",
    "adafed(gamma=5.0,scale=mean,ridge=1.0)",
    "adafed(gamma=5.0,scale=mean,ridge=3.0)",
    "adafed(gamma=3.0,scale=mean,ridge=1.0)",
    "adafed(gamma=2.0,scale=mean,ridge=1.0)",
    "adafed(gamma=1.0,scale=mean,ridge=1.0)",
    "adafed(gamma=5.0,scale=bounded)",
    "fedmgda+(epsilon=0.1)",
    "fedmgda+(epsilon=0.05)",
    "fedmgda+(epsilon=0.02)",
    "fedmgda+(epsilon=0.01)",
    "directions(method=fairgrad)",
    "directions(method=fairgrad,alpha=2.0)",
    "directions(method=aligned-mtl)",
    "feddg-ga",
)

Found = dict[Cell, tuple[float, float]]  # the mean and the worst score in per cent


def score(cell: Cell) -> tuple[float, float]:
    settings = FEDERATIONS[cell.federation]
    experiment = Experiment(
        **settings,
        rule=cell.rule,
        seed=cell.seed,
        evaluate_every=settings["rounds"],
        validation=0.2,
    )
    found = list(run(experiment))[-1].validation
    return 100 * found["mean"], 100 * found[tail(cell.federation)]


def collect(cells: list[Cell], path: Path) -> Found:
    """Run what is not kept yet."""
    found: Found = {}
    if path.exists():
        for line in map(json.loads, path.read_text().splitlines()):
            found[Cell(*line["cell"])] = (line["scores"][0], line["scores"][1])
    for cell in cells:
        if cell not in found:
            found[cell] = score(cell)
            with path.open("a") as file:
                file.write(json.dumps({"cell": cell, "scores": found[cell]}) + "\n")
    return found


def change(found: Found, name: str, rule: str) -> str:
    """The change against FedAvg over the seeds that both have."""
    seeds = [s for f, r, s in found if (f, r) == (name, rule) and Cell(name, "fedavg", s) in found]
    if not seeds:
        return ""
    differences = [
        np.subtract(found[Cell(name, rule, s)], found[Cell(name, "fedavg", s)]) for s in seeds
    ]
    mean, worst = np.mean(differences, 0)
    return f"{mean:+.1f} / {worst:+.1f}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3, help="0: print what is kept")
    parser.add_argument("--kept", type=Path, default=Path("choice.jsonl"))
    given = parser.parse_args()
    seeds = range(FIRST_SEED, FIRST_SEED + given.seeds)
    rules = ("fedavg", *CANDIDATES)
    cells = [Cell(name, rule, seed) for seed in seeds for name in FEDERATIONS for rule in rules]
    found = collect(cells, given.kept)
    print(f"| rule | {' | '.join(FEDERATIONS)} |\n|---|{'--:|' * len(FEDERATIONS)}")
    for rule in CANDIDATES:
        print(f"| {rule} | {' | '.join(change(found, name, rule) for name in FEDERATIONS)} |")


if __name__ == "__main__":
    main()
