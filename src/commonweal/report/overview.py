"""A comparison at a glance: the answer, three numbers, who gains and loses, and one table.

The page and the report begin with it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from commonweal.analysis.compare import Result
from commonweal.analysis.gains import ClientGain, Gains
from commonweal.analysis.worth import ALONE, POOLED
from commonweal.report.clients import best_method, samples_of, used_results
from commonweal.report.comparison import Summary, answer, layout, summarize, worth_sentences
from commonweal.report.formats import Column, points, scale, show_score, unit

if TYPE_CHECKING:
    from commonweal.report.compare import Comparison

__all__ = ["Card", "Named", "Overview", "Table", "overview"]

MOST_NAMED = 8  # clients in a list of gains or losses


@dataclass(frozen=True)
class Card:
    """One number to look at first."""

    title: str
    value: str
    more: str
    note: str


@dataclass(frozen=True)
class Named:
    """A list of clients with their gains, and how many more there are."""

    title: str
    clients: list[tuple[str, str]]
    more: int


@dataclass(frozen=True)
class Table:
    """A table: header, rows and, by column, the row that is significantly the best."""

    header: list[str]
    rows: list[list[str]]
    best: list[int | None]


@dataclass(frozen=True)
class Overview:
    """What a person should see first."""

    name: str  # of the data
    sentence: str  # the answer
    about: str
    cards: list[Card]
    advice: list[str]
    named: list[Named]
    table: Table
    more: Table  # all columns
    notes: list[str]


def overview(comparison: "Comparison") -> Overview:
    """Summarise a comparison by the models that clients use."""
    results = used_results(comparison.results)
    summary = summarize(results, comparison.score, baselines=comparison.baselines)
    grid = layout(summary)
    first = next(iter(comparison.records.values()))[0]
    return Overview(
        name=first.part("dataset", "data"),
        sentence=answer(summary) or _first_sentence(summary),
        about=_about(summary),
        cards=_cards(summary, comparison),
        advice=_advice(summary),
        named=_named(summary, comparison.score),
        table=_main_table(summary, comparison.baselines),
        more=_table(grid.labels, [*grid.columns, *grid.against_local]),
        notes=[*worth_sentences(summary), *grid.notes],
    )


def _first_sentence(summary: Summary) -> str:
    """What can be said without local training: which method serves the worst clients best."""
    key = list(summary.differences)[-1]
    if len(summary.labels) == 1:
        value = show_score(float(summary.values["mean"].mean()), summary.score, 1)
        return f"{summary.labels[0]}: {value} on average over {summary.clients} clients."
    gains = [summary.sign * each.difference for each in summary.differences[key]]
    best = int(np.argmax(gains))
    clear = summary.differences[key][best].significant and gains[best] > 0
    name = summary.labels[best + 1]
    if clear:
        return (
            f"{name} serves the worst clients significantly better than {summary.labels[0]}: "
            f"{points(gains[best], summary.score)} points."
        )
    seeds = "one seed" if summary.seeds == 1 else f"{summary.seeds} seeds"
    first = summary.labels[0]
    return f"No method is significantly better than {first} for the worst clients with {seeds}."


def _about(summary: Summary) -> str:
    seeds = "One seed" if summary.seeds == 1 else f"{summary.seeds} seeds"
    score = summary.score[0].upper() + summary.score[1:]
    text = (
        f"{score} of {summary.clients} clients on their test samples. {seeds}; differences at 95 % "
        "confidence."
    )
    if not summary.gains:
        text += " Local training was not run: compare with --baselines to see whether joining pays."
    return text


def _cards(summary: Summary, comparison: "Comparison") -> list[Card]:
    score = summary.score
    cards = []
    worst = "worst_10" if "worst_10" in summary.values else "worst"
    label = summary.labels[0]
    if summary.gains:
        best = best_method(summary.gains)
        label = best.label
        half = (best.mean.high - best.mean.low) / 2
        interval = "" if math.isnan(half) else f"±{scale(score) * half:.1f}"
        if interval and unit(score):
            interval += " points"
        others = [g for g in summary.gains if g.label != label]
        cards.append(
            Card(
                "Mean gain over local training",
                points(best.mean.difference, score),
                interval,
                " · ".join([f"with {label}", *(_gain_of(g, score) for g in others)]),
            )
        )
    row = summary.labels.index(label)
    values = {n: float(summary.values[worst][k].mean()) for k, n in enumerate(summary.labels)}
    for baseline in comparison.baselines:
        if baseline.label == ALONE:
            values["local"] = float(np.mean([m[worst] for m in baseline.metrics]))
    others_text = [
        f"{name} {show_score(value, score, 1)}" for name, value in values.items() if name != label
    ]
    title = "Worst 10 % of clients" if worst == "worst_10" else "Worst client of each seed"
    cards.append(Card(title, show_score(values[label], score, 1), "", " · ".join(others_text)))
    result = used_results(comparison.results)[row]
    means = result.scores.mean(0)
    k = int(means.argmax() if result.lower_is_better else means.argmin())
    samples = samples_of(comparison.records).get(result.clients[k], 0)
    note = f"with {label}; {samples} test sample{'' if samples == 1 else 's'}"
    name = f"{result.clients[k]} {show_score(float(means[k]), score, 1)}"
    cards.append(Card("Served worst", name, "", note))
    return cards


def _gain_of(found: Gains, score: str) -> str:
    return f"{found.label} {points(found.mean.difference, score)}"


def _advice(summary: Summary) -> list[str]:
    """What to do next."""
    if not summary.gains:
        return []
    best = best_method(summary.gains)
    advice = []
    pays = len(best.better) > len(best.worse)
    if pays:
        advice.append(f"Take {best.label}.")
        if best.worse:
            some = ", ".join(each.client for each in best.worse[:MOST_NAMED])
            advice.append(f"Let {some} keep to local training, or try a personal method.")
    elif best.worse:
        advice.append("Do not share one model: try personal methods such as blend or fine-tune.")
        advice.append("commonweal compare FILE client=blend")
    if summary.seeds < 5 and best.unclear:
        advice.append("Run more seeds: commonweal compare FILE --seeds 5")
    return advice


def _named(summary: Summary, score: str) -> list[Named]:
    """Who gains most with the best method, and whom each method leaves behind."""
    if not summary.gains:
        return []
    best = best_method(summary.gains)
    lists = []
    if best.better:
        lists.append(_list(f"Gain most with {best.label}", best.better, score))
    lists += [_list(f"Left behind by {g.label}", g.worse, score) for g in summary.gains if g.worse]
    return lists


def _list(title: str, clients: Sequence[ClientGain], score: str) -> Named:
    named = [(each.client, points(each.gain, score)) for each in clients[:MOST_NAMED]]
    return Named(title, named, max(0, len(clients) - MOST_NAMED))


def _main_table(summary: Summary, baselines: Sequence[Result]) -> Table:
    """One row per method: worst 10 %, mean, their gains, who is better off, and seeds."""
    score = summary.score
    factor = scale(score)
    grid = layout(summary)
    worst = "worst_10" if "worst_10" in summary.values else "worst"
    titles = [("worst 10 %" if worst == "worst_10" else "worst client"), "mean"]
    figures = dict(zip(summary.values, grid.figures, strict=True))
    columns = []
    for title, key, gain in zip(
        titles, (worst, "mean"), reversed(grid.differences[:2]), strict=False
    ):
        cells = [f"{factor * row.mean():.1f}" for row in summary.values[key]]
        cells += [f"{factor * np.mean([m[key] for m in b.metrics]):.1f}" for b in baselines]
        columns.append(Column(f"{title} (%)" if factor == 100 else title, cells, figures[key].best))
        if gain.cells:
            columns.append(Column(gain.title, [*gain.cells, *[""] * len(baselines)]))
    if summary.gains:
        cells = [f"{len(g.better)} · {g.unclear} · {len(g.worse)}" for g in summary.gains]
        title = "clients better · n.s. · worse than local"
        columns.append(Column(title, [*cells, *[""] * len(baselines)]))
    seeds = [str(summary.seeds)] * (len(summary.labels) + len(baselines))
    columns.append(Column("seeds", seeds))
    named = {ALONE: "local training", POOLED: "pooled data"}
    labels = [*summary.labels, *(named.get(b.label, b.label) for b in baselines)]
    return _table(labels, columns)


def _table(labels: Sequence[str], columns: Sequence[Column]) -> Table:
    return Table(
        header=["method", *(column.title for column in columns)],
        rows=[[label, *(c.cells[k] for c in columns)] for k, label in enumerate(labels)],
        best=[None, *(column.best for column in columns)],
    )
