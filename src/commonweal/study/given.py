"""Models that clients are given, one each, as `choose` has chosen them on validation samples."""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch

from commonweal.base.errors import RunError
from commonweal.base.files import read_plain
from commonweal.record.record import Record
from commonweal.record.rounds import ClientTable
from commonweal.record.test_scores import TestScores
from commonweal.study.plan import ALONE
from commonweal.training.evaluation import Evaluation

FILE = "choice.json"
GIVEN = "given"  # the label of what clients are given, where it is not one method for all


class Given(NamedTuple):
    """The method whose model every client is given, and the evidence for it."""

    how: str  # the way of choosing
    refit: bool  # the models were trained again, on all samples
    runs: dict[str, dict[int, Record]]  # by method and seed
    taken: dict[int, dict[str, str]]  # the method, by seed and client
    notes: tuple[str, ...] = ()  # why, and what else a reader should know
    worth: float | None = None  # a gain worth having, in points or in % of an error, as asked for

    @property
    def votes(self) -> dict[str, Counter[str]]:
        """By client, in how many seeds it is given each method."""
        votes: dict[str, Counter[str]] = {}
        for by_client in self.taken.values():
            for client, method in by_client.items():
                votes.setdefault(client, Counter())[method] += 1
        return votes

    @property
    def method(self) -> str:
        """The one method that all clients are given; GIVEN where they differ."""
        methods = {method for by_client in self.taken.values() for method in by_client.values()}
        return methods.pop() if len(methods) == 1 else GIVEN

    @property
    def words(self) -> str:
        """Describe what clients use, as in "with ..."; empty where all keep local training."""
        if self.method == ALONE:
            return ""
        if self.method == GIVEN:
            return "with the model that each client is given"
        return f"with {self.method}, which all clients are given"

    def plain(self) -> dict[str, object]:
        """Return the given models as JSON can hold them."""
        given = {client: own.most_common(1)[0][0] for client, own in self.votes.items()}
        return {"how": self.how, "refit": self.refit, "models": given, "notes": self.notes}

    def records(self) -> dict[str, list[Record]]:
        """The runs by method, with what clients are given where that is not one method."""
        records = {method: list(own.values()) for method, own in self.runs.items()}
        if self.method == GIVEN:
            records[GIVEN] = [self._run(seed) for seed in self.taken]
        return records

    def _run(self, seed: int) -> Record:
        runs = {method: own[seed] for method, own in self.runs.items()}
        first = next(run for method, run in runs.items() if method != ALONE)
        return GivenRun(**vars(first), runs=runs, taken=self.taken[seed])


@dataclass(frozen=True)
class GivenRun(Record):
    """The given models of one seed as a run: each client has the scores of its method."""

    runs: Mapping[str, Record]  # by method
    taken: Mapping[str, str]  # by client

    def clients(self, round: int | None = None) -> ClientTable:
        """Every client's evaluation at the end of its method's run."""
        tables = {method: run.clients(round) for method, run in self.runs.items()}
        first = next(iter(tables.values()))
        losses, scores = [], []
        for name in first.names:
            table = tables[self.taken[name]]
            evaluation = table.evaluation.personal or table.evaluation
            k = list(table.names).index(name)
            losses.append(evaluation.losses[k])
            scores.append(evaluation.score[k])
        by_name = {self.facts.score: torch.stack(scores)}
        sizes = first.evaluation.sizes
        return ClientTable(first.names, Evaluation(torch.stack(losses), by_name, sizes))

    def test_scores(self) -> TestScores | None:
        """The score of every test sample by its client's method."""
        known = {method: run.test_scores() for method, run in self.runs.items()}
        first = next(iter(known.values()))
        if first is None:
            return None
        values = first.used.clone()
        for k, name in enumerate(first.names):
            own = known[self.taken[name]]
            if own is None:
                return None
            part = slice(int(first.offsets[k]), int(first.offsets[k + 1]))
            values[part] = own.used[part]
        return replace(first, values=values, personal=None)


def read_given(folder: Path, read: Callable[[Path], Record] = Record.read) -> Given | None:
    """Return what clients are given by the runs of a folder; None where nothing was chosen.

    read: opens the folder of a run
    """
    path = folder / FILE
    if not path.exists():
        return None
    try:
        saved = json.loads(read_plain(path))
        runs = {}
        for method, by_seed in saved["runs"].items():
            runs[method] = {int(seed): read(folder / run) for seed, run in by_seed.items()}
        taken: dict[int, dict[str, str]] = {}
        for line in saved["clients"]:
            taken.setdefault(line["seed"], {})[line["client"]] = line["taken"]
        notes = tuple(saved["notes"])
        return Given(saved["how"], saved["refit"], runs, taken, notes, saved["worth"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise RunError(f"{str(path)!r} is damaged ({error}): run commonweal choose again") from None
