"""Downloads of original files from their publishers, with checksums.

pooch writes to a temporary file and moves it into place when its checksum is right, so there is
never half a file. An interrupted download starts again.
"""

import hashlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from commonweal.base.errors import DataError, did_you_mean
from commonweal.config import catalog
from commonweal.data.sources import origins
from commonweal.data.sources.files import data_root, find_file

if TYPE_CHECKING:
    import pooch


def sources(dataset: str) -> list[str]:
    """The files of a dataset that can be downloaded, as <folder>/<name>."""
    files = origins.downloads(dataset)
    if files:
        return files
    if dataset in origins.MANUAL:
        raise DataError(
            f"dataset {dataset!r} cannot be downloaded for you: put {origins.MANUAL[dataset]} into "
            "the folder"
        )
    known = [name for name in catalog.entries("datasets") if origins.downloads(name)]
    hint = did_you_mean(dataset, known)
    raise DataError(f"dataset {dataset!r} needs no download, or is unknown: {hint}")


def fetch(name: str, progress: object = False, registry: "pooch.Pooch | None" = None) -> Path:
    """Download a file unless it is in the data directory and right.

    Args:
        name: As <folder>/<name>.
        progress: A progress bar for pooch.
        registry: Where files come from, and their checksums; by default the package's.
    """
    import pooch
    import requests

    known = registry or origins.registry(data_root())
    pooch.get_logger().setLevel(logging.WARNING)
    folder = (known.abspath / name).parent
    try:
        return Path(known.fetch(name, progressbar=progress))
    except requests.RequestException as error:  # a kind of OSError, and some are ValueErrors
        reason = str(error)[:150]
    except ValueError:  # pooch's error for a wrong checksum
        reason = "its checksum is not the published one"
    except OSError as error:
        raise DataError(f"cannot write to {str(folder)!r}: {error.strerror or error}") from None
    raise DataError(
        f"{Path(name).name} could not be downloaded from {known.get_url(name)} ({reason}): "
        f"try again later, or put it into {str(folder)!r} yourself"
    )


def differing(dataset: str, dir: str | None = None) -> list[str]:
    """The files in the data directory that are not the published ones, byte for byte."""
    names = []
    registry = origins.registry(data_root())
    for file in origins.downloads(dataset):
        folder, _, name = file.partition("/")
        path = find_file(folder, name, dir)
        if path is None or path.name != name:  # missing, or unpacked: nothing to compare
            continue
        kind, _, digest = registry.registry[file].partition(":")
        with open(path, "rb") as opened:
            if hashlib.file_digest(opened, kind).hexdigest() != digest:
                names.append(name)
    return names
