"""A first look at a table: which column is the label, which the client, and what the others become.

What is guessed is written to an experiment with comments, for a person to correct.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from commonweal.base.errors import ConfigError, EncodingError
from commonweal.base.text import shown
from commonweal.config.experiment import to_toml
from commonweal.data.federation import Federation
from commonweal.data.plain_table import GAP, OTHER, Column
from commonweal.datasets import build_federation
from commonweal.datasets._shared import Pool
from commonweal.datasets._tables import (
    Profile,
    Survey,
    read_batches,
    separator_in,
    survey,
)
from commonweal.datasets.partition import IID
from commonweal.datasets.table import IMBALANCE, table
from commonweal.training.scores import SCORES

__all__ = ["Guess", "guess"]

LABELS = re.compile(
    r"^(label|target|class|y|outcome|diagnosis|result|response|died|dead|death|mortality|survived|"
    r"event|disease|ill|churn|default|fraud|score|grade|price|value|quality)\d*$",
    re.I,
)
CLIENTS = (  # the most likely first
    re.compile(r"client", re.I),
    re.compile(r"hospital|clinic|site|cent(er|re)|institut|practice|ward|klinik|standort", re.I),
    re.compile(r"school|branch|bank|store|shop|farm|field|plant|station|region|state|city", re.I),
    re.compile(r"device|sensor|machine|user|subject|patient|person|speaker|customer", re.I),
)
NUMBER = re.compile(r"[+-]?\d+([.,]\d+)?")
FEW_ROWS = 1000  # training rows below which a linear model is proposed
CLIENTS_OF_POOL = 10  # for a table that names none


@dataclass(frozen=True)
class Guess:
    """What was found in a table, line by line, and the experiment that it suggests."""

    lines: list[tuple[str, str]]  # a column, and what it becomes
    remarks: list[str]
    experiment: str  # TOML


def guess(path: Path, label: str | None, client: str | None, toml: Path) -> Guess:
    """Look at a table. toml: where the experiment will be written, to which paths are relative."""
    encoding, seen = _look(path)
    given = {"label": label, "client": client}
    seen.check({what: name for what, name in given.items() if name is not None})
    label = label or _label(seen, client)
    client = client or _client(seen, label)
    loaded = table(str(path), label, client, encoding=encoding)
    is_pool = isinstance(loaded, Pool)
    federation = build_federation(loaded, IID(CLIENTS_OF_POOL) if is_pool else None)
    client = None if is_pool else client
    lines = _lines(seen, federation, label, client)
    return Guess(
        lines=lines,
        remarks=_remarks(federation, client),
        experiment=_toml(path, toml, encoding, federation, label, client, lines),
    )


def _look(path: Path) -> tuple[str, Survey]:
    try:
        return "utf-8", survey(partial(read_batches, path))
    except EncodingError:
        return "latin-1", survey(partial(read_batches, path, encoding="latin-1"))


def _label(seen: Survey, client: str | None) -> str:
    possible = [profile for profile in seen.profiles.values() if _may_be_label(profile, client)]
    for profile in possible:
        if LABELS.match(profile.name):
            return profile.name
    if not possible:
        raise ConfigError("no column looks like a label: name it with --label")
    return possible[-1].name


def _may_be_label(profile: Profile, client: str | None) -> bool:
    usable = profile.name != client and not profile.is_id and profile.different > 1
    return usable and profile.column.becomes != "date"


def _client(seen: Survey, label: str) -> str | None:
    """The column that most likely names the clients: some of them, with several rows each."""
    possible = []
    for profile in seen.profiles.values():
        becomes = profile.column.becomes
        is_name = becomes == "text" or (becomes == "number" and profile.whole)
        several = 2 <= profile.different <= profile.first_rows / 3
        if profile.name != label and is_name and several:
            possible.append(profile.name)
    for pattern in CLIENTS:
        for name in possible:
            if pattern.search(name):
                return name
    return None


# What is said


def _lines(
    seen: Survey, federation: Federation, label: str, client: str | None
) -> list[tuple[str, str]]:
    preprocessing = federation.preprocessing
    assert preprocessing is not None
    fitted = {column.name: column for column in preprocessing.columns}
    lines = []
    for name, profile in seen.profiles.items():
        if name == label:
            text = _about_label(federation)
        elif name == client:
            sizes = (federation.train.sizes + federation.test.sizes).tolist()
            text = f"the client: {len(sizes)} of them, {min(sizes)} to {max(sizes)} rows each"
        else:
            text = _about(fitted[name], profile)
        lines.append((shown(name), shown(text)))
    return lines


def _about_label(federation: Federation) -> str:
    y = np.concatenate([federation.train.y.numpy(), federation.test.y.numpy()])
    names = federation.class_names
    if not names:
        return f"the label: a value, {y.min():g} to {y.max():g}, mean {y.mean():g}"
    shares = 100 * np.bincount(y, minlength=len(names)) / len(y)
    order = np.argsort(-shares)[:5]
    shown = ", ".join(f"{names[i]} {shares[i]:.1f} %" for i in order)
    more = ", ..." if len(names) > 5 else ""
    return f"the label: {len(names)} classes, {shown}{more}"


def _odd_texts(column: Column) -> list[str]:
    """The texts of a column that hold it from being one of numbers, where they are the fewer."""
    known = [level for level in column.levels if level not in (OTHER, GAP)]
    odd = [level for level in known if not NUMBER.fullmatch(level.strip())]
    return [repr(level) for level in odd[:3]] if 2 * len(odd) < len(known) else []


def _about(column: Column, profile: Profile) -> str:
    """What a column becomes, and what looks wrong."""
    if column.becomes == "nothing":
        return f"left out: {column.why}"
    text = {
        "number": "number with decimal commas" if column.decimal == "," else "number",
        "boolean": f"0 for {column.words[0]}, 1 for {column.words[1]}",
        "date": f"date ({column.order}): days, and the time of year and week",
        "text": f"text: {len(column.levels)} levels",
    }[column.becomes]
    if column.other:
        text += ", rare texts are 'other'"
    odd = _odd_texts(column)
    if odd:
        text += f"; but most of them are numbers: in the table, correct or empty {', '.join(odd)}"
    if profile.gaps:
        share = 100 * profile.gaps / profile.rows
        filled = "level 'missing'"
        if column.becomes != "text":
            filled = f"the median {column.median:g} and a further feature"
        text += f"; {profile.gaps} missing ({share:.1f} %): {filled}"
    if profile.ambiguous and column.becomes == "date":
        text += "; day and month cannot be told apart: check the order"
    return text


def _remarks(federation: Federation, client: str | None) -> list[str]:
    on_columns = () if federation.preprocessing is None else federation.preprocessing.notes
    notes = [note for note in federation.notes if note not in on_columns]
    if client is None:
        notes.append(
            f"no column looks like the clients': rows are divided at random among "
            f"{CLIENTS_OF_POOL}; name the "
            "column with --client if there is one"
        )
    elif federation.unscored:
        notes.append(f"clients with one row only are not scored: {len(federation.unscored)}")
    return [shown(note) for note in notes]


def _score(federation: Federation) -> str | None:
    """The score that suits the labels; None: the dataset's own."""
    if not federation.class_names:
        return None
    share = np.bincount(federation.train.y.numpy()).max() / len(federation.train.y)
    if share < IMBALANCE:
        return "accuracy"
    if federation.outputs == 2:
        return "auroc"
    return "balanced-accuracy" if "balanced-accuracy" in SCORES else "likelihood"


def _toml(
    path: Path,
    toml: Path,
    encoding: str,
    federation: Federation,
    label: str,
    client: str | None,
    lines: Sequence[tuple[str, str]],
) -> str:
    """The experiment, with a comment for each column."""
    relative = os.path.relpath(path.absolute(), toml.absolute().parent)
    separator = separator_in(path, encoding)
    dataset = {"name": "table", "path": Path(relative).as_posix(), "label": label}
    if client is not None:
        dataset["client"] = client
    if separator != ",":
        dataset["separator"] = separator
    if encoding != "utf-8":
        dataset["encoding"] = encoding
    small = len(federation.train.y) < FEW_ROWS
    linear = {"name": "logistic"}
    values: dict[str, object] = {"rounds": 100, "rule": "fedavg"}
    score = _score(federation)
    if score is not None:
        values["score"] = score
    if client is None:
        values["partition"] = {"name": "iid", "clients": CLIENTS_OF_POOL}
    values["dataset"] = dataset
    values["model"] = linear if small else {"name": "mlp", "hidden": [32]}
    values["client"] = {"name": "sgd", "lr": 0.1, "batch": 32}
    comments = [f"#   {name}: {text}" for name, text in lines]
    return "\n".join(
        [
            f"# Written by commonweal init {shown(path.name)}: correct what is wrong, then",
            f"#   commonweal run {shown(toml.name)}",
            f"#   commonweal compare {shown(toml.name)} --rules fedavg,aaggff-s",
            "#",
            "# The columns (leave some out with drop = [...], use an id with keep = [...]):",
            *comments,
            "",
            to_toml(values),
        ]
    )
