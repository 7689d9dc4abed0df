"""Datasets: a function per file, which gives a `Federation`, or a `Pool` to partition."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from commonweal.datasets._build import build_federation
    from commonweal.datasets.noise import Noise
    from commonweal.datasets.partition import Partition
    from commonweal.datasets.pools import Pool

__all__ = ["Noise", "Partition", "Pool", "build_federation"]

# Imported when asked for: they need torch, which takes seconds to import.
HOMES = {
    "Noise": "noise",
    "Partition": "partition",
    "Pool": "pools",
    "build_federation": "_build",
}


def __getattr__(name: str) -> object:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return vars(import_module(f"{__name__}.{HOMES[name]}"))[name]
