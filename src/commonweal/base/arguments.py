"""Checks of what a user passes to a function: an error that names the argument."""

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
