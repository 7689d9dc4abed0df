"""Worker processes that do a part of many runs each, on one thread, and end with their parent."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process

import torch


@contextmanager
def worker_pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that end with what uses them, however it ends: runs can be resumed."""
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), _prepare)
    try:
        with _ctrl_c_held():
            for _ in range(jobs):
                pool.submit(os.getpid)  # starts a process
        yield pool
    except BaseException:  # Ctrl-C: do not wait for what they are at
        for worker in active_children():
            worker.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _ctrl_c_held() -> Iterator[None]:
    """Hold Ctrl-C back, also in processes that are started meanwhile, until `_prepare`.

    Otherwise it would end their imports with tracebacks.
    """
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _prepare() -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a word: all is saved
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None  # in a worker
    parent.join()
    os._exit(1)
