"""Where the original files of a dataset come from.

Each dataset's file says so in literal strings at module level, which are read without importing it
(that would import torch):

    SOURCES    "<folder> <address>", then "<SHA-256 or MD5> <name>" for each file, a line each
    MANUAL     what to put into the folder, where it cannot be downloaded
    NEEDS      another dataset whose files are read too

A file with several datasets has a dict of such strings by the dataset's name.

Checksums are those of the files, or, for files that we have not seen, the publisher's.
"""

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple

KEYS = ("SOURCES", "MANUAL", "NEEDS")


class File(NamedTuple):
    folder: str
    name: str
    url: str
    hash: str  # "sha256:..." or "md5:..."


def names() -> list[str]:
    """The datasets that can be downloaded."""
    return [dataset for dataset in _declarations() if downloads(dataset)]


def downloads(dataset: str) -> tuple[File, ...]:
    """The files that can be downloaded."""
    declared = _declarations().get(dataset, {})
    other = downloads(declared["NEEDS"]) if "NEEDS" in declared else ()
    return other + _files(declared.get("SOURCES", ""))


def manual(dataset: str) -> str | None:
    """What the user must put into the folder."""
    return _declarations().get(dataset, {}).get("MANUAL")


def advice(dataset: str) -> str:
    """What to do where a file is missing."""
    if downloads(dataset):
        return f"run 'commonweal data get {dataset}', or put them there"
    return f"put there {manual(dataset) or 'the original files'}"


def _files(text: str) -> tuple[File, ...]:
    files = []
    folder = base = ""
    for line in text.strip().splitlines():
        first, second = line.split()
        if "://" in second:
            folder = first
            base = second
        else:
            kind = "sha256" if len(first) == 64 else "md5"
            files.append(File(folder, second, base + second, f"{kind}:{first}"))
    return tuple(files)


@cache
def _declarations() -> dict[str, dict[str, str]]:
    """The strings of every dataset's file, by the dataset's name."""
    declared: dict[str, dict[str, str]] = {}
    for path in sorted((Path(__file__).parents[1] / "datasets").glob("[a-z]*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.Assign) or ast.unparse(node.targets[0]) not in KEYS:
                continue
            value = ast.literal_eval(node.value)
            by_name = value if isinstance(value, dict) else {path.stem.replace("_", "-"): value}
            for dataset, text in by_name.items():
                declared.setdefault(dataset, {})[ast.unparse(node.targets[0])] = text
    return declared
