"""PropFair against fractions, as the gradient of its objective, and beyond the baseline."""

import math
from fractions import Fraction

import pytest

from commonweal.base.errors import ConfigError
from commonweal.rules import PropFair
from rule_helpers import build, reports, uniforms, vowel, warnings, weigh

PUBLISHED = PropFair(baseline=5.0, relative=False)


def shares(parts: list[Fraction]) -> list[float]:
    return [float(part / sum(parts)) for part in parts]


@pytest.mark.parametrize("baseline", [5.0, 2.0, 3e4])
@pytest.mark.parametrize("losses", [[0.0, 0.5, 1.5], [1e-30, 0.0, 1.0], [0.0, 0.0, 0.0]])
def test_weights_are_sizes_over_what_is_left(baseline: float, losses: list[float]) -> None:
    sizes = [3, 1, 10**9]
    expected = shares(
        [n / (Fraction(baseline) - Fraction(f)) for f, n in zip(losses, sizes, strict=True)]
    )
    assert weigh(
        PropFair(baseline, relative=False), reports(losses, sizes=sizes)
    ).tolist() == pytest.approx(expected, rel=1e-12)
    even = shares([1 / (Fraction(baseline) - Fraction(f)) for f in losses])
    got = weigh(PropFair(baseline, relative=False, prior="uniform"), reports(losses, sizes=sizes))
    assert got.tolist() == pytest.approx(even, rel=1e-12)


def test_a_loss_of_1e4_below_a_larger_baseline_is_exact() -> None:
    got = weigh(PropFair(baseline=10001.0, relative=False), reports([1e4, 1.0]))
    assert got.tolist() == pytest.approx(shares([Fraction(1), Fraction(1, 10000)]), rel=1e-12)


def test_weights_are_the_gradient_of_the_objective() -> None:
    """[A] eq. 21: minimise -sum p log(M - f)."""
    f = (3 * uniforms(2, 4)).tolist()
    p = [0.1, 0.2, 0.3, 0.4]
    h = 1e-6

    def objective(losses: list[float]) -> float:
        return -sum(q * math.log(5 - x) for q, x in zip(p, losses, strict=True))

    gradient = []
    for i in range(4):
        up = list(f)
        down = list(f)
        up[i] += h
        down[i] -= h
        gradient.append((objective(up) - objective(down)) / (2 * h))
    got = weigh(PUBLISHED, reports(f, sizes=[1, 2, 3, 4]))
    assert got.tolist() == pytest.approx([s / sum(gradient) for s in gradient], rel=1e-7)


@pytest.mark.parametrize("loss", [4.9, 5.0, 5.1, 7.0, 1e4, 1e30])
def test_beyond_the_baseline_the_weight_is_large_and_finite(loss: float) -> None:
    """The gradient at M - margin is held: 1 / 0.2 against 1 / 4."""
    assert weigh(PUBLISHED, reports([1.0, loss])).tolist() == pytest.approx(
        [1 / 21, 20 / 21], rel=1e-9
    )


def test_weights_join_at_the_margin_and_never_fall() -> None:
    worst = [
        float(weigh(PUBLISHED, reports([1.0, loss]))[1])
        for loss in (0.0, 2.0, 4.7999999, 4.8, 4.81, 6.0)
    ]
    assert worst == sorted(worst)
    assert worst[2] == pytest.approx(worst[3], rel=1e-6)


def test_everyone_beyond_is_the_prior() -> None:
    assert weigh(PUBLISHED, reports([6.0, 1e4], sizes=[1, 3])).tolist() == pytest.approx(
        [0.25, 0.75], rel=1e-12
    )


def test_relative_losses_have_no_unit() -> None:
    """Losses of 1 and 3 in any unit are 1/2 and 3/2 of their mean: 1 / 2.5 against 1 / 1.5."""
    for unit in (1e-9, 1.0, 1e6):
        got = weigh(PropFair(baseline=3.0), reports([unit, 3 * unit]))
        assert got.tolist() == pytest.approx([3 / 8, 5 / 8], rel=1e-9)
        assert warnings(PropFair(), reports([unit, 1e3 * unit])) == ()


def test_a_warning_names_the_remedy() -> None:
    rule = PropFair(baseline=3.0, margin=0.5, relative=False)
    assert warnings(rule, reports([0.1, 2.5])) == ()
    (warning,) = warnings(rule, reports([2.6, 9.0, 9.0]))
    assert "2.5" in warning
    assert "raise the baseline" in warning


def test_the_warning_is_in_the_rounds_that_need_it_once() -> None:
    """At the start every vowel loss is log 11 = 2.4, above 2.5 - 0.2; later losses are not."""
    rounds = vowel({"name": "propfair", "baseline": 2.5, "relative": False}, rounds=15)
    warned = [len(done.warnings) for done in rounds]
    assert warned[0] == 1
    assert "raise the baseline" in rounds[0].warnings[0]
    assert [max(done.losses) > 2.3 for done in rounds] == [bool(n) for n in warned]
    assert warned[-1] == 0
    assert all(math.isfinite(loss) for done in rounds for loss in done.losses)


@pytest.mark.parametrize("wrong", [{"baseline": 0.0}, {"margin": 0.0}, {"baseline": -1.0}])
def test_parameters_out_of_range_are_errors(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="must be above 0"):
        build("propfair", **wrong)
