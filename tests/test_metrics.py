"""Every metric against its definition in plain Python, integer weights as copies, and the edges."""

import inspect
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from cases import cases
from commonweal import metrics
from commonweal.base.errors import CommonwealError, DataError
from commonweal.metrics import (
    Against,
    against,
    angle,
    best,
    gap,
    gini,
    holm,
    kl,
    mean,
    paired,
    seeds_needed,
    spread,
    std,
    summary,
    worst,
)

quick = settings(derandomize=True, max_examples=60, deadline=None, database=None)
# Eighths make ties common and sums exact, so that a wrong definition cannot hide behind rounding.
positive = st.lists(st.integers(0, 40).map(lambda n: n / 8), min_size=1, max_size=12)
signed = st.lists(st.integers(-40, 40).map(lambda n: n / 8), min_size=1, max_size=12)
counted = st.lists(
    st.tuples(st.integers(0, 40).map(lambda n: n / 8), st.integers(0, 4)), min_size=1, max_size=9
).filter(lambda rows: any(w for _, w in rows))
shares = st.sampled_from([0.01, 0.05, 0.1, 0.2, 1 / 3, 0.5, 0.75, 1.0])

Metric = Callable[..., float]
WEIGHTED = [mean, std, gini, angle, kl]
ALL = [*WEIGHTED, worst, best, gap]
KEYS = ["mean", "worst", "worst_5", "worst_10", "worst_20", "best", "best_5", "best_10", "std"]
KEYS += ["gini", "gap", "gap_10", "angle", "kl"]


def near(value: float) -> object:
    return pytest.approx(value, rel=1e-9, abs=1e-9)


def slow_std(x: list[float]) -> float:
    m = sum(x) / len(x)
    return math.sqrt(sum((v - m) ** 2 for v in x) / len(x))


def slow_gini(x: list[float]) -> float:
    return 100 * sum(abs(a - b) for a in x for b in x) / (2 * len(x) * sum(x)) if sum(x) else 0.0


def slow_angle(x: list[float]) -> float:
    norm = math.sqrt(sum(v * v for v in x) * len(x))
    return math.degrees(math.acos(max(-1.0, min(1.0, sum(x) / norm)))) if norm else 0.0


def slow_kl(x: list[float]) -> float:
    parts = [v / sum(x) for v in x if v]
    return sum(p * math.log(p * len(x)) for p in parts)


def slow_tail(x: list[float], share: float, top: bool = False) -> float:
    k = max(1, math.floor(Fraction(str(share)) * len(x)))
    return sum(sorted(x, reverse=top)[:k]) / k


@quick
@given(signed)
def test_mean_and_std_follow_their_definitions(x: list[float]) -> None:
    assert mean(x) == near(sum(x) / len(x))
    assert std(x) == near(slow_std(x))


@quick
@given(signed)
def test_the_angle_is_the_arc_cosine(x: list[float]) -> None:
    assert angle(x) == pytest.approx(
        slow_angle(x), abs=1e-5
    )  # arccos itself is good to about 1e-6 near 0


@quick
@given(positive)
def test_gini_and_kl_follow_their_definitions(x: list[float]) -> None:
    assert gini(x) == near(slow_gini(x))
    assert kl(x) == near(slow_kl(x))


@quick
@given(positive)
def test_gini_is_the_rank_formula_of_the_spec(x: list[float]) -> None:
    ranked = sum((2 * i - len(x) - 1) * v for i, v in enumerate(sorted(x), start=1))
    assert gini(x) * len(x) * sum(x) == near(100 * ranked)


@quick
@given(signed, shares)
def test_tails_are_means_of_the_ends(x: list[float], share: float) -> None:
    assert worst(x, share) == near(slow_tail(x, share))
    assert best(x, share) == near(slow_tail(x, share, top=True))
    assert gap(x, share) == near(slow_tail(x, share, top=True) - slow_tail(x, share))
    assert (worst(x), best(x), gap(x)) == (min(x), max(x), max(x) - min(x))


@cases("metric", WEIGHTED)
@quick
@given(rows=counted)
def test_an_integer_weight_is_that_many_equal_clients(
    metric: Metric, rows: list[tuple[float, int]]
) -> None:
    x, w = zip(*rows, strict=True)
    copies = [v for v, n in rows for _ in range(n)]
    assert metric(x, w) == near(metric(copies))


@cases("metric", ALL)
@quick
@given(x=positive)
def test_equal_weights_change_nothing(metric: Metric, x: list[float]) -> None:
    assert metric(x, weights=[0.3] * len(x)) == near(metric(x))


@quick
@given(counted)
def test_weighted_gini_is_the_double_sum(rows: list[tuple[float, int]]) -> None:
    total = sum(w for _, w in rows)
    double = sum(w * u * abs(v - y) for v, w in rows for y, u in rows)
    m = sum(w * v for v, w in rows) / total
    assert gini(*zip(*rows, strict=True)) == near(100 * double / (2 * total**2 * m) if m else 0.0)


@quick
@given(counted, shares)
def test_weighted_tails_do_not_depend_on_the_order(
    rows: list[tuple[float, int]], share: float
) -> None:
    x, w = zip(*rows, strict=True)
    assert worst(x, share, w) == near(worst(x[::-1], share, w[::-1]))
    assert best(x, share, w) == near(-worst([-v for v in x], share, w))


def test_weighted_tails_by_hand() -> None:
    assert worst([3, 1, 2, 9], 0.5, [5, 3, 1, 1]) == 1.25
    assert best([3, 1, 2, 9], 0.5, [5, 3, 1, 1]) == 4.0
    assert gap([3, 1, 2, 9], 0.5, [5, 3, 1, 1]) == 2.75
    assert worst([0, 1, 1], 0.67, [1, 1, 3]) == pytest.approx(
        2 / 3
    )  # the tied clients weigh 2 each


def test_a_client_of_weight_0_is_left_out() -> None:
    assert worst([0, 5, 7], weights=[0, 1, 1]) == 5
    assert best([5, 7, 9], 1.0, [1, 1, 0]) == 6
    assert kl([4, 2, 2], [0, 1, 2]) == 0.0


@cases(
    ("share", "clients", "k"),
    [
        (0.1, 30, 3),
        (0.29, 100, 29),
        (0.57, 100, 57),
        (0.05, 15, 1),
        (0.2, 15, 3),
        (0.1, 29, 2),
        (1.0, 7, 7),
    ],
)
def test_the_tail_counts_exactly(share: float, clients: int, k: int) -> None:
    x = np.arange(clients, dtype=float)
    assert worst(x, share) == pytest.approx((k - 1) / 2)
    assert best(x, share) == pytest.approx(clients - 1 - (k - 1) / 2)


def test_every_hundredth_of_many_clients_is_counted_exactly() -> None:
    x = np.arange(1000.0)
    assert [worst(x, n / 100) for n in range(1, 101)] == [(10 * n - 1) / 2 for n in range(1, 101)]


@cases("value", [0.1, 1 / 3, 1e-100, 1e100, 0.7])
@cases("clients", [1, 3, 7, 1000])
def test_equal_scores_are_exactly_even(value: float, clients: int) -> None:
    x = [value] * clients
    assert mean(x) == worst(x, 0.5) == best(x, 0.5) == value
    assert std(x) == gini(x) == angle(x) == kl(x) == gap(x, 0.5) == 0.0
    assert mean(x, range(1, clients + 1)) == value
    assert std(x, range(1, clients + 1)) == angle(x, range(1, clients + 1)) == 0.0


@cases("metric", ALL)
@cases("x", [[0, 0, 0], [0], [-0.0, -0.0]])
def test_all_zeros_give_a_positive_zero(metric: Metric, x: list[float]) -> None:
    assert metric(x) == 0.0
    assert math.copysign(1, metric(x)) == 1


@cases("power", [-300, 300])
def test_the_unit_of_the_scores_does_not_matter(power: int) -> None:
    x = [1.0, 2.0, 5.0, 0.0]
    scaled = [math.ldexp(v, power) for v in x]
    for relative in (gini, angle, kl):
        assert relative(scaled) == relative(x)
    for absolute in (mean, worst, best, gap):
        assert absolute(scaled) == math.ldexp(absolute(x), power)
    assert std(scaled) == pytest.approx(math.ldexp(std(x), power), abs=0)


def test_angles_by_hand() -> None:
    assert angle([1, 0]) == pytest.approx(45)
    assert angle([1, 0, 0]) == pytest.approx(math.degrees(math.acos(1 / math.sqrt(3))))
    assert angle([-1, 1]) == 90
    assert angle([-2, -2]) == 180
    assert angle([1, 1 + 1e-9]) == pytest.approx(
        math.degrees(5e-10), rel=1e-6
    )  # arccos would give 0


def test_gini_and_kl_of_one_client_that_has_all() -> None:
    assert gini([0, 0, 0, 0, 3]) == pytest.approx(80)
    assert kl([0, 0, 0, 0, 3]) == pytest.approx(math.log(5))
    assert kl([0, 3], [3, 1]) == pytest.approx(math.log(4))


@cases("metric", ALL)
def test_tensors_arrays_and_lists_agree(metric: Metric) -> None:
    x, w = [0.5, 0.25, 1.0], [1, 2, 3]
    forms = [
        np.array(x),
        np.array(x, dtype=np.float32),
        torch.tensor(x),
        torch.tensor(x, requires_grad=True),
    ]
    forms += [torch.tensor(x, dtype=torch.bfloat16), tuple(x)]
    for form in forms:
        assert metric(form, weights=torch.tensor(w)) == metric(x, weights=w)
        assert type(metric(form)) is float


def test_input_is_left_as_it_was() -> None:
    x, w = np.array([3.0, 1.0, 2.0]), np.array([1.0, 0.0, 2.0])
    summary(x, w)
    assert x.tolist() == [3, 1, 2]
    assert w.tolist() == [1, 0, 2]


@quick
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=10))
def test_against_follows_the_paper(rows: list[tuple[int, int]]) -> None:
    centre = Fraction(sum(old for old, _ in rows), len(rows))
    low = [new - old for old, new in rows if old < centre]
    high = [new - old for old, new in rows if old > centre]
    got = against(*zip(*rows, strict=True))
    assert got.suffering_improved == near(sum(c > 0 for c in low) / max(1, len(low)))
    assert got.suffering_change == near(sum(low) / max(1, len(low)))
    assert got.thriving_degraded == near(sum(c < 0 for c in high) / max(1, len(high)))
    assert got.thriving_change == near(sum(high) / max(1, len(high)))


def test_a_client_at_the_baseline_mean_is_in_neither_group() -> None:
    assert against([1, 2, 3], [2, 100, 1]) == Against(1.0, 1.0, 1.0, -2.0)
    assert against([0.1, 0.1, 0.1], [0, 1, 2]) == Against(0.0, 0.0, 0.0, 0.0)


def test_spread_is_the_population_form() -> None:
    assert spread([2, 4, 6]) == pytest.approx((4, math.sqrt(8 / 3)))
    assert spread([7]) == (7.0, 0.0)


@cases("confidence", [0.5, 0.9, 0.95, 0.999])
def test_paired_intervals_are_those_of_scipy(confidence: float) -> None:
    rng = np.random.default_rng(0)
    for size in range(3, 21):
        a = rng.normal(rng.uniform(-1, 1, (60, 1)), 1, (60, size))
        b = rng.normal(0, rng.uniform(0.01, 1, (60, 1)), (60, size))
        test = stats.ttest_rel(a, b, axis=1)
        interval = test.confidence_interval(confidence)
        got = [paired(*pair, confidence) for pair in zip(a, b, strict=True)]
        assert [one.low for one in got] == pytest.approx(interval.low)
        assert [one.high for one in got] == pytest.approx(interval.high)
        assert [one.significant for one in got] == (test.pvalue < 1 - confidence).tolist()


def test_differences_in_steps_widen_the_interval_by_half_a_step() -> None:
    base = np.array([0.1, 0.2, 0.3, 0.4])
    other = base + np.array([2, 4, 7, 2]) / 33  # the smallest gap is not the step
    interval = stats.ttest_rel(other, base).confidence_interval(0.95)
    got = paired(other, base)
    assert got.low == pytest.approx(interval.low - 1 / 33 / 2 / 4)
    assert got.high == pytest.approx(interval.high + 1 / 33 / 2 / 4)


@cases(
    ("a", "b"),
    [
        ([3.0], [1.0]),
        ([3, 4], [1, 2]),
        ([0.3, 0.4], [0.1, 0.2]),  # 0.2 twice but for rounding
        ([1, 2, 3], [3, 4, 5]),
        ([0.1 + 0.2, 0.7, 1.1], [0.3 - 0.1, 0.6, 1.0]),
        ([1, 2], [1, 2]),
        ([0.0, 0.0], [0.0, 0.0]),
        ([1e6 + 0.1, 1e6 + 0.2], [1e6, 1e6 + 0.1]),
    ],
)
def test_equal_differences_and_one_seed_are_never_significant(
    a: list[float], b: list[float]
) -> None:
    got = paired(a, b)
    assert math.isnan(got.low) and math.isnan(got.high) and not got.significant
    assert holm([a, a], b)[1].significant is False
    assert seeds_needed(a, b) is None


@cases("accuracy", [0.5, 0.9, 0.99])
@cases("over_clients", [np.mean, np.min])
@cases("clients", [1, 15])
def test_at_most_five_in_a_hundred_equal_methods_differ_significantly(
    clients: int, over_clients: Callable[..., NDArray[np.float64]], accuracy: float
) -> None:
    """Accuracies in steps of 1/33, as of clients with 33 test samples."""
    rng = np.random.default_rng(33)
    for seeds in (2, 3, 5, 8, 20):
        scores = rng.binomial(33, accuracy, (2, 1000, seeds, clients)) / 33
        methods = over_clients(scores, axis=-1)
        found = sum(paired(a, b).significant for a, b in zip(*methods, strict=True))
        assert stats.binomtest(found, 1000, 0.05, "greater").pvalue > 0.002, seeds


@cases(
    ("effect", "seeds"),
    [(31.2, 2), (13.0, 2), (5.17, 3), (2.0, 5), (1.0, 10), (0.5, 34), (0.25, 128)],
)
def test_seeds_needed_find_the_effect_in_four_of_five_cases(effect: float, seeds: int) -> None:
    pair = np.array([-1, 1]) / math.sqrt(2) + effect  # of standard deviation 1
    assert seeds_needed(pair, [0, 0]) == seeds
    rng = np.random.default_rng(0)
    for size, enough in ((seeds, True), (max(seeds - 1, 2), seeds == 2)):
        deviation = np.sqrt(rng.chisquare(size - 1, 200_000) / (size - 1))
        t = rng.normal(effect * math.sqrt(size), 1, 200_000) / deviation
        power = float(np.mean(np.abs(t) > stats.t.ppf(0.975, size - 1)))
        assert power > 0.795 if enough else power < 0.805


@quick
@given(positive)
def test_the_summary_is_the_metrics(x: list[float]) -> None:
    got = summary(x)
    assert list(got) == KEYS
    assert all(type(value) is float for value in got.values())
    for key in ("mean", "worst", "best", "std", "gini", "gap", "angle", "kl"):
        assert got[key] == near(getattr(metrics, key)(x))
    for key in ("worst_5", "worst_10", "worst_20", "best_5", "best_10", "gap_10"):
        name, share = key.split("_")
        assert got[key] == near(getattr(metrics, name)(x, int(share) / 100))


def test_tails_of_a_summary_of_many_clients() -> None:
    got = summary(np.random.default_rng(0).permutation(100))
    assert [got[k] for k in ("worst_5", "worst_10", "worst_20", "best_5", "best_10")] == [
        2,
        4.5,
        9.5,
        97,
        94.5,
    ]
    assert (got["gap"], got["gap_10"]) == (99, 90)


def test_weights_add_only_the_weighted_mean_to_a_summary() -> None:
    got = summary([1, 2, 6], [1, 1, 0], ["a", "b", "c"])
    assert list(got) == ["mean", "weighted_mean", *KEYS[1:]]
    assert got.pop("weighted_mean") == 1.5
    assert got == summary([1, 2, 6])


def test_a_summary_of_negative_scores_leaves_out_gini_and_kl() -> None:
    got = summary([-1, 3])
    assert [key for key, value in got.items() if math.isnan(value)] == ["gini", "kl"]
    assert got["mean"] == 1


@cases("metric", [*ALL, summary])
def test_bad_scores_are_refused_by_name(metric: Metric) -> None:
    with pytest.raises(DataError, match=r"^scores must be finite; got nan at client 1$"):
        metric([1, math.nan, 2])
    with pytest.raises(DataError, match=r"got nan at client 'Ann', -inf at client 'Cy'$"):
        metric([math.nan, 1, -math.inf], names=["Ann", "Bo", "Cy"])
    with pytest.raises(DataError, match=r"one value per client; got shape \(0,\)"):
        metric([])
    with pytest.raises(DataError, match=r"got shape \(1, 2\)"):
        metric(torch.ones(1, 2))
    with pytest.raises(DataError, match=r"got shape \(\)"):
        metric(0.5)
    with pytest.raises(DataError, match=r"must be numbers, one per client; got \['a', 'b'\]"):
        metric(["a", "b"])
    with pytest.raises(DataError, match=r"names must be 2, one per client; got 1"):
        metric([1, 2], names=["Ann"])


@cases("metric", [*ALL, summary])
def test_bad_weights_are_refused(metric: Metric) -> None:
    with pytest.raises(DataError, match=r"weights must be 2, one per client; got 3"):
        metric([1, 2], weights=[1, 1, 1])
    with pytest.raises(DataError, match=r"weights must be 0 or more; got -1.0 at client 'Bo'"):
        metric([1, 2], weights=[1, -1], names=["Ann", "Bo"])
    with pytest.raises(DataError, match=r"weights must be finite; got nan at client 'Bo'"):
        metric([1, 2], weights=[1, math.nan], names=["Ann", "Bo"])
    with pytest.raises(DataError, match=r"weights must not all be 0; got 2 zeros"):
        metric([1, 2], weights=[0, 0])


def test_many_bad_clients_are_counted_not_listed() -> None:
    with pytest.raises(DataError, match=r"nan at client 4 and 995 more$"):
        mean([math.nan] * 1000)


@cases("metric", [gini, kl])
def test_negative_scores_are_refused_where_they_have_no_meaning(metric: Metric) -> None:
    with pytest.raises(DataError, match=r"needs scores of 0 or more; got -0.5 at client 1"):
        metric([1, -0.5])
    with pytest.raises(DataError, match=r"got -0.5 at client 'Bo'"):
        metric([1, -0.5], names=["Ann", "Bo"])


@cases("metric", [worst, best, gap])
@cases("share", [0, -0.1, 1.01, math.nan, 5])
def test_a_share_outside_its_range_is_refused(metric: Metric, share: float) -> None:
    with pytest.raises(DataError, match=f"share must be above 0 and at most 1; got {share}"):
        metric([1, 2], share)


def test_pairs_must_match() -> None:
    for function in (against, paired):
        with pytest.raises(
            DataError, match=r"the second values must be 2, one per (client|seed); got 1"
        ):
            function([1, 2], [1])
    with pytest.raises(DataError, match=r"got nan at client 'Bo'"):
        against([1, 2], [1, math.nan], names=["Ann", "Bo"])
    with pytest.raises(DataError, match=r"got inf at seed 0"):
        paired([math.inf], [1])
    with pytest.raises(DataError, match=r"got nan at seed 1"):
        spread([1, math.nan])


@cases("confidence", [0, 1, 95, math.nan])
def test_a_confidence_outside_its_range_is_refused(confidence: float) -> None:
    with pytest.raises(
        DataError, match=f"confidence must lie between 0 and 1, both excluded; got {confidence}"
    ):
        paired([1, 2], [1, 2], confidence)


def test_all_is_complete() -> None:
    own = {
        name
        for name, value in vars(metrics).items()
        if inspect.getmodule(value) is metrics and not name.startswith("_") and callable(value)
    }
    assert own == set(metrics.__all__)


# Precision


def test_paired_agrees_with_scipy_at_a_huge_offset() -> None:
    rng = np.random.default_rng(5)
    for _ in range(200):
        a = 1e9 + rng.normal(size=8)
        b = 1e9 + rng.normal(0.7, 1, size=8)
        expected = stats.ttest_rel(a, b).confidence_interval(0.95)
        result = metrics.paired(a, b)
        assert (result.low, result.high) == pytest.approx(tuple(expected), rel=1e-6)


def test_equal_differences_of_float32_scores_give_no_interval() -> None:
    for dtype in (np.float32, np.float16):
        a, b = np.array([0.3, 0.4, 0.7], dtype), np.array([0.1, 0.2, 0.5], dtype)
        assert math.isnan(metrics.paired(a, b).low)
        assert math.isnan(metrics.paired(torch.from_numpy(a), torch.from_numpy(b)).low)
    steps = np.array([3, 5, 9]) / 33, np.array([2, 2, 3]) / 33
    exact = metrics.paired(*steps)
    rounded = metrics.paired(steps[0].astype(np.float32), steps[1].astype(np.float32))
    assert rounded[:3] == pytest.approx(exact[:3], abs=1e-6)  # corrected for their steps


@pytest.mark.parametrize(
    "call",
    [
        lambda: metrics.summary([1, 2, 3], names=5),  # type: ignore[arg-type]
        lambda: metrics.mean([1, 2, 3], names=iter("abc")),  # type: ignore[arg-type]
        lambda: metrics.worst([1, 2, 3], share=[0.5]),  # type: ignore[arg-type]
        lambda: metrics.worst([1, 2], lower_is_better=np.zeros(2)),  # type: ignore[arg-type]
        lambda: metrics.wilson(0.5, 3, confidence=2),
        lambda: metrics.wilson(0.5, "3"),  # type: ignore[arg-type]
        lambda: metrics.dkw_floor([1, 2], confidence=math.inf),
        lambda: metrics.mean(torch.zeros(3, device="meta")),
        lambda: metrics.mean([1j, 2j]),
        lambda: metrics.holm(np.array(3.0), [1, 2]),  # type: ignore[arg-type]
    ],
)
def test_wrong_arguments_are_named(call: Callable[[], object]) -> None:
    with pytest.raises(
        CommonwealError, match=r"names|share|lower_is|confidence|rows|scores|others"
    ):
        call()
