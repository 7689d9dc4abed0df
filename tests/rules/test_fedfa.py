"""FedFA against its formula in plain Python, over rounds, and at the ends of its logarithms."""

import math

import pytest
import torch

from commonweal.base.errors import ConfigError
from commonweal.rules import FedFA
from rule_helpers import play, reports, uniforms, vowel, weigh


def formula(
    scores: list[float], counts: list[int], total: int, alpha: float, beta: float
) -> list[float]:
    a = [-math.log2(s / sum(scores)) for s in scores]
    b = [-math.log2(1 - c / total) for c in counts]
    parts = [alpha * x / sum(a) + beta * y / sum(b) for x, y in zip(a, b, strict=True)]
    return [part / sum(parts) for part in parts]


@pytest.mark.parametrize(("alpha", "beta"), [(0.5, 0.5), (1.0, 0.0), (0.0, 1.0), (2.0, 3.0)])
def test_weights_follow_the_formula_over_rounds(alpha: float, beta: float) -> None:
    rule = FedFA(alpha, beta)
    counts = [0] * 6
    state = rule.init(6)
    for t in range(12):
        ids = [t % 6, (t + 1) % 6, (3 * t + 2) % 6] if t % 3 else [5, 0]
        ids = list(dict.fromkeys(ids))
        scores = (0.05 + 0.9 * uniforms(t, len(ids))).tolist()
        for i in ids:
            counts[i] += 1
        told = reports([1.0] * len(ids), ids=ids, clients=6, scores=scores)
        weights, state = play(rule, told, state)
        cohort = [counts[i] for i in ids]
        expected = formula(scores, cohort, sum(cohort), alpha, beta)
        assert weights.tolist() == pytest.approx(expected, rel=1e-10)
    assert state["counts"].tolist() == counts


def test_by_hand() -> None:
    """Scores of 1/8, 1/8, 1/4 and 1/2 are their parts of the sum: 3 : 3 : 2 : 1 of 9."""
    got = weigh(FedFA(), reports([1.0] * 4, scores=[0.125, 0.125, 0.25, 0.5]))
    expected = [(x / 9 + 0.25) / 2 for x in (3, 3, 2, 1)]
    assert got.tolist() == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize(
    ("scores", "first", "last"),
    [([0.2, 0.9, 0.9, 0.95, 0.99], 0.271, 0.179), ([0.9] * 9 + [0.99], 0.100, 0.098)],
)
def test_weights_of_the_public_implementations(
    scores: list[float], first: float, last: float
) -> None:
    """Computed by an audit from the code of FLGo and easyFL."""
    got = weigh(FedFA(), reports([1.0] * len(scores), scores=scores))
    assert got[0].item() == pytest.approx(first, abs=6e-4)
    assert got[-1].item() == pytest.approx(last, abs=6e-4)


def test_who_is_served_worse_and_who_takes_part_more_counts_more() -> None:
    rule = FedFA()
    _, state = play(rule, reports([1.0], ids=[2], clients=4), rule.init(4))
    often = weigh(rule, reports([1.0, 1.0], ids=[2, 3], clients=4, scores=[0.6, 0.6]), state)
    worse = weigh(rule, reports([1.0, 1.0], ids=[0, 1], clients=4, scores=[0.2, 0.6]), state)
    assert often[0] > often[1]
    assert worse[0] > worse[1]


@pytest.mark.parametrize(
    "scores",
    [
        [0.0, 0.0],
        [1.0, 1.0],
        [0.0, 1.0],
        [-3.0, 0.5],
        [math.nan, 0.5],
        [math.nan, math.nan],
        [2.0, 1.0],
    ],
)
def test_scores_without_a_logarithm_give_finite_weights(scores: list[float]) -> None:
    got = weigh(FedFA(), reports([1.0, 1.0], scores=scores))
    assert torch.isfinite(got).all()
    assert (got > 0).all()
    assert got.sum().item() == pytest.approx(1, abs=1e-12)


def test_perfect_scores_count_alike() -> None:
    assert weigh(FedFA(), reports([1.0] * 3, scores=[1.0] * 3)).tolist() == pytest.approx(
        [1 / 3] * 3, rel=1e-12
    )


def test_an_undefined_score_stands_for_the_mean_of_the_others() -> None:
    got = weigh(FedFA(), reports([1.0] * 3, scores=[math.nan, 0.2, 0.6]))
    assert torch.equal(got, weigh(FedFA(), reports([1.0] * 3, scores=[0.4, 0.2, 0.6])))


def test_undefined_scores_everywhere_count_alike() -> None:
    assert weigh(FedFA(), reports([1.0] * 2, scores=[math.nan] * 2)).tolist() == pytest.approx(
        [0.5, 0.5]
    )


def test_one_client_of_one() -> None:
    rule = FedFA()
    weights, state = play(rule, reports([1.0]), rule.init(1))
    assert weights.tolist() == [1.0]
    assert weigh(rule, reports([1.0]), state).tolist() == [1.0]


def test_losses_and_sizes_do_not_matter() -> None:
    one = weigh(FedFA(), reports([1.0, 1.0], scores=[0.5, 0.25]))
    assert torch.equal(
        one, weigh(FedFA(), reports([1e4, 0.0], sizes=[1, 10**9], scores=[0.5, 0.25]))
    )


def test_an_experiment_with_its_double_momentum_runs() -> None:
    rounds = vowel(
        "fedfa",
        cohort=5,
        rounds=4,
        client={"name": "sgd", "momentum": 0.9, "lr": 0.02},
        server={"name": "sgd", "momentum": 0.5},
    )
    taken = sum(len(done.clients) for done in rounds)
    assert rounds[-1].state["rule"]["counts"].sum().item() == taken == 20


@pytest.mark.parametrize("wrong", [{"alpha": -1.0}, {"beta": -1.0}, {"alpha": 0.0, "beta": 0.0}])
def test_parameters_out_of_range_are_errors(wrong: dict[str, float]) -> None:
    with pytest.raises(
        ConfigError, match=rf"fedfa {next(iter(wrong))} .*= {next(iter(wrong.values()))}"
    ):
        FedFA(**wrong)
