"""Original files from where their publishers keep them, checked, and never half of one.

pooch writes to a temporary file and moves it into place when its checksum is right; a download that breaks begins anew.
"""

import hashlib
import logging
from pathlib import Path
from typing import Any

from commonweal.datasets._cache import checksum
from commonweal.datasets._files import data_root, find
from commonweal.datasets._sources import ELSEWHERE, SOURCES, File
from commonweal.errors import DataError, did_you_mean

__all__ = ["differing", "fetch", "sources"]

TRIES = 3


def sources(dataset: str) -> tuple[File, ...]:
    """The files of a dataset that can be downloaded."""
    if dataset in ELSEWHERE:
        raise DataError(f"dataset {dataset!r} cannot be downloaded for you: put {ELSEWHERE[dataset]} into the folder")
    if dataset not in SOURCES:
        raise DataError(f"dataset {dataset!r} needs no download, or is unknown: {did_you_mean(dataset, SOURCES)}")
    return SOURCES[dataset]


def fetch(file: File, progress: Any = False, root: Path | None = None) -> Path:
    """One file in the data directory, downloaded where it is not there or not right; `progress` as pooch takes it."""
    import pooch
    import requests

    pooch.get_logger().setLevel(logging.WARNING)
    folder = (root or data_root()) / file.folder
    failure: Exception | None = None
    for _ in range(TRIES):
        try:
            return Path(pooch.retrieve(file.url, file.hash, fname=file.name, path=folder, progressbar=progress))
        except requests.RequestException as error:
            failure = error
        except ValueError as error:  # pooch's word for a wrong checksum
            failure = error
            break
        except OSError as error:
            raise DataError(f"cannot write to {str(folder)!r}: {error.strerror or error}") from None
    why = "its checksum is not the published one" if isinstance(failure, ValueError) else str(failure)[:150]
    what = f"{file.name} could not be had from {file.url} ({why})"
    raise DataError(f"{what}: try again later, or put it into {str(folder)!r} yourself")


def differing(dataset: str, dir: str | None = None) -> list[str]:
    """The files in the data directory that are not the published ones, byte for byte."""
    found = {file: find(file.folder, file.name, dir) for file in SOURCES.get(dataset, ())}
    return [
        f.name for f, path in found.items() if path is not None and path.name == f.name and _hash(path, f) != f.hash
    ]


def _hash(path: Path, file: File) -> str:
    kind = file.hash.partition(":")[0]
    if kind == "sha256":
        return f"sha256:{checksum(path)}"
    with open(path, "rb") as opened:
        return f"{kind}:{hashlib.file_digest(opened, kind).hexdigest()}"
