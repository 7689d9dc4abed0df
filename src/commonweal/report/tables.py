"""Tables of runs and comparisons: first as numbers, then for a terminal, Markdown, LaTeX or CSV."""

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Group
from rich.table import Table

from commonweal import metrics
from commonweal.analysis.compare import Result, align, mean_change
from commonweal.analysis.interpolation import Curve
from commonweal.analysis.worth import Worth
from commonweal.base.errors import ConfigError, did_you_mean
from commonweal.base.plain import to_json
from commonweal.base.text import quoted, shown
from commonweal.metrics import Against, Paired
from commonweal.record.record import Record
from commonweal.record.rounds import ClientTable, RoundRecord
from commonweal.report import Format
from commonweal.training import scores
from commonweal.training.evaluation import Evaluation

__all__ = [
    "MARKS",
    "Comparison",
    "PAPERS",
    "choices",
    "chosen_columns",
    "client_table",
    "comparison",
    "layout",
    "lines",
    "render",
    "result",
    "run_summary",
    "scale",
    "show_score",
    "small_test_sets",
    "verdict",
    "worth_sentences",
]

Array: TypeAlias = NDArray[np.float64]

MANY = 20  # with this many clients, tails are compared instead of single clients
ALL = 40  # clients that a run's table shows; of more, SHOWN at each end
SHOWN = 5
NOT_SIGNIFICANT = "(not significant)"
NARROW = 80  # columns of a terminal
LABEL = 24  # of them, at most, for the first column
FEW_ROWS = 20  # test rows below which a single one is worth a word


class Metric(NamedTuple):
    """How a metric over clients is shown."""

    title: str
    in_score_units: bool = True
    lower_is_better: bool = False


METRICS = {
    "mean": Metric("mean"),
    "weighted_mean": Metric("mean by rows"),
    "worst": Metric("worst"),
    "worst_5": Metric("worst 5 %"),
    "worst_10": Metric("worst 10 %"),
    "worst_20": Metric("worst 20 %"),
    "best": Metric("best"),
    "best_5": Metric("best 5 %"),
    "best_10": Metric("best 10 %"),
    "std": Metric("std", lower_is_better=True),
    "variance": Metric("variance", in_score_units=False, lower_is_better=True),
    "gini": Metric("Gini", in_score_units=False, lower_is_better=True),
    "gap": Metric("gap", lower_is_better=True),
    "gap_10": Metric("gap 10 %", lower_is_better=True),
    "angle": Metric("angle (degrees)", in_score_units=False, lower_is_better=True),
    "kl": Metric("KL (nats)", in_score_units=False, lower_is_better=True),
}

# The columns of the tables that papers print; worst and best are tenths with many clients.
PAPERS = {
    "aaggff": ("weighted_mean", "worst", "best", "gini"),
    "adafed": ("mean", "std", "worst_10", "best_10"),
    "qffl": ("weighted_mean", "worst_10", "best_10", "variance"),
    "vred": ("mean", "std", "worst", "worst_10", "worst_20", "best_10"),
}


def _text(text: str) -> str:
    """A text as rich shows it: markup and control sequences in it have no effect."""
    return shown(text, "markup")


def scale(score: str) -> float:
    """The factor by which a score is shown: fractions are shown in per cent."""
    return 100.0 if scores.find(score).in_per_cent else 1.0


def _unit(score: str) -> str:
    return " %" if scores.find(score).in_per_cent else ""


def _decimals(score: str, values: Array) -> int:
    """Digits after the point: one of per cent; of other units so many that three are telling."""
    if scores.find(score).in_per_cent:
        return 1
    finite = np.abs(values[np.isfinite(values)])
    largest = float(finite.max()) if finite.size else 0.0
    return 2 if largest == 0 else min(4, max(0, 2 - math.floor(math.log10(largest))))


def show_score(value: float, score: str, digits: int = 2) -> str:
    """A score with its unit; "-" where it is undefined."""
    if math.isnan(value):
        return "-"
    if not scores.find(score).in_per_cent:
        digits = max(digits, _decimals(score, np.array([value])))
    return f"{scale(score) * value:.{digits}f}{_unit(score)}"


def _show_metric(value: float, score: str, metric: str) -> str:
    if METRICS[metric].in_score_units or math.isnan(value):
        return show_score(value, score)
    return f"{value:.2f}"


# One run


def run_summary(record: Record) -> dict[str, object]:
    """A run's last evaluation as plain values, for JSON."""
    last = record.evaluated[-1] if record.evaluated else None
    facts: dict[str, object] = {
        "folder": str(record.folder),
        "finished": record.finished,
        "round": None if last is None else last.number,
        "metrics": None if last is None else last.metrics,
    }
    if last is None:
        return facts | {"clients": []}
    if last.personal:
        facts["personal"] = last.personal
    if last.more:
        facts["more"] = last.more
    if last.mixture:
        facts["mixture"] = last.mixture
    return facts | {"clients": _client_values(record)}


def _client_values(record: Record) -> list[dict[str, object]]:
    """The values of every client by column."""
    table = record.clients()
    columns = _columns(table.evaluation)
    if table.evaluation.personal is not None:
        own = _columns(table.evaluation.personal)
        columns |= {f"personal_{name}": values for name, values in own.items()}
    rows = zip(*columns.values(), strict=True)
    return [
        {"client": name, **dict(zip(columns, row, strict=True))}
        for name, row in zip(table.names, rows, strict=True)
    ]


def _columns(evaluation: Evaluation) -> dict[str, list[float]]:
    main, *further = evaluation.scores
    columns = {"score": evaluation.scores[main], "loss": evaluation.losses}
    columns |= {name: evaluation.scores[name] for name in further}
    return {name: values.tolist() for name, values in columns.items()}


class _Model(NamedTuple):
    """A column of a run's table."""

    title: str
    score: str
    metrics: dict[str, float]
    clients: list[float]


def result(record: Record) -> Group:
    """A run's last evaluation: metrics over clients, every client, and what to beware of."""
    last = record.evaluated[-1]
    clients = record.clients()
    evaluation = clients.evaluation
    models = _models(last, evaluation)
    table = Table(title=_title(record, last))
    _add_column(table, "over clients")
    for model in models:
        _add_column(table, model.title, right=True)
    if last.mixture:
        _add_column(table, "mixture", right=True)
    for key in (key for key in last.metrics if key in METRICS):
        cells = [_show_metric(m.metrics.get(key, math.nan), m.score, key) for m in models]
        table.add_row(METRICS[key].title, *cells)
    table.add_section()
    for k in _ends(models[0]):
        rows = int(evaluation.sizes[k])
        cells = [_show_client(model, k, rows) for model in models]
        if last.mixture:
            cells.append(f"{last.mixture.get(clients.names[k], math.nan):.3f}")
        table.add_row(_text(clients.names[k]), *cells)
    return Group(table, *[_text(note) for note in _run_notes(record, clients, models[0])])


def _show_client(model: "_Model", k: int, rows: int) -> str:
    """A client's score; of an accuracy also Wilson's interval."""
    shown = show_score(model.clients[k], model.score)
    if model.score != "accuracy" or shown == "-":
        return shown
    low, high = metrics.wilson(model.clients[k], rows)
    return f"{shown} [{100 * low:.0f}, {100 * high:.0f}]"


def _run_notes(record: Record, clients: ClientTable, model: "_Model") -> list[str]:
    """What a reader of a run's table should know."""
    notes = []
    if model.score == "accuracy":
        notes.append("[low, high]: where a client's accuracy lies with 95 % confidence (Wilson)")
    if scores.find(model.score).lower_is_better:
        notes.append(f"{model.score}: lower is better, so the worst is the highest")
    majority = record.facts.majority
    if majority is not None and model.score == "accuracy":
        notes.append(f"always giving the most frequent class is right in {100 * majority:.1f} %")
    shown = _ends(model)
    if len(shown) < sum(not math.isnan(value) for value in model.clients):
        table = record.folder / "clients.csv"
        where = f"; all clients: {table}" if table.exists() else ""
        notes.append(f"the {len(shown)} lowest and highest are shown{where}")
    unscored = record.facts.unscored or ()
    if unscored:
        some = ", ".join(unscored[:SHOWN]) + (" ..." if len(unscored) > SHOWN else "")
        notes.append(f"without a score (no test rows, or it is undefined for them): {some}")
    if record.evaluated[-1].mixture:
        notes.append("mixture: the clients' weights that the rule learnt, a mean over all rounds")
    notes += _chosen_notes(record, model.score)
    few = small_test_sets(clients, model.score)
    return [*notes, few] if few else notes


def _chosen_notes(record: Record, score: str) -> list[str]:
    """The best round by validation rows, and what clients get that were never seen."""
    notes = []
    best = record.best
    monitor = str(record.experiment.get("monitor", "mean"))
    if best is not None:
        reached = show_score(best.validation[monitor], score)
        notes.append(f"best on validation rows: round {best.number}, {monitor} {reached}")
    table = record.unseen()
    if table is not None:
        notes.append(unseen_sentence(table.evaluation, score))
    return notes


def unseen_sentence(evaluation: Evaluation, score: str) -> str:
    """What clients get that took no part in training."""
    values = evaluation.score[evaluation.scored]
    lower = scores.find(score).lower_is_better
    mean = show_score(float(values.mean()), score)
    share, floor = metrics.dkw_floor(values, lower_is_better=lower)
    bound = "at most" if lower else "at least"
    return (
        f"{len(values)} clients never seen in training: mean {mean}; with 95 % confidence at least "
        f"{100 * share:.0f} % of new clients get {bound} {show_score(floor, score)}"
    )


def small_test_sets(clients: ClientTable, score: str) -> str:
    """A sentence about clients with few test rows, where a score counts rows; else empty."""
    if score not in ("accuracy", "top-5", "balanced-accuracy", "f1"):
        return ""
    sizes = clients.evaluation.sizes
    small = [k for k in (sizes > 0).nonzero().flatten().tolist() if sizes[k] < FEW_ROWS]
    if not small:
        return ""
    least = min(small, key=lambda k: int(sizes[k]))
    rows = int(sizes[least])
    words = "test row" if rows == 1 else "test rows"
    return (
        f"few test rows: {len(small)} clients have fewer than {FEW_ROWS}; {clients.names[least]} "
        f"has {rows} {words}: one row is {100 / rows:.0f} points"
    )


def _title(record: Record, last: RoundRecord) -> str:
    total = record.experiment.get("rounds", "?")
    return _text(f"{record.title}: round {last.number} of {total}, {record.facts.score}")


def _models(last: RoundRecord, evaluation: Evaluation) -> list[_Model]:
    """The columns: the server's model, the clients' own, and further scores of the server's."""
    main, *further = evaluation.scores
    own = evaluation.personal
    several = own is not None or bool(further)
    title = "server's model" if several else "value"
    models = [_Model(title, main, last.metrics, evaluation.score.tolist())]
    if own is not None:
        models.append(_Model("own model", main, last.personal, own.score.tolist()))
    for name in further:
        values = evaluation.scores[name].tolist()
        models.append(_Model(name, name, last.more.get(name, {}), values))
    return models


def _ends(model: _Model) -> list[int]:
    """The positions of the clients to show, the worst first: all, or the two ends."""
    scored = [k for k, value in enumerate(model.clients) if not math.isnan(value)]
    sign = -1 if scores.find(model.score).lower_is_better else 1
    ranked = sorted(scored, key=lambda k: sign * model.clients[k])
    if len(ranked) <= ALL:
        return ranked
    return [*ranked[:SHOWN], *ranked[-SHOWN:]]


def choices(curve: Curve, score: str) -> Table:
    """What each way of choosing a point between global and own model gives the clients."""
    table = Table(title=f"{score} over {len(curve.names)} clients")
    _add_column(table, "point between global (0) and own model (1)")
    _add_column(table, "mean", right=True)
    _add_column(table, "worst", right=True)
    lower = scores.find(score).lower_is_better
    for label, values in curve.chosen().items():
        mean = show_score(float(values.mean()), score)
        worst = show_score(metrics.worst(values, lower_is_better=lower), score)
        table.add_row(label, mean, worst)
    table.caption = (
        "validation: the best m on a client's validation rows, or on one half of its test rows for "
        "the other half; "
        "oracle: the best m on the rows that are scored, as is the best common m\n"
        f"{_barrier_line(curve)}"
    )
    return table


def _barrier_line(curve: Curve) -> str:
    """How high the loss rises between the ends of the line."""
    barriers = curve.barriers()
    mean, highest = float(barriers.mean()), float(barriers.max())
    return (
        f"loss barrier (the loss above the straight line between its ends): mean {mean:.3g}, "
        f"highest {highest:.3g}"
    )


def _add_column(table: Table, title: str, right: bool = False) -> None:
    """Add a column that is never cropped: text is folded, numbers stay whole."""
    justify: Literal["left", "right"] = "right" if right else "left"
    table.add_column(_text(title), justify=justify, overflow="fold")


# Comparisons as numbers


@dataclass(frozen=True, eq=False)
class Comparison:
    """Several results beside each other. Scores are in their own unit, not in per cent."""

    score: str
    seeds: int
    clients: int  # those with a score in every seed, of the first result
    labels: tuple[str, ...]
    values: dict[str, Array]  # by metric that is shown, (labels, seeds)
    told: dict[str, Array]  # by metric whose differences are judged, (labels, seeds)
    differences: dict[str, list[Paired]]  # by metric, of all labels but the first against it
    baseline: str | None  # FedAvg's label, if it is among them
    against: dict[str, Against]  # by label, against the baseline; means over seeds
    personal: bool  # whether some results are of the clients' own models
    worth: dict[str, Worth]  # by label, beside training alone; empty where that was not run


def chosen_columns(text: str) -> list[str]:
    """The metrics that a text names: themselves, or those of a paper's table.

    >>> chosen_columns("mean,qffl")
    ['mean', 'weighted_mean', 'worst_10', 'best_10', 'variance']
    """
    found: list[str] = []
    for name in (part.strip() for part in text.split(",")):
        if name not in METRICS and name not in PAPERS:
            known = (*METRICS, *PAPERS)
            raise ConfigError(f"there is no column {name!r}: {did_you_mean(name, known)}")
        found += PAPERS.get(name, (name,))
    return list(dict.fromkeys(found))


def comparison(
    results: Sequence[Result],
    score: str,
    columns: Sequence[str] | None = None,
    found: Sequence[Worth] = (),
) -> Comparison:
    """The numbers of the tables that papers print, and which differences are significant.

    columns: metrics; None: mean, worst, best and how scores spread
    found: what is known of runs alone
    """
    first = results[0]
    tail = "_10" if len(first.clients) >= MANY else ""
    if columns is None:
        by_rows = ["weighted_mean"] if "weighted_mean" in first.metrics[0] else []
        keys = ["mean", *by_rows, f"worst{tail}", f"best{tail}", "std", "gini", f"gap{tail}"]
    else:
        keys = list(dict.fromkeys(k + tail if k in ("worst", "best") else k for k in columns))
    told = [_first_of(keys, ("mean", "weighted_mean")), _first_of(keys, ("worst",))]
    told = [key or default for key, default in zip(told, ("mean", f"worst{tail}"), strict=True)]
    values = {key: _over_seeds(results, key) for key in dict.fromkeys([*keys, *told])}
    baseline = next((r for r in results if r.label == "fedavg"), None)
    return Comparison(
        score=score,
        seeds=first.seeds,
        clients=len(first.clients),
        labels=tuple(r.label for r in results),
        values={key: values[key] for key in keys},
        told={key: values[key] for key in told},
        differences={key: _paired(values[key]) for key in told},
        baseline=None if baseline is None else baseline.label,
        against={} if baseline is None else _against(baseline, results),
        personal=any(r.personal for r in results),
        worth={each.label: each for each in found},
    )


def _first_of(keys: Sequence[str], starts: tuple[str, ...]) -> str:
    return next((key for key in keys if key.startswith(starts)), "")


def _over_seeds(results: Sequence[Result], key: str) -> Array:
    """A metric of results (labels, seeds)."""
    if key == "variance":
        return _over_seeds(results, "std") ** 2
    return np.array([[m[key] for m in r.metrics] for r in results])


def _paired(values: Array) -> list[Paired]:
    """The differences of all rows (labels, seeds) but the first from it."""
    first, *others = values
    return metrics.holm(others, first)


def _against(base: Result, results: Sequence[Result]) -> dict[str, Against]:
    """What changed for suffering and thriving clients, by label; means over seeds."""
    found = {}
    for other in results:
        if other is not base:
            _, before, after = align(base, other)
            lower = base.lower_is_better
            pairs = zip(before, after, strict=True)
            each = [metrics.against(b, a, lower_is_better=lower) for b, a in pairs]
            found[other.label] = Against(*np.array(each).mean(0).tolist())
    return found


def verdict(base: Result, fair: Result, score: str = "accuracy") -> str:
    """Who gains and at what cost, in words."""
    names, before, after = align(base, fair)
    sign = -1 if base.lower_is_better else 1
    factor = scale(score)
    change = factor * mean_change(after - before)
    worst = int((sign * before.mean(0)).argmin())
    gain = int((sign * change > 0).sum())
    lose = int((sign * change < 0).sum())
    lowest = metrics.paired(
        sign * factor * (sign * after).min(1), sign * factor * (sign * before).min(1)
    )
    digits = _decimals(score, change)
    points = " points" if factor == 100 else ""
    certainty = "not significant"
    if lowest.significant:
        bounds = f"{lowest.low:+.{digits}f} and {lowest.high:+.{digits}f}"
        certainty = f"between {bounds} with 95 % confidence"
    return (
        f"{fair.label} changes the score of {names[worst]}, the worst off under {base.label}, by "
        f"{change[worst]:+.{digits}f}{points}; of {len(names)} clients {gain} gain and {lose} "
        f"lose, and the mean changes by {change.mean():+.{digits}f}. The worst client of a seed "
        f"changes by {lowest.difference:+.{digits}f} ({certainty})."
    )


# Comparisons as text


MARKS = ("{}", "{} (best)", "{} (second)")  # in words, by a column's marks


class Column(NamedTuple):
    """A column of a table. Marks: 1 for the best cell, 2 for the second best, else 0."""

    title: str
    cells: list[str]
    marks: list[int]


@dataclass(frozen=True)
class Grid:
    """A comparison in words and digits, before it has a format."""

    title: str
    labels: tuple[str, ...]
    figures: list[Column]
    differences: list[Column]
    notes: list[str]
    worth: list[Column]  # beside training alone, where that was run

    @property
    def columns(self) -> list[Column]:
        return [*self.figures, *self.differences]


def layout(numbers: Comparison, decimals: int | None = None) -> Grid:
    """Format the numbers of a comparison.

    decimals: digits after the point; None: as many as are telling
    """
    in_per_cent = " in %" if _unit(numbers.score) else ""
    over = f"mean±std over {numbers.seeds} seeds" if numbers.seeds > 1 else "one seed"
    title = f"{numbers.score} over {numbers.clients} clients{in_per_cent}, {over}"
    figures = [_figures(numbers, key, decimals) for key in numbers.values]
    differences = []
    if len(numbers.labels) > 1:
        differences = [_differences(numbers, key, decimals) for key in numbers.differences]
    if numbers.against:
        differences += _changes(numbers, decimals)
    beside = _worth_columns(numbers, decimals) if numbers.worth else []
    return Grid(title, numbers.labels, figures, differences, _notes(numbers), beside)


def _figures(numbers: Comparison, key: str, decimals: int | None) -> Column:
    metric = METRICS[key]
    factor = scale(numbers.score) if metric.in_score_units else 1.0
    if key == "variance":
        factor = scale(numbers.score) ** 2
    values = factor * numbers.values[key]
    digits = _decimals(numbers.score, values) if metric.in_score_units else 1
    digits = digits if decimals is None else decimals
    cells = [f"{row.mean():.{digits}f}{_plus_minus(row, digits)}" for row in values]
    lower = metric.lower_is_better
    if key in ("mean", "weighted_mean") or key.startswith(("worst", "best")):
        lower = scores.find(numbers.score).lower_is_better
    return Column(metric.title, cells, _marks(values.mean(1), lower))


def _plus_minus(row: Array, digits: int) -> str:
    """The deviation over seeds; one seed has none."""
    return f"±{row.std():.{digits}f}" if len(row) > 1 else ""


def _marks(means: Array, lower_is_better: bool) -> list[int]:
    marks = [0] * len(means)
    if len(means) == 1:
        return marks
    ranked = np.argsort(means if lower_is_better else -means, kind="stable")
    for place, row in enumerate(ranked[:2].tolist(), start=1):
        if not math.isnan(means[row]):
            marks[row] = place
    return marks


def _differences(numbers: Comparison, key: str, decimals: int | None) -> Column:
    factor = scale(numbers.score)
    digits = _decimals(numbers.score, np.array([d.difference for d in numbers.differences[key]]))
    digits = digits if decimals is None else decimals
    cells = [_interval(each, factor, digits) for each in numbers.differences[key]]
    title = f"{METRICS[key].title} against {numbers.labels[0]}"
    return Column(title, ["", *cells], [0] * len(numbers.labels))


def _interval(p: Paired, factor: float, digits: int = 1) -> str:
    difference = f"{factor * p.difference:+.{digits}f}"
    if not p.significant:
        return f"{difference} {NOT_SIGNIFICANT}"
    return f"{difference} [{factor * p.low:+.{digits}f}, {factor * p.high:+.{digits}f}]"


def _changes(numbers: Comparison, decimals: int | None) -> list[Column]:
    """What changed for suffering and thriving clients."""
    suffering = []
    thriving = []
    for label in numbers.labels:
        a = numbers.against.get(label)
        if a is None:
            suffering.append("")
            thriving.append("")
        else:
            score = numbers.score
            improved = _change(a.suffering_improved, a.suffering_change, score, decimals)
            suffering.append(improved)
            thriving.append(_change(a.thriving_degraded, a.thriving_change, score, decimals))
    unmarked = [0] * len(numbers.labels)
    return [
        Column("suffering improved", suffering, unmarked),
        Column("thriving degraded", thriving, unmarked),
    ]


def _change(fraction: float, change: float, score: str, decimals: int | None) -> str:
    digits = _decimals(score, np.array([change])) if decimals is None else decimals
    return f"{100 * fraction:.0f} % ({scale(score) * change:+.{digits}f})"


def _notes(numbers: Comparison) -> list[str]:
    notes = _seed_notes(numbers)
    if len(numbers.labels) > 1:
        several = len(numbers.labels) - 1
        corrected = f", corrected for {several} comparisons (Holm)" if several > 1 else ""
        notes.append(
            "best and second best are marked; differences are paired by seed, "
            f"with 95 % confidence intervals{corrected}"
        )
    if numbers.against:
        notes.append(
            "suffering, thriving: clients below, above FedAvg's mean; how many of them improved or "
            "degraded, and their mean change in points"
        )
    if numbers.personal:
        notes.append(
            "own models: the personal models that clients of this method use; the line before is "
            "the server's model"
        )
    return notes


def _seed_notes(numbers: Comparison) -> list[str]:
    """How many seeds the largest difference needs that is not significant."""
    key = list(numbers.differences)[-1]  # the worst
    open_ones = [k for k, p in enumerate(numbers.differences[key]) if not p.significant]
    if not open_ones or numbers.seeds < 2:
        return ["one seed shows no significance: take more"] if open_ones else []
    largest = max(open_ones, key=lambda k: abs(numbers.differences[key][k].difference))
    values = numbers.told[key]
    confidence = 1 - 0.05 / len(open_ones)  # what Holm's procedure asks of the first of them
    needed = metrics.seeds_needed(values[largest + 1], values[0], confidence)
    difference = scale(numbers.score) * abs(numbers.differences[key][largest].difference)
    if needed is None or needed <= numbers.seeds:
        return []
    unit = " points" if _unit(numbers.score) else ""
    return [
        f"{difference:.3g}{unit} ({numbers.labels[largest + 1]}, {METRICS[key].title}) is not "
        f"significant with {numbers.seeds} seeds; about {needed} would find it in 80 % of cases"
    ]


# Worth it, for whom


def _worth_columns(numbers: Comparison, decimals: int | None) -> list[Column]:
    """How many clients are better off than alone, and by how much; the loss that is largest."""
    columns: dict[str, list[str]] = {
        "better off": [],
        "mean gain": [],
        "largest loss": [],
        "of the way to pooled": [],
    }
    for label in numbers.labels:
        each = numbers.worth.get(label)
        cells = [""] * len(columns) if each is None else _worth_cells(each, numbers, decimals)
        for column, cell in zip(columns.values(), cells, strict=True):
            column.append(cell)
    unmarked = [0] * len(numbers.labels)
    return [Column(title, cells, unmarked) for title, cells in columns.items()]


def _worth_cells(each: Worth, numbers: Comparison, decimals: int | None) -> list[str]:
    factor = scale(numbers.score)
    digits = _decimals(numbers.score, each.change) if decimals is None else decimals
    clients = len(each.clients)
    return [
        f"{clients - len(each.losers)} of {clients}",
        _interval(each.mean, factor, digits),
        f"{factor * each.excess_max:.{digits}f}" if each.losers else "none",
        "-" if each.share is None else f"{100 * each.share:.0f} %",
    ]


def worth_sentences(found: Sequence[Worth], score: str) -> list[str]:
    """For whom the federation is worth it; first of all where it hurts."""
    hurt = [each for each in found if each.better_off < 0.5 or each.mean.difference < 0]
    said = [_worth_sentence(each, score) for each in found]
    if len(hurt) == len(found) and found:
        mildest = max(found, key=lambda each: each.mean.difference)
        change = _points(mildest.mean.difference, score)
        return [
            f"Federating hurts here: even {mildest.label} serves {len(mildest.losers)} of "
            f"{len(mildest.clients)} clients worse than training alone (mean gain {change}).",
            *said,
        ]
    return said


def _worth_sentence(each: Worth, score: str) -> str:
    clients = len(each.clients)
    good = clients - len(each.losers)
    sentence = f"{each.label}: worth it for {good} of {clients} clients"
    if each.losers:
        some = [
            f"{each.clients[k]} ({_points(each.change[k], score)})" for k in each.losers[:SHOWN]
        ]
        more = len(each.losers) - SHOWN
        rest = f" and {more} more" if more > 0 else ""
        sentence += f"; not for {', '.join(some)}{rest}"
    mean = each.mean
    certainty = "" if mean.significant else ", not significant"
    sentence += f". Mean gain against alone {_points(mean.difference, score)}{certainty}"
    if each.share is not None:
        sentence += f"; {100 * each.share:.0f} % of the way from alone to pooled"
    return sentence + "."


def _points(gain: float, score: str) -> str:
    digits = _decimals(score, np.array([gain]))
    return f"{scale(score) * gain:+.{digits}f}"


def client_table(results: Sequence[Result], score: str) -> Table:
    """Every client's score under each result, with its 95 % interval over seeds."""
    first = results[0]
    per_cent = " in %" if _unit(score) else ""
    seeds = f"{first.seeds} seed{'s' if first.seeds > 1 else ''}"
    title = f"{score} of every client{per_cent}: mean over {seeds}"
    if first.seeds > 1:
        title += ", ± 95 % interval"
    table = Table(
        title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, title_justify="left"
    )
    _add_column(table, "client")
    for result in results:
        _add_column(table, result.label, right=True)
    for name in first.clients:
        cells = [_client_cell(result, name, score) for result in results]
        table.add_row(shown(name, "markup"), *cells)
    return table


def _client_cell(result: Result, name: str, score: str) -> str:
    if name not in result.clients:
        return "-"
    values = scale(score) * result.scores[:, result.clients.index(name)]
    digits = _decimals(score, values)
    mean = float(values.mean())
    if len(values) < 2:
        return f"{mean:.{digits}f}"
    interval = metrics.paired(values, np.zeros_like(values))
    half = (interval.high - interval.low) / 2
    if half == 0:  # scores come in steps: that seeds agree is no proof
        return f"{mean:.{digits}f}"
    return f"{mean:.{digits}f} ±{half:.{max(0, digits - 1)}f}"


# Formats


def render(numbers: Comparison, form: Format, decimals: int | None = None) -> str | Group:
    """A comparison for a terminal (as something rich prints), Markdown, LaTeX, CSV or JSON.

    decimals: digits after the point; CSV and JSON hold numbers as they are
    """
    if form == "csv":
        return _csv(lines(numbers))
    if form == "json":
        return to_json(lines(numbers)).decode()
    grid = layout(numbers, decimals)
    if form == "terminal":
        return _terminal(grid)
    return _markdown(grid) if form == "markdown" else _latex(grid)


def _rows(grid: Grid, columns: Iterable[Column], marks: Sequence[str]) -> list[list[str]]:
    """The cells line by line, the marked ones formatted."""
    marked = [
        [marks[mark].format(cell) for cell, mark in zip(column.cells, column.marks, strict=True)]
        for column in columns
    ]
    return [list(row) for row in zip(grid.labels, *marked, strict=True)]


def _header(columns: Iterable[Column]) -> list[str]:
    return ["rule", *(column.title for column in columns)]


def lines(numbers: Comparison) -> list[dict[str, object]]:
    """A comparison as plain numbers, a line per rule. Scores are in their own unit."""
    rows = []
    for row, label in enumerate(numbers.labels):
        line: dict[str, object] = {"rule": label, "score": numbers.score, "seeds": numbers.seeds}
        for key, values in numbers.values.items():
            deviation = float(values[row].std()) if numbers.seeds > 1 else None
            line |= {key: float(values[row].mean()), f"{key}_std": deviation}
        for key, differences in numbers.differences.items():
            names = [f"{key}_{each}" for each in ("difference", "low", "high", "significant")]
            cells = [None] * 4 if row == 0 else list(differences[row - 1])
            line |= dict(zip(names, cells, strict=True))
        changes = numbers.against.get(label) or [None] * len(Against._fields)
        line |= dict(zip(Against._fields, changes, strict=True))
        if label in numbers.worth:
            each = numbers.worth[label]
            gain = each.mean
            line |= {"better_off": each.better_off, "excess_max": each.excess_max}
            line |= {"mean_against_alone": gain.difference, "share_of_pooled": each.share}
            line |= {"mean_against_alone_low": gain.low, "mean_against_alone_high": gain.high}
        rows.append(line)
    return rows


def _csv(rows: Sequence[dict[str, object]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({**row, "rule": quoted(str(row["rule"]))} for row in rows)
    return text.getvalue()


def _markdown(grid: Grid) -> str:
    tables = [_markdown_table(grid, grid.columns)]
    if grid.worth:
        tables.append(_markdown_table(grid, grid.worth))
    notes = [f"({note})" for note in grid.notes]
    return "\n".join([f"{grid.title}:", "", "\n\n".join(tables), "", *notes, ""])


def _markdown_table(grid: Grid, columns: Sequence[Column]) -> str:
    header = [shown(title, "markdown") for title in _header(columns)]
    ruler = ["---", *["--:"] * len(columns)]
    rows = _rows(grid, columns, ("{}", "**{}**", "<u>{}</u>"))
    rows = [[shown(label, "markdown"), *cells] for label, *cells in rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in (header, ruler, *rows))


def _latex(grid: Grid) -> str:
    """The figures, then differences and gains against training alone, each as a tabular."""
    parts = [grid.figures, *(part for part in (grid.differences, grid.worth) if part)]
    whole = [f"% {shown(grid.title)}", *(_tabular(grid, part) for part in parts)]
    return "\n".join([*whole, *(f"% {shown(note)}" for note in grid.notes), ""])


def _tabular(grid: Grid, columns: Sequence[Column]) -> str:
    marks = ("{}", r"\textbf{{{}}}", r"\underline{{{}}}")
    titles = [shown(title, "latex") for title in _header(columns)]
    lines = [
        [shown(label, "latex"), *(cell.translate(LATEX) for cell in cells)]
        for label, *cells in _rows(grid, columns, marks)
    ]
    header, *rows = [" & ".join(row) + r" \\" for row in (titles, *lines)]
    return "\n".join(
        [
            r"\begin{tabular}{l" + "r" * len(columns) + "}",
            r"\hline",
            header,
            r"\hline",
            *rows,
            r"\hline",
            r"\end{tabular}",
        ]
    )


LATEX = str.maketrans({"%": r"\%", "_": r"\_", "#": r"\#", "±": r"$\pm$"})


def _terminal(grid: Grid) -> Group:
    """Several tables, as one would be too wide: figures, differences, and gains against alone."""
    marks = ("{}", "[bold green]{}[/]", "[underline]{}[/]")
    notes = list(grid.notes)
    tables = _tables(_text(grid.title), grid, grid.figures, marks)
    if grid.differences:
        tables += _tables(None, grid, grid.differences, marks, first=1)
    if grid.worth:
        tables += _tables("against training alone", grid, grid.worth, marks)
    columns = [*grid.differences, *grid.worth]
    if any(NOT_SIGNIFICANT in cell for column in columns for cell in column.cells):
        notes.insert(0, "n.s.: not significant")
    return Group(*tables, *[f"[dim]{_text(note)}[/dim]" for note in notes])


def _tables(
    title: str | None,
    grid: Grid,
    columns: Sequence[Column],
    marks: Sequence[str],
    first: int = 0,
) -> list[Table]:
    """So many tables that each is narrow enough: labels and titles are folded, cells are not.

    first: the line that is shown first
    """
    label = min(LABEL, max(len(label) for label in grid.labels))
    parts: list[list[Column]] = [[]]
    left = NARROW - label - 2
    for each in columns:
        cells = [cell.replace(NOT_SIGNIFICANT, "(n.s.)") for cell in each.cells]
        column = each._replace(cells=cells)
        if parts[-1] and _width(column) > left:
            parts.append([])
            left = NARROW - label - 2
        parts[-1].append(column)
        left -= _width(column)
    found = []
    for k, part in enumerate(parts):
        table = Table(
            title=title if k == 0 else None,
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            pad_edge=False,
            title_justify="left",
        )
        table.add_column("rule", overflow="fold", width=max(label, len("rule")))
        for column in part:
            width = _width(column) - 2
            table.add_column(_text(column.title), justify="right", overflow="fold", width=width)
        for name, *shown_cells in _rows(grid, part, marks)[first:]:
            table.add_row(_text(name), *shown_cells)
        found.append(table)
    return found


def _width(column: Column) -> int:
    """What a column takes of a line: its widest cell or word of the title, and two for the gap."""
    return 2 + max(len(text) for text in (*column.cells, *column.title.split()))
