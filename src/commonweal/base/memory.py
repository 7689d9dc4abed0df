"""The memory of this machine, so that what does not fit is refused before it is asked for."""

import math
import os
from pathlib import Path

from commonweal.base.errors import CommonwealError, ConfigError

LIMIT = Path("/sys/fs/cgroup/memory.max")  # of a container


def available() -> float:
    """The bytes of memory that this machine, or the container, has; infinite where unknown."""
    try:
        total: float = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows
        total = math.inf
    try:
        return min(total, float(LIMIT.read_text()))
    except (OSError, ValueError):  # no container, or "max"
        return total


def check_memory(what: str, needed: float, kind: type[CommonwealError] = ConfigError) -> None:
    """Raise an error where something needs more bytes than there are.

    what: the beginning of the sentence, up to "needs"
    """
    there = available()
    if needed > there:
        raise kind(
            f"{what} needs {needed / 1e9:,.1f} GB of memory; this machine has {there / 1e9:,.1f} GB"
        )
