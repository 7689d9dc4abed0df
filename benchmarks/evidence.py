"""How often `judge` says what is not so, and how often it finds what is so.

Simulated clients have samples of which every model knows a feature of its own: thresholds, nearest
centroids and lines are fitted on four folds and tested on the fifth, as in runs. Where all features
tell equally much, no method is better than local training. Shares of comparisons, in per cent:

    helps        the headline says "helps", but no method does (at most 5)
    named        a client is named that gains or loses nothing (at most 5)
    not helps    the headline says "does not help", but all methods gain what is worth having (5)
    found        the headline says "helps", and the methods' feature tells more
    t            the same by a plain t test of the first method's samples in a single client

    python benchmarks/evidence.py                # minutes
    python benchmarks/evidence.py --real         # local training against itself, on real data

With --real every federation's local models are trained with several seeds on the same folds, and
each training is compared with each other one: "helps" and "named" are wrong then, too.
COMMONWEAL_DATA adds the federations of better_off.py. Two kinds of federations show a limit: those
with test = 0.8, where few samples are left for training and most are tested by every seed, and
regressions, in which the models of five seeds are too few to tell a client's luck exactly.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise, permutations, product
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from better_off import MLP, federations
from commonweal.config.experiment import Experiment
from commonweal.jobs.rounds import run
from commonweal.record.record import Record
from commonweal.study.judging import Judgement, judge
from commonweal.study.samples import differences, inflation
from commonweal.study.verdict import worth_having
from commonweal.task.sample_scores import sample_scores
from commonweal.task.scores import find_score

Array: TypeAlias = NDArray[np.float64]

FOLDS = 5
CLASSES = 5
NOISE = 1.25  # of the features: a threshold is right in 79 % of cases
CLEAR = 0.55  # and here in 97 %
LARGE = 0.15  # by how much less noise the methods' features have, where they are better
SCORES = {
    "binary": "accuracy",
    "clear": "accuracy",
    "classes": "accuracy",
    "error": "mae",
    "r2": "r2-pooled",
}
SCORES |= {"auroc": "auroc", "f1": "f1", "concordance": "concordance"}


class Case(NamedTuple):
    """A kind of comparison."""

    kind: str
    sizes: tuple[int, ...]  # samples of each client
    methods: int = 1
    seeds: int = 5  # 10: two repetitions
    picked: bool = False  # the first method was chosen beforehand


class Rates(NamedTuple):
    """Shares of comparisons, in per cent."""

    helps: float
    named: float
    not_helps: float
    found: float
    t: float


def rates(case: Case, trials: int, seed: int = 0) -> Rates:
    """Simulate comparisons of a case: without a gain, with one worth having, with a larger one."""
    nothing = simulate(case, 0.0, trials, seed)
    worth = 0.02 * nothing.local if case.kind == "error" else 0.01
    small = [_raised(table, worth, seed + k) for k, table in enumerate(nothing.tables)]
    large = simulate(case, LARGE, trials, seed + 1)
    null = list(_judged(case, nothing.tables, worth))
    first = large.tables[0][:, 0]
    p = stats.ttest_1samp(first, 0, axis=1).pvalue if first.any() else np.ones(1)

    def share(values: Sequence[bool]) -> float:
        return 100 * float(np.mean(values))

    return Rates(
        share([judgement.says == "helps" for judgement in null]),
        share([_names(judgement) for judgement in null]),
        share([j.says == "does not help" for j in _judged(case, small, worth)]),
        share([j.says == "helps" for j in _judged(case, large.tables, worth)]),
        share((np.nan_to_num(p, nan=1.0) < 0.05) & (first.mean(1) > 0)),
    )


def _names(judgement: Judgement) -> bool:
    return any(judgement.better.values()) or any(judgement.worse.values())


def _judged(case: Case, tables: Sequence[Array], worth: float) -> Iterator[Judgement]:
    """The judgement of every trial, of the differences by client (trials, methods, samples)."""
    picked = "m0" if case.picked else None
    for trial in range(len(tables[0])):
        differences = {}
        for method in range(case.methods):
            own = {f"c{k}": table[trial, method] for k, table in enumerate(tables)}
            differences[f"m{method}"] = own
        yield judge(differences, picked=picked, worth=worth)


def _raised(table: Array, gain: float, seed: int) -> Array:
    """Differences with a larger mean; those that are -1, 0 or 1 stay so."""
    if not np.isin(table, (-1, -0.5, 0, 0.5, 1)).all():
        return table + gain
    rng = np.random.default_rng(seed)
    can_rise = table < 1
    room = np.where(can_rise, 1 - table, 0).mean()
    rises = can_rise & (rng.random(table.shape) < gain / room)
    return np.where(rises, 1.0, table)


# Simulation


class Simulated(NamedTuple):
    """Differences from local training by client (trials, methods, samples)."""

    tables: list[Array]
    local: float  # the mean score of local training


def simulate(case: Case, effect: float, trials: int, seed: int) -> Simulated:
    """Samples of all clients, scored by local training and by the methods.

    effect: by how much less noise the methods' features have
    """
    rng = np.random.default_rng([seed, len(case.sizes), case.methods, sum(case.sizes)])
    sign = -1.0 if find_score(SCORES[case.kind]).lower_is_better else 1.0
    tables, local = [], []
    for size in case.sizes:
        scores = np.mean(list(_repetitions(case, size, effect, trials, rng)), axis=0)
        tables.append(sign * (scores[:, 1:] - scores[:, :1]))
        local.append(np.nanmean(scores[:, 0]))
    return Simulated(tables, float(np.mean(local)))


def _repetitions(
    case: Case, size: int, effect: float, trials: int, rng: np.random.Generator
) -> Iterator[Array]:
    """The scores (trials, models, samples) of one client in every repetition."""
    models = 1 + case.methods
    noise = (CLEAR if case.kind == "clear" else NOISE) * np.where(
        np.arange(models) > 0, 1 - effect, 1.0
    )[:, None]
    y, signal = _labels(case.kind, trials, size, rng)
    error = rng.normal(size=(trials, models, size, *signal.shape[2:]))
    x = signal[:, None] + noise.reshape(-1, *[1] * (error.ndim - 2)) * error
    for _ in range(case.seeds // FOLDS):
        order = _fold_order(y, rng, case.kind in ("error", "r2", "concordance"))
        rows = np.arange(trials)[:, None]
        labels, features = (
            y[rows, order],
            x[rows[:, :, None], np.arange(models)[:, None], order[:, None]],
        )
        scored = _cross_validated(case.kind, features, labels)
        result = np.empty_like(scored)
        np.put_along_axis(result, order[:, None].repeat(models, 1), scored, 2)
        yield result


def _labels(kind: str, trials: int, size: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """The labels (trials, rows), and what features tell of them."""
    if kind in ("binary", "clear", "auroc", "f1"):
        share = 0.5 if kind in ("binary", "clear") else 0.3
        y = (rng.random((trials, size)) < share).astype(float)
        return y, 2 * y - 1
    if kind == "classes":
        y = rng.integers(0, CLASSES, (trials, size))
        centres = 1.5 * rng.normal(size=(trials, CLASSES, 3))
        return y.astype(float), centres[np.arange(trials)[:, None], y]
    z = rng.normal(size=(trials, size))
    return z + 0.5 * rng.standard_t(3, size=(trials, size)), z


def _fold_order(y: Array, rng: np.random.Generator, is_regression: bool) -> NDArray[np.int64]:
    """An order of the rows in which every fifth part is a fold, stratified by class."""
    draws = rng.random(y.shape)
    ranked = np.argsort(draws if is_regression else y + draws, axis=1)
    folds = np.argsort(np.arange(y.shape[1]) % FOLDS, kind="stable")
    return ranked[:, folds]


def _cross_validated(kind: str, x: Array, y: Array) -> Array:
    """The scores of samples (trials, models, rows), each by a model of the other folds."""
    sizes = np.bincount(np.arange(x.shape[2]) % FOLDS, minlength=FOLDS)
    bounds = np.concatenate([[0], sizes.cumsum()])
    scores = np.full(x.shape[:3], np.nan)
    for a, b in pairwise(bounds.tolist()):
        if a == b:
            continue
        is_train = np.ones(x.shape[2], dtype=bool)
        is_train[a:b] = False
        scores[:, :, a:b] = _scored(kind, x, y, is_train)
    return scores


def _scored(kind: str, x: Array, y: Array, is_train: NDArray[np.bool_]) -> Array:
    """The scores of the test samples (trials, models, rows) by models of the training samples."""
    own, test = x[:, :, is_train], x[:, :, ~is_train]
    labels, true = y[:, None, is_train], y[:, None, ~is_train]
    if kind == "classes":
        distances = []
        for label in range(CLASSES):
            mask = (labels == label)[..., None]
            centre = (own * mask).sum(2) / np.maximum(mask.sum(2), 1)
            distances.append(np.square(test - centre[:, :, None]).sum(-1))
        return np.asarray(np.argmin(distances, axis=0) == true, dtype=np.float64)
    if kind in ("error", "r2", "concordance"):
        mean, middle = own.mean(2, keepdims=True), labels.mean(2, keepdims=True)
        covariance = ((own - mean) * (labels - middle)).mean(2, keepdims=True)
        slope = covariance / np.square(own - mean).mean(2, keepdims=True).clip(1e-9)
        outputs = middle + slope * (test - mean)
        if kind == "error":
            return np.asarray(np.abs(outputs - true))
        if kind == "r2":
            return np.asarray(1 - np.square(outputs - true) / 2.0)
        event = np.ones_like(outputs)
        return _pseudo("concordance", [-outputs, true + 0 * outputs, event])
    means = [(own * (labels == k)).sum(2) / np.maximum((labels == k).sum(2), 1) for k in (0, 1)]
    direction = np.where(means[1] >= means[0], 1.0, -1.0)[..., None]
    margin = direction * (test - ((means[0] + means[1]) / 2)[..., None])
    if kind in ("binary", "clear"):
        return np.asarray((margin > 0) == (true > 0), dtype=np.float64)
    if kind == "f1":
        return _pseudo("f1", [(margin > 0) * 1.0, true + 0 * margin, np.full_like(margin, 2.0)])
    return _pseudo("auroc", [margin, true + 0 * margin])


def _pseudo(name: str, columns: Sequence[Array]) -> Array:
    """The pseudo-values of a score, where every trial and model is a client."""
    shape = columns[0].shape
    statistics = torch.from_numpy(np.stack(columns, -1).reshape(-1, len(columns)))
    offsets = torch.arange(shape[0] * shape[1] + 1) * shape[2]
    values = find_score(name).reduce(statistics, offsets)
    scores = sample_scores(name, statistics, offsets, values, None)
    assert scores is not None
    return scores.numpy().reshape(shape)


# Tables

SIZES = {
    "4 x 10": (10,) * 4,
    "17, 10 to 500": tuple(np.geomspace(10, 500, 17).astype(int).tolist()),
    "60 x 20": (20,) * 60,
    "8 x 100": (100,) * 8,
    "1 x 500": (500,),
}


def cases() -> Iterator[tuple[str, Case]]:
    for kind, (name, sizes) in product(SCORES, SIZES.items()):
        if kind == "concordance" and name != "8 x 100":
            continue
        yield name, Case(kind, sizes)
    for size in (20, 50, 100, 300):
        yield f"1 x {size}", Case("binary", (size,))
    for methods, seeds in ((3, 5), (6, 5), (1, 10), (3, 10)):
        for kind in ("binary", "error", "auroc"):
            yield "17, 10 to 500", Case(kind, SIZES["17, 10 to 500"], methods, seeds)
    yield "49 x 40", Case("binary", (40,) * 49, 5)
    yield "17, 10 to 500", Case("binary", SIZES["17, 10 to 500"], 5, picked=True)


# Real data

BUILT_IN: dict[str, dict[str, object]] = {
    "students": {"dataset": "students"},
    "vowels": {"dataset": "vowel"},
    "digits, 20 clients": {
        "dataset": "digits",
        "partition": {"name": "dirichlet", "clients": 20, "alpha": 0.5},
    },
    "synthetic": {"dataset": {"name": "synthetic", "clients": 20}},
}


def real(rounds: int, trainings: int) -> None:
    """Print how often local training is better than local training with another seed."""
    print("| federation | comparisons | helps | named | largest mean gain |")
    print("|---|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as folder:
        known = BUILT_IN | federations(Path(folder))
        for name, settings in known.items():
            own = [_trained(settings, rounds, k) for k in range(trainings)]
            helps, named, largest = [], [], 0.0
            for first, second in permutations(own, 2):
                score = first[0].facts.score
                local = float(np.mean([record.evaluated[-1].personal["mean"] for record in first]))
                table = differences(first, {"again": second})
                factors = inflation(first, {"again": second})
                worth = worth_having(score, local)
                judgement = judge(table, picked="again", worth=worth, inflation=factors)
                helps.append(judgement.says == "helps")
                named.append(_names(judgement))
                largest = max(largest, judgement.gain)
            shares = f"{100 * np.mean(helps):.1f} | {100 * np.mean(named):.1f}"
            print(f"| {name} | {len(helps)} | {shares} | {largest:+.4f} |", flush=True)


def _trained(settings: dict[str, object], rounds: int, training: int) -> list[Record]:
    """Local models on every fold; another training has other initial values and batches."""
    dataset = settings["dataset"]
    table = dict(dataset) if isinstance(dataset, dict) else {"name": dataset}
    records = []
    for fold in range(FOLDS):
        values = {"model": MLP, **settings, "rounds": rounds, "evaluate_every": rounds}
        values |= {"dataset": table | {"seed": fold}, "seed": 100 * training + fold}
        values |= {"client": {"name": "alone", "batch": 10, "lr": 0.1}}
        records.append(run(Experiment(**values)).result())
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--only", default="", help="a kind of score")
    parser.add_argument("--real", action="store_true", help="real federations instead")
    parser.add_argument("--rounds", type=int, default=10, help="of local training, with --real")
    parser.add_argument("--trainings", type=int, default=5, help="of a federation, with --real")
    given = parser.parse_args()
    if given.real:
        real(given.rounds, given.trainings)
        return
    titles = ("score", "samples of clients", "methods", "seeds", "picked", *Rates._fields)
    print(f"| {' | '.join(titles)} |")
    print("|---|---|--:|--:|---|" + "--:|" * len(Rates._fields))
    for name, case in cases():
        if given.only in ("", case.kind):
            begin = time.time()
            found = [f"{value:.1f}" for value in rates(case, given.trials)]
            picked = "yes" if case.picked else ""
            facts = [case.kind, name, str(case.methods), str(case.seeds), picked, *found]
            print("| " + " | ".join(facts) + f" | {time.time() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
