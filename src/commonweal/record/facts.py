"""run.json: what a run ran on, as one type with one reader and one writer.

Format 2 is that of versions 0.2 and later. Folders of another format are refused.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import pydantic

from commonweal.base.errors import RunError
from commonweal.base.files import digest, read_plain, write_file
from commonweal.base.plain import Table, to_json
from commonweal.base.typed import parse_json
from commonweal.protocols.privacy.promise import Promise

FORMAT = 2  # of the folder
NAME = "run.json"


@dataclass(frozen=True, kw_only=True)
class TargetScale:
    """The scale of a regression's target: models give (label - mean) / deviation."""

    mean: float
    deviation: float
    log: bool = False  # of the label's logarithm
    variance: float | None = None  # of the label, for pooled R^2, where it is not deviation^2


@dataclass(frozen=True, kw_only=True)
class TaskFacts:
    """The facts from which the module is built again without the data."""

    loss: str
    shape: tuple[int, ...]  # of a sample
    labels: tuple[int, ...] = ()  # the shape of a sample's label
    outputs: int
    frozen: str = ""  # a hash of the tensors that are not trained; empty: there are none


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """The code, machine and data of a run. None: not known, or not applicable."""

    format: int = FORMAT
    commonweal: str | None = None  # versions
    torch: str | None = None
    python: str | None = None
    threads: int | None = None
    processor: str | None = None
    engine: str = "simulator"
    ranks: int | None = None  # processes of torchrun
    vectorize: str | None = None
    vectorize_because: str | None = None
    device: str | None = None
    clients: Annotated[int, pydantic.Field(ge=0, lt=1 << 31)] = 0
    unscored: tuple[str, ...] | None = None  # clients without test samples or a defined score
    notes: tuple[str, ...] | None = None  # about the data
    train_rows: int | None = None
    test_rows: int | None = None
    majority: float | None = None  # the accuracy of always giving the most frequent class
    validation_rows: int | None = None
    held_out: tuple[str, ...] | None = None  # clients
    data: str | None = None  # a hash; empty where the data may grow during a run
    samples: str | None = None  # a hash of all samples, however they are split and scaled
    federation: str | None = None  # a hash that all seeds share; empty: seeds draw their own data
    parameters: int | None = None
    training_loss: str | None = None  # that clients report: received, first batch or first epoch
    score: str = "accuracy"
    target: TargetScale | None = None
    task: TaskFacts | None = None
    class_names: tuple[str, ...] | None = None
    privacy: Promise | None = None  # of a private run
    taken: dict[str, int] | None = None  # how many clients took which model, once it has ended

    def table(self) -> dict[str, object]:
        """The facts by name, as they are written; what is None is left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def sealed(table: Mapping[str, object]) -> bytes:
    """A table as JSON, with a digest of itself at the end."""
    return to_json({**table, "digest": digest(to_json(table))})


def is_sealed(data: bytes) -> bool:
    """Return whether `sealed` wrote these bytes. Raises ValueError where they are not a table."""
    table = dict(_parse(data))
    table.pop("digest", None)
    return data == sealed(table)


def write_facts(folder: Path, facts: RunFacts) -> None:
    write_file(folder / NAME, sealed(facts.table()))


def read_facts(folder: Path) -> RunFacts:
    """Read run.json.

    Raises:
        OSError: the file cannot be read
        ValueError: it does not hold such facts
        RunError: the folder is of another format
    """
    data = read_plain(folder / NAME)
    given = _parse(data).get("format")
    if type(given) is not int:
        raise ValueError(f"{NAME} says format = {given!r}")
    if given != FORMAT:
        is_newer = given > FORMAT
        raise RunError(
            f"{str(folder)!r} was written by {'a newer' if is_newer else 'an older'} version "
            f"(format {given}, this one reads {FORMAT}): "
            f"{'update commonweal' if is_newer else 'run again'}"
        )
    try:
        return parse_json(RunFacts, data)
    except ValueError as error:
        raise ValueError(f"{NAME}: {error}") from None


def _parse(data: bytes) -> Table:
    table = json.loads(data.decode())
    if not isinstance(table, dict):
        raise ValueError(f"{NAME} is not a table")
    return table


def checked_facts(folder: Path) -> RunFacts:
    """Read run.json. Raises RunError where it is not as it was written."""
    path = folder / NAME
    try:
        facts = read_facts(folder)
        is_whole = is_sealed(read_plain(path))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{str(path)!r} cannot be read ({error})") from None
    if not is_whole:
        raise RunError(f"{str(path)!r} was changed after it was written: its digest differs")
    return facts
