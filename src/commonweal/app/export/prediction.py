"""Predictions of a run's model for new rows of a table, prepared as the training rows were."""

import csv
import io
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import pyarrow
import torch
from torch import Tensor, nn

from commonweal.base.errors import ConfigError, DataError, RunError, did_you_mean
from commonweal.base.text import quoted
from commonweal.data.split import some
from commonweal.data.tables import plain_table
from commonweal.data.tables.files import guess_encoding, read_batches
from commonweal.data.tables.plain_table import PlainColumn
from commonweal.data.tables.preprocessing import Preprocessing
from commonweal.jobs.stored import StoredModels, stored_models
from commonweal.record.record import Record
from commonweal.study.choosing import ChosenModel, chosen_model, read_choice
from commonweal.study.units import counted
from commonweal.task.modules import InUnits
from commonweal.task.scores import find_score
from commonweal.task.uses import mixed_module

CLASSES = ("cross-entropy", "binary")
PASS = 10_000  # rows in a forward pass
AT_NODES = "personal models of a Flower run stay at its nodes, and only the global one is here"
OUTSIDE = "outside the training range"  # the column that names such columns of a row


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


class ClientModels:
    """The models of a run: the global one, and what each client uses, where that differs."""

    def __init__(self, record: Record, trust: bool = False) -> None:
        if record.loss in ("tokens", "causal"):
            raise ConfigError(
                f"the model of {str(record.folder)!r} predicts tokens: apply its module yourself, "
                "Record.read(folder).module()"
            )
        self.record = record
        self.trust = trust
        differ = bool(record.evaluated and record.evaluated[-1].personal)
        self.at_nodes = differ and record.facts.engine == "flower"  # nodes keep personal models
        self.personal = differ and not self.at_nodes  # personal models are here

    @property
    def clients(self) -> tuple[str, ...]:
        """The clients that have a personal model."""
        return self._stored.names if self.personal else ()

    @cached_property
    def _stored(self) -> StoredModels:
        return stored_models(self.record.folder, self.record.facts, self.trust)

    def of(self, client: str | None = None) -> Predictor:
        """The global model, or what a client uses."""
        module = self.record.raw_module(self.trust)
        if client is not None:
            module = self._used_by(client, module)
        target = self.record.facts.target
        if target is not None:
            module = InUnits(module, target.mean, target.deviation, target.log)
        return Predictor(module, self.record.loss).eval()

    def _used_by(self, client: str, module: nn.Module) -> nn.Module:
        """Return the models of a client in the last checkpoint, as one module of this kind."""
        if self.at_nodes:
            raise ConfigError(f"client {client!r}: {AT_NODES}; leave --client out")
        stored = self._stored
        if client not in stored.ids:
            hint = did_you_mean(client, stored.names)
            raise ConfigError(f"client {client!r} is not in this run: {hint}")
        if not stored.personalizes:
            method = self.record.experiment["client"]["name"]
            raise ConfigError(
                f"client method {method!r} trains one model for all: leave --client out, or run "
                "with a personal method such as client=ditto"
            )
        return mixed_module(stored.task, module, stored.uses(client))


def class_names(record: Record, outputs: int) -> list[str]:
    """The classes' names: the labels' own words, or their numbers."""
    return list(map(str, record.facts.class_names or range(outputs)))


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
    """Predict every row of a table with a run's models.

    With personal models each row is predicted by its client's, and by the global model where the
    client is not known. Columns that name rows (ids and the client) are repeated.

    Args:
        record: The run.
        path: The table.
        client: Use this client's model for all rows.
        trust: Import the programs that the run names.
    """
    models = ClientModels(record, trust)
    preprocessing = _preprocessing(record)
    if client is not None or not models.personal:
        trained = _Trained(record, preprocessing, models.of(client))
        predictions = _predict(path, preprocessing, lambda owner: (trained, None))
        if models.at_nodes:
            predictions.remarks.append(f"predicted by the global model: {AT_NODES}")
        return predictions

    @cache
    def trained_for(client: str | None) -> _Trained:
        return _Trained(record, preprocessing, models.of(client))

    def choose(owner: str | None) -> tuple[_Trained, str | None]:
        named = owner if owner in models.clients else None
        return trained_for(named), named

    return _predict(path, preprocessing, choose, "personal")


def predict_chosen(
    folder: Path, path: str | Path, client: str | None = None, trust: bool = False
) -> Predictions:
    """Predict every row of a table with the models that clients chose.

    Args:
        folder: Where `commonweal choose` wrote choice.json.
        path: The table. Its column of clients says which client's model predicts a row.
        client: Use this client's model for all rows.
        trust: Import the programs that the runs name.
    """
    if client is not None:
        chosen = chosen_model(folder, client)
        return predict_table(Record.read(chosen.folder), path, own_client(chosen), trust)
    taken = read_choice(folder)
    first = Record.read(next(iter(taken.models.values())).folder)
    preprocessing = _preprocessing(first)
    if preprocessing.client is None:
        raise ConfigError("the table has no column of clients: say whose model, with --client NAME")

    @cache
    def models_of(run: Path) -> ClientModels:
        return ClientModels(Record.read(run), trust)

    @cache
    def choose(owner: str | None) -> tuple[_Trained, str | None]:
        if owner is None:
            raise DataError(
                f"{str(path)!r} has no column {preprocessing.client!r}: add it, or use --client "
                "NAME"
            )
        own = taken.models.get(owner, taken.newcomers)
        models = models_of(own.folder)
        record = models.record
        model = models.of(own_client(own))
        return _Trained(record, _preprocessing(record), model), own.client or None

    return _predict(path, preprocessing, choose, "chosen")


# The model of a client, and whose it is (None: the global one), by the name in a row
Choose = Callable[[str | None], "tuple[_Trained, str | None]"]


def _predict(
    path: str | Path, preprocessing: Preprocessing, choose: Choose, kind: str = ""
) -> Predictions:
    """Predict the rows of a table, each by its client's model.

    Args:
        path: The table.
        preprocessing: Says which columns name the clients.
        choose: Gives the model of a client.
        kind: What the clients' models are called; empty: all rows have the same model.
    """
    header: tuple[str, ...] = ()
    rows: list[list[str]] = []
    remarks: dict[str, None] = {}
    used: Counter[str | None] = Counter()
    strange: set[str] = set()
    truth = _Truth(preprocessing)
    for table in _tables(Path(path), preprocessing):
        owners = plain_table.owners(preprocessing.values(), table) if kind else None
        count = len(next(iter(table.values())))
        by_row: Sequence[str | None] = owners or [None] * count
        ordered: list[list[str]] = [[]] * count
        remarks |= dict.fromkeys(preprocessing.unknown(table))  # once, and not client by client
        for owner in dict.fromkeys(by_row):
            trained, named = choose(owner)
            index = [i for i, name in enumerate(by_row) if name == owner]
            own = {name: [texts[i] for i in index] for name, texts in table.items()}
            answers = trained.answers(own)
            columns = trained.columns(own, answers)
            header = tuple(columns)
            used[named] += len(index)
            if owner is not None and named is None:
                strange.add(owner)
            truth.add(trained, answers, own)
            for i, row in zip(index, zip(*columns.values(), strict=True), strict=True):
                ordered[i] = list(row)
        rows += ordered
    if not rows:
        raise DataError(f"{str(path)!r} has no rows: check the file")
    notes = list(remarks)
    if kind:
        notes.append(_whose(used, kind, preprocessing.client, sorted(strange)))
    far = sum(bool(row[-1]) for row in rows) if header[-1] == OUTSIDE else 0
    if far:
        notes.append(
            f"{far} rows have values far outside the range of the training rows, where predictions "
            f"are guesses: see the column {OUTSIDE!r}"
        )
    return Predictions(header, rows, [*notes, *truth.lines()])


def _whose(
    used: Mapping[str | None, int], kind: str, column: str | None, strange: Sequence[str]
) -> str:
    """Return a note on the models by which rows were predicted."""
    by_global = used.get(None, 0)
    own = sum(used.values()) - by_global
    clients = len(used.keys() - {None})
    whose = f"models of their {clients} clients" if clients > 1 else "model of 1 client"
    text = f"{counted(own, 'row')} by the {kind} {whose} ({column})"
    if not own:
        text = f"no row names a client of this run ({column})"
    if not by_global:
        return text
    why = f", as {some(strange)} took no part in training" if strange else ""
    rest = f"{counted(by_global, 'row')} by the global model{why}"
    return f"{text}; {rest}; --client NAME takes another"


def own_client(chosen: ChosenModel) -> str | None:
    """The client whose personal model was chosen; None for a global model."""
    return chosen.client if chosen.personal else None


@dataclass(frozen=True)
class _Trained:
    """A model with how rows of a table become its features."""

    record: Record
    preprocessing: Preprocessing
    model: Predictor

    def answers(self, table: dict[str, list[str]]) -> Tensor:
        """The model's outputs for the rows of a table."""
        x = torch.from_numpy(self.preprocessing.rows(table))
        with torch.no_grad():
            return torch.cat(list(map(self.model, torch.split(x, PASS))))

    def columns(self, table: dict[str, list[str]], answers: Tensor) -> dict[str, list[str]]:
        """The columns that name rows, the predictions, and what is outside the training range."""
        naming = plain_table.naming(self.preprocessing.values(), table)
        columns = {name: table[name] for name in naming}
        predicted = f"predicted {self.preprocessing.label}"
        if self.model.loss in CLASSES:
            names = class_names(self.record, answers.shape[1])
            classes = answers.argmax(1)
            limit = self.preprocessing.threshold
            if limit is not None and answers.shape[1] == 2:
                classes = (answers[:, 1] >= limit).long()
            columns[predicted] = [names[i] for i in classes.tolist()]
            for name, values in zip(names, answers.T.tolist(), strict=True):
                columns[f"probability of {name}"] = [f"{value:.6f}" for value in values]
        else:
            values = answers.reshape(len(answers), -1)[:, 0].tolist()
            columns[predicted] = [f"{value:.6g}" for value in values]
        if any(column.low is not None for column in self.preprocessing.used):
            far = plain_table.outside(self.preprocessing.used, table)
            columns[OUTSIDE] = list(map(", ".join, far))
        return columns


class _Truth:
    """The labels of the rows, where the table has them, and how well they are predicted."""

    def __init__(self, preprocessing: Preprocessing) -> None:
        self.preprocessing = preprocessing
        self.score = ""
        self.outputs: list[Tensor] = []
        self.labels: list[Tensor] = []
        self.variance: float | None = None
        self.strange: Counter[str] = Counter()  # labels that the model does not know

    def add(self, trained: _Trained, answers: Tensor, table: Mapping[str, Sequence[str]]) -> None:
        """Take the predictions of some rows into account."""
        column = self.preprocessing.label
        if column not in table or trained.model.loss == "cox":
            return
        labels = self._labels(table[column])
        known = ~labels.isnan()
        outputs = answers.double()
        if trained.model.loss in CLASSES:
            outputs = outputs.clamp(min=1e-30).log()
            limit = trained.preprocessing.threshold
            if limit is not None and outputs.shape[1] == 2:
                outputs[:, 1] -= math.log(limit / (1 - limit))  # at the threshold both are equal
        self.score = trained.record.facts.score
        target = trained.record.facts.target
        if target is not None:
            self.variance = target.deviation**2 if target.variance is None else target.variance
        self.outputs.append(outputs[known])
        self.labels.append(labels[known])

    def _labels(self, texts: Sequence[str]) -> Tensor:
        """The labels as numbers, NaN where there is none or it is not a class."""
        names = self.preprocessing.class_names
        if names and tuple(map(str.lower, names)) not in plain_table.TRUTH:
            numbers = {name: float(i) for i, name in enumerate(names)}
            known = [numbers.get(plain_table.plain_code(text.strip())) for text in texts]
        else:
            words = (names[0], names[1]) if names else ("false", "true")
            known = _numbers(PlainColumn("", "boolean" if names else "number", words=words), texts)
        for text, value in zip(texts, known, strict=True):
            if value is None and not plain_table.is_missing(text):
                self.strange[text] += 1
        values = [math.nan if value is None else value for value in known]
        return torch.tensor(values, dtype=torch.float64)

    def lines(self) -> list[str]:
        """The run's score over all rows that have a label."""
        y = torch.cat(self.labels) if self.labels else torch.empty(0)
        lines = []
        if self.strange:
            rows, strange = counted(self.strange.total(), "row"), some(sorted(self.strange))
            lines.append(f"{rows} with labels unknown to the model are not scored: {strange}")
        if len(y) == 0 or ":" in self.score:
            return lines
        labels = y.long() if self.preprocessing.class_names else y
        score = find_score(self.score, self.variance)
        stats = score.row_stats(torch.cat(self.outputs), labels)
        value = float(score.reduce(stats, torch.tensor([0, len(y)])))
        shown = f"{100 * value:.2f} %" if score.in_per_cent else f"{value:.4g}"
        limit = self.preprocessing.threshold
        at = "" if limit is None else f" at the threshold {limit:.3g}"
        return [*lines, f"{self.score}{at} over the {len(y)} rows that have a label: {shown}"]


def _numbers(column: PlainColumn, texts: Sequence[str]) -> list[float | None]:
    """Strings in the notation that most of them fit; None where one does not."""

    def fitting(notation: PlainColumn) -> int:
        return sum(plain_table.strings_fit(notation, [text]) for text in dict.fromkeys(texts))

    notation = max((column, *plain_table.notations(column)), key=fitting)
    values: list[float | None] = []
    for text in texts:
        fits = plain_table.strings_fit(notation, [text])
        values.append(plain_table.parse_number(notation, text) if fits else None)
    return values


def _preprocessing(record: Record) -> Preprocessing:
    preprocessing = record.preprocessing()
    if preprocessing is None:
        raise RunError(
            f"{str(record.folder)!r} was not trained on a table: apply its module yourself, "
            "Record.read(folder).module()"
        )
    return preprocessing


def _tables(path: Path, preprocessing: Preprocessing) -> Iterator[dict[str, list[str]]]:
    """The rows of a file as texts, some at a time."""
    decimals = {column.name: column.decimal for column in preprocessing.columns}
    encoding = guess_encoding(path) if path.is_file() else "utf-8"
    if "utf-8" not in (encoding, preprocessing.encoding):
        encoding = preprocessing.encoding
    for batch in read_batches(path, "auto", encoding):
        yield {name: _texts(values, decimals.get(name, ".")) for name, values in batch.items()}


def _texts(values: pyarrow.Array, decimal: str) -> list[str]:
    """A column as texts. Numbers of Parquet are written as the training rows' were."""
    entries = values.to_pylist()
    if not pyarrow.types.is_floating(values.type):
        return ["" if text is None else text for text in entries]
    point = "," if decimal == "," else "."
    return ["" if number is None else str(number).replace(".", point) for number in entries]
