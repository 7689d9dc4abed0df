"""A comparison at a glance: the answer, three numbers, who gains and loses, and one table.

The page and the report begin with it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from commonweal.analysis.compare import Result
from commonweal.analysis.labels import data_name
from commonweal.report.clients import NAMES, local_of, mean_of, samples_of
from commonweal.report.comparison import Summary, answer, layout, worth_sentences
from commonweal.report.formats import (
    Column,
    Grid,
    counted,
    decimals_of,
    in_points,
    interval,
    points,
    scale,
    score_name,
    show_score,
    unit,
)

if TYPE_CHECKING:
    from commonweal.report.compare import Comparison

MOST_NAMED = 5  # clients in a list of gains or losses
MOST_OTHERS = 4  # methods in the note of a card
FEW_SEEDS = 5  # below which more are suggested
TAILS = {"worst_10": ("Worst 10 % of clients", "worst 10 %")}  # title of a card and of a column
TAILS["worst"] = ("Worst client of each seed", "worst client")


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
    return Overview(
        name=data_name(comparison.first),
        sentence=answer(summary) or _first_sentence(summary),
        about=_about(summary),
        cards=_cards(summary, comparison),
        advice=_advice(summary, any(result.personal for result in comparison.results)),
        named=_named(summary),
        table=_main_table(summary, grid, comparison.baselines),
        more=Table(list(grid.labels), [*grid.columns, *grid.against_local]),
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
    best = max(differences, key=lambda paired: summary.sign * paired.difference)
    gain = summary.sign * best.difference
    if best.significant and gain > 0:
        text = in_points(points(gain, summary.score), summary.score)
        name = others[differences.index(best)]
        return f"{name} serves the worst clients significantly better than {first}: {text}."
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
    if summary.best is not None:
        label = summary.best.label
        gained = {gains.label: points(gains.mean.difference, score) for gains in summary.gains}
        note = f"with {label}{_others(gained, label)}"
        mean = summary.best.mean
        half = in_points(points((mean.high - mean.low) / 2, score)[1:], score)
        half = "" if math.isnan(mean.low) else f"±{half}"
        cards.append(Card("Mean gain over local training", gained[label], half, note))
    shown = {}
    for name, by_seed in zip(summary.labels, summary.values[summary.tail], strict=True):
        shown[name] = show_score(float(by_seed.mean()), score, 1)
    local = local_of(comparison.baselines)
    if local is not None:
        shown["local"] = show_score(mean_of(local, summary.tail), score, 1)
    title, _ = TAILS[summary.tail]
    cards.append(Card(title, shown[label], "", f"with {label}{_others(shown, label)}"))
    result = comparison.used[summary.labels.index(label)]
    means = result.scores.mean(0)
    k = int((summary.sign * means).argmin())
    samples = counted(samples_of(comparison.first).get(result.clients[k], 0), "test sample")
    name = f"{result.clients[k]} {show_score(float(means[k]), score, 1)}"
    cards.append(Card("Served worst", name, "", f"with {label}; {samples}"))
    return cards


def _others(values: Mapping[str, str], label: str) -> str:
    """The values of other methods, after that of the first: " · fedavg 1 · afl 2"."""
    others = [f" · {name} {value}" for name, value in values.items() if name != label]
    more = f" · {len(others) - MOST_OTHERS} more" if len(others) > MOST_OTHERS else ""
    return "".join(others[:MOST_OTHERS]) + more


def _advice(summary: Summary, has_personal: bool) -> list[str]:
    """What to do next. has_personal: whether personal methods were tried"""
    best = summary.best
    if best is None:
        return []
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
    best = summary.best
    if best is None:
        return []
    lists = {f"Gain most with {best.label}": best.better}
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
    figures = dict(zip(summary.values, grid.figures, strict=True))
    gains = dict(zip(summary.differences, grid.differences, strict=False))
    per_cent = " (%)" if unit(summary.score) else ""
    empty = [""] * len(baselines)
    columns = []
    for key, title in ((summary.tail, TAILS[summary.tail][1]), ("mean", "mean")):
        means = [*summary.values[key].mean(1)]
        for baseline in baselines:
            means.append(mean_of(baseline, key))
        digits = decimals_of(summary.score, np.array(means))
        cells = [f"{scale(summary.score) * mean:.{digits}f}" for mean in means]
        columns.append(Column(title + per_cent, cells, figures[key].best))
        if key in gains and not (key == "mean" and summary.gains):
            columns.append(gains[key]._replace(cells=[*gains[key].cells, *empty]))
    if summary.gains:
        over_local = Column("mean gain over local", [])
        counts = Column("clients better · n.s. · worse than local", [])
        for gained in summary.gains:
            over_local.cells.append(interval(gained.mean, summary.score))
            better, worse = len(gained.better), len(gained.worse)
            counts.cells.append(f"{better} · {gained.unclear} · {worse}")
        over_local.cells.extend(empty)
        counts.cells.extend(empty)
        columns += [over_local, counts]
    labels = [*summary.labels]
    for baseline in baselines:
        labels.append(NAMES.get(baseline.label, baseline.label))
    columns.append(Column("seeds", [str(summary.seeds)] * len(labels)))
    return Table(labels, columns)
