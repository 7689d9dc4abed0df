"""Contents of the page for compared runs, one run and one client, as values for JSON."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from commonweal.base.errors import RunError
from commonweal.base.plain import flat
from commonweal.record.record import Record
from commonweal.record.rounds import spaced
from commonweal.report.clients import (
    NAMES,
    client_lines,
    gain_cell,
    partner_weights,
)
from commonweal.report.document import experiment_text
from commonweal.report.figures import band
from commonweal.report.overview import overview
from commonweal.report.run_table import promised
from commonweal.study.comparison import Comparison
from commonweal.study.curves import improved_by_round
from commonweal.study.given import GIVEN
from commonweal.study.labels import data_name, method_of
from commonweal.study.plan import ALONE
from commonweal.study.results import Result
from commonweal.study.units import scale, show_score, unit, worst_first, written_score

MOST_POINTS = 300  # of a chart
METRICS = {"worst_10": "worst 10 % of clients", "mean": "mean over clients"}


# Comparisons


def comparison_view(comparison: Comparison, ids: Mapping[str, list[str]]) -> dict[str, object]:
    """Answer, picture and numbers of compared runs, whose names on the page are given by label."""
    curves = {}
    for label, records in comparison.methods.items():
        curves[label] = {metric: _curve(records, metric) for metric in METRICS}
    return _units(comparison.score) | {
        "overview": asdict(overview(comparison)),
        "left_out": comparison.failures,
        "plot": asdict(client_lines(comparison)),
        "metrics": METRICS,
        "curves": curves,
        "settings": _differing(comparison.records),
        "runs": {label: ids.get(label, []) for label in comparison.records},
    }


def _units(score: str) -> dict[str, object]:
    """Return the form of a score on the page: values are multiplied by the factor."""
    return {"score": written_score(score), "unit": unit(score).strip(), "factor": scale(score)}


def _shown(value: float, factor: float = 1.0) -> float | None:
    return round(factor * value, 6) if math.isfinite(value) else None


def _curve(records: Sequence[Record], metric: str) -> dict[str, list[float]]:
    """Round, mean, lowest and highest over seeds, as shown."""
    over_rounds = band(records, metric)
    shown = spaced(len(over_rounds.round), MOST_POINTS)
    curve: dict[str, list[float]] = {"round": [over_rounds.round[k] for k in shown]}
    columns = {"mean": over_rounds.mean, "low": over_rounds.low, "high": over_rounds.high}
    for name, values in columns.items():
        curve[name] = (scale(records[0].facts.score) * values[shown]).round(6).tolist()
    return curve


def _differing(runs: Mapping[str, Sequence[Record]]) -> dict[str, list[str]]:
    """The settings in which methods differ, as they would be typed."""
    settings = {}
    for label, records in runs.items():
        pairs = flat(records[0].experiment).items()
        settings[label] = [f"{key} = {value!r}" for key, value in pairs]
    common = set.intersection(*map(set, settings.values()))
    differing = {}
    for label, own in settings.items():
        differing[label] = [setting for setting in own if setting not in common]
    return differing


# One run


def run_view(record: Record, state: str) -> dict[str, object]:
    """One run that is finished, running or stopped: its clients now, curves, and experiment.

    The record may have a part of its rounds.
    """
    last = record.rounds[-1].number if record.rounds else 0
    file = record.folder / "experiment.toml"
    # Quotes for every shell.
    resume = f'commonweal run "{file}" --out "{record.folder}" --resume'
    facts = record.facts.table()
    facts.pop("privacy", None)  # in words, in `private`
    curves = {}
    if record.evaluated:
        curves = {metric: _curve([record], metric) for metric in METRICS}
    return _units(record.facts.score) | {
        "label": method_of(record),
        "dataset": data_name(record),
        "private": promised(record),
        "total": record.total,
        "round": last,
        "seconds_left": _seconds_left(record, last) if state == "running" else None,
        "resume": resume if state == "stopped" else "",
        "curves": curves,
        "descent": _descent(record),
        "rates": record.rounds[-1].rates if record.rounds else {},
        "partners": partner_weights(record),
        "clients": _clients(record),
        "experiment": experiment_text(record),
        "facts": facts,
    }


def _descent(record: Record) -> dict[str, tuple[list[int], list[float | None]]]:
    """Return the descent of a rule that chooses a direction: |d_t| and rho_t in %, by round."""
    if all(done.length is None for done in record.rounds):
        return {}
    drawn = [record.rounds[k] for k in spaced(len(record.rounds), MOST_POINTS // 2)]
    numbers = [done.number for done in drawn]
    near = {*numbers, *(number + 1 for number in numbers)}  # rho takes two rounds in a row
    improved = improved_by_round([done for done in record.rounds if done.number in near])
    risen: list[float | None] = []
    for number in numbers:
        risen.append(100 * improved[number] if number in improved else None)
    return {
        "length of the direction": (numbers, [done.length for done in drawn]),
        "losses that do not rise (%)": (numbers, risen),
    }


def _clients(record: Record) -> list[tuple[str, str, str]]:
    if not record.evaluated:
        return []
    table = record.clients()
    used = table.evaluation.personal or table.evaluation
    values = used.score.tolist()
    sizes = table.evaluation.sizes.int().tolist()
    rows = []
    for k in worst_first(values, record.facts.score):
        score = show_score(values[k], record.facts.score, 1)
        rows.append((table.names[k], score, str(sizes[k])))
    return rows


def _seconds_left(record: Record, last: int) -> float | None:
    """From the time of the last rounds; None where it is not known."""
    recent = []
    for line in record.timings(last=True)[-20:]:
        line.pop("round", None)
        recent.append(sum(line.values()))
    return (record.total - last) * float(np.mean(recent)) if recent else None


# One client


@dataclass(frozen=True)
class ClientMethod:
    """One client under one method."""

    label: str
    score: str
    value: float | None
    gain: str  # over local training, with its interval
    weight: str  # relative to an equal one, mean over rounds
    rounds: list[int]
    scores: list[float | None]
    weights_at: list[int]
    weights: list[float | None]
    losses: list[float | None]
    events: list[str]


def client_view(comparison: Comparison, name: str) -> dict[str, object]:
    """One client under all methods."""
    names = list(comparison.results[0].clients)
    if name not in names:
        raise RunError(f"no client of these runs is called {name!r}")
    methods = []
    for result in (*comparison.results, *comparison.baselines):
        if name in result.clients and result.label != GIVEN:
            methods.append(_client_method(comparison, result, name))
    samples = comparison.samples
    place = names.index(name)
    plot = client_lines(comparison)
    own = [line for line in plot.lines if line.client == name]
    return _units(comparison.score) | {
        "name": name,
        "dataset": data_name(comparison.first),
        "names": names,
        "sentence": _client_sentence(comparison, name),
        "plot": asdict(replace(plot, lines=own)),
        "samples": str(samples.get(name, "")),
        "share": f"{100 * samples.get(name, 0) / max(1, sum(samples.values())):.1f} %",
        "methods": list(map(asdict, methods)),
        "before": names[place - 1],
        "after": names[(place + 1) % len(names)],
    }


def _client_method(comparison: Comparison, result: Result, name: str) -> ClientMethod:
    """A client under one method; rounds are those of the first seed."""
    score = comparison.score
    record = comparison.records[result.label][0]
    factor = scale(score)
    mean = result.by_client[name]
    gain = comparison.gain(result.label, name)
    values = record.history(name)
    used = values.get("test.personal_score", values.get("test.score", []))
    evaluated = [k for k, value in enumerate(used) if not math.isnan(value)]
    shown = [evaluated[k] for k in spaced(len(evaluated), MOST_POINTS)]
    is_weighted = result.label != ALONE
    parts = _parts(record, name, values) if is_weighted else []
    weights = [weight for _, weight, _ in parts if weight is not None]
    thin = [parts[k] for k in spaced(len(parts), MOST_POINTS)]
    events = _events(record, name) if is_weighted else []
    return ClientMethod(
        label=NAMES.get(result.label, result.label),
        score=show_score(mean, score, 1),
        value=_shown(mean, factor),
        gain="" if gain is None else gain_cell(gain, score),
        weight=f"{np.mean(weights):.2f}" if weights else "",
        rounds=[record.rounds[k].number for k in shown],
        scores=[_shown(used[k], factor) for k in shown],
        weights_at=[number for number, _, _ in thin],
        weights=[weight for _, weight, _ in thin],
        losses=[loss for _, _, loss in thin],
        events=events[-MOST_POINTS:],
    )


def _client_sentence(comparison: Comparison, name: str) -> str:
    """Return a sentence on a client: the methods with which it gains or loses significantly."""
    judgement = comparison.judgement
    if judgement is None:
        scores = []
        for result in comparison.results:
            value = show_score(result.by_client.get(name, math.nan), comparison.score, 1)
            scores.append(f"{value} with {result.label}")
        return f"{name}: {', '.join(scores)}."
    parts = []
    for word, clients in (("better", judgement.better), ("worse", judgement.worse)):
        labels = [label for label, names in clients.items() if name in names]
        if labels:
            every = len(labels) == len(clients) > 1
            parts.append(f"{word} off with {'every method' if every else ', '.join(labels)}")
    if not parts:
        return f"{name} is neither significantly better nor worse off than with local training."
    return f"{name} is significantly {' and '.join(parts)} than with local training."


def _parts(
    record: Record, name: str, values: Mapping[str, Sequence[float]]
) -> list[tuple[int, float | None, float | None]]:
    """The rounds of a client, with its weight and loss relative to the mean of the cohort."""
    parts = []
    for done, weight, loss in zip(record.rounds, values["weight"], values["loss"], strict=True):
        if math.isnan(weight) and math.isnan(loss) and name not in done.dropped:
            continue
        columns = done.columns()
        losses = columns["loss"]
        finite = losses[np.isfinite(losses)]
        mean = float(finite.mean()) if len(finite) else 0.0
        relative = _shown(loss / mean) if mean else None
        parts.append((done.number, _shown(weight * len(columns["weight"])), relative))
    return parts


def _events(record: Record, name: str) -> list[str]:
    """The rounds in which a client's reply was not used, or reduced, with the reason."""
    events = []
    for done in record.rounds:
        if name in done.dropped:
            events.append(f"round {done.number}: reply not used: {done.dropped[name]}")
        if name in done.capped:
            events.append(f"round {done.number}: reply reduced: {done.capped[name]}")
    return events
