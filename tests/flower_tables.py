"""Tables of clinics, for nodes that have a file of their own."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from commonweal.config.experiment import Experiment

Rows = list[dict[str, str]]
CLINICS = ("clinic a", "clinic/b", "c")
WARDS = (("heart", "eyes"), ("heart", "bones"), ("skin", "eyes", ""))
CLASSES = (("well", "ill"), ("well", "ill"), ("well", "dead"))


def patients(k: int, rows: int = 40) -> Rows:
    """A clinic's rows: a text, a truth, a date and two numbers; not all classes and levels."""
    rng = np.random.default_rng(k)
    found = []
    for _ in range(rows):
        died = int(rng.integers(2))
        day = f"{int(rng.integers(1, 29)):02d}.{int(rng.integers(1, 13)):02d}.2024"
        found.append(
            {
                "age": f"{rng.normal(50 + 10 * k + 5 * died, 10):.2f}",
                "creatinine": f"{rng.normal(1 + died, 0.3):.3f}",
                "smoker": "yes" if rng.random() < 0.4 else "no",
                "ward": str(rng.choice(WARDS[k])),
                "admitted": day if int(day[:2]) > 12 else f"13{day[2:]}",
                "state": CLASSES[k][died],
            }
        )
    return found


def write(path: Path, rows: Sequence[dict[str, str]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def table_experiment(path: str | Path, **parts: Any) -> Experiment:
    dataset = {"name": "table", "path": str(path), "label": "state"} | parts.pop("dataset", {})
    client = {"name": "ditto", "lr": 0.1, "batch": 16}
    return Experiment(
        **{"dataset": dataset, "rule": "aaggff-s", "client": client, "rounds": 2, "seed": 3} | parts
    )
