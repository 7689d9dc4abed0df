"""Comparisons made of numbers, without training."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from commonweal.record.record import Record
from commonweal.study.comparison import Comparison
from commonweal.study.judging import Contrast, Judgement, judge
from commonweal.study.results import Result, result_of

CLIENTS = ("a", "b", "c")


def made(
    label: str,
    scores: Sequence[Sequence[float]],
    lower: bool = False,
    names: Sequence[str] = CLIENTS,
    sizes: Sequence[int] | None = None,
) -> Result:
    """A result from a line of scores per seed."""
    rows = dict(zip(names, sizes or [10] * len(names), strict=True))
    seeds = [dict(zip(names, line, strict=True)) for line in scores]
    return result_of(label, seeds, [rows] * len(seeds), lower)


def judged(
    gains: Mapping[str, Sequence[float]],
    names: Sequence[str] = CLIENTS,
    samples: int = 60,
    picked: str | None = None,
) -> Judgement:
    """A judgement on samples whose differences have these means by method and client."""
    differences: dict[str, dict[str, NDArray[np.float64]]] = {}
    for method, means in gains.items():
        differences[method] = {}
        for name, mean in zip(names, means, strict=True):
            noise = 0.05 * np.resize([1.0, -1.0, 0.3, -0.3], samples)
            differences[method][name] = mean + noise
    return judge(differences, picked=picked)


def compared(
    results: Sequence[Result],
    baselines: Sequence[Result] = (),
    score: str = "accuracy",
    judgement: Judgement | None = None,
    contrasts: Mapping[str, dict[str, Contrast]] | None = None,
    records: Mapping[str, list[Record]] | None = None,
    global_models: Sequence[Result] = (),
    best: Mapping[str, str] | None = None,
    failures: Sequence[str] = (),
) -> Comparison:
    """A comparison of these results."""
    return Comparison(
        score=score,
        results=list(results),
        global_models=list(global_models),
        baselines=list(baselines),
        failures=list(failures),
        records=dict(records or {}),
        judgement=judgement,
        contrasts=dict(contrasts or {}),
        samples=dict.fromkeys(results[0].clients, 10),
        best=dict(best or {}),
    )
