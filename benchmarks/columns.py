"""Sites with different columns, on Adult: python benchmarks/columns.py [--seeds 3] [--rounds 30]

Half of the clients lack three columns. What is lost when these columns are dropped everywhere, and
how much of it `columns = "union"` recovers; and whether a client does worse than with its own rows.
Clients are the 14 occupations: the second half of them in the order of the alphabet lacks columns.
"""

import argparse
import csv
import gzip
import os
import tempfile
from pathlib import Path

import numpy as np
from scipy import stats

from commonweal.config.experiment import Experiment
from commonweal.jobs.rounds import run
from commonweal.record.record import Record

NAMES = (
    *("age", "workclass", "fnlwgt", "education", "years", "marital", "occupation", "relationship"),
    *("race", "sex", "gain", "loss", "hours", "country", "income"),
)
REMOVED = ("marital", "relationship", "years")
ALSO = ("education",)  # says the same as years of education, and is left out everywhere
CLIENT = "occupation"
METHODS = ("alone", "sgd", "blend")


def rows_of(path: Path, most: int) -> list[dict[str, str]]:
    """Adult's training rows, at most some of each occupation."""
    with gzip.open(path, "rt") as file:
        lines = [dict(zip(NAMES, map(str.strip, row), strict=False)) for row in csv.reader(file)]
    counts: dict[str, int] = {}
    rows = []
    for row in lines:
        client = row.get(CLIENT, "?")
        counts[client] = counts.get(client, 0) + 1
        if client not in ("?", "Armed-Forces", "Priv-house-serv") and counts[client] <= most:
            rows.append(row)
    return rows


def write(path: Path, rows: list[dict[str, str]], lacking: set[str], kept: bool) -> Path:
    """A table in which some clients lack the columns, or nobody has them."""
    names = [name for name in NAMES if name not in ALSO and (kept or name not in REMOVED)]
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, extrasaction="ignore")
        writer.writeheader()
        for row in rows:
            empty = dict.fromkeys(REMOVED, "") if row[CLIENT] in lacking else {}
            writer.writerow(row | empty)
    return path


def losses(path: Path, client: str, seed: int, rounds: int, out: Path) -> dict[str, np.ndarray]:
    """The log losses of each client's test samples."""
    experiment = Experiment(
        dataset={
            "name": "table",
            "path": str(path),
            "label": "income",
            "client": CLIENT,
            "columns": "union",
        },
        model={"name": "mlp", "hidden": [32]},
        client={"name": client, "lr": 0.1, "batch": 32},
        rounds=rounds,
        evaluate_every=rounds,
        validation=0.2,
        score="log-loss",
        seed=seed,
    )
    for _ in run(experiment, out=out):
        pass
    scores = Record.read(out).test_scores()
    assert scores is not None
    parts = np.split(scores.used.double().numpy(), scores.offsets[1:-1].tolist())
    return dict(zip(scores.names, parts, strict=True))


def main(seeds: int, rounds: int, most: int) -> None:
    rows = rows_of(Path(os.environ["COMMONWEAL_DATA"]) / "adult" / "adult.data.gz", most)
    clients = sorted({row[CLIENT] for row in rows})
    lacking = set(clients[1::2])
    print(f"{len(rows)} rows, {len(clients)} clients, {len(lacking)} of them lack {REMOVED}")
    results: dict[tuple[str, str], dict[str, np.ndarray]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tables = {
            "all columns": write(folder / "full.csv", rows, set(), True),
            "union": write(folder / "union.csv", rows, lacking, True),
            "dropped": write(folder / "dropped.csv", rows, set(), False),
        }
        for table, path in tables.items():
            for client in METHODS:
                if client == "alone" and table != "union":
                    continue
                own: list[dict[str, np.ndarray]] = []
                for seed in range(seeds):
                    out = folder / f"{table}-{client}-{seed}"
                    own.append(losses(path, client, seed, rounds, out))
                results[table, client] = {
                    k: np.concatenate([each[k] for each in own]) for k in clients
                }
                mean = np.mean([v.mean() for v in results[table, client].values()])
                print(f"{table:12} {client:6} mean log loss {mean:.4f}", flush=True)
    for client in METHODS:
        if client == "alone":
            continue
        for who, names in (
            ("all clients", clients),
            ("with the columns", [k for k in clients if k not in lacking]),
            ("without them", sorted(lacking)),
        ):
            full, union, dropped = (
                float(np.mean([results[table, client][k].mean() for k in names]))
                for table in ("all columns", "union", "dropped")
            )
            print(
                f"{client}, {who}: all columns {full:.4f}, union {union:.4f}, dropped {dropped:.4f}"
                f", recovered {100 * (dropped - union) / (dropped - full):.0f} %"
            )
        worse = []
        for k in clients:
            gains = results["union", "alone"][k] - results["union", client][k]
            test = stats.ttest_1samp(gains, 0.0)
            if gains.mean() < 0:
                worse.append(f"{k} {gains.mean():+.4f} (p = {test.pvalue:.2f})")
        print(f"{client}, clients below local training: {', '.join(worse) or 'none'}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--rows", type=int, default=1500, help="of a client, at most")
    given = parser.parse_args()
    main(given.seeds, given.rounds, given.rows)
