"""How long datasets take to load, the first time and from the cache, and partitions to deal.

Wall and processor seconds, because machines are shared; sizes in memory. Datasets whose files are
not in the data directory are left out. The cache is a fresh one.

    python benchmarks/data.py [--csv ROWS]
"""

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

import commonweal
from commonweal.base.errors import DataError
from commonweal.data.federation import Federation
from commonweal.datasets.partition import IID, Dirichlet, DirichletByClass, Quantity, Shards

T = TypeVar("T")

PAPERS = Path(__file__).parent / "published" / "datasets"
DATASETS: dict[str, dict[str, Any]] = {
    "vowel": {},
    "digits": {},
    "heart": {},
    f"{PAPERS}/berka.py:berka": {},
    "adult": {},
    f"{PAPERS}/mqp.py:mqp": {},
    "mnist": {},
    "fashion-mnist": {},
    "mnist-writers": {},
    "femnist": {"sample": True},
    "shakespeare": {},
    "cifar10": {"sample": True},
    "cifar100": {"sample": True, "partition": "iid"},
    f"{PAPERS}/sound.py:fsdd": {},
    "medmnist": {},
    f"{PAPERS}/next_word.py:ptb_cornell": {"sample": True},
}
PARTITIONS = (
    IID(1000),
    Dirichlet(1000, 0.1),
    DirichletByClass(1000, 0.1, 10),
    Shards(1000, 2),
    Quantity(1000, 0.5),
)


class Seconds(NamedTuple):
    wall: float
    cpu: float

    def __str__(self) -> str:
        return f"{self.wall:.3f} s wall, {self.cpu:.3f} s cpu"


def timed(work: Callable[[], T]) -> tuple[T, Seconds]:
    wall = time.perf_counter()
    cpu = time.process_time()
    result = work()
    return result, Seconds(time.perf_counter() - wall, time.process_time() - cpu)


def peak() -> str:
    gigabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return f"peak memory of the process so far: {gigabytes:.2f} GB"


def rows(f: Federation) -> int:
    return len(f.train.y) + len(f.test.y)


def megabytes(f: Federation) -> float:
    tensors = (f.train.x, f.train.y, f.test.x, f.test.y)
    return sum(t.numel() * t.element_size() for t in tensors) / 1e6


def loads() -> None:
    print("dataset           clients     rows      MB   first: wall   cpu   second: wall   cpu")
    for named, parameters in DATASETS.items():
        load = partial(commonweal.dataset, named, **parameters)
        name = named.rpartition(":")[2]
        try:
            _, first = timed(load)
        except DataError as error:
            print(f"{name:16} {str(error)[:80]}")
            continue
        f, second = timed(load)
        size = f"{f.clients:8} {rows(f):8} {megabytes(f):7.1f}"
        times = f"{first.wall:13.3f} {first.cpu:6.3f} {second.wall:14.3f} {second.cpu:6.3f}"
        print(f"{name:16} {size} {times}")


def partitions() -> None:
    y = np.random.default_rng(0).integers(0, 10, 60_000)
    for partition in PARTITIONS:
        owner, seconds = timed(partial(partition, y, 0))
        sizes = np.bincount(owner)
        print(f"60,000 rows, {partition}: {seconds}; sizes {sizes.min()} to {sizes.max()}")


def million() -> None:
    parameters = {"clients": 1_000_000, "rows": 4, "features": 10, "classes": 5}
    f, seconds = timed(lambda: commonweal.dataset("synthetic", **parameters))
    print(f"synthetic, {f.clients} clients, {rows(f)} rows: {seconds}")
    print(peak())


def long_table(count: int, folder: Path) -> None:
    path = folder / "long.csv"
    with open(path, "w") as file:
        file.write("a,b,c,client,label\n")
        for i in range(count):
            j = i % 1000
            file.write(f"{i // 1000}.{j},{3 * j},{j / 7:.4f},c{i % 5000},{j % 3}\n")
    size = path.stat().st_size / 1e6
    for occasion in ("first", "second"):
        f, seconds = timed(lambda: commonweal.dataset("table", path=str(path)))
        print(f"CSV of {count} rows ({size:.0f} MB), {occasion}: {seconds}")
    print(f"{f.clients} clients; {peak()}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Time datasets and partitions.")
    parser.add_argument("--csv", type=int, default=0, metavar="ROWS", help="also read such a CSV")
    count = parser.parse_args().csv
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        commonweal.dataset("digits")  # so that the imports are not counted
        commonweal.dataset("synthetic", clients=2)
        partitions()
        loads()
        million()
        if count:
            long_table(count, Path(folder))


if __name__ == "__main__":
    main()
