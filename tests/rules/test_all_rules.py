"""Properties of all rules on reports that hypothesis chooses, and what `Reports` refuses."""

from dataclasses import replace

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from commonweal.base.errors import DataError
from commonweal.base.tensors import flatten
from commonweal.config import catalog
from commonweal.data.population import Setting
from commonweal.rules import Reports, Rule
from commonweal.rules.rule import decide
from rule_helpers import build, reports, weigh

NAMES = list(catalog.entries("rules"))
SIZES = st.one_of(st.floats(1e-3, 1e3), st.floats(-4, 4).map(lambda power: 10**power))
SIGNS = st.sampled_from([1.0, -1.0, 0.0])
NUMBERS = st.builds(lambda sign, size: sign * size, SIGNS, SIZES)
POWERS = st.floats(-37, 37)  # as far as float32 goes
EXTREMES = st.builds(lambda sign, power: sign * 10**power, SIGNS, POWERS)
OF_LOSSES = [name for name in NAMES if "update" not in build(name).needs]
RATIO_RULES = [name for name in NAMES if "nonnegative_loss" in build(name).needs]
WITHOUT = [name for name in NAMES if "loss" not in build(name).needs]


@st.composite
def rounds(draw: st.DrawFn, losses: st.SearchStrategy[float] = NUMBERS) -> list[Reports]:
    """Three rounds of up to six clients, with whatever numbers clients may send."""
    size = draw(st.integers(1, 6))
    width = draw(st.integers(1, 4))
    return [draw(one_round(size, width, losses)) for _ in range(3)]


@st.composite
def one_round(draw: st.DrawFn, size: int, width: int, losses: st.SearchStrategy[float]) -> Reports:
    def numbers(*shape: int, values: st.SearchStrategy[float] = NUMBERS) -> Tensor:
        count = torch.Size(shape).numel()
        flat = draw(st.lists(values, min_size=count, max_size=count))
        return torch.tensor(flat, dtype=torch.float64).reshape(shape)

    ids = draw(st.permutations(range(6)))[:size]
    return Reports(
        ids=torch.tensor(ids),
        sizes=numbers(size, values=st.floats(1e-3, 1e12)),
        losses=numbers(size, values=losses),
        clients=6,
        scores=numbers(size, values=st.floats(0, 1)),
        updates=numbers(size, width),
        losses_after=numbers(size, values=losses),
    )


def start(rule: Rule) -> dict[str, object]:
    counts = torch.eye(6, dtype=torch.int64)
    return rule.init(Setting(6, groups=tuple("aabbcc"), label_counts=counts))


@pytest.mark.parametrize("name", sorted({*RATIO_RULES, *OF_LOSSES} - {"feddg-ga", *WITHOUT}))
def test_negative_losses_count_as_such_or_are_refused(name: str) -> None:
    """No rule of losses alone takes those below 0 for equal ones."""
    rule = build(name)
    torch.manual_seed(0)
    updates = torch.randn(6, 5)
    decisions = []
    for losses in ([-6.0, -5, -4, -3, -2, -1], [-3.5] * 6):
        given = reports(losses, updates=updates, after=[-9.0, -5.1, -4.2, -3, -2.5, -1])
        state = rule.init(6)
        if "nonnegative_loss" in rule.needs:
            with pytest.raises(DataError, match=rf"{type(rule).__name__}: 6 of 6 losses are below"):
                decide(rule, given, state)
            return
        decisions.append(decide(rule, given, state).weights)
    assert not torch.allclose(decisions[0], decisions[1])


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=25, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(rounds())
def test_weights_are_finite_and_sum_as_promised(name: str, told: list[Reports]) -> None:
    check_weights(name, told)


@pytest.mark.parametrize("name", [*OF_LOSSES, "adafed"])
@settings(max_examples=25, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(rounds(EXTREMES))
def test_extreme_losses_give_finite_weights(name: str, told: list[Reports]) -> None:
    """Not for most rules of updates: powers of losses and inner products overflow."""
    check_weights(name, told)


def check_weights(name: str, told: list[Reports]) -> None:
    """Play some rounds."""
    rule = build(name)
    state = start(rule)
    for reported in told:
        decision = rule(reported, state)
        weights = decision.weights
        assert weights.shape == reported.ids.shape
        assert weights.isfinite().all()
        if rule.mixing:
            assert (weights >= 0).all()
            assert weights.sum().item() == pytest.approx(1, abs=1e-9)
        state = decision.state
        for key, value in flatten(state).items():  # it would spoil later rounds unseen
            assert not value.isnan().any(), key


GOOD = reports([1.0, 2.0, 3.0], ids=[4, 7, 9], clients=10, after=[0.5, 1.0, 1.5])


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("sizes", torch.ones(2), r"sizes has the shape \(2,\) for 3 clients"),
        ("losses", torch.ones(3, 1), r"losses has the shape \(3, 1\)"),
        ("scores", torch.ones(4), r"scores has the shape \(4,\)"),
        ("updates", torch.ones(3), r"updates has the shape \(3,\) for 3 clients: give \(S, d\)"),
        ("updates", torch.ones(2, 5), "updates has the shape"),
        ("losses_after", torch.ones(()), "losses_after has the shape"),
        ("ids", torch.tensor([4, 7, 4]), "client 4 reports twice"),
        ("ids", torch.tensor([4.0, 7.0, 9.0]), "as an integer"),
        ("ids", torch.tensor([4, 7, 10]), "client 10 is none of the 10 clients"),
        ("ids", torch.tensor([4, 7, -1]), "client -1 is none of the 10 clients"),
        ("losses", torch.tensor([1.0, torch.nan, 2.0]), r"its loss is nan \(client 7\)"),
        ("losses", torch.tensor([1.0, 2.0, torch.inf]), r"its loss is inf \(client 9\)"),
        ("losses_after", torch.tensor([torch.nan, 1.0, 1.0]), r"after training is nan \(client 4"),
        ("sizes", torch.tensor([1.0, 0.0, 1.0]), r"its size is 0 \(client 7\)"),
        ("sizes", torch.tensor([1.0, -5.0, torch.nan]), r"its size is -5 \(client 7\)"),
        ("updates", torch.tensor([[0.0], [1.0], [torch.inf]]), r"not finite \(client 9\)"),
        ("sizes", torch.ones(3).to_sparse(), "sizes is torch.sparse_coo on cpu: give a dense"),
        ("losses", torch.ones(3, device="meta"), "losses is torch.strided on meta: give a dense"),
        ("losses", [1.0, 2.0, 3.0], r"a list: give a tensor, as by torch.as_tensor\(losses\)"),
    ],
)
def test_reports_that_cannot_be_used_name_the_client(
    column: str, value: Tensor, words: str
) -> None:
    with pytest.raises(DataError, match=words):
        replace(GOOD, **{column: value})  # type: ignore[arg-type]


def test_nobody_is_no_cohort() -> None:
    nothing = torch.empty(0)
    with pytest.raises(DataError, match="at least one client"):
        Reports(ids=torch.empty(0, dtype=torch.int64), sizes=nothing, losses=nothing, clients=3)


def test_an_undefined_score_is_accepted() -> None:
    assert replace(GOOD, scores=torch.full((3,), torch.nan)).scores is not None


def test_finite_leaves_out_those_who_cannot_be_used() -> None:
    told, left_out = Reports.finite(
        ids=torch.tensor([3, 5, 8, 2]),
        sizes=torch.tensor([1.0, 2.0, 3.0, 4.0]),
        losses=torch.tensor([1.0, torch.nan, 2.0, 3.0]),
        updates=torch.tensor([[1.0], [2.0], [-torch.inf], [4.0]]),
        clients=9,
    )
    assert left_out == {5: "its loss is nan", 8: "its update is not finite"}
    assert told.ids.tolist() == [3, 2]
    assert told.losses.tolist() == [1.0, 3.0]
    assert told.updates is not None
    assert told.updates.tolist() == [[1.0], [4.0]]
    with pytest.raises(DataError, match="none of 1 clients can be used; of client 3, its loss"):
        Reports.finite(
            ids=torch.tensor([3]),
            sizes=torch.ones(1),
            losses=torch.tensor([torch.inf]),
            clients=9,
        )


@pytest.mark.parametrize("name", ["afl", "gifair", "owa", "semi-vred"])
def test_a_client_without_a_loss_gains_nothing(name: str) -> None:
    """As in a training loop of one's own: the others' weights are those without it."""
    losses = torch.tensor([1.0, torch.nan, 3.0])
    told, _ = Reports.finite(ids=torch.arange(3), sizes=torch.ones(3), losses=losses, clients=3)
    weights = weigh(build(name), told)
    assert len(weights) == 2
    assert weights[1] > weights[0]
