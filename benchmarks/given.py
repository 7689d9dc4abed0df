"""Which model clients should be given: ways to choose, judged on federations of their own.

The runs of `commonweal fit` are made once per federation and seed: every method on part of the
training samples, which leaves validation samples, and again on all of them. Ways to choose see the
validation samples only. They are compared by the test samples' scores of the second runs: the mean
gain over local training, and the share of clients that are worse off by more than 5 points (errors:
10 %). The noise floor is local training with another seed. Constants were fixed on the federations
of DESIGN alone, the others judge them.

    COMMONWEAL_DATA=... nice python benchmarks/given.py --seeds 2 --out given.json

What is done is in the file: after a kill the same command continues.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from better_off import DIGITS, MLP, federations
from commonweal.base.files import write_file
from commonweal.clients import evidence as choice
from commonweal.clients.evidence import Evidence
from commonweal.config.experiment import Experiment
from commonweal.record.record import Record
from commonweal.study.choosing import run_evidence
from commonweal.study.compare import Data, run_cells
from commonweal.study.fitting import METHODS
from commonweal.study.plan import Cell
from commonweal.study.refitting import refit_cell

Settings = dict[str, object]
LOCAL = "alone"
AGAIN = "local again"
DESIGN = ("vowels", "Heart", "Berka", "digits, alpha 1", "same", "own", "values, same", "times")
SINGLE = ("blend", "fine-tune", "aaggff-s", LOCAL)  # of which the best is the goal


def plan(folder: Path) -> dict[str, Settings]:
    """The federations, by name."""
    every = federations(folder)
    every.pop("stroke trial, hospitals", None)
    every["fashion, alpha 0.3"] = {
        "dataset": {"name": "fashion-mnist", "size": 14, "part": "test"},
        "partition": DIGITS | {"alpha": 0.3, "clients": 15},
    }
    # clients, rows of each, spread of intercepts, spread of slopes, kind of label, seed
    drawn = {
        "same": (20, 30, 0.0, 0.0, "class", 1),
        "own": (15, 60, 1.0, 1.5, "class", 2),
        "values, same": (20, 20, 0.3, 0.2, "value", 3),
        "times": (12, 50, 0.3, 0.3, "time", 4),
        "intercepts": (40, 25, 1.0, 0.0, "class", 5),
        "none": (8, 80, 0.0, 0.0, "noise", 6),
        "two groups": (20, 50, 0.0, 0.0, "groups", 7),
        "values, own": (15, 60, 1.0, 1.0, "value", 8),
        "values, intercepts": (40, 15, 1.0, 0.0, "value", 9),
        "times, same": (8, 80, 0.0, 0.0, "time", 10),
        "times, own": (15, 60, 0.3, 1.0, "time", 11),
        "unequal": (25, -1, 0.5, 0.5, "class", 12),
    }
    for name, (clients, rows, intercepts, slopes, kind, seed) in drawn.items():
        path = folder / f"{name}.csv"
        draw(path, clients, rows, intercepts, slopes, kind, seed)
        label = "time,event" if kind == "time" else "label"
        dataset: Settings = {"name": "table", "path": str(path), "label": label, "client": "site"}
        every[name] = {"dataset": dataset | {"test": 0.4}}
        if kind == "value":
            every[name] |= {"score": "mae"}
    return every


def draw(
    path: Path, clients: int, rows: int, intercepts: float, slopes: float, kind: str, seed: int
) -> None:
    """Write a table of eight features, whose coefficients differ between clients."""
    rng = np.random.default_rng(seed)
    sizes = np.full(clients, rows)
    if rows < 0:
        sizes = np.geomspace(8, 300, clients).astype(int)
    owner = np.repeat(np.arange(clients), sizes)
    x = rng.normal(size=(len(owner), 8))
    common = rng.normal(size=8) * np.array([1, 1, 1, 0.5, 0.5, 0.2, 0, 0])
    if kind == "noise":
        common = np.zeros(8)
    own = common + slopes * rng.normal(size=(clients, 8)) / np.sqrt(8)
    if kind == "groups":
        own = common * np.where(np.arange(clients) % 2, 1.0, -1.0)[:, None]
    score = (x * own[owner]).sum(1) + intercepts * rng.normal(size=clients)[owner]
    if kind == "value":
        columns = [np.round(score + rng.normal(size=len(owner)), 4)]
    elif kind == "time":
        times = rng.exponential(np.exp(-score))
        ends = rng.exponential(2.0, size=len(owner))
        columns = [np.round(np.minimum(times, ends) + 1e-3, 5), (times <= ends).astype(int)]
    else:
        right = rng.random(len(owner)) < 1 / (1 + np.exp(-1.5 * score))
        columns = [np.where(right, "yes", "no")]
    names = ["time", "event"] if kind == "time" else ["label"]
    lines = [",".join(["site", *(f"x{j}" for j in range(8)), *names])]
    for i, k in enumerate(owner):
        features = ",".join(f"{value:.4f}" for value in x[i])
        lines.append(f"s{k},{features}," + ",".join(str(column[i]) for column in columns))
    path.write_text("\n".join(lines) + "\n")


def measure(settings: Settings, seed: int, rounds: int, folder: Path) -> dict[str, object]:
    """The validation losses and test scores of all methods with one seed."""
    given = settings["dataset"]
    dataset = {"name": given} if isinstance(given, str) else dict(given)  # type: ignore[call-overload]
    base = settings | {"dataset": dataset | {"seed": seed}, "model": MLP, "rounds": rounds}
    base |= {"evaluate_every": rounds, "validation": 0.2}
    first, second = {}, {}
    for name, changes in METHODS.items():
        values = dict(base)
        client: Settings = {"name": "sgd", "batch": 10, "lr": 0.1, "clip": 1.0}
        for change in changes:
            key, _, value = change.partition("=")
            if key == "rule":
                values["rule"] = value
            elif key == "client":
                client["name"] = value
            else:
                client["rejoin"] = False
        cell = Cell(name, Experiment(**values, client=client, seed=seed), folder / name)
        first[name] = cell
        second[name] = refit_cell(name, cell.experiment, cell.folder)
    alone = second[LOCAL]
    changed = Experiment(**alone.experiment.model_dump() | {"seed": seed + 1000})
    second[AGAIN] = Cell(AGAIN, changed, folder / "again")
    for step in run_cells([*first.values(), *second.values()], Data()):
        assert not step.failure, (step.cell.label, step.failure)
    evidence = {name: run_evidence(False, cell.folder) for name, cell in first.items()}
    tables = {name: Record.read(cell.folder).clients() for name, cell in second.items()}
    test = {}
    for name, table in tables.items():
        evaluation = table.evaluation.personal or table.evaluation
        test[name] = evaluation.score.double().tolist()
    local = evidence[LOCAL]
    return {
        "validation": {name: own["losses"] for name, own in evidence.items()},
        "right": {name: own["right"] for name, own in evidence.items()},
        "by_sample": local["by_sample"],
        "bound": local["bound"],
        "test": test,
        "samples": tables[LOCAL].evaluation.sizes.tolist(),
        "lower": Record.read(second[LOCAL].folder).facts.score == "mae",
    }


# Tables


def given(run: dict[str, Any], how: str) -> list[str]:
    """The method whose model each client is given by a way to choose, or by name."""
    clients = range(len(run["samples"]))
    if how in (*METHODS, AGAIN):
        return [how for _ in clients]
    evidence = []
    for k in clients:
        own = {}
        for name, losses in run["validation"].items():
            right = run["right"][name]
            known = None if right is None else np.array(right[k], dtype=float)
            own[name] = Evidence(np.array(losses[k], dtype=float), known)
        evidence.append(own)
    if how == "pooled":
        name = choice.choose_together([choice.improvements(own, base="blend") for own in evidence])
        return [name for _ in clients]
    is_proof = how == "proved"
    rows = [choice.improvements(own, is_proof, run["bound"]) for own in evidence]
    bound = run["bound"] if run["right"][LOCAL] is None else 1.0
    return choice.choose_by_client(rows, how, bound=bound)  # type: ignore[arg-type]


def outcome(runs: list[dict[str, Any]], how: str) -> tuple[float, float]:
    """The mean gain in points (errors: %), and the share of client-seeds that are worse off."""
    means, every = [], []
    for run in runs:
        taken = given(run, how)
        local = np.array(run["test"][LOCAL], dtype=float)
        score = np.array([run["test"][name][k] for k, name in enumerate(taken)], dtype=float)
        gain = 100 * ((local - score) / local if run["lower"] else score - local)
        known = (np.array(run["samples"]) > 0) & np.isfinite(gain)
        means.append(gain[known].mean())
        every.append(gain[known] / (2 if run["lower"] else 1))
    return float(np.mean(means)), 100 * float(np.mean(np.concatenate(every) < -5))


def tables(results: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Gains and harm by federation, and their means over the two groups of federations."""
    ways = (AGAIN, "fedavg", "aaggff-s", "fine-tune", "blend", "pooled", *get_args(choice.How))
    yield "| federation | " + " | ".join(ways) + " | best of four |"
    yield "|---|" + "--:|" * (len(ways) + 1)
    for group, name in ((DESIGN, "mean, constants fixed on them"), ((), "mean, others")):
        rows = []
        bests = []
        for federation, seeds in results.items():
            if (federation in DESIGN) != bool(group):
                continue
            runs = list(seeds.values())
            row = [outcome(runs, way) for way in ways]
            bests.append(max(outcome(runs, way)[0] for way in SINGLE))
            rows.append(row)
            yield f"| {federation} | {' | '.join(map(cell, row))} | {bests[-1]:+.1f} |"
        mean = np.mean(rows, axis=0).tolist()
        best = float(np.mean(bests))
        yield f"| {name} | {' | '.join(map(cell, mean))} | {best:+.1f} |"
        shares = [f"{100 * gain / best:.0f} %" for gain, _ in mean]
        yield f"| of the best of four | {' | '.join(shares)} | |"


def cell(pair: Sequence[float]) -> str:
    gain, harm = pair
    return f"{gain:+.1f} / {harm:.0f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--only", default="", help="federations, by parts of their names, with ;")
    parser.add_argument("--out", type=Path, default=Path("given.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = json.loads(options.out.read_text()) if options.out.exists() else {}
    folder = options.out.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    for seed in range(options.first, options.first + options.seeds):
        for name, settings in plan(folder).items():
            if options.only and not any(part in name for part in options.only.split(";")):
                continue
            own = results.setdefault(name, {})
            if str(seed) in own:
                continue
            start = time.process_time()
            own[str(seed)] = measure(
                settings, seed, options.rounds, folder / "runs" / name / str(seed)
            )
            took = time.process_time() - start
            print(f"{name}, seed {seed}: {took:.0f} s", file=sys.stderr, flush=True)
            write_file(options.out, json.dumps(results).encode(), durable=False)
    for line in tables(results):
        print(line)


if __name__ == "__main__":
    main()
