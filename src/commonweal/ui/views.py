"""What the page shows of compared runs, of one run and of one client, as values for JSON."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from commonweal.analysis.compare import ALONE
from commonweal.analysis.curves import improved_by_round
from commonweal.analysis.gains import ClientGain, gains
from commonweal.analysis.labels import data_name, method_of
from commonweal.base.errors import RunError
from commonweal.base.plain import flat
from commonweal.record.record import Record
from commonweal.record.rounds import StoredRound, spaced
from commonweal.report.clients import NAMES, ClientLines, gain_cell, partner_weights, samples_of
from commonweal.report.compare import Comparison
from commonweal.report.document import experiment_text
from commonweal.report.figures import band
from commonweal.report.formats import scale, score_name, show_score
from commonweal.report.overview import Overview, overview
from commonweal.report.run_table import promised

__all__ = [
    "ClientView",
    "ComparisonView",
    "RunView",
    "client_view",
    "compare",
    "run_view",
]

Array: TypeAlias = NDArray[np.float64]
Curve: TypeAlias = Mapping[str, Sequence[float]]  # round, mean, low, high; as shown

MOST_POINTS = 300  # of a chart
METRICS = {"worst_10": "worst 10 % of clients", "mean": "mean over clients"}


# Comparisons


@dataclass(frozen=True)
class ComparisonView:
    """Answer, picture and numbers of compared runs."""

    overview: Overview
    left_out: list[str]  # runs and seeds, with the reason
    score: str
    plot: ClientLines
    factor: float  # by which scores of the plot are shown
    unit: str
    metrics: dict[str, str]
    curves: dict[str, dict[str, Curve]]  # by method and metric
    settings: dict[str, list[str]]  # by method, in which they differ
    runs: dict[str, list[str]]  # folders by method


def compare(comparison: Comparison, ids: Mapping[str, list[str]]) -> ComparisonView:
    """What the page shows of a comparison.

    Args:
        comparison: The runs.
        ids: The names of its runs on the page, by label.
    """
    factor = scale(comparison.score)
    curves = {}
    for label, records in comparison.methods.items():
        curves[label] = {metric: _curve(records, metric, factor) for metric in METRICS}
    return ComparisonView(
        overview=overview(comparison),
        left_out=comparison.failures,
        score=score_name(comparison.score),
        plot=comparison.client_lines,
        factor=factor,
        unit=_unit(factor),
        metrics=METRICS,
        curves=curves,
        settings=_differing(comparison.records),
        runs={label: ids.get(label, []) for label in comparison.records},
    )


def _unit(factor: float) -> str:
    return "%" if factor == 100 else ""


def _shown(value: float, factor: float) -> float | None:
    return round(factor * value, 6) if math.isfinite(value) else None


def _curve(records: Sequence[Record], metric: str, factor: float) -> Curve:
    over_rounds = band(records, metric)
    shown = spaced(len(over_rounds.round), MOST_POINTS)
    curve: dict[str, list[float]] = {"round": [over_rounds.round[k] for k in shown]}
    columns = {"mean": over_rounds.mean, "low": over_rounds.low, "high": over_rounds.high}
    for name, values in columns.items():
        curve[name] = (factor * values[shown]).round(6).tolist()
    return curve


def _differing(runs: Mapping[str, Sequence[Record]]) -> dict[str, list[str]]:
    """The settings in which methods differ, as they would be typed."""
    tables = {label: flat(records[0].experiment) for label, records in runs.items()}
    first = next(iter(tables.values()))
    common = set(map(repr, first.items()))
    for table in tables.values():
        common &= set(map(repr, table.items()))
    differing = {}
    for label, table in tables.items():
        pairs = [pair for pair in table.items() if repr(pair) not in common]
        differing[label] = [f"{key} = {value!r}" for key, value in pairs]
    return differing


# One run


@dataclass(frozen=True)
class RunView:
    """One run: its clients now, its curve, and its experiment."""

    label: str
    dataset: str
    score: str
    unit: str
    private: list[str]  # what a private run promises
    total: int
    round: int
    seconds_left: float | None
    resume: str  # the command that continues it, where it was stopped
    curves: dict[str, Curve]
    descent: dict[str, tuple[list[int], list[float | None]]]  # rounds and values
    rates: dict[str, float]  # of descent in the last round, by client
    partners: dict[str, float]  # the weight of other than local models, by client
    metrics: dict[str, str]
    clients: list[tuple[str, str, str]]  # name, score, test samples; the worst first
    experiment: str
    facts: dict[str, object]


def run_view(record: Record, state: str) -> RunView:
    """What the page shows of one run.

    Args:
        record: The run, perhaps with a part of its rounds.
        state: finished, running or stopped.
    """
    factor = scale(record.facts.score)
    last = record.rounds[-1].number if record.rounds else 0
    facts = record.facts.table()
    facts.pop("privacy", None)  # in words, in `private`
    curves = {}
    if record.evaluated:
        curves = {key: _curve([record], key, factor) for key in METRICS}
    return RunView(
        label=method_of(record),
        dataset=data_name(record),
        score=score_name(record.facts.score),
        unit=_unit(factor),
        private=promised(record),
        total=record.total,
        round=last,
        seconds_left=_seconds_left(record, last) if state == "running" else None,
        resume=_resume(record) if state == "stopped" else "",
        curves=curves,
        descent=_descent(record),
        rates=record.rounds[-1].rates if record.rounds else {},
        partners=partner_weights(record),
        metrics=METRICS,
        clients=_clients(record),
        experiment=experiment_text(record),
        facts=facts,
    )


def _descent(record: Record) -> dict[str, tuple[list[int], list[float | None]]]:
    """How a rule that chooses a direction descends: |d_t| and rho_t in %, by round."""
    lengths = {r.number: r.length for r in record.rounds if r.length is not None}
    if not lengths:
        return {}
    thin = [record.rounds[k] for k in spaced(len(record.rounds), MOST_POINTS // 2)]
    near = {k.number for k in thin} | {k.number + 1 for k in thin}  # rho takes two rounds in a row
    improved = improved_by_round([r for r in record.rounds if r.number in near])
    shown = [r.number for r in thin]
    risen = [100 * improved[n] if n in improved else None for n in shown]
    return {
        "length of the direction": (shown, [lengths.get(number) for number in shown]),
        "losses that do not rise (%)": (shown, risen),
    }


def _clients(record: Record) -> list[tuple[str, str, str]]:
    if not record.evaluated:
        return []
    table = record.clients()
    used = table.evaluation.personal or table.evaluation
    sign = -1 if record.lower_is_better else 1
    values = used.score.tolist()
    order = sorted(range(len(values)), key=lambda k: (math.isnan(values[k]), sign * values[k]))
    sizes = table.evaluation.sizes.int().tolist()
    rows = []
    for k in order:
        score = show_score(values[k], record.facts.score, 1)
        rows.append((table.names[k], score, str(sizes[k])))
    return rows


def _seconds_left(record: Record, last: int) -> float | None:
    """From the time of the last rounds; None where it is not known."""
    recent = []
    for line in record.timings(last=True)[-20:]:
        recent.append(sum(seconds for phase, seconds in line.items() if phase != "round"))
    return (record.total - last) * float(np.mean(recent)) if recent else None


def _resume(record: Record) -> str:
    file = record.folder / "experiment.toml"
    return f'commonweal run "{file}" --out "{record.folder}" --resume'  # quotes for every shell


# One client


@dataclass(frozen=True)
class ClientMethod:
    """One client under one method."""

    label: str
    score: str
    value: float | None
    gain: str  # over local training, with its interval
    better: bool
    significant: bool
    weight: str  # relative to an equal one, mean over rounds
    rounds: list[int]
    scores: list[float | None]
    weights_at: list[int]
    weights: list[float | None]
    losses: list[float | None]
    events: list[str]


@dataclass(frozen=True)
class ClientView:
    """One client under all methods."""

    name: str
    dataset: str
    names: list[str]  # of all clients
    sentence: str
    score: str
    unit: str
    factor: float
    plot: ClientLines  # of this client
    samples: str
    share: str  # of the test samples of all clients
    methods: list[ClientMethod]
    before: str
    after: str


def client_view(comparison: Comparison, name: str) -> ClientView:
    """What the page shows of one client.

    Args:
        comparison: The runs in which it took part.
        name: The client.
    """
    names = list(comparison.used[0].clients)
    if name not in names:
        raise RunError(f"no client of these runs is called {name!r}")
    score = comparison.score
    factor = scale(score)
    alone = next((b for b in comparison.baselines if b.label == ALONE), None)
    methods = []
    for result in (*comparison.used, *comparison.baselines):
        if name not in result.clients:
            continue
        record = comparison.records[result.label][0]
        mean = float(result.scores[:, result.clients.index(name)].mean())
        gain = None
        if alone is not None and result is not alone:
            gain = next((g for g in gains(alone, result).clients if g.client == name), None)
        methods.append(_client_method(result.label, record, name, mean, gain, factor))
    samples = samples_of(comparison.records)
    place = names.index(name)
    plot = comparison.client_lines
    first = next(iter(comparison.records.values()))[0]
    return ClientView(
        name=name,
        dataset=data_name(first),
        names=names,
        sentence=_client_sentence(name, methods, alone is not None, comparison.summary.seeds),
        score=score_name(score),
        unit=_unit(factor),
        factor=factor,
        plot=replace(plot, lines=[line for line in plot.lines if line.client == name]),
        samples=str(samples.get(name, "")),
        share=f"{100 * samples.get(name, 0) / max(1, sum(samples.values())):.1f} %",
        methods=methods,
        before=names[place - 1],
        after=names[(place + 1) % len(names)],
    )


def _client_method(
    label: str, record: Record, name: str, mean: float, gain: ClientGain | None, factor: float
) -> ClientMethod:
    """A client under one method; rounds are those of the first seed."""
    score = record.facts.score
    values = record.history(name)
    used = values.get("test.personal_score", values.get("test.score", []))
    evaluated = [k for k, value in enumerate(used) if not math.isnan(value)]
    shown = [evaluated[k] for k in spaced(len(evaluated), MOST_POINTS)]
    part = [k for k, done in enumerate(record.rounds) if _took_part(done, name, values, k)]
    relative = [_relative(record.rounds[k], values["weight"][k], values["loss"][k]) for k in part]
    weights = [weight for weight, _ in relative if weight is not None]
    if label == ALONE:  # nothing is weighted
        part = []
    thin = spaced(len(part), MOST_POINTS)
    events = []
    for k in part:
        done = record.rounds[k]
        if name in done.dropped:
            events.append(f"round {done.number}: reply not used: {done.dropped[name]}")
        if name in done.capped:
            events.append(f"round {done.number}: reply reduced: {done.capped[name]}")
    return ClientMethod(
        label=NAMES.get(label, label),
        score=show_score(mean, score, 1),
        value=_shown(mean, factor),
        gain="" if gain is None else gain_cell(gain, score),
        better=gain is not None and gain.gain >= 0,
        significant=gain is not None and gain.significant,
        weight=f"{np.mean(weights):.2f}" if weights and part else "",
        rounds=[record.rounds[k].number for k in shown],
        scores=[_shown(used[k], factor) for k in shown],
        weights_at=[record.rounds[part[k]].number for k in thin],
        weights=[relative[k][0] for k in thin],
        losses=[relative[k][1] for k in thin],
        events=events[-MOST_POINTS:],
    )


def _client_sentence(
    name: str, methods: Sequence[ClientMethod], has_local: bool, seeds: int
) -> str:
    joined = [method for method in methods if method.label not in NAMES.values()]
    if not has_local:
        return f"{name}: " + ", ".join(f"{m.score} with {m.label}" for m in joined) + "."
    if seeds < 2:
        return f"Whether {name} is better off than with local training is open: run more seeds."
    better = [m.label for m in joined if m.significant and m.better]
    worse = [m.label for m in joined if m.significant and not m.better]
    parts = []
    for labels, verdict in ((better, "better"), (worse, "worse")):
        if labels:
            every = len(labels) == len(joined) > 1
            parts.append(f"{verdict} off with {'every method' if every else ', '.join(labels)}")
    if not parts:
        return f"{name} is neither significantly better nor worse off than with local training."
    return f"{name} is significantly {' and '.join(parts)} than with local training."


def _took_part(done: StoredRound, name: str, values: dict[str, list[float]], k: int) -> bool:
    reported = not (math.isnan(values["weight"][k]) and math.isnan(values["loss"][k]))
    return reported or name in done.dropped


def _relative(done: StoredRound, weight: float, loss: float) -> tuple[float | None, float | None]:
    """The weight relative to an equal one, and the loss relative to the cohort's mean."""
    columns = done.columns()
    losses = columns["loss"]
    finite = losses[np.isfinite(losses)]
    mean = float(finite.mean()) if len(finite) else 0.0
    return _shown(weight * len(columns["weight"]), 1.0), _shown(loss / mean, 1.0) if mean else None
