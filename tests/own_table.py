"""The table of docs/own.md: `python tests/own_table.py FOLDER` writes patients.csv and new.csv."""

import sys
from pathlib import Path

import numpy as np

HOSPITALS = ("Aachen", "Bonn", "Ulm")


def patients(count: int, seed: int) -> str:
    rng = np.random.default_rng(seed)
    lines = ["patient_id;hospital;age;creatinine;admitted;smoker;ward;died"]
    for i in range(count):
        age = 20 + 70 * rng.random()
        creatinine = rng.normal(1.0, 0.2) * (1 + (age > 60))
        died = age / 100 + creatinine + rng.normal(0, 0.2) > 2.4
        shown = "" if rng.random() < 0.1 else f"{age:.1f}".replace(".", ",")
        row = [
            f"P{10000 + 7 * i}",
            HOSPITALS[int(rng.integers(3))],
            shown,
            f"{creatinine:.2f}".replace(".", ","),
            f"{1 + i % 28:02d}.{1 + i % 12:02d}.2024",
            ("yes", "no")[int(rng.integers(2))],
            ("surgery", "eyes", "heart")[int(rng.integers(3))],
            ("no", "yes")[int(died)],
        ]
        lines.append(";".join(row))
    return "\r\n".join(lines) + "\r\n"


def write(folder: Path) -> None:
    for name, count, seed in (("patients.csv", 600, 0), ("new.csv", 20, 1)):
        (folder / name).write_text(patients(count, seed), encoding="utf-8-sig", newline="")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
