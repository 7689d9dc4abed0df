"""JSON as dataclasses, checked by pydantic."""

import reprlib
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

Value = TypeVar("Value")
adapter: Callable[[object], TypeAdapter[Any]] = cache(TypeAdapter)  # building one takes long


def parse_json(kind: type[Value], data: bytes, strict: bool = True) -> Value:
    """Read a dataclass from JSON. Raises ValueError with the first thing that is wrong."""
    try:
        value: Value = adapter(kind).validate_json(data, strict=strict)
        return value
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        problem = f"{key} = {reprlib.repr(first['input'])}" if key else first["msg"]
        raise ValueError(problem) from None
