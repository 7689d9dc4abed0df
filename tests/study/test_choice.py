"""Choosing a model per client: the guarantee of `proved`, the caution of `safe`, bad input."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

from cases import cases
from commonweal.base.errors import CommonwealError
from commonweal.clients.evidence import Evidence, choose_by_client, choose_together, improvements

CLIENTS = 10_000


def share_leaving(rows: np.ndarray, how: str, bound: float | None = None) -> float:
    """The share of clients with one candidate, rows (clients, n), that leave local training."""
    chosen = choose_by_client([{"global": row} for row in rows], how, bound=bound)  # type: ignore[arg-type]
    return float(np.mean([name == "global" for name in chosen]))


def wins_and_losses(gain: float, n: int, seed: int) -> np.ndarray:
    """+1, 0 and -1 with mean `gain`; the two models differ on 60 % of the samples."""
    p = [0.3 - gain / 2, 0.4, 0.3 + gain / 2]
    return np.random.default_rng(seed).choice([-1.0, 0.0, 1.0], (CLIENTS, n), p=p)


@cases("n", [10, 30, 100])
def test_proved_is_wrong_for_at_most_five_per_cent_without_a_gain(n: int) -> None:
    slack = 3 * np.sqrt(0.05 * 0.95 / CLIENTS)
    assert share_leaving(wins_and_losses(0.0, n, seed=n), "proved") <= 0.05 + slack
    assert share_leaving(wins_and_losses(-0.2, n, seed=n), "proved") <= 0.001 + 3 * np.sqrt(
        0.001 / CLIENTS
    )
    # Skewed differences of losses with mean 0: rarely -2, often a little above 0.
    rng = np.random.default_rng(n)
    skewed = np.where(rng.random((CLIENTS, n)) < 0.1, -2.0, 2.0 / 9)
    assert share_leaving(skewed, "proved", bound=2.0) <= 0.05 + slack


@cases("n", [5, 50, 500])
def test_proved_holds_for_heavy_tails_and_ties(n: int) -> None:
    """Of means 0: a t-distribution, rare large losses, and ties with as many wins as losses."""
    rng = np.random.default_rng(n)
    shape = (2000, n)
    rare = np.where(rng.random(shape) < 0.02, -49.0, 1.0)
    ties = rng.choice([-1.0, 0.0, 1.0], shape, p=[0.05, 0.9, 0.05])
    slack = 3 * np.sqrt(0.05 * 0.95 / len(rare))
    for rows in (rng.standard_t(2, shape), rare, ties):
        assert share_leaving(rows, "proved") <= 0.05 + slack


def test_clients_need_not_have_the_same_candidates() -> None:
    rows: list[dict[str, list[float]]] = [
        {"global": [0.5] * 9},
        {"tuned": [0.4] * 9, "alone": [0.0] * 9},
        {},
        {"global": []},
    ]
    for how in ("safe", "likely"):
        assert choose_by_client(rows, how) == ["global", "tuned", "alone", "alone"]


def test_the_level_and_the_margin_at_their_ends() -> None:
    row = {"global": [1.0] * 5}
    assert choose_by_client([row], "proved", level=0.5) == ["global"]
    assert choose_by_client([row], "proved", level=1 - 1e-12) == ["alone"]
    assert choose_by_client([{"global": [-0.1] * 50}], "proved", margin=5.0) == [
        "alone"
    ]  # not better
    for level in (0.0, 0.49, 1.0, np.nan):
        with pytest.raises(CommonwealError, match="level"):
            choose_by_client([row], "proved", level=level)
    for margin in (np.nan, np.inf):
        with pytest.raises(CommonwealError, match="margin"):
            choose_by_client([row], "proved", margin=margin)


def test_proved_recognises_a_clear_gain() -> None:
    assert share_leaving(wins_and_losses(0.3, 100, seed=1), "proved") >= 0.95
    losses = np.random.default_rng(2).uniform(-0.5, 1.5, (1000, 100))  # mean 0.5
    assert share_leaving(losses, "proved", bound=2.0) >= 0.95


def test_several_candidates_share_the_error_probability() -> None:
    """The best of eight useless candidates is no better than one useless candidate."""
    rng = np.random.default_rng(3)
    rows = rng.choice([-1.0, 1.0], (3000, 8, 30))
    chosen = choose_by_client([{f"m{k}": row[k] for k in range(8)} for row in rows], "proved")
    left = np.mean([name != "alone" for name in chosen])
    assert left <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 3000)


def test_five_samples_that_differ_must_all_be_won() -> None:
    assert choose_by_client([{"global": [1] * 5 + [0] * 9}], "proved") == ["global"]
    assert choose_by_client([{"global": [1] * 4 + [0] * 9}], "proved") == ["alone"]
    assert choose_by_client([{"global": [1] * 5, "tuned": [1] * 5}], "proved") == ["alone"]


def lower_limit(values: list[float], level: float) -> float:
    """The lower end of Student's interval, by scipy, with one more sample without a difference."""
    more = [*values, 0.0]
    interval = stats.ttest_1samp(more, 0.0).confidence_interval(2 * level - 1)
    return float(interval.low)


@cases("n", [2, 3, 5, 20])
def test_safe_takes_the_steadiest_of_those_that_are_better_with_confidence(n: int) -> None:
    rng = np.random.default_rng(n)
    rows = [{f"m{k}": list(rng.normal(0.5, 0.2 + k, n)) for k in range(3)} for _ in range(100)]
    expected = []
    for row in rows:
        better = [name for name in row if lower_limit(row[name], 0.95) > 0]
        steadiest = max(better, key=lambda name: lower_limit(row[name], 0.99), default="alone")
        expected.append(steadiest)
    assert choose_by_client(rows, "safe") == expected
    assert len(set(expected)) > 1 or n == 2  # two samples are never enough


@cases(
    ("values", "expected"),
    [
        ([], "alone"),
        ([5.0], "alone"),
        ([0.0] * 50, "alone"),
        ([1.0, 1.0], "alone"),  # two samples of no spread are no certainty
        ([1.0, 1.0, 1.0], "global"),
        ([0.5, 0.3, 0.4, 0.35], "global"),
        ([3.0, -1.0] * 4, "alone"),  # mean 1, standard error 0.76
        ([3.0, -1.0] * 40, "global"),
        ([-1.0] * 50, "alone"),
    ],
)
def test_safe_with_few_or_equal_samples(values: list[float], expected: str) -> None:
    assert choose_by_client([{"global": values}]) == [expected]


def residuals(kind: str, n: int) -> np.ndarray:
    """Differences of losses with mean 0 and standard deviation 1."""
    rng = np.random.default_rng(n)
    shape = (CLIENTS, n)
    if kind == "normal":
        return rng.normal(size=shape)
    if kind == "heavy tails":
        return rng.standard_t(3, shape) / 3**0.5
    losses = rng.exponential(size=(2, *shape))  # of two models on the same samples
    return np.asarray((losses[0] - losses[1]) / 2**0.5)


@cases("kind", ["normal", "heavy tails", "losses"])
@cases(
    ("gain", "n", "least", "most"),
    [
        (0.0, 2, 0.0, 0.05),  # `gain` in standard deviations of a sample; shares that leave
        (0.0, 4, 0.0, 0.05),
        (0.0, 30, 0.0, 0.05),
        (-0.2, 4, 0.0, 0.025),
        (-0.2, 30, 0.0, 0.005),
        (0.5, 30, 0.67, 1.0),
        (0.3, 100, 0.67, 1.0),
        (1.0, 10, 0.67, 1.0),
    ],
)
def test_safe_rarely_harms_and_keeps_two_thirds_of_a_clear_gain(
    kind: str, gain: float, n: int, least: float, most: float
) -> None:
    slack = 3 * np.sqrt(0.05 * 0.95 / CLIENTS)
    left = share_leaving(residuals(kind, n) + gain, "safe")
    assert least <= left <= most + slack


def test_safe_of_four_useless_candidates() -> None:
    """Candidates are not counted: each has an error probability of 5 %."""
    rng = np.random.default_rng(8)
    rows = [{f"m{k}": rng.normal(size=20) for k in range(4)} for _ in range(2000)]
    left = np.mean([name != "alone" for name in choose_by_client(rows)])
    assert left <= 4 * 0.05
    harmful = [{name: values - 0.3 for name, values in row.items()} for row in rows]
    assert np.mean([name != "alone" for name in choose_by_client(harmful)]) <= 0.01


def test_the_best_of_the_allowed_candidates_is_taken() -> None:
    noisy = [9.0, -7.0, 8.0, -6.0]
    client = {"noisy": noisy, "good": [0.5, 0.6, 0.4, 0.5], "less": [0.2, 0.2, 0.2, 0.3]}
    assert choose_by_client([client]) == ["good"]
    steady = client | {"bold": [2.0, 0.1, 1.9, 0.1]}  # a larger mean, and more doubt
    assert choose_by_client([steady]) == ["good"]
    assert choose_by_client([client], "likely") == ["noisy"]


def test_the_order_of_clients_candidates_and_samples_changes_nothing() -> None:
    rng = np.random.default_rng(4)
    rows = [{f"m{k}": rng.normal(0.2, 1, 20) for k in range(3)} for _ in range(40)]
    for how in ("safe", "likely", "proved"):
        chosen = choose_by_client(rows, how)
        backwards = [dict(reversed(row.items())) for row in reversed(rows)]
        assert choose_by_client(backwards, how) == chosen[::-1]
        order = rng.permutation(20)
        shuffled = [{name: values[order] for name, values in row.items()} for row in rows]
        assert choose_by_client(shuffled, how) == chosen


def test_a_margin_makes_proof_easier() -> None:
    row = {"global": np.array([1.0] * 9 + [-1.0] * 5 + [0.0] * 86)}
    assert choose_by_client([row], "proved") == ["alone"]
    assert choose_by_client([row], "proved", margin=0.2) == ["global"]


@cases(
    ("arguments", "words"),
    [
        ({"how": "sure"}, "how = 'sure'"),
        ({"level": 1.5}, "level = 1.5"),
        ({"level": "high"}, "level = 'high'"),
        ({"margin": None}, "margin = None"),
        ({"rows": None}, "rows = None"),
        ({"margin": -1}, "margin = -1"),
        ({"bound": 0}, "bound = 0"),
        ({"rows": [{"global": [[1.0]]}]}, r"improvements have shape \(1, 1\)"),
        ({"rows": [{"global": [np.nan]}]}, "an improvement is not finite; leave out"),
        (
            {"rows": [{"global": ["better"]}]},
            r"not numbers \(could not convert string",
        ),
        ({"rows": {"global": [1.0]}}, "give a list with a dict for each client"),
        ({"rows": ["global"]}, "client 0 is a str: give a dict for each client"),
        ({"rows": [{"global": [1.0], "tuned": [1.0, 2.0]}]}, "same validation samples"),
    ],
)
def test_bad_input_is_refused(arguments: dict[str, object], words: str) -> None:
    given = {"rows": [{"global": [1.0, 2.0]}]} | arguments
    with pytest.raises(CommonwealError, match=words):
        choose_by_client(**given)  # type: ignore[arg-type]


def federations(gain: float, clients: int, samples: int, seed: int) -> list[list[dict[str, Any]]]:
    """Skewed improvements of one method over blend: a client's mean differs by up to 0.2."""
    rng = np.random.default_rng(seed)
    own = gain + 0.2 * rng.normal(size=(1000, clients, 1))
    values = own + rng.exponential(1.0, (1000, clients, samples)) - 1.0
    return [[{"fedavg": row} for row in federation] for federation in values]


@cases(("clients", "samples"), [(3, 5), (12, 5), (12, 40), (60, 3)])
def test_another_method_rarely_replaces_blend_without_a_gain(clients: int, samples: int) -> None:
    chosen = [choose_together(rows) for rows in federations(0.0, clients, samples, seed=1)]
    assert np.mean([name == "fedavg" for name in chosen]) <= 0.05
    worse = [choose_together(rows) for rows in federations(-0.3, clients, samples, seed=2)]
    assert np.mean([name == "fedavg" for name in worse]) <= 0.01


def test_what_no_client_could_show_is_shown_by_all_of_them() -> None:
    rows = federations(0.4, clients=30, samples=5, seed=3)
    assert np.mean([choose_together(own) == "fedavg" for own in rows]) >= 0.95
    assert np.mean([name == "fedavg" for name in choose_by_client(rows[0])]) <= 0.3


def test_together_order_and_clients_without_samples_change_nothing() -> None:
    rng = np.random.default_rng(4)
    rows = [{name: 0.3 + rng.normal(size=9) for name in ("b", "a", "c")} for _ in range(20)]
    expected = choose_together(rows)
    assert expected != "blend"
    assert choose_together(rows[::-1]) == expected
    assert choose_together([dict(reversed(own.items())) for own in rows]) == expected
    assert choose_together([*rows, {}, {"a": [], "b": [], "c": []}]) == expected
    # What is not known at every client is not given to all.
    assert choose_together([*rows, {"a": [9.0]}]) in ("a", "blend")
    assert choose_together([]) == choose_together([{}]) == "blend"
    assert choose_together([{"a": [1.0, 1.0]}]) == "blend"  # one client


def test_tiny_differences_are_none() -> None:
    """A loss that is lower by a rounding error is no reason to take another model."""
    local = np.array([0.5, 1.0, 0.2])
    candidates = {
        "alone": Evidence(local, None),
        "blend": Evidence(local - 1.6e-9, None),
        "tuned": Evidence(local - 1e-2, None),
    }
    compared = improvements(candidates)
    assert compared["blend"].tolist() == [0.0, 0.0, 0.0]
    assert choose_by_client([{"blend": compared["blend"]}], "likely") == ["alone"]
    assert choose_by_client([compared], "likely") == ["tuned"]
    assert list(improvements(candidates, base="blend")) == ["alone", "tuned"]
