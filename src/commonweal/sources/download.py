"""Downloads of original files from their publishers, with checksums.

pooch writes to a temporary file and moves it into place when its checksum is right, so there is
never half a file. An interrupted download starts again.
"""

import hashlib
import logging
from pathlib import Path

from commonweal.base.errors import DataError, did_you_mean
from commonweal.sources import origins
from commonweal.sources.files import data_root, find
from commonweal.sources.origins import File

TRIES = 3


def sources(dataset: str) -> tuple[File, ...]:
    """The files of a dataset that can be downloaded."""
    files = origins.downloads(dataset)
    if files:
        return files
    manual = origins.manual(dataset)
    if manual is not None:
        raise DataError(
            f"dataset {dataset!r} cannot be downloaded for you: put {manual} into the folder"
        )
    hint = did_you_mean(dataset, origins.names())
    raise DataError(f"dataset {dataset!r} needs no download, or is unknown: {hint}")


def fetch(file: File, progress: object = False, root: Path | None = None) -> Path:
    """Download a file unless it is in the data directory and right; `progress` is pooch's."""
    import pooch
    import requests

    folder = (root or data_root()) / file.folder
    pooch.get_logger().setLevel(logging.WARNING)
    reason = ""
    for _ in range(TRIES):
        try:
            path = pooch.retrieve(
                file.url, file.hash, fname=file.name, path=folder, progressbar=progress
            )
            return Path(path)
        except requests.RequestException as error:  # a kind of OSError, and some are ValueErrors
            reason = str(error)[:150]
        except ValueError:  # pooch's error for a wrong checksum
            reason = "its checksum is not the published one"
            break
        except OSError as error:
            raise DataError(f"cannot write to {str(folder)!r}: {error.strerror or error}") from None
    raise DataError(
        f"{file.name} could not be downloaded from {file.url} ({reason}): "
        f"try again later, or put it into {str(folder)!r} yourself"
    )


def differing(dataset: str, dir: str | None = None) -> list[str]:
    """The files in the data directory that are not the published ones, byte for byte."""
    names = []
    for file in origins.downloads(dataset):
        path = find(file.folder, file.name, dir)
        if path is None or path.name != file.name:  # missing, or unpacked: nothing to compare
            continue
        kind, _, digest = file.hash.partition(":")
        with open(path, "rb") as opened:
            if hashlib.file_digest(opened, kind).hexdigest() != digest:
                names.append(file.name)
    return names
