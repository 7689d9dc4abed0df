"""A comparison at a glance: the answer, three numbers, who gains and loses, and one table.

The page and the report begin with it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from commonweal.analysis.compare import ALONE, Result
from commonweal.analysis.gains import ClientGain
from commonweal.analysis.labels import data_name
from commonweal.metrics import Paired
from commonweal.report.clients import NAMES, best_method, samples_of
from commonweal.report.comparison import Summary, answer, layout, worth_sentences
from commonweal.report.formats import (
    Column,
    Grid,
    decimals_of,
    interval,
    points,
    scale,
    score_name,
    show_score,
    unit,
)

if TYPE_CHECKING:
    from commonweal.report.compare import Comparison

__all__ = ["Card", "Named", "Overview", "Table", "overview"]

MOST_NAMED = 5  # clients in a list of gains or losses
MOST_OTHERS = 4  # methods in the note of a card
FEW_SEEDS = 5  # below which more are suggested


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
    """The labels of rows, and the columns next to them."""

    labels: list[str]
    columns: list[Column]


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
    sentences: list[str]  # one per method: who gains and who loses
    notes: list[str]


def overview(comparison: "Comparison") -> Overview:
    """Summarise a comparison by the models that clients use."""
    summary = comparison.summary
    grid = layout(summary)
    columns = [*grid.figures, *grid.differences, *grid.against_local]
    first = next(iter(comparison.records.values()))[0]
    return Overview(
        name=data_name(first),
        sentence=answer(summary) or _first_sentence(summary),
        about=_about(summary),
        cards=_cards(summary, comparison),
        advice=_advice(summary, any(result.personal for result in comparison.results)),
        named=_named(summary),
        table=_main_table(summary, grid, comparison.baselines),
        more=Table(list(grid.labels), columns),
        sentences=worth_sentences(summary),
        notes=grid.notes,
    )


def _first_sentence(summary: Summary) -> str:
    """What can be said without local training: which method serves the worst clients best."""
    first, *others = summary.labels
    if not others:
        value = show_score(float(summary.values["mean"].mean()), summary.score, 1)
        return f"{first}: {value} on average over {summary.clients} clients."
    *_, differences = summary.differences.values()  # of the worst clients
    gains = [summary.sign * paired.difference for paired in differences]
    best = int(np.argmax(gains))
    if differences[best].significant and gains[best] > 0:
        gain = f"{points(gains[best], summary.score)}{' points' if unit(summary.score) else ''}"
        name = others[best]
        return f"{name} serves the worst clients significantly better than {first}: {gain}."
    seeds = "one seed" if summary.seeds == 1 else f"{summary.seeds} seeds"
    return f"No method is significantly better than {first} for the worst clients with {seeds}."


def _about(summary: Summary) -> str:
    seeds = "One seed" if summary.seeds == 1 else f"{summary.seeds} seeds"
    name = score_name(summary.score)
    lower = " (lower is better)" if summary.sign < 0 else ""
    text = (
        f"{name[0].upper()}{name[1:]}{lower} of {summary.clients} clients on their test samples. "
        f"{seeds}; differences at 95 % confidence."
    )
    if not summary.gains:
        text += " Local training was not run: compare with --baselines to see whether joining pays."
    return text


def _cards(summary: Summary, comparison: "Comparison") -> list[Card]:
    """The gain over local training, the worst clients, and the client that is served worst."""
    score = summary.score
    cards = []
    label = summary.labels[0]
    if summary.gains:
        best = best_method(summary.gains)
        label = best.label
        gained = {g.label: points(g.mean.difference, score) for g in summary.gains}
        title = "Mean gain over local training"
        note = f"with {label}{_others(gained, label)}"
        cards.append(Card(title, gained[label], _half_width(best.mean, score), note))
    worst = "worst_10" if "worst_10" in summary.values else "worst"
    values = dict(zip(summary.labels, summary.values[worst].mean(1).tolist(), strict=True))
    for baseline in comparison.baselines:
        if baseline.label == ALONE:
            values["local"] = _mean(baseline, worst)
    shown = {name: show_score(value, score, 1) for name, value in values.items()}
    title = "Worst 10 % of clients" if worst == "worst_10" else "Worst client of each seed"
    cards.append(Card(title, shown[label], "", f"with {label}{_others(shown, label)}"))
    result = comparison.used[summary.labels.index(label)]
    means = result.scores.mean(0)
    k = int(means.argmax() if result.lower_is_better else means.argmin())
    samples = samples_of(comparison.records).get(result.clients[k], 0)
    note = f"with {label}; {samples} test sample{'' if samples == 1 else 's'}"
    name = f"{result.clients[k]} {show_score(float(means[k]), score, 1)}"
    cards.append(Card("Served worst", name, "", note))
    return cards


def _others(values: Mapping[str, str], label: str) -> str:
    """The values of other methods, after that of the first: " · fedavg 1 · afl 2"."""
    others = [f" · {name} {value}" for name, value in values.items() if name != label]
    more = f" · {len(others) - MOST_OTHERS} more" if len(others) > MOST_OTHERS else ""
    return "".join(others[:MOST_OTHERS]) + more


def _half_width(mean: Paired, score: str) -> str:
    half = (mean.high - mean.low) / 2
    if math.isnan(half):
        return ""
    return f"±{points(half, score)[1:]}{' points' if unit(score) else ''}"


def _mean(result: Result, metric: str) -> float:
    return float(np.mean([seed[metric] for seed in result.metrics]))


def _advice(summary: Summary, has_personal: bool) -> list[str]:
    """What to do next.

    Args:
        summary: The numbers.
        has_personal: Whether personal methods were tried.
    """
    if not summary.gains:
        return []
    best = best_method(summary.gains)
    advice = []
    if len(best.better) > len(best.worse):
        advice.append(f"Take {best.label}.")
        if best.worse:
            some = ", ".join(client.client for client in best.worse[:MOST_NAMED])
            advice.append(f"Let {some} keep to local training, or try a personal method.")
    elif best.worse and has_personal:
        advice.append("Keep to local training: no method that was tried serves clients better.")
    elif best.worse:
        advice.append("Do not share one model: try personal methods such as blend or fine-tune.")
        advice.append("commonweal compare FILE client=blend")
    if summary.seeds < FEW_SEEDS and best.unclear:
        advice.append("Run more seeds:")
        advice.append(f"commonweal compare FILE --seeds {FEW_SEEDS}")
    return advice


def _named(summary: Summary) -> list[Named]:
    """Who gains most with the best method, and whom it and the first one leave behind."""
    if not summary.gains:
        return []
    best = best_method(summary.gains)
    lists: dict[str, list[ClientGain]] = {f"Gain most with {best.label}": best.better}
    for gained in (best, summary.gains[0]):
        lists[f"Left behind by {gained.label}"] = gained.worse
    named = []
    for title, clients in lists.items():
        if clients:
            shown = clients[:MOST_NAMED]
            pairs = [(client.client, points(client.gain, summary.score)) for client in shown]
            named.append(Named(title, pairs, len(clients) - len(shown)))
    return named


def _main_table(summary: Summary, grid: Grid, baselines: Sequence[Result]) -> Table:
    """One row per method: worst 10 %, mean, gains, who is better off, and seeds."""
    factor = scale(summary.score)
    per_cent = " (%)" if factor == 100 else ""
    tail = "worst_10" if "worst_10" in summary.values else "worst"
    worst = "worst 10 %" if tail == "worst_10" else "worst client"
    figures = dict(zip(summary.values, grid.figures, strict=True))
    gains = dict(zip(summary.differences, grid.differences, strict=False))
    empty = [""] * len(baselines)
    columns = []
    for key, title in ((tail, worst), ("mean", "mean")):
        means = [*summary.values[key].mean(1), *(_mean(baseline, key) for baseline in baselines)]
        digits = decimals_of(summary.score, np.array(means))
        cells = [f"{factor * mean:.{digits}f}" for mean in means]
        columns.append(Column(title + per_cent, cells, figures[key].best))
        if key in gains and not (key == "mean" and summary.gains):
            columns.append(gains[key]._replace(cells=[*gains[key].cells, *empty]))
    if summary.gains:
        over_local = [interval(gained.mean, summary.score) for gained in summary.gains]
        columns.append(Column("mean gain over local", [*over_local, *empty]))
        cells = [f"{len(g.better)} · {g.unclear} · {len(g.worse)}" for g in summary.gains]
        columns.append(Column("clients better · n.s. · worse than local", [*cells, *empty]))
    labels = [*summary.labels, *(NAMES.get(each.label, each.label) for each in baselines)]
    columns.append(Column("seeds", [str(summary.seeds)] * len(labels)))
    return Table(labels, columns)
