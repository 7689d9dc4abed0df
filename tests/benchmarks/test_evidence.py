"""A short form of benchmarks/evidence.py: bounds that a rate of 15 % does not pass."""

import pytest

from cases import cases
from evidence import Case, rates

SIZES = (10, 20, 40, 80, 160, 320)


@cases("kind", ["binary", "clear", "classes", "error", "r2", "auroc", "f1"])
def test_claims_are_no_more_frequent_than_their_level_and_differences_are_found(kind: str) -> None:
    found = rates(Case(kind, SIZES), trials=150, seed=5)
    assert max(found.helps, found.named, found.not_helps) <= 8.6  # 5, and two standard errors
    assert found.found > 4


@pytest.mark.slow
@cases("seeds", [5, 10])
def test_five_methods_help_no_more_often_than_one(seeds: int) -> None:
    found = rates(Case("binary", (40,) * 49, 5, seeds), trials=150)
    assert max(found.helps, found.named) <= 8.6
