"""A node's own list of what it sent and what it refused, a line of JSON each."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from commonweal.base.errors import ConfigError, PolicyError
from commonweal.base.tensors import Tensors
from commonweal.config.policy import Policy

FILE = "sent.jsonl"


@dataclass(frozen=True)
class Entry:
    """What left a node with one reply, or why none did."""

    purpose: str
    what: tuple[str, ...] = ()
    refused: str = ""
    run: str = ""
    round: int = 0
    time: str = ""  # UTC


def append(folder: Path, entry: Entry) -> None:
    """Add an entry to the list of a node, before its reply leaves."""
    folder.mkdir(parents=True, exist_ok=True)
    values = asdict(entry) | {"time": datetime.now(UTC).isoformat(timespec="seconds")}
    with open(folder / FILE, "a", encoding="utf-8") as file:
        file.write(json.dumps(values) + "\n")


@contextmanager
def refusals(folder: Path, entry: Entry, policy: Policy | None) -> Iterator[None]:
    """Record why no reply leaves. With a policy, other errors than its own are not sent."""
    try:
        yield
    except Exception as error:
        is_own = isinstance(error, PolicyError | ConfigError)
        append(folder, replace(entry, refused=f"{type(error).__name__}: {error}"))
        if policy is None or is_own:
            raise
        raise PolicyError("it failed; the reason is in this node's list of what it sent") from None


def read(folder: Path) -> Iterator[Entry]:
    """Yield the entries of a node. Raises PolicyError where the list is damaged."""
    path = folder / FILE
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            values = json.loads(line)
            yield Entry(**values | {"what": tuple(values["what"])})
        except (ValueError, TypeError, KeyError):
            raise PolicyError(
                f"line {number} of {str(path)!r} is damaged, so that the rounds of today cannot be "
                "counted: correct it or move the file away"
            ) from None


def rounds_today(folder: Path, run: str, round: int) -> int:
    """The rounds that a node has answered since midnight (UTC), with this one."""
    today = datetime.now(UTC).date().isoformat()
    rounds = {(run, round)}
    for entry in read(folder):
        if entry.time.startswith(today) and entry.round and not entry.refused:
            rounds.add((entry.run, entry.round))
    return len(rounds)


def in_words(values: Tensors) -> tuple[str, ...]:
    """What a reply holds: the names of its values, and how many numbers there are."""
    return tuple(
        name if value.numel() == 1 else f"{name} ({value.numel():,} numbers)"
        for name, value in values.items()
    )


def summary(entries: Iterable[Entry]) -> list[str]:
    """Lines on what left, and what was refused, by run and purpose."""
    groups: dict[tuple[str, str, tuple[str, ...], str], list[Entry]] = {}
    for entry in entries:
        key = entry.run, entry.purpose, entry.what, entry.refused
        groups.setdefault(key, []).append(entry)
    lines = []
    for (run, purpose, what, refused), same in groups.items():
        first, last = same[0].time[:16].replace("T", " "), same[-1].time[:16].replace("T", " ")
        times = f"{len(same)} times, {first} to {last}" if len(same) > 1 else first
        place = f"run {run}, {purpose}" if run else purpose
        lines.append(f"{place} ({times} UTC)")
        lines += [f"  refused: {refused}"] if refused else [f"  sent {word}" for word in what]
    return lines
