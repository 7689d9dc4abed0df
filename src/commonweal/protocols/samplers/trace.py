"""trace: only clients that a file lists as available in the round are asked."""

import csv
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from torch import Tensor

from commonweal.base.errors import DataError, did_you_mean
from commonweal.base.files import check_plain
from commonweal.data.population import Population
from commonweal.protocols.samplers.sampler import Draw, Sampler, at_most


@dataclass(frozen=True)
class Trace(Sampler):
    """`cohort` of the clients that are available in the round, all equally likely

    After its last round the trace starts again. In a round without a line nobody is asked.

    Args:
        path: a CSV file with the columns round and client (a name): who is available when.
    """

    path: str

    @cached_property
    def by_round(self) -> dict[int, tuple[str, ...]]:
        """The names of the available clients by round."""
        return _read(self.path)

    def choose(self, draw: Draw) -> Tensor:
        by_round = self.by_round
        names = by_round.get((draw.round - 1) % max(by_round) + 1, ())
        ids = sorted(_id(name, draw.population, self.path) for name in names)
        return at_most(draw, np.array(ids, dtype=np.int64))

    def check(self, population: Population) -> None:
        for names in self.by_round.values():
            for name in names:
                _id(name, population, self.path)


def _id(name: str, population: Population, path: str) -> int:
    if name not in population.ids:
        hint = did_you_mean(name, population.ids)
        raise DataError(f"{path!r} names the client {name!r}, which is not in the data: {hint}")
    return population.ids[name]


def _read(path: str) -> dict[int, tuple[str, ...]]:
    by_round: dict[int, list[str]] = {}
    try:
        check_plain(Path(path))
        with open(path, encoding="utf-8-sig", newline="") as file:
            for line in csv.DictReader(file):
                if line["client"] is None:
                    raise ValueError("a line has no client")
                by_round.setdefault(int(line["round"]), []).append(line["client"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path!r} is not a trace of clients: write a CSV file with the columns round and "
            f"client ({error})"
        ) from None
    if not by_round or min(by_round) < 1:
        raise DataError(f"{path!r} has no rounds, or one below 1: rounds are numbered 1, 2, ...")
    return {round: tuple(dict.fromkeys(names)) for round, names in by_round.items()}


ENTRIES = {"trace": Trace}
