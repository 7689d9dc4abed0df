"""What every rule promises, as checks that run on any rule.

>>> from commonweal.rules import TERM
>>> check_rule(TERM())[:3]
['frozen', 'pure', 'inputs']
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, is_dataclass, replace
from itertools import pairwise
from typing import ClassVar, get_args

import safetensors.torch
import torch
from torch import Tensor

from commonweal.base.errors import ConfigError
from commonweal.base.tensors import State, Tensors, flatten, unflatten
from commonweal.checks.samples import (
    equal_reports,
    extreme_reports,
    large_ids,
    late_reports,
    sample_reports,
    sample_rounds,
    sample_setting,
    twin_reports,
)
from commonweal.data.population import Setting
from commonweal.rules.rule import (
    Combinator,
    Decision,
    Need,
    Reports,
    Rule,
    Stateless,
    prior_weights,
    unusable,
)

RuleCheck = Callable[[Rule, int, int], str | None]  # rule, clients, seed -> what is wrong


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
            problem = find_problem(check, rule, clients, seed)
            if problem is not None:
                raise ConfigError(f"rule {type(rule).__name__} fails the check {name!r}: {problem}")
    return list(RULE_CHECKS)


def find_problem(check: Callable[..., str | None], *given: object) -> str | None:
    """Run one check. An exception in what it checks is a problem, too."""
    try:
        return check(*given)
    except Exception as error:
        return f"it raises {type(error).__name__}: {error}"


def start(rule: Rule, clients: int) -> State:
    return rule.init(sample_setting(clients))


def play(rule: Rule, rounds: Iterable[Reports], state: State) -> Iterator[tuple[Reports, Decision]]:
    """The rounds with their decisions, each from the state of the one before."""
    for reports in rounds:
        decision = rule(reports, state)
        yield reports, decision
        state = decision.state


def after_rounds(rule: Rule, clients: int, seed: int) -> State:
    """The state after some rounds."""
    state = start(rule, clients)
    for _, decision in play(rule, sample_rounds(seed, clients), state):
        state = decision.state
    return state


def both_states(rule: Rule, clients: int, seed: int) -> tuple[State, State]:
    """The state before the first round, and one after some rounds."""
    return start(rule, clients), after_rounds(rule, clients, seed)


def copy_reports(reports: Reports) -> Reports:
    """A copy that shares no memory. Indexing by positions copies."""
    return reports.subset(torch.arange(len(reports.ids)))


def copy_state(state: State) -> Tensors:
    return {name: value.clone() for name, value in flatten(state).items()}


def same_bits(a: Tensors, b: Tensors) -> bool:
    if a.keys() != b.keys():
        return False
    return all(torch.equal(a[name], b[name]) for name in a)


def close(a: Tensor, b: Tensor, rtol: float = 1e-7, atol: float = 1e-9) -> bool:
    return torch.allclose(a.double(), b.double(), rtol=rtol, atol=atol)


def wrong_weights(decision: Decision, reports: Reports) -> str | None:
    """What is wrong with the weights of any rule."""
    problem = unusable(decision.weights, len(reports.ids))
    if problem is None and not torch.isfinite(decision.weights).all():
        return f"weights are not finite: {decision.weights.tolist()}"
    return problem


def not_mixing(rule: Rule, weights: Tensor) -> str | None:
    """What is wrong with the weights of a rule that says they are mixing coefficients."""
    if not rule.mixing:
        return None
    if (weights < 0).any():
        return f"mixing is true, but a weight is {weights.min().item():g}"
    total = weights.sum().item()
    if abs(total - 1) > 1e-9:
        return f"mixing is true, but the weights sum to {total:g}"
    return None


def not_weights(rule: Rule, decision: Decision, reports: Reports) -> str | None:
    return wrong_weights(decision, reports) or not_mixing(rule, decision.weights)


def not_frozen(part: object) -> str | None:
    """What keeps a rule or a client method from being a value."""
    if not is_dataclass(part) or isinstance(part, type):
        return "it is not a dataclass: write @dataclass(frozen=True) above the class"
    name = "some_attribute"
    try:
        setattr(part, name, 1)
    except AttributeError:
        pass
    else:
        delattr(part, name)
        return "its attributes can be set: write @dataclass(frozen=True) above the class"
    again = replace(part)
    if again != part or hash(again) != hash(part):
        return "two of it with equal fields are not equal: write @dataclass(frozen=True)"
    return None


def _frozen(rule: Rule, clients: int, seed: int) -> str | None:
    return not_frozen(rule)


def _pure(rule: Rule, clients: int, seed: int) -> str | None:
    state = after_rounds(rule, clients, seed)
    reports = sample_reports(seed, max(1, clients - 1), clients)
    first = rule(reports, state)
    second = rule(copy_reports(reports), state)
    if not torch.equal(first.weights, second.weights):
        return "the same reports and state give different weights"
    if not same_bits(flatten(first.state), flatten(second.state)):
        return "the same reports and state give different states"
    return None


def _inputs(rule: Rule, clients: int, seed: int) -> str | None:
    state = after_rounds(rule, clients, seed)
    before = copy_state(state)
    reports = sample_reports(seed, max(1, clients // 2), clients)
    original = copy_reports(reports)
    following = rule(reports, state).state
    if not same_bits(flatten(state), before):
        return "it changes the state that it receives"
    if not same_bits(reports.tensors, original.tensors):
        return "it changes the reports that it receives"
    following_before = copy_state(following)
    for value in reports.tensors.values():
        value.zero_()
    if not same_bits(flatten(following), following_before):
        return "its new state shares memory with the reports: clone them"
    return None


def _weights(rule: Rule, clients: int, seed: int) -> str | None:
    for reports, decision in play(rule, sample_rounds(seed, clients), start(rule, clients)):
        problem = wrong_weights(decision, reports)
        if problem:
            return problem
    return None


def _state(rule: Rule, clients: int, seed: int) -> str | None:
    initial, state = both_states(rule, clients, seed)
    problem = _not_tensors(initial) or _not_tensors(state)
    if problem:
        return problem
    loaded = _written_and_read(state)
    if not same_bits(flatten(loaded), flatten(state)):
        return "its state changes when it is written to a file and read back"
    rounds = list(sample_rounds(seed + 50, clients))
    expected = play(rule, rounds, state)
    played = play(rule, rounds, loaded)
    for (_, one), (_, other) in zip(expected, played, strict=True):
        if not torch.equal(one.weights, other.weights):
            return "it decides differently after its state was written to a file and read back"
    return None


def _written_and_read(state: State) -> State:
    values = {name: value.contiguous() for name, value in copy_state(state).items()}
    return unflatten(safetensors.torch.load(safetensors.torch.save(values)))


def _not_tensors(state: State) -> str | None:
    if type(state) is not dict:
        return f"its state is a {type(state).__name__}, not a dict"
    for name, value in state.items():
        if not isinstance(name, str) or "/" in name:
            return f"its state has the name {name!r}: names are strings without '/'"
        problem = _not_tensors(value) if isinstance(value, dict) else None
        if problem is None and not isinstance(value, dict | Tensor):
            problem = f"its state has a {type(value).__name__} named {name!r}, not a tensor"
        if problem:
            return problem
    return None


def _order(rule: Rule, clients: int, seed: int) -> str | None:
    reports = sample_reports(seed, max(1, clients - 1), clients)
    generator = torch.Generator().manual_seed(seed + 7)
    order = torch.randperm(len(reports.ids), generator=generator)
    following = sample_reports(seed + 1, max(1, clients - 2), clients)
    for state in both_states(rule, clients, seed):
        decision = rule(reports, state)
        permuted = rule(reports.subset(order), state)
        if not close(permuted.weights, decision.weights[order]):
            return "weights depend on the order of the reports"
        expected = rule(following, decision.state).weights
        if not close(rule(following, permuted.state).weights, expected):
            return "the next round's weights depend on the order of the reports"
    return None


def _twins(rule: Rule, clients: int, seed: int) -> str | None:
    if clients < 3:
        return None
    rounds = [twin_reports(seed + 100 * t, clients) for t in range(4)]
    for _, decision in play(rule, rounds, start(rule, clients)):
        if not close(decision.weights[2], decision.weights[0]):
            return "clients that report the same do not get the same weight"
    return None


def _alike(rule: Rule, clients: int, seed: int) -> str | None:
    rounds = [equal_reports(clients)] * 3
    for _, decision in play(rule, rounds, start(rule, clients)):
        weights = decision.weights
        spread = weights.max() - weights.min()
        if spread >= 1e-9 or weights[0] <= 0:
            return f"equal reports of all clients give the weights {weights.tolist()}"
    return None


def _one(rule: Rule, clients: int, seed: int) -> str | None:
    reports = sample_reports(seed, 1, clients)
    for state in both_states(rule, clients, seed):
        decision = rule(reports, state)
        problem = wrong_weights(decision, reports)
        if problem:
            return problem
        if decision.weights[0] <= 0:
            return f"a single reporter gets the weight {decision.weights[0].item():g}"
    return None


def _precision(rule: Rule, clients: int, seed: int) -> str | None:
    state = after_rounds(rule, clients, seed)
    size = max(1, clients - 1)
    single = rule(sample_reports(seed, size, clients, torch.float32), state)
    double = rule(sample_reports(seed, size, clients, torch.float64), state)
    if not close(single.weights, double.weights, rtol=1e-5, atol=1e-6):
        return "the same numbers in float32 and float64 give different weights: compute in float64"
    return None


def _extremes(rule: Rule, clients: int, seed: int) -> str | None:
    following = sample_reports(seed + 3, 1, clients)
    for name, reports in extreme_reports(clients, seed).items():
        rounds = [reports, reports, following]
        for received, decision in play(rule, rounds, start(rule, clients)):
            problem = wrong_weights(decision, received) or _infinite(decision.state)
            if problem:
                return f"with {name}, {problem}"
    return None


def _infinite(state: State) -> str | None:
    for name, value in flatten(state).items():
        if not torch.isfinite(value).all():
            return f"its state {name!r} is not finite"
    return None


def _mixing(rule: Rule, clients: int, seed: int) -> str | None:
    rounds = sample_rounds(seed, clients, count=8)
    for _, decision in play(rule, rounds, start(rule, clients)):
        problem = not_mixing(rule, decision.weights)
        if problem:
            return problem
    return None


def _ids(rule: Rule, clients: int, seed: int) -> str | None:
    ids = large_ids(clients, seed)
    rounds = [replace(plain, ids=ids[plain.ids]) for plain in sample_rounds(seed, clients)]
    for reports, decision in play(rule, rounds, start(rule, clients)):
        problem = not_weights(rule, decision, reports)
        if problem:
            return f"with ids such as {reports.ids[0].item()}, {problem}"
    return None


def _late(rule: Rule, clients: int, seed: int) -> str | None:
    rounds = [late_reports(seed + 9 + t, clients) for t in range(3)]
    for reports, decision in play(rule, rounds, after_rounds(rule, clients, seed)):
        problem = not_weights(rule, decision, reports) or _infinite(decision.state)
        if problem:
            return f"after two clients join, {problem}"
    return None


def _needs(rule: Rule, clients: int, seed: int) -> str | None:
    unknown = rule.needs - set(get_args(Need))
    if unknown:
        return f"it needs {sorted(unknown)}; known: {', '.join(get_args(Need))}"
    state = after_rounds(rule, clients, seed)
    reports = sample_reports(seed, max(1, clients - 1), clients)
    try:
        decision = rule(needed_only(reports, rule), state)
    except Exception as error:
        return f"it uses more than its `needs`, {sorted(rule.needs)}: {error}"
    if not torch.equal(decision.weights, rule(reports, state).weights):
        return "its weights depend on more than its `needs`"
    return None


def needed_only(reports: Reports, rule: Rule) -> Reports:
    unknown = torch.ones_like(reports.losses)
    return replace(
        reports,
        losses=reports.losses if "loss" in rule.needs else unknown,
        scores=reports.scores if "score" in rule.needs else None,
        updates=reports.updates if "update" in rule.needs else None,
        losses_after=reports.losses_after if "loss_after" in rule.needs else None,
    )


def _setting(rule: Rule, clients: int, seed: int) -> str | None:
    by_setting = _initial(rule, Setting(clients=clients))
    by_number = _initial(rule, clients)
    if by_setting is None or by_number is None:
        agree = by_setting is by_number
    else:
        agree = same_bits(by_setting, by_number)
    return None if agree else "init(clients) is not init(Setting(clients)): use Setting.of"


def _initial(rule: Rule, setting: Setting | int) -> Tensors | None:
    """The first state, or None if the setting does not say enough."""
    try:
        return flatten(rule.init(setting))
    except ConfigError:
        return None


def _distribution(rule: Rule, clients: int, seed: int) -> str | None:
    for state in both_states(rule, clients, seed):
        for count in (clients, clients + 2):
            p = rule.distribution(state, count)
            if p is not None and not _on_simplex(p, count):
                return f"its distribution over {count} clients is {p.tolist()}"
    return None


def _on_simplex(p: Tensor, clients: int) -> bool:
    if p.shape != (clients,) or (p < 0).any():
        return False
    return abs(p.sum().item() - 1) <= 1e-9


def _regret(rule: Rule, clients: int, seed: int) -> str | None:
    losses = sample_reports(seed, clients, clients).losses.double()
    response = rule.response(losses)
    if response is not None and not _is_response(response, clients):
        return f"its response to {clients} losses is {response.tolist()}"
    bound = rule.bound(100, clients)
    if bound is not None and not 0 <= bound < float("inf"):
        return f"its bound on the regret is {bound}"
    return None


def _is_response(response: Tensor, clients: int) -> bool:
    return response.shape == (clients,) and bool(response.isfinite().all())


@dataclass(frozen=True)
class Probe(Stateless):
    """A rule that answers every question, to see which answers a combinator passes on."""

    losses: tuple[float, ...] = ()

    needs: ClassVar[frozenset[Need]] = frozenset({"size", "loss", "score"})
    logarithmic: ClassVar[bool] = True
    local_run: ClassVar[str] = "a run of local models"

    def with_local_losses(self, losses: tuple[float, ...]) -> "Probe":
        return Probe(losses)

    def init(self, setting: Setting | int) -> State:
        return {"clients": torch.tensor(Setting.of(setting).clients)}

    def weigh(self, reports: Reports) -> Tensor:
        return prior_weights(reports, "uniform")

    def response(self, losses: Tensor) -> Tensor:
        return losses

    def distribution(self, state: State, clients: int) -> Tensor:
        assert int(state["clients"]) <= clients
        return torch.full((clients,), 1 / clients, dtype=torch.float64)

    averaged = distribution


def _combinator(rule: Rule, clients: int, seed: int) -> str | None:
    if not isinstance(rule, Combinator):
        return None
    outer = replace(rule, rule=Probe())
    losses = sample_reports(seed, clients, clients).losses
    state = outer.init(sample_setting(clients))
    inner = outer.with_local_losses((1.0,) * clients).rule
    passed_on = {
        "needs": Probe.needs <= outer.needs,
        "logarithmic": outer.logarithmic,
        "local_run": outer.local_run is not None,
        "with_local_losses": isinstance(inner, Probe) and len(inner.losses) == clients,
        "response": outer.response(losses) is not None,
        "cohort_response": outer.cohort_response(losses, 2 * clients) is not None,
        "distribution": outer.distribution(state, clients) is not None,
        "averaged": outer.averaged(state, clients) is not None,
    }
    forgotten = [name for name, is_passed_on in passed_on.items() if not is_passed_on]
    return f"its rule has {', '.join(forgotten)}, and it does not" if forgotten else None


def response_rises(rule: Rule) -> bool | None:
    """Whether the rule's response grows with the loss. None: it has no response."""
    losses = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    response = rule.response(losses)
    if response is None:
        return None
    return bool((response.diff() >= 0).all())


def _monotone(rule: Rule, clients: int, seed: int) -> str | None:
    if rule.mixing and response_rises(rule):
        return falling_weight(rule, clients, seed)
    return None


def falling_weight(rule: Rule, clients: int, seed: int) -> str | None:
    """Find a client whose weight falls when its loss rises, unless its report is rejected."""
    reports = sample_reports(seed + 20, max(1, clients - 2), clients)
    for state in both_states(rule, clients, seed):
        for position in range(len(reports.ids)):
            weights = rising_loss(rule, reports, state, position)
            for last, weight in pairwise(weights):
                if weight < last - 1e-9:
                    return f"a client's weight falls from {last:g} to {weight:g} as its loss rises"
    return None


def rising_loss(rule: Rule, reports: Reports, state: State, position: int) -> list[float]:
    """The weights of a client as its loss rises, as long as its report is not rejected."""
    client = int(reports.ids[position])
    weights = []
    for factor in (1.0, 1.05, 1.5, 4.0):
        losses = reports.losses.clone()
        losses[position] *= factor
        decision = rule(replace(reports, losses=losses), state)
        if client in decision.dropped or client in decision.capped:
            break
        weights.append(decision.weights[position].item())
    return weights


def _reasons(rule: Rule, clients: int, seed: int) -> str | None:
    state = start(rule, clients)
    for reports in extreme_reports(clients, seed).values():
        problem = _wrong_reasons(rule(reports, state), reports)
        if problem:
            return problem
    return None


def _wrong_reasons(decision: Decision, reports: Reports) -> str | None:
    if not all(isinstance(warning, str) for warning in decision.warnings):
        return f"its warnings are {decision.warnings!r}, not strings"
    clients = reports.ids.tolist()
    for reasons in (decision.dropped, decision.capped):
        if not reasons.keys() <= set(clients):
            return f"it gives reasons for {sorted(reasons)}, who did not all report"
    dropped = [client in decision.dropped for client in clients]
    if decision.weights[dropped].any():
        return "a client that is dropped has a weight"
    return None


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
    "any id": _ids,
    "late joiners": _late,
    "needs": _needs,
    "setting": _setting,
    "distribution": _distribution,
    "regret": _regret,
    "combinator": _combinator,
    "monotone": _monotone,
    "reasons": _reasons,
}
