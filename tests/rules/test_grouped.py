"""grouped: the inner rule on reports merged by hand; groups from a list, data or clusters."""

import tomllib
from dataclasses import replace

import pytest
import torch

import commonweal
from commonweal.base.errors import ConfigError
from commonweal.config import catalog
from commonweal.data.population import Setting
from commonweal.jobs.job import job_from_experiment
from commonweal.rules import (
    AFL,
    AdaFed,
    FedAvg,
    Grouped,
    Guarded,
    PropFair,
    QFedAvg,
    Reports,
    Uniform,
)
from rule_helpers import (
    build,
    normals,
    play,
    reports,
    uniforms,
    updates_of,
    vowel,
    vowel_experiment,
    warnings,
    weigh,
)

DOMAINS = ("x", "y", "x", "z", "y", "x")
NAMES = [name for name in catalog.entries("rules") if name not in ("grouped", "guarded")]


def cohort(seed: int, ids: list[int]) -> Reports:
    s = len(ids)
    scores = uniforms(seed + 1, s)
    after = uniforms(seed + 2, s)
    losses = 0.1 + uniforms(seed, s)
    sizes = (1 + 20 * uniforms(seed + 3, s)).round()
    return reports(losses, sizes, normals(seed, s, 12) + 0.5, ids, 6, scores, after)


def merged(told: Reports) -> tuple[Reports, dict[str, int]]:
    """What the groups of a cohort report: means by rows, group by group, in plain loops."""
    assert told.scores is not None
    assert told.losses_after is not None
    all_updates = updates_of(told)
    order = {"x": 0, "y": 1, "z": 2}
    present = [g for g in order if any(DOMAINS[i] == g for i in told.ids.tolist())]
    ids = []
    sizes = []
    losses = []
    scores = []
    updates = []
    after = []
    for g in present:
        members = [k for k, i in enumerate(told.ids.tolist()) if DOMAINS[i] == g]
        rows = sum(float(told.sizes[k]) for k in members)
        share = {k: float(told.sizes[k]) / rows for k in members}
        ids.append(order[g])
        sizes.append(rows)
        losses.append(sum(share[k] * float(told.losses[k]) for k in members))
        scores.append(sum(share[k] * float(told.scores[k]) for k in members))
        after.append(sum(share[k] * float(told.losses_after[k]) for k in members))
        updates.append(torch.stack([share[k] * all_updates[k] for k in members]).sum(0))
    both = reports(losses, sizes, torch.stack(updates), ids, 3, scores, after)
    return both, {g: k for k, g in enumerate(present)}


@pytest.mark.parametrize("name", NAMES)
def test_it_is_the_inner_rule_on_merged_reports(name: str) -> None:
    rule = Grouped(build(name), DOMAINS)
    state = rule.init(6)
    other = build(name).init(3)
    for t, ids in enumerate([[0, 1, 2, 3, 4, 5], [5, 3, 0], [4, 2, 1], [3, 4]]):
        told = cohort(10 * t, ids)
        weights, state = play(rule, told, state)
        groups, place = merged(told)
        expected, other = play(build(name), groups, other)
        for k, i in enumerate(ids):
            share = told.sizes[k] / groups.sizes[place[DOMAINS[i]]]
            weight = (expected[place[DOMAINS[i]]] * share).item()
            assert weights[k].item() == pytest.approx(weight, rel=1e-7, abs=1e-10)
        # What moves is what the inner rule would have moved.
        direction = weights @ updates_of(told)
        same = expected @ updates_of(groups)
        torch.testing.assert_close(direction, same, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_with_one_client_per_group_it_is_the_inner_rule(name: str) -> None:
    rule = Grouped(build(name), tuple("abcdef"))
    plain = build(name)
    state = rule.init(6)
    other = plain.init(6)
    for t, ids in enumerate([[0, 1, 2, 3, 4, 5], [1, 3, 5], [0, 4]]):
        told = cohort(10 * t, ids)
        weights, state = play(rule, told, state)
        expected, other = play(plain, told, other)
        torch.testing.assert_close(weights, expected, rtol=1e-8, atol=1e-10)


def test_one_group_for_all_counts_by_rows() -> None:
    told = cohort(0, [0, 1, 2, 3, 4, 5])
    for rule in (AFL(), Uniform(), PropFair()):
        torch.testing.assert_close(weigh(Grouped(rule, ("all",) * 6), told), weigh(FedAvg(), told))


def test_by_hand() -> None:
    """Groups a = {0, 2} with 1 + 3 rows and b = {1}: each counts a half, and within a by rows."""
    told = reports([1.0, 1.0, 1.0], sizes=[1, 5, 3])
    assert weigh(Grouped(Uniform(), ("a", "b", "a")), told).tolist() == pytest.approx(
        [1 / 8, 1 / 2, 3 / 8]
    )


def test_groups_may_be_numbers() -> None:
    told = cohort(4, [0, 1, 2, 3, 4, 5])
    numbers = tuple({"x": 7, "y": -1, "z": 3}[d] for d in DOMAINS)
    assert torch.equal(weigh(Grouped(AFL(), numbers), told), weigh(Grouped(AFL(), DOMAINS), told))


def test_its_state_is_of_groups() -> None:
    state = Grouped(AFL(), DOMAINS).init(6)
    assert state["group"].tolist() == [0, 1, 0, 2, 1, 0]
    assert state["rule"]["lam"].tolist() == pytest.approx([1 / 3] * 3)


def test_warnings_are_the_inner_rules_on_groups() -> None:
    rule = Grouped(PropFair(baseline=2.0, relative=False), ("a", "a", "b"))
    told = reports([0.0, 3.0, 1.0], sizes=[3, 1, 1])  # the group's mean, 0.75, is acceptable
    assert warnings(rule, told) == ()
    assert len(warnings(rule, replace(told, losses=torch.tensor([3.0, 3.0, 1.0])))) == 1
    assert warnings(Grouped(AFL(), ("a", "a", "b")), told) == ()


GROUPS = ("d", "a", "b", "c", "c", "b")
# Clients 3 and 4 are group c, whose mean loss is implausible.
IMPLAUSIBLE = reports([1.0, 1.0, 5000.0, 1.0, 1.0], ids=[1, 2, 3, 4, 5], clients=6)


def test_members_of_a_dropped_group_are_named() -> None:
    rule = Grouped(Guarded(FedAvg()), GROUPS)
    decision = rule(IMPLAUSIBLE, rule.init(6))
    assert sorted(decision.dropped) == [3, 4]
    assert decision.capped == {}
    reason = "its group: its loss is 2.5e+03 times the cohort's median"
    assert set(decision.dropped.values()) == {reason}
    assert decision.weights[2:4].tolist() == [0.0, 0.0]
    plain = Grouped(FedAvg(), GROUPS)
    assert plain(IMPLAUSIBLE, plain.init(6)).dropped == {}


def test_members_of_a_capped_group_are_used() -> None:
    rule = Grouped(Guarded(FedAvg(), action="cap"), GROUPS)
    decision = rule(IMPLAUSIBLE, rule.init(6))
    assert sorted(decision.capped) == [3, 4]
    assert decision.dropped == {}
    assert (decision.weights > 0).all()


def test_clients_send_what_the_inner_rule_needs() -> None:
    for rule in (AdaFed(loss="after"), AdaFed(), AFL()):
        assert Grouped(rule, DOMAINS).needs == rule.needs
        assert Grouped(rule, 2).needs == rule.needs | {"labels"}


def test_updates_are_merged_only_where_the_inner_rule_needs_them() -> None:
    told = cohort(0, [0, 1, 2, 3, 4, 5])
    rule = Grouped(AFL(), DOMAINS)
    assert torch.equal(weigh(rule, replace(told, updates=None)), weigh(rule, told))


def test_mixing_is_the_inner_rules() -> None:
    assert Grouped(AFL(), DOMAINS).mixing
    assert not Grouped(AdaFed(), DOMAINS).mixing
    assert not Grouped(Guarded(AFL(), action="cap"), DOMAINS).mixing


def test_the_setting_reaches_the_inner_rule() -> None:
    state = Grouped(QFedAvg(scaled=True), tuple("ab")).init(Setting(clients=2, lr=0.5))
    assert state["rule"]["lipschitz"].item() == 2.0


def test_newcomers_are_a_group() -> None:
    """Groups x and y of two clients each, then two clients that were not there at the start."""
    rule = Grouped(Uniform(), ("x", "y", "x", "y"))
    told = reports([1.0] * 6, ids=[0, 1, 2, 3, 4, 5], clients=6)
    decision = rule(told, rule.init(4))
    assert decision.weights.tolist() == pytest.approx([1 / 6] * 6)
    first = reports([1.0, 1.0], ids=[0, 4], clients=6)
    assert weigh(rule, first, decision.state).tolist() == pytest.approx([1 / 2, 1 / 2])


def test_newcomers_play_against_the_groups_that_are_known() -> None:
    rule = Grouped(AFL(lr=0.5), ("x", "y"))
    state = rule.init(2)
    for _ in range(30):
        _, state = play(rule, reports([1.0, 1.0]), state)
    told = reports([1.0, 1.0, 3.0], ids=[0, 1, 2], clients=3)
    for _ in range(5):
        weights, state = play(rule, told, state)
    assert weights.tolist() == [0.0, 0.0, 1.0]
    assert state["group"].tolist() == [0, 1]


def test_domains_that_come_with_the_data() -> None:
    setting = Setting(clients=3, groups=("m", "f", "m"))
    assert Grouped(AFL()).init(setting)["group"].tolist() == [0, 1, 0]


def test_data_without_domains_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no domains of its own"):
        Grouped(AFL()).init(3)


def test_clusters_without_label_counts_are_an_error() -> None:
    with pytest.raises(ConfigError, match="needs the clients' label counts"):
        Grouped(AFL(), 2).init(3)


def test_a_list_of_the_wrong_length_is_an_error() -> None:
    with pytest.raises(ConfigError, match="2 domains for 3 clients"):
        Grouped(AFL(), ("a", "b")).init(3)


def labelled(*mixes: list[int]) -> Setting:
    """Clients with these labels."""
    counts = [torch.bincount(torch.tensor(mix), minlength=4) for mix in mixes]
    return Setting(clients=len(mixes), label_counts=torch.stack(counts))


def test_clusters_are_groups_of_similar_labels() -> None:
    few = [0, 0, 0, 1], [2, 3, 3], [0, 0, 1]
    many = [3, 3, 2, 3, 3, 2], [0] * 7 + [1] * 2
    groups = Grouped(AFL(), 2).init(labelled(*few, *many))["group"].tolist()
    assert groups[0] == groups[2] == groups[4] != groups[1] == groups[3]
    assert set(groups) == {0, 1}


def test_clusters_are_the_same_every_time() -> None:
    generator = torch.Generator().manual_seed(0)
    counts = torch.randint(0, 20, (8, 3), generator=generator)
    setting = Setting(clients=8, label_counts=counts)
    rule = Grouped(AFL(), 3)
    assert torch.equal(rule.init(setting)["group"], rule.init(setting)["group"])
    assert set(rule.init(setting)["group"].tolist()) == {0, 1, 2}


@pytest.mark.parametrize("count", [0, -1, 4])
def test_an_impossible_number_of_clusters_is_an_error(count: int) -> None:
    with pytest.raises(ConfigError, match=f"{count} groups among 3 clients"):
        Grouped(AFL(), count).init(labelled([0], [1], [2]))


def test_equal_clients_cannot_be_separated() -> None:
    with pytest.raises(ConfigError, match="2 different label distributions"):
        Grouped(AFL(), 3).init(labelled([0, 1], [1, 0], [2]))


WOMEN = ("Jo", "Kate", "Penny", "Rose", "Sarah", "Sue", "Wendy")


def by_sex() -> list[str]:
    names = commonweal.dataset("vowel").names
    return ["f" if name in WOMEN else "m" for name in names]


def test_grouped_afl_in_an_experiment() -> None:
    domains = by_sex()
    rounds = vowel(grouped_afl(domains, lr=0.5), rounds=4)
    for done in rounds:
        values = done.state["rule"]["rule"]["lam"].tolist()
        lam = dict(zip(dict.fromkeys(domains), values, strict=True))
        women = sum(weight for name, weight in done.weights.items() if name in WOMEN)
        assert women == pytest.approx(lam["f"], abs=1e-9)
        assert sum(done.weights.values()) == pytest.approx(1, abs=1e-9)
    assert abs(lam["f"] - 0.5) > 1e-3  # the game has moved


def test_an_experiment_with_clusters_and_a_cohort() -> None:
    x = normals(0, 120, 3).float()
    rng = torch.Generator().manual_seed(0)
    client = [f"c{k}" for k in range(8) for _ in range(15)]
    offset = torch.tensor([2 if name in ("c0", "c3", "c5") else 0 for name in client])
    y = torch.randint(0, 2, (120,), generator=rng) + offset
    f = commonweal.Federation.from_arrays(x, y, client)
    task = commonweal.Task(torch.nn.Linear(3, 4))
    rule = Grouped(AFL(), 2)
    rounds = list(commonweal.run(task, f, rule=rule, rounds=3, cohort=3))
    assert all(sum(done.weights.values()) == pytest.approx(1, abs=1e-9) for done in rounds)


def grouped_afl(domains: str | list[str], **parameters: object) -> dict[str, object]:
    return {"name": "grouped", "rule": {"name": "afl", **parameters}, "domains": domains}


@pytest.mark.parametrize(
    ("domains", "word"), [(["a", "b"], "2 domains for 15 clients"), ("data", "no domains")]
)
def test_an_experiment_with_wrong_domains_fails_at_the_start(
    domains: str | list[str], word: str
) -> None:
    job = job_from_experiment(vowel_experiment(grouped_afl(domains)))
    with pytest.raises(ConfigError, match=word):
        job.initial_state()


def test_an_experiment_with_groups_survives_its_own_text() -> None:
    experiment = vowel_experiment(grouped_afl(by_sex(), lr=0.5))
    assert commonweal.Experiment(**tomllib.loads(experiment.toml())) == experiment
