"""Who is better off than with local training: methods on natural federations.

Every client's score under a method is compared with that of its local model, on the same test
samples of the same seed. "Worse off" counts client-seeds that lose more than 5 points (regression:
10 % of the error). The noise floor is local training with another seed: what a client would lose or
gain by chance. blend's constants were fixed on vowels, Heart and Berka with other seeds.

    COMMONWEAL_DATA=... python benchmarks/better_off.py --seeds 5 > table.md
"""

import argparse
import csv
import gzip
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from commonweal.config.experiment import Experiment
from commonweal.datasets._files import find
from commonweal.jobs.rounds import run

Settings = dict[str, object]

FIXED_ON = ("vowels", "Heart", "Berka")  # federations on which blend's constants were chosen
MLP = {"name": "mlp", "hidden": [32]}
DIGITS = {"name": "dirichlet", "clients": 20}
METHODS: dict[str, Settings] = {
    "FedAvg": {},
    "AAggFF-S": {"rule": "aaggff-s"},
    "AdaFed": {"rule": "adafed"},
    "fine-tune": {"client": "fine-tune"},
    "Ditto": {"client": "ditto"},
    "APFL": {"client": "apfl"},
    "SuPerFed-MM": {"client": "superfed-mm"},
    "blend": {"client": "blend", "validation": 0.2},
}


def federations(folder: Path) -> dict[str, Settings]:
    """The datasets, by name; those whose files are missing are left out."""
    tables: dict[str, Settings] = {
        "students, 17 courses": {"dataset": {"name": "students"}},
        "vowels": {"dataset": {"name": "vowel", "test": 0.4}},
        "digits, alpha 0.1": {"dataset": "digits", "partition": DIGITS | {"alpha": 0.1}},
        "digits, alpha 1": {"dataset": "digits", "partition": DIGITS | {"alpha": 1.0}},
        "Heart": {"dataset": "heart", "score": "accuracy"},
        "Berka": {"dataset": {"name": "berka", "test": 0.4}, "score": "accuracy"},
        "spoken digits, 6 speakers": {
            "dataset": {"name": "fsdd", "features": "spectra", "test": 0.8}
        },
        "digits, 30 writers": {"dataset": {"name": "mnist-writers", "clients": 30, "test": 0.8}},
    }
    stroke = _stroke(folder / "stroke.csv")
    if stroke is not None:
        path = {"name": "table", "path": str(stroke), "label": "outcome", "test": 0.4}
        tables["stroke trial, countries"] = {"dataset": path | {"client": "country"}}
    adult = _adult(folder / "adult.csv")
    if adult is not None:
        path = {"name": "table", "path": str(adult), "label": "income", "client": "country"}
        tables["Adult, countries of birth"] = {"dataset": path | {"test": 0.4}}
        path = {"name": "table", "path": str(adult), "label": "hours", "client": "country"}
        tables["Adult, hours of work"] = {
            "dataset": path | {"test": 0.4, "drop": ["income"], "task": "values"},
            "score": "mae",
        }
    return tables


def _stroke(path: Path) -> Path | None:
    """The International Stroke Trial: what is known at randomisation, and the outcome."""
    source = find("ist", "ist.csv.gz", None)
    if source is None:
        return None
    with gzip.open(source, "rt", encoding="latin-1") as file:
        patients = list(csv.DictReader(file))
    known = [name for name in patients[0] if name.startswith("R") and name != "RDATE"]
    known += ["SEX", "AGE", "STYPE", "HOURLOCAL", "DAYLOCAL"]
    lines = []
    for patient in patients:
        if patient["OCCODE"] in ("1", "2", "3", "4"):
            outcome = "dead or dependent" if patient["OCCODE"] in ("1", "2") else "independent"
            lines.append([patient["COUNTRY"], outcome, *(patient[name] for name in known)])
    return _written(path, ["country", "outcome", *known], lines, at_least=20)


def _adult(path: Path) -> Path | None:
    """The census, by country of birth without the United States."""
    source = find("adult", "adult.data.gz", None)
    if source is None:
        return None
    names = ["age", "workclass", "weight", "education", "years", "marital", "occupation"]
    names += ["relationship", "race", "sex", "gain", "loss", "hours", "country", "income"]
    with gzip.open(source, "rt") as file:
        people = [row for row in csv.reader(file, skipinitialspace=True) if len(row) == 15]
    abroad = [row for row in people if row[13] not in ("United-States", "?")]
    return _written(path, names, abroad, at_least=30, client=13)


def _written(
    path: Path, header: list[str], lines: list[list[str]], at_least: int, client: int = 0
) -> Path:
    """Write a table of the clients that have enough samples."""
    counts: dict[str, int] = {}
    for line in lines:
        counts[line[client]] = counts.get(line[client], 0) + 1
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(line for line in lines if counts[line[client]] >= at_least)
    return path


def scores(settings: Settings, seed: int, rounds: int, split: int) -> tuple[np.ndarray, bool]:
    """Every client's score by what it uses (NaN without one), and whether lower is better."""
    client = {"name": settings.get("client", "sgd"), "batch": 10, "lr": 0.1, "clip": 1.0}
    values = settings | {"client": client, "model": MLP, "rounds": rounds, "seed": seed}
    data = values["dataset"]
    named = {"name": data} if isinstance(data, str) else dict(data)  # type: ignore[call-overload]
    values |= {"dataset": named | {"seed": split}, "evaluate_every": rounds}
    *_, last = run(Experiment(**values))
    assert last.evaluation is not None
    evaluation = last.evaluation.personal or last.evaluation
    found = torch.full_like(evaluation.score, torch.nan)
    found[last.evaluation.scored] = evaluation.score[last.evaluation.scored]
    return found.double().numpy(), last.job.task.score == "mae"


def gains(local: np.ndarray, score: np.ndarray, lower: bool) -> np.ndarray:
    """Every client's gain over local training, in points or, for errors, in per cent."""
    change = (local - score) / local if lower else score - local
    gained: np.ndarray = 100 * change
    return gained


def row(settings: Settings, methods: dict[str, Settings], seeds: range, rounds: int) -> list[str]:
    """The cells of a federation: the noise floor, then every method."""
    harm = 10.0 if settings.get("score") == "mae" else 5.0
    found: dict[str, list[np.ndarray]] = {name: [] for name in ("noise floor", *methods)}
    for seed in seeds:
        alone = settings | {"client": "alone"}
        local, lower = scores(alone, seed, rounds, seed)
        again, _ = scores(alone, seed + 1000, rounds, seed)
        found["noise floor"].append(gains(local, again, lower))
        for name, method in methods.items():
            score, _ = scores(settings | method, seed, rounds, seed)
            found[name].append(gains(local, score, lower))
    return [summary(values, harm) for values in found.values()]


def summary(values: list[np.ndarray], harm: float) -> str:
    """The mean gain with its standard error over seeds, and the share worse off."""
    means = np.array([np.nanmean(v) for v in values])
    error = means.std(ddof=1) / np.sqrt(len(means)) if len(means) > 1 else np.nan
    every = np.concatenate(values)
    every = every[~np.isnan(every)]
    return f"{means.mean():+.1f} ± {error:.1f} / {100 * np.mean(every < -harm):.0f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--only", default="", help="federations, by a part of their names")
    options = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(options.first, options.first + options.seeds)
    chosen = {name: METHODS[name] for name in options.methods.split(",")}
    print("| federation | " + " | ".join(["noise floor", *chosen]) + " |")
    print("|---|" + "--:|" * (1 + len(chosen)))
    with tempfile.TemporaryDirectory() as folder:
        for name, settings in federations(Path(folder)).items():
            if options.only and not any(part in name for part in options.only.split(",")):
                continue
            begun = time.process_time()
            cells = row(settings, chosen, seeds, options.rounds)
            mark = " (constants fixed on it)" if name in FIXED_ON else ""
            print(f"| {name}{mark} | " + " | ".join(cells) + " |", flush=True)
            print(f"{name}: {time.process_time() - begun:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
