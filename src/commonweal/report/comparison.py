"""A comparison as numbers, as the text of a table, and in sentences."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from rich.console import Group
from rich.table import Table

from commonweal import metrics
from commonweal.analysis.compare import OWN, Result, align
from commonweal.analysis.gains import ClientGain, Gains, gains_over_local
from commonweal.base.errors import ConfigError, did_you_mean
from commonweal.base.plain import to_json
from commonweal.metrics import Against, Paired
from commonweal.report import Format, formats
from commonweal.report.clients import NAMES, best_method
from commonweal.report.formats import (
    METRICS,
    Column,
    Grid,
    add_columns,
    counted,
    decimals_of,
    in_points,
    interval,
    markup,
    plain_table,
    points,
    scale,
    sign_of,
    unit,
)

Array: TypeAlias = NDArray[np.float64]

MANY = 20  # with this many clients, tails are compared instead of single clients
FEWEST_SEEDS = 3  # for an interval of one client's score: that of two is wider than the scale
NAMED = 5  # clients that a sentence names
MOST_SEEDS = 100  # that a sentence suggests

# The columns of the tables that papers print; worst and best are tenths with many clients.
PAPERS = {
    "aaggff": ("weighted_mean", "worst", "best", "gini"),
    "adafed": ("mean", "std", "worst_10", "best_10"),
    "qffl": ("weighted_mean", "worst_10", "best_10", "variance"),
    "vred": ("mean", "std", "worst", "worst_10", "worst_20", "best_10"),
}


# Numbers


@dataclass(frozen=True, eq=False)
class Summary:
    """The statistics of several results. Scores are in their own unit, not in per cent."""

    score: str
    seeds: int
    clients: int  # those with a score in every seed, of the first result
    labels: tuple[str, ...]
    values: dict[str, Array]  # by metric to show, (labels, seeds)
    compared: dict[str, Array]  # by metric whose differences are tested, (labels, seeds)
    differences: dict[str, list[Paired]]  # by metric, of all labels but the first from it
    against: dict[str, Against]  # by label, against FedAvg if it is there; means over seeds
    gains: list[Gains]  # over local training, one per label; empty where that was not run

    @property
    def sign(self) -> int:
        """What turns a difference of scores into a gain: -1 for errors."""
        return sign_of(self.score)

    @property
    def tail(self) -> str:
        """The metric of the clients that are served worst."""
        return "worst_10" if "worst_10" in self.values else "worst"

    @property
    def best(self) -> Gains | None:
        """The method that serves clients best, where local training was run."""
        return best_method(self.gains) if self.gains else None


def chosen_columns(text: str) -> list[str]:
    """The metrics that a text names: themselves, or those of a paper's table.

    >>> chosen_columns("mean,qffl")
    ['mean', 'weighted_mean', 'worst_10', 'best_10', 'variance']
    """
    columns: list[str] = []
    for part in text.split(","):
        name = part.strip()
        if name not in METRICS and name not in PAPERS:
            known = (*METRICS, *PAPERS)
            raise ConfigError(f"there is no column {name!r}: {did_you_mean(name, known)}")
        columns += PAPERS.get(name, (name,))
    return list(dict.fromkeys(columns))


def summarize(
    results: Sequence[Result],
    score: str,
    columns: Sequence[str] | None = None,
    baselines: Sequence[Result] = (),
) -> Summary:
    """Compute the numbers of the tables that papers print, and which differences are significant.

    The first result is what others are compared with. Without columns: mean, worst, best and how
    scores spread.
    """
    first = results[0]
    tail = "_10" if len(first.clients) >= MANY else ""
    if columns is None:
        by_samples = ["weighted_mean"] if "weighted_mean" in first.metrics[0] else []
        keys = ["mean", *by_samples, f"worst{tail}", f"best{tail}", "std", "gini", f"gap{tail}"]
    else:
        keys = list(dict.fromkeys(k + tail if k in ("worst", "best") else k for k in columns))
    mean = next((key for key in keys if key in ("mean", "weighted_mean")), "mean")
    worst = next((key for key in keys if key.startswith("worst")), f"worst{tail}")
    tested = (mean, worst)
    values = {key: _over_seeds(results, key) for key in (*keys, *tested)}
    return Summary(
        score=score,
        seeds=first.seeds,
        clients=len(first.clients),
        labels=tuple(result.label for result in results),
        values={key: values[key] for key in keys},
        compared={key: values[key] for key in tested},
        differences={key: metrics.holm([*values[key][1:]], values[key][0]) for key in tested},
        against=_against(results),
        gains=gains_over_local(results, baselines),
    )


def _over_seeds(results: Sequence[Result], key: str) -> Array:
    """A metric of results (labels, seeds)."""
    if key == "variance":
        return _over_seeds(results, "std") ** 2
    rows = []
    for result in results:
        rows.append([by_metric[key] for by_metric in result.metrics])
    return np.array(rows)


def _against(results: Sequence[Result]) -> dict[str, Against]:
    """What changed for suffering and thriving clients against FedAvg; means over seeds."""
    named = {result.label: result for result in results}
    base = named.pop("fedavg", None)
    if base is None:
        return {}
    changes = {}
    for other in named.values():
        _, before, after = align(base, other)
        by_seed = []
        for old, new in zip(before, after, strict=True):
            by_seed.append(metrics.against(old, new, lower_is_better=base.lower_is_better))
        changes[other.label] = Against(*np.array(by_seed).mean(0).tolist())
    return changes


def lines(summary: Summary) -> list[dict[str, object]]:
    """A comparison as plain numbers, a line per method.

    Scores are in their own unit, and what is shown in per cent is a fraction, the Gini index too.
    """
    over_local = {gained.label: gained for gained in summary.gains}
    rows = []
    for row, label in enumerate(summary.labels):
        line: dict[str, object] = {"rule": label, "score": summary.score, "seeds": summary.seeds}
        for key, shown in summary.values.items():
            values = shown / 100 if key == "gini" else shown
            deviation = float(values[row].std()) if summary.seeds > 1 else None
            line |= {key: float(values[row].mean()), f"{key}_std": deviation}
        for key, differences in summary.differences.items():
            cells = differences[row - 1]._asdict() if row else dict.fromkeys(Paired._fields)
            for part, cell in cells.items():
                line[f"{key}_{part}"] = cell
        change = summary.against.get(label)
        line |= change._asdict() if change else dict.fromkeys(Against._fields)
        if label in over_local:
            gained = over_local[label]
            mean = gained.mean
            line |= {"better_off": gained.better_off, "excess_max": gained.excess_max}
            line |= {"mean_against_alone": mean.difference, "share_of_pooled": gained.share}
            line |= {"mean_against_alone_low": mean.low, "mean_against_alone_high": mean.high}
        rows.append(line)
    return rows


# Tables


def render(summary: Summary, form: Format, decimals: int | None = None) -> str | Group:
    """Write a comparison for a terminal (as something rich prints), Markdown, LaTeX, CSV or JSON.

    CSV and JSON hold numbers as they are, whatever the number of decimals.
    """
    if form == "csv":
        return formats.csv_text(lines(summary))
    if form == "json":
        return to_json(lines(summary)).decode()
    grid = layout(summary, decimals)
    if form == "terminal":
        return formats.terminal(grid)
    return formats.markdown(grid) if form == "markdown" else formats.latex(grid)


def layout(summary: Summary, decimals: int | None = None) -> Grid:
    """Format the numbers of a comparison, by default with one decimal of per cent."""
    in_per_cent = " in %" if unit(summary.score) else ""
    over = f"mean±std over {summary.seeds} seeds" if summary.seeds > 1 else "one seed"
    title = f"{summary.score} over {summary.clients} clients{in_per_cent}, {over}"
    return Grid(
        title=title,
        labels=summary.labels,
        figures=[_figure_column(summary, key, decimals) for key in summary.values],
        differences=_difference_columns(summary, decimals) + _change_columns(summary, decimals),
        against_local=_local_columns(summary, decimals),
        notes=_notes(summary),
    )


def _figure_column(summary: Summary, key: str, decimals: int | None) -> Column:
    metric = METRICS[key]
    factor = scale(summary.score) if metric.in_score_units else 1.0
    if key == "variance":
        factor = scale(summary.score) ** 2
    values = factor * summary.values[key]
    digits = metric.digits if decimals is None else decimals
    if metric.in_score_units:
        digits = decimals_of(summary.score, values, decimals)
    cells = []
    for row in values:
        if np.isnan(row).all():
            cells.append("-")
            continue
        deviation = f"±{row.std():.{digits}f}" if len(row) > 1 else ""
        cells.append(f"{row.mean():.{digits}f}{deviation}")
    lower = metric.lower_is_better
    if key in ("mean", "weighted_mean") or key.startswith(("worst", "best")):
        lower = summary.sign < 0
    return Column(metric.title, cells, _best(values if lower else -values))


def _best(values: Array) -> int | None:
    """The row (labels, seeds) that is significantly lower than all others, if there is one."""
    if len(values) == 1 or np.isnan(values).any():
        return None
    lowest = int(values.mean(1).argmin())
    others = [*np.delete(values, lowest, 0)]
    clear = all(difference.significant for difference in metrics.holm(others, values[lowest]))
    return lowest if clear else None


def _difference_columns(summary: Summary, decimals: int | None) -> list[Column]:
    """The gains over the first method; above 0 is better, also for errors."""
    columns: list[Column] = []
    if len(summary.labels) == 1:
        return columns
    for key, differences in summary.differences.items():
        sizes = np.array([paired.difference for paired in differences])
        digits = decimals_of(summary.score, sizes, decimals)
        cells = [""]
        for paired in differences:
            if summary.sign < 0:
                paired = Paired(-paired.difference, -paired.high, -paired.low, paired.significant)
            cells.append(interval(paired, summary.score, digits))
        columns.append(Column(f"gain in {METRICS[key].title} over {summary.labels[0]}", cells))
    return columns


def _change_columns(summary: Summary, decimals: int | None) -> list[Column]:
    """How many suffering clients improved and thriving ones degraded, with their mean gain."""
    if not summary.against:
        return []
    suffering = Column("suffering improved", [])
    thriving = Column("thriving degraded", [])
    for label in summary.labels:
        change = summary.against.get(label)
        if change is None:
            suffering.cells.append("")
            thriving.cells.append("")
            continue
        gain = points(summary.sign * change.suffering_change, summary.score, decimals)
        suffering.cells.append(f"{100 * change.suffering_improved:.0f} % ({gain})")
        gain = points(summary.sign * change.thriving_change, summary.score, decimals)
        thriving.cells.append(f"{100 * change.thriving_degraded:.0f} % ({gain})")
    return [suffering, thriving]


def _local_columns(summary: Summary, decimals: int | None) -> list[Column]:
    """Each method compared with local training; nothing where that was not run."""
    if not summary.gains:
        return []
    counts = Column("clients better / n.s. / worse", [])
    mean = Column("mean gain", [])
    loss = Column("largest loss", [])
    share = Column("of the way to pooled", [])
    for gained in summary.gains:
        sizes = np.array([client.gain for client in gained.clients])
        digits = decimals_of(summary.score, sizes, decimals)
        largest = f"{scale(summary.score) * gained.excess_max:.{digits}f}"
        counts.cells.append(f"{len(gained.better)} / {gained.unclear} / {len(gained.worse)}")
        mean.cells.append(interval(gained.mean, summary.score, digits))
        loss.cells.append(largest if gained.losers else "none")
        share.cells.append("-" if gained.share is None else f"{100 * gained.share:.0f} %")
    return [counts, mean, loss, share]


def _notes(summary: Summary) -> list[str]:
    notes = _seed_notes(summary)
    if len(summary.labels) > 1:
        several = len(summary.labels) - 1
        corrected = f", corrected for {several} comparisons (Holm)" if several > 1 else ""
        notes.append(
            "gains are paired by seed, with 95 % confidence intervals"
            f"{corrected}; above 0 is better; n.s.: not significant; bold: significantly better "
            "than all others"
        )
    if summary.against:
        side = ("above", "below") if summary.sign < 0 else ("below", "above")
        notes.append(
            f"suffering, thriving: clients {side[0]}, {side[1]} FedAvg's mean; how many of them "
            "improved or degraded, and their mean gain"
        )
    if any(label.endswith(OWN) for label in summary.labels):
        notes.append(
            "personal models: those that the clients of this method use; the line before is its "
            "global model"
        )
    return notes


def _seed_notes(summary: Summary) -> list[str]:
    """How many seeds would show that the largest difference is significant."""
    key, differences = list(summary.differences.items())[-1]  # of the worst clients
    values = summary.compared[key]
    open_ones = [k for k, paired in enumerate(differences) if not paired.significant]
    if not open_ones:
        return []
    if summary.seeds < 2:
        return ["one seed shows no significant difference: run at least three"]
    largest = max(open_ones, key=lambda k: abs(differences[k].difference))
    confidence = 1 - 0.05 / len(open_ones)  # what Holm's procedure asks of the first of them
    needed = metrics.seeds_needed(values[largest + 1], values[0], confidence, MOST_SEEDS)
    if needed is None or needed <= summary.seeds:
        return []
    difference = points(abs(differences[largest].difference), summary.score)[1:]
    return [
        f"with {summary.seeds} seeds {in_points(difference, summary.score)} are not significant "
        f"({summary.labels[largest + 1]}, {METRICS[key].title}); about {needed} seeds would do"
    ]


def client_table(results: Sequence[Result], score: str) -> Table:
    """Every client's score under each result, with its 95 % interval over seeds."""
    first = results[0]
    per_cent = " in %" if unit(score) else ""
    title = f"{score} of every client{per_cent}: mean over {counted(first.seeds, 'seed')}"
    if first.seeds >= FEWEST_SEEDS:
        title += ", ± 95 % interval"
    table = plain_table(title)
    add_columns(table, "client")
    for result in results:
        add_columns(table, NAMES.get(result.label, result.label), right=True)
    for name in first.clients:
        cells = [_client_cell(result, name, score) for result in results]
        table.add_row(markup(name), *cells)
    return table


def _client_cell(result: Result, name: str, score: str) -> str:
    if name not in result.clients:
        return "-"
    values = scale(score) * result.scores[:, result.clients.index(name)]
    digits = decimals_of(score, values)
    text = f"{values.mean():.{digits}f}"
    if len(values) < FEWEST_SEEDS:
        return text
    over_seeds = metrics.paired(values, np.zeros_like(values))
    half = (over_seeds.high - over_seeds.low) / 2
    if math.isnan(half):  # all seeds agree
        return text
    return f"{text} ±{half:.{max(0, digits - 1)}f}"


# Sentences


def answer(summary: Summary) -> str:
    """Whether joining pays, for the method that serves clients best.

    The sentence follows from the intervals: joining pays where more clients gain significantly
    than lose and the mean does not fall significantly.

    Returns:
        The sentence; empty where local training was not run.
    """
    best = summary.best
    if best is None:
        return ""
    clients = len(best.clients)
    better, worse = len(best.better), len(best.worse)
    falls = best.mean.significant and best.mean.difference < 0
    if better > worse and not falls:
        rest = "none is" if worse == 0 else _are(worse)
        return (
            f"Joining pays: with {best.label}, {_are(better, clients)} significantly better off "
            f"than with local training, and {rest} worse off."
        )
    if worse > better or falls:
        return (
            f"Joining does not pay here: even with {best.label}, {_are(worse, clients)} "
            f"significantly worse off than with local training, and {better or 'none'} better off."
        )
    if worse:
        return (
            f"Joining helps some clients and harms others: with {best.label}, "
            f"{_are(better, clients)} significantly better off than with local training, and "
            f"{_are(worse)} worse off."
        )
    if summary.seeds < 2:
        reason = "one seed shows no significant difference; run at least three"
    else:
        reason = (
            f"with {best.label} and {summary.seeds} seeds, no client's difference from local "
            "training is significant"
        )
        by_seed = best.changes.mean(1)
        needed = metrics.seeds_needed(by_seed, np.zeros_like(by_seed), most=MOST_SEEDS)
        if needed is not None and summary.seeds < needed:
            reason += f"; about {needed} seeds would show the mean gain"
    return f"Whether joining pays is open: {reason}."


def _are(count: int, clients: int | None = None) -> str:
    """A number of clients with its verb: "1 of 17 clients is", "2 are"."""
    of = "" if clients is None else f" of {clients} clients"
    return f"{count}{of} {'is' if count == 1 else 'are'}"


def worth_sentences(summary: Summary) -> list[str]:
    """One sentence per method: how many clients gain and lose against local training, and who."""
    sentences = []
    for gained in summary.gains:
        mean = points(gained.mean.difference, summary.score)
        certainty = "" if gained.mean.significant else " (not significant)"
        sentence = (
            f"{gained.label}: {_are(len(gained.better), len(gained.clients))} better off than with "
            f"local training, {len(gained.worse)} worse off{_named(gained.worse, summary.score)}, "
            f"{gained.unclear} without a significant difference. Mean gain {mean}{certainty}"
        )
        if gained.share is not None:
            sentence += f"; {100 * gained.share:.0f} % of the way from local to pooled training"
        sentences.append(sentence + ".")
    return sentences


def _named(clients: Sequence[ClientGain], score: str) -> str:
    if not clients:
        return ""
    some = [f"{client.client} {points(client.gain, score)}" for client in clients[:NAMED]]
    more = len(clients) - NAMED
    return f" ({', '.join(some)}{f' and {more} more' if more > 0 else ''})"
