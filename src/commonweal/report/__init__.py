"""Texts and pictures of runs and data: tables, figures, lists and the page of rules."""

from typing import Literal, get_args

__all__ = ["FORMATS", "Format"]

Format = Literal["terminal", "markdown", "latex", "csv", "json"]

FORMATS: tuple[Format, ...] = get_args(Format)  # of comparisons
