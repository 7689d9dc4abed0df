"""What the rules' tests share: a cohort's reports from a few numbers, and short runs on the vowel data."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import commonweal
from commonweal.rule import Reports, Rule, State
from commonweal.run import Round

Numbers = Sequence[float] | Tensor

# Table 1 of AAggFF, written anew.
ORACLE_CDFS: dict[str, Callable[[float], float]] = {
    "weibull": lambda x: 1 - math.exp(-(x**2)),
    "frechet": lambda x: math.exp(-1 / x),
    "gumbel": lambda x: math.exp(-math.exp(-(x - 1))),
    "exponential": lambda x: 1 - math.exp(-x),
    "logistic": lambda x: 1 / (1 + math.exp(-(x - 1))),
    "normal": lambda x: 0.5 * (1 + math.erf((x - 1) / math.sqrt(2))),
}


def _floats(values: Numbers) -> Tensor:
    return torch.as_tensor(values, dtype=torch.float64)


def reports(
    losses: Numbers,
    sizes: Numbers | None = None,
    updates: Any = None,
    ids: Sequence[int] | None = None,
    clients: int | None = None,
    scores: Numbers | None = None,
    after: Numbers | None = None,
) -> Reports:
    """A round in float64; what is not given is all alike."""
    s = len(losses)
    return Reports(
        ids=torch.arange(s) if ids is None else torch.tensor(ids),
        sizes=torch.ones(s, dtype=torch.float64) if sizes is None else _floats(sizes),
        losses=_floats(losses),
        scores=torch.full((s,), 0.5, dtype=torch.float64) if scores is None else _floats(scores),
        updates=torch.zeros(s, 2, dtype=torch.float64) if updates is None else _floats(updates),
        clients=s if clients is None else clients,
        after=None if after is None else _floats(after),
    )


def weigh(rule: Rule, told: Reports, state: State | None = None) -> Tensor:
    """The weights of one round, from the start if no state is given."""
    return rule(told, rule.init(told.clients) if state is None else state)[0]


def uniforms(seed: int, *shape: int) -> Tensor:
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def normals(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def vowel(rule: Any, rounds: int = 3, **more: Any) -> list[Round]:
    """A short run on the data that ships with the package."""
    experiment = commonweal.Experiment(dataset="vowel", rule=rule, rounds=rounds, **more)
    return list(commonweal.run(experiment))
