"""Types of plain values: what TOML and JSON hold, and functions whose signatures vary."""

from collections.abc import Callable
from typing import Any

__all__ = ["Function", "Value", "Values"]

Value = Any  # a text, number, truth value, list or table; or a part that is given as an object
Values = dict[str, Any]  # such values by key
Function = Callable[..., Any]
