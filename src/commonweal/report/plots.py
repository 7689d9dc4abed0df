"""Figures of runs and comparisons, as matplotlib figures, with what they show in words and numbers.

Colours are those of Okabe and Ito, which colour-blind readers can tell apart; labels differ in
marker or line style, too. The report, the page and notebooks draw with this module.
"""

import io
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from commonweal.analysis.compare import Result, align, gather, mean_change
from commonweal.analysis.regret import Regret, of_run
from commonweal.analysis.worth import Worth
from commonweal.base.errors import RunError
from commonweal.base.text import shown
from commonweal.base.values import Value
from commonweal.metrics import Paired, paired
from commonweal.record.record import Record
from commonweal.report.tables import scale, show_score

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Picture", "Plots", "clients", "draw", "front", "regret", "rounds", "weights", "worth"]

Array: TypeAlias = NDArray[np.float64]
Point: TypeAlias = tuple[int, list[float]]  # a round and its values

WIDTH = 4.4  # inches: text of 10 points can be read on a phone, too
MOST_NAMES = 40  # clients that a figure shows by name
MOST_COLUMNS = 100  # rounds that a heat map shows; more are averaged
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "^", "s", "D", "v", "P", "X")
LINES = ("-", "--", "-.", ":")
STYLE: Value = {
    "text.parse_math": False,  # a client may be called $x$
    "svg.fonttype": "none",  # text stays text
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 10.0,
}


class Picture(NamedTuple):
    """A figure, what it shows in words, and its numbers as a table."""

    title: str
    description: str
    figure: "Figure"
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


Drawing: TypeAlias = Callable[[Record, str], Picture]  # of a run and its label


class Plots:
    """The figures of one run: `record.plot.rounds()` and so on."""

    def __init__(self, record: Record) -> None:
        self.record = record

    def clients(self) -> "Figure":
        """Draw every client's last score."""
        label = plain(self.record.title)
        return clients(gather({label: [self.record]}), self.record.facts.score).figure

    def rounds(self) -> "Figure":
        """Draw the mean score over rounds, with the band between worst and best tenth."""
        return rounds({self.record.title: [self.record]}).figure

    def weights(self) -> "Figure":
        """Draw the clients' weights over rounds as a heat map."""
        return weights(self.record).figure

    def regret(self) -> "Figure":
        """Draw the regret against the best fixed mixture, with its bound where there is one."""
        return regret(self.record).figure


# Drawing


@contextmanager
def _styled() -> "Iterator[None]":
    import matplotlib  # slow to import

    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        # Names in scripts that matplotlib's font lacks: the reader's own font shows them.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def _figure(height: float) -> "Figure":
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH, height), layout="constrained")


def plain(name: str) -> str:
    """A name as text: SVG must not contain control characters."""
    return shown(name)


def shortened(name: str, length: int = 20) -> str:
    name = plain(name)
    return name if len(name) <= length else name[: length - 1] + "…"


def draw(figure: "Figure", form: str, salt: str = "commonweal") -> bytes:
    """The figure as a file: svg, png or pdf. Equal figures give equal bytes.

    salt: makes the ids in one SVG differ from those in another of the same page
    """
    import matplotlib

    data = io.BytesIO()
    none = dict.fromkeys(("Date", "Creator")) if form == "svg" else {}
    with _styled(), matplotlib.rc_context({"svg.hashsalt": salt}):
        figure.savefig(data, format=form, dpi=150, metadata=none)
    return data.getvalue()


def _unit(score: str) -> str:
    return f"{score} (%)" if scale(score) == 100 else score


# Clients


def clients(results: Sequence[Result], score: str) -> Picture:
    """Every client's score under each label, in the order of the first: who gained, who lost."""
    first = results[0]
    order = np.argsort(first.scores.mean(0), kind="stable")
    names = [first.clients[k] for k in order]
    with _styled():
        if len(names) <= MOST_NAMES:
            figure = _by_name(results, names, score)
            how = "one line per client, from the lowest score to the highest"
        else:
            figure = _sorted_scores(results, score)
            how = "the share of clients that have at most a score"
    labels = ", ".join(each.label for each in results)
    description = f"{_unit(score)} of {len(names)} clients under {labels}: {how}."
    header, rows = _client_table(results, score)
    return Picture("Every client's score", description, figure, header, rows)


def _by_name(results: Sequence[Result], names: Sequence[str], score: str) -> "Figure":
    figure = _figure(1.4 + 0.24 * len(names) + 0.2 * len(results))
    axes = figure.subplots()
    position = {name: k for k, name in enumerate(names)}
    spread = 0.5 / len(results)
    for i, each in enumerate(results):
        known = [k for k, name in enumerate(each.clients) if name in position]
        y = np.array([position[each.clients[k]] for k in known]) + spread * i
        values = scale(score) * each.scores[:, known]
        mean = values.mean(0)
        span = np.stack([mean - values.min(0), values.max(0) - mean]).clip(min=0)  # rounding
        axes.errorbar(
            mean,
            y,
            xerr=span if each.seeds > 1 else None,
            fmt=MARKERS[i % len(MARKERS)],
            color=COLOURS[i % len(COLOURS)],
            markersize=5,
            linewidth=1,
            label=plain(each.label),
        )
    axes.set_yticks(np.arange(len(names)), [shortened(name) for name in names])
    axes.grid(axis="y", alpha=0.3)
    axes.set_xlabel(_unit(score) + (", mean and range over seeds" if results[0].seeds > 1 else ""))
    _legend(figure, axes)
    return figure


def _sorted_scores(results: Sequence[Result], score: str) -> "Figure":
    figure = _figure(3.6)
    axes = figure.subplots()
    for i, each in enumerate(results):
        values = np.sort(scale(score) * each.scores.mean(0))
        share = np.arange(1, len(values) + 1) / len(values)
        thin = np.unique(np.linspace(0, len(values) - 1, min(len(values), 400)).astype(int))
        axes.step(
            values[thin],
            100 * share[thin],
            where="post",
            color=COLOURS[i % len(COLOURS)],
            linestyle=LINES[i % len(LINES)],
            label=plain(each.label),
        )
    axes.set_xlabel(_unit(score))
    axes.set_ylabel("clients with at most this score (%)")
    _legend(figure, axes)
    return figure


def _legend(figure: "Figure", axes: "Axes") -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", frameon=False, ncols=2)


def _client_table(
    results: Sequence[Result], score: str
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Each client's mean score by label, and its change against the first label."""
    first, *others = results
    changes = [f"{each.label} against {first.label}" for each in others]
    header = ("client", *(each.label for each in results), *changes)
    means = [dict(zip(r.clients, r.scores.mean(0).tolist(), strict=True)) for r in results]
    rows = []
    for name in sorted(first.clients, key=lambda name: means[0][name]):
        values = [each.get(name, math.nan) for each in means]
        differences = [scale(score) * (value - values[0]) for value in values[1:]]
        shown = [show_score(value, score) for value in values]
        rows.append((name, *shown, *(_signed(value) for value in differences)))
    return header, rows


def _signed(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:+.2f}"


class Changes(NamedTuple):
    """Who gained and who lost under a label, largest changes first; in shown units."""

    label: str
    gained: list[tuple[str, float]]
    lost: list[tuple[str, float]]
    same: int


def changes(base: Result, other: Result, score: str) -> Changes:
    """The clients whose mean score over seeds changed, by name. Of errors, a fall is a gain."""
    names, before, after = align(base, other)
    change = (scale(score) * mean_change(after - before)).tolist()
    pairs = sorted(zip(names, change, strict=True), key=lambda pair: -abs(pair[1]))
    sign = -1 if base.lower_is_better else 1
    gained = [pair for pair in pairs if sign * pair[1] > 0]
    lost = [pair for pair in pairs if sign * pair[1] < 0]
    return Changes(other.label, gained, lost, len(pairs) - len(gained) - len(lost))


# Worth it, for whom


def worth(found: Sequence[Worth], score: str) -> Picture:
    """Every client's gain against training alone under each label, with intervals over seeds."""
    first = found[0]
    names = [first.clients[k] for k in np.argsort(first.change, kind="stable")]
    with _styled():
        if len(names) <= MOST_NAMES:
            figure = _gains_by_name(found, names, score)
            how = "one line per client; bars are 95 % intervals over seeds"
        else:
            figure = _sorted_gains(found, score)
            how = "the share of clients that gain at most so much"
    labels = ", ".join(each.label for each in found)
    description = (
        f"What each of {len(names)} clients gains against training alone under {labels}, in "
        f"{_points(score)}: {how}. Right of 0: better off in the federation."
    )
    header = ("client", *(f"gain by {each.label}" for each in found))
    gains = [dict(zip(each.clients, _intervals(each, score), strict=True)) for each in found]
    rows = [(name, *(_gain_cell(each.get(name)) for each in gains)) for name in names]
    return Picture("Gain against training alone", description, figure, header, rows)


def _points(score: str) -> str:
    return f"points of {score}" if scale(score) == 100 else score


def _intervals(each: Worth, score: str) -> list[Paired]:
    """Every client's mean gain with its interval, as shown."""
    gains = scale(score) * each.gains
    return [paired(gains[:, k], np.zeros(len(gains))) for k in range(gains.shape[1])]


def _gain_cell(each: Paired | None) -> str:
    if each is None:
        return "-"
    known = math.isfinite(each.low) and each.low < each.high
    interval = f" [{each.low:+.2f}, {each.high:+.2f}]" if known else ""
    return f"{each.difference:+.2f}{interval}"


def _gains_by_name(found: Sequence[Worth], names: Sequence[str], score: str) -> "Figure":
    figure = _figure(1.4 + 0.24 * len(names) + 0.2 * len(found))
    axes = figure.subplots()
    position = {name: k for k, name in enumerate(names)}
    axes.axvline(0, color="#444444", linewidth=1)
    for i, each in enumerate(found):
        known = [k for k, name in enumerate(each.clients) if name in position]
        y = np.array([position[each.clients[k]] for k in known]) + 0.5 / len(found) * i
        intervals = [_intervals(each, score)[k] for k in known]
        half = np.array([(one.high - one.low) / 2 for one in intervals])
        axes.errorbar(
            [one.difference for one in intervals],
            y,
            xerr=half if np.isfinite(half).all() else None,
            fmt=MARKERS[i % len(MARKERS)],
            color=COLOURS[i % len(COLOURS)],
            markersize=5,
            linewidth=1,
            label=plain(each.label),
        )
    axes.set_yticks(np.arange(len(names)), [shortened(name) for name in names])
    axes.grid(axis="y", alpha=0.3)
    axes.set_xlabel(f"gain against alone ({_points(score)})")
    _legend(figure, axes)
    return figure


def _sorted_gains(found: Sequence[Worth], score: str) -> "Figure":
    figure = _figure(3.6)
    axes = figure.subplots()
    axes.axvline(0, color="#444444", linewidth=1)
    for i, each in enumerate(found):
        values = np.sort(scale(score) * each.change)
        share = 100 * np.arange(1, len(values) + 1) / len(values)
        axes.step(
            values,
            share,
            where="post",
            color=COLOURS[i % len(COLOURS)],
            linestyle=LINES[i % len(LINES)],
            label=plain(each.label),
        )
    axes.set_xlabel(f"gain against alone ({_points(score)})")
    axes.set_ylabel("clients that gain at most this (%)")
    _legend(figure, axes)
    return figure


# Rounds


BAND = ("mean", "worst_10", "best_10")


def rounds(runs: Mapping[str, Sequence[Record]]) -> Picture:
    """Scores over rounds by label: the mean, and the band between worst and best tenth."""
    score = next(iter(runs.values()))[0].facts.score
    curves = {label: _curves(records) for label, records in runs.items()}
    with _styled():
        figure = _draw_rounds(curves, score)
    seeds = max(len(records) for records in runs.values())
    description = (
        f"{_unit(score)} by round under {', '.join(runs)}: the line is the mean over clients, "
        "the band lies between the mean of the worst tenth of the clients and that of the best"
        + (f"; means over {seeds} seeds." if seeds > 1 else ".")
    )
    rows = [
        (label, str(number), *(show_score(value, score) for value in values))
        for label, (numbers, table) in curves.items()
        for number, values in _thin(list(zip(numbers, table.tolist(), strict=True)))
    ]
    header = ("label", "round", "mean", "worst tenth", "best tenth")
    return Picture("Scores over rounds", description, figure, header, rows)


def _curves(records: Sequence[Record]) -> tuple[list[int], Array]:
    """The rounds that all runs evaluated, and mean, worst and best tenth (rounds, 3)."""
    tables = [{each.number: each.metrics for each in record.evaluated} for record in records]
    numbers = sorted(set.intersection(*(set(table) for table in tables)))
    if not numbers:
        raise RunError(f"{str(records[0].folder)!r} has no evaluated round yet")
    values = [[[t[n].get(key, math.nan) for key in BAND] for n in numbers] for t in tables]
    return numbers, np.array(values).mean(0)


def _draw_rounds(curves: Mapping[str, tuple[list[int], Array]], score: str) -> "Figure":
    columns = 1 if len(curves) == 1 else 2
    lines = -(-len(curves) // columns)
    figure = _figure(0.6 + 2.2 * lines)
    panels = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).flatten()
    for axes in panels[len(curves) :]:
        axes.set_visible(False)
    for axes, (label, (numbers, table)) in zip(panels, curves.items(), strict=False):
        mean, worst, best = scale(score) * table.T
        axes.fill_between(numbers, worst, best, color=COLOURS[4], alpha=0.35, linewidth=0)
        axes.plot(numbers, worst, color=COLOURS[1], linestyle="--", linewidth=1)
        axes.plot(numbers, mean, color=COLOURS[0], marker="." if len(numbers) < 20 else "")
        axes.set_title(shortened(label, 28), fontsize=10)
        axes.grid(alpha=0.3)
    figure.supxlabel("round (dashed: the worst tenth of the clients)", fontsize=10)
    figure.supylabel(_unit(score), fontsize=10)
    return figure


def _thin(values: list[Point], most: int = 200) -> list[Point]:
    """At most so many values, evenly spaced, with the first and the last."""
    if len(values) <= most:
        return values
    return [values[int(k)] for k in np.unique(np.linspace(0, len(values) - 1, most).astype(int))]


# Weights


class Weights(NamedTuple):
    """Weights relative to an equal share of the cohort: 1 is like everyone."""

    names: list[str]  # of clients, or of groups of clients
    rounds: list[int]  # the last round of each column
    table: Array  # (names, rounds); NaN: not in the cohorts
    grouped: bool


def relative_weights(record: Record) -> Weights:
    """The weights of a run, averaged to a size that can be shown."""
    names = list(dict.fromkeys(name for each in record.rounds for name in each.weights))
    if not names:
        raise RunError(f"{str(record.folder)!r}: no round of this run has weights")
    columns = np.array_split(np.arange(len(record.rounds)), min(MOST_COLUMNS, len(record.rounds)))
    position = {name: k for k, name in enumerate(names)}
    total = np.zeros((len(names), len(columns)))
    count = np.zeros_like(total)
    for j, column in enumerate(columns):
        for t in column.tolist():
            own = record.rounds[t].weights
            rows = [position[name] for name in own]
            total[rows, j] += len(own) * np.array(list(own.values()))
            count[rows, j] += 1
    order = np.argsort(total.sum(1) / count.sum(1), kind="stable")
    ends = [record.rounds[int(column[-1])].number for column in columns]
    if len(names) <= MOST_NAMES:
        return Weights([names[k] for k in order], ends, _ratio(total, count)[order], False)
    groups = np.array_split(order, MOST_NAMES)
    sums = np.stack([total[group].sum(0) for group in groups])
    counts = np.stack([count[group].sum(0) for group in groups])
    labels = [f"{names[group[0]]} … {names[group[-1]]}" for group in groups]
    return Weights(labels, ends, _ratio(sums, counts), True)


def _ratio(total: Array, count: Array) -> Array:
    mean: Array = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return mean


def are_equal(found: Weights) -> bool:
    """Whether every client in a cohort always has the same weight: nothing to see."""
    known = found.table[~np.isnan(found.table)]
    return bool(np.allclose(known, 1.0, atol=1e-6))


def weights(record: Record, label: str | None = None) -> Picture:
    """The clients' weights over rounds as a heat map: whom did the rule favour?"""
    label = record.title if label is None else label
    found = relative_weights(record)
    with _styled():
        figure = _draw_weights(found)
    most, least = found.names[-1], found.names[0]
    who = "groups of clients" if found.grouped else "clients"
    description = (
        f"Weights under {label} by round, relative to an equal weight (1): {who} from the one "
        f"that was favoured least ({least}) to the one favoured most ({most}). White: not in a "
        "cohort."
    )
    means = _row_means(found.table)
    rows = [
        (name, f"{mean:.2f}", *(_two(row[j]) for j in (0, len(row) // 2, len(row) - 1)))
        for name, mean, row in zip(found.names, means, found.table, strict=True)
    ]
    middle = found.rounds[len(found.rounds) // 2]
    at = (found.rounds[0], middle, found.rounds[-1])
    header = ("client", "mean relative weight", *(f"round {number}" for number in at))
    return Picture(f"Weights over rounds: {label}", description, figure, header, rows[::-1])


def _row_means(table: Array) -> list[float]:
    present = ~np.isnan(table)
    sums = np.where(present, table, 0.0).sum(1)
    means: list[float] = (sums / present.sum(1)).tolist()
    return means


def _two(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"


def _draw_weights(found: Weights) -> "Figure":
    figure = _figure(1.2 + 0.19 * len(found.names))
    axes = figure.subplots()
    image = axes.imshow(
        found.table, aspect="auto", cmap="cividis", interpolation="nearest", origin="lower"
    )
    figure.colorbar(image, ax=axes, label="weight relative to equal (1)", location="top")
    axes.set_yticks(range(len(found.names)), [shortened(name) for name in found.names], fontsize=8)
    shown = np.unique(np.linspace(0, len(found.rounds) - 1, 6).astype(int))
    axes.set_xticks(shown, [str(found.rounds[k]) for k in shown])
    axes.set_xlabel("round")
    return figure


# Tuning


Trials: TypeAlias = Mapping[str, Sequence[tuple[str, float, float]]]


def front(trials: Trials, score: str, lower_is_better: bool = False) -> Picture:
    """Mean against worst tenth of all settings of all rules, and those that no other beats.

    trials: by rule, each setting's name, mean and worst tenth
    """
    points = [(rule, *each) for rule, found in trials.items() for each in found]
    sign = -1 if lower_is_better else 1
    unbeaten = [p for p in points if not any(_beats(sign, q, p) for q in points)]
    unbeaten.sort(key=lambda point: point[2])
    with _styled():
        figure = _draw_front(trials, unbeaten, score)
    names = ", ".join(dict.fromkeys(point[1] for point in unbeaten))
    description = (
        f"{_unit(score)} on validation rows: the mean over clients against the worst tenth of "
        f"them, one mark per setting. The line joins what no other setting beats in both: {names}."
    )
    rows = [
        (name, show_score(mean, score), show_score(worst, score))
        for _, name, mean, worst in sorted(points, key=lambda point: -sign * point[3])
    ]
    return Picture("Mean against worst", description, figure, ("rule", "mean", "worst tenth"), rows)


def _beats(
    sign: int, one: tuple[str, str, float, float], other: tuple[str, str, float, float]
) -> bool:
    """Whether one is at least as good in both, and not the same."""
    gains = (sign * (one[2] - other[2]), sign * (one[3] - other[3]))
    return min(gains) >= 0 and max(gains) > 0


def _draw_front(
    trials: Trials, unbeaten: Sequence[tuple[str, str, float, float]], score: str
) -> "Figure":
    figure = _figure(3.6 + 0.1 * len(trials))
    axes = figure.subplots()
    factor = scale(score)
    for i, (rule, found) in enumerate(trials.items()):
        axes.plot(
            [factor * mean for _, mean, _ in found],
            [factor * worst for _, _, worst in found],
            MARKERS[i % len(MARKERS)],
            color=COLOURS[i % len(COLOURS)],
            label=plain(rule),
        )
    axes.plot(
        [factor * mean for _, _, mean, _ in unbeaten],
        [factor * worst for _, _, _, worst in unbeaten],
        color="#777777",
        linewidth=1,
        zorder=0,
    )
    axes.set_xlabel(f"mean {_unit(score)} on validation rows")
    axes.set_ylabel("worst tenth of the clients")
    axes.grid(alpha=0.3)
    _legend(figure, axes)
    return figure


# Regret


def regret(record: Record, label: str | None = None) -> Picture:
    """The regret of a run against the best fixed mixture, with its bound where there is one."""
    label = record.title if label is None else label
    curve = of_run(record)
    with _styled():
        figure = _draw_regret(curve)
    bound = "" if curve.bound is None else f", where the theorem's bound is {curve.bound[-1]:.3f}"
    if curve.estimated:
        bound = ", estimated from cohorts (what Corollary 5.3 is about; no bound is proved for it)"
    description = (
        f"What the decisions of {label} cost beyond the best fixed mixture of clients in "
        f"hindsight: {curve.regret[-1]:.3f} after round {curve.rounds[-1]}{bound}."
    )
    bounds = curve.bound or [math.nan] * len(curve.rounds)
    rows = [
        (str(number), f"{value:.3f}", "-" if math.isnan(limit) else f"{limit:.3f}")
        for number, value, limit in zip(curve.rounds, curve.regret, bounds, strict=True)
    ]
    return Picture(f"Regret: {label}", description, figure, ("round", "regret", "bound"), rows)


def _draw_regret(curve: Regret) -> "Figure":
    figure = _figure(3.0)
    axes = figure.subplots()
    axes.plot(curve.rounds, curve.regret, marker=".", color=COLOURS[0], label="regret")
    if curve.bound is not None:
        axes.plot(curve.rounds, curve.bound, "--", color=COLOURS[1], label="the theorem's bound")
        # Bounds are often far above: linear up to the regret, logarithmic beyond it.
        axes.set_yscale("symlog", linthresh=max(1e-3, *map(abs, curve.regret)))
        axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("round")
    axes.grid(alpha=0.3)
    _legend(figure, axes)
    return figure
