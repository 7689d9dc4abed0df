"""Rounds of FedAvg: every work, every contender, in turns."""

import os
from collections.abc import Sequence
from dataclasses import replace

from .contenders import centralised, hand_written, ours
from .peers import PEERS, PeerError, installed, start
from .report import Target, best, compared, table
from .timing import Contender, InProcess, Spread, Timed, in_turns, ratio, spread, threads_text
from .work import CNN, DEVICES, LOGISTIC, LSTM, MLP, UNEQUAL, WORKS, Work

__all__ = ["SHARED", "compare_rounds", "cores", "smaller"]

# The largest ratio of ours to another's time, by work: FedAvg does what peers do. Rules that need
# losses do what the contenders "with a loss pass" do.
OURS = "Commonweal"
FAIR = "Commonweal with TERM"
AGAINST: dict[str, dict[str, float]] = {
    "loop": {DEVICES.name: 0.7, UNEQUAL.name: 0.7, CNN.name: 1.05, LSTM.name: 1.05},
    "limit": {MLP.name: 2.5, CNN.name: 2.5},
    "pfl": {LOGISTIC.name: 0.5, MLP.name: 0.5, CNN.name: 1.0, LSTM.name: 1.0},
}
AGAINST |= {peer.name: {LOGISTIC.name: 0.4, MLP.name: 0.4} for peer in PEERS if peer.name != "pfl"}
MANY = 1000  # clients from which Flower is skipped: it takes minutes to start 10,000
SHARED = (MLP, replace(MLP, cohort=100), DEVICES, UNEQUAL, LOGISTIC, replace(LOGISTIC, cohort=100))
SLOW = (CNN.name, LSTM.name, DEVICES.name, UNEQUAL.name)  # a turn is one round


def compare_rounds(
    works: Sequence[Work] = WORKS,
    turns: int = 9,
    slow_turns: int = 5,
    peers: bool = True,
    threads: Sequence[int] = (),
) -> list[Target]:
    """Print a table for each work, and one of all. Returns the targets."""
    targets = []
    columns: dict[str, dict[str, str]] = {}
    for work in works:
        slow = work.name in SLOW
        times = _timed(work, slow_turns if slow else turns, 1 if slow else 2, peers, threads)
        title = f"{work.name}: {work.cohort} of {work.clients} clients, {work.rows} rows"
        print(f"\n### {title}, batch {work.batch}, one epoch\n")
        print(compared(times, best(times, OURS)), flush=True)
        ratios = _ratios(times)
        wall = spread(1e3 * turn.wall for turn in times[best(times, OURS)])
        columns[work.name] = {f"a round of {OURS}, ms": wall.text(1)}
        columns[work.name] |= {name: value.text() for name, value in ratios.items()}
        for name, value in ratios.items():
            if work.name in AGAINST.get(name, {}):
                target = AGAINST[name][work.name]
                targets.append(Target(f"{work.name}: of {name}", target, value.median))
    names = dict.fromkeys(name for column in columns.values() for name in column)
    rows = [[name, *(column.get(name, "") for column in columns.values())] for name in names]
    print("\n### Time of a round relative to others, each in its fastest way\n")
    print(table(["", *columns], rows), flush=True)
    return targets


def _timed(
    work: Work, turns: int, rounds: int, peers: bool, threads: Sequence[int]
) -> dict[str, list[Timed]]:
    """The times of all contenders on some work."""
    counts = list(threads) or sorted({1, os.cpu_count() or 1})
    contenders = _here(work, counts, rounds)
    try:
        if peers:
            contenders += _peers(work, counts, rounds)
        return in_turns(contenders, turns)
    finally:
        for each in contenders:
            each.close()


def _ratios(times: dict[str, list[Timed]]) -> dict[str, Spread]:
    """Our time over the others', each in its fastest way.

    On the clock, as more threads or processes take more processor time for less of it.
    """
    ratios = {}
    for contender in dict.fromkeys(name.split(",")[0] for name in times):
        if contender not in (OURS, FAIR):
            base = FAIR if contender.endswith("with a loss pass") else OURS
            ratios[contender] = ratio(times[best(times, base)], times[best(times, contender)])
    return ratios


def _here(work: Work, threads: Sequence[int], rounds: int) -> list[Contender]:
    data = work.federation()
    found: list[Contender] = []
    for count in threads:
        ways = {
            OURS: ours(work, work.task(), data),
            FAIR: ours(work, work.task(), data, rule="term"),
            "loop": hand_written(work, work.task(), data, False),
            "loop with a loss pass": hand_written(work, work.task(), data, True),
            "limit": centralised(work, work.task(), data, False),
            "limit with a loss pass": centralised(work, work.task(), data, True),
        }
        for name, way in ways.items():
            found.append(InProcess(f"{name}, {threads_text(count)}", way, count, rounds))
    return found


def _peers(work: Work, threads: Sequence[int], rounds: int) -> list[Contender]:
    found: list[Contender] = []
    for peer in PEERS:
        if not installed(peer):
            print(f"{peer.name} is not installed: skipped (--peers installs it)")
            continue
        if peer.name == "flower" and work.clients > MANY:
            print(f"{work.name}: flower takes minutes to start {work.clients:,} clients: skipped")
            continue
        # Of the others, pfl alone is asked for in all its ways.
        ways = [(count, 1) for count in (threads if peer.name == "pfl" else threads[:1])]
        ways += [(1, processes) for processes in peer.processes if processes > 1]
        for count, processes in ways:
            try:
                found.append(start(peer, work, count, processes, rounds))
            except PeerError as error:
                print(f"{work.name}: {error}: skipped")
    return found


def cores(turns: int, works: Sequence[Work]) -> list[Target]:
    """Rounds by one thread and by one for each core."""
    rows = []
    count = os.cpu_count() or 1
    for work in works:
        one_round = ours(work, work.task(), work.federation())
        times = in_turns([InProcess(str(n), one_round, n) for n in (1, count)], turns)
        one, all_cores = times["1"], times[str(count)]
        rows.append(
            (
                f"{work.model}, {work.cohort} x {work.rows}{' unequal' if work.spread else ''}",
                *(spread(1e3 * turn.wall for turn in taken).text(1) for taken in (one, all_cores)),
                ratio(one, all_cores).text(),
                ratio(all_cores, one, processor=True).text(),
            )
        )
    header = ("ms per round", "1 thread", threads_text(count), "gain", "processor time")
    print(f"\n### What the cores give\n\n{table(header, rows)}", flush=True)
    return []


def smaller(work: Work) -> Work:
    """The same work for a smoke test."""
    return replace(work, clients=4, rows=min(work.rows, 6), cohort=3, batch=3)
