"""Scores by client against scikit-learn and plain Python: ties, one class, no rows."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import (
    brier_score_loss,
    log_loss,
    r2_score,
    roc_auc_score,
    roc_curve,
    top_k_accuracy_score,
)
from torch import Tensor

from cases import cases
from commonweal.base.errors import ConfigError
from commonweal.task.scores import (
    DIAGNOSTICS,
    SCORES,
    check_score,
    find_score,
    mean_by_client,
    undefined,
)

quick = settings(derandomize=True, max_examples=80, deadline=None, database=None)


def score(name: str, outputs: Tensor, y: Tensor, offsets: list[int]) -> list[float]:
    chosen = find_score(name)
    result = chosen.reduce(chosen.row_stats(outputs, y), torch.tensor(offsets))
    assert result.dtype == torch.float64
    values: list[float] = result.tolist()
    return values


def offsets_of(sizes: list[int]) -> list[int]:
    return [0, *np.cumsum(sizes).tolist()]


def same(got: list[float], want: list[float]) -> None:
    assert got == pytest.approx(want, rel=1e-9, abs=1e-12, nan_ok=True)


# The mean over each client's rows


def test_means_by_client_and_nan_without_rows() -> None:
    same(
        mean_by_client(torch.tensor([1.0, 3.0, 5.0]), torch.tensor([0, 0, 2, 2, 3, 3])).tolist(),
        [math.nan, 2, math.nan, 5, math.nan],
    )


def test_means_of_several_columns() -> None:
    means = mean_by_client(torch.tensor([[1.0, 10], [3, 20], [5, 30]]), torch.tensor([0, 2, 2, 3]))
    assert means[0].tolist() == [2, 15] and means[2].tolist() == [5, 30] and means[1].isnan().all()


def test_means_are_taken_in_double() -> None:
    # In single floats 1 + 1e8 is 1e8.
    assert mean_by_client(
        torch.tensor([1.0, 1e8, -1e8]), torch.tensor([0, 3])
    ).item() == pytest.approx(1 / 3, rel=1e-12)


def test_a_nan_stays_with_its_client() -> None:
    means = mean_by_client(torch.tensor([1.0, math.nan, 2.0, 4.0]), torch.tensor([0, 2, 4]))
    assert math.isnan(means[0]) and means[1] == 3


def test_no_rows_at_all() -> None:
    assert mean_by_client(torch.empty(0), torch.tensor([0, 0, 0])).isnan().tolist() == [True, True]


# Accuracy and top-5


def test_accuracy_by_hand() -> None:
    outputs = torch.tensor([[3.0, 1, 2], [0, 5, 1], [0, 1, 9], [1, 0, 0]])
    same(score("accuracy", outputs, torch.tensor([0, 1, 0, 0]), [0, 3, 3, 4]), [2 / 3, math.nan, 1])


def test_accuracy_of_a_single_output_goes_by_its_sign() -> None:
    outputs = torch.tensor([[0.5], [-0.5], [2.0], [-3.0]])
    same(score("accuracy", outputs, torch.tensor([1, 0, 0, 1]), [0, 2, 4]), [1, 0])


@quick
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(sum),
    st.integers(2, 9),
    st.integers(0, 9),
)
def test_accuracy_and_top_5_against_a_loop(sizes: list[int], classes: int, seed: int) -> None:
    torch.manual_seed(seed)
    n, offsets = sum(sizes), offsets_of(sizes)
    outputs, y = torch.randn(n, classes), torch.randint(classes, (n,))
    for name, k in (("accuracy", 1), ("top-5", 5)):
        # A class is among the k likeliest when fewer than k outputs are above its own.
        hit = [
            sum(o > row[c] for o in row) < k
            for row, c in zip(outputs.tolist(), y.tolist(), strict=True)
        ]
        want = [float(np.mean(hit[a:b])) if b > a else math.nan for a, b in pairwise(offsets)]
        same(score(name, outputs, y, offsets), want)


def test_top_5_against_scikit_learn() -> None:
    torch.manual_seed(0)
    outputs, y = torch.randn(200, 12), torch.arange(200) % 12
    want = top_k_accuracy_score(y.numpy(), outputs.numpy(), k=5)
    same(score("top-5", outputs, y, [0, 200]), [want])


def test_top_5_of_few_classes_is_always_right() -> None:
    assert score("top-5", torch.randn(7, 4), torch.tensor([0, 1, 2, 3, 0, 1, 2]), [0, 7]) == [1]


# Probabilities and decisions


@cases("columns", [1, 2, 5])
def test_brier_and_log_loss_against_scikit_learn(columns: int) -> None:
    torch.manual_seed(columns)
    classes, sizes = max(2, columns), [30, 1, 0, 9]
    outputs, y = torch.randn(40, columns).double() * 2, torch.randint(classes, (40,))
    logits = torch.cat([torch.zeros(40, 1), outputs], 1) if columns == 1 else outputs
    p = logits.softmax(1).numpy()
    offsets = offsets_of(sizes)
    labels = range(classes)
    brier, loss = [], []
    for a, b in pairwise(offsets):
        if a == b:
            brier.append(math.nan)
            loss.append(math.nan)
            continue
        own = p[a:b, 1] if classes == 2 else p[a:b]
        pos = [1] if classes == 2 else [None]
        if classes == 2:
            brier.append(brier_score_loss(y[a:b].numpy(), own, pos_label=pos[0]))
        else:
            brier.append(brier_score_loss(y[a:b].numpy(), own, labels=labels))
        loss.append(log_loss(y[a:b].numpy(), p[a:b], labels=labels))
    same(score("brier", outputs, y, offsets), brier)
    same(score("log-loss", outputs, y, offsets), loss)


@quick
@given(st.integers(1, 2), st.floats(0.02, 0.98), st.integers(0, 99))
def test_net_benefit_is_its_definition(columns: int, at: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    outputs, y = torch.tensor(rng.normal(size=(40, columns))), rng.integers(0, 2, 40)
    margin = outputs[:, 0] if columns == 1 else outputs[:, 1] - outputs[:, 0]
    want = []
    for part in (slice(0, 25), slice(25, 40)):
        own = y[part]
        treated = margin.sigmoid().numpy()[part] >= at
        benefit = (treated & (own == 1)).sum() - at / (1 - at) * (treated & (own == 0)).sum()
        want.append(float(benefit) / len(own))
    same(score(f"net-benefit@{at}", outputs, torch.tensor(y), [0, 25, 40]), want)


@quick
@given(st.sampled_from([0.5, 0.8, 0.9, 0.95]), st.integers(0, 1), st.integers(0, 99))
def test_sensitivity_is_that_of_the_roc_curve(at: float, digits: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    margin = np.round(rng.normal(size=64), digits)  # with ties
    y = rng.integers(0, 2, 64)
    want = []
    for a, b in ((0, 20), (20, 24), (24, 64)):
        own = y[a:b]
        if 0 < own.sum() < len(own):
            false, true, _ = roc_curve(own, margin[a:b], drop_intermediate=False)
            want.append(float(true[false <= 1 - at + 1e-9].max()))
        else:
            want.append(math.nan)
    found = score(
        f"sensitivity@{at}", torch.tensor(margin)[:, None], torch.tensor(y), [0, 20, 24, 64]
    )
    same(found, want)


@cases("name", ["net-benefit", "net-benefit@", "sensitivity@1", "net-benefit@often", "brier@0.5"])
def test_a_score_at_a_number_needs_one_between_0_and_1(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        check_score(name, "binary")


@cases("name", ["auroc", "auprc", "calibration-slope", "net-benefit@0.5", "sensitivity@0.5"])
def test_scores_of_two_classes_refuse_more(name: str) -> None:
    with pytest.raises(ConfigError, match="3"):
        score(name, torch.zeros(4, 3), torch.tensor([0, 1, 2, 0]), [0, 4])


# AUROC


def sklearn_auroc(margin: np.ndarray, y: np.ndarray, offsets: list[int]) -> list[float]:
    parts = [(margin[a:b], y[a:b]) for a, b in pairwise(offsets)]
    return [roc_auc_score(t, m) if len(set(t.tolist())) == 2 else math.nan for m, t in parts]


@quick
@given(
    st.lists(
        st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 1)), max_size=12),
        min_size=1,
        max_size=10,
    ).filter(any)
)
def test_auroc_against_scikit_learn_with_many_ties(clients: list[list[tuple[int, int]]]) -> None:
    flat = [row for rows in clients for row in rows]
    margin, y = np.array([m for m, _ in flat], float), np.array([t for _, t in flat])
    offsets = offsets_of([len(rows) for rows in clients])
    got = score("auroc", torch.from_numpy(margin)[:, None].float(), torch.from_numpy(y), offsets)
    same(got, sklearn_auroc(margin, y, offsets))


def test_auroc_of_hundreds_of_clients() -> None:
    rng = np.random.default_rng(0)
    sizes = rng.integers(0, 40, 300).tolist()
    margin = rng.normal(size=sum(sizes)).round(1).astype(np.float32)
    y = rng.integers(0, 2, sum(sizes))
    got = score("auroc", torch.from_numpy(margin)[:, None], torch.from_numpy(y), offsets_of(sizes))
    same(got, sklearn_auroc(margin, y, offsets_of(sizes)))


def test_auroc_of_two_outputs_goes_by_their_difference() -> None:
    torch.manual_seed(0)
    outputs, y = torch.randn(50, 2), torch.randint(2, (50,))
    want = roc_auc_score(y.numpy(), (outputs[:, 1] - outputs[:, 0]).numpy())
    same(score("auroc", outputs, y, [0, 50]), [want])


def test_auroc_when_all_is_right_wrong_or_tied() -> None:
    margin = torch.tensor([[-1.0], [1.0], [1.0], [-1.0], [0.0], [0.0]])
    assert score("auroc", margin, torch.tensor([0, 1, 0, 1, 0, 1]), [0, 2, 4, 6]) == [1, 0, 0.5]


def test_auroc_of_one_class_or_no_rows_is_nan() -> None:
    got = score("auroc", torch.zeros(5, 1), torch.tensor([1, 1, 0, 0, 1]), [0, 2, 2, 3, 5])
    assert [math.isnan(v) for v in got] == [True, True, True, False]


def test_auroc_of_no_rows_at_all() -> None:
    assert all(
        math.isnan(v)
        for v in score("auroc", torch.empty(0, 1), torch.empty(0, dtype=torch.int64), [0, 0, 0])
    )


def test_auroc_of_a_model_that_gives_no_numbers_is_nan() -> None:
    outputs = torch.tensor([[math.nan], [math.nan], [0.0], [1.0]])
    got = score("auroc", outputs, torch.tensor([0, 1, 0, 1]), [0, 2, 4])
    assert math.isnan(got[0]) and got[1] == 1


# R^2


@quick
@given(st.lists(st.integers(0, 12), min_size=1, max_size=8).filter(sum), st.integers(0, 99))
def test_r2_against_scikit_learn(sizes: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    y = rng.normal(size=sum(sizes)).astype(np.float32)
    guess = (y + rng.normal(size=len(y))).astype(np.float32)
    offsets = offsets_of(sizes)
    parts = [(y[a:b].astype(float), guess[a:b].astype(float)) for a, b in pairwise(offsets)]
    want = [r2_score(t, g) if len(t) > 1 else math.nan for t, g in parts]
    got = score("r2", torch.from_numpy(guess)[:, None], torch.from_numpy(y), offsets)
    assert got == pytest.approx(want, rel=1e-6, abs=1e-6, nan_ok=True)


def test_r2_of_values_far_from_zero() -> None:
    rng = np.random.default_rng(0)
    y = (1e6 + rng.normal(size=500)).astype(
        np.float32
    )  # years, prices: the spread is small beside the value
    guess = y + rng.normal(size=500).astype(np.float32)
    got = score("r2", torch.from_numpy(guess)[:, None], torch.from_numpy(y), [0, 500])
    assert got == pytest.approx([r2_score(y.astype(float), guess.astype(float))], abs=1e-6)


@cases("value", [0.0, 0.1, 1e6])
@cases("n", [1, 1000])
def test_r2_of_a_constant_is_nan(value: float, n: int) -> None:
    assert math.isnan(score("r2", torch.zeros(n, 1), torch.full((n,), value), [0, n])[0])


# Names, and what is undefined


def test_an_unknown_score_is_suggested() -> None:
    with pytest.raises(ConfigError, match="no score is called 'acuracy': did you mean 'accuracy'"):
        find_score("acuracy")


def test_every_score_has_a_meaning() -> None:
    assert all(s.meaning for s in (SCORES | DIAGNOSTICS).values())
    assert not SCORES.keys() & DIAGNOSTICS.keys()


@cases(
    ("name", "loss", "hint"),
    [("accuracy", "squared", "r2"), ("r2", "cross-entropy", "accuracy"), ("ece", "squared", "r2")],
)
def test_a_score_that_does_not_fit_the_loss_is_refused(name: str, loss: str, hint: str) -> None:
    words = f"score = '{name}' does not fit data whose loss is '{loss}': .*{hint}"
    with pytest.raises(ConfigError, match=words):
        check_score(name, loss)


@cases(
    ("name", "loss"),
    [
        ("accuracy", "binary"),
        ("top-5", "cross-entropy"),
        ("likelihood", "tokens"),
        ("mce", "binary"),
    ],
)
def test_scores_that_fit_the_loss_are_allowed(name: str, loss: str) -> None:
    check_score(name, loss)


def test_auroc_needs_both_classes() -> None:
    y = torch.tensor([1, 1, 0, 1, 0, 0])
    assert undefined("auroc", y, torch.tensor([0, 2, 2, 4, 5, 6])) == [0, 3, 4]


def test_r2_needs_two_values() -> None:
    y = torch.tensor([0.1, 0.1, 0.1, 0.2, 0.5])
    assert undefined("r2", y, torch.tensor([0, 2, 4, 5, 5])) == [0, 2]


@cases("name", ["accuracy", "top-5"])
def test_shares_are_always_defined(name: str) -> None:
    assert undefined(name, torch.tensor([1, 1]), torch.tensor([0, 2, 2])) == []


@cases("name", ["auroc", "r2"])
def test_clients_without_rows_are_not_called_undefined(name: str) -> None:
    assert undefined(name, torch.tensor([0, 1]), torch.tensor([0, 0, 2, 2])) == []
    assert undefined(name, torch.empty(0), torch.tensor([0, 0, 0])) == []


@quick
@given(st.lists(st.lists(st.integers(0, 1), max_size=4), min_size=1, max_size=8).filter(any))
def test_undefined_is_where_the_score_is_nan(clients: list[list[int]]) -> None:
    y = torch.tensor([v for rows in clients for v in rows])
    offsets = offsets_of([len(rows) for rows in clients])
    values = score("auroc", torch.zeros(len(y), 1), y, offsets)
    want = [k for k, rows in enumerate(clients) if rows and math.isnan(values[k])]
    assert undefined("auroc", y, torch.tensor(offsets)) == want
