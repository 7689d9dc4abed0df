"""What every rule promises, run on whatever the rules' folder holds: a new file is tested before its author writes one.

A rule that cannot be built from its defaults says in EXTRA with what; one whose weights are not mixing coefficients is
named in NOT_MIXING; further settings worth the same tests stand in VARIANTS.
"""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

import commonweal
from commonweal import catalog
from commonweal.rule import Reports, Rule, State
from commonweal.store import flatten, unflatten

# Parameters of rules that need some outside an experiment: qfedavg's lipschitz, which an experiment takes from the lr.
EXTRA: dict[str, dict[str, Any]] = {"qfedavg": {"lipschitz": 10.0}}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *(("aaggff-s", {"cdf": cdf}) for cdf in ("weibull", "frechet", "gumbel", "exponential", "logistic")),
    ("aaggff-s", {"variant": "reference", "cdf": "frechet"}),
    ("aaggff-s", {"variant": "reference", "cdf": "normal"}),
    ("aaggff-s", {"beta": 0.5}),
]
# Weights that may be negative, or sum to other than one.
NOT_MIXING = {"qfedavg", "adafed", "vred", "semi-vred", "gifair", "fedmgda+"}
# These wrap a rule and promise what it promises; their own tests build them.
COMBINATORS = {"grouped", "guarded"}

CASES = [(name, EXTRA.get(name, {})) for name in catalog.entries("rules") if name not in COMBINATORS]
CASES += [(name, EXTRA.get(name, {}) | parameters) for name, parameters in VARIANTS]
# The authors' normal CDF falls with the loss: kept as it is published, and the one case that is not fair.
INVERTED = ("aaggff-s", {"variant": "reference", "cdf": "normal"})


def named(case: tuple[str, dict[str, Any]]) -> str:
    return "-".join([case[0], *(str(v) for v in case[1].values())])


every = pytest.mark.parametrize("case", CASES, ids=named)
mixing = pytest.mark.parametrize("case", [c for c in CASES if c[0] not in NOT_MIXING], ids=named)
fair = pytest.mark.parametrize("case", [c for c in CASES if c[0] not in NOT_MIXING and c != INVERTED], ids=named)
seeds = pytest.mark.parametrize("seed", range(4))


def build(case: tuple[str, dict[str, Any]]) -> Rule:
    rule: Rule = commonweal.rule(case[0], **case[1])
    return rule


def draw(seed: int, size: int, clients: int, dtype: torch.dtype = torch.float32) -> Reports:
    """An ordinary round: a cohort in no order, losses between 0.1 and 3, updates that half agree."""
    g = torch.Generator().manual_seed(seed)
    losses = 0.1 + 2.9 * torch.rand(size, generator=g)
    updates = torch.randn(size, 8, generator=g) + 0.5
    return Reports(
        ids=torch.randperm(clients, generator=g)[:size],
        sizes=torch.randint(1, 200, (size,), generator=g),
        losses=losses.to(dtype),
        scores=torch.rand(size, generator=g).to(dtype),
        updates=updates.to(dtype),
        clients=clients,
        after=(0.8 * losses).to(dtype),
    )


def rounds(seed: int, clients: int, count: int = 4) -> Iterator[Reports]:
    for t in range(count):
        yield draw(1000 * (seed + 1) + t, 1 + (seed + t) % clients, clients)


def experienced(rule: Rule, seed: int, clients: int) -> State:
    """What the rule remembers after a few rounds of changing cohorts."""
    state = rule.init(clients)
    for reports in rounds(seed, clients):
        _, state = rule(reports, state)
    return state


def tensors(reports: Reports) -> dict[str, Tensor]:
    """What was reported, without what is derived from it on demand."""
    values = {field.name: getattr(reports, field.name) for field in fields(reports)}
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def copied(reports: Reports) -> Reports:
    return replace(reports, **{name: value.clone() for name, value in tensors(reports).items()})


def permuted(reports: Reports, order: Tensor) -> Reports:
    return replace(reports, **{name: value[order] for name, value in tensors(reports).items()})


def usable(weights: Tensor, size: int) -> bool:
    return weights.shape == (size,) and weights.is_floating_point() and bool(torch.isfinite(weights).all())


def test_every_file_in_the_folder_is_a_case() -> None:
    folder = Path(commonweal.__file__).parent / "rules"
    files = {file.stem for file in folder.glob("*.py") if not file.name.startswith("_")}
    assert {
        catalog.find("rules", name).factory.__module__.rpartition(".")[2] for name, _ in CASES
    } == files - COMBINATORS


def test_every_exception_is_of_a_known_kind() -> None:
    assert INVERTED in CASES
    assert len({named(case) for case in CASES}) == len(CASES)


@every
def test_a_rule_is_frozen(case: tuple[str, dict[str, Any]]) -> None:
    rule = build(case)
    assert is_dataclass(rule)
    with pytest.raises(AttributeError):
        rule.anything = 1  # type: ignore[attr-defined]
    assert rule == build(case)
    assert hash(rule) == hash(build(case))


@every
def test_state_is_a_dict_of_tensors(case: tuple[str, dict[str, Any]]) -> None:
    rule = build(case)
    for state in (rule.init(5), experienced(rule, 0, 5)):
        assert type(state) is dict
        assert all(isinstance(name, str) and isinstance(value, Tensor) for name, value in state.items())


@every
@seeds
def test_weights_are_finite_and_in_the_cohorts_shape(case: tuple[str, dict[str, Any]], seed: int) -> None:
    rule, state = build(case), build(case).init(6)
    for reports in rounds(seed, 6):
        weights, state = rule(reports, state)
        assert usable(weights, len(reports.ids))
        assert not weights.requires_grad


@every
@seeds
def test_same_reports_and_state_give_the_same_bits(case: tuple[str, dict[str, Any]], seed: int) -> None:
    rule = build(case)
    state, reports = experienced(rule, seed, 5), draw(seed, 4, 5)
    first, second = rule(reports, state), build(case)(copied(reports), state)
    assert torch.equal(first[0], second[0])
    assert all(torch.equal(first[1][name], second[1][name]) for name in first[1] | second[1])


@every
@seeds
def test_neither_reports_nor_state_are_changed(case: tuple[str, dict[str, Any]], seed: int) -> None:
    rule = build(case)
    state, reports = experienced(rule, seed, 5), draw(seed, 3, 5)
    names = list(state)
    state_before = {name: value.clone() for name, value in state.items()}
    reports_before = copied(reports)
    _, new = rule(reports, state)
    assert list(state) == names
    assert all(torch.equal(state[name], state_before[name]) for name in names)
    assert all(torch.equal(value, getattr(reports, name)) for name, value in tensors(reports_before).items())
    # Nor later, through memory that the new state shares with the reports.
    kept = {name: value.clone() for name, value in new.items()}
    for value in (reports.losses, reports.sizes, reports.updates, reports.scores):
        value.zero_()
    assert all(torch.equal(new[name], kept[name]) for name in new)


@every
@seeds
def test_permuting_the_cohort_permutes_the_weights(case: tuple[str, dict[str, Any]], seed: int) -> None:
    rule = build(case)
    for state in (rule.init(6), experienced(rule, seed, 6)):
        reports = draw(seed, 5, 6)
        order = torch.randperm(5, generator=torch.Generator().manual_seed(seed + 7))
        (weights, after), (other, other_after) = rule(reports, state), rule(permuted(reports, order), state)
        torch.testing.assert_close(other, weights[order], rtol=1e-7, atol=1e-9)
        # And the next round cannot tell.
        following = draw(seed + 1, 4, 6)
        torch.testing.assert_close(rule(following, other_after)[0], rule(following, after)[0], rtol=1e-7, atol=1e-9)


@every
@seeds
def test_identical_clients_get_equal_weights(case: tuple[str, dict[str, Any]], seed: int) -> None:
    rule, state = build(case), build(case).init(5)
    for t in range(4):
        reports = draw(seed + 100 * t, 5, 5)
        by_id = permuted(reports, torch.argsort(reports.ids))
        twins = permuted(by_id, torch.tensor([0, 1, 2, 3, 1]))  # client 4 reports what client 1 does
        twins = replace(twins, ids=torch.arange(5))
        weights, state = rule(twins, state)
        assert weights[4].item() == pytest.approx(weights[1].item(), rel=1e-7, abs=1e-9)


@every
def test_everyone_alike_counts_alike(case: tuple[str, dict[str, Any]]) -> None:
    one = torch.ones(4)
    reports = Reports(torch.arange(4), 10 * one, 0.7 * one, 0.5 * one, torch.ones(4, 3), 4, 0.6 * one)
    rule, state = build(case), build(case).init(4)
    for _ in range(3):
        weights, state = rule(reports, state)
        assert (weights - weights[0]).abs().max() < 1e-9
        assert weights[0] > 0


@every
@seeds
def test_one_reporter_alone_gets_a_positive_weight(case: tuple[str, dict[str, Any]], seed: int) -> None:
    rule = build(case)
    for clients in (1, 4):
        for state in (rule.init(clients), experienced(rule, seed, clients)):
            weights, _ = rule(draw(seed, 1, clients), state)
            assert usable(weights, 1)
            assert weights[0] > 0


@every
@seeds
def test_float32_and_float64_reports_agree(case: tuple[str, dict[str, Any]], seed: int) -> None:
    rule = build(case)
    state = experienced(rule, seed, 5)
    single, double = (rule(draw(seed, 4, 5, dtype), state)[0] for dtype in (torch.float32, torch.float64))
    torch.testing.assert_close(single.double(), double.double(), rtol=1e-5, atol=1e-6)


def hard_cases() -> dict[str, Reports]:
    ordinary = draw(0, 5, 5)
    one, zero = torch.ones(5), torch.zeros(5)
    return {
        "equal losses": replace(ordinary, losses=one, after=one),
        "zero losses": replace(ordinary, losses=zero, after=zero),
        "one zero loss": replace(ordinary, losses=torch.tensor([0.0, 1.0, 2.0, 0.5, 0.1])),
        "one loss of 1e4": replace(ordinary, losses=torch.tensor([1e4, 1.0, 2.0, 0.5, 0.1])),
        "losses of 1e-30": replace(ordinary, losses=1e-30 * ordinary.losses, after=1e-30 * ordinary.losses),
        "zero updates": replace(ordinary, updates=torch.zeros(5, 8)),
        "one zero update": replace(ordinary, updates=ordinary.updates * torch.tensor([[0.0], [1], [1], [1], [1]])),
        "equal updates": replace(ordinary, updates=torch.ones(5, 8)),
        "opposite updates": replace(ordinary, updates=torch.tensor([[1.0], [-1], [1], [-1], [1]]).repeat(1, 8)),
        "more clients than parameters": replace(ordinary, updates=ordinary.updates[:, :2]),
        "scores of zero": replace(ordinary, scores=zero),
        "scores of one": replace(ordinary, scores=one),
        "1e9 rows beside 1": replace(ordinary, sizes=torch.tensor([10**9, 1, 1, 1, 1])),
        "everyone": draw(1, 5, 5),
        "one of one": draw(1, 1, 1),
        "one of a thousand": draw(1, 1, 1000),
    }


@every
@pytest.mark.parametrize("hard", hard_cases())
def test_hard_cases_are_finite_and_so_is_what_follows(case: tuple[str, dict[str, Any]], hard: str) -> None:
    rule, reports = build(case), hard_cases()[hard]
    if reports.clients > 100 and "curvature" in rule.init(2):
        reports = replace(reports, ids=torch.tensor([3]), clients=20)  # a (K, K) state is for silos
    state = rule.init(reports.clients)
    for _ in range(2):
        weights, state = rule(reports, state)
        assert usable(weights, len(reports.ids))
        assert all(torch.isfinite(value).all() for value in state.values())
    assert usable(rule(draw(3, 1, reports.clients), state)[0], 1)


@every
@seeds
def test_state_survives_a_file_bit_for_bit(case: tuple[str, dict[str, Any]], seed: int) -> None:
    rule = build(case)
    state = experienced(rule, seed, 5)
    data = safetensors.torch.save({n: v.clone().contiguous() for n, v in flatten({"rule": state}).items()})
    back = unflatten(safetensors.torch.load(data)).get("rule", {})
    assert back.keys() == state.keys()
    assert all(torch.equal(back[n], state[n]) and back[n].dtype == state[n].dtype for n in state)
    for reports in rounds(seed + 50, 5):
        (weights, state), (again, back) = rule(reports, state), rule(reports, back)
        assert torch.equal(weights, again)


@mixing
@seeds
def test_mixing_weights_are_a_point_of_the_simplex(case: tuple[str, dict[str, Any]], seed: int) -> None:
    rule, state = build(case), build(case).init(6)
    for reports in rounds(seed, 6, count=8):
        weights, state = rule(reports, state)
        assert (weights >= 0).all()
        assert weights.sum().item() == pytest.approx(1, abs=1e-9)


@fair
@seeds
def test_a_larger_loss_never_lowers_a_clients_weight(case: tuple[str, dict[str, Any]], seed: int) -> None:
    rule = build(case)
    for state in (rule.init(6), experienced(rule, seed, 6)):
        reports = draw(seed + 20, 4, 6)
        for client in range(4):
            weight = -1.0
            for factor in (1.0, 1.05, 1.5, 4.0):
                losses = reports.losses.clone()
                losses[client] *= factor
                raised, _ = rule(replace(copied(reports), losses=losses), state)
                assert raised[client] >= weight - 1e-9
                weight = float(raised[client])
