"""The lines of rounds.jsonl as bytes, and whether they and what they refer to were changed."""

import json
from collections.abc import Sequence
from pathlib import Path

from commonweal.base.errors import RunError
from commonweal.base.files import digest, read_plain
from commonweal.record.columns import Chunks, Place
from commonweal.record.rounds import MALFORMED, ROUNDS, VALUES

__all__ = ["all_lines", "damaged_rounds", "damaged_values", "places", "whole_lines"]


def all_lines(path: Path) -> list[bytes]:
    """The lines of a file with their ends, the last one perhaps without."""
    try:
        data = read_plain(path) if path.exists() else b""
    except OSError as error:
        raise RunError(f"{str(path)!r} cannot be read: {error.strerror}") from None
    *lines, rest = data.split(b"\n")
    return [line + b"\n" for line in lines] + ([rest] if rest else [])


def whole_lines(path: Path, last: int) -> list[bytes]:
    """At most the first `last` complete lines of a file."""
    return [line for line in all_lines(path)[:last] if line.endswith(b"\n")]


def damaged_rounds(folder: Path, lines: Sequence[bytes], last: int, expected: str) -> list[str]:
    """What is wrong with the lines of the first `last` rounds.

    Args:
        folder: of the run
        lines: of rounds.jsonl
        last: the round of the checkpoint
        expected: the digest of the lines in the checkpoint
    """
    name = repr(str(folder / ROUNDS))
    if len(lines) < last:
        return [f"{name} has {len(lines)} rounds, but its checkpoint is of round {last}"]
    for number, line in enumerate(lines, start=1):
        if not line.startswith(b'{"round": %d,' % number):
            return [f"{name} is damaged: line {number} is not round {number}"]
    if digest(*lines) != expected:
        return [f"{name} was changed after it was written: its digest differs"]
    return []


def damaged_values(folder: Path, lines: Sequence[bytes]) -> list[str]:
    """What is wrong with the values of clients that the lines refer to."""
    if not lines:
        return []
    try:
        of_lines = places(lines)
    except MALFORMED as error:
        return [f"{str(folder / ROUNDS)!r} is damaged ({error})"]
    problem = Chunks(folder / VALUES).damaged(of_lines)
    return [problem] if problem else []


def places(lines: Sequence[bytes]) -> list[Place]:
    """Where the values of clients are that lines refer to."""
    return [Place.parse(json.loads(line)["chunk"]) for line in lines]
