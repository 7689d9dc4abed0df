"""What may be said of differences: levels, power, and what must not matter."""

from collections.abc import Mapping

import numpy as np
import pytest

from cases import cases
from commonweal.base.errors import DataError
from commonweal.study.judging import Samples, contrasts, judge

SIZES = (10, 15, 22, 33, 50, 80, 120, 300)


def drawn(
    rng: np.random.Generator, gain: float = 0.0, sizes: tuple[int, ...] = SIZES
) -> dict[str, np.ndarray]:
    """Differences of 0/1 scores: 30 % of the samples differ."""
    up = 0.15 + gain / 2
    p = [0.3 - up, 0.7, up]
    return {f"c{k}": rng.choice([-1.0, 0.0, 1.0], n, p=p) for k, n in enumerate(sizes)}


def test_useless_methods_help_nobody_and_name_nobody() -> None:
    rng = np.random.default_rng(0)
    headlines = named = 0
    for _ in range(300):
        judgement = judge({f"m{k}": drawn(rng) for k in range(5)})
        headlines += judgement.says == "helps"
        named += any(judgement.better.values()) or any(judgement.worse.values())
    assert headlines <= 22 and named <= 22  # 5 % of 300, and two standard errors


def test_a_gain_worth_having_is_not_denied() -> None:
    rng = np.random.default_rng(1)
    said = [judge({"m": drawn(rng, 0.01)}, worth=0.01).says for _ in range(300)]
    assert said.count("does not help") <= 22


def test_a_gain_is_found_and_a_loss_excludes_one() -> None:
    rng = np.random.default_rng(2)
    sizes = (200,) * 8
    helps = [judge({"m": drawn(rng, 0.1, sizes)}).says for _ in range(50)]
    lost = [judge({"m": drawn(rng, -0.1, sizes)}).says for _ in range(50)]
    assert helps.count("helps") >= 48 and lost.count("does not help") >= 48


def test_a_detectable_gain_is_found_in_four_of_five_cases() -> None:
    rng = np.random.default_rng(3)
    sizes = (100,) * 10
    gain = judge({"m": drawn(rng, 0.0, sizes)}).detectable
    said = [judge({"m": drawn(rng, gain, sizes)}).says for _ in range(200)]
    assert 140 <= said.count("helps") <= 180


def test_names_order_and_company_of_methods_and_clients_do_not_matter() -> None:
    rng = np.random.default_rng(4)
    tables = {name: drawn(rng, 0.05) for name in ("a", "b", "c")}
    first = judge(tables)
    turned = {name: dict(list(own.items())[::-1]) for name, own in list(tables.items())[::-1]}
    second = judge(turned)
    assert first.methods == second.methods and first.method == second.method
    assert (first.says, first.gain, first.low, first.high) == (
        second.says,
        second.gain,
        second.low,
        second.high,
    )
    assert first.better == second.better and first.worse == second.worse
    renamed = judge({f"x{name}": own for name, own in tables.items()})
    assert renamed.method == f"x{first.method}" and renamed.low == first.low


def test_equal_methods_are_named_by_their_names() -> None:
    own = drawn(np.random.default_rng(5), 0.1)
    assert judge({"b": own, "a": own}).method == judge({"a": own, "b": own}).method == "a"


def test_the_order_of_samples_does_not_matter() -> None:
    rng = np.random.default_rng(6)
    own = drawn(rng, 0.05)
    mixed = {name: rng.permutation(values) for name, values in own.items()}
    first, second = judge({"m": own}), judge({"m": mixed})
    assert first.low == pytest.approx(second.low, abs=1e-12) and first.better == second.better


def test_a_method_that_was_picked_needs_no_correction() -> None:
    rng = np.random.default_rng(7)
    tables = {f"m{k}": drawn(rng, 0.03) for k in range(6)}
    free, picked = judge(tables), judge(tables, picked="m3")
    assert picked.method == "m3" and picked.corrected == 1 and free.corrected == 6
    wide = free.methods["m3"].high - free.methods["m3"].low
    assert picked.high - picked.low < wide


@cases(
    "samples",
    [
        {},
        {"a": []},
        {"a": [0.0, 0.0, 0.0]},
        {"a": [1.0]},
        {"a": [float("nan")] * 5},
        {"a": [1.0], "b": [1.0]},
        {"a": [1.0, 1.0, 1.0]},
    ],
)
def test_too_few_samples_decide_nothing(samples: Mapping[str, list[float]]) -> None:
    judgement = judge({"m": samples})
    assert judgement.says == "cannot be decided"
    assert judgement.better == judgement.worse == {"m": ()}


def test_one_useless_method_does_not_hide_an_open_question() -> None:
    rng = np.random.default_rng(8)
    lost = drawn(rng, -0.2, (400,) * 8)
    unknown = {"c0": [1.0, 0.0, -1.0, 0.0]}
    assert judge({"lost": lost}).says == "does not help"
    assert judge({"lost": lost, "unknown": unknown}).says == "cannot be decided"


# Contrasts


def scores_of(
    rng: np.random.Generator, levels: np.ndarray, size: int, methods: int
) -> tuple[dict[str, Samples], Samples]:
    base = {f"c{k}": rng.random(size) < level for k, level in enumerate(levels)}
    others: dict[str, Samples] = {}
    for method in range(methods):
        own = {}
        for k, level in enumerate(levels):
            again = rng.random(size) < 0.4
            own[f"c{k}"] = np.where(again, rng.random(size) < level, base[f"c{k}"])
        others[f"m{method}"] = own
    return others, base


@cases("metric", ["mean", "worst", "worst_10", "std"])
def test_equal_methods_show_no_contrast(metric: str) -> None:
    rng = np.random.default_rng(9)
    wrong = 0
    for _ in range(60):
        others, base = scores_of(rng, np.linspace(0.6, 0.8, 12), 40, 3)
        table = contrasts(others, base, metric)  # type: ignore[arg-type]
        wrong += any(contrast.significant for contrast in table.values())
    assert wrong <= 7  # 5 % of 60, and two standard errors


@cases(("metric", "sign"), [("mean", 1), ("worst", 1), ("worst_10", 1), ("std", -1)])
def test_a_contrast_is_found(metric: str, sign: int) -> None:
    rng = np.random.default_rng(10)
    levels = np.array([0.2, 0.3, *[0.9] * 8])
    base = {f"c{k}": (rng.random(300) < level) * 1.0 for k, level in enumerate(levels)}
    fair = {name: np.maximum(own, rng.random(300) < 0.3) for name, own in base.items()}
    table = contrasts({"fair": fair, "same": base}, base, metric)  # type: ignore[arg-type]
    assert table["fair"].significant and sign * table["fair"].difference > 0
    assert table["fair"].low * table["fair"].high > 0
    assert table["same"].difference == 0 and not table["same"].significant
    errors = {name: 1 - own for name, own in fair.items()}
    before = {name: 1 - own for name, own in base.items()}
    turned = contrasts({"fair": errors}, before, metric, lower_is_better=True)  # type: ignore[arg-type]
    expected = table["fair"].difference * (1 if metric == "std" else -1)
    assert turned["fair"].difference == pytest.approx(expected)


def test_contrasts_do_not_depend_on_the_order_of_methods_and_clients() -> None:
    others, base = scores_of(np.random.default_rng(11), np.linspace(0.5, 0.9, 9), 60, 3)
    turned = {name: dict(list(own.items())[::-1]) for name, own in list(others.items())[::-1]}
    first = contrasts(others, base, "worst")
    second = contrasts(turned, dict(list(base.items())[::-1]), "worst")
    assert first == second


def test_contrasts_need_the_same_samples() -> None:
    with pytest.raises(DataError, match="same samples"):
        contrasts({"m": {"a": [1.0, 0.0]}}, {"a": [1.0]})
    with pytest.raises(DataError, match="give one of mean"):
        contrasts({"m": {"a": [1.0]}}, {"a": [1.0]}, "median")  # type: ignore[arg-type]
    assert np.isnan(contrasts({"m": {"b": [1.0]}}, {"a": [1.0]})["m"].difference)
    assert contrasts({}, {"a": [1.0]}) == {}


def test_intervals_end_at_the_largest_gain_that_there_can_be() -> None:
    samples = {"one": {"a": [1.0, 0.0, -1.0], "b": [1.0, 1.0, 0.0, 0.0]}}
    free, cut = judge(samples), judge(samples, bound=1.0)
    assert free.clients["one"]["a"].high > 1 and free.high > 1
    assert cut.clients["one"]["a"][:3] == (0.0, -1.0, 1.0)
    assert cut.high == 1.0 and cut.new_high <= 1.0
    assert cut.low == max(free.low, -1.0)
    assert (cut.says, cut.gain, cut.detectable) == (free.says, free.gain, free.detectable)
