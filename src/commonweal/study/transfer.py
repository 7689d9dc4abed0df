"""The models of single clients on the samples of the others, and the others without a client."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from commonweal.base.errors import ConfigError, did_you_mean
from commonweal.base.text import quoted
from commonweal.config.experiment import Experiment, part_name, read
from commonweal.jobs.reopening import reopen
from commonweal.record.record import Record
from commonweal.study.interpolation import EndModels
from commonweal.study.judging import judge
from commonweal.study.plan import Cell
from commonweal.study.samples import differences, inflation
from commonweal.training.evaluation import evaluate, evaluate_models

Train = Callable[[Sequence[Cell]], Mapping[Path, str]]  # gives the failures by folder


@dataclass(frozen=True, eq=False)
class Transfer:
    """The scores of every client's model on every client's test samples, a mean over runs."""

    names: tuple[str, ...]
    score: str
    lower_is_better: bool
    table: NDArray[np.float64]  # (K, K): row: whose model; column: whose samples; NaN: undefined

    def csv(self) -> bytes:
        """A line per model, a column per client's samples."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["model of", *map(quoted, self.names)])
        for name, row in zip(self.names, self.table.tolist(), strict=True):
            writer.writerow([quoted(name), *("" if np.isnan(x) else repr(x) for x in row)])
        return text.getvalue().encode()

    def best_donor(self, client: int) -> int | None:
        """The other client whose model is best on a client's samples; None: undefined."""
        column = -self.table[:, client] if self.lower_is_better else self.table[:, client].copy()
        column[client] = np.nan
        return None if np.isnan(column).all() else int(np.nanargmax(column))


def transfer(folders: Sequence[Path], trust: bool = False) -> Transfer:
    """Evaluate what each client uses on the test samples of all clients.

    Args:
        folders: Of runs of one method with personal models, such as its folds.
        trust: Import the programs that the runs' experiments name.
    """
    records = [Record.read(folder) for folder in folders]
    tables = [_of_run(record, trust) for record in records]
    kinds = [(names, own.facts.score) for (names, _), own in zip(tables, records, strict=True)]
    if len(set(kinds)) > 1:
        raise ConfigError("the runs have different clients or scores: name runs of one experiment")
    stacked = torch.stack([table for _, table in tables])
    mean = stacked.nanmean(0).numpy()
    return Transfer(tables[0][0], records[0].facts.score, records[0].lower_is_better, mean)


def _of_run(record: Record, trust: bool) -> tuple[tuple[str, ...], Tensor]:
    job, state = reopen(record.folder, trust=trust)
    models = EndModels(job, state)
    if not job.algorithm.personalizes:
        raise ConfigError(
            f"{str(record.folder)!r} has one model for all clients: take a run of local training "
            "(client=alone) or of another method with personal models"
        )
    test = models.federation.test
    task = job.task.reporting
    everyone = torch.arange(models.federation.clients)
    shared = evaluate(task, job.algorithm.model(state), test).score
    table = shared.expand(len(everyone), -1).clone()  # who took no part uses the global model
    for ids, uses in models.engine.models(job.algorithm, models.personal):
        for k, client in enumerate(ids.tolist()):
            own = uses.map(partial(_for_all, k=k, clients=len(everyone)))
            table[client] = evaluate_models(task, own, test, everyone, models.vectorize).score
    return models.federation.names, table


def _for_all(values: Tensor, k: int, clients: int) -> Tensor:
    """One client's value for all of them."""
    return values[k].expand(clients, *values.shape[1:])


# Without a client


class Absence(NamedTuple):
    """What the other clients lose (below 0: gain) where a client takes no part."""

    client: str
    loss: float  # mean over the others, in the score's own unit; above 0: they need the client
    low: float
    high: float
    significant: bool
    worse: tuple[str, ...]  # clients that lose significantly, corrected for clients and absences


def without(folders: Sequence[Path], clients: Sequence[str], train: Train) -> list[Absence]:
    """Train again without single clients, and compare what the others have, sample by sample.

    Each run is repeated with the sampler `only`, next to its folder. All intervals are corrected
    for the number of clients that are left out (Bonferroni).

    Args:
        folders: Of runs of one method, such as its folds.
        clients: Those to leave out, one at a time; none: every client.
        train: Runs what is not finished.
    """
    records = [Record.read(folder) for folder in folders]
    names = tuple(dict.fromkeys(name for record in records for name in record.clients().names))
    for client in clients:
        if client not in names:
            raise ConfigError(
                f"client {client!r} is not in the runs: {did_you_mean(client, names)}"
            )
    chosen = tuple(clients) or names
    plan = [
        Cell(f"without {client}", _changed(record, client), _folder(record.folder, k))
        for record in records
        for k, client in enumerate(names)
        if client in chosen
    ]
    failures = train(plan)
    if failures:
        raise ConfigError("; ".join(failures.values()))
    absences = []
    for client in chosen:
        again = [Record.read(cell.folder) for cell in plan if cell.label == f"without {client}"]
        absences.append(_absence(client, records, again, 0.05 / len(chosen)))
    return sorted(absences, key=lambda absence: -absence.loss)


def _changed(record: Record, client: str) -> Experiment:
    experiment = read(record.folder / "experiment.toml")
    if part_name(record.experiment.get("sampler", "uniform")) != "uniform":
        raise ConfigError(
            f"{str(record.folder)!r} has a sampler of its own, which cannot leave a client out"
        )
    others = [name for name in record.clients().names if name != client]
    return experiment.model_copy(update={"sampler": {"name": "only", "names": others}})


def _folder(folder: Path, k: int) -> Path:
    return folder.parent / f"{folder.name}-without" / str(k)


def _absence(
    client: str, records: Sequence[Record], again: Sequence[Record], level: float
) -> Absence:
    label = f"without {client}"
    changes = differences(again, {label: records})[label]
    factors = inflation(again, {label: records})[label]
    changes.pop(client, None)
    found = judge({label: changes}, level, label, inflation={label: factors})
    low, high = found.low, found.high
    return Absence(client, found.gain, low, high, low > 0 or high < 0, found.better[label])
