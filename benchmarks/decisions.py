"""What a rule's decision costs, from a few silos to a billion phones.

AAggFF-D with S = 1,000 reporters at K = 1e4, 1e6 and 1e9, taken in turns, with the size of its
state and the time of a checkpoint; AFL's projection at K = 1e6; AAggFF-S's quadratic program at
K = 1,000.

    python benchmarks/decisions.py [--rounds N]
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch

from commonweal import Reports, Rule, rule
from commonweal.base.tensors import State, flatten, num_bytes
from commonweal.record.store import Store

POPULATIONS = (10**4, 10**6, 10**9)


def reports(ids: torch.Tensor, clients: int, generator: torch.Generator) -> Reports:
    ones = torch.ones(len(ids))
    losses = torch.rand(len(ids), generator=generator)
    return Reports(ids=ids, sizes=ones, losses=losses, scores=ones, clients=clients)


def timed(decide: Rule, told: Reports, state: State) -> tuple[float, State]:
    """The seconds of a decision, and the next state."""
    start = time.perf_counter()
    following = decide(told, state).state
    return time.perf_counter() - start, following


def cohort_of(clients: int, size: int, generator: torch.Generator) -> torch.Tensor:
    drawn: torch.Tensor = torch.unique(torch.randint(0, clients, (2 * size,), generator=generator))
    return drawn[torch.randperm(len(drawn), generator=generator)[:size]]


def seconds_of_checkpoint(state: State) -> float:
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        Store(Path(folder)).checkpoint(1, {"server": {"rule": state}})
        return time.perf_counter() - start


def cross_device(rounds: int, size: int = 1000) -> None:
    decide = rule("aaggff-d")
    generator = torch.Generator().manual_seed(0)
    states = {k: decide.init(k) for k in POPULATIONS}
    seconds: dict[int, list[float]] = {k: [] for k in POPULATIONS}
    for _ in range(rounds):
        for k in POPULATIONS:
            told = reports(cohort_of(k, size, generator), k, generator)
            spent, states[k] = timed(decide, told, states[k])
            seconds[k].append(spent)
    base = statistics.median(seconds[POPULATIONS[0]])
    for k in POPULATIONS:
        middle = statistics.median(seconds[k])
        megabytes = num_bytes(flatten(states[k])) / 1e6
        saved = seconds_of_checkpoint(states[k])
        print(
            f"aaggff-d, S = {size}, K = {k:.0e}: {1e3 * middle:.2f} ms per decision "
            f"({middle / base:.2f} of K = 1e4), state {megabytes:.2f} MB, "
            f"checkpoint {1e3 * saved:.1f} ms"
        )


def full_cohort(name: str, clients: int, rounds: int) -> None:
    decide = rule(name)
    generator = torch.Generator().manual_seed(0)
    state = decide.init(clients)
    seconds = []
    for _ in range(rounds):
        spent, state = timed(decide, reports(torch.arange(clients), clients, generator), state)
        seconds.append(spent)
    print(f"{name}, K = {clients}: {1e3 * statistics.median(seconds):.1f} ms per decision")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=200)
    cross_device(parser.parse_args().rounds)
    full_cohort("afl", 10**6, 5)
    full_cohort("aaggff-s", 1000, 5)


if __name__ == "__main__":
    main()
