"""All figures: of clients, rounds, weights, regret, tuning, models and data.

Colours are those of Okabe and Ito, which colour-blind readers can distinguish; methods differ in
marker or line style, too. A figure is a matplotlib figure; `save` and `draw` write it as PNG, SVG
or PDF.
"""

import io
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from commonweal.base.errors import ConfigError, RunError
from commonweal.base.files import write_file
from commonweal.base.text import shortened, shown
from commonweal.data.federation import Federation
from commonweal.record.record import Record
from commonweal.record.rounds import spaced
from commonweal.report.clients import NAMES, ClientLines, client_lines
from commonweal.report.formats import ReportTable, cell_rows, titles_of
from commonweal.study.comparison import Comparison
from commonweal.study.inference import Estimate
from commonweal.study.interpolation import POINTS, Curve
from commonweal.study.plan import ALONE
from commonweal.study.regret import Regret, of_run
from commonweal.study.site_curves import SiteCurves
from commonweal.study.transfer import Transfer
from commonweal.study.units import scale, score_label, show_score

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

Array: TypeAlias = NDArray[np.float64]

SUFFIXES = (".png", ".svg", ".pdf")
WIDTH = 6.4  # inches
TICK = 24  # characters of a name at an axis
MOST_NAMES = 40  # clients that a figure shows by name
MOST_CLIENTS = 200  # that a figure of a federation shows one by one
MOST_COLUMNS = 100  # rounds that a heat map shows; more are averaged
MOST_POINTS = 200  # rounds of a table of numbers
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", "-.", ":")
GAIN = "#0072B2"
LOSS = "#D55E00"
GREY = "#5b6472"
LOCAL = NAMES[ALONE]


def marker_of(i: int) -> str:
    """The marker of the i-th method; every seven methods it meets another colour."""
    return MARKERS[(i + i // len(COLOURS)) % len(MARKERS)]


def colour_of(i: int) -> str:
    return COLOURS[i % len(COLOURS)]


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
        comparison = Comparison.of({shown(self.record.title): [self.record]})
        return clients(client_lines(comparison)).figure

    def rounds(self) -> "Figure":
        """Draw the mean over clients and over the worst 10 % of them by round."""
        return rounds({self.record.title: [self.record]}).figure

    def weights(self) -> "Figure":
        """Draw the clients' weights over rounds as a heat map."""
        return weights(self.record, self.record.title).figure

    def regret(self) -> "Figure":
        """Draw the regret against the best fixed mixture, with its bound where there is one."""
        return regret(of_run(self.record), self.record.title).figure


def of_comparison(comparison: Comparison, what: Literal["clients", "rounds"]) -> Picture:
    """Draw a comparison: every client's scores, or mean and worst 10 % over rounds."""
    return clients(client_lines(comparison)) if what == "clients" else rounds(comparison.methods)


# Files


def check_suffix(*paths: Path | None) -> None:
    """Raise ConfigError for a path that is not a figure's, before the work that leads to it."""
    for path in paths:
        if path is not None and path.suffix.lower() not in SUFFIXES:
            raise ConfigError(
                f"{str(path)!r} is not the name of a figure: end it with {', '.join(SUFFIXES)}"
            )


def draw(figure: "Figure", form: str, salt: str = "commonweal") -> bytes:
    """The contents of a figure's file (svg, png or pdf). Equal figures give equal bytes.

    salt: makes the ids in one SVG differ from those in another of the same page
    """
    import matplotlib

    data = io.BytesIO()
    none = {"svg": ("Date", "Creator"), "pdf": ("CreationDate",)}.get(form, ())
    with _styled(), matplotlib.rc_context({"svg.hashsalt": salt}):
        figure.savefig(data, format=form, dpi=150, metadata=dict.fromkeys(none))
    return data.getvalue()


def save(figure: "Figure", path: Path) -> None:
    """Write a figure to a file: PNG, SVG or PDF, by the suffix of the path."""
    check_suffix(path)
    try:
        write_file(path, draw(figure, path.suffix.lower()[1:]), durable=False)
    except OSError as error:
        raise RunError(f"cannot write {str(path)!r}: {error.strerror}") from None


_STYLE = RLock()  # the style is matplotlib's, and of the whole process


@contextmanager
def _styled() -> Iterator[None]:
    """The common style, for one thread at a time."""
    import matplotlib  # slow to import

    style = matplotlib.rc_context(
        {
            "text.parse_math": False,  # a client may be called $x$
            "svg.fonttype": "none",  # text stays text
            "axes.spines.top": False,
            "axes.spines.right": False,
            "font.size": 10.0,
        }
    )
    with _STYLE, style, warnings.catch_warnings():
        # Names in scripts that matplotlib's font lacks: the reader's font shows them.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


@contextmanager
def _axes(height: float, width: float = WIDTH) -> "Iterator[tuple[Figure, Axes]]":
    """One pair of axes in the common style. Sizes are in inches."""
    with _styled():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, figure.subplots()


def _legend(figure: "Figure", axes: "Axes", columns: int = 4) -> None:
    """Write a legend above the axes."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", frameon=False, ncols=columns)


def _heat_map(axes: "Axes", table: Array, cmap: str) -> "AxesImage":
    return axes.imshow(table, cmap, aspect="auto", interpolation="nearest", origin="lower")


# Clients


def clients(plot: ClientLines) -> Picture:
    """Draw one line per client: a ring for local training, a dot per method.

    The bar leads from local training to the method whose gains are shown, in the colour of gain
    or loss, faint where the difference is not significant. More than MOST_NAMES clients are drawn
    as distributions.
    """
    number = len(plot.lines)
    methods = ", ".join(plot.labels)
    unit = score_label(plot.score)
    if number <= MOST_NAMES:
        figure = _client_figure(plot)
        description = f"{unit} of {number} clients under {methods}, one line per client."
        if plot.has_local:
            description += " Ring: local training."
        if plot.compared:
            description += (
                f" Bar: from {LOCAL} to {plot.compared}, faint where the gain is not significant."
            )
    else:
        figure = _distributions(plot)
        description = (
            f"{unit} of {number} clients under {methods}: the share of clients with at most this "
            "score."
        )
    table = plot.table()
    return Picture("Every client's score", description, figure, *_numbers_of(table))


def _numbers_of(table: ReportTable) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and rows of a table."""
    return tuple(titles_of(table)), [tuple(row) for row in cell_rows(table, str)]


def _client_figure(plot: ClientLines) -> "Figure":
    factor = scale(plot.score)
    scores = plot.scores_by_label()
    y = np.arange(len(plot.lines))[::-1]
    with _axes(1.2 + 0.24 * len(plot.lines)) as (figure, axes):
        for line, place in zip(plot.lines, y, strict=True):
            if line.gain is not None:
                colour = GAIN if line.gain.gain >= 0 else LOSS
                start, end = plot.bar(line)
                alpha = 0.9 if line.gain.significant else 0.3
                ends = (factor * start, factor * end)
                axes.plot(ends, (place, place), color=colour, alpha=alpha, linewidth=3, zorder=1)
        for i, label in enumerate(plot.labels):
            colour = colour_of(i)
            above = 4 if label == plot.compared else 3
            values = factor * scores[label]
            name = shown(label)
            axes.plot(values, y, marker_of(i), color=colour, ms=6, label=name, zorder=above)
        if plot.has_local:
            values = factor * scores[LOCAL]
            axes.plot(values, y, "o", mfc="white", mec="black", ms=7, zorder=2, label=LOCAL)
        names = [f"{shortened(line.client, TICK)}  {line.samples}".rstrip() for line in plot.lines]
        axes.set_yticks(y, names, fontsize=9)
        axes.set_ylim(-0.7, len(plot.lines) - 0.3)
        axes.grid(axis="x", alpha=0.3)
        axes.tick_params(axis="y", length=0)
        notes = [score_label(plot.score)]
        if plot.compared:
            notes.append(f"bar: {LOCAL} to {shown(plot.compared)}, faint if not significant")
        if any(line.samples for line in plot.lines):
            notes.append("next to names: test samples")
        axes.set_xlabel("\n".join(notes), fontsize=9)
        _legend(figure, axes)
    return figure


def _distributions(plot: ClientLines) -> "Figure":
    with _axes(3.6) as (figure, axes):
        for i, (label, scores) in enumerate(plot.scores_by_label().items()):
            known = np.sort(scale(plot.score) * scores[~np.isnan(scores)])
            share = 100 * np.arange(1, len(known) + 1) / len(known)
            thin = spaced(len(known), 400)
            colour = GREY if label == LOCAL else colour_of(i)
            style = LINES[i % len(LINES)]
            name = shown(label)
            axes.step(known[thin], share[thin], style, where="post", color=colour, label=name)
        axes.set_xlabel(score_label(plot.score))
        axes.set_ylabel("clients with at most this score (%)")
        _legend(figure, axes)
    return figure


# Rounds


class Band(NamedTuple):
    """A metric over rounds: mean, lowest and highest over seeds."""

    round: list[int]
    mean: Array
    low: Array
    high: Array


SHOWN = {"mean": "mean over clients", "worst_10": "worst 10 % of clients"}


def rounds(runs: Mapping[str, Sequence[Record]]) -> Picture:
    """Draw scores over rounds by label: mean and worst 10 %, with the range over seeds."""
    score = str(next(iter(runs.values()))[0].facts.score)
    curves = {}
    for label, records in runs.items():
        curves[label] = {key: band(records, key) for key in SHOWN}
    with _styled():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(WIDTH, 3.4), layout="constrained")
        panels = figure.subplots(1, len(SHOWN), sharex=True, sharey=True)
        for axes, (key, title) in zip(panels, SHOWN.items(), strict=True):
            for i, (label, bands) in enumerate(curves.items()):
                _draw_band(axes, bands[key], i, shown(label), scale(score))
            axes.set_title(title, fontsize=10)
            axes.set_xlabel("round")
            axes.grid(alpha=0.3)
        panels[0].set_ylabel(score_label(score))
        _legend(figure, panels[0])
    seeds = max(len(records) for records in runs.values())
    description = (
        f"{score_label(score)} by round under {', '.join(runs)}: the mean over clients and that "
        "of the worst 10 % of them"
        + (f"; lines are means over {seeds} seeds, bands their range." if seeds > 1 else ".")
    )
    rows = []
    for label, bands in curves.items():
        numbers = bands["mean"].round
        for k in spaced(len(numbers), MOST_POINTS):
            values = [show_score(float(bands[key].mean[k]), score) for key in SHOWN]
            rows.append((label, str(numbers[k]), *values))
    return Picture("Scores over rounds", description, figure, ("method", "round", *SHOWN), rows)


def band(records: Sequence[Record], key: str) -> Band:
    """A metric of the models that clients use, by the rounds that all seeds evaluated."""
    tables = []
    for record in records:
        by_round = {}
        for done in record.evaluated:
            by_round[done.number] = (done.personal or done.metrics).get(key, math.nan)
        tables.append(by_round)
    numbers = sorted(set.intersection(*map(set, tables)))
    if not numbers:
        raise RunError(f"{str(records[0].folder)!r} has no evaluated round yet")
    values = np.array([[by_round[number] for number in numbers] for by_round in tables])
    return Band(numbers, values.mean(0), values.min(0), values.max(0))


def _draw_band(axes: "Axes", curve: Band, i: int, label: str, factor: float) -> None:
    colour = colour_of(i)
    style = LINES[i % len(LINES)]
    marker = marker_of(i) if len(curve.round) < 20 else ""
    low, mean, high = factor * curve.low, factor * curve.mean, factor * curve.high
    axes.fill_between(curve.round, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.plot(curve.round, mean, style, color=colour, marker=marker, ms=4, label=label)


# Weights


class Weights(NamedTuple):
    """Weights relative to an equal share of the cohort: 1 is like everyone."""

    names: list[str]  # of clients, or of groups of clients, the least favoured first
    rounds: list[int]  # the last round of each column
    table: Array  # (names, rounds); NaN: not in the cohorts
    grouped: bool

    @property
    def are_constant(self) -> bool:
        """True if no client's weight ever changes: then there is nothing to see."""
        low = np.nanmin(self.table, 1)
        high = np.nanmax(self.table, 1)
        return bool(np.allclose(low, high, atol=1e-6))


def relative_weights(record: Record) -> Weights:
    """The weights of a run, averaged to a size that can be shown."""
    names = list(dict.fromkeys(chain(*(done.weights for done in record.rounds))))
    if not names:
        raise RunError(f"{str(record.folder)!r}: no round of this run has weights")
    columns = np.array_split(np.arange(len(record.rounds)), min(MOST_COLUMNS, len(record.rounds)))
    position = {name: k for k, name in enumerate(names)}
    total = np.zeros((len(names), len(columns)))
    count = np.zeros_like(total)
    for j, column in enumerate(columns):
        for t in column.tolist():
            weights = record.rounds[t].weights
            rows = [position[name] for name in weights]
            total[rows, j] += len(weights) * np.array(list(weights.values()))
            count[rows, j] += 1
    order = np.argsort(total.sum(1) / count.sum(1), kind="stable")
    groups = np.array_split(order, min(MOST_NAMES, len(names)))
    labels = []
    table = np.full((len(groups), len(columns)), np.nan)
    for row, group in zip(table, groups, strict=True):
        known = count[group].sum(0)
        np.divide(total[group].sum(0), known, out=row, where=known > 0)
        first, last = names[group[0]], names[group[-1]]
        labels.append(first if len(group) == 1 else f"{first} … {last}")
    ends = [record.rounds[int(column[-1])].number for column in columns]
    return Weights(labels, ends, table, grouped=len(names) > MOST_NAMES)


def weights(record: Record, label: str) -> Picture:
    """Draw the clients' weights over rounds as a heat map: whom did the rule favour?"""
    relative = relative_weights(record)
    who = "groups of clients" if relative.grouped else "clients"
    least, most = shortened(relative.names[0]), shortened(relative.names[-1])
    description = (
        f"Weights under {label} by round, relative to an equal weight (1): {who} from the one "
        f"favoured least ({least}) to the one favoured most ({most}). "
        "White: not in a cohort."
    )
    last = len(relative.rounds) - 1
    at = (0, (last + 1) // 2, last)
    rows = []
    for name, row in zip(relative.names, relative.table, strict=True):
        cells = ["-" if math.isnan(row[j]) else f"{row[j]:.2f}" for j in at]
        rows.append((name, f"{np.nanmean(row):.2f}", *cells))
    header = ("client", "mean relative weight", *(f"round {relative.rounds[j]}" for j in at))
    title = f"Weights over rounds: {label}"
    return Picture(title, description, _draw_weights(relative), header, rows[::-1])


def _draw_weights(relative: Weights) -> "Figure":
    with _axes(1.2 + 0.19 * len(relative.names)) as (figure, axes):
        image = _heat_map(axes, relative.table, "cividis")
        figure.colorbar(image, ax=axes, label="weight relative to equal (1)", location="top")
        names = [shortened(name, TICK) for name in relative.names]
        axes.set_yticks(range(len(names)), names, fontsize=8)
        ticks = spaced(len(relative.rounds), 6)
        axes.set_xticks(ticks, [str(relative.rounds[k]) for k in ticks])
        axes.set_xlabel("round")
    return figure


# Tuning


class SettingScores(NamedTuple):
    """A setting of a rule, as tuning tried it."""

    rule: str
    name: str
    mean: float
    worst: float  # the mean over the worst 10 % of clients


def front(settings: Sequence[SettingScores], score: str, lower_is_better: bool = False) -> Picture:
    """Draw mean against worst 10 % of all settings of all rules, and those that no other beats."""
    sign = -1 if lower_is_better else 1
    values = sign * np.array([setting[2:] for setting in settings])  # mean and worst (S, 2)
    unbeaten = []
    for setting, own in zip(settings, values, strict=True):
        gains = values - own
        beaten = (gains.min(1) >= 0) & (gains.max(1) > 0)  # at least as good in both, and better
        if not beaten.any():
            unbeaten.append(setting)
    unbeaten.sort(key=lambda setting: setting.mean)
    names = ", ".join(dict.fromkeys(setting.name for setting in unbeaten))
    description = (
        f"{score_label(score)} on validation samples: the mean over clients against the worst "
        f"10 % of them, one mark per setting. The line joins those that no other setting beats in "
        f"both: {names}."
    )
    ranked = sorted(settings, key=lambda setting: -sign * setting.worst)
    rows = [(s.name, show_score(s.mean, score), show_score(s.worst, score)) for s in ranked]
    figure = _draw_front(settings, unbeaten, score)
    return Picture("Mean against worst", description, figure, ("rule", "mean", "worst 10 %"), rows)


def _draw_front(
    settings: Sequence[SettingScores], unbeaten: Sequence[SettingScores], score: str
) -> "Figure":
    rules = list(dict.fromkeys(setting.rule for setting in settings))
    marks = [(rule, [each for each in settings if each.rule == rule]) for rule in rules]
    with _axes(3.6 + 0.1 * len(rules)) as (figure, axes):
        for i, (rule, own) in enumerate(marks):
            points = scale(score) * np.array([each[2:] for each in own])
            axes.plot(*points.T, marker_of(i), color=colour_of(i), label=shown(rule))
        points = scale(score) * np.array([each[2:] for each in unbeaten])
        axes.plot(*points.T, color=GREY, linewidth=1, zorder=0)
        axes.set_xlabel(f"mean {score_label(score)} on validation samples")
        axes.set_ylabel("worst 10 % of clients")
        axes.grid(alpha=0.3)
        _legend(figure, axes, 2)
    return figure


# Regret


def regret(curve: Regret, label: str) -> Picture:
    """Draw the regret of a run against the best fixed mixture, with its bound if there is one."""
    bound = "" if curve.bound is None else f", where the theorem's bound is {curve.bound[-1]:.3f}"
    if curve.estimated:
        bound = ", estimated from cohorts (Corollary 5.3 of AAggFF; no bound is proved for it)"
    description = (
        f"What the decisions of {label} cost beyond the best fixed mixture of clients in "
        f"hindsight: {curve.regret[-1]:.3f} after round {curve.rounds[-1]}{bound}."
    )
    rows = []
    for k, number in enumerate(curve.rounds):
        limit = "-" if curve.bound is None else f"{curve.bound[k]:.3f}"
        rows.append((str(number), f"{curve.regret[k]:.3f}", limit))
    with _axes(3.0) as (figure, axes):
        axes.plot(curve.rounds, curve.regret, marker=".", color=COLOURS[0], label="regret")
        if curve.bound is not None:
            bound = "the theorem's bound"
            axes.plot(curve.rounds, curve.bound, "--", color=COLOURS[1], label=bound)
            # Bounds are often far above: linear up to the regret, logarithmic beyond it.
            axes.set_yscale("symlog", linthresh=max(1e-3, *map(abs, curve.regret)))
            axes.yaxis.set_major_formatter("{x:g}")
        axes.set_xlabel("round")
        axes.grid(alpha=0.3)
        _legend(figure, axes)
    header = ("round", "regret", "bound")
    return Picture(f"Regret: {label}", description, figure, header, rows)


# Models of a run


def interpolation(curve: Curve, score: str) -> "Figure":
    """Draw the score on the line from the global to the personal models."""
    scores = scale(score) * curve.scores.numpy()
    low, high = np.quantile(scores, (0.25, 0.75), axis=0)
    with _axes(4) as (figure, axes):
        axes.fill_between(POINTS, low, high, alpha=0.2, label="middle half of the clients")
        axes.plot(POINTS, scores.mean(0), "o-", label="mean over clients")
        for style, (label, values) in zip(("--", ":"), curve.adaptive().items(), strict=True):
            mean = scale(score) * float(values.mean())
            axes.axhline(mean, linestyle=style, color="C1", label=label)
        axes.set_xlabel("mixing coefficient: 0 is the global model, 1 the personal one")
        axes.set_ylabel(score_label(score))
        axes.legend()
    return figure


# Data


def forest(term: Estimate, ratio: str) -> "Figure":
    """Draw a coefficient of each client with its 95 % interval, and the common one below."""
    sites = sorted(term.sites, key=lambda site: -site.value)
    half = 1.96 * np.array([site.error for site in sites])
    values = np.array([site.value for site in sites])
    names = [shortened(site.client, TICK) for site in sites]
    place = np.arange(len(sites), 0, -1)
    with _axes(1.6 + 0.17 * (len(sites) + 1)) as (figure, axes):
        axes.errorbar(values, place, xerr=half, fmt="s", color=COLOURS[0], markersize=3, lw=1)
        common = [[term.value - term.low], [term.high - term.value]]
        axes.errorbar([term.value], [0], xerr=common, fmt="D", color=COLOURS[1], markersize=5)
        axes.axvline(0, color=GREY, lw=1)
        axes.axvline(term.value, color=COLOURS[1], lw=0.8, ls=":")
        axes.set_yticks([*place, 0], [*names, "all rows together"], fontsize=8)
        axes.set_xlabel(f"coefficient (log {ratio})" if ratio else "coefficient")
        axes.set_title(shown(term.name))
    return figure


def sites(curves: SiteCurves, client: str = "") -> "Figure":
    """Draw curves of all samples, or of one client, before those of the other clients in grey."""
    name = client or "all samples"
    if curves.survival:
        return _draw_survival(curves, client, name)
    with _styled():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(3 * WIDTH / 2, 3.6), layout="constrained")
        panels = figure.subplots(1, 3)
        tables = (curves.calibration, curves.decision, curves.roc)
        for axes, table in zip(panels, tables, strict=True):
            for other, line in table.items():
                if other not in ("", client):
                    axes.plot(*line, color=GREY, lw=0.5, alpha=0.35)
            marker = "o" if table is curves.calibration else None
            axes.plot(*table[client], color=COLOURS[0], lw=2, marker=marker, ms=4, label=name)
        first, second, third = panels
        first.plot([0, 1], [0, 1], color=COLOURS[1], lw=1, ls="--")
        first.set(title="calibration", xlabel="predicted probability")
        first.set_ylabel(f"share of {shortened(shown(curves.positive), TICK)}")
        second.axhline(0, color="black", lw=1, label="treat none")
        second.plot(*curves.treat_all[client], color=COLOURS[1], lw=1, ls="--", label="treat all")
        highest = max(line[1].max() for line in curves.decision.values())
        second.set(title="decision curve", xlabel="threshold", ylabel="net benefit")
        second.set_ylim(-0.1 * highest, 1.05 * highest)
        second.legend(frameon=False, fontsize=8)
        third.plot([0, 1], [0, 1], color=COLOURS[1], lw=1, ls="--")
        third.set(title="ROC", xlabel="1 - specificity", ylabel="sensitivity")
    return figure


def _draw_survival(curves: SiteCurves, client: str, name: str) -> "Figure":
    with _axes(4.0) as (figure, axes):
        for other, lines in curves.survival.items():
            for k, line in enumerate(lines):
                is_main = other == client
                width, alpha = (2.0, 1.0) if is_main else (0.5, 0.3)
                label = ("low", "middle", "high")[k] + " risk" if is_main else None
                colour = COLOURS[(2, 0, 1)[k]]
                axes.step(*line, where="post", color=colour, lw=width, alpha=alpha, label=label)
        axes.set(xlabel="time", ylabel="share without the event", ylim=(0, 1.02))
        axes.set_title(f"Kaplan-Meier by thirds of the predicted risk: {shown(name)}")
        axes.legend(frameon=False)
    return figure


def transfer(found: Transfer) -> "Figure":
    """Draw the score of every client's model on every client's samples as a heat map."""
    names = [shortened(name, TICK) for name in found.names]
    ticks = spaced(len(names), MOST_NAMES)
    shown_names = [names[k] for k in ticks]
    values = scale(found.score) * found.table
    with _axes(2.4 + 0.09 * min(len(names), MOST_CLIENTS), 2.6 + 0.11 * len(names)) as (
        figure,
        axes,
    ):
        image = axes.imshow(values, "cividis", aspect="equal", interpolation="nearest")
        label = score_label(found.score) + (", lower is better" if found.lower_is_better else "")
        figure.colorbar(image, ax=axes, label=label)
        axes.set_xticks(ticks, shown_names, rotation=90, fontsize=7)
        axes.set_yticks(ticks, shown_names, fontsize=7)
        axes.set_xlabel("samples of")
        axes.set_ylabel("model of")
    return figure


def federation(data: Federation, title: str) -> "Figure":
    """Draw samples by client and class, or by client where samples have no classes."""
    names = data.names
    with _axes(5, 8) as (figure, axes):
        if data.classes is None:
            sizes = averaged((data.train.sizes + data.test.sizes).double().numpy()[:, None])[:, 0]
            axes.bar(np.arange(len(sizes)), sizes, width=1.0)
            axes.set_ylabel("samples")
        else:
            counts = averaged(data.counts.double().numpy())
            _draw_classes(figure, axes, counts, data.class_names)
        if len(names) <= MOST_CLIENTS:
            shown_clients = spaced(len(names), MOST_NAMES)
            ticks = [shortened(names[k], TICK) for k in shown_clients]
            axes.set_xticks(shown_clients, ticks, rotation=60, ha="right")
            axes.set_xlabel("client")
        else:
            axes.set_xlabel(f"{len(names)} clients in {MOST_CLIENTS} groups (means)")
        axes.set_title(shown(title, lines=True))
    return figure


def _draw_classes(
    figure: "Figure", axes: "Axes", counts: Array, class_names: Sequence[str]
) -> None:
    image = _heat_map(axes, np.log1p(counts).T, "Blues")
    powers = 10 ** np.arange(int(np.log10(max(counts.max(), 1))) + 1)
    steps = np.outer(powers, (1, 2, 5)).ravel()
    steps = steps[steps <= max(counts.max(), 1)]
    bar = figure.colorbar(image, ax=axes, ticks=np.log1p(steps), label="samples")
    bar.ax.set_yticklabels(list(map(str, steps)))
    axes.set_ylabel("class")
    ticks = spaced(counts.shape[1], 20)
    names = [shortened(class_names[k], TICK) if class_names else str(k) for k in ticks]
    axes.set_yticks(ticks, names)


def averaged(counts: Array) -> Array:
    """At most MOST_CLIENTS lines: neighbouring clients are averaged."""
    if len(counts) <= MOST_CLIENTS:
        return counts
    starts = np.linspace(0, len(counts), MOST_CLIENTS + 1).astype(int)[:-1]
    sizes = np.diff(np.append(starts, len(counts)))
    means: Array = np.add.reduceat(counts, starts) / sizes[:, None]
    return means
