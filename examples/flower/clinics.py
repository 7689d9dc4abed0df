"""Three clinics' tables, for docs/flower-experiment.md: python examples/flower/clinics.py FOLDER"""

import csv
import random
import sys
from pathlib import Path

WARDS = {"clinic-a": ["heart", "eyes"], "clinic-b": ["heart", "bones"], "clinic-c": ["skin"]}
SEVERE = {"clinic-a": "ill", "clinic-b": "ill", "clinic-c": "dead"}  # not all see all outcomes


def main(folder: Path) -> None:
    for k, (clinic, wards) in enumerate(WARDS.items()):
        rng = random.Random(k)
        rows = []
        for _ in range(60 + 40 * k):
            severe = rng.random() < 0.4
            age = rng.gauss(50 + 5 * k + 8 * severe, 10)
            creatinine = rng.gauss(1 + 0.8 * severe, 0.3)
            smoker = rng.choice(["no", "yes"])
            state = SEVERE[clinic] if severe else "well"
            rows.append([f"{age:.1f}", f"{creatinine:.2f}", smoker, rng.choice(wards), state])
        path = folder / clinic / "own.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["age", "creatinine", "smoker", "ward", "state"])
            writer.writerows(rows)
        print(f"{path}: {len(rows)} rows")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
