"""excess: the inner rule on loss gaps, and noise that AFL chases and excess(AFL) does not."""

from pathlib import Path

import pytest
import torch

import commonweal
from commonweal.base.errors import ConfigError
from commonweal.checks.rules import RULE_CHECKS, Trial, find_problem
from commonweal.rules import AFL, OWA, Excess, FedAvg, QFedAvg
from rule_helpers import play, reports, vowel, weigh


def test_the_rule_sees_the_excess() -> None:
    """0.5 and 1.5 above what they reach alone: 1 : 3."""
    rule = Excess(QFedAvg(q=1.0, scaled=False), alone=(2.5, 0.5))
    assert weigh(rule, reports([3.0, 2.0])).tolist() == pytest.approx([0.25, 0.75], rel=1e-5)


def test_a_loss_below_the_clients_own_best_is_no_excess() -> None:
    rule = Excess(QFedAvg(q=1.0, scaled=False), alone=(2.5, 0.5))
    assert weigh(rule, reports([2.0, 1.5]))[0] < 2e-6


def test_without_losses_alone_it_is_the_rule() -> None:
    told = reports([1.0, 3.0, 2.0])
    torch.testing.assert_close(weigh(Excess(OWA()), told), weigh(OWA(), told))


def game(rule: AFL | Excess) -> tuple[float, torch.Tensor]:
    """Client 0 has labels by chance (a loss of at least log 2), client 1 can be learnt."""
    logit = torch.zeros(1, dtype=torch.float64)
    state = rule.init(2)
    for _ in range(400):
        p = torch.sigmoid(logit)
        losses = [float(-(p.log() + (1 - p).log()) / 2), float(-p.log())]
        told = reports(losses, updates=[[float(p) - 0.5], [float(p) - 1]])
        weights, state = play(rule, told, state)
        logit = logit - 0.5 * weights @ torch.cat([p - 0.5, p - 1])
    return float(torch.sigmoid(logit)), weights


def test_noise_takes_all_of_afls_weight_but_not_that_of_the_excess() -> None:
    chased, all_weight = game(AFL())
    regret, shared = game(Excess(AFL(), alone=(0.693147, 0.0)))
    assert all_weight[0] > 0.99
    assert 0.1 < shared[0] < 0.9
    assert chased == pytest.approx(0.5, abs=0.01)
    assert 0.6 < regret < 0.95


@pytest.mark.parametrize("name", sorted({*RULE_CHECKS} - {"equal clients"}))
def test_it_keeps_the_contract_with_losses_alone(name: str) -> None:
    """Clients that differ in what they reach alone are not equal."""
    rule = Excess(AFL(), alone=(0.1, 0.2, 0.1, 0.4, 0.5, 0.6))
    assert find_problem(RULE_CHECKS[name], Trial(rule, 6, 0)) is None


def test_a_client_that_joins_late_has_the_mean_of_the_others() -> None:
    rule = Excess(QFedAvg(q=1.0, scaled=False), alone=(1.0, 3.0))
    told = reports([5.0, 5.0], ids=[0, 2], clients=3)
    assert weigh(rule, told, rule.init(2)).tolist() == pytest.approx([4 / 7, 3 / 7], rel=1e-5)


def test_an_experiment_runs() -> None:
    alone = [0.1] * 15
    rule: dict[str, object] = {"name": "excess", "rule": {"name": "afl"}, "alone": alone}
    assert all(sum(done.weights.values()) == pytest.approx(1) for done in vowel(rule))


def test_losses_for_other_clients_are_an_error() -> None:
    with pytest.raises(ConfigError, match="alone has 2 losses for 3 clients"):
        Excess(FedAvg(), alone=(0.1, 0.2)).init(3)


def test_losses_alone_are_read_from_a_run(tmp_path: Path) -> None:
    setting = {"dataset": "vowel", "rounds": 3, "evaluate_every": 3}
    alone = list(
        commonweal.run(commonweal.Experiment(client="alone", **setting), out=tmp_path / "alone")
    )
    lowest = torch.tensor([each.losses for each in alone]).min(0).values
    rule = {"name": "excess", "rule": "qfedavg", "path": str(tmp_path / "alone")}
    first = next(commonweal.run(commonweal.Experiment(rule=rule, **setting)))
    above = (torch.tensor(first.losses) - lowest).clamp(min=0)
    weights = torch.tensor(list(first.weights.values()))
    torch.testing.assert_close(weights, above / above.sum(), rtol=1e-3, atol=1e-4)


def test_a_run_that_has_no_losses_alone_is_refused(tmp_path: Path) -> None:
    setting = {"dataset": "vowel", "rounds": 1}
    folder = str(tmp_path / "fedavg")
    list(commonweal.run(commonweal.Experiment(**setting), out=folder))
    rule = {"name": "excess", "rule": "afl", "path": folder}
    with pytest.raises(ConfigError, match="a run with client = 'sgd'"):
        next(commonweal.run(commonweal.Experiment(rule=rule, **setting)))
    with pytest.raises(ConfigError, match="outside of a run"):
        Excess(AFL(), path=folder).init(3)


def test_groups_see_the_mean_of_their_members_local_losses(tmp_path: Path) -> None:
    """grouped(excess(path)) in a run: the group's loss above its members' mean, by hand."""
    setting = {"dataset": "vowel", "rounds": 2, "evaluate_every": 2}
    folder = tmp_path / "alone"
    local = list(commonweal.run(commonweal.Experiment(client="alone", **setting), out=folder))
    lowest = torch.tensor([done.losses for done in local]).min(0).values.double()
    domains = [0] * 5 + [1] * 10
    inner = {"name": "excess", "rule": "qfedavg", "path": str(folder)}
    rule = {"name": "grouped", "rule": inner, "domains": domains}
    first = next(commonweal.run(commonweal.Experiment(rule=rule, **setting)))
    sizes = first.job.engine.population.sizes.double()
    losses = torch.tensor(first.losses).double()
    group = torch.tensor(domains)
    above = [
        float((sizes * (losses - lowest))[group == g].sum() / sizes[group == g].sum())
        for g in (0, 1)
    ]
    weights = torch.tensor(list(first.weights.values()))
    assert float(weights[:5].sum()) == pytest.approx(above[0] / sum(above), rel=1e-3)
