"""What a rule's decision costs, from a handful of silos to a billion phones.

AAggFF-D with S = 1,000 reporters at K = 1e4, 1e6 and 1e9, interleaved; its state, and a checkpoint of it; AFL's
projection at K = 1e6; AAggFF-S's quadratic programme at K = 1,000.

    python benchmarks/decisions.py [--rounds N]
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch

from commonweal import Reports, rule
from commonweal.store import Store, flatten


def reports(ids: torch.Tensor, clients: int, generator: torch.Generator) -> Reports:
    ones = torch.ones(len(ids))
    return Reports(ids, ones, torch.rand(len(ids), generator=generator), ones, torch.zeros(len(ids), 1), clients)


def cross_device(rounds: int, cohort: int = 1000) -> None:
    sizes = (10**4, 10**6, 10**9)
    decide, generator = rule("aaggff-d"), torch.Generator().manual_seed(0)
    states = {k: decide.init(k) for k in sizes}
    seconds: dict[int, list[float]] = {k: [] for k in sizes}
    for _ in range(rounds):
        for k in sizes:
            ids = torch.randint(0, k, (2 * cohort,), generator=generator).unique()[:cohort]
            told = reports(ids, k, generator)
            start = time.perf_counter()
            _, states[k] = decide(told, states[k])
            seconds[k].append(time.perf_counter() - start)
    base = statistics.median(seconds[sizes[0]])
    for k in sizes:
        middle = statistics.median(seconds[k])
        size = sum(v.numel() * v.element_size() for v in flatten(states[k]).values())
        seen = len(states[k]["settled_ids"]) + len(states[k]["recent_ids"])
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            Store(Path(folder)).checkpoint(1, {"server": {"rule": states[k]}})
            saved = time.perf_counter() - start
        print(
            f"aaggff-d, S = {cohort}, K = {k:.0e}: {1e3 * middle:.2f} ms a decision ({middle / base:.2f} of K = 1e4), "
            f"{seen} clients seen, state {size / 1e6:.2f} MB, checkpoint {1e3 * saved:.1f} ms"
        )


def one(name: str, clients: int, rounds: int) -> None:
    decide, generator = rule(name), torch.Generator().manual_seed(0)
    state, seconds = decide.init(clients), []
    for _ in range(rounds):
        told = reports(torch.arange(clients), clients, generator)
        start = time.perf_counter()
        _, state = decide(told, state)
        seconds.append(time.perf_counter() - start)
    print(f"{name}, K = {clients}: {1e3 * statistics.median(seconds):.1f} ms a decision")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=200)
    cross_device(parser.parse_args().rounds)
    one("afl", 10**6, 5)
    one("aaggff-s", 1000, 5)


if __name__ == "__main__":
    main()
