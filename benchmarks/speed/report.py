"""Tables for people, in Markdown, and what is held against a target."""

from collections.abc import Sequence
from typing import NamedTuple

from .timing import Timed, ratio, spread

__all__ = ["Target", "best", "compared", "table", "verdicts"]


class Target(NamedTuple):
    """What was asked for, and what was measured: at most so much."""

    what: str
    most: float
    measured: float


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns."""
    columns = list(zip(header, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join(_line(row, widths) for row in (header, rule, *rows))


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = zip(row, widths, strict=True)
    cells = [first[0].ljust(first[1]), *(text.rjust(width) for text, width in others)]
    return f"| {' | '.join(cells)} |"


def compared(times: dict[str, list[Timed]], base: str) -> str:
    """Milliseconds of every contender, and the time of `base` as a multiple of it."""
    rows = []
    for name, turns in times.items():
        wall = spread(1e3 * turn.wall for turn in turns)
        processor = spread(1e3 * turn.processor for turn in turns)
        known = processor.median > 0.01 * wall.median  # else others did the work
        rows.append(
            (
                name,
                wall.text(1),
                processor.text(1) if known else "",
                ratio(times[base], turns).text(),
                ratio(times[base], turns, processor=True).text() if known else "",
            )
        )
    header = ("", "ms", "processor ms", "ours / it", "in processor time")
    return f"Ours is {base!r}.\n\n{table(header, rows)}"


def best(times: dict[str, list[Timed]], contender: str) -> str:
    """The fastest way of a contender (its threads, its processes), by the median."""
    ways = [name for name in times if name.split(",")[0] == contender]
    return min(ways, key=lambda name: spread(turn.wall for turn in times[name]).median)


def verdicts(targets: Sequence[Target]) -> str:
    rows = []
    for what, most, measured in targets:
        verdict = "met" if measured <= most else "missed"
        rows.append((what, f"{most:g}", f"{measured:.2f}", verdict))
    return table(("target", "at most", "measured", ""), rows)
