"""Rounds of FedAvg: every work, every contender, in turns."""

import os
from collections.abc import Sequence
from dataclasses import replace

from .contenders import centralised, hand_written, ours
from .peers import PEERS, PeerError, installed, start
from .report import Target, best, compared
from .timing import Contender, InProcess, Timed, in_turns, ratio, threads_text
from .work import CNN, DEVICES, LOGISTIC, LSTM, MLP, UNEQUAL, WORKS, Work

__all__ = ["compare_rounds", "smaller"]

# Works that pfl, and the other peers, are given: the largest ratio of ours to theirs.
AGAINST_PFL = {LOGISTIC.name: 0.5, MLP.name: 0.5, CNN.name: 1.0, LSTM.name: 1.0}
AGAINST_PEERS = {LOGISTIC.name: 0.4, MLP.name: 0.4}
AGAINST_LOOP = {DEVICES.name: 0.7, UNEQUAL.name: 0.7, CNN.name: 1.05, LSTM.name: 1.05}
AGAINST_LIMIT = {MLP.name: 2.5, CNN.name: 2.5}
# The received model is evaluated on the first batch only: nearer to what peers do, who evaluate
# nothing.
BATCH_LOSSES = {"name": "averaging", "loss": "batch"}
MANY = 1000  # clients from which Flower is skipped: it takes minutes to start 10,000
SLOW = (CNN.name, LSTM.name, DEVICES.name, UNEQUAL.name)  # a turn is one round


def compare_rounds(
    works: Sequence[Work] = WORKS,
    turns: int = 9,
    slow_turns: int = 5,
    peers: bool = True,
    threads: Sequence[int] = (),
) -> list[Target]:
    """Print a table for each work. Returns the targets."""
    targets = []
    for work in works:
        slow = work.name in SLOW
        rounds = 1 if slow else 2
        counts = list(threads) or sorted({1, os.cpu_count() or 1})
        contenders = _here(work, counts, rounds)
        if peers:
            contenders += _peers(work, counts, rounds)
        try:
            times = in_turns(contenders, slow_turns if slow else turns)
        finally:
            for each in contenders:
                each.close()
        fastest = _fastest(times)
        title = f"{work.name}: {work.cohort} of {work.clients} clients, {work.rows} rows"
        print(f"\n### {title}, batch {work.batch}, one epoch\n")
        print(compared(times, best(times, "commonweal")), flush=True)
        targets += _targets(work, times, fastest)
    return targets


def _here(work: Work, threads: Sequence[int], rounds: int) -> list[Contender]:
    data = work.federation()
    found: list[Contender] = []
    for count in threads:
        ways = {
            "commonweal": ours(work, work.task(), data),
            "with batch losses": ours(work, work.task(), data, algorithm=BATCH_LOSSES),
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


def _fastest(times: dict[str, list[Timed]]) -> dict[str, str]:
    """The fastest way of each contender."""
    contenders = dict.fromkeys(name.split(",")[0] for name in times)
    return {contender: best(times, contender) for contender in contenders}


def _targets(work: Work, times: dict[str, list[Timed]], fastest: dict[str, str]) -> list[Target]:
    """What was asked of this work, each against the other's fastest way."""
    base = times[fastest["commonweal"]]
    asked = {
        "loop" if work.name in (DEVICES.name, UNEQUAL.name) else "loop with a loss pass": (
            AGAINST_LOOP
        ),
        "limit": AGAINST_LIMIT,
        "pfl": AGAINST_PFL,
        **{peer.name: AGAINST_PEERS for peer in PEERS if peer.name != "pfl"},
    }
    found = []
    for contender, limits in asked.items():
        if contender in fastest and work.name in limits:
            # On the clock, as more threads or processes take more processor time for less of it.
            measured = ratio(base, times[fastest[contender]]).median
            found.append(Target(f"{work.name}: of {contender}", limits[work.name], measured))
    return found


def smaller(work: Work) -> Work:
    """The same work for a smoke test."""
    return replace(work, clients=4, rows=min(work.rows, 6), cohort=3, batch=3)
