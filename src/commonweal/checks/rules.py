"""The promises of rules, as checks that run on any rule.

>>> from commonweal.rules import TERM
>>> check_rule(TERM())[:3]
['frozen', 'pure', 'inputs']
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, is_dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import get_args

import safetensors.torch
import torch
from torch import Tensor

from commonweal.base.errors import ConfigError
from commonweal.base.tensors import State, Tensors, flatten, unflatten
from commonweal.checks import samples
from commonweal.data.population import Setting
from commonweal.rules.rule import Combinator, Decision, Need, Reports, Rule, Stateless, unusable

Problems = Iterator[str]  # what is wrong, if anything


@dataclass(frozen=True, eq=False)
class Trial:
    """A rule with a simulated population of K clients."""

    rule: Rule
    clients: int
    seed: int

    @cached_property
    def start(self) -> State:
        return self.rule.init(samples.sample_setting(self.clients))

    @cached_property
    def later(self) -> State:
        """The state after some rounds."""
        *_, (_, decision) = self.play(samples.sample_rounds(self.seed, self.clients))
        return decision.state

    def reports(self, absent: int = 0, seed: int = 0) -> Reports:
        """An ordinary round."""
        size = max(1, self.clients - absent)
        return samples.sample_reports(self.seed + seed, size, self.clients)

    def play(
        self, rounds: Iterable[Reports], state: State | None = None
    ) -> Iterator[tuple[Reports, Decision]]:
        """The rounds with their decisions, each from the state of the one before."""
        state = self.start if state is None else state
        for reports in rounds:
            decision = self.rule(reports, state)
            yield reports, decision
            state = decision.state


RuleCheck = Callable[[Trial], Problems]


def check_rule(rule: Rule, clients: int = 6, seeds: int = 1) -> list[str]:
    """Check a rule on simulated rounds and return the names of the properties that hold.

    Args:
        rule: The rule.
        clients: K, the clients of the simulated population, in one group or two of equal size.
        seeds: How many different populations.

    Raises:
        ConfigError: For the first property that does not hold.
    """
    if not isinstance(rule, Rule):
        raise ConfigError(f"{rule!r} is not a rule: give an instance of a subclass of Rule")
    for name, check in RULE_CHECKS.items():
        for seed in range(seeds):
            problem = find_problem(check, Trial(rule, clients, seed))
            if problem is not None:
                raise ConfigError(f"rule {type(rule).__name__} fails the check {name!r}: {problem}")
    return list(RULE_CHECKS)


def find_problem(check: Callable[..., Problems], *given: object) -> str | None:
    """Run one check. An exception in what it checks is a problem, too."""
    try:
        return next(check(*given), None)
    except Exception as error:
        return f"it raises {type(error).__name__}: {error}"


def copy(values: Tensors) -> Tensors:
    return {name: value.clone() for name, value in values.items()}


def same_bits(a: Tensors, b: Tensors) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def close(a: Tensor, b: Tensor, rtol: float = 1e-7, atol: float = 1e-9) -> bool:
    return torch.allclose(a.double(), b.double(), rtol=rtol, atol=atol)


def wrong_weights(decision: Decision, reports: Reports) -> Problems:
    """Describe what is wrong with the weights of any rule."""
    problem = unusable(decision.weights, len(reports.ids))
    if problem is not None:
        yield problem
    elif not torch.isfinite(decision.weights).all():
        yield f"weights are not finite: {decision.weights.tolist()}"


def not_mixing(rule: Rule, weights: Tensor) -> Problems:
    """Describe what is wrong with weights that are to be mixing coefficients."""
    if rule.mixing and (weights < 0).any():
        yield f"mixing is true, but a weight is {weights.min().item():g}"
    if rule.mixing and abs(weights.sum().item() - 1) > 1e-9:
        yield f"mixing is true, but the weights sum to {weights.sum().item():g}"


def not_finite(state: State) -> Problems:
    for name, value in flatten(state).items():
        if not torch.isfinite(value).all():
            yield f"its state {name!r} is not finite"


def not_frozen(part: object) -> Problems:
    """Describe what keeps a rule or a client method from being a value."""
    if not is_dataclass(part) or isinstance(part, type):
        yield "it is not a dataclass: write @dataclass(frozen=True) above the class"
        return
    name = "some_attribute"
    try:
        setattr(part, name, 1)
    except AttributeError:
        pass
    else:
        delattr(part, name)
        yield "its attributes can be set: write @dataclass(frozen=True) above the class"
    again = replace(part)
    if again != part or hash(again) != hash(part):
        yield "two of it with equal fields are not equal: write @dataclass(frozen=True)"


def _frozen(trial: Trial) -> Problems:
    return not_frozen(trial.rule)


def _pure(trial: Trial) -> Problems:
    first = trial.rule(trial.reports(absent=1), trial.later)
    second = trial.rule(trial.reports(absent=1), trial.later)
    if not torch.equal(first.weights, second.weights):
        yield "the same reports and state give different weights"
    if not same_bits(flatten(first.state), flatten(second.state)):
        yield "the same reports and state give different states"


def _inputs(trial: Trial) -> Problems:
    reports = trial.reports(absent=trial.clients // 2)
    state_before = copy(flatten(trial.later))
    reports_before = copy(reports.tensors)
    following = flatten(trial.rule(reports, trial.later).state)
    if not same_bits(flatten(trial.later), state_before):
        yield "it changes the state that it receives"
    if not same_bits(reports.tensors, reports_before):
        yield "it changes the reports that it receives"
    following_before = copy(following)
    for value in reports.tensors.values():
        value.zero_()
    if not same_bits(following, following_before):
        yield "its new state shares memory with the reports: clone them"


def _weights(trial: Trial) -> Problems:
    for reports, decision in trial.play(samples.sample_rounds(trial.seed, trial.clients)):
        yield from wrong_weights(decision, reports)


def _state(trial: Trial) -> Problems:
    yield from _not_tensors(trial.start)
    yield from _not_tensors(trial.later)
    written = {name: value.contiguous() for name, value in copy(flatten(trial.later)).items()}
    loaded = unflatten(safetensors.torch.load(safetensors.torch.save(written)))
    if not same_bits(flatten(loaded), flatten(trial.later)):
        yield "its state changes when it is written to a file and read back"
    rounds = list(samples.sample_rounds(trial.seed + 50, trial.clients))
    played = zip(trial.play(rounds, trial.later), trial.play(rounds, loaded), strict=True)
    if not all(torch.equal(one.weights, other.weights) for (_, one), (_, other) in played):
        yield "it decides differently after its state was written to a file and read back"


def _not_tensors(state: State) -> Problems:
    if type(state) is not dict:
        yield f"its state is a {type(state).__name__}, not a dict"
    for name, value in state.items():
        if not isinstance(name, str) or "/" in name:
            yield f"its state has the name {name!r}: names are strings without '/'"
        if isinstance(value, dict):
            yield from _not_tensors(value)
        elif not isinstance(value, Tensor):
            yield f"its state has a {type(value).__name__} named {name!r}, not a tensor"


def _order(trial: Trial) -> Problems:
    rule = trial.rule
    reports = trial.reports(absent=1)
    following = trial.reports(absent=2, seed=1)
    generator = torch.Generator().manual_seed(trial.seed + 7)
    order = torch.randperm(len(reports.ids), generator=generator)
    for state in (trial.start, trial.later):
        decision = rule(reports, state)
        permuted = rule(reports.subset(order), state)
        if not close(permuted.weights, decision.weights[order]):
            yield "weights depend on the order of the reports"
        expected = rule(following, decision.state).weights
        if not close(rule(following, permuted.state).weights, expected):
            yield "the next round's weights depend on the order of the reports"


def _twins(trial: Trial) -> Problems:
    if trial.clients < 3:
        return
    rounds = [samples.twin_reports(trial.seed + 100 * t, trial.clients) for t in range(4)]
    for _, decision in trial.play(rounds):
        if not close(decision.weights[2], decision.weights[0]):
            yield "clients that report the same do not get the same weight"


def _alike(trial: Trial) -> Problems:
    for _, decision in trial.play([samples.equal_reports(trial.clients)] * 3):
        weights = decision.weights
        if weights.max() - weights.min() >= 1e-9 or weights[0] <= 0:
            yield f"equal reports of all clients give the weights {weights.tolist()}"


def _one(trial: Trial) -> Problems:
    reports = trial.reports(absent=trial.clients)
    for state in (trial.start, trial.later):
        decision = trial.rule(reports, state)
        yield from wrong_weights(decision, reports)
        if decision.weights[0] <= 0:
            yield f"a single reporter gets the weight {decision.weights[0].item():g}"


def _precision(trial: Trial) -> Problems:
    reports = trial.reports(absent=1)
    columns = {name: value.double() for name, value in reports.tensors.items()}
    columns["ids"] = reports.ids
    exact = Reports(clients=trial.clients, checked=True, **columns)
    single = trial.rule(reports, trial.later).weights
    if not close(single, trial.rule(exact, trial.later).weights, rtol=1e-5, atol=1e-6):
        yield "the same numbers in float32 and float64 give different weights: compute in float64"


def _extremes(trial: Trial) -> Problems:
    following = samples.sample_reports(trial.seed + 3, 1, trial.clients)
    for name, extreme in samples.extreme_reports(trial.clients, trial.seed).items():
        for reports, decision in trial.play([extreme, extreme, following]):
            for problem in (*wrong_weights(decision, reports), *not_finite(decision.state)):
                yield f"with {name}, {problem}"


def _mixing(trial: Trial) -> Problems:
    for _, decision in trial.play(samples.sample_rounds(trial.seed, trial.clients, count=8)):
        yield from not_mixing(trial.rule, decision.weights)


def _late(trial: Trial) -> Problems:
    rounds = [samples.late_reports(trial.seed + 9 + t, trial.clients) for t in range(3)]
    for reports, decision in trial.play(rounds, trial.later):
        yield from wrong_weights(decision, reports)
        yield from not_mixing(trial.rule, decision.weights)
        yield from not_finite(decision.state)


def _needs(trial: Trial) -> Problems:
    needs = trial.rule.needs
    unknown = needs - set(get_args(Need))
    if unknown:
        yield f"it needs {sorted(unknown)}; known: {', '.join(get_args(Need))}"
    reports = trial.reports(absent=1)
    try:
        decision = trial.rule(needed_only(reports, trial.rule), trial.later)
    except Exception as error:
        yield f"it uses more than its `needs`, {sorted(needs)}: {error}"
        return
    if not torch.equal(decision.weights, trial.rule(reports, trial.later).weights):
        yield "its weights depend on more than its `needs`"
    if isinstance(trial.rule, Combinator) or "nonnegative_loss" in needs:
        return
    if uses_losses(trial, 0.0) and not uses_losses(trial, 2 * float(reports.losses.max())):
        yield 'it treats losses below 0 as equal: add "nonnegative_loss" to its `needs`'


def uses_losses(trial: Trial, lower: float) -> bool:
    """Return whether it matters which client has which loss, where all are lower by so much."""
    reports = trial.reports(absent=1)
    given = replace(reports, losses=reports.losses - lower)
    equal = replace(given, losses=torch.full_like(given.losses, float(given.losses.mean())))
    weights = trial.rule(given, trial.later).weights
    return not torch.allclose(weights, trial.rule(equal, trial.later).weights, rtol=1e-9)


def needed_only(reports: Reports, rule: Rule) -> Reports:
    return replace(
        reports,
        losses=reports.losses if "loss" in rule.needs else torch.ones_like(reports.losses),
        scores=reports.scores if "score" in rule.needs else None,
        updates=reports.updates if "update" in rule.needs else None,
        losses_after=reports.losses_after if "loss_after" in rule.needs else None,
    )


def _setting(trial: Trial) -> Problems:
    by_setting = _initial(trial.rule, Setting(clients=trial.clients))
    by_number = _initial(trial.rule, trial.clients)
    if not same_bits(by_setting, by_number):
        yield "init(clients) is not init(Setting(clients)): use Setting.of"


def _initial(rule: Rule, setting: Setting | int) -> Tensors:
    """The first state. A setting that does not say enough has none."""
    try:
        return flatten(rule.init(setting))
    except ConfigError:
        return {"refused": torch.empty(0)}


def _distribution(trial: Trial) -> Problems:
    for state in (trial.start, trial.later):
        for count in (trial.clients, trial.clients + 2):
            p = trial.rule.distribution(state, count)
            if p is None:
                continue
            if p.shape != (count,) or (p < 0).any() or abs(p.sum().item() - 1) > 1e-9:
                yield f"its distribution over {count} clients is {p.tolist()}"


def _regret(trial: Trial) -> Problems:
    clients = trial.clients
    response = trial.rule.response(trial.reports().losses.double())
    if response is not None and not (response.shape == (clients,) and response.isfinite().all()):
        yield f"its response to {clients} losses is {response.tolist()}"
    bound = trial.rule.bound(100, clients)
    if bound is not None and not 0 <= bound < float("inf"):
        yield f"its bound on the regret is {bound}"


@dataclass(frozen=True)
class Probe(Stateless):
    """A rule that answers every question, to see which answers a combinator passes on."""

    losses: tuple[float, ...] = ()

    needs = frozenset({"size", "loss", "score"})
    logarithmic = True
    local_run = "a run of local models"

    def with_local_losses(self, losses: tuple[float, ...]) -> "Probe":
        return Probe(losses)

    def init(self, setting: Setting | int) -> State:
        return {"clients": torch.tensor(Setting.of(setting).clients)}

    def response(self, losses: Tensor) -> Tensor:
        return losses

    def distribution(self, state: State, clients: int) -> Tensor:
        assert int(state["clients"]) <= clients
        return torch.full((clients,), 1 / clients, dtype=torch.float64)

    averaged = distribution


def _combinator(trial: Trial) -> Problems:
    if not isinstance(trial.rule, Combinator):
        return
    outer = replace(trial.rule, rule=Probe())
    losses = trial.reports().losses
    state = outer.init(samples.sample_setting(trial.clients))
    inner = outer.with_local_losses((1.0,) * trial.clients).rule
    passed_on = {
        "needs": Probe.needs <= outer.needs,
        "logarithmic": outer.logarithmic,
        "local_run": outer.local_run is not None,
        "with_local_losses": isinstance(inner, Probe) and len(inner.losses) == trial.clients,
        "response": outer.response(losses) is not None,
        "cohort_response": outer.cohort_response(losses, 2 * trial.clients) is not None,
        "distribution": outer.distribution(state, trial.clients) is not None,
        "averaged": outer.averaged(state, trial.clients) is not None,
    }
    forgotten = [name for name, is_passed_on in passed_on.items() if not is_passed_on]
    if forgotten:
        yield f"its rule has {', '.join(forgotten)}, and it does not"


def response_rises(rule: Rule) -> bool | None:
    """Return whether the rule's response grows with the loss. None: it has no response."""
    response = rule.response(torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64))
    return None if response is None else bool((response.diff() >= 0).all())


def _monotone(trial: Trial) -> Problems:
    if trial.rule.mixing and response_rises(trial.rule):
        yield from falling_weight(trial)


def falling_weight(trial: Trial) -> Problems:
    """Find a client whose weight falls when its loss rises, unless its report is rejected."""
    reports = trial.reports(absent=2, seed=20)
    for state in (trial.start, trial.later):
        for position in range(len(reports.ids)):
            for last, weight in pairwise(_weights_by_loss(trial.rule, reports, state, position)):
                if weight < last - 1e-9:
                    yield f"a client's weight falls from {last:g} to {weight:g} as its loss rises"


def _weights_by_loss(rule: Rule, reports: Reports, state: State, position: int) -> Iterator[float]:
    """The weights of a client as its loss rises, as long as its report is not rejected."""
    client = int(reports.ids[position])
    for factor in (1.0, 1.05, 1.5, 4.0):
        losses = reports.losses.clone()
        losses[position] *= factor
        decision = rule(replace(reports, losses=losses), state)
        if client in decision.dropped or client in decision.capped:
            break
        yield decision.weights[position].item()


def _reasons(trial: Trial) -> Problems:
    for reports in samples.extreme_reports(trial.clients, trial.seed).values():
        decision = trial.rule(reports, trial.start)
        if not all(isinstance(warning, str) for warning in decision.warnings):
            yield f"its warnings are {decision.warnings!r}, not strings"
        clients = reports.ids.tolist()
        for reasons in (decision.dropped, decision.capped):
            if not reasons.keys() <= set(clients):
                yield f"it gives reasons for {sorted(reasons)}, who did not all report"
        if decision.weights[[client in decision.dropped for client in clients]].any():
            yield "a client that is dropped has a weight"


RULE_CHECKS: dict[str, RuleCheck] = {
    "frozen": _frozen,
    "pure": _pure,
    "inputs": _inputs,
    "weights": _weights,
    "state": _state,
    "order": _order,
    "twins": _twins,
    "equal clients": _alike,
    "one reporter": _one,
    "precision": _precision,
    "extremes": _extremes,
    "mixing": _mixing,
    "late joiners": _late,
    "needs": _needs,
    "setting": _setting,
    "distribution": _distribution,
    "regret": _regret,
    "combinator": _combinator,
    "monotone": _monotone,
    "reasons": _reasons,
}
