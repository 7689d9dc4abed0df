"""Every draw is a function of (seed, round, who, purpose), and of nothing else."""

from itertools import product

import numpy as np
import pytest
from scipy import stats

from commonweal.base import randomness
from commonweal.base.files import digest
from commonweal.base.randomness import (
    COHORT,
    INIT_CLIENT,
    SPLIT,
    TRAIN,
    key,
    purpose,
    stream,
    uniforms,
)


def first(*where: int) -> tuple[int, ...]:
    return tuple(stream(*where).bit_generator.random_raw(4).tolist())


def test_the_same_stream_twice_gives_the_same_numbers() -> None:
    a = stream(3, 5, key("a"), TRAIN)
    b = stream(3, 5, key("a"), TRAIN)
    assert np.array_equal(a.permutation(100), b.permutation(100))
    assert np.array_equal(a.random(10), b.random(10))


@pytest.mark.parametrize(
    "other", [(4, 5, 7, TRAIN), (3, 6, 7, TRAIN), (3, 5, 8, TRAIN), (3, 5, 7, INIT_CLIENT)]
)
def test_a_stream_differs_by_each_of_seed_round_who_and_purpose(
    other: tuple[int, int, int, int],
) -> None:
    assert first(3, 5, 7, TRAIN) != first(*other)


@pytest.mark.parametrize("seed", [0, 7, -3, 2**63])
def test_a_stream_is_numpys_philox_with_this_key_and_counter(seed: int) -> None:
    who = key("a")
    expected = np.random.Philox(
        key=np.array([seed % 2**64, who], dtype=np.uint64),
        counter=np.array([0, 0, 5, TRAIN], dtype=np.uint64),
    )
    assert first(seed, 5, who, TRAIN) == tuple(expected.random_raw(4).tolist())


def test_all_streams_of_a_grid_are_different_and_share_no_number() -> None:
    purposes = [SPLIT, COHORT, TRAIN, INIT_CLIENT]
    grid = list(product([0, 1, 2**40], [0, 1, 2], [0, 1, key("a")], purposes))
    drawn = [int(v) for where in grid for v in stream(*where).bit_generator.random_raw(50)]
    assert len(set(drawn)) == len(drawn) == 50 * len(grid)


def test_swapping_seed_and_who_gives_another_stream() -> None:
    assert first(1, 1, 2, TRAIN) != first(2, 1, 1, TRAIN)


def test_purposes_are_distinct() -> None:
    constants = [name for name in randomness.__all__ if name.isupper()]
    numbers = {vars(randomness)[name] for name in constants}
    assert len(numbers) == len(constants) >= 14


def test_a_request_has_a_stream_by_its_purpose() -> None:
    assert purpose("train") == TRAIN
    words = ["loss", "describe", "evaluate", "snapshot", "train "]
    numbers = {purpose(word) for word in words}
    assert len(numbers) == len(words)
    assert all(1 << 63 <= number < 1 << 64 for number in numbers)  # never one of the constants
    assert first(0, 1, 2, purpose("loss")) != first(0, 1, 2, TRAIN)


def test_a_stream_does_not_depend_on_what_was_drawn_before() -> None:
    alone = first(0, 1, 2, TRAIN)
    stream(0, 1, 1, TRAIN).random(1000)
    np.random.default_rng(0).random(10)
    assert first(0, 1, 2, TRAIN) == alone


def test_the_global_generator_is_left_alone() -> None:
    before = np.random.get_state(legacy=False)["state"]["key"].tolist()
    stream(0, 1, 2, TRAIN).random(1000)
    uniforms(0, np.array([1]), np.array([2]))
    assert np.random.get_state(legacy=False)["state"]["key"].tolist() == before


def test_a_key_is_stable_across_machines_and_versions() -> None:
    assert key("Andrew") == 1085156483937668374
    assert key("Zürich") == 0x08D579A7FA387470  # blake2b of the UTF-8 bytes, little end first


def test_streams_and_uniforms_are_stable() -> None:
    assert first(1, 2, 3, 4)[:2] == (9880485080785903719, 675453749572910803)
    assert uniforms(1, np.array([2]), np.array([3]))[0] == pytest.approx(0.03536821, abs=1e-8)


def test_keys_fit_64_bits_and_differ() -> None:
    names = [str(k) for k in range(20_000)] + ["Zürich", "東京", "a" * 1000]
    keys = [key(name) for name in names]
    assert len(set(keys)) == len(names)
    assert all(0 <= k < 1 << 64 for k in keys)


@pytest.mark.parametrize("extreme", [0, (1 << 64) - 1])
def test_a_stream_takes_the_extreme_keys(extreme: int) -> None:
    assert first(0, 1, extreme, TRAIN) == first(0, 1, extreme, TRAIN)


def test_uniforms_are_in_the_unit_interval_and_uniform() -> None:
    who = np.repeat(np.arange(300), 300)
    position = np.tile(np.arange(300), 300)
    u = uniforms(0, who, position)
    assert u.dtype == np.float64 and u.shape == who.shape
    assert u.min() >= 0 and u.max() < 1
    assert stats.kstest(u, "uniform").pvalue > 0.001
    # Neighbours along either axis are not related.
    square = u.reshape(300, 300)
    assert abs(np.corrcoef(square[:, :-1].ravel(), square[:, 1:].ravel())[0, 1]) < 0.02
    assert abs(np.corrcoef(square[:-1].ravel(), square[1:].ravel())[0, 1]) < 0.02


def test_uniforms_differ_by_each_of_seed_who_and_position() -> None:
    who = np.array([key(name) for name in "abaa"], dtype=np.uint64)
    position = np.array([7, 7, 8, -1])
    a = uniforms(1, who, position)
    b = uniforms(2, who, position)
    assert len({*a.tolist(), *b.tolist()}) == 8


def test_uniforms_do_not_depend_on_what_else_is_asked() -> None:
    who = np.array([1, 2, 3], dtype=np.uint64)
    position = np.array([4, 5, 6])
    assert uniforms(9, who, position)[1] == uniforms(9, who[1:2], position[1:2])[0]


def test_uniforms_take_keys_of_64_bits() -> None:
    u = uniforms((1 << 64) - 1, np.array([(1 << 64) - 1, 0], dtype=np.uint64), np.array([-1, 0]))
    assert (u >= 0).all() and (u < 1).all() and u[0] != u[1]


def test_public_names() -> None:
    assert set(randomness.__all__) <= set(vars(randomness))


def test_a_digest_is_stable_and_depends_on_every_part() -> None:
    assert digest(b"ab", b"c") == digest(b"abc")
    assert digest(b"a") != digest(b"b")
    assert (len(digest()), len(digest(size=8))) == (32, 16)
