"""Checks of what a user passes to a function: an error that names the argument."""

import operator
from types import UnionType

import numpy as np

from commonweal.base.errors import ConfigError


def expect(name: str, value: object, kinds: type | tuple[type, ...] | UnionType, what: str) -> None:
    """Raise ConfigError unless a value is of one of some types.

    Args:
        name: The argument.
        value: What was given.
        kinds: The types that it may have.
        what: What to give, in words.
    """
    if not isinstance(value, kinds):
        raise ConfigError(f"{name} = {_shown(value)}: give {what}")


def expect_int(name: str, value: object, least: int = 0, most: int = 2**31) -> None:
    """Raise ConfigError unless a value is a whole number from `least` to `most`."""
    is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_whole or not least <= int(str(value)) <= most:
        raise ConfigError(f"{name} = {_shown(value)}: give a whole number from {least} to {most}")


def check_bounds(
    name: str,
    value: float | None,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
) -> None:
    """Raise ConfigError if a parameter is outside its bounds, or NaN. None is not checked."""
    limits = (
        ("at least", least, operator.ge),
        ("above", above, operator.gt),
        ("at most", most, operator.le),
        ("below", below, operator.lt),
    )
    for words, limit, fits in limits:
        if value is not None and limit is not None and not fits(value, limit):
            raise ConfigError(f"{name} = {value}: it must be {words} {limit}")


def expect_callable(name: str, value: object, what: str) -> None:
    """Raise ConfigError unless a value can be called."""
    if not callable(value):
        raise ConfigError(f"{name} = {_shown(value)}: give {what}")


def expect_names(name: str, value: object) -> None:
    """Raise ConfigError unless a value is a list or tuple of strings."""
    items = value if isinstance(value, list | tuple) else [None]
    if not all(isinstance(item, str) for item in items):
        raise ConfigError(f"{name} = {_shown(value)}: give a list of names")


def _shown(value: object) -> str:
    text = repr(value).replace("\n", " ")
    return text if len(text) <= 60 else f"{text[:57]}..."
