"""torch's own random generator, which all threads of a process share."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

import torch

_LOCK = RLock()


@contextmanager
def shared_generator() -> Iterator[torch.Generator]:
    """Use the generator alone, and restore its state afterwards."""
    with _LOCK:
        generator = torch.default_generator
        before = generator.get_state()
        try:
            yield generator
        finally:
            generator.set_state(before)
