"""What a run's model says about new rows of a table, prepared as the training rows were."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow
import torch
from torch import Tensor, nn

from commonweal.analysis.choosing import ChosenModel, chosen_clients, chosen_model
from commonweal.base.errors import ConfigError, DataError, RunError, did_you_mean
from commonweal.base.text import quoted
from commonweal.data.preprocessing import Preprocessing
from commonweal.datasets._tables import read_batches
from commonweal.jobs.reopening import reopen
from commonweal.record.record import Record
from commonweal.training.task import InUnits
from commonweal.training.uses import mixed_module, one_model

__all__ = ["Predictor", "class_names", "own_client", "predict_chosen", "predict_table", "predictor"]

CLASSES = ("cross-entropy", "binary")
PASS = 10_000  # rows in a forward pass


class Predictor(nn.Module):
    """A module from features to what a person asks for: probabilities, or values in units."""

    def __init__(self, module: nn.Module, loss: str) -> None:
        super().__init__()
        self.module = module
        self.loss = loss

    def forward(self, x: Tensor) -> Tensor:
        """Probabilities of classes (n, classes), or values (n, 1)."""
        outputs: Tensor = self.module(x)
        if self.loss == "cross-entropy":
            return outputs.softmax(-1)
        if self.loss == "binary":
            positive = outputs.reshape(-1, 1).sigmoid()
            return torch.cat([1 - positive, positive], 1)
        return outputs


def predictor(record: Record, client: str | None = None, trust: bool = False) -> Predictor:
    """A run's final model, or the personal model of a client.

    Args:
        record: The run.
        client: The client whose personal model is asked for; None for the global model.
        trust: Import the programs that the run names.
    """
    loss = record.loss
    if loss == "tokens":
        raise ConfigError(
            f"the model of {str(record.folder)!r} predicts tokens: apply its module yourself, "
            "Record.read(folder).module()"
        )
    module = record.raw_module(trust)
    if client is not None:
        module = _personal(record, module, client, trust)
    target = record.facts.target
    if target is not None:
        module = InUnits(module, target.mean, target.deviation)
    return Predictor(module, loss).eval()


def _personal(record: Record, module: nn.Module, client: str, trust: bool) -> nn.Module:
    """What a client uses according to the last checkpoint, as one module of this kind."""
    job, state = reopen(record.folder, trust=trust)
    names = job.population.names
    if client not in names:
        raise ConfigError(f"client {client!r} is not in this run: {did_you_mean(client, names)}")
    if not job.algorithm.personalizes:
        method = record.experiment["client"]["name"]
        raise ConfigError(
            f"client method {method!r} trains one model for all: leave --client out, or run with a "
            "personal method such as client=ditto"
        )
    own = None if job.local is None else job.local.states.get(names.index(client))
    message = job.algorithm.message(state)
    if own is None:
        uses = one_model(job.algorithm.model(state))
    else:
        uses = job.algorithm.uses(message, own)
    return mixed_module(job.task, module, uses)


def class_names(record: Record, outputs: int) -> list[str]:
    """The classes' names: the labels' own words, or their numbers."""
    known = record.facts.class_names or ()
    return [str(name) for name in known] or [str(number) for number in range(outputs)]


@dataclass(frozen=True)
class Predictions:
    """A table of predictions, and sentences about the rows."""

    header: tuple[str, ...]
    rows: list[list[str]]
    remarks: list[str]

    def csv(self) -> bytes:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        for row in (self.header, *self.rows):
            writer.writerow(map(quoted, row))  # ids and names are data, not formulas
        return text.getvalue().encode()


def predict_table(
    record: Record, path: str | Path, client: str | None = None, trust: bool = False
) -> Predictions:
    """What a run's model predicts for every row of a table.

    Columns that name rows (ids and the client) are repeated, so that rows can be found again.
    """
    trained = _trained(record, client, trust)
    parts = [trained.predict(table) for table in _tables(Path(path), trained.preprocessing)]
    rows = [row for part in parts for row in part.rows]
    if not rows:
        raise DataError(f"{str(path)!r} has no rows: check the file")
    remarks = dict.fromkeys(remark for part in parts for remark in part.remarks)
    return Predictions(parts[0].header, rows, list(remarks))


def predict_chosen(
    folder: Path, path: str | Path, client: str | None = None, trust: bool = False
) -> Predictions:
    """What the models that clients chose predict for every row of a table.

    Args:
        folder: Where `commonweal choose` wrote choice.json.
        path: The table. Its column of clients says which client's model predicts a row.
        client: Use this client's model for all rows.
        trust: Import the programs that the runs name.
    """
    if client is not None:
        chosen = chosen_model(folder, client)
        return predict_table(Record.read(chosen.folder), path, own_client(chosen), trust)
    models = chosen_clients(folder)
    first = Record.read(next(iter(models.values())).folder)
    preprocessing = _preprocessing(first)
    column = preprocessing.client
    if column is None:
        raise ConfigError("the table has no column of clients: say whose model, with --client NAME")
    trained: dict[str, _Trained] = {}
    header: tuple[str, ...] = ()
    rows: list[list[str]] = []
    remarks: dict[str, None] = {}
    for table in _tables(Path(path), preprocessing):
        if column not in table:
            raise DataError(f"{str(path)!r} has no column {column!r}: add it, or use --client NAME")
        owners = np.array([owner.strip() for owner in table[column]], object)
        ordered: list[list[str]] = [[]] * len(owners)
        for owner in dict.fromkeys(owners.tolist()):
            if owner not in trained:
                chosen = chosen_model(folder, owner)
                record = Record.read(chosen.folder)
                trained[owner] = _trained(record, own_client(chosen), trust)
            index = np.flatnonzero(owners == owner).tolist()
            part = trained[owner].predict(
                {name: [values[i] for i in index] for name, values in table.items()}
            )
            header = part.header
            remarks |= dict.fromkeys(part.remarks)
            for i, row in zip(index, part.rows, strict=True):
                ordered[i] = row
        rows += ordered
    if not rows:
        raise DataError(f"{str(path)!r} has no rows: check the file")
    return Predictions(header, rows, list(remarks))


def own_client(chosen: ChosenModel) -> str | None:
    """The client whose personal model was chosen; None for a global model."""
    return chosen.client if chosen.personal else None


@dataclass(frozen=True)
class _Trained:
    """A model with how rows of a table become its features."""

    record: Record
    preprocessing: Preprocessing
    model: Predictor

    def predict(self, table: dict[str, Sequence[str]]) -> Predictions:
        answers = _answers(self.model, self.preprocessing.rows(table))
        named = {name: table[name] for name in _naming(self.preprocessing) if name in table}
        columns = _columns(self.record, self.preprocessing, self.model.loss, answers)
        rows = [list(row) for row in zip(*named.values(), *columns.values(), strict=True)]
        return Predictions((*named, *columns), rows, self.preprocessing.unknown(table))


def _trained(record: Record, client: str | None, trust: bool) -> _Trained:
    preprocessing = _preprocessing(record)
    return _Trained(record, preprocessing, predictor(record, client, trust))


def _preprocessing(record: Record) -> Preprocessing:
    preprocessing = record.preprocessing()
    if preprocessing is None:
        raise RunError(
            f"{str(record.folder)!r} was not trained on a table: apply its module yourself, "
            "Record.read(folder).module()"
        )
    return preprocessing


def _naming(preprocessing: Preprocessing) -> list[str]:
    """The columns that say which row it is."""
    ids = [column.name for column in preprocessing.columns if column.is_id]
    return ids if preprocessing.client is None else [preprocessing.client, *ids]


def _tables(path: Path, preprocessing: Preprocessing) -> Iterator[dict[str, Sequence[str]]]:
    """The rows of a file as texts, some at a time."""
    decimals = {column.name: column.decimal for column in preprocessing.columns}
    for batch in read_batches(path, "auto", preprocessing.encoding):
        yield {name: _texts(values, decimals.get(name, ".")) for name, values in batch.items()}


def _texts(values: pyarrow.Array, decimal: str) -> list[str]:
    """A column as texts. Numbers of Parquet are written as the training rows' were."""
    found = values.to_pylist()
    if not pyarrow.types.is_floating(values.type):
        return ["" if text is None else text for text in found]
    return ["" if number is None else str(number).replace(".", decimal) for number in found]


def _answers(model: Predictor, x: np.ndarray) -> Tensor:
    with torch.no_grad():
        parts = [model(part) for part in torch.split(torch.from_numpy(x), PASS)]
    return torch.cat(parts)


def _columns(
    record: Record, preprocessing: Preprocessing, loss: str, answers: Tensor
) -> dict[str, list[str]]:
    if loss not in CLASSES:
        values = answers.reshape(len(answers), -1)[:, 0]
        return {f"predicted {preprocessing.label}": [f"{value:.6g}" for value in values.tolist()]}
    names = class_names(record, answers.shape[1])
    chosen = [names[i] for i in answers.argmax(1).tolist()]
    columns = {f"predicted {preprocessing.label}": chosen}
    for i, name in enumerate(names):
        columns[f"probability of {name}"] = [f"{value:.6f}" for value in answers[:, i].tolist()]
    return columns
