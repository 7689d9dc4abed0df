"""The contract of rules, on every rule of the catalog and on rules that break it.

A new file in `rules/` is tested here without being named. Further settings worth the same tests are
in VARIANTS.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor

import commonweal
from cases import cases
from commonweal.base.errors import ConfigError
from commonweal.base.tensors import State, flatten
from commonweal.checks.rules import (
    RULE_CHECKS,
    Trial,
    check_rule,
    falling_weight,
    find_problem,
    response_rises,
)
from commonweal.checks.samples import sample_reports, sample_rounds
from commonweal.config import catalog
from commonweal.data.population import Setting
from commonweal.record.checkpoint import matching
from commonweal.rules import AAggFFS, Decision, Kind, Reports, Rule, Stateless
from commonweal.rules.rule import Combinator, prior_weights
from rule_helpers import build

Case = tuple[str, dict[str, object]]

NAMES = list(catalog.entries("rules"))
VARIANTS: list[Case] = [  # with another state, or another way to the weights, than the default
    ("aaggff-d", {"lipschitz": 0.1, "scale": 0.5}),
    ("aaggff-s", {"variant": "reference", "cdf": "frechet"}),
    ("aaggff-s", {"variant": "reference", "cdf": "normal"}),
    ("adafed", {"loss": "after"}),
    ("adafed", {"scale": "theorem"}),
    ("afl", {"absent": "last"}),
    ("afl", {"absent": "zero", "radius": 1.5}),
    ("afl", {"optimistic": True, "mu": 0.1}),
    ("cvar", {"share": False, "theta": 0.8}),
    ("directions", {"method": "imtl-g"}),
    ("excess", {"rule": {"name": "afl"}}),
    ("grouped", {"rule": {"name": "aaggff-s"}}),
    ("grouped", {"rule": {"name": "afl"}, "domains": 2}),
    ("grouped", {"rule": {"name": "excess", "rule": {"name": "afl"}}}),
    ("guarded", {"action": "cap"}),
    ("guarded", {"rule": {"name": "aaggff-s"}}),
    ("guarded", {"rule": {"name": "adafed"}}),
    ("qfedavg", {"scaled": True}),
]
CASES: list[Case] = [*((name, {}) for name in NAMES), *VARIANTS]


def label(case: Case) -> str:
    name, parameters = case
    return "-".join([name, *(str(value) for value in parameters.values())])


def rule_of(case: Case) -> Rule:
    name, parameters = case
    return build(name, **parameters)


every = pytest.mark.parametrize("case", CASES, ids=label)


def test_every_file_in_the_folder_is_a_case() -> None:
    folder = Path(commonweal.__file__).parent / "rules"
    paths = [*folder.glob("[!_]*.py"), *folder.glob("guard/[!_]*.py")]
    files = {".".join(path.relative_to(folder).with_suffix("").parts) for path in paths}
    tested = {entry.factory.__module__ for entry in catalog.entries("rules").values()}
    libraries = {"rule", "ftrl", "online", "private_form", "private_forms", "simplex", "slots"}
    libraries.add("sparse_table")
    assert tested == {f"commonweal.rules.{name}" for name in files - libraries}
    assert len({label(case) for case in CASES}) == len(CASES)


@every
def test_a_rule_keeps_the_contract(case: Case) -> None:
    two_groups = case[1].get("domains") == 2  # one client cannot be divided into them
    for clients in (6, 2) if two_groups else (6, 2, 1):
        assert check_rule(rule_of(case), clients=clients) == list(RULE_CHECKS)


@cases("case", CASES)
def test_one_of_many_clients(case: Case) -> None:
    rule = rule_of(case)
    quadratic = any("curvature" in name for name in flatten(rule.init(one_group(2))))
    clients = 20 if quadratic else 1000  # a (K, K) state is for silos
    state = rule.init(one_group(clients))
    for t in range(3):
        decision = rule(sample_reports(t, 1, clients), state)
        assert decision.weights.isfinite().all()
        assert decision.weights[0] > 0
        state = decision.state


@cases("case", CASES)
def test_a_later_state_fits_the_checkpoint_of_a_run_that_begins(case: Case) -> None:
    rule = rule_of(case)
    begun = rule.init(one_group(6))
    state = begun
    for reports in sample_rounds(0, 6, count=3):
        state = rule(reports, state).state
    matching(begun, state, "rule", clients=6)


def one_group(clients: int) -> Setting:
    """A setting in which groups, if a rule uses them, make no difference."""
    counts = torch.stack([torch.arange(clients), torch.ones(clients, dtype=torch.int64)], 1)
    return Setting(clients=clients, groups=("all",) * clients, label_counts=counts)


@cases("case", CASES)
def test_weights_do_not_depend_on_the_order_of_clients_in_the_population(case: Case) -> None:
    rule = rule_of(case)
    if "labels" in rule.needs:  # its groups are those of known clients
        return
    ids = torch.tensor([3, 5, 0, 4, 1, 2])
    state = rule.init(one_group(6))
    other = state
    for reports in sample_rounds(0, 6, count=8):
        expected = rule(reports, state)
        decision = rule(replace(reports, ids=ids[reports.ids]), other)
        torch.testing.assert_close(decision.weights, expected.weights, rtol=1e-7, atol=1e-9)
        state = expected.state
        other = decision.state


@cases("case", CASES)
def test_a_larger_loss_never_lowers_a_clients_weight(case: Case) -> None:
    """Also for mixing rules without a response, of which the contract does not ask it."""
    rule = rule_of(case)
    if rule.mixing and response_rises(rule) is not False:
        assert list(falling_weight(Trial(rule, 6, 0))) == []


def test_the_inverted_response_of_the_authors_lowers_weights() -> None:
    """The normal CDF of the authors' code falls with the loss, and the rule says so."""
    rule = AAggFFS(variant="reference", cdf="normal")
    assert response_rises(rule) is False
    assert list(falling_weight(Trial(rule, 6, 0))) != []


# Rules that break the contract, each in one way


@dataclass(frozen=True)
class Plain(Stateless):
    """weights_i = n_i / sum n, as a base for rules that are wrong in one way"""

    kind: ClassVar[Kind] = Kind("mixture", "0", "none")

    def weigh(self, reports: Reports) -> Tensor:
        return prior_weights(reports, "sizes")


class NoDataclass(Stateless):
    def weigh(self, reports: Reports) -> Tensor:
        return prior_weights(reports, "sizes")


@dataclass
class NotFrozen(Stateless):
    def weigh(self, reports: Reports) -> Tensor:
        return prior_weights(reports, "sizes")


@dataclass(frozen=True, eq=False)
class Unequal(Stateless):
    def weigh(self, reports: Reports) -> Tensor:
        return prior_weights(reports, "sizes")


CALLS = count(1)


@dataclass(frozen=True)
class Remembering(Plain):
    def weigh(self, reports: Reports) -> Tensor:
        weights = super().weigh(reports) + 1 / next(CALLS)
        return weights / weights.sum()


@dataclass(frozen=True)
class Stamping(Plain):
    def __call__(self, reports: Reports, state: State) -> Decision:
        return Decision(self.weigh(reports), {"t": torch.tensor(next(CALLS))})


@dataclass(frozen=True)
class ChangesReports(Plain):
    def weigh(self, reports: Reports) -> Tensor:
        reports.losses.add_(1)
        return super().weigh(reports)


@dataclass(frozen=True)
class Counting(Plain):
    """A base for rules with a state."""

    def init(self, setting: Setting | int) -> State:
        return {"t": torch.zeros(Setting.of(setting).clients)}


@dataclass(frozen=True)
class ChangesState(Counting):
    def __call__(self, reports: Reports, state: State) -> Decision:
        state["t"] += 1
        return Decision(self.weigh(reports), state)


@dataclass(frozen=True)
class SharesMemory(Counting):
    def __call__(self, reports: Reports, state: State) -> Decision:
        return Decision(self.weigh(reports), {"t": reports.losses})


@dataclass(frozen=True)
class Weighing(Plain):
    """Weights by any function of the reports."""

    function: Callable[[Reports], Tensor]

    def weigh(self, reports: Reports) -> Tensor:
        return self.function(reports)


@dataclass(frozen=True)
class Free(Weighing):
    mixing: ClassVar[bool] = False


@dataclass(frozen=True)
class NumberState(Plain):
    def init(self, setting: Setting | int) -> State:
        return {"t": 0.5}


@dataclass(frozen=True)
class SlashState(Plain):
    def init(self, setting: Setting | int) -> State:
        return {"a/b": torch.zeros(1)}


@dataclass(frozen=True)
class IdentityState(Counting):
    """Decides by the object that it is given, which a file does not preserve."""

    def __call__(self, reports: Reports, state: State) -> Decision:
        weights = self.weigh(reports)
        if state["t"].storage_offset() == 0:
            return Decision(weights, {"t": torch.zeros(2)[1:]})
        return Decision(torch.ones_like(weights) / len(weights), state)


@dataclass(frozen=True)
class Dense(Counting):
    """Forgets that clients may join late."""

    def __call__(self, reports: Reports, state: State) -> Decision:
        seen = state["t"].clone()
        seen[reports.ids] += 1
        return Decision(self.weigh(reports), {"t": seen})


@dataclass(frozen=True)
class FixedPopulation(Counting):
    def __call__(self, reports: Reports, state: State) -> Decision:
        known = len(state["t"]) / reports.clients
        return Decision(known * self.weigh(reports), state)


@dataclass(frozen=True)
class TwoBeginnings(Plain):
    def init(self, setting: Setting | int) -> State:
        return {"t": torch.tensor(isinstance(setting, int))}


@dataclass(frozen=True)
class NotNormalized(Plain):
    def distribution(self, state: State, clients: int) -> Tensor:
        return torch.ones(clients)


@dataclass(frozen=True)
class ShortResponse(Plain):
    def response(self, losses: Tensor) -> Tensor:
        return losses[:-1]


@dataclass(frozen=True)
class NegativeBound(Plain):
    def bound(self, rounds: int, clients: int) -> float:
        return -1.0


@dataclass(frozen=True)
class Contrary(Plain):
    """Its response rises with the loss, and its weights fall."""

    def response(self, losses: Tensor) -> Tensor:
        return losses

    def weigh(self, reports: Reports) -> Tensor:
        return torch.softmax(-reports.losses.double(), 0)


@dataclass(frozen=True)
class Rejecting(Plain):
    """Drops a client by a function of the reports, and yet uses its report."""

    client: Callable[[Reports], int]

    def __call__(self, reports: Reports, state: State) -> Decision:
        return Decision(self.weigh(reports), state, dropped={self.client(reports): "a whim"})


@dataclass(frozen=True)
class Forgetful(Combinator):
    """Does not pass on what its rule answers."""

    kind: ClassVar[Kind] = Kind("combinator", "0", "none")

    def __call__(self, reports: Reports, state: State) -> Decision:
        return Decision(prior_weights(reports, "uniform"), state)

    def response(self, losses: Tensor) -> None:
        return None


def normalized(weights: Tensor) -> Tensor:
    return weights / weights.sum()


def rounded(losses: Tensor) -> Tensor:
    """Compute in a precision that depends on that of the reports."""
    return losses if losses.dtype == torch.float64 else losses.to(torch.bfloat16).double()


def scores_of(reports: Reports) -> Tensor:
    return torch.ones(len(reports.ids)) if reports.scores is None else reports.scores


BROKEN: list[tuple[str, Rule, str]] = [
    ("frozen", NoDataclass(), "not a dataclass"),
    ("frozen", NotFrozen(), "can be set"),
    ("frozen", Unequal(), "not equal"),
    ("pure", Remembering(), "different weights"),
    ("pure", Stamping(), "different states"),
    ("inputs", ChangesReports(), "changes the reports"),
    ("inputs", ChangesState(), "changes the state"),
    ("inputs", SharesMemory(), "shares memory"),
    ("weights", Free(lambda r: r.losses.double() * torch.nan), "not finite"),
    ("weights", Free(lambda r: torch.ones(1 + len(r.ids))), "have shape"),
    ("weights", Free(lambda r: torch.ones(len(r.ids), dtype=torch.int64)), "floating-point"),
    ("weights", Free(lambda r: torch.ones(len(r.ids), requires_grad=True)), "gradient"),
    ("state", NumberState(), "a float named 't'"),
    ("state", SlashState(), "'a/b'"),
    ("state", IdentityState(), "decides differently"),
    ("order", Weighing(lambda r: normalized(torch.arange(len(r.ids)) + 1.0)), "order"),
    ("twins", Weighing(lambda r: normalized(r.ids + 1.0)), "same weight"),
    ("equal clients", Free(lambda r: torch.zeros(len(r.ids))), "0.0"),
    ("equal clients", Weighing(lambda r: normalized(r.ids + 1.0)), "equal reports"),
    ("one reporter", Free(lambda r: torch.ones(len(r.ids)) - 1 / len(r.ids)), "single reporter"),
    ("precision", Weighing(lambda r: normalized(rounded(r.losses))), "float32 and float64"),
    ("extremes", Weighing(lambda r: normalized(1 / r.losses.double())), "with zero losses"),
    ("mixing", Weighing(lambda r: 2 * prior_weights(r, "sizes")), "sum to 2"),
    ("mixing", Weighing(lambda r: 1 - 2 * prior_weights(r, "sizes")), "a weight is -"),
    ("late joiners", Dense(), "raises IndexError"),
    ("late joiners", FixedPopulation(), "sum to 0.75"),
    ("needs", Weighing(lambda r: normalized(r.norms)), "it uses more"),
    ("needs", Weighing(lambda r: normalized(scores_of(r).double())), "depend on more"),
    ("needs", Weighing(lambda r: normalized(r.losses.clamp(min=0) + 1e-9)), "below 0 as equal"),
    ("setting", TwoBeginnings(), "Setting.of"),
    ("distribution", NotNormalized(), "its distribution"),
    ("regret", ShortResponse(), "its response"),
    ("regret", NegativeBound(), "its bound"),
    ("combinator", Forgetful(Plain()), "its rule has response, and it does not"),
    ("monotone", Contrary(), "falls from"),
    ("reasons", Rejecting(lambda r: int(r.ids[0])), "has a weight"),
    ("reasons", Rejecting(lambda r: 99), "did not all report"),
]


def test_every_check_is_seen_to_fail() -> None:
    assert {name for name, _, _ in BROKEN} == set(RULE_CHECKS)


@pytest.mark.parametrize(("name", "rule", "words"), BROKEN)
def test_a_broken_rule_fails_the_check(name: str, rule: Rule, words: str) -> None:
    problem = find_problem(RULE_CHECKS[name], Trial(rule, 6, 0))
    assert problem is not None
    assert words in problem
    with pytest.raises(ConfigError, match=rf"rule {type(rule).__name__} fails the check '"):
        check_rule(rule)


def test_the_rule_that_the_broken_ones_derive_from_is_right() -> None:
    assert check_rule(Plain()) == list(RULE_CHECKS)
    assert check_rule(Counting()) == list(RULE_CHECKS)


def test_the_first_broken_property_is_named() -> None:
    with pytest.raises(ConfigError, match="rule Contrary fails the check 'monotone': a client's"):
        check_rule(Contrary())


@pytest.mark.parametrize("thing", [Plain, "fedavg", None])
def test_what_is_not_a_rule_is_an_error(thing: Rule) -> None:
    with pytest.raises(ConfigError, match="is not a rule"):
        check_rule(thing)
