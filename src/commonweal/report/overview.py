"""A comparison at a glance: the verdict, three numbers, who gains and loses, and the tables.

Terminal, report and page write the same overview.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from commonweal.base.text import shortened
from commonweal.record.record import Record
from commonweal.report.clients import NAMES, client_lines
from commonweal.report.formats import ReportColumn, ReportTable, gain_with_interval
from commonweal.report.run_table import fallback_notes, promised, unequal_promises, weights_note
from commonweal.study.comparison import Comparison
from commonweal.study.given import GIVEN, Given
from commonweal.study.judging import Judgement
from commonweal.study.labels import data_name
from commonweal.study.plan import ALONE
from commonweal.study.results import Result
from commonweal.study.units import (
    METRICS,
    counted,
    decimals_of,
    in_points,
    points,
    scale,
    show_score,
    unit,
    written_score,
)
from commonweal.study.verdict import detectable

MOST_NAMED = 5  # clients in a list of gains or losses
MOST_OTHERS = 4  # methods in the note of a card
LOCAL = NAMES[ALONE]
TAILS = {"worst_10": "Worst 10 % of clients", "worst": "Worst client"}  # titles of a card


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

    def __str__(self) -> str:
        parts = [f"{shortened(name)} {gain}" for name, gain in self.clients]
        more = f" and {self.more} more" if self.more else ""
        return f"{self.title}: {', '.join(parts)}{more}."


@dataclass(frozen=True)
class Overview:
    """The results of a comparison that a person should see."""

    name: str  # of the data
    headline: str  # the verdict, or what can be said without local training
    about: str
    cards: list[Card]
    advice: list[str]
    named: list[Named]
    methods: ReportTable
    numbers: ReportTable  # all metrics
    gains: ReportTable | None  # over the first method, and on the way to pooled data
    clients: ReportTable
    notes: list[str]

    @property
    def tables(self) -> dict[str, ReportTable]:
        """The tables by name."""
        tables = {"methods": self.methods, "numbers": self.numbers}
        if self.gains is not None:
            tables["gains"] = self.gains
        return tables | {"clients": self.clients}


def overview(
    comparison: Comparison, columns: Sequence[str] | None = None, decimals: int | None = None
) -> Overview:
    """Summarise a comparison by the models that clients use.

    Args:
        comparison: Of methods on the same data.
        columns: The metrics of `numbers`.
        decimals: Digits after the point; None for one of per cent.
    """
    comparison = comparison.with_curves(columns or ())
    return Overview(
        name=data_name(comparison.first),
        headline=comparison.verdict or _first_sentence(comparison),
        about=_about(comparison),
        cards=_cards(comparison),
        advice=_advice(comparison),
        named=_named(comparison.judgement, comparison.score),
        methods=_methods(comparison, decimals),
        numbers=_numbers(comparison, columns, decimals),
        gains=_gains(comparison, decimals),
        clients=_clients(comparison),
        notes=_notes(comparison),
    )


def _first_sentence(comparison: Comparison) -> str:
    """Return the headline without local training: the method that serves the worst clients best."""
    first, *others = comparison.results
    if not others:
        value = show_score(first.metric("mean"), comparison.score, 1)
        return f"{first.label}: {value} on average over {len(first.clients)} clients."
    gains = comparison.contrasts.get(comparison.tail, {})
    better = [label for label in gains if gains[label].significant and gains[label].difference > 0]
    if not better:
        return f"No method is significantly better than {first.label} for the worst clients."
    best = max(better, key=lambda label: gains[label].difference)
    gain = in_points(points(gains[best].difference, comparison.score), comparison.score)
    return f"{best} serves the worst clients significantly better than {first.label}: {gain}."


def _about(comparison: Comparison) -> str:
    name = written_score(comparison.score)
    lower = " (lower is better)" if comparison.results[0].lower_is_better else ""
    clients = counted(len(comparison.results[0].clients), "client")
    text = (
        f"{name[0].upper()}{name[1:]}{lower} of {clients} on their test samples, "
        f"{counted(comparison.seeds, 'seed')}."
    )
    if comparison.local is None:
        text += " Local training was not run: --baselines adds it, and shows whether joining helps."
    return text


def _cards(comparison: Comparison) -> list[Card]:
    """The gain over local training, the worst clients, and the client that is served worst."""
    score = comparison.score
    label = NAMES.get(comparison.headline, comparison.headline)
    cards = []
    judgement = comparison.judgement
    if judgement is not None:
        gains = {}
        for method, own in judgement.methods.items():
            gains[NAMES.get(method, method)] = points(own.gain, score)
        ends = ""
        if not math.isnan(judgement.low):
            ends = f"{points(judgement.low, score)} to {points(judgement.high, score)}"
        note = f"with {label}{_others(gains, label)}"
        cards.append(Card("Mean gain over local training", gains[label], ends, note))
    tails = {}
    for result in (*comparison.results, *comparison.baselines):
        name = NAMES.get(result.label, result.label)
        tails[name] = show_score(result.metric(comparison.tail), score, 1)
    note = f"with {label}{_others(tails, label)}"
    cards.append(Card(TAILS[comparison.tail], tails[label], "", note))
    result = next(own for own in comparison.results if own.label == comparison.headline)
    sign = -1 if result.lower_is_better else 1
    k = int((sign * result.means).argmin())
    samples = counted(comparison.samples.get(result.clients[k], 0), "test sample")
    value = f"{shortened(result.clients[k])} {show_score(float(result.means[k]), score, 1)}"
    cards.append(Card("Served worst", value, "", f"with {label}; {samples}"))
    return cards


def _others(values: Mapping[str, str], label: str) -> str:
    """The values of other methods, after that of the first: " · fedavg 1 · afl 2"."""
    others = [f" · {name} {value}" for name, value in values.items() if name != label]
    more = f" · {len(others) - MOST_OTHERS} more" if len(others) > MOST_OTHERS else ""
    return "".join(others[:MOST_OTHERS]) + more


def _advice(comparison: Comparison) -> list[str]:
    """Return the next step for the user."""
    judgement = comparison.judgement
    if judgement is None or judgement.says == "cannot be decided":
        return []
    if judgement.says == "helps":
        if judgement.method == GIVEN:
            return []
        advice = [f"Take {judgement.method}."]
        worse = judgement.worse[judgement.method]
        if worse:
            some = ", ".join(worse[:MOST_NAMED])
            advice.append(f"Let {some} keep to local training, or try a personal method.")
        return advice
    if comparison.global_models:  # personal methods were tried
        return ["Keep to local training: no method that was tried serves clients better."]
    return [
        "Do not share one model: try personal methods such as blend or fine-tune.",
        "commonweal compare FILE client=blend",
    ]


def _named(judgement: Judgement | None, score: str) -> list[Named]:
    """List the clients that gain and lose significantly by method, that of the headline first."""
    if judgement is None:
        return []
    named = []
    for method in sorted(judgement.methods, key=lambda name: name != judgement.method):
        for word, clients in (("better", judgement.better), ("worse", judgement.worse)):
            names = clients[method]
            if names:
                gains = judgement.clients[method]
                shown = [(name, points(gains[name].gain, score)) for name in names[:MOST_NAMED]]
                title = (
                    f"Significantly {word} off with {NAMES.get(method, method)} than with {LOCAL}"
                )
                named.append(Named(title, shown, len(names) - len(shown)))
    return named


# Tables


def _methods(comparison: Comparison, decimals: int | None) -> ReportTable:
    """A line per method: the mean and the worst clients, and the gains over local training."""
    score = comparison.score
    rows = [*comparison.results, *comparison.baselines]
    columns = []
    for key in ("mean", comparison.tail):
        values = np.array([result.metric(key) for result in rows])
        digits = decimals_of(score, values, decimals)
        cells = [f"{scale(score) * value:.{digits}f}" for value in values]
        columns.append(ReportColumn(METRICS[key].title, cells, _place(comparison, key)))
    judgement = comparison.judgement
    if judgement is not None:
        gain = ReportColumn("mean gain over local training", [])
        counts = ReportColumn("clients better · n.s. · worse", [])
        for result in rows:
            own = judgement.methods.get(result.label)
            if own is None:
                gain.cells.append("")
                counts.cells.append("")
                continue
            gain.cells.append(gain_with_interval(own.gain, own.low, own.high, score, decimals))
            better = len(judgement.better[result.label])
            worse = len(judgement.worse[result.label])
            rest = len(judgement.clients[result.label]) - better - worse
            counts.cells.append(f"{better} · {rest} · {worse}")
        columns += [gain, counts]
    return ReportTable(f"Methods: {_title(comparison)}", "method", _labels(rows), columns)


def _labels(results: Sequence[Result]) -> list[str]:
    return [NAMES.get(result.label, result.label) for result in results]


def _title(comparison: Comparison) -> str:
    per_cent = " in %" if unit(comparison.score) else ""
    return f"{comparison.score} of {len(comparison.results[0].clients)} clients{per_cent}"


def _place(comparison: Comparison, key: str) -> int | None:
    """The row of the method that is significantly better than all others."""
    labels = [result.label for result in comparison.results]
    best = comparison.best.get(key)
    return None if best is None else labels.index(best)


def _numbers(
    comparison: Comparison, columns: Sequence[str] | None, decimals: int | None
) -> ReportTable:
    """Metrics over clients, each with its spread over seeds."""
    rows = [*comparison.results, *comparison.global_models, *comparison.baselines]
    title = f"All numbers: {_title(comparison)}"
    if comparison.seeds > 1:
        title += f", ± spread over {comparison.seeds} seeds"
    written = []
    for key in comparison.columns(columns):
        cells = _figures(rows, key, comparison.score, decimals)
        written.append(ReportColumn(METRICS[key].title, cells, _place(comparison, key)))
    return ReportTable(title, "method", _labels(rows), written)


def _figures(rows: Sequence[Result], key: str, score: str, decimals: int | None) -> list[str]:
    metric = METRICS[key]
    factor = scale(score) if metric.in_score_units else 1.0
    if key == "variance":
        factor = scale(score) ** 2
    values = factor * np.array([result.metric(key) for result in rows])
    digits = metric.digits if decimals is None else decimals
    if metric.in_score_units:
        digits = decimals_of(score, values, decimals)
    cells = []
    for result, value in zip(rows, values.tolist(), strict=True):
        if math.isnan(value):
            cells.append("-")
            continue
        spread = f"±{factor * result.spread(key):.{digits}f}" if result.seeds > 1 else ""
        cells.append(f"{value:.{digits}f}{spread}")
    return cells


def _gains(comparison: Comparison, decimals: int | None) -> ReportTable | None:
    """Gains over the first method, largest losses, and the way to pooled data."""
    first, *others = comparison.results
    rows = comparison.results
    score, judgement = comparison.score, comparison.judgement
    columns = []
    for key, by_label in comparison.contrasts.items() if others else ():
        cells = [""]
        for result in others:
            gain = by_label.get(result.label)
            cells.append("-" if gain is None else gain_with_interval(*gain[:3], score, decimals))
        columns.append(ReportColumn(f"gain in {METRICS[key].title} over {first.label}", cells))
    if comparison.against:
        columns += _changes(comparison, decimals)
    if judgement is not None:
        losses = ReportColumn("largest loss of a client to local training", [])
        for result in rows:
            own = judgement.clients.get(result.label, {})
            lowest = min((client.gain for client in own.values()), default=0.0)
            losses.cells.append(points(lowest, score, decimals) if lowest < 0 else "none")
        columns.append(losses)
    shares = [comparison.share_of_pooled(result.label) for result in rows]
    if any(share is not None for share in shares):
        cells = ["-" if share is None else f"{100 * share:.0f} %" for share in shares]
        columns.append(ReportColumn("of the way from local to pooled training", cells))
    if not columns:
        return None
    return ReportTable("Gains and losses", "method", _labels(rows), columns)


def _clients(comparison: Comparison) -> ReportTable:
    """Every client's scores, gain, and what it is given."""
    table = client_lines(comparison).table()
    if comparison.given is None:
        return table
    votes = comparison.given.votes
    cells = [_given_cell(votes.get(name, Counter())) for name in table.labels]
    columns = [ReportColumn("given", cells), *table.columns]
    return replace(table, columns=columns)


def _given_cell(votes: Counter[str]) -> str:
    """Return the model that a client is given, and in how many seeds where they differ."""
    parts = []
    for method, count in votes.most_common():
        name = NAMES.get(method, method)
        parts.append(name if len(votes) == 1 else f"{name} ({count} of {votes.total()} seeds)")
    return ", ".join(parts)


def _changes(comparison: Comparison, decimals: int | None) -> list[ReportColumn]:
    """Return how many suffering clients improved and thriving ones degraded, with mean gains."""
    suffering = ReportColumn("suffering improved", [])
    thriving = ReportColumn("thriving degraded", [])
    sign = -1 if comparison.results[0].lower_is_better else 1
    for result in comparison.results:
        change = comparison.against.get(result.label)
        if change is None:
            suffering.cells.append("")
            thriving.cells.append("")
            continue
        gain = points(sign * change.suffering_change, comparison.score, decimals)
        suffering.cells.append(f"{100 * change.suffering_improved:.0f} % ({gain})")
        gain = points(sign * change.thriving_change, comparison.score, decimals)
        thriving.cells.append(f"{100 * change.thriving_degraded:.0f} % ({gain})")
    return [suffering, thriving]


# Notes


def notes_on_verdict(comparison: Comparison) -> list[str]:
    """Explain the basis of the verdict and its intervals."""
    notes = []
    judgement = comparison.judgement
    if comparison.given is not None:
        notes += _about_given(comparison.given)
    elif judgement is not None and judgement.corrected < len(judgement.methods):
        notes.append(f"{judgement.method} has the best scores on validation samples")
    if judgement is not None:
        if not any((*judgement.better.values(), *judgement.worse.values())):
            notes.append("no single client's gain or loss is significant")
        notes.append(_about_intervals(judgement))
        if not math.isnan(judgement.new_low):
            low = points(judgement.new_low, comparison.score)
            high = points(judgement.new_high, comparison.score)
            notes.append(
                f"for new clients like these, the mean gain with {judgement.method} is between "
                f"{low} and {high} (95 % interval over clients)"
            )
        if judgement.says != "cannot be decided":
            text = detectable(judgement, comparison.score)
            notes.append(text[0].lower() + text[1:-1])
    elif comparison.contrasts:
        notes.append("[low, high]: 95 % intervals over test samples, corrected for all methods")
    return notes


def _notes(comparison: Comparison) -> list[str]:
    """Explain the numbers."""
    notes = notes_on_verdict(comparison)
    if comparison.seeds > 1:
        notes.append("±: how much the number varies between seeds, not how certain it is")
    if comparison.best:
        notes.append("bold: significantly better than all other methods")
    if comparison.against:
        side = ("above", "below") if comparison.results[0].lower_is_better else ("below", "above")
        notes.append(
            f"suffering, thriving: clients {side[0]}, {side[1]} FedAvg's mean; how many of them "
            "improved or degraded, and their mean gain"
        )
    if comparison.global_models:
        notes.append(
            "global model: what the server trains, where the clients of a method use others"
        )
    notes += unequal_promises(comparison.methods)
    for label, records in comparison.records.items():
        notes += [f"{label}: {note}" for note in _about_runs(records)]
        kinds = weights_note(records)
        if kinds and f"{label}: {kinds}" not in notes:
            notes.append(f"{label}: {kinds}")
    return notes


def _about_runs(records: Sequence[Record]) -> list[str]:
    """Return the remarks on the runs of a method, every remark once."""
    notes: dict[str, None] = {}
    for record in records:
        notes |= dict.fromkeys([*promised(record), *fallback_notes(record)])
        if not record.finished:
            notes[f"{record.folder} has {len(record.rounds)} of {record.total} rounds so far"] = (
                None
            )
    return list(notes)


EVIDENCE = {  # by the way of choosing
    "safe": "by its own validation samples: it leaves local training where they show with 95 % "
    "confidence that another model is better",
    "likely": "by its own validation samples: it leaves local training where another model is "
    "better on them",
    "proved": "by its own validation samples: it leaves local training where they prove that "
    "another model is better",
}


def _about_given(given: Given) -> list[str]:
    """Describe how models were chosen, and on which samples they were trained."""
    notes = []
    if given.how in EVIDENCE:
        notes.append(f"each client's model was chosen {EVIDENCE[given.how]}")
    notes += given.notes
    for method in dict.fromkeys(chain(*given.votes.values())):
        kinds = weights_note(list(given.runs[method].values()))
        if kinds:
            notes.append(f"{method}: {kinds}")
    if given.refit:
        notes.append("after the choice all models were trained again, on validation samples, too")
    return notes


def _about_intervals(judgement: Judgement) -> str:
    clients = len(judgement.clients[judgement.method])
    methods = len(judgement.methods)
    return (
        "[low, high]: 95 % intervals of these clients' gains on new samples; n.s.: not "
        f"significant. Clients better or worse are corrected for {counted(clients, 'client')} and "
        f"{counted(methods, 'method')} (Holm)"
    )
