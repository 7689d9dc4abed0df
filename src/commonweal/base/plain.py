"""Plain values: what TOML and JSON hold."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from torch import Tensor

Plain: TypeAlias = bool | int | float | str | Sequence["Plain"] | Mapping[str, "Plain"] | None
Table: TypeAlias = Mapping[str, Plain]


def to_json(value: object, indent: int | None = 2) -> bytes:
    """Encode plain values and tensors as JSON with a line end. NaN and infinity become null."""
    text = json.dumps(_finite(value), ensure_ascii=False, indent=indent, allow_nan=False)
    return (text + "\n").encode(errors="backslashreplace")  # as JSON writes lone surrogates


def _finite(value: object) -> object:
    if isinstance(value, Tensor):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def flat(tables: Table, prefix: str = "") -> dict[str, Plain]:
    """Nested tables as one, with keys joined by dots.

    >>> flat({"rounds": 3, "rule": {"name": "term"}})
    {'rounds': 3, 'rule.name': 'term'}
    """
    joined: dict[str, Plain] = {}
    for key, value in tables.items():
        if isinstance(value, Mapping):
            joined |= flat(value, f"{prefix}{key}.")
        else:
            joined[prefix + key] = value
    return joined
