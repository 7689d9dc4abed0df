"""Every row is kept once, by the right client; splits are exact, stratified and by client."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import commonweal
from cases import cases
from commonweal.base.errors import ConfigError, DataError
from commonweal.data.federation import Federation
from commonweal.data.rows import Rows
from commonweal.data.split import split_rows
from commonweal.task.task import Task

quick = settings(derandomize=True, max_examples=60, deadline=None, database=None)


def tagged(
    sizes: dict[Any, int], classes: int = 3, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows whose only feature is their number, in an order that mixes the clients."""
    rng = np.random.default_rng(seed)
    client = rng.permutation(np.concatenate([np.full(n, name) for name, n in sizes.items()]))
    return (
        np.arange(len(client), dtype=np.float32)[:, None],
        rng.integers(0, classes, len(client)),
        client,
    )


def numbers(rows: Rows, k: int) -> list[int]:
    return rows.client(k).x[:, 0].int().tolist()


def expected_share(share: float) -> float:
    """A share is that of a fold, where it is near 1/2, 1/3, ..."""
    folds = round(1 / max(share, 1e-6))
    return 1 / folds if folds > 1 and abs(1 / max(share, 1e-6) - folds) < 0.05 else share


def expected_test(n: int, share: float, seed: int = 0) -> set[int]:
    """How many rows may be tested: the share, rounded up or down."""
    if share == 0:
        return {0}
    exact = expected_share(share) * n
    if seed % math.floor(1 / expected_share(share) + 1e-9) == 0:
        rounded = {math.floor(exact + 0.5 - 1e-3), math.floor(exact + 0.5 + 1e-3)}
        return {min(n - 1, max(1, count)) for count in rounded}
    near = (math.floor(exact - 1e-3), math.floor(exact + 1e-3), math.ceil(exact - 1e-9))
    return {min(n - 1, count) for count in near}


# Rows


ROWS = Rows(torch.arange(12.0).view(6, 2), torch.arange(6), torch.tensor([0, 1, 1, 4, 6]))


def test_sizes_are_differences_of_offsets() -> None:
    assert ROWS.sizes.tolist() == [1, 0, 3, 2]


def test_one_clients_rows_are_a_view() -> None:
    own = ROWS.client(2)
    assert own.y.tolist() == [1, 2, 3]
    assert own.x.tolist() == ROWS.x[1:4].tolist()
    assert own.offsets.tolist() == [0, 3] and own.sizes.tolist() == [3]
    assert own.x.data_ptr() == ROWS.x[1:].data_ptr()


def test_an_empty_clients_rows_are_empty() -> None:
    assert len(ROWS.client(1).x) == 0 and ROWS.client(1).offsets.tolist() == [0, 0]


@cases("ids", [[0], [3, 0], [2, 1, 3], [1], [0, 1, 2, 3], [3, 2]])
def test_index_of_gives_the_rows_of_clients_in_their_order(ids: list[int]) -> None:
    index, offsets = ROWS.index_of(torch.tensor(ids))
    each = [list(range(int(ROWS.offsets[k]), int(ROWS.offsets[k + 1]))) for k in ids]
    assert index.tolist() == [row for rows in each for row in rows]
    assert offsets.tolist() == [0, *np.cumsum([len(rows) for rows in each]).tolist()]


# from_arrays


@quick
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=8),
    st.floats(0, 0.95),
    st.integers(1, 4),
    st.integers(0, 5),
)
def test_every_row_is_exactly_once_in_the_right_client(
    sizes: list[int], share: float, classes: int, seed: int
) -> None:
    named = {f"c{k}": n for k, n in enumerate(sizes)}
    x, y, client = tagged(named, classes, seed)
    f = Federation.from_arrays(x, y, client, share, seed)
    assert f.names == tuple(sorted(named))
    assert f.clients == len(sizes)
    for k, name in enumerate(f.names):
        train, test = numbers(f.train, k), numbers(f.test, k)
        assert sorted(train + test) == np.flatnonzero(client == name).tolist()
        assert len(test) in expected_test(named[name], share, seed)
        assert f.train.client(k).y.tolist() == y[train].tolist()
        assert f.test.client(k).y.tolist() == y[test].tolist()


@quick
@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=6).filter(sum),
    st.floats(0.01, 0.9),
    st.integers(0, 9),
)
def test_each_class_is_within_a_row_of_its_share(
    counts: list[int], share: float, seed: int
) -> None:
    y = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    f = Federation.from_arrays(np.zeros((len(y), 1)), y, ["a"] * len(y), share, seed)
    held = np.bincount(f.test.y.numpy(), minlength=len(counts))
    exact = expected_share(share) * np.array(counts)
    assert (np.abs(held - exact) < 1 + 1e-3).all()


def test_rows_keep_their_order_within_a_client() -> None:
    x, y, client = tagged({"a": 50, "b": 30})
    f = Federation.from_arrays(x, y, client)
    for part in (f.train, f.test):
        for k in range(2):
            assert numbers(part, k) == sorted(numbers(part, k))


def test_the_same_seed_gives_the_same_split_and_another_seed_another() -> None:
    x, y, client = tagged({"a": 50, "b": 30})
    a, b, c = (Federation.from_arrays(x, y, client, seed=s) for s in (1, 1, 2))
    assert torch.equal(a.test.x, b.test.x) and torch.equal(a.train.x, b.train.x)
    for k in range(2):
        assert numbers(a.test, k) != numbers(c.test, k)


def test_two_clients_with_the_same_rows_are_split_differently() -> None:
    x = np.tile(np.arange(60.0), 2)[:, None]
    f = Federation.from_arrays(x, np.zeros(120, int), np.repeat(["a", "b"], 60))
    assert numbers(f.test, 0) != numbers(f.test, 1)


@cases("newcomer", ["aaa", "m", "zzz"])
def test_a_new_client_changes_no_others_split(newcomer: str) -> None:
    x, y, client = tagged({"b": 50, "n": 23, "y": 7})
    before = Federation.from_arrays(x, y, client, seed=3)
    # The newcomer's rows go in between everyone's, and bring a class that was not there.
    where = np.sort(np.random.default_rng(1).integers(0, len(x), 40))
    after = Federation.from_arrays(
        np.insert(x, where, -1, axis=0),
        np.insert(y, where, 7),
        np.insert(client.astype("<U3"), where, newcomer),
        seed=3,
    )
    assert set(after.names) == {*before.names, newcomer}
    for k, name in enumerate(before.names):
        j = after.names.index(name)
        assert numbers(after.test, j) == numbers(before.test, k)
        assert numbers(after.train, j) == numbers(before.train, k)


SHARES = [0.2, 0.25, 0.1, 0.5, 0.33, 0.3, 0.4, 0.07]
FOLDS = [5, 4, 10, 2, 3, 3, 2, 14]


@cases(("share", "folds"), list(zip(SHARES, FOLDS, strict=True)))
@cases("repetition", [0, 3])
def test_seeds_are_folds_that_do_not_overlap(share: float, folds: int, repetition: int) -> None:
    sizes = {"one": 1, "two": 2, "few": 4, "b": 23, "c": 60, "d": 25}
    x, y, client = tagged(sizes, classes=4)
    times = np.zeros(len(y), dtype=int)
    for seed in range(folds * repetition, folds * (repetition + 1)):
        f = Federation.from_arrays(x, y, client, share, seed)
        rows = f.test.x[:, 0].int().numpy()
        assert f.test.numbers is not None and f.test.numbers.tolist() == rows.tolist()
        times[rows] += 1
        of_c = client[rows] == "c"
        counts = np.bincount(y[rows[of_c]], minlength=4)
        expected = expected_share(share) * np.bincount(y[client == "c"], minlength=4)
        assert (np.abs(counts - expected) < 1 + 1e-9).all()
        if seed % folds == 0:
            assert f.unscored == ["one"]
    assert times[client == "one"].tolist() == [0]
    assert set(times[client != "one"]) == ({1} if expected_share(share) == 1 / folds else {0, 1})


def test_repetitions_have_other_folds() -> None:
    x, y, client = tagged({"a": 60})
    parts = [Federation.from_arrays(x, y, client, seed=s).test.x.flatten() for s in range(10)]
    assert not any(torch.equal(first, later) for first in parts[:5] for later in parts[5:])


def test_the_rows_of_small_clients_are_tested_once_too() -> None:
    x, y, client = tagged({f"c{k:02}": 3 for k in range(40)})
    folds = [Federation.from_arrays(x, y, client, seed=seed) for seed in range(5)]
    assert sorted(row for f in folds for row in f.test.x[:, 0].tolist()) == list(range(120))
    assert folds[0].unscored == [] and folds[1].unscored


def test_every_row_has_the_same_chance_to_be_tested() -> None:
    x, y, client = tagged({"a": 20})
    times = np.zeros(20)
    for seed in range(600):
        f = Federation.from_arrays(x, y, client, 0.25, seed)
        times[numbers(f.test, 0)] += 1
    # 150 of 600 expected, standard deviation 10.6: five of these either way.
    assert np.abs(times - 150).max() < 53


def test_a_client_of_one_row_trains_and_is_unscored() -> None:
    f = Federation.from_arrays([[1.0], [2.0], [3.0]], [0, 1, 1], ["one", "two", "two"])
    assert f.train.sizes.tolist() == [1, 1] and f.test.sizes.tolist() == [0, 1]
    assert f.unscored == ["one"]
    assert f.scored.tolist() == [1]
    assert numbers(f.train, 0) == [1]


def test_without_a_test_share_nobody_is_scored() -> None:
    f = Federation.from_arrays([[1.0], [2.0]], [0, 1], ["a", "b"], test=0)
    assert len(f.test.x) == 0 and f.unscored == ["a", "b"] and f.scored.tolist() == []
    assert f.test.x.shape == (0, 1) and f.test.offsets.tolist() == [0, 0, 0]


def test_a_large_share_leaves_a_training_row() -> None:
    f = Federation.from_arrays(np.zeros((5, 1)), [0] * 5, ["a"] * 5, test=0.99)
    assert f.train.sizes.tolist() == [1] and f.test.sizes.tolist() == [4]


@cases(
    "client",
    [[10, 2, 10, 2], np.array([10, 2, 10, 2], dtype=np.int8), torch.tensor([10, 2, 10, 2])],
)
def test_whole_number_ids_become_names_in_order_of_number(client: Any) -> None:
    f = Federation.from_arrays([[0.0], [1.0], [2.0], [3.0]], [0, 1, 1, 0], client, test=0.5)
    assert f.names == ("2", "10")
    assert sorted(numbers(f.train, 0) + numbers(f.test, 0)) == [1, 3]


def test_the_split_of_a_number_is_that_of_its_name() -> None:
    x, y, client = tagged({2: 40, 10: 30})
    a = Federation.from_arrays(x, y, client)
    b = Federation.from_arrays(x, y, client.astype(str))
    assert numbers(a.test, a.names.index("10")) == numbers(b.test, b.names.index("10"))


def test_names_may_be_any_text() -> None:
    f = Federation.from_arrays([[0.0], [1.0]], [0, 1], ["Zürich", "St. Gallen, 2"], test=0)
    assert f.names == ("St. Gallen, 2", "Zürich")


def test_images_stay_bytes() -> None:
    x = np.random.default_rng(0).integers(0, 256, (10, 3, 4, 4), dtype=np.uint8)
    f = Federation.from_arrays(x, [0, 1] * 5, ["a"] * 10)
    assert f.train.x.dtype == f.test.x.dtype == torch.uint8
    assert sorted(torch.cat([f.train.x, f.test.x]).flatten(1).tolist()) == sorted(
        x.reshape(10, -1).tolist()
    )


@cases("dtype", [np.float16, np.float32, np.float64, np.int16, np.bool_])
def test_other_features_become_single_floats(dtype: type) -> None:
    f = Federation.from_arrays(np.ones((4, 2), dtype), [0, 1, 0, 1], ["a"] * 4)
    assert f.train.x.dtype == torch.float32 and f.train.x.eq(1).all()


def test_tokens_stay_whole_numbers() -> None:
    f = Federation.from_arrays(torch.ones(4, 2, dtype=torch.int64), [0, 1, 0, 1], ["a"] * 4)
    assert f.train.x.dtype == torch.int64


@cases("y", [[0, 2, 1, 0], np.array([0, 2, 1, 0], np.int32), np.array([0, 2, 1, 0], np.uint8)])
def test_whole_number_labels_are_classes(y: Any) -> None:
    f = Federation.from_arrays(np.zeros((4, 1)), y, ["a"] * 4)
    assert (f.outputs, f.labels, f.score) == (3, "classes", "accuracy")
    assert f.train.y.dtype == torch.int64


def test_true_and_false_are_two_classes() -> None:
    f = Federation.from_arrays(np.zeros((4, 1)), [True, False, True, False], ["a"] * 4)
    assert f.outputs == 2


def test_other_labels_are_values_of_a_regression() -> None:
    f = Federation.from_arrays(np.zeros((4, 1)), [0.0, 1.0, -2.5, 3.0], ["a"] * 4)
    assert (f.outputs, f.labels, f.score) == (1, "values", "r2-pooled")
    assert f.train.y.dtype == torch.float32
    assert sorted([*f.train.y.tolist(), *f.test.y.tolist()]) == [-2.5, 0.0, 1.0, 3.0]


def test_the_task_can_be_given() -> None:
    f = Federation.from_arrays(
        np.zeros((4, 1)), [0, 1, 0, 1], ["a"] * 4, outputs=1, loss="binary", score="auroc"
    )
    assert (f.outputs, f.labels, f.score) == (1, "binary", "auroc")


def test_a_server_may_know_names_sizes_and_groups() -> None:
    f = Federation.from_arrays(
        np.zeros((6, 2)), [0, 1] * 3, ["a", "a", "a", "b", "b", "b"], 0.4, groups=["north", "south"]
    )
    population = f.population
    assert population.names == ("a", "b") and population.groups == f.groups == ("north", "south")
    assert population.sizes.tolist() == [2, 2] and population.shape == (2,)
    assert population.outputs == 2


@cases(
    ("outputs", "loss", "classes"),
    [(3, "cross-entropy", 3), (1, "binary", 2), (1, "squared", None), (9, "tokens", None)],
)
def test_the_number_of_classes(outputs: int, loss: str, classes: int | None) -> None:
    labels = [[0.0, 1.0], [1.0, 0.0]] if loss == "tokens" else [0.0, 1.0]
    y = np.array(labels, dtype=np.float32 if loss == "squared" else np.int64)
    f = Federation.from_arrays(np.zeros((2, 2)), y, ["a", "a"], outputs=outputs, loss=loss)
    assert f.classes == classes


def test_a_users_arrays_are_not_changed() -> None:
    x, y, client = tagged({"a": 9, "b": 5})
    copies = x.copy(), y.copy(), client.copy()
    f = Federation.from_arrays(x, y, client)
    f.train.x.fill_(-1)
    assert all(np.array_equal(a, b) for a, b in zip((x, y, client), copies, strict=True))


def stored(f: Federation) -> list[torch.Tensor]:
    return [t for part in (f.train, f.test) for t in (part.x, part.y, part.offsets)]


def of_three_rows(clients: int) -> None:
    x = np.arange(3 * clients, dtype=np.uint8)[:, None]
    f = Federation.from_arrays(x, np.tile([0, 1, 2], clients), np.repeat(np.arange(clients), 3))
    assert f.clients == clients == len(f.names)
    assert f.train.sizes.eq(2).all() and f.test.sizes.eq(1).all()
    # One byte and a label of eight bytes per row, an offset of eight bytes per client and part,
    # and no larger array behind them.
    used = sum(t.nelement() * t.element_size() for t in stored(f))
    assert used == 3 * clients * 9 + 2 * 8 * (clients + 1)
    assert sum(t.untyped_storage().nbytes() for t in stored(f)) == used
    assert f.train.client(clients - 1).y.tolist() != f.test.client(clients - 1).y.tolist()


def test_fifty_thousand_clients_of_three_rows_take_the_memory_of_their_rows() -> None:
    of_three_rows(50_000)


@pytest.mark.slow
def test_a_million_clients_of_three_rows_take_the_memory_of_their_rows() -> None:
    of_three_rows(1_000_000)


# What cannot be used


X = np.zeros((4, 2))
Y = [0, 1, 0, 1]
OWNER = ["ann", "ann", "bob", "bob"]


def rows(x: Any, y: Any, offsets: list[int]) -> Rows:
    return Rows(torch.as_tensor(x, dtype=torch.float32), torch.as_tensor(y), torch.tensor(offsets))


GOOD = rows(X, Y, [0, 2, 4])


@cases("bad", [float("nan"), float("inf"), -float("inf")])
@cases(("row", "name"), [(1, "ann"), (2, "bob")])
def test_features_must_be_numbers(bad: float, row: int, name: str) -> None:
    x = X.copy()
    x[row, 1] = bad
    with pytest.raises(DataError, match=f"'{name}' has NaN or infinite features in 1 rows"):
        Federation.from_arrays(x, Y, OWNER, test=0)


@cases("test", [0, 0.5])
def test_images_must_be_numbers_too(test: float) -> None:
    x = np.zeros((4, 1, 3, 3))
    x[2:, 0, 1, 2] = math.nan
    with pytest.raises(DataError, match="'bob' has NaN"):
        Federation.from_arrays(x, Y, OWNER, test=test)


def test_a_number_too_large_for_a_single_float_is_named() -> None:
    with pytest.raises(DataError, match="'bob'"):
        Federation.from_arrays([[0.0], [0.0], [0.0], [1e300]], Y, OWNER, test=0)


def test_labels_must_not_be_negative() -> None:
    with pytest.raises(DataError, match=r"'bob' has the label -1; .* from 0 to 1"):
        Federation.from_arrays(X, [0, 1, 0, -1], OWNER, test=0)


def test_labels_must_be_below_the_number_of_outputs() -> None:
    with pytest.raises(DataError, match=r"'ann' has the label 5; .* from 0 to 2"):
        Federation.from_arrays(X, [0, 5, 0, 1], OWNER, test=0, outputs=3)


def test_binary_labels_are_0_and_1() -> None:
    with pytest.raises(DataError, match=r"'bob' has the label 2; .* from 0 to 1"):
        Federation.from_arrays(X, [0, 1, 2, 1], OWNER, test=0, outputs=1, loss="binary")


@cases("bad", [math.nan, math.inf])
def test_values_must_be_finite(bad: float) -> None:
    with pytest.raises(DataError, match=r"'bob' has the label (nan|inf)"):
        Federation.from_arrays(X, [0.0, 1.0, 2.0, bad], OWNER, test=0)


def test_classes_must_be_whole_numbers() -> None:
    with pytest.raises(DataError, match="'ann'"):
        Federation.from_arrays(
            X, [0.5, 1, 0, 1], OWNER, test=0, outputs=2, loss="cross-entropy", score="accuracy"
        )


@cases("y", [[[0], [1], [0], [1]], [[0.0], [1.0], [0.0], [1.0]]])
def test_there_must_be_one_label_per_row(y: Any) -> None:
    # A column of values would be broadcast against the outputs: every row would be trained on
    # the values of all.
    with pytest.raises(DataError, match="label"):
        Federation.from_arrays(X, y, OWNER).with_labels("values")
    with pytest.raises(ConfigError, match="do not say which loss"):
        commonweal.run(Task(nn.Linear(2, 1)), Federation.from_arrays(X, y, OWNER))


@cases("y", [[0, 1, 0, 1], [False, True, False, True], [0.0, 1.0, 0.0, 1.0]])
def test_the_task_decides_how_labels_are_read(y: Any) -> None:
    federation = Federation.from_arrays(X, y, OWNER, test=0)
    binary = federation.with_labels("binary")
    assert (binary.outputs, binary.classes, binary.target) == (1, 2, None)
    assert binary.train.y.tolist() == [0, 1, 0, 1] and not binary.train.y.is_floating_point()
    assert federation.with_labels("classes").outputs == 2
    values = federation.with_labels("values")
    assert values.target == (0.5, 0.5) and values.outputs == 1
    own = federation.with_labels("own")
    assert own.target is None and own.train.y.dtype == federation.train.y.dtype


def test_labels_that_do_not_fit_the_tasks_loss_are_refused() -> None:
    values = Federation.from_arrays(X, [0.5, 1, 0, 1], OWNER, test=0)
    with pytest.raises(DataError, match=r"'ann' has the label 0\.5; with the loss 'binary'"):
        commonweal.run(Task(nn.Linear(2, 1), loss="binary"), values)
    named = Federation.from_arrays(X, ["ill", "well", "ill", "well"], OWNER)
    with pytest.raises(DataError, match="classes"):
        named.with_labels("values")
    several = Federation.from_arrays(X, [[0, 1, 1]] * 4, OWNER)
    with pytest.raises(ConfigError, match="do not say which loss"):
        commonweal.run(Task(nn.Linear(2, 3)), several)


@cases(
    ("x", "y", "client"),
    [(X[:3], Y, OWNER), (X, Y[:3], OWNER), (X, Y, OWNER[:3]), (X, [], OWNER), (X[:0], Y, OWNER)],
)
def test_lengths_must_agree(x: Any, y: Any, client: Any) -> None:
    with pytest.raises(DataError, match=rf"x has {len(x)} rows, y {len(y)}, client {len(client)}"):
        Federation.from_arrays(x, y, client)


def test_there_must_be_rows() -> None:
    with pytest.raises(DataError, match="no rows"):
        Federation.from_arrays(np.zeros((0, 2)), [], [])


@cases("share", [-0.1, 1, 1.5, math.nan])
def test_the_share_must_leave_training_rows(share: float) -> None:
    with pytest.raises(DataError, match=rf"test = {share}: .* at least 0 and below 1"):
        Federation.from_arrays(X, Y, OWNER, test=share)


@cases("y", [[None, "b", "a", "b"], [None, 1, 0, 1]])
def test_labels_must_be_texts_or_numbers(y: Any) -> None:
    with pytest.raises(DataError, match=r"\by\b|label"):
        Federation.from_arrays(X, y, OWNER)


def test_text_labels_are_classes_with_names() -> None:
    federation = Federation.from_arrays(X, ["ill", "well", "well", "ill"], OWNER, test=0.0)
    assert federation.class_names == ("ill", "well") and federation.outputs == 2
    assert sorted(federation.train.y.tolist()) == [0, 0, 1, 1]
    assert Federation.from_arrays(X, Y, OWNER).class_names == ()


def test_reprs_are_short() -> None:
    federation = Federation.from_arrays(X, Y, OWNER, test=0.0)
    assert len(repr(federation)) < 120 and "2 clients" in repr(federation)
    assert repr(federation.train) == "<Rows: 4x2 torch.float32 of 2 clients>"


@cases("x", [[[0.0], [1.0, 2.0], [0.0], [0.0]], [["a"], ["b"], ["c"], ["d"]]])
def test_features_must_be_a_table_of_numbers(x: Any) -> None:
    with pytest.raises(DataError, match=r"\bx\b|features"):
        Federation.from_arrays(x, Y, OWNER)


@cases("client", [[None, "a", "a", "b"], [["a"], ["a"], ["b"], ["b"]]])
def test_every_row_needs_one_client(client: Any) -> None:
    with pytest.raises(DataError, match="client"):
        Federation.from_arrays(X, Y, client)


def test_names_must_differ() -> None:
    with pytest.raises(DataError, match="two clients are called 'ann'"):
        Federation(GOOD, GOOD, ("ann", "ann"), 2)


def test_many_names_that_do_not_differ_are_cut_short() -> None:
    many = rows(np.zeros((14, 2)), [0] * 14, list(range(15)))
    with pytest.raises(DataError, match="'0', '1', '2', '3', '4' and 2 more"):
        Federation(many, many, tuple("01234560123456"), 2)


def test_a_client_needs_training_rows() -> None:
    with pytest.raises(DataError, match="no training rows for 'ann'"):
        Federation(rows(X, Y, [0, 0, 4]), GOOD, ("ann", "bob"), 2)


def test_all_clients_without_training_rows_are_named() -> None:
    with pytest.raises(
        DataError, match="no training rows for 'ann', 'cem': leave such clients out"
    ):
        Federation(rows(X, Y, [0, 0, 4, 4]), rows(X, Y, [0, 1, 2, 4]), ("ann", "bob", "cem"), 2)


def test_a_client_needs_no_test_rows() -> None:
    f = Federation(GOOD, rows(X, Y, [0, 0, 4]), ("ann", "bob"), 2)
    assert f.unscored == ["ann"]


@cases("bad", [rows(X, Y, [0, 4]), rows(X, Y, [0, 2, 3]), rows(X, Y, [0, 1, 2, 4])])
def test_offsets_must_fit_names_and_rows(bad: Rows) -> None:
    for train, test in ((bad, GOOD), (GOOD, bad)):
        with pytest.raises(DataError, match="2 names but offsets for"):
            Federation(train, test, ("ann", "bob"), 2)


def test_every_row_needs_a_label() -> None:
    with pytest.raises(DataError, match="3"):
        Federation(rows(X, Y[:3], [0, 2, 4]), GOOD, ("ann", "bob"), 2)


@cases("offsets", [[1, 2, 4], [0, 5, 4]])
def test_offsets_must_start_at_zero_and_rise(offsets: list[int]) -> None:
    with pytest.raises(DataError, match="offsets"):
        Federation(rows(X, Y, offsets), GOOD, ("ann", "bob"), 2)


def test_training_and_test_rows_must_have_one_shape() -> None:
    with pytest.raises(DataError, match=r"2.*3|3.*2"):
        Federation(GOOD, rows(np.zeros((4, 3)), Y, [0, 2, 4]), ("ann", "bob"), 2)


def test_a_bad_test_row_is_found_too() -> None:
    x = X.copy()
    x[3, 0] = math.nan
    with pytest.raises(DataError, match="'bob' has NaN"):
        Federation(GOOD, rows(x, Y, [0, 2, 4]), ("ann", "bob"), 2)


def test_the_owner_of_a_bad_row_is_found_past_empty_clients() -> None:
    x = X.copy()
    x[2, 0] = math.nan
    three = rows(X, Y, [0, 1, 2, 4])
    with pytest.raises(DataError, match="'cem' has NaN"):
        Federation(three, rows(x, Y, [0, 2, 2, 4]), ("ann", "bob", "cem"), 2)


@cases(
    ("client", "names", "message"),
    [
        ([0.0, np.nan, 1.0, 1.0], None, r"row 1 has no client \(NaN\)"),
        ([0, 1, 2, 1], ["a", "b"], "position 2, but there are 2 names"),
        ([0, -1, 1, 1], ["a", "b"], "position -1, but there are 2 names"),
        ([0.0, 1.0, 1.0, 0.0], ["a", "b"], "not float64"),
        (["a", "b", "b", "a"], ["a", "b"], "leave the names out"),
    ],
)
def test_wrong_clients_are_refused(client: Any, names: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Federation.from_arrays(np.zeros((4, 2)), [0, 1, 0, 1], client, names=names)


def test_a_split_numbers_rows_of_a_larger_table() -> None:
    client = np.array(["b", "a", "b", "a", "b"])
    split = split_rows(client, np.zeros(5, dtype=np.int64), np.arange(5) >= 3, seed=0)
    outer = split.within(np.array([10, 20, 30, 40, 50]))
    assert outer.names == ("a", "b")
    assert [rows.tolist() for rows in outer.train.by_client()] == [[20], [10, 30]]
    assert [rows.tolist() for rows in outer.test.by_client()] == [[40], [50]]


@pytest.mark.parametrize("loss", ["huber", "absolute", "poisson"])
def test_a_federation_does_not_take_a_loss_that_its_labels_do_not_decide(loss: str) -> None:
    with pytest.raises(
        DataError, match=rf"several losses of values.*Task\(module, loss='{loss}'\)"
    ):
        Federation.from_arrays(X, [0.5, 1.5, 0.5, 1.0], OWNER, loss=loss)
