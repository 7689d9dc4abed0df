"""What a record of many clients costs: bytes per round, and seconds and memory to read it.

    python benchmarks/record.py --rounds 1000 --clients 10000

Writes rounds of drawn values in which all clients take part and are evaluated, and reads them in
a new process.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from commonweal.record.facts import FORMAT
from commonweal.record.record import Record
from commonweal.record.rounds import ClientTable, RoundRecord
from commonweal.record.store import Store
from commonweal.training.evaluation import Evaluation

T = TypeVar("T")


def write(folder: Path, rounds: int, clients: int) -> None:
    draw = np.random.default_rng(0)
    names = tuple(f"client-{k}" for k in range(clients))
    sizes = torch.from_numpy(draw.integers(5, 60, clients))
    (folder / "experiment.toml").write_text(f"rounds = {rounds}\n")
    facts = {"format": FORMAT, "clients": clients, "score": "accuracy"}
    (folder / "run.json").write_text(json.dumps(facts))
    store = Store(folder)
    for number in range(1, rounds + 1):
        scores = torch.from_numpy(draw.integers(0, 30, clients)) / sizes
        losses = torch.from_numpy(draw.exponential(size=clients))
        weights = draw.dirichlet(np.ones(clients))
        record = RoundRecord(
            number=number,
            clients=names,
            losses=tuple(draw.exponential(size=clients).tolist()),
            scores=tuple(scores.flip(0).tolist()),
            weights=dict(zip(names, weights.tolist(), strict=True)),
            metrics={"mean": float(scores.mean())},
        )
        table = ClientTable(names, Evaluation(losses, {"accuracy": scores}, sizes))
        store.append(record, {}, test=table)


def read(folder: Path) -> None:
    before = megabytes()
    record = timed("open", lambda: Record.read(folder))
    print(f"memory for it: {megabytes() - before:.1f} MB")
    timed("one client's history", lambda: record.history("client-7"))
    timed("the last evaluation", record.clients)


def timed(what: str, work: Callable[[], T]) -> T:
    begin = time.perf_counter()
    result = work()
    print(f"{what}: {time.perf_counter() - begin:.3f} s")
    return result


def megabytes() -> float:
    """The memory of this process now (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.read is not None:
        read(given.read)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, given.rounds, given.clients)
        for file in ("clients.chunks", "rounds.jsonl"):
            size = (folder / file).stat().st_size
            print(f"{file}: {size / given.rounds:,.0f} bytes per round")
        subprocess.run([sys.executable, __file__, "--read", name], check=True)


if __name__ == "__main__":
    main()
