"""Whether a published cell and ours agree, and cells as text."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy import stats

from commonweal.metrics import paired

from .reproduction import Measured
from .table import Claim, Floats, Gain, PublishedTable, Row

__all__ = ["cells_of", "figure", "finding", "half_width", "published_seeds", "spread", "verdict"]

NEAR = 1.0  # points by which a reproduced cell may be off, and at most NEAR_SHARE of it
NEAR_SHARE = 0.1
ROUNDING = 0.005  # of published figures
MANY = 5  # seeds from which a row has a standard deviation of its own


def verdict(table: PublishedTable, row: Row, column: int, measured: Measured | None) -> str:
    """Whether a published cell and ours differ significantly (Welch's test, 95 %), or are near.

    Near is a point, or a tenth of a published figure below 10. Figures that are printed as a root
    are compared as squares. Without a spread on either side, or with other data or another model,
    there is no verdict.
    """
    ours = () if measured is None else measured.of(row.name, column)
    if measured is None or not _comparable(table) or not row.published or not ours:
        return ""
    if math.isnan(row.published[column]):
        return ""
    theirs = row.published[column]
    margin = _margin(table, row, column, measured)
    mean = float(np.mean(ours))
    if _is_root(table, column):
        margin *= 2 * max(theirs, mean)  # the slope of the square
        theirs, mean = theirs**2, float(np.mean(np.square(ours)))
    difference = mean - theirs
    if math.isnan(margin):
        return f"{difference:+.2f}"
    if abs(difference) > margin:
        return f"differs ({difference:+.2f})"
    near = min(NEAR, NEAR_SHARE * abs(theirs)) + ROUNDING
    return "reproduced" if abs(difference) <= near else f"within noise ({difference:+.2f})"


def _comparable(table: PublishedTable) -> bool:
    """Whether our runs have the data and the model of the table."""
    return not table.status.startswith(("other", "stand-in"))


def _is_root(table: PublishedTable, column: int) -> bool:
    for setting in table.ran:
        number = column - setting.first
        if 0 <= number < len(setting.columns):
            return setting.columns[number].startswith("root:")
    return False


class Spread(NamedTuple):
    """A standard deviation from run to run, and the degrees of freedom behind it."""

    deviation: float
    freedom: int

    def of_mean(self, runs: int) -> float:
        """The variance of a mean over runs."""
        return self.deviation**2 / runs


UNKNOWN = Spread(math.nan, 1)


def _margin(table: PublishedTable, row: Row, column: int, measured: Measured) -> float:
    """The largest difference that is not significant; nan: no spread is known.

    A spread that only one side has is taken for the other. A spread over clients is that of one
    run: to the variance of its mean, what our runs differ by is added.
    """
    own = _spread_of_ours(row, column, measured)
    printed = row.spreads[column] if row.spreads else math.nan
    theirs = Spread(printed, max(1, table.runs - 1))
    if table.spread == "clients":
        theirs = Spread(math.hypot(printed / math.sqrt(table.clients), own.deviation), own.freedom)
    elif math.isnan(printed):
        theirs = own
    elif math.isnan(own.deviation):
        own = theirs
    ours_error = own.of_mean(len(measured.of(row.name, column)))
    their_error = theirs.of_mean(max(1, table.runs))
    total = ours_error + their_error
    if math.isnan(total) or total == 0:
        return math.nan if math.isnan(total) else ROUNDING
    freedom = total**2 / (ours_error**2 / own.freedom + their_error**2 / theirs.freedom)
    return float(stats.t.ppf(0.975, freedom)) * math.sqrt(total) + ROUNDING


def _spread_of_ours(row: Row, column: int, measured: Measured) -> Spread:
    """Over seeds; of fewer than five, pooled over all rows; of one, its late evaluations."""
    ours = measured.of(row.name, column)
    if len(ours) >= MANY:
        return Spread(float(np.std(ours, ddof=1)), len(ours) - 1)
    if len(ours) > 1:
        return _pooled(column, measured)
    swings = measured.swings.get(row.name, ())
    return Spread(swings[column], MANY - 1) if swings else UNKNOWN


def _pooled(column: int, measured: Measured) -> Spread:
    """Of all rows together, as if methods swung alike."""
    squares = 0.0
    freedom = 0
    for name in measured.figures:
        cells = measured.of(name, column)
        squares += float(np.var(cells) * len(cells)) if cells else 0.0
        freedom += max(0, len(cells) - 1)
    return Spread(math.sqrt(squares / freedom), freedom)


def published_seeds(table: PublishedTable, measured: Measured | None) -> Measured | None:
    """Our figures of the seeds that the table's setting names: cells are compared by these."""
    return None if measured is None else measured.at(table.ran[0].seeds)


def cells_of(
    table: PublishedTable, measured: Measured | None
) -> Iterator[tuple[Row, int, Floats, str]]:
    """Every cell of a table: its row, its column, ours by seed, and the verdict."""
    measured = published_seeds(table, measured)
    for row in table.rows:
        for column in range(len(table.columns)):
            ours = () if measured is None else measured.of(row.name, column)
            yield row, column, ours, verdict(table, row, column, measured)


def figure(values: Floats, spreads: Floats, column: int) -> str:
    """A published cell as text: 84.42 (2.45)."""
    if not values or math.isnan(values[column]):
        return ""
    text = f"{values[column]:.2f}"
    known = bool(spreads) and not math.isnan(spreads[column])
    return f"{text} ({spreads[column]:.2f})" if known else text


def spread(table: PublishedTable, row: Row, column: int, measured: Measured | None) -> str:
    """Our cell as text: the mean and the spread that the paper prints, over clients or seeds."""
    ours = () if measured is None else measured.of(row.name, column)
    if measured is None or not ours:
        return ""
    mean = f"{np.mean(ours):.2f}"
    if table.spread == "clients":
        over_clients = measured.spreads.get(row.name, ())
        known = bool(over_clients) and not math.isnan(over_clients[column])
        return f"{mean} ({over_clients[column]:.2f})" if known else mean
    return f"{mean} ({np.std(ours):.2f})" if len(ours) > 1 else mean


def half_width(row: Row, column: int, measured: Measured | None) -> str:
    """Half of the 95 % interval of our mean over seeds as text: ±1.20."""
    ours = () if measured is None else measured.of(row.name, column)
    if len(ours) < 2:
        return ""
    error = float(np.std(ours, ddof=1)) / math.sqrt(len(ours))
    return f"±{float(stats.t.ppf(0.975, len(ours) - 1)) * error:.2f}"


# Claims


def finding(table: PublishedTable, claim: Claim, measured: Measured | None) -> str:
    """What we got for a claim as text, with the differences that decide it."""
    gains = [] if measured is None else [_gain(table, gain, measured) for gain in claim.gains]
    return " ".join(filter(None, [claim.ours, *gains]))


def _gain(table: PublishedTable, gain: Gain, measured: Measured) -> str:
    """The mean difference of two rows over the seeds that both have, with a 95 % interval.

    Where every seed splits one table again, seeds share most of their samples: the variance is
    corrected by Nadeau and Bengio's factor, 1 / n + test share / training share.
    """
    column = table.columns.index(gain.column)
    ours, base = _by_seed(gain.row, column, measured), _by_seed(gain.base, column, measured)
    seeds = min(len(ours), len(base))
    what = f"{gain.row} minus {gain.base}, {gain.column}:"
    if seeds < 2:
        return f"{what} not decided, fewer than two seeds."
    difference, low, high, _ = paired(ours[:seeds], base[:seeds])
    overlap = 1 + seeds * table.test_share / (1 - table.test_share)
    half = (high - low) / 2 * math.sqrt(overlap)
    decided = "significant" if abs(difference) > half else "not significant"
    return f"{what} {difference:+.2f} ± {half:.2f}, {decided} with {seeds} paired seeds."


def _by_seed(row: str, column: int, measured: Measured) -> list[float]:
    return [seed[column] for seed in measured.figures.get(row, ())]
