"""The predictions of runs for the samples of their clients, as one table for other tools."""

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from commonweal.base.errors import ConfigError, RunError
from commonweal.base.files import write_file
from commonweal.base.text import quoted
from commonweal.data.federation import Federation
from commonweal.data.rows import CLASSIFICATION, Rows
from commonweal.datasets.table import file_columns
from commonweal.jobs.reopening import reopen
from commonweal.record.record import Record
from commonweal.study.interpolation import EndModels
from commonweal.study.labels import seed_of
from commonweal.training.evaluation import evaluate_rows, evaluate_rows_by_models

if TYPE_CHECKING:
    import pyarrow

SPLITS = ("train", "validation", "test")
NAMED = ("client", "row", "split", "seed", "label", "event", "prediction")


def predictions(
    folders: Sequence[str | Path],
    columns: Sequence[str] = (),
    split: str = "test",
    trust: bool = False,
) -> "pyarrow.Table":
    """Predict the samples of runs by what their clients use at the end, each by its client's.

    A line has the client, the row's number in the file (from 0), the split, the seed (whose fold it
    is), the label, the prediction and the probability of each class. Survival has times as labels,
    events, and log-risks as predictions. The data are read again, and must be those of the runs.

    Args:
        folders: Of runs, such as the folds of one method.
        columns: Of the table's file, whether or not they are features.
        split: "train", "validation", "test", or "all".
        trust: Import the programs that the runs' experiments name.

    Raises:
        RunError: The runs are private, or their data changed.
    """
    import pyarrow

    if split not in (*SPLITS, "all"):
        raise ConfigError(f"split = {split!r}: choose one of {', '.join((*SPLITS, 'all'))}")
    taken = sorted(set(columns) & set(NAMED))
    if taken:
        raise ConfigError(f"columns {taken} have the names of columns that are written anyway")
    records = [Record.read(folder) for folder in folders]
    if not records:
        raise ConfigError("no run is given")
    for record in records:
        _check(record)
    names = tuple(dict.fromkeys(columns))
    tables = []
    for record in records:
        for part in SPLITS if split == "all" else (split,):
            tables += _of_run(record, names, part, trust)
    if not tables:
        raise ConfigError(f"the runs have no {split} samples")
    if any(table.schema != tables[0].schema for table in tables):
        raise RunError("the runs have different labels or classes: name runs of one experiment")
    return pyarrow.concat_tables(tables)


def _check(record: Record) -> None:
    """Raise RunError where predictions of single samples are not available."""
    where = repr(str(record.folder))
    if record.facts.privacy is not None:
        raise RunError(f"{where} is private: predictions of single samples are outside its promise")
    if record.facts.engine == "flower":
        raise RunError(f"{where} ran on Flower: its samples are at the nodes")
    if record.loss in ("tokens", "causal"):
        raise RunError(f"{where} predicts tokens, which are no lines of a table")


def _of_run(
    record: Record, columns: Sequence[str], split: str, trust: bool
) -> "list[pyarrow.Table]":
    """The table of a run's split; none if it has no samples."""
    import pyarrow

    job, state = reopen(record.folder, trust=trust)
    models = EndModels(job, state)
    rows: Rows | None = vars(models.federation)[split]
    if rows is None or len(rows.y) == 0:
        return []
    outputs = outputs_of(models, job.algorithm.model(state), rows, split)
    names = np.array(models.federation.names)
    of_file = _of_file(record, rows, columns)
    table = pyarrow.table(
        {
            "client": np.repeat(names, rows.sizes.numpy()),
            "row": of_file.pop("row"),
            "split": [split] * len(rows.y),
            "seed": [seed_of(record)] * len(rows.y),
            **dict(_answers(record, models.federation, rows.y, outputs)),
            **of_file,
        }
    )
    return [table]


def outputs_of(models: EndModels, w: Tensor, rows: Rows, split: str = "test") -> Tensor:
    """The outputs (N, k) of what clients use for their samples, in the units of the labels.

    Args:
        models: Of a run.
        w: The global model, for clients that took no part.
        rows: The samples.
        split: Which part of the data they are.
    """
    task = models.job.task.replace(score=_nothing, also=())
    _, stats = evaluate_rows(task, w, rows)
    outputs = stats[task.score]
    if models.job.algorithm.personalizes:
        outputs = outputs.clone()
        for ids, uses in models.engine.models(models.job.algorithm, models.personal, split):
            _, own = evaluate_rows_by_models(task, uses, rows, ids, models.vectorize)
            index, _ = rows.index_of(ids)
            outputs[index] = own[task.score]
    labels = rows.y[:1].numel()
    return outputs[:, : outputs.shape[1] - labels]


def _nothing(outputs: Tensor, y: Tensor) -> Tensor:
    """A score whose statistics are the outputs and labels themselves."""
    return torch.zeros(())


def _answers(
    record: Record, federation: Federation, y: Tensor, outputs: Tensor
) -> Iterator[tuple[str, object]]:
    if record.loss == "cox":
        yield "label", y[:, 0].double().numpy()
        yield "event", y[:, 1].bool().numpy()
        yield "prediction", outputs[:, 0].numpy()
        return
    if record.loss not in CLASSIFICATION:
        yield "label", y.double().numpy()
        yield "prediction", outputs[:, 0].numpy()
        return
    if outputs.shape[1] == 1:
        outputs = torch.cat([torch.zeros_like(outputs), outputs], 1)
    probabilities = outputs.softmax(1)
    names = np.array(federation.class_names or [str(k) for k in range(outputs.shape[1])])
    classes = probabilities.argmax(1)
    preprocessing = record.preprocessing()
    limit = None if preprocessing is None else preprocessing.threshold
    if limit is not None and len(names) == 2:
        classes = (probabilities[:, 1] >= limit).long()
    yield "label", names[y.long().numpy()]
    yield "prediction", names[classes.numpy()]
    for name, column in zip(names.tolist(), probabilities.T, strict=True):
        yield f"probability of {name}", column.contiguous().numpy()


def _of_file(record: Record, rows: Rows, names: Sequence[str]) -> dict[str, object]:
    """The samples' row numbers, in the run's file where it is a table, and columns of it."""
    dataset = dict(record.experiment["dataset"])
    is_table = dataset.pop("name") == "table" and not str(dataset["path"]).endswith(".npz")
    if not is_table or rows.numbers is None:
        if names:
            raise ConfigError(
                f"{str(record.folder)!r} is no run of a table with columns: leave them out"
            )
        numbers = torch.arange(len(rows.y)) if rows.numbers is None else rows.numbers
        return {"row": numbers.numpy()}
    file = file_columns(dataset, names)
    own = rows.numbers.numpy()
    return {"row": file.rows[own], **{name: file.values[name].take(own) for name in names}}


def write(table: "pyarrow.Table", path: Path) -> None:
    """Write a table as Parquet, or as CSV, by the ending of the file."""
    import pyarrow
    import pyarrow.csv
    import pyarrow.parquet

    if path.suffix not in (".parquet", ".csv"):
        raise ConfigError(f"{str(path)!r}: the file ends with .parquet or .csv")
    sink = io.BytesIO()
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(table, sink)
    else:
        pyarrow.csv.write_csv(_as_text(table), sink)
    write_file(path, sink.getvalue(), durable=False)


def _as_text(table: "pyarrow.Table") -> "pyarrow.Table":
    """The table with strings that no spreadsheet computes: names and ids are data."""
    import pyarrow

    for k, field in enumerate(table.schema):
        name = quoted(field.name)
        column = table.column(k)
        if pyarrow.types.is_string(field.type):
            texts = [None if text is None else quoted(text) for text in column.to_pylist()]
            column = pyarrow.array(texts, pyarrow.string())
        table = table.set_column(k, name, column)
    return table
