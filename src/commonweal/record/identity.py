"""data.json: what data a run is of, and its clients by name in the order of their ids.

A checkpoint has clients' states by id. With the names in this file whoever uses a model finds a
client by its name, whatever became of the data since.
"""

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from commonweal.base.errors import RunError
from commonweal.base.files import digest, read_plain, write_file
from commonweal.data.identity import Identity, Source, check_same, source_changes
from commonweal.data.population import Population
from commonweal.data.sources.files import data_root
from commonweal.data.sources.opened import content_digest
from commonweal.record.facts import TaskFacts

NAME = "data.json"


@dataclass(frozen=True, kw_only=True)
class StoredData:
    """The data of a run."""

    identity: Identity
    clients: tuple[str, ...]  # the names of those that take part, by id
    sizes: tuple[int, ...]  # their training samples
    groups: tuple[str, ...] | None = None

    @classmethod
    def of(cls, identity: Identity, population: Population) -> "StoredData":
        return cls(
            identity=identity,
            clients=population.names,
            sizes=tuple(population.sizes.tolist()),
            groups=population.groups,
        )

    def population(self, task: TaskFacts) -> Population:
        """The clients as a server knows them."""
        return Population(
            names=self.clients,
            sizes=torch.tensor(self.sizes, dtype=torch.int64),
            shape=task.shape,
            outputs=task.outputs,
            groups=self.groups,
        )


def write_data(folder: Path, data: StoredData) -> None:
    """Write data.json, with a digest of itself."""
    table = {
        "sources": [vars(source) for source in data.identity.sources],
        "columns": data.identity.columns,
        "drawn": data.identity.drawn,
        "samples_by_client": dict(data.identity.clients),
        "fingerprints": data.identity.samples,
        "labels": data.identity.labels,
        "clients": data.clients,
        "sizes": data.sizes,
        "groups": data.groups,
    }
    write_file(folder / NAME, _text({**table, "digest": digest(_text(table))}))


def read_data(folder: Path) -> StoredData | None:
    """Read data.json. None: the folder has none, as where clients are nodes of Flower.

    Raises:
        RunError: It is not as it was written.
    """
    path = folder / NAME
    if not path.exists():
        return None
    try:
        table = json.loads(read_plain(path))
        seal = table.pop("digest")
        is_whole = seal == digest(_text(table))
        groups = table["groups"]
        stored = StoredData(
            identity=Identity(
                sources=tuple(Source(**source) for source in table["sources"]),
                columns=tuple(table["columns"]),
                drawn=table["drawn"],
                clients=table["samples_by_client"],
                samples=tuple(table["fingerprints"]),
                labels=table["labels"],
            ),
            clients=tuple(table["clients"]),
            sizes=tuple(table["sizes"]),
            groups=None if groups is None else tuple(groups),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RunError(
            f"{str(path)!r} cannot be read ({error}): restore it, or run again"
        ) from None
    if not is_whole:
        raise RunError(f"{str(path)!r} was changed after it was written: restore it, or run again")
    return stored


def _text(table: object) -> bytes:
    # Without indentation: with it, names of 100,000 clients take seconds.
    return (json.dumps(table, ensure_ascii=False) + "\n").encode(errors="backslashreplace")


# The data today


def check_data(folder: Path, now: Identity) -> None:
    """Raise RunError where the run in a folder is of other data."""
    stored = read_data(folder)
    if stored is not None:
        check_same(str(folder), stored.identity, now)


def changed_files(folder: Path) -> list[str]:
    """Describe which files that a run was made of are gone or changed.

    It takes as long as reading them: no samples are made of them.
    """
    told = []
    for source in _sources(folder):
        path = Path(source.path)
        if source.in_data_directory:
            path = data_root() / path
        try:
            now = Source(path=source.path, digest=content_digest(path))
            told += source_changes([source], [now])
        except OSError:
            told.append(f"{str(path)!r} is gone")
    return told


def _sources(folder: Path) -> tuple[Source, ...]:
    """The files that a run was made of."""
    path = folder / NAME
    if not path.exists():
        return ()
    status = path.stat()
    return _known_sources(folder, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=1 << 10)  # a plan is looked at several times, and a file may name many clients
def _known_sources(folder: Path, changed: int, size: int) -> tuple[Source, ...]:
    stored = read_data(folder)
    return () if stored is None else stored.identity.sources
