"""Pieces of work in threads: their order, their number, and what they leave behind."""

import threading
import time
from collections.abc import Iterator

import pytest
import torch

from commonweal.base.threads import cores, in_threads, one_thread_each


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_results_come_in_the_order_of_the_items_whoever_is_done_first() -> None:
    def work(item: int) -> tuple[int, int]:
        time.sleep(0.01 * (item % 3 == 0))
        return item, threading.get_ident()

    results = list(in_threads(work, range(20), 20))
    assert [item for item, _ in results] == list(range(20))
    assert len({thread for _, thread in results}) == 3
    assert threading.get_ident() in {thread for _, thread in results}


def test_as_many_pieces_run_at_the_same_time_as_there_are_cores() -> None:
    together = threading.Barrier(3, timeout=20)  # broken if fewer come
    list(in_threads(lambda _: together.wait(), range(6), 6))


@pytest.mark.parametrize(("count", "expected"), [(2, 2), (1, 1), (9, 3)])
def test_there_are_no_more_threads_than_items(count: int, expected: int) -> None:
    lock = threading.Lock()
    running, most = 0, 0

    def work(_: int) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.02)
        with lock:
            running -= 1

    list(in_threads(work, range(count), count))
    assert most == expected


def test_few_items_are_taken_ahead() -> None:
    taken = 0

    def items() -> Iterator[int]:
        nonlocal taken
        for item in range(100):
            taken += 1
            yield item

    results = in_threads(lambda item: item, items(), 100)
    for done in range(1, 101):
        next(results)
        assert taken <= done + 6


@pytest.mark.parametrize("fails", [0, 1, 7])
def test_an_error_is_raised_and_no_thread_is_left(fails: int) -> None:
    before = threading.active_count()

    def work(item: int) -> int:
        if item == fails:
            raise ZeroDivisionError(f"item {item}")
        return item

    with one_thread_each(), pytest.raises(ZeroDivisionError, match=f"item {fails}"):
        list(in_threads(work, range(8), 8))
    assert threading.active_count() == before
    assert (torch.get_num_threads(), cores()) == (3, 3)


def test_pieces_share_the_cores_and_operations_take_one() -> None:
    def counts(_: int) -> tuple[int, int]:
        return torch.get_num_threads(), cores()

    assert counts(0) == (3, 3)
    assert list(in_threads(counts, range(4), 4)) == [(1, 1)] * 4
    torch.set_num_threads(4)
    assert list(in_threads(counts, range(2), 2)) == [(2, 2)] * 2  # two clients, four cores
    with one_thread_each():
        assert counts(0) == (1, 4)
        assert list(in_threads(counts, range(8), 8)) == [(1, 1)] * 8
        assert counts(0) == (1, 4)
    assert counts(0) == (4, 4)
