"""A first look at a table: which column is the label, which the client, and what the others become.

What is guessed is written to an experiment with comments, for a person to correct.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np

from commonweal.base.errors import ConfigError, EncodingError
from commonweal.base.text import shown
from commonweal.config import catalog
from commonweal.config.experiment import LIFTED, change, part_table, to_toml
from commonweal.data.federation import Federation
from commonweal.data.tables.columns import CLIENT, Roles, Survey, Table, columns_in, names_in
from commonweal.data.tables.files import guess_encoding, separator_in
from commonweal.data.tables.fit import Options
from commonweal.data.tables.plain_table import GAP, GROUPED, OTHER, PlainColumn
from commonweal.data.tables.used_rows import Test
from commonweal.datasets import build_federation
from commonweal.datasets.guess import roles
from commonweal.datasets.guess.doubts import Doubt, no_client, of_client, of_label
from commonweal.datasets.guess.leaks import Leak, find_leaks, same_as_client
from commonweal.datasets.partition import IID
from commonweal.datasets.pools import Pool
from commonweal.datasets.table import (
    IMBALANCE,
    Task,
    load_table,
    open_table,
    read_labels,
    read_times,
    survey_table,
)

NUMBER = re.compile(r"[+-]?\d+([.,]\d+)?")
MONTHS = re.compile(r"[^\W\d_]{3,9}[-. /]\d{2,4}|\d{1,2}[-. ][^\W\d_]{3,9}[-. ]\d{2,4}")
FEW_ROWS = 1000  # training rows below which a linear model is proposed
CLIENTS_OF_POOL = 10  # for a table that names none
NUMBERS = {
    ".": "number",
    ",": "number with decimal commas",
    GROUPED: "number with thousands set apart",
}
FOLDED = 5  # neighbouring columns of one kind, from which they share a line
SHOWN = 8  # columns that a remark names
SKEWED = 3.0  # times as far from the median above as below: a skewed label


@dataclass(frozen=True)
class Guess:
    """The findings on a table, line by line, and the experiment that they suggest."""

    lines: list[tuple[str, str]]  # a column, and what it becomes
    roles: tuple[str, ...]  # the columns among them that are the label or name the clients
    remarks: list[str]
    experiment: str  # TOML
    has_clients: bool  # whether a column names them, or a partition divides the rows
    doubts: tuple[Doubt, ...]  # for which a person has to name the label or the clients


def guess(
    path: Path,
    label: str | None,
    client: str | None,
    toml: Path,
    changes: Sequence[str] = (),
) -> Guess:
    """Look at a table.

    Args:
        path: The table.
        label: Its column of labels; None: it is guessed.
        client: Its column of clients; None: it is guessed.
        toml: Where the experiment will be written, to which paths are relative.
        changes: Changes of the experiment, `key=value`, which are part of it. What they say about
            columns, such as dataset.drop, is not guessed.
    """
    given, further = _given(changes)
    label = label or given.label
    client = client or given.client
    encoding = given.encoding or "utf-8"
    try:
        seen = survey_table(path, given.separator, encoding)
    except EncodingError:
        if given.encoding:
            raise
        encoding = guess_encoding(path)
        seen = survey_table(path, given.separator, encoding)
    chosen, remarks = _choose(seen, label, client, given)

    def opened(roles: Roles) -> Table:
        return open_table(path, roles, given.separator, encoding)

    missing = given.missing or _missing(opened(chosen))
    contents = opened(replace(chosen, missing=missing))
    again = same_as_client(contents)
    coded = [name for name in contents.profiles if _is_code(contents, name) and name not in again]
    rare = [name for name in coded if contents.profiles[name].mostly_differs]
    codes = [name for name in coded if name not in rare]
    is_divided = any(text.startswith("partition") for text in further)
    doubts = _doubts(contents, label, client, again, is_divided)
    final = replace(
        chosen,
        drop=(*given.drop, *again, *rare),
        categories=given.categories or tuple(codes),
        missing=missing,
    )
    contents = opened(final)
    loaded = load_table(
        contents,
        given.task,
        Options(),
        given.clients,
        given.test,
        0,
        least_rows=given.least_rows,
        fold=given.fold,
    )
    is_pool = isinstance(loaded, Pool)
    federation = build_federation(loaded, IID(CLIENTS_OF_POOL) if is_pool else None)
    leaks = _leaks(contents)
    if encoding != (given.encoding or "utf-8"):
        remarks.insert(
            0,
            f"the file is not UTF-8; read as {encoding} (guessed). If letters above are wrong, "
            "change encoding in the experiment, and names with it",
        )
    remarks += _on_pool(contents) if is_pool else []
    remarks += _on_federation(federation, is_pool)
    remarks += _on_columns(contents, again, codes, missing)
    remarks += _on_clients(contents)
    remarks += _on_leaks(leaks, contents)
    dataset = _dataset(path, toml, encoding)
    dataset |= {key: value for key, value in asdict(final).items() if value}
    dataset |= {key: value for key, value in given.values.items() if key not in asdict(final)}
    if given.fold:
        dataset["split"] = given.values["split"]
    if not is_pool:
        dataset["client"] = ",".join(contents.facts.client)
    lines = _lines(seen, contents, federation, codes, rare)
    named = (contents.facts.label, contents.facts.event, *contents.facts.client)
    return Guess(
        lines=lines,
        roles=tuple(map(shown, filter(None, named))),
        remarks=[shown(remark) for remark in remarks],
        experiment=_toml(path, toml, federation, dataset, lines, leaks, further),
        has_clients=not is_pool or is_divided,
        doubts=doubts,
    )


# What changes of the experiment say about the table


class _Given(NamedTuple):
    """The columns and settings that changes of the experiment name, so they are not guessed."""

    values: dict[str, object]  # of the dataset, as they were given
    label: str | None
    client: str | None
    drop: tuple[str, ...]
    keep: tuple[str, ...]
    categories: tuple[str, ...]
    missing: tuple[str, ...]
    order: str
    split: str
    fold: str
    separator: str
    encoding: str  # empty: not given
    task: Task
    test: Test
    clients: int | None
    least_rows: int


def _given(changes: Sequence[str]) -> tuple[_Given, list[str]]:
    """Return what changes give of the table, and the other changes."""
    own: list[str] = []
    further: list[str] = []
    for text in changes:
        head, _, key = text.partition("=")[0].strip().partition(".")
        (own if head == "dataset" and key not in LIFTED else further).append(text)
    values = dict(part_table(change({"dataset": {"name": "table"}}, own)["dataset"]))
    del values["name"]
    whole = catalog.complete("datasets", {"name": "table", "path": ""} | values)
    split, _, fold = whole["split"].partition("=")
    given = _Given(
        values=values,
        label=whole["label"] if "label" in values else None,
        client=whole["client"],
        drop=names_in(whole["drop"]),
        keep=names_in(whole["keep"]),
        categories=names_in(whole["categories"]),
        missing=names_in(whole["missing"]),
        order=whole["order"],
        split=split.strip(),
        fold=fold.strip(),
        separator=whole["separator"],
        encoding=whole["encoding"] if "encoding" in values else "",
        task=whole["task"],
        test=whole["test"],
        clients=whole["clients"],
        least_rows=whole["least_rows"],
    )
    return given, further


# Roles


def _choose(
    seen: Survey, label: str | None, client: str | None, given: _Given
) -> tuple[Roles, list[str]]:
    """The label and the clients, guessed where they are not given, and remarks on that."""
    profiles = seen.profiles
    for role, name in (("label", label), ("client", client)):
        seen.check(role, () if name is None else columns_in(name, seen))
    remarks: list[str] = []
    if label is None:
        label, remarks = _choose_label(seen, client, given.drop)
    if client is None:
        clients = roles.rank_clients(profiles, label, given.drop)
        if not clients and CLIENT in profiles:  # which a table takes in any case
            clients = [roles.ColumnCandidate(CLIENT, 0.0, "its name")]
        if clients:
            client = clients[0].name
            remarks.append(_guessed("client", clients))
    if given.split or given.order or "test" in given.values:
        chosen = Roles(label, client, given.drop, given.keep, order=given.order, split=given.split)
        return chosen, remarks
    split = roles.split_column(profiles) or ""
    order = "" if split else roles.order_column(profiles, client) or ""
    if split in (label, client, *given.drop):
        split = ""
    if order in (*roles.columns(label), *given.drop):
        order = ""
    if split:
        remarks.append(
            f"test rows are those that {split!r} names (guessed); to draw them at random, delete "
            "split from the experiment"
        )
    if order:
        remarks.append(
            f"test rows are the last of each client by {order!r} (guessed, for repeated "
            "measurements: rows drawn at random would have neighbours in training); to draw them "
            "at random, delete order from the experiment"
        )
    return Roles(label, client, given.drop, given.keep, order=order, split=split), remarks


def _choose_label(seen: Survey, client: str | None, drop: Sequence[str]) -> tuple[str, list[str]]:
    ranked = roles.rank_labels(seen.profiles, client, drop)
    if not ranked:
        raise ConfigError("no column looks like a label: name it with --label")
    label = ranked[0].name
    times, is_sure = roles.survival(seen.profiles, drop) or (label, False)
    if is_sure and label in roles.columns(times):
        event = roles.columns(times)[1]
        return times, [
            f"label guessed: survival times and events, {times!r}, by their names; to predict the "
            f'event alone: --label "{event}"'
        ]
    if client is None:
        clients = roles.rank_clients(seen.profiles, label, drop)
        client = clients[0].name if clients else None
    remarks = [_guessed("label", roles.rank_labels(seen.profiles, client, drop))]
    if times != label:
        remarks.append(
            "times and events seem to be there; for survival times, by Cox's model: "
            f'--label "{times}"'
        )
    return label, remarks


def _doubts(
    contents: Table,
    label: str | None,
    client: str | None,
    again: Sequence[str],
    is_divided: bool,
) -> tuple[Doubt, ...]:
    """Return the doubts about the columns that were guessed: those that are not given.

    is_divided: a partition divides the rows among clients
    """
    own = contents.facts.roles
    doubts = []
    if label is None:
        ranked = roles.rank_labels(contents.profiles, own.client, own.drop)
        doubts.append(of_label(contents, ranked, _leaks(contents), client))
    clients = roles.rank_clients(contents.profiles, own.label, own.drop)
    if client is None and clients:
        doubts.append(of_client(contents.profiles, clients, again, label))
    elif not contents.facts.client and not is_divided:
        doubts.append(no_client(contents.profiles, label))
    return tuple(doubt for doubt in doubts if doubt is not None)


def _guessed(role: str, ranked: Sequence[roles.ColumnCandidate]) -> str:
    """Say that a column was guessed, why, and how to take another."""
    first, *others = ranked
    text = f"{role} guessed: {first.name!r}, by {first.why}"
    if others:
        return f'{text}; next likely: {others[0].name!r}. To change it: --{role} "{others[0].name}"'
    return f'{text}. To change it: --{role} "COLUMN"'


def _missing(contents: Table) -> tuple[str, ...]:
    """Numbers that seem to mean a missing value, as "column=number"."""
    entries = []
    for name in contents.stored_numbers:
        if contents.column(name).becomes == "number" and contents.profiles[name].whole:
            for number in roles.stands_for_missing(contents.numbers(name)):
                entries.append(f"{name}={number:g}")
    return tuple(entries)


def _is_code(contents: Table, name: str) -> bool:
    """Return whether a feature of numbers looks like codes."""
    if name in contents.facts.no_features or name == contents.facts.roles.order:
        return False
    if contents.column(name).becomes != "number":
        return False
    return roles.codes(contents.profiles[name], contents.numbers(name))


def _leaks(contents: Table) -> dict[str, Leak]:
    rows = contents.complete()
    event = contents.facts.event
    if event:
        happened = read_times(contents, rows).y[:, 1].astype(np.int64)
        return find_leaks(contents, rows, happened, (f"no {event}", event))
    labels = read_labels(contents, "auto", rows)
    return find_leaks(contents, rows, labels.y, labels.class_names)


# Messages


def _lines(
    seen: Survey, contents: Table, federation: Federation, codes: Sequence[str], rare: Sequence[str]
) -> list[tuple[str, str]]:
    preprocessing = federation.preprocessing
    assert preprocessing is not None
    facts = contents.facts
    fitted = {column.name: column for column in preprocessing.columns}
    lines = []
    for name in seen.profiles:
        if name == facts.label:
            text = _about_label(federation)
        elif name == facts.event:
            text = "the label: whether there was an event"
        elif name in facts.client:
            sizes = (federation.train.sizes + federation.test.sizes).tolist()
            rows = f"{min(sizes)} to {max(sizes)}" if min(sizes) < max(sizes) else f"{sizes[0]}"
            text = f"the client: {len(sizes)} of them, {rows} rows each"
        elif facts.roles.split and name == facts.roles.split:
            text = "says which rows are test rows"
        elif name in rare:
            text = "left out: codes that differ in most rows (guessed)"
        else:
            text = _about(fitted[name], contents, name in codes)
        if facts.roles.order and name == facts.roles.order:
            text += "; orders the rows of a client"
        lines.append((shown(name), shown(text)))
    return _folded(lines)


def _folded(lines: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The lines, with one for many neighbouring columns that become the same."""
    folded = []
    for text, group in groupby(lines, key=lambda line: line[1]):
        names = [name for name, _ in group]
        if len(names) < FOLDED:
            folded += [(name, text) for name in names]
        else:
            folded.append((f"{names[0]} ... {names[-1]}", f"{text} ({len(names):,} columns)"))
    return folded


def _about_label(federation: Federation) -> str:
    y = np.concatenate([federation.train.y.numpy(), federation.test.y.numpy()])
    names = federation.class_names
    if y.ndim > 1:
        time, event = y.T
        events = f"{int(event.sum())} events in {len(event)} rows"
        return f"the label: survival times, {time.min():g} to {time.max():g}, {events}"
    if not names:
        return f"the label: number (regression), {y.min():g} to {y.max():g}, mean {y.mean():g}"
    shares = 100 * np.bincount(y, minlength=len(names)) / len(y)
    order = np.argsort(-shares)[:5]
    shown = ", ".join(f"{names[i]} {shares[i]:.1f} %" for i in order)
    more = ", ..." if len(names) > 5 else ""
    return f"the label: {len(names)} classes, {shown}{more}"


def _about(column: PlainColumn, contents: Table, is_code: bool) -> str:
    """Describe the feature that a column becomes, and what looks wrong."""
    profile = contents.profiles[column.name]
    if column.becomes == "nothing":
        return f"left out: {column.why}"
    if is_code:
        return f"codes: {len(column.levels)} categories (guessed; numbers: delete it in categories)"
    text = {
        "number": NUMBERS[column.decimal],
        "boolean": f"0 for {column.words[0]}, 1 for {column.words[1]}",
        "date": f"date ({column.order}): days, and the time of year and week",
        "text": f"categories: {len(column.levels)}",
    }[column.becomes]
    if column.other:
        text += ", rare ones are 'other'"
    levels = [level for level in column.levels if level not in (OTHER, GAP)]
    odd = [repr(level) for level in levels if not NUMBER.fullmatch(level.strip())]
    if odd and 2 * len(odd) < len(levels):
        some = ", ".join(odd[:3])
        text += f"; but most of them are numbers: in the table, correct or empty {some}"
    dates = [level for level in levels if MONTHS.fullmatch(level)]
    if dates and len(dates) > 0.9 * len(levels):
        text += f"; looks like dates ({dates[0]}): write them as 2026-11-16 to use them as time"
    if column.unit:
        text += f" with the unit {column.unit}{', which some lack' if profile.some_bare else ''}"
    if column.missing_as:
        text += f"; {_some(column.missing_as)} count as missing"
    gaps = int(contents.gaps(column.name).sum())
    if gaps:
        share = 100 * gaps / profile.rows
        filled = "category 'missing'"
        if column.becomes != "text":
            filled = f"filled with the median {column.median:g} and marked by a feature"
        text += f"; {gaps} missing ({share:.1f} %), {filled}"
    if profile.ambiguous and column.becomes == "date":
        text += "; day and month are ambiguous: check the order"
    return text


def _on_federation(federation: Federation, is_pool: bool) -> list[str]:
    on_columns = () if federation.preprocessing is None else federation.preprocessing.notes
    notes = [note for note in federation.notes if note not in on_columns]
    if federation.class_names and _score(federation) != "accuracy":
        notes.append(
            "a rare class may never be predicted: try class_weight=balanced or, with two classes, "
            "threshold=f1 validation=0.2"
        )
    if federation.labels == "values" and _is_skewed(federation.train.y.numpy()):
        notes.append(
            "the label is skewed and positive: target=log trains on its logarithm, loss=poisson is "
            "for counts, loss=huber limits the influence of outliers"
        )
    if not is_pool and len(federation.names) == 1:
        notes.append("there is only one client: name another column with --client")
    if federation.unscored and not is_pool:
        notes.append(f"clients with one row only are not scored: {len(federation.unscored)}")
    return notes


def _on_pool(contents: Table) -> list[str]:
    """Remarks on a table in which no column is called like the clients."""
    text = f"no column looks like clients: rows are divided at random among {CLIENTS_OF_POOL}"
    possible = roles.could_name(contents.profiles, contents.facts.roles.label)
    name = possible[0] if possible else "COLUMN"
    also = f" (also possible: {_some(possible[1:])})" if len(possible) > 1 else ""
    remarks = [f'{text}. To name the column of clients: --client "{name}"{also}']
    one_hot = roles.one_hot_clients(contents.profiles)
    if len(one_hot) > 2:
        remarks.append(
            f"{one_hot[0]!r} ... {one_hot[-1]!r} may be clients, one column for each: to use them, "
            "write one column with the client's name"
        )
    return remarks


def _is_skewed(y: np.ndarray) -> bool:
    """Return whether positive values lie far above their median more often than far below."""
    if y.min() <= 0:
        return False
    low, middle, high = np.quantile(y, [0.05, 0.5, 0.95])
    return bool(high - middle > SKEWED * (middle - low))


def _on_columns(
    contents: Table, again: Sequence[str], codes: Sequence[str], missing: Sequence[str]
) -> list[str]:
    remarks = []
    if again:
        client = ",".join(contents.facts.client)
        remarks.append(f"left out, each client ({client}) has its own value: {_some(again)}")
    if codes:
        remarks.append(
            f"numbers that look like codes become categories (guessed): {_some(codes)}; if they "
            "are amounts, delete them from categories in the experiment"
        )
    if missing:
        remarks.append(
            f"far numbers that count as missing (guessed): {_some(missing)}; if they are values, "
            "delete them from missing in the experiment"
        )
    return remarks


def _on_clients(contents: Table) -> list[str]:
    """Remarks on sites that are numbered per country, and on repeated measurements."""
    coded = contents.clients()
    client = contents.facts.client
    if coded is None or len(client) != 1:
        return []
    names, owner = coded
    alike = Counter(name.casefold() for name in names.tolist())
    twice = [name for name in names.tolist() if alike[name.casefold()] > 1]
    if twice:
        return [
            f"clients that differ only in capitals are different clients: {_some(twice)}; correct "
            "them in the table if they are the same"
        ]
    for candidate in roles.rank_clients(contents.profiles, contents.label):
        name = candidate.name
        if name == client[0] or not contents.is_text(name):
            continue
        within = contents.texts(name)[1].astype(np.int64)
        pairs = np.unique(owner.astype(np.int64) * (within.max() + 1) + within)
        if len(pairs) > len(names) and all(map(NUMBER.fullmatch, names.tolist())):
            return [
                f"the same {client[0]!r} occurs with several {name!r}: if sites are numbered "
                f'within each, use --client "{name},{client[0]}"'
            ]
    timed = contents.facts.roles.order or contents.facts.roles.split
    blocks = 1 + int((np.diff(owner) != 0).sum())
    if roles.is_people(client[0]) and not timed and blocks == len(names) < len(owner) / 10:
        return [
            f"the rows of each {client[0]!r} stand together: if they are in order of time, set "
            'test = "last", as neighbours in training make test rows easy'
        ]
    return []


def _on_leaks(leaks: Mapping[str, Leak], contents: Table) -> list[str]:
    if not leaks:
        return []
    label = contents.facts.event or contents.label
    names = list(leaks)
    remarks = [f"{name!r} may give {label!r} away: {leaks[name].why}" for name in names[:SHOWN]]
    if len(leaks) > SHOWN:
        remarks.append(f"and {len(leaks) - SHOWN} more columns: {_some(names[SHOWN:])}")
    remarks.append(
        f"leave out what is known only after {label!r} (also what stands near these columns): "
        f'"dataset.drop={",".join(names)}" on the command line, or drop in the experiment'
    )
    return remarks


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(map(repr, names[:SHOWN])) + more


# The experiment


def _score(federation: Federation) -> str | None:
    """The score that suits the labels; None: the dataset's own."""
    if not federation.class_names:
        return None
    share = np.bincount(federation.train.y.numpy()).max() / len(federation.train.y)
    if share < IMBALANCE:
        return "accuracy"
    return "auroc" if federation.outputs == 2 else "balanced-accuracy"


def _dataset(path: Path, toml: Path, encoding: str) -> dict[str, object]:
    relative = os.path.relpath(path.absolute(), toml.absolute().parent)
    separator = separator_in(path, encoding)
    dataset: dict[str, object] = {"name": "table", "path": Path(relative).as_posix()}
    if separator != ",":
        dataset["separator"] = separator
    if encoding != "utf-8":
        dataset["encoding"] = encoding
    return dataset


def _toml(
    path: Path,
    toml: Path,
    federation: Federation,
    dataset: dict[str, object],
    lines: Sequence[tuple[str, str]],
    leaks: Iterable[str],
    changes: Sequence[str],
) -> str:
    """The experiment, changed, with a comment for each column."""
    is_small = len(federation.train.y) < FEW_ROWS
    values: dict[str, object] = {"rounds": 100, "rule": "fedavg"}
    score = _score(federation)
    if score is not None:
        values["score"] = score
    if "client" not in dataset:
        values["partition"] = {"name": "iid", "clients": CLIENTS_OF_POOL}
    values["dataset"] = dataset
    values["model"] = {"name": "logistic"} if is_small else {"name": "mlp", "hidden": [32]}
    # A single far label of a regression would throw the model away.
    clip = {"clip": 1.0} if federation.labels == "values" else {}
    values["client"] = {"name": "sgd", "lr": 0.1, "batch": 32} | clip
    values = change(values, changes)
    comments = [f"#   {name}: {text}" for name, text in lines]
    if leaks:
        names = ", ".join(f'"{shown(name)}"' for name in leaks)
        comments += ["#", f"# These may give the label away; to leave them out: drop = [{names}]"]
    return "\n".join(
        [
            f"# Written by commonweal init {shown(path.name)}: correct what is wrong, then",
            f'#   commonweal run "{shown(toml.name)}"',
            f'#   commonweal compare "{shown(toml.name)}" --rules fedavg,aaggff-s',
            "#",
            "# The columns (leave some out with drop = [...], use an id with keep = [...]):",
            *comments,
            "",
            to_toml(values),
        ]
    )
