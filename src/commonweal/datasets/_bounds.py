"""Bounds of parameters."""

import operator

from commonweal.base.errors import ConfigError


def check_bounds(
    name: str,
    value: float,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
) -> None:
    """Raise ConfigError if a parameter is outside its bounds, or NaN."""
    limits = (
        ("at least", least, operator.ge),
        ("above", above, operator.gt),
        ("at most", most, operator.le),
    )
    for words, limit, fits in limits:
        if limit is not None and not fits(value, limit):
            raise ConfigError(f"{name} = {value}: it must be {words} {limit}")
