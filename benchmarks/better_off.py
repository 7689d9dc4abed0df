"""Who is better off than with local training: methods on natural federations.

Seeds are folds: five of them test every sample once. Each sample's score under a method is compared
with its score under the client's local models, and `judge` says what differs: test samples are the
replicates, as everywhere in Commonweal. "Worse off" are clients that lose more than 5 points over
all of their test samples (regression: 10 % of the error). The noise floor is local training with
another seed: what a client would lose or gain by chance. scikit-learn's logistic (ridge) regression
of each client is the reference for local training. Constants were fixed on vowels, Heart and Berka.

    COMMONWEAL_DATA=... python benchmarks/better_off.py --out better_off.json > tables.md

What is done is in the file of results, and runs are in a folder next to it: after a kill the same
command continues.
"""

import argparse
import csv
import gzip
import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression, Ridge

from commonweal import metrics
from commonweal.base.files import write_file
from commonweal.config.experiment import Experiment
from commonweal.data.sources.files import find_file
from commonweal.jobs.job import build_dataset
from commonweal.record.record import Record
from commonweal.study import judge
from commonweal.study.choosing import How, choose, run_evidence
from commonweal.study.compare import run_cells
from commonweal.study.fitting import TOGETHER
from commonweal.study.plan import Cell
from commonweal.study.refitting import ALL, refit_cell
from commonweal.study.samples import differences, scores
from commonweal.study.verdict import worth_having

Array = NDArray[np.float64]
Settings = dict[str, object]
Samples = Mapping[str, Mapping[int, float]]  # by client and row number: the score of a sample
Line = dict[str, float]  # the numbers of one method on one federation

FIXED_ON = ("vowels", "Heart", "Berka")  # federations on which blend's constants were chosen
PAPERS = Path(__file__).parent / "published" / "datasets"
MLP = {"name": "mlp", "hidden": [32]}
DIGITS = {"name": "dirichlet", "clients": 20}
AGAIN = 1000  # is added to the seed of the training of "local again"
LARGE = 50  # test samples of a client, in all seeds
LOCAL = "local"
GIVEN: dict[str, How] = {"given by fit": "pooled", "safe": "safe"}
CANDIDATES: dict[str, Settings] = {  # `fit` and `choose` give one of them to every client
    LOCAL: {"client": "alone"},
    "FedAvg": {},
    "AAggFF-S": {"rule": "aaggff-s"},
    "fine-tune": {"client": "fine-tune"},
    "blend": {"client": {"name": "blend", "rejoin": False}},
}
TREES: dict[str, Settings] = {  # for tables, in addition
    "boosting": {"algorithm": "boosting", "rule": "aaggff-s"},
    TOGETHER: {"algorithm": "boosting", "client": {"name": "blend", "rejoin": False}},
}
TABLES = ("students", "Heart", "Berka", "stroke", "Adult")  # parts of their names
OTHERS: dict[str, Settings] = {
    "AdaFed": {"rule": "adafed"},
    "Ditto": {"client": "ditto"},
    "APFL": {"client": "apfl"},
    "SuPerFed-MM": {"client": "superfed-mm"},
}
MAIN = ("local again", *(name for name in CANDIDATES if name != LOCAL), *TREES, *GIVEN)
MORE = ("scikit-learn", *OTHERS)


def federations(folder: Path) -> dict[str, Settings]:
    """The datasets, by name; those whose files are missing are left out."""
    arrays: dict[str, tuple[Settings, float]] = {
        "vowels": ({"dataset": "vowel"}, 0.2),
        "digits, alpha 0.1": ({"dataset": "digits", "partition": DIGITS | {"alpha": 0.1}}, 0.2),
        "digits, alpha 1": ({"dataset": "digits", "partition": DIGITS | {"alpha": 1.0}}, 0.2),
        "Heart": ({"dataset": "heart"}, 0.2),
        "Berka": ({"dataset": f"{PAPERS}/berka.py:berka"}, 0.2),
        # With few training samples, as phones have.
        "spoken digits, 6 speakers": (
            {"dataset": {"name": f"{PAPERS}/sound.py:fsdd", "features": "spectra"}},
            0.8,
        ),
        "digits, 30 writers": ({"dataset": {"name": "mnist-writers", "clients": 30}}, 0.8),
    }
    every: dict[str, Settings] = {"students, 17 courses": {"dataset": {"name": "students"}}}
    for name, (settings, test) in arrays.items():
        path = _arrays(folder / f"{name}.npz", settings)
        dataset = {"name": "table", "path": str(path), "client": "client", "scale": False}
        every[name] = {"dataset": dataset | {"test": test}}
    every |= table_federations(folder)
    return every


def _arrays(path: Path, settings: Settings) -> Path:
    """Write a federation's samples as arrays: every seed has the same clients, split into folds."""
    if path.exists():
        return path
    federation = build_dataset(Experiment(**settings, seed=0, model="logistic"))
    parts = (federation.train, federation.test)
    names = np.array(federation.names)
    np.savez(
        path,
        x=torch.cat([part.x for part in parts]).numpy(),
        y=torch.cat([part.y for part in parts]).long().flatten().numpy(),
        client=np.concatenate([np.repeat(names, part.sizes.numpy()) for part in parts]),
    )
    return path


def table_federations(folder: Path) -> dict[str, Settings]:
    """The tables of the stroke trial and the census, where their files are."""
    tables: dict[str, Settings] = {}
    stroke = _stroke(folder / "stroke.csv")
    if stroke is not None:
        path = {"name": "table", "path": str(stroke), "label": "outcome"}
        tables["stroke trial, countries"] = {
            "dataset": path | {"client": "country", "drop": ["hospital"]}
        }
        hospitals = folder / "hospitals.csv"
        by_hospital = path | {"path": str(hospitals), "client": "hospital", "drop": ["country"]}
        tables["stroke trial, hospitals"] = {"dataset": by_hospital}
    adult = _adult(folder / "adult.csv")
    if adult is not None:
        path = {"name": "table", "path": str(adult), "client": "country"}
        tables["Adult, countries of birth"] = {"dataset": path | {"label": "income"}}
        tables["Adult, hours of work"] = {
            "dataset": path | {"label": "hours", "drop": ["income"], "task": "values"},
            "score": "mae",
        }
    return tables


def _stroke(path: Path) -> Path | None:
    """The International Stroke Trial: what is known at randomisation, and the outcome."""
    source = find_file("ist", "ist.csv.gz", None)
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
    source = find_file("adult", "adult.data.gz", None)
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


# Runs


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
    parts: Settings = {"client": client, "model": MLP}
    if settings.get("algorithm") == "boosting":  # it has trees, and no network
        parts = {"client": method, "model": "trees"}
    values = settings | parts | {"rounds": rounds, "seed": seed}
    data = values["dataset"]
    named = {"name": data} if isinstance(data, str) else dict(data)  # type: ignore[call-overload]
    return Experiment(**values | {"dataset": named | {"seed": split}, "evaluate_every": rounds})


def candidates(settings: Settings, seeds: int, rounds: int, folder: Path) -> list[Cell]:
    """The runs of what `fit` compares, with validation samples to choose on."""
    plan = []
    is_table = any(part in folder.parent.name for part in TABLES)
    for name, method in (CANDIDATES | (TREES if is_table else {})).items():
        for seed in range(seeds):
            own = experiment(settings | method | {"validation": 0.2}, seed, rounds, seed)
            plan.append(Cell(name, own, folder / name / f"seed-{seed}"))
    return plan


def others(
    settings: Settings, seeds: int, rounds: int, folder: Path, methods: Mapping[str, Settings]
) -> list[Cell]:
    """The runs of further methods on all samples."""
    plan = []
    for name, method in methods.items():
        for seed in range(seeds):
            own = experiment(settings | method, seed, rounds, seed)
            plan.append(Cell(name, own, folder / name / f"seed-{seed}"))
    return plan


def again(settings: Settings, seeds: int, rounds: int, folder: Path) -> list[Cell]:
    """The noise floor: local training on the same samples with other seeds."""
    plan = []
    for seed in range(seeds):
        own = experiment(settings | CANDIDATES[LOCAL], seed + AGAIN, rounds, seed)
        plan.append(Cell("local again", own, folder / "again" / f"seed-{seed}"))
    return plan


def run_all(cells: Sequence[Cell]) -> dict[str, list[Record]]:
    """Run what is not finished. Returns the runs by label."""
    for step in run_cells(cells):
        assert not step.failure, (step.cell.label, step.failure)
    records: dict[str, list[Record]] = {}
    for cell in cells:
        records.setdefault(cell.label, []).append(Record.read(cell.folder))
    return records


def main_runs(settings: Settings, seeds: int, rounds: int, folder: Path) -> dict[str, list[Record]]:
    """The runs of the first tables: local training, the methods, and what clients are given."""
    first = candidates(settings, seeds, rounds, folder / "candidates")
    second = [refit_cell(cell.label, cell.experiment, cell.folder) for cell in first]
    records = run_all([*first, *second])
    records |= run_all(again(settings, seeds, rounds, folder / "others"))
    evidence = {cell.folder: run_evidence(False, cell.folder) for cell in first}
    runs = {}
    for name in CANDIDATES | TREES:
        labels = name, name + ALL
        own = [Record.read(cell.folder) for cell in second if cell.label in labels]
        if own:
            runs[name] = own
    runs["local again"] = records["local again"]
    for name, how in GIVEN.items():
        given = choose(folder / "candidates", how=how, evidence=evidence).given
        runs[name] = given.records()[given.method]
    return runs


def reference(settings: Settings, seeds: int, rounds: int) -> Samples:
    """The score of every test sample by scikit-learn's model of its client."""
    table: dict[str, dict[int, float]] = {}
    for seed in range(seeds):
        federation = build_dataset(experiment(settings, seed, rounds, seed))
        test_rows = federation.test
        assert test_rows.numbers is not None
        for k, name in enumerate(federation.names):
            train, test = federation.train.client(k), test_rows.client(k)
            if len(test.y) == 0:
                continue
            x, y = train.x.flatten(1).double().numpy(), train.y.numpy()
            x_test, y_test = test.x.flatten(1).double().numpy(), test.y.numpy()
            if federation.classes is None:
                values = np.abs(Ridge().fit(x, y).predict(x_test) - y_test)
            elif len(np.unique(y)) == 1:
                values = (y_test == y[0]).astype(float)
            else:
                model = LogisticRegression(max_iter=1000).fit(x, y)
                values = (model.predict(x_test) == y_test).astype(float)
            own = slice(int(test_rows.offsets[k]), int(test_rows.offsets[k + 1]))
            numbers = test_rows.numbers[own].tolist()
            table.setdefault(name, {}).update(zip(numbers, values.tolist(), strict=True))
    return table


# Numbers


def lines(
    local_runs: Sequence[Record],
    runs: Mapping[str, Sequence[Record]],
    picked: str | None = None,
    more: Mapping[str, Samples] | None = None,
) -> dict[str, Line]:
    """The numbers of every method and of local training, in points or in % of the error.

    Args:
        local_runs: Of local training.
        runs: By method.
        picked: The method that was chosen without test samples.
        more: The scores of test samples of methods without runs.
    """
    lower = local_runs[0].lower_is_better
    local = scores(local_runs)
    by_client = {name: float(np.mean(list(own.values()))) for name, own in local.items()}
    mean = float(np.mean(list(by_client.values())))
    changes = differences(local_runs, runs)
    every = {name: scores(own) for name, own in runs.items()}
    for method, samples in (more or {}).items():
        every[method] = {name: dict(own) for name, own in samples.items()}
        changes[method] = {}
        for name, own in samples.items():
            gains = [value - local[name][row] for row, value in own.items()]
            changes[method][name] = (-1 if lower else 1) * np.array(gains)
    worth = worth_having(local_runs[0].facts.score, mean)
    judgement = judge(changes, picked=picked, worth=worth)
    scale = 100 / mean if lower else 100
    table: dict[str, Line] = {LOCAL: _of_scores(local, lower)}
    table[LOCAL]["samples"] = sum(map(len, local.values()))
    for method, gain in judgement.methods.items():
        large, harmed = [], []
        for name, client in judgement.clients[method].items():
            harm = 0.1 * by_client[name] if lower else 0.05
            harmed.append(client.gain < -harm)
            large.append(len(local[name]) >= LARGE)
        table[method] = _of_scores(every[method], lower) | {
            "gain": scale * gain.gain,
            "half": scale * (gain.high - gain.low) / 2,
            "harmed": 100 * float(np.mean(harmed)),
            "harmed large": 100 * float(np.mean(np.array(harmed)[large])) if any(large) else np.nan,
            "better": len(judgement.better[method]),
            "worse": len(judgement.worse[method]),
        }
    return table


def _of_scores(samples: Samples, lower: bool) -> Line:
    """The mean over clients and the mean of the worst 10 % of them."""
    means = [float(np.mean(list(own.values()))) for own in samples.values()]
    summary = metrics.summary(means, lower_is_better=lower)
    scale = 1 if lower else 100
    worst = scale * summary["worst_10"]
    return {"mean": scale * summary["mean"], "worst": worst, "clients": len(means)}


# Tables


def tables(results: Mapping[str, Mapping[str, Line]], lower: Iterable[str]) -> Iterator[str]:
    """Tables in Markdown: gains, who loses, further methods, and scores."""
    scored = {name: own for name, own in results.items() if name not in lower}
    yield from _gains(results, scored, MAIN)
    yield ""
    yield from _losers(results, scored, MAIN)
    yield ""
    yield from _kept(scored)
    yield ""
    whole = {name: own for name, own in results.items() if own.keys() >= {*MORE}}
    if whole:
        scored_whole = {name: own for name, own in whole.items() if name not in lower}
        yield from _gains(whole, scored_whole, MORE)
        yield ""
        yield from _losers(whole, scored_whole, MORE)
        yield ""
    yield from _scores(results)


def _header(first: str, columns: Sequence[str]) -> Iterator[str]:
    yield f"| {first} | " + " | ".join(columns) + " |"
    yield "|---|" + "--:|" * len(columns)


def _marked(name: str) -> str:
    return f"{name} (fixed on it)" if name in FIXED_ON else name


def _gains(
    results: Mapping[str, Mapping[str, Line]],
    scored: Mapping[str, Mapping[str, Line]],
    methods: Sequence[str],
) -> Iterator[str]:
    """The mean gain with half of its interval; * where that leaves out 0."""
    yield from _header("federation", methods)
    for federation, own in results.items():
        cells = []
        for name in methods:
            if name not in own:  # trees are for tables
                cells.append("")
                continue
            gain, half = own[name]["gain"], own[name]["half"]
            mark = "*" if abs(gain) > half else ""
            equal = np.isnan(half)  # every sample has the same score as with local training
            cells.append("equal" if equal else f"{gain:+.1f} ± {half:.1f}{mark}")
        yield f"| {_marked(federation)} | " + " | ".join(cells) + " |"
    means = (np.mean(_of(scored, name, "gain")) for name in methods)
    yield "| mean | " + " | ".join(f"{gain:+.1f}" for gain in means) + " |"


def _of(results: Mapping[str, Mapping[str, Line]], name: str, key: str) -> list[float]:
    """A number of a method, of the federations that have the method."""
    return [own[name][key] for own in results.values() if name in own]


def _losers(
    results: Mapping[str, Mapping[str, Line]],
    scored: Mapping[str, Mapping[str, Line]],
    methods: Sequence[str],
) -> Iterator[str]:
    """The share of clients that are worse off, and how many clients differ significantly."""
    yield from _header("federation", methods)
    for federation, own in results.items():
        cells = []
        for name in methods:
            line = own.get(name)
            if line is None:
                cells.append("")
                continue
            cells.append(f"{line['harmed']:.0f} % · {line['better']:.0f} · {line['worse']:.0f}")
        yield f"| {federation} | " + " | ".join(cells) + " |"
    for key, words in (("harmed", "mean"), ("harmed large", f"mean, {LARGE} test samples or more")):
        shares = [np.nanmean(_of(scored, name, key)) for name in methods]
        yield f"| {words} | " + " | ".join(f"{share:.1f} %" for share in shares) + " |"


def _kept(scored: Mapping[str, Mapping[str, Line]]) -> Iterator[str]:
    """How much of the best method's gain is kept on average."""
    single = [name for name in CANDIDATES if name != LOCAL]
    best = [max(0.0, *(own[name]["gain"] for name in single)) for own in scored.values()]
    yield f"Best candidate of each federation, or local training: {np.mean(best):+.2f} points."
    for name in ("blend", *GIVEN):
        gain = np.mean(_of(scored, name, "gain"))
        part = f", {100 * gain / np.mean(best):.0f} % of that" if any(best) else ""
        yield f"{name}: {gain:+.2f} points{part}."


def _scores(results: Mapping[str, Mapping[str, Line]]) -> Iterator[str]:
    methods = [LOCAL, *MAIN]
    yield from _header("federation", ["clients", "samples", *methods])
    for federation, own in results.items():
        counts = [f"{own[LOCAL]['clients']:.0f}", f"{own[LOCAL]['samples']:.0f}"]
        known = [own.get(name) for name in methods]
        cells = ["" if x is None else f"{x['mean']:.1f} / {x['worst']:.1f}" for x in known]
        yield f"| {federation} | " + " | ".join([*counts, *cells]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--only", default="", help="federations, by parts of their names, with ;")
    parser.add_argument("--out", type=Path, default=Path("better_off.json"))
    parser.add_argument("--main", action="store_true", help="leave out the table of other methods")
    parser.add_argument("--print", action="store_true", help="print what is there, run nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = json.loads(options.out.read_text()) if options.out.exists() else {}
    folder = options.out.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    if not options.print:
        for name, own in measured(options, results, folder):
            results[name] = own
            write_file(options.out, json.dumps(results).encode(), durable=False)
    plan = federations(folder)
    lower = [name for name, settings in plan.items() if settings.get("score") == "mae"]
    ordered = {name: results[name] for name in plan if name in results}
    for line in tables(ordered, lower) if ordered else ():
        print(line)


def measured(
    options: argparse.Namespace, results: Mapping[str, Mapping[str, Line]], folder: Path
) -> Iterator[tuple[str, dict[str, Line]]]:
    """The numbers of each federation that are not there yet: of the main methods, then of more."""
    plan = federations(folder)
    if options.only:
        parts = options.only.split(";")
        plan = {name: own for name, own in plan.items() if any(part in name for part in parts)}
    seeds, rounds = options.seeds, options.rounds
    for methods in (MAIN,) if options.main else (MAIN, MORE):
        for name, settings in plan.items():
            known = dict(results.get(name, {}))
            if known.keys() >= {*methods} - {*TREES}:
                continue
            clock = time.strftime("%H:%M:%S")
            print(f"{clock} {name}: {', '.join(methods)}", file=sys.stderr, flush=True)
            runs = main_runs(settings, seeds, rounds, folder / name)
            local = runs.pop(LOCAL)
            if methods is MAIN:
                yield name, known | lines(local, runs, picked="given by fit")
                continue
            runs = run_all(others(settings, seeds, rounds, folder / name / "others", OTHERS))
            more = {"scikit-learn": reference(settings, seeds, rounds)}
            yield name, lines(local, runs, more=more) | known


if __name__ == "__main__":
    main()
