"""Helpers for tests of rules: reports from a few numbers, and short runs on the vowel data."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

import commonweal
from commonweal.base.tensors import State
from commonweal.rules import Decision, FedAvg, Reports, Rule

Numbers = Sequence[float] | Tensor
Table = Sequence[Sequence[float]] | Tensor

# Appendix B.1 of AAggFF, written a second time.
ORACLE_CDFS: dict[str, Callable[[float], float]] = {
    "weibull": lambda x: 1 - math.exp(-(x**2)),
    "frechet": lambda x: math.exp(-1 / x),
    "gumbel": lambda x: math.exp(-math.exp(-(x - 1))),
    "exponential": lambda x: 1 - math.exp(-x),
    "logistic": lambda x: 1 / (1 + math.exp(-(x - 1))),
    "normal": lambda x: 0.5 * (1 + math.erf((x - 1) / math.sqrt(2))),
    "clipped": lambda x: min(x, 2) / 2,
    "subtracted": lambda x: math.log(3 / max(3 - x, 0.2)) / math.log(15),
}


def _floats(values: Numbers | Table) -> Tensor:
    return torch.as_tensor(values, dtype=torch.float64)


def reports(
    losses: Numbers,
    sizes: Numbers | None = None,
    updates: Table | None = None,
    ids: Sequence[int] | None = None,
    clients: int | None = None,
    scores: Numbers | None = None,
    after: Numbers | None = None,
) -> Reports:
    """A round in float64. What is not given is equal for all clients."""
    s = len(losses)
    return Reports(
        ids=torch.arange(s) if ids is None else torch.tensor(ids),
        sizes=torch.ones(s, dtype=torch.float64) if sizes is None else _floats(sizes),
        losses=_floats(losses),
        clients=s if clients is None else clients,
        scores=_floats([0.5] * s if scores is None else scores),
        updates=torch.zeros(s, 2, dtype=torch.float64) if updates is None else _floats(updates),
        losses_after=None if after is None else _floats(after),
    )


def weigh(rule: Rule, told: Reports, state: State | None = None) -> Tensor:
    """The weights of one round, from the initial state if none is given."""
    return rule(told, rule.init(told.clients) if state is None else state).weights


def decide(rule: Rule, told: Reports) -> Decision:
    """The decision on a first round."""
    return rule(told, rule.init(told.clients))


def play(rule: Rule, told: Reports, state: State) -> tuple[Tensor, State]:
    """The weights and the next state."""
    decision = rule(told, state)
    return decision.weights, decision.state


def warnings(rule: Rule, told: Reports) -> tuple[str, ...]:
    return rule(told, rule.init(told.clients)).warnings


def updates_of(told: Reports) -> Tensor:
    assert told.updates is not None
    return told.updates


def build(name: str, **parameters: object) -> Rule:
    """A rule of the catalog; combinators wrap FedAvg."""
    if name in ("excess", "grouped", "guarded"):
        parameters.setdefault("rule", FedAvg())
    return commonweal.rule(name, **parameters)


def decision_loss(p: Tensor, r: Tensor) -> Tensor:
    """What the decision p costs under the response r (AAggFF, eq. 4)."""
    return -torch.log(1 + (p * r).sum())


def uniforms(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, dtype=torch.float64, generator=generator)


def normals(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def vowel(rule: str | dict[str, object], rounds: int = 3, **more: object) -> list[commonweal.Round]:
    """A short run on the data that ships with the package."""
    return list(commonweal.run(vowel_experiment(rule, rounds=rounds, **more)))


def vowel_experiment(rule: str | dict[str, object], **more: object) -> commonweal.Experiment:
    return commonweal.Experiment(dataset="vowel", rule=rule, **more)
