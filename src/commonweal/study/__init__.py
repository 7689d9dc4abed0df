"""Several runs: planning, running and pairing them, and what may be said of their differences."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from commonweal.study.judging import (
        ClientGain,
        Contrast,
        Judgement,
        MethodGain,
        contrasts,
        judge,
    )

__all__ = ["ClientGain", "Contrast", "Judgement", "MethodGain", "contrasts", "judge"]


def __getattr__(name: str) -> object:
    """Import the statistics when they are asked for: plans must not wait for scipy."""
    if name not in __all__:
        raise AttributeError(f"module 'commonweal.study' has no attribute {name!r}")
    return vars(import_module("commonweal.study.judging"))[name]
