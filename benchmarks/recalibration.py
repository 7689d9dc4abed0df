"""How much recalibration at home corrects: the stroke trial's hospitals, over folds.

Every sample is tested once, by the model of its fold. A hospital's intercept error is the absolute
calibration intercept over all of its samples. `judge` compares the log loss, sample by sample.

    COMMONWEAL_DATA=... python benchmarks/recalibration.py --out runs/recalibration
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from better_off import table_federations
from commonweal.config.experiment import Experiment
from commonweal.record.record import Record
from commonweal.study import judge
from commonweal.study.compare import run_cells
from commonweal.study.plan import Cell
from commonweal.study.predictions import predictions
from commonweal.study.samples import differences
from commonweal.task import calibration
from commonweal.task.scores import find_score

METHODS: dict[str, dict[str, object]] = {
    "FedAvg": {"name": "sgd"},
    "recalibrate": {"name": "recalibrate"},
    "recalibrate, all samples": {"name": "recalibrate", "samples": "all"},
}
SHARE = 0.2  # of validation samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/recalibration"))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=5)
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    dataset = table_federations(chosen.out)["stroke trial, hospitals"]["dataset"]
    plan = []
    for name, method in METHODS.items():
        for seed in range(chosen.seeds):
            experiment = Experiment(
                dataset=dataset,
                model={"name": "mlp", "hidden": [32]},
                client={"batch": 10, "lr": 0.05, "clip": 1.0} | method,
                score=["log-loss", "auroc"],
                rounds=chosen.rounds,
                evaluate_every=chosen.rounds,
                validation=SHARE,
                seed=seed,
            )
            plan.append(Cell(name, experiment, chosen.out / name / f"seed-{seed}"))
    for done in run_cells(plan):
        print(f"\r{done}", end="")
    print()
    runs = {name: [cell.folder for cell in plan if cell.label == name] for name in METHODS}
    records = {name: [Record.read(folder) for folder in folders] for name, folders in runs.items()}
    local = records.pop("FedAvg")
    verdict = judge(differences(local, records))
    print("| | median intercept error | mean | median slope error | log loss | AUROC |")
    print("|---|--:|--:|--:|--:|--:|")
    for name, folders in runs.items():
        print(row(name, folders))
    for name, gain in verdict.methods.items():
        interval = f"{gain.low:.4f} to {gain.high:.4f}"
        print(f"{name}: {gain.says}, log loss lower by {gain.gain:.4f} ({interval})")


def row(name: str, folders: list[Path]) -> str:
    table = predictions(folders)
    _, owner = np.unique(table["client"].to_pylist(), return_inverse=True)
    order = np.argsort(owner, kind="stable")
    probability = table.columns[-1].to_numpy()[order]
    label = np.array(table["label"].to_pylist())[order]
    positive = table.column_names[-1].removeprefix("probability of ")
    margin = np.log(probability) - np.log1p(-probability)
    stats = torch.tensor(np.stack([margin, label == positive], 1))
    offsets = torch.tensor([0, *np.bincount(owner).cumsum()])
    error = calibration.intercept(stats, offsets).abs()
    slope = (calibration.slope(stats, offsets) - 1).abs()
    loss = find_score("log-loss")
    losses = loss.reduce(loss.row_stats(stats[:, :1], stats[:, 1].long()), offsets)
    # Of each fold, as folds have other models.
    records = [Record.read(folder).clients().evaluation for folder in folders]
    auroc = torch.stack([(own.personal or own).scores["auroc"] for own in records]).nanmean()
    numbers = [error.median(), error.mean(), slope.median(), losses.mean(), auroc]
    return f"| {name} | " + " | ".join(f"{float(value):.4f}" for value in numbers) + " |"


if __name__ == "__main__":
    main()
