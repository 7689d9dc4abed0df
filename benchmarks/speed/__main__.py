"""How fast Commonweal is, beside a hand-written loop, the limit, and other libraries.

    python -m benchmarks.speed              all tables of docs/performance.md, with the peers that
                                            are installed
    python -m benchmarks.speed --peers      install the peers first (pfl, fluke, fedlab, flower)
    python -m benchmarks.speed --peers pfl  install some of them
    python -m benchmarks.speed --quick      in at most two minutes, without peers
    python -m benchmarks.speed --only mlp   some of the parts

Contenders are taken in turns; times are medians with quartiles, and ratios are taken turn by turn,
because machines are shared and noisy. BlazeFL 3 needs Python 3.14 and is not run.
"""

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from . import growth, parts, peers, profile, rounds
from .report import Target, verdicts
from .work import DEVICES, WORKS, Work


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    turns: int
    slow_turns: int
    works: tuple[Work, ...]
    growth: dict[str, tuple[int, ...]]
    threads: tuple[int, ...] = ()
    gram: int = 1_663_370
    evaluated: int = 10_000
    heart_rounds: int = 200
    images: Work = parts.FEW_IMAGES
    sweep: tuple[int, int, int] = (10, 10, 50)  # rules, seeds, rounds
    shared: tuple[Work, ...] = rounds.SHARED
    largest: int | None = None  # clients, rounds or rows of a run


FULL = Effort(turns=11, slow_turns=3, works=WORKS, growth=growth.GROWTH)
QUICK = Effort(
    turns=3,
    slow_turns=1,
    works=tuple(w for w in WORKS if w is not DEVICES),
    growth={"S, clients per round": (10, 30, 100)},
    threads=(1,),
    gram=100_000,
    sweep=(2, 2, 20),
    largest=1000,
)
SMOKE = Effort(
    turns=1,
    slow_turns=1,
    works=tuple(rounds.smaller(work) for work in WORKS),
    growth={"S, clients per round": (2, 4)},
    threads=(1,),
    gram=1000,
    evaluated=100,
    heart_rounds=2,
    images=rounds.smaller(parts.FEW_IMAGES),
    sweep=(2, 1, 2),
    shared=(rounds.smaller(rounds.SHARED[0]),),
    largest=10,
)


def sections(effort: Effort) -> dict[str, Callable[[], list[Target]]]:
    """The parts of the benchmark by name, without the rounds of works."""
    return {
        "growth": lambda: growth.grow(effort.growth, effort.slow_turns),
        "cores": lambda: rounds.cores(effort.turns, effort.shared),
        "runs": lambda: growth.grow_runs(effort.largest),
        "personal": lambda: parts.personal(effort.turns, effort.works[1], effort.images),
        "profile": lambda: profile.profile(effort.turns),
        "training": lambda: profile.ways_to_train(effort.turns),
        "gram": lambda: profile.gram(effort.slow_turns, effort.gram),
        "evaluation": lambda: parts.evaluation(effort.turns, effort.evaluated),
        "heart": lambda: parts.heart_run(effort.slow_turns, effort.heart_rounds),
        "sweep": lambda: parts.sweep(*effort.sweep, processes=effort is not SMOKE),
        "command": lambda: parts.command(effort.slow_turns, only_help=effort is SMOKE),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="at most two minutes, without peers")
    parser.add_argument("--smoke", action="store_true", help="seconds: only whether it runs")
    parser.add_argument("--peers", nargs="*", help="install the peers first: all, or by name")
    parser.add_argument("--only", action="append", default=[], help="parts by their names")
    arguments = parser.parse_args()
    if arguments.peers is not None:
        for peer in peers.PEERS:
            if peer.name in arguments.peers or not arguments.peers:
                peers.install(peer)
    effort = FULL
    if arguments.quick:
        effort = QUICK
    if arguments.smoke:
        effort = SMOKE
    others = sections(effort)
    known = [*(work.name for work in effort.works), *others]
    for name in arguments.only:
        if name not in known:
            parser.error(f"no part is called {name!r}: there are {', '.join(known)}")
    chosen = arguments.only or known
    began = time.perf_counter()
    print(f"{os.cpu_count()} cores; medians (quartiles) of turns taken in rotation")
    targets = []
    works = [work for work in effort.works if work.name in chosen]
    if works:
        with_peers = effort is FULL or arguments.peers is not None
        targets += rounds.compare_rounds(
            works, effort.turns, effort.slow_turns, with_peers, effort.threads
        )
    for name, section in others.items():
        if name in chosen:
            targets += section()
    if targets:
        print(f"\n### Targets\n\n{verdicts(targets)}")
    print(f"\n{time.perf_counter() - began:.0f} seconds")


if __name__ == "__main__":
    main()
