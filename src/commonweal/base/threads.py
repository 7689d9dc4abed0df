"""Pieces of work in several threads, as many as there are cores.

Threads that share one small operation mostly wait for each other. Inside `one_thread_each`
operations therefore take one thread, and `in_threads` gives the cores to pieces of work that need
nothing of each other. Threads suffice, as torch computes outside of Python's lock.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")

_local = threading.local()


def cores() -> int:
    """The number of threads that pieces of work may take: that of torch, unless it is divided."""
    return getattr(_local, "cores", 0) or torch.get_num_threads()


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Operations of this thread take one core; pieces of work take all that there are."""
    with _sharing(1, cores()):
        yield


def in_threads(work: Callable[[T], R], items: Iterable[T], count: int) -> Iterator[R]:
    """Yield work(item) for each item in their order. The calling thread works, too.

    The results do not depend on the number of threads. Few items are taken ahead.

    Args:
        work: A function that may run for several items at the same time.
        items: What it is called with.
        count: The number of items, or more.
    """
    threads = min(count, cores())
    if threads <= 1:
        yield from map(work, items)
        return
    share = max(1, torch.get_num_threads() // threads)
    remaining = iter(items)
    pending: deque[tuple[T, Future[R]]] = deque()
    with _sharing(share, share), _helpers(threads - 1, share) as pool:
        while True:
            for item in islice(remaining, 2 * threads - len(pending)):
                pending.append((item, pool.submit(work, item)))
            if not pending:
                return
            if pending[0][1].done() or not _works_on(work, pending):
                yield pending.popleft()[1].result()


def _works_on(work: Callable[[T], R], pending: deque[tuple[T, Future[R]]]) -> bool:
    """Do the first piece of work that no thread has begun. Returns whether there was one."""
    for k, (item, future) in enumerate(pending):
        if future.cancel():
            own: Future[R] = Future()
            own.set_result(work(item))
            pending[k] = item, own
            return True
    return False


@contextmanager
def _helpers(count: int, share: int) -> Iterator[ThreadPoolExecutor]:
    """Threads that work along with this one, with so many of torch's threads each."""
    pool = ThreadPoolExecutor(count, "commonweal", torch.set_num_threads, (share,))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _sharing(operations: int, pieces: int) -> Iterator[None]:
    """Set the threads of operations and of pieces of work, for this thread."""
    before = torch.get_num_threads()
    pieces_before = getattr(_local, "cores", 0)
    torch.set_num_threads(operations)
    _local.cores = pieces
    try:
        yield
    finally:
        _local.cores = pieces_before
        torch.set_num_threads(before)
