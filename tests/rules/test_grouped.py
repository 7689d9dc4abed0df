"""grouped: the inner rule on reports merged by hand; groups from a list, the data, or clustering."""

import tomllib
from dataclasses import replace
from typing import Any

import pytest
import torch

import commonweal
from commonweal import catalog
from commonweal.errors import ConfigError
from commonweal.federation import Federation, Rows
from commonweal.local import Local
from commonweal.rule import Reports
from commonweal.rules.adafed import AdaFed
from commonweal.rules.afl import AFL
from commonweal.rules.fedavg import FedAvg
from commonweal.rules.grouped import Grouped
from commonweal.rules.guarded import Guarded
from commonweal.rules.propfair import PropFair
from commonweal.rules.qfedavg import QFedAvg
from commonweal.rules.uniform import Uniform
from commonweal.run import prepare
from helpers import federation
from reporting import normals, reports, uniforms, vowel, weigh

DOMAINS = ("x", "y", "x", "z", "y", "x")
NAMES = [name for name in catalog.entries("rules") if name not in ("grouped", "guarded")]


def inner(name: str) -> Any:
    return commonweal.rule(name, lipschitz=10.0) if name == "qfedavg" else commonweal.rule(name)


def cohort(seed: int, ids: list[int]) -> Reports:
    s = len(ids)
    scores, after = uniforms(seed + 1, s), uniforms(seed + 2, s)
    losses, sizes = 0.1 + uniforms(seed, s), (1 + 20 * uniforms(seed + 3, s)).round()
    return reports(losses, sizes, normals(seed, s, 12) + 0.5, ids, 6, scores, after)


def merged(told: Reports) -> tuple[Reports, dict[str, int]]:
    """What the groups of a cohort report: means by rows, one group after the other, in plain loops."""
    order = {"x": 0, "y": 1, "z": 2}
    present = [g for g in order if any(DOMAINS[i] == g for i in told.ids.tolist())]
    ids, sizes, losses, scores, updates, after = [], [], [], [], [], []
    for g in present:
        members = [k for k, i in enumerate(told.ids.tolist()) if DOMAINS[i] == g]
        rows = sum(float(told.sizes[k]) for k in members)
        share = {k: float(told.sizes[k]) / rows for k in members}
        ids.append(order[g])
        sizes.append(rows)
        losses.append(sum(share[k] * float(told.losses[k]) for k in members))
        scores.append(sum(share[k] * float(told.scores[k]) for k in members))
        after.append(sum(share[k] * float(told.after[k]) for k in members))  # type: ignore[index]
        updates.append(torch.stack([share[k] * told.updates[k] for k in members]).sum(0))
    both = reports(losses, sizes, torch.stack(updates), ids, 3, scores, after)
    return both, {g: k for k, g in enumerate(present)}


@pytest.mark.parametrize("name", NAMES)
def test_it_is_the_inner_rule_on_merged_reports(name: str) -> None:
    rule = Grouped(inner(name), DOMAINS)
    state, other = rule.init(6), inner(name).init(3)
    for t, ids in enumerate([[0, 1, 2, 3, 4, 5], [5, 3, 0], [4, 2, 1], [3, 4]]):
        told = cohort(10 * t, ids)
        weights, state = rule(told, state)
        groups, place = merged(told)
        expected, other = inner(name)(groups, other)
        for k, i in enumerate(ids):
            share = told.sizes[k] / groups.sizes[place[DOMAINS[i]]]
            assert weights[k].item() == pytest.approx((expected[place[DOMAINS[i]]] * share).item(), rel=1e-7, abs=1e-10)
        # What moves is what the inner rule would have moved.
        torch.testing.assert_close(weights @ told.updates, expected @ groups.updates, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_with_one_client_a_group_it_is_the_inner_rule(name: str) -> None:
    rule, plain = Grouped(inner(name), tuple("abcdef")), inner(name)
    state, other = rule.init(6), plain.init(6)
    for t, ids in enumerate([[0, 1, 2, 3, 4, 5], [1, 3, 5], [0, 4]]):
        told = cohort(10 * t, ids)
        (weights, state), (expected, other) = rule(told, state), plain(told, other)
        torch.testing.assert_close(weights, expected, rtol=1e-8, atol=1e-10)


def test_one_group_for_all_counts_by_rows() -> None:
    told = cohort(0, [0, 1, 2, 3, 4, 5])
    for rule in (AFL(), Uniform(), PropFair()):
        torch.testing.assert_close(weigh(Grouped(rule, ("all",) * 6), told), weigh(FedAvg(), told))


def test_by_hand() -> None:
    """Groups a = {0, 2} with 1 + 3 rows and b = {1}: each counts a half, and within a by rows."""
    told = reports([1.0, 1.0, 1.0], sizes=[1, 5, 3])
    assert weigh(Grouped(Uniform(), ("a", "b", "a")), told).tolist() == pytest.approx([1 / 8, 1 / 2, 3 / 8])


def test_groups_may_be_numbers() -> None:
    told = cohort(4, [0, 1, 2, 3, 4, 5])
    numbers = tuple({"x": 7, "y": -1, "z": 3}[d] for d in DOMAINS)
    assert torch.equal(weigh(Grouped(AFL(), numbers), told), weigh(Grouped(AFL(), DOMAINS), told))


def test_its_state_is_of_groups() -> None:
    assert Grouped(AFL(), DOMAINS).init(6)["lam"].tolist() == pytest.approx([1 / 3] * 3)


def test_notes_are_the_inner_rules_on_groups() -> None:
    rule = Grouped(PropFair(baseline=2.0), ("a", "a", "b"))
    told = reports([0.0, 3.0, 1.0], sizes=[3, 1, 1])  # the group's mean, 0.75, is bearable
    assert rule.notes(told, {}) == []
    assert len(rule.notes(replace(told, losses=torch.tensor([3.0, 3.0, 1.0])), {})) == 1
    assert Grouped(AFL(), DOMAINS).notes(told, {}) == []


def test_members_of_a_group_that_is_not_believed_are_named() -> None:
    told = reports([1.0, 1.0, 5000.0, 1.0, 1.0], ids=[1, 2, 3, 4, 5], clients=6)
    rule = Grouped(Guarded(FedAvg()), ("d", "a", "b", "c", "c", "b"))
    why = rule.rejected(told)
    assert sorted(why) == [3, 4]  # groups a, b and c stand; 3 and 4 are c, whose mean loss no one believes
    assert all(words.startswith("dropped: its group's loss is") for words in why.values())
    assert weigh(rule, told)[2:4].tolist() == [0.0, 0.0]
    assert Grouped(FedAvg(), ("d", "a", "b", "c", "c", "b")).rejected(told) == {}


def test_losses_after_training_are_asked_for_where_the_inner_rule_needs_them() -> None:
    assert Grouped(AdaFed(loss="after"), DOMAINS).needs_after
    assert not Grouped(AdaFed(), DOMAINS).needs_after
    assert not Grouped(AFL(), DOMAINS).needs_after


def test_bind_reaches_the_inner_rule() -> None:
    bound = Grouped(QFedAvg(), tuple("ab")).bind(federation({"a": 9, "b": 9}), Local(lr=0.5))
    assert bound.rule.lipschitz == 2.0  # type: ignore[attr-defined]


def test_domains_that_come_with_the_data() -> None:
    f = federation({"a": 9, "b": 9, "c": 9}, domains=("m", "f", "m"))
    assert Grouped(AFL()).bind(f, Local()).domains == ("m", "f", "m")


def test_data_without_domains_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no domains of its own"):
        Grouped(AFL()).bind(federation({"a": 9}), Local())


@pytest.mark.parametrize("domains", ["data", 2])
def test_domains_not_yet_known_are_an_error(domains: Any) -> None:
    with pytest.raises(ConfigError, match="in an experiment only"):
        Grouped(AFL(), domains).init(3)


def test_a_list_of_the_wrong_length_is_an_error() -> None:
    with pytest.raises(ConfigError, match="2 domains for 3 clients"):
        Grouped(AFL(), ("a", "b")).bind(federation({"a": 9, "b": 9, "c": 9}), Local())
    with pytest.raises(ConfigError, match="2 domains for 3 clients"):
        Grouped(AFL(), ("a", "b")).init(3)


def labelled(*mixes: list[int]) -> Federation:
    """Clients with these labels, and features that say nothing."""
    y = torch.tensor([label for mix in mixes for label in mix])
    ends = torch.tensor([0, *torch.tensor([len(mix) for mix in mixes]).cumsum(0).tolist()])
    rows = Rows(torch.zeros(len(y), 2), y, ends)
    return Federation(rows, rows, tuple(f"c{k}" for k in range(len(mixes))), outputs=4)


def test_clusters_are_groups_of_like_labels() -> None:
    f = labelled([0, 0, 0, 1], [2, 3, 3], [0, 0, 1], [3, 3, 2, 3, 3, 2], [0] * 7 + [1] * 2)
    domains = Grouped(AFL(), 2).bind(f, Local()).domains
    assert isinstance(domains, tuple)
    assert domains[0] == domains[2] == domains[4] != domains[1] == domains[3]
    assert set(domains) == {0, 1}


def test_clusters_are_the_same_every_time() -> None:
    f = federation(dict.fromkeys("abcdefgh", 20))
    assert Grouped(AFL(), 3).bind(f, Local()) == Grouped(AFL(), 3).bind(f, Local())


@pytest.mark.parametrize("count", [0, -1, 4])
def test_a_number_of_clusters_that_cannot_be_is_an_error(count: int) -> None:
    with pytest.raises(ConfigError, match=f"{count} groups among 3 clients"):
        Grouped(AFL(), count).bind(labelled([0], [1], [2]), Local())


def test_clients_alike_cannot_be_told_apart() -> None:
    with pytest.raises(ConfigError, match="2 different label distributions"):
        Grouped(AFL(), 3).bind(labelled([0, 1], [1, 0], [2]), Local())


def test_values_instead_of_labels_have_no_clusters() -> None:
    f = Federation.from_arrays([[0.0], [1.0], [2.0], [3.0]], [0.5, 1.0, 2.0, 0.1], [*"aabb"])
    with pytest.raises(ConfigError, match="by their labels"):
        Grouped(AFL(), 2).bind(f, Local())


WOMEN = ("Jo", "Kate", "Penny", "Rose", "Sarah", "Sue", "Wendy")
SEXES = ["f" if name in WOMEN else "m" for name in commonweal.dataset("vowel").names]


def test_grouped_afl_in_an_experiment() -> None:
    rule = {"name": "grouped", "rule": {"name": "afl", "lr": 0.5}, "domains": SEXES}
    rounds = vowel(rule, rounds=4)
    for done in rounds:
        lam = dict(zip(dict.fromkeys(SEXES), done.server["rule"]["lam"].tolist(), strict=True))
        women = sum(weight for name, weight in done.weights.items() if name in WOMEN)
        assert women == pytest.approx(lam["f"], abs=1e-9)
        assert sum(done.weights.values()) == pytest.approx(1, abs=1e-9)
    assert abs(lam["f"] - 0.5) > 1e-3  # the game has moved


def test_an_experiment_with_clusters_and_a_cohort() -> None:
    x, rng = normals(0, 120, 3).float(), torch.Generator().manual_seed(0)
    client = [f"c{k}" for k in range(8) for _ in range(15)]
    y = [int(torch.randint(0, 2, (1,), generator=rng)) + (2 if name in ("c0", "c3", "c5") else 0) for name in client]
    f = commonweal.Federation.from_arrays(x, y, client)
    task = commonweal.Task(torch.nn.Linear(3, 4))
    rule = Grouped(AFL(), 2)
    rounds = list(commonweal.run(task, f, rule=rule, rounds=3, cohort=3))
    assert all(sum(done.weights.values()) == pytest.approx(1, abs=1e-9) for done in rounds)


@pytest.mark.parametrize(("domains", "word"), [(["a", "b"], "2 domains for 15 clients"), ("data", "no domains")])
def test_an_experiment_with_wrong_domains_says_so_at_once(domains: Any, word: str) -> None:
    rule = {"name": "grouped", "rule": {"name": "afl"}, "domains": domains}
    with pytest.raises(ConfigError, match=word):
        prepare(commonweal.Experiment(dataset="vowel", rule=rule))


def test_an_experiment_with_groups_survives_its_own_text() -> None:
    rule = {"name": "grouped", "rule": {"name": "afl", "lr": 0.5}, "domains": SEXES}
    experiment = commonweal.Experiment(dataset="vowel", rule=rule)
    assert commonweal.Experiment(**tomllib.loads(experiment.toml())) == experiment
