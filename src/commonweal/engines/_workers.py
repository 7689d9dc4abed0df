"""Clients that are computed one by one, several at a time: in threads, with one core each.

A client's numbers are those of one thread, whatever the number of threads. Threads suffice, as
torch computes outside of Python's lock.
"""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import torch

from commonweal.base.tensors import Tensors
from commonweal.protocols.algorithm import Algorithm, Group, Request
from commonweal.training.client_state import NO_STATE, ClientState

Answer = tuple[Tensors, ClientState]  # replies, and states where they changed


def answer(algorithm: Algorithm, request: Request, group: Group) -> Answer:
    """Return the answer of a group."""
    replies, states = algorithm.answer(request, group)
    return replies, NO_STATE if states is group.states else states


def answers_in_threads(
    copies: list[Algorithm], request: Request, groups: Iterator[Group], count: int
) -> Iterator[Answer]:
    """The answers of groups in their order. Few groups are prepared before they are needed.

    Args:
        copies: The algorithm, once for each thread: two threads cannot run one module at a time,
            as its parameters are replaced for a call.
        request: What is asked.
        groups: Who is asked.
        count: Of threads.
    """

    def work(group: Group) -> Answer:
        algorithm = copies.pop()
        try:
            return answer(algorithm, request, group)
        finally:
            copies.append(algorithm)

    pending: deque[Future[Answer]] = deque()
    with _pool(count) as pool:
        for group in groups:
            pending.append(pool.submit(work, group))
            if len(pending) > count:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


@contextmanager
def _pool(count: int) -> Iterator[ThreadPoolExecutor]:
    """A pool of threads that share the cores.

    This thread shares nothing with others meanwhile: torch's own threads, which wait for work by
    counting, would take the cores from the pool's.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(threads // count)
    pool = ThreadPoolExecutor(count, "client", torch.set_num_threads, (threads // count,))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)
