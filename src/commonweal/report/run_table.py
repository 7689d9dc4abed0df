"""One run as a table in a terminal, or as plain values."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import NamedTuple

import numpy as np
from rich.console import Group
from rich.table import Table
from torch import Tensor

from commonweal import metrics
from commonweal.base.text import shortened
from commonweal.record.final import Bounds, Final, read_final
from commonweal.record.record import Record
from commonweal.record.rounds import ClientTable, RoundRecord
from commonweal.report.formats import add_columns, markup, show_client
from commonweal.study import curves
from commonweal.study.interpolation import Curve
from commonweal.study.units import METRICS, counted, show_score, sign_of, worst_first
from commonweal.task.intervals import FEW
from commonweal.task.scores import score_title
from commonweal.training.evaluation import Evaluation

KINDS = {  # of models, in words
    "network": "network",
    "partners": "partners (global and tuned models)",
    "together": "trees grown together",
    "linear": "linear model",
    "forest": "forest",
    "boosting": "boosting",
}
ALL = 40  # clients that a run's table shows; of more, SHOWN at each end
SHOWN = 5
UNSTABLE = -1.0  # a mean R^2
FEW_SAMPLES = 20  # test samples below which a note says what a single one is worth


def run_summary(record: Record) -> dict[str, object]:
    """A run's last evaluation as plain values, for JSON."""
    last = record.evaluated[-1] if record.evaluated else None
    summary: dict[str, object] = {
        "folder": str(record.folder),
        "finished": record.finished,
        "round": None if last is None else last.number,
        "metrics": None if last is None else last.metrics,
    }
    if record.facts.privacy is not None:
        summary["privacy"] = asdict(record.facts.privacy)
    if record.facts.taken is not None:
        summary["taken"] = record.facts.taken
    weights = read_final(record.folder).weights
    if weights:
        summary["weights"] = {
            kind: dict(zip(record.clients().names, values, strict=True))
            for kind, values in weights.items()
        }
    importance = read_final(record.folder).importance
    if importance:
        summary["importance"] = importance
    if last is None:
        return summary | {"clients": []}
    if last.personal:
        summary["personal"] = last.personal
    if last.more:
        summary["more"] = last.more
    if last.mixture:
        summary["mixture"] = last.mixture
    if last.length is not None:
        summary["descent"] = {
            "length": last.length,
            "rates": last.rates,
            "improved": curves.improved_by_round(record.rounds),
        }
    table = record.clients()
    columns = {name: values.tolist() for name, values in table.columns().items() if name != "rows"}
    clients = []
    for name, *values in zip(table.names, *columns.values(), strict=True):
        clients.append({"client": name, **dict(zip(columns, values, strict=True))})
    return summary | {"clients": clients}


class _Model(NamedTuple):
    """A column of a run's table."""

    title: str
    score: str
    metrics: dict[str, float]
    clients: list[float]
    bounds: Bounds | None  # of the clients' scores


def promised(record: Record) -> list[str]:
    """Return what a private run promises, what it costs, and what is outside the promise."""
    promise = record.facts.privacy
    if promise is None:
        return []
    outside = "the values of clients are outside the promise: do not publish them"
    if record.is_public_part:
        outside = record.where_scores_are
    return [promise.sentence, promise.cost, f"private: {outside}"]


def unequal_promises(records: Mapping[str, Sequence[Record]]) -> list[str]:
    """A note where methods promise different privacy, by label."""
    promises = {}
    for label, runs in records.items():
        for record in runs:
            promise = record.facts.privacy
            text = "none"
            if promise is not None:
                text = f"epsilon = {promise.epsilon:.3g}, delta = {promise.delta:g}"
            promises[label] = text
    if len(set(promises.values())) < 2:
        return []
    listed = "; ".join(f"{label}: {text}" for label, text in promises.items())
    return [f"these methods promise different privacy, which costs accuracy ({listed})"]


def result(record: Record) -> Group:
    """A run's last evaluation: metrics over clients, every client, and notes."""
    last = record.evaluated[-1]
    clients = record.clients()
    evaluation = clients.evaluation
    models = _models(last, evaluation, read_final(record.folder))
    total = f" of {record.total}" if record.total else ""  # a loop of the user's own says none
    title = f"{record.title}: round {last.number}{total}, {score_title(record.facts.score)}"
    table = Table(title=markup(title))
    add_columns(table, "over clients")
    for model in models:
        add_columns(table, model.title, right=True)
    more = _client_columns(last, clients, read_final(record.folder))
    add_columns(table, *more, right=True)
    for key in last.metrics:
        if key in METRICS:
            cells = [_show_metric(m.metrics.get(key, math.nan), m.score, key) for m in models]
            table.add_row(METRICS[key].title, *cells)
    table.add_section()
    for k in _ends(models[0]):
        cells = [show_client(model.clients[k], model.score, model.bounds, k) for model in models]
        for column in more.values():
            cells.append(column[k])
        table.add_row(markup(shortened(clients.names[k])), *cells)
    return Group(table, *map(markup, _notes(record, clients, models[0])))


def _client_columns(last: RoundRecord, clients: ClientTable, final: Final) -> dict[str, list[str]]:
    """Return what is known of clients besides their scores, by the title of a column."""
    columns = {}
    if last.mixture:
        columns["mixture"] = [f"{last.mixture.get(name, math.nan):.3f}" for name in clients.names]
    if last.rates:
        rates = [f"{last.rates.get(name, math.nan):.2g}" for name in clients.names]
        columns["rate of descent"] = rates
    personal = clients.evaluation.personal
    if personal is not None and personal.partners is not None:
        columns["weight of partners"] = [f"{part:.2f}" for part in personal.partners.tolist()]
    if final.weights:
        count = len(clients.names)
        columns["largest weight"] = [_largest(final.weights, k) for k in range(count)]
    return columns


def _largest(weights: Mapping[str, Sequence[float | None]], k: int) -> str:
    """The kind of model that counts most in what a client predicts with."""
    own = {kind: value for kind, values in weights.items() if (value := values[k]) is not None}
    if not own:
        return "-"
    kind = max(own, key=lambda kind: own[kind])
    return f"{kind} {100 * own[kind]:.0f} %"


def weights_note(records: Sequence[Record]) -> str:
    """The kinds of models that clients mix, by their mean weights over clients; empty: one kind."""
    known: dict[str, list[float]] = {}
    for record in records:
        for kind, weights in read_final(record.folder).weights.items():
            known.setdefault(kind, []).extend(w for w in weights if w is not None)
    if not any(known.values()):
        return ""
    means = {kind: float(np.mean(weights)) for kind, weights in known.items()}
    ranked = sorted(means, key=lambda kind: -means[kind])
    parts = [f"{KINDS[kind]} {100 * means[kind]:.0f} %" for kind in ranked]
    return f"what clients predict with, by mean weight: {', '.join(parts)}"


def _models(last: RoundRecord, evaluation: Evaluation, final: Final) -> list[_Model]:
    """The columns: the global model, personal models, and further scores of the global model."""
    main, *further = evaluation.scores
    personal = evaluation.personal

    def model(title: str, score: str, metrics: dict[str, float], own: Evaluation) -> _Model:
        known = final.bounds if own is evaluation else final.personal
        values = own.scores[score].tolist()
        bounds = _bounds(known, score, values, evaluation.sizes)
        return _Model(title, score, metrics, values, bounds)

    several = personal is not None or bool(further)
    models = [model("global model" if several else "value", main, last.metrics, evaluation)]
    if personal is not None:
        models.append(model("personal model", main, last.personal, personal))
    for name in further:
        models.append(model(name, name, last.more.get(name, {}), evaluation))
    return models


def _show_metric(value: float, score: str, metric: str) -> str:
    if METRICS[metric].in_score_units or math.isnan(value):
        return show_score(value, score)
    return f"{value:.2f}"


def _bounds(
    known: Mapping[str, Bounds], score: str, values: list[float], sizes: Tensor
) -> Bounds | None:
    """The intervals of the clients' scores; those of an accuracy follow from the sizes."""
    if score in known or score != "accuracy":
        return known.get(score)
    low, high = [], []
    for value, size in zip(values, sizes.tolist(), strict=True):
        ends = (None, None) if math.isnan(value) else metrics.wilson(value, size)
        low.append(ends[0])
        high.append(ends[1])
    return Bounds(low=tuple(low), high=tuple(high), support=tuple(sizes.tolist()), unit="rows")


def _ends(model: _Model) -> list[int]:
    """The positions of the clients to show, the worst first: all, or the two ends."""
    ranked = worst_first(model.clients, model.score)[: _scored(model)]
    return ranked if len(ranked) <= ALL else [*ranked[:SHOWN], *ranked[-SHOWN:]]


def _scored(model: _Model) -> int:
    """Return the number of clients that have a score."""
    return len(model.clients) - sum(map(math.isnan, model.clients))


def _notes(record: Record, clients: ClientTable, model: _Model) -> list[str]:
    """Return notes on a run for the readers of its table."""
    notes = []
    final = read_final(record.folder)
    if model.bounds is not None:
        notes.append(
            f"[low, high]: 95 % confidence interval of a client's {model.score}, for new samples"
        )
    notes += _final_notes(final, clients.names, model)
    notes += _random_partition(record)
    if model.score == "r2-pooled" and model.metrics.get("mean", 0.0) < UNSTABLE:
        notes.append(
            "R^2 is far below 0, worse than a constant: training is unstable; lower client.lr, or "
            "set client.clip=1"
        )
    if sign_of(model.score) < 0:
        notes.append(f"{score_title(model.score)}: the worst is the highest")
    if record.facts.taken:
        parts = [f"{count} {name}" for name, count in record.facts.taken.items()]
        notes.append(f"what clients take: {', '.join(parts)}")
    kinds = weights_note([record])
    if kinds:
        notes.append(kinds)
    majority = record.facts.majority
    if majority is not None and model.score == "accuracy":
        notes.append(f"always predicting the most frequent class: {100 * majority:.1f} % right")
    if _scored(model) > ALL:
        table = record.folder / "clients.csv"
        where = f"; all clients: {table}" if table.exists() else ""
        notes.append(f"the {SHOWN} lowest and the {SHOWN} highest are shown{where}")
    notes += fallback_notes(record)
    unscored = record.facts.unscored
    if unscored is None:
        empty = (clients.evaluation.sizes == 0).nonzero().flatten()
        unscored = tuple(clients.names[k] for k in empty.tolist())
    if unscored:
        some = ", ".join(map(shortened, unscored[:SHOWN]))
        some += " ..." if len(unscored) > SHOWN else ""
        notes.append(f"without a score (not evaluated, no samples, or undefined for them): {some}")
    if record.evaluated[-1].mixture:
        notes.append("mixture: the clients' weights that the rule learnt, a mean over all rounds")
    notes += _descent_notes(record)
    notes += _chosen_notes(record, model.score)
    few = small_test_sets(clients, model.score)
    return [*notes, few] if few else notes


def _descent_notes(record: Record) -> list[str]:
    """Describe the descent of a rule that chooses a direction: |d_t| and rho_t (AdaFed, eq. 31)."""
    first, last = record.rounds[0].length, record.evaluated[-1].length
    if first is None or last is None:
        return []
    notes = [
        "rate of descent: <u_k, d> in this round, above 0 where the client's loss should fall",
        f"length of the direction |d|: {first:.2g} in the first round, {last:.2g} in this one",
    ]
    by_round = curves.improved_by_round(record.rounds)
    if by_round:
        mean = 100 * curves.improved(record.rounds)
        lowest = 100 * min(by_round.values())
        notes.append(
            f"training losses that did not rise (rho): {mean:.0f} % of the reports, {lowest:.0f} % "
            "in the worst round"
        )
    return notes


def _final_notes(final: Final, names: Sequence[str], model: _Model) -> list[str]:
    """Classes that are never predicted, the threshold, and clients with few positives or events."""
    notes = []
    if final.never_predicted:
        missing = ", ".join(map(repr, final.never_predicted[:SHOWN]))
        notes.append(
            f"never predicted by the global model: {missing}; class_weight=balanced, or for two "
            "classes threshold=f1 validation=0.2, may help"
        )
    threshold = final.threshold
    if threshold is not None:
        changes = []
        for name, after in threshold.after.items():
            changes.append(f"{name} {100 * threshold.before[name]:.1f} -> {100 * after:.1f} %")
        notes.append(
            f"threshold {threshold.value:.3g} instead of 0.5, the best {threshold.score} on "
            f"{threshold.samples} validation samples: {', '.join(changes)} (means over clients on "
            "test samples); predict and export use it"
        )
    if final.importance:
        shares = [f"{name} {100 * s:.0f} %" for name, s in list(final.importance.items())[:SHOWN]]
        notes.append(f"importance (gain of the splits by a column): {', '.join(shares)}")
    bounds = model.bounds
    if bounds is None or bounds.unit == "rows":
        return notes
    pairs = zip(bounds.support, names, strict=False)
    few = sorted((number, name) for number, name in pairs if number and number < FEW[bounds.unit])
    if few:
        notes.append(
            f"few {bounds.unit}: {len(few)} clients have fewer than {FEW[bounds.unit]} in their "
            f"test samples, {shortened(few[0][1])} has {few[0][0]:.0f}: their scores say little"
        )
    return notes


def _random_partition(record: Record) -> list[str]:
    """Return whether the clients of a table are no sites, but a partition."""
    partition = record.experiment.get("partition")
    if record.part("dataset") != "table" or not isinstance(partition, dict):
        return []
    return [
        "the clients are not sites: the rows of the table were divided at random "
        f"(partition {partition['name']})"
    ]


def fallback_notes(record: Record) -> list[str]:
    """In how many rounds another rule decided than the run's own, if it did."""
    fallbacks = [done.fallback for done in record.rounds if done.fallback]
    if not fallbacks:
        return []
    count = f"{len(fallbacks)} of {len(record.rounds)} rounds"
    return [f"weights of {fallbacks[0]} in {count}, since no losses were reported"]


def _chosen_notes(record: Record, score: str) -> list[str]:
    """The best round on validation samples, and the scores of clients held out of training."""
    notes = []
    best = record.best
    monitor = str(record.experiment.get("monitor", "mean"))
    if best is not None:
        reached = show_score(best.validation[monitor], score)
        notes.append(f"best on validation samples: round {best.number}, {monitor} {reached}")
    table = record.unseen()
    if table is not None:
        notes.append(unseen_sentence(table.evaluation, score))
    return notes


def unseen_sentence(evaluation: Evaluation, score: str) -> str:
    """Describe the scores of clients that took no part, and a lower bound for new clients."""
    values = evaluation.score[evaluation.scored]
    lower = sign_of(score) < 0
    mean = show_score(float(values.mean()), score)
    share, floor = metrics.dkw_floor(values, lower_is_better=lower)
    bound = "at most" if lower else "at least"
    return (
        f"{len(values)} clients never seen in training: mean {mean}; with 95 % confidence at least "
        f"{100 * share:.0f} % of new clients get {bound} {show_score(floor, score)}"
    )


def small_test_sets(clients: ClientTable, score: str) -> str:
    """A sentence about clients with few test samples, where a score counts samples; else empty."""
    if score not in ("accuracy", "top-5", "balanced-accuracy", "f1"):
        return ""
    sizes = clients.evaluation.sizes
    small = (sizes > 0) & (sizes < FEW_SAMPLES)
    if not small.any():
        return ""
    least = int(sizes.where(small, math.inf).argmin())
    samples = int(sizes[least])
    return (
        f"few test samples: {int(small.sum())} clients have fewer than {FEW_SAMPLES}; "
        f"{shortened(clients.names[least])} has {counted(samples, 'test sample')}: one sample is "
        f"{100 / samples:.0f} points"
    )


def choices(curve: Curve, score: str) -> Table:
    """Describe the scores of each choice between the global and the personal model."""
    table = Table(title=f"{score} over {len(curve.names)} clients")
    add_columns(table, "mixing coefficient m, global (0) to personal model (1)")
    add_columns(table, "mean", "worst", right=True)
    lower = sign_of(score) < 0
    for label, values in curve.chosen().items():
        mean = show_score(float(values.mean()), score)
        worst = show_score(metrics.worst(values, lower_is_better=lower), score)
        table.add_row(label, mean, worst)
    barriers = curve.barriers()
    table.caption = (
        "validation: the best m on a client's validation samples, or on one half of its test "
        "samples for the other half; oracle: the best m on the samples that are scored, as is the "
        "best common m\nloss barrier (the loss above the straight line between the two models): "
        f"mean {float(barriers.mean()):.3g}, highest {float(barriers.max()):.3g}"
    )
    return table
