"""final.json: what is computed of a run's models once, when it ends.

Confidence intervals of the clients' scores, the classes that are never predicted, the threshold
that was chosen on validation samples, and how important columns are to trees.
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path

from commonweal.base.errors import RunError
from commonweal.base.files import read_plain, write_file
from commonweal.base.typed import parse_json
from commonweal.record.facts import is_sealed, sealed

NAME = "final.json"
Numbers = tuple[float | None, ...]  # by client; None: not defined


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """95 % confidence intervals of the clients' scores, in the order of the clients."""

    low: Numbers
    high: Numbers
    support: Numbers  # how many rows decide the width
    unit: str  # what they are: rows, positives or events


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """The least probability of the second class with which it is predicted."""

    value: float
    score: str  # that is best at it on validation samples
    samples: int  # that it was chosen on
    before: dict[str, float]  # means over clients on test samples, at 0.5
    after: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Final:
    """The results of a run's models that are computed once."""

    bounds: dict[str, Bounds] = field(default_factory=dict)  # of the global model, by score
    personal: dict[str, Bounds] = field(default_factory=dict)
    never_predicted: tuple[str, ...] = ()  # classes with test samples, by the global model
    threshold: Threshold | None = None
    # By client, of what it predicts with: "network", "partners", "together" (trees), "linear" ...
    weights: dict[str, Numbers] = field(default_factory=dict)
    importance: dict[str, float] = field(default_factory=dict)  # shares by column, of trees


def write_final(folder: Path, final: Final) -> None:
    write_file(folder / NAME, sealed(asdict(final)))


def read_final(folder: Path) -> Final:
    """Return the contents of final.json, empty where a run has none. Raises RunError if damaged."""
    path = folder / NAME
    if not path.exists():
        return Final()
    try:
        data = read_plain(path)
        final = parse_json(Final, data, strict=False)
        is_whole = is_sealed(data)
    except (OSError, ValueError, RecursionError):
        is_whole = False
    if not is_whole:
        raise RunError(
            f"{str(path)!r} is damaged: restore it, or delete it to do without confidence "
            "intervals and the threshold's scores"
        )
    return final
