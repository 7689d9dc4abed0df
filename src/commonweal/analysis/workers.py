"""Worker processes that do a part of many runs each, on one thread, and end with their parent."""

import os
import signal
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch

__all__ = ["worker_pool"]

LOOK_EVERY = 1.0  # seconds between looks whether the parent still lives


def worker_pool(jobs: int) -> ProcessPoolExecutor:
    """So many processes. A worker whose parent was killed ends itself: its run can be resumed."""
    context = get_context("spawn")
    return ProcessPoolExecutor(jobs, context, _prepare, (os.getpid(),))


def _prepare(parent: int) -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a word: all is saved
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_EVERY)
    os._exit(1)
