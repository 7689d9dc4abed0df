"""Who is better off than with local training: methods on natural federations.

Every client's score under a method is compared with that of its local models, on the same test
samples of the same seed. "Worse off" counts client-seeds that lose more than 5 points (regression:
10 % of the error). The noise floor is local training with another seed: what a client would lose or
gain by chance. scikit-learn's logistic (ridge) regression of each client is the reference for local
training. Constants were fixed on vowels, Heart and Berka with other seeds.

    COMMONWEAL_DATA=... python benchmarks/better_off.py --seeds 5 --out results.json > tables.md

What is done is in the file of results, and the runs of `choose` are in a folder next to it: after a
kill the same command continues.
"""

import argparse
import csv
import gzip
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from scipy import stats
from sklearn.linear_model import LogisticRegression, Ridge

from commonweal.analysis.choosing import choose
from commonweal.analysis.compare import run_cells
from commonweal.analysis.plan import Cell
from commonweal.base.files import write_file
from commonweal.config.experiment import Experiment
from commonweal.jobs.job import build_dataset
from commonweal.jobs.rounds import run
from commonweal.record.record import Record
from commonweal.sources.files import find

Settings = dict[str, object]
Seeds = dict[str, dict[str, list[float]]]  # seed -> method -> every client's score

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
EVERY = ("choose", "scikit-learn", "local", "local again", *METHODS)
WAYS = tuple(f"choose, {how}" for how in ("safe", "likely", "proved"))
CANDIDATES: dict[str, tuple[str, Settings]] = {  # trained on all samples, they are these methods
    "alone": ("local", {"client": "alone"}),
    "fedavg": ("FedAvg", {}),
    "aaggff-s": ("AAggFF-S", {"rule": "aaggff-s"}),
    "fine-tune": ("fine-tune", {"client": "fine-tune"}),
    "blend": ("blend", {"client": {"name": "blend", "rejoin": False}}),
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
        tables["stroke trial, countries"] = {
            "dataset": path | {"client": "country", "drop": ["hospital"]}
        }
        hospitals = folder / "hospitals.csv"
        by_hospital = path | {"path": str(hospitals), "client": "hospital", "drop": ["country"]}
        tables["stroke trial, hospitals"] = {"dataset": by_hospital}
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
            place = [patient["COUNTRY"], "hospital " + patient["HOSPNUM"]]
            lines.append([*place, outcome, *(patient[name] for name in known)])
    header = ["country", "hospital", "outcome", *known]
    _written(path.parent / "hospitals.csv", header, lines, at_least=100, client=1)
    return _written(path, header, lines, at_least=20)


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


def experiment(settings: Settings, seed: int, rounds: int, split: int) -> Experiment:
    """The experiment of a method on a federation.

    Args:
        settings: What differs from FedAvg with an MLP.
        seed: Of the training.
        rounds: Of the training.
        split: The seed of training and test samples.
    """
    given = settings.get("client", "sgd")
    method = given if isinstance(given, dict) else {"name": given}
    client = {"batch": 10, "lr": 0.1, "clip": 1.0} | method
    values = settings | {"client": client, "model": MLP, "rounds": rounds, "seed": seed}
    data = values["dataset"]
    named = {"name": data} if isinstance(data, str) else dict(data)  # type: ignore[call-overload]
    return Experiment(**values | {"dataset": named | {"seed": split}, "evaluate_every": rounds})


def scores(what: Experiment) -> np.ndarray:
    """Every client's score by what it uses; NaN without one."""
    *_, last = run(what)
    assert last.evaluation is not None
    evaluation = last.evaluation.personal or last.evaluation
    values = torch.full_like(evaluation.score, torch.nan)
    values[last.evaluation.scored] = evaluation.score[last.evaluation.scored]
    array: np.ndarray = values.double().numpy()
    return array


def reference(what: Experiment) -> tuple[np.ndarray, np.ndarray]:
    """Every client's score by scikit-learn, and its number of test samples."""
    federation = build_dataset(what)
    values = np.full(federation.clients, np.nan)
    for client in range(federation.clients):
        train, test = federation.train.client(client), federation.test.client(client)
        if len(test.y) == 0:
            continue
        x, y = train.x.flatten(1).numpy(), train.y.numpy()
        x_test, y_test = test.x.flatten(1).numpy(), test.y.numpy()
        if federation.classes is None:
            values[client] = np.abs(Ridge().fit(x, y).predict(x_test) - y_test).mean()
        elif len(np.unique(y)) == 1:
            values[client] = (y_test == y[0]).mean()
        else:
            model = LogisticRegression(max_iter=1000)
            values[client] = model.fit(x, y).score(x_test, y_test)
    return values, federation.test.sizes.numpy()


def chosen(settings: Settings, seed: int, rounds: int, folder: Path) -> dict[str, np.ndarray]:
    """Every client's score by the model that it chooses, and by each candidate on all samples."""
    cells = []
    for name, (_, method) in CANDIDATES.items():
        own = experiment(settings | method | {"validation": 0.2}, seed, rounds, seed)
        cells.append(Cell(name, own, folder / name / f"seed-{seed}"))
    for step in run_cells(cells):
        assert not step.failure, step.failure
    choice = choose(folder)
    names = Record.read(cells[0].folder).clients().names
    results = {f"choose, {how}": result for how, result in choice.by_how.items()}
    results |= {CANDIDATES[name][0]: result for name, result in choice.results.items()}
    values = {}
    for name, result in results.items():
        own_scores = dict(zip(result.clients, result.scores[0], strict=True))
        values[name] = np.array([own_scores.get(client, np.nan) for client in names])
    return values


def measure(
    settings: Settings, name: str, seed: int, rounds: int, folder: Path
) -> Iterator[tuple[str, list[float]]]:
    """Yield every client's score under a method, or under several with `choose`, with one seed."""
    alone = settings | {"client": "alone"}
    if name == "scikit-learn":
        values, samples = reference(experiment(alone, seed, rounds, seed))
        yield name, values.tolist()
        yield "samples", samples.tolist()
    elif name == "choose":
        for way, values in chosen(settings, seed, rounds, folder).items():
            yield way, values.tolist()
    elif name in METHODS:
        yield name, scores(experiment(settings | METHODS[name], seed, rounds, seed)).tolist()
    else:
        own_seed = seed + 1000 if name == "local again" else seed
        yield name, scores(experiment(alone, own_seed, rounds, seed)).tolist()


# Tables


def tables(results: dict[str, Seeds], lower: set[str]) -> Iterator[str]:
    """Two tables in Markdown: gains over local training, and scores."""
    present = {name for seeds in results.values() for values in seeds.values() for name in values}
    methods = [name for name in (*EVERY[1:], *WAYS) if name != "local" and name in present]
    yield "| federation | " + " | ".join(methods) + " |"
    yield "|---|" + "--:|" * len(methods)
    every: dict[str, list[tuple[float, float, float]]] = {name: [] for name in methods}
    for federation, seeds in results.items():
        cells = []
        for name in methods:
            if not all(name in values for values in seeds.values()):
                cells.append("-")
                continue
            gain, error, harmed, large = summary(list(seeds.values()), name, federation in lower)
            if federation not in lower:
                every[name].append((gain, harmed, large))
            cells.append(f"{gain:+.1f} ± {error:.1f} / {harmed:.0f} %")
        mark = " (constants fixed on it)" if federation in FIXED_ON else ""
        yield f"| {federation}{mark} | " + " | ".join(cells) + " |"
    means = [np.nanmean(every[name], axis=0) for name in methods]
    yield "| mean | " + " | ".join(f"{gain:+.1f} / {harm:.1f} %" for gain, harm, _ in means) + " |"
    shares = " | ".join(f"{large:.1f} %" for *_, large in means)
    yield f"| worse off, of clients with 50 test samples or more | {shares} |"
    yield ""
    single = {name: np.array(every[name])[:, 0] for name in METHODS if name in present}
    blend = single.pop("blend").mean()
    best = max(single, key=lambda name: single[name].mean())
    each = np.max([*single.values(), np.zeros(len(single[best]))], axis=0).mean()
    yield f"Best single method on average: {best}, {single[best].mean():+.2f} points."
    yield f"Best single method of each federation, or local training: {each:+.2f} points."
    yield f"blend: {blend:+.2f} points."
    yield ""
    methods = ["local", *methods]
    yield "| federation | clients | seeds | " + " | ".join(methods) + " |"
    yield "|---|--:|--:|" + "--:|" * len(methods)
    for federation, seeds in results.items():
        worst_last = federation in lower
        count = len(next(iter(seeds.values()))["local"])
        cells = []
        for name in methods:
            values = [own[name] for own in seeds.values() if name in own]
            cells.append(spread(values, worst_last) if len(values) == len(seeds) else "-")
        yield f"| {federation} | {count} | {len(seeds)} | " + " | ".join(cells) + " |"


def complete(results: dict[str, Seeds], seeds: int, methods: list[str]) -> dict[str, Seeds]:
    """The federations of which local training and every method have that many seeds."""
    whole = {}
    for name, own in results.items():
        needed = {"choose, safe" if method == "choose" else method for method in methods}
        needed |= {"local", "samples"}  # of scikit-learn
        done = {seed: values for seed, values in own.items() if values.keys() >= needed}
        if len(done) >= seeds:
            whole[name] = done
    return whole


def summary(
    seeds: list[dict[str, list[float]]], name: str, lower: bool
) -> tuple[float, float, float, float]:
    """The mean gain, half of its 95 % interval, and the shares worse off of all and of large."""
    harm = 10.0 if lower else 5.0
    gains = []
    for values in seeds:
        local, score = np.array(values["local"]), np.array(values[name])
        gains.append(100 * ((local - score) / local if lower else score - local))
    means = np.array([np.nanmean(gain) for gain in gains])
    error = np.nan
    if len(means) > 1:
        error = stats.t.ppf(0.975, len(means) - 1) * means.std(ddof=1) / np.sqrt(len(means))
    every = np.concatenate(gains)
    large = np.concatenate([np.array(values["samples"]) >= 50 for values in seeds])
    known = ~np.isnan(every)
    harmed = 100 * float(np.mean(every[known] < -harm))
    large_known = known & large
    of_large = 100 * float(np.mean(every[large_known] < -harm)) if large_known.any() else np.nan
    return float(means.mean()), float(error), harmed, of_large


def spread(seeds: list[list[float]], lower: bool) -> str:
    """The mean over clients and the mean of the worst 10 % of them, over seeds."""
    means, worst = [], []
    for values in seeds:
        known = np.sort([v for v in values if not np.isnan(v)])
        ordered = known[::-1] if lower else known
        means.append(known.mean())
        worst.append(ordered[: max(1, round(0.1 * len(known)))].mean())
    scale = 1 if lower else 100
    return f"{scale * np.mean(means):.1f} / {scale * np.mean(worst):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--methods", default=",".join(EVERY))
    parser.add_argument("--only", default="", help="federations, by parts of their names, with ;")
    parser.add_argument("--out", type=Path, default=Path("better_off.json"))
    parser.add_argument("--print", action="store_true", help="print what is there, run nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = json.loads(options.out.read_text()) if options.out.exists() else {}
    wanted = options.methods.split(",")
    folder = options.out.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    plan = federations(folder)
    for seed in range(options.first, options.first + options.seeds):
        for name, settings in {} if options.print else plan.items():
            if options.only and not any(part in name for part in options.only.split(";")):
                continue
            done = results.setdefault(name, {}).setdefault(str(seed), {})
            for method in wanted:
                if any(key == method or key.startswith(f"{method},") for key in done):
                    continue
                clock = time.strftime("%H:%M:%S")
                print(f"{clock} {name}, seed {seed}: {method}", file=sys.stderr, flush=True)
                runs = folder / name / str(seed)
                done |= dict(measure(settings, method, seed, options.rounds, runs))
                write_file(options.out, json.dumps(results).encode(), durable=False)
    lower = {name for name, settings in plan.items() if settings.get("score") == "mae"}
    whole = complete(results, options.seeds, wanted)
    for line in tables(whole, lower) if whole else ():
        print(line)


if __name__ == "__main__":
    main()
