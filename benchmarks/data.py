"""How long datasets take to load, the first time and from the cache, and partitions to be dealt.

Wall and processor seconds, because machines are shared; sizes in memory. Sets whose files are not in the data directory
are left out. The cache is a fresh one.

    python benchmarks/data.py [--csv ROWS]
"""

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import commonweal
from commonweal.errors import DataError
from commonweal.partition import Dirichlet, Iid, Quantity, Shards

SETS: list[tuple[str, dict[str, Any]]] = [
    ("vowel", {}), ("digits", {}), ("heart", {}), ("berka", {}), ("adult", {}), ("mqp", {}), ("mnist", {}),
    ("fashion-mnist", {}), ("mnist-writers", {}), ("femnist", {"sample": True}), ("shakespeare", {}),
    ("cifar10", {"sample": True}), ("cifar100", {"sample": True, "partition": "iid"}), ("fsdd", {}), ("medmnist", {}),
    ("ptb-cornell", {"sample": True}),
]  # fmt: skip


def timed(work: Callable[[], Any]) -> tuple[Any, float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    return result, time.perf_counter() - wall, time.process_time() - cpu


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def loads() -> None:
    print(f"{'dataset':16} {'clients':>8} {'rows':>8} {'MB':>7}   first: wall   cpu   second: wall   cpu")
    for name, options in SETS:
        try:
            _, wall, cpu = timed(lambda n=name, o=options: commonweal.dataset(n, **o))  # type: ignore[misc]
        except DataError as error:
            print(f"{name:16} {str(error)[:80]}")
            continue
        f, again, spent = timed(lambda n=name, o=options: commonweal.dataset(n, **o))  # type: ignore[misc]
        size = sum(t.numel() * t.element_size() for part in (f.train, f.test) for t in (part.x, part.y)) / 1e6
        rows = len(f.train.y) + len(f.test.y)
        print(f"{name:16} {f.clients:8} {rows:8} {size:7.1f} {wall:13.3f} {cpu:6.3f} {again:14.3f} {spent:6.3f}")


def partitions() -> None:
    y = np.random.default_rng(0).integers(0, 10, 60_000)
    for partition in (Iid(1000), Dirichlet(1000, 0.1, 10), Shards(1000, 2), Quantity(1000, 0.5)):
        owner, wall, cpu = timed(lambda p=partition: p(y, 0))  # type: ignore[misc]
        sizes = np.bincount(owner)
        print(f"60,000 rows, {partition}: {wall:.3f} s wall, {cpu:.3f} s cpu; sizes {sizes.min()} to {sizes.max()}")


def million() -> None:
    part = {"clients": 1_000_000, "rows": 4, "features": 10, "classes": 5}
    f, wall, cpu = timed(lambda: commonweal.dataset("synthetic", **part))
    print(f"synthetic, {f.clients} clients, {len(f.train.y) + len(f.test.y)} rows: {wall:.1f} s wall, {cpu:.1f} s cpu")
    print(f"peak memory of the process so far: {peak():.2f} GB")


def long_table(rows: int, folder: Path) -> None:
    path = folder / "long.csv"
    with open(path, "w") as file:
        file.write("a,b,c,client,label\n")
        for i in range(rows // 1000):
            file.writelines(f"{i}.{j},{3 * j},{j / 7:.4f},c{(1000 * i + j) % 5000},{j % 3}\n" for j in range(1000))
    for time_of in ("first", "second"):
        f, wall, cpu = timed(lambda: commonweal.dataset("table", path=str(path)))
        print(f"CSV of {rows} rows ({path.stat().st_size / 1e6:.0f} MB), {time_of}: {wall:.1f} s wall, {cpu:.1f} s cpu")
    print(f"{f.clients} clients; peak memory of the process so far: {peak():.2f} GB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--csv", type=int, default=0, metavar="ROWS", help="also read a CSV of so many rows")
    rows = parser.parse_args().csv
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        commonweal.dataset("digits")  # what the libraries take to start is not a dataset's
        commonweal.dataset("synthetic", clients=2)
        partitions()
        loads()
        million()
        if rows:
            long_table(rows, Path(folder))


if __name__ == "__main__":
    main()
