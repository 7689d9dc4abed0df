"""The lists of `commonweal list`, read from the source."""

from commonweal import metrics
from commonweal.config import catalog
from commonweal.report import listing
from commonweal.rules.rule import Rule
from commonweal.task import scores


def test_families_are_read_as_the_classes_have_them() -> None:
    for family, entries in listing.families().items():
        for entry in entries:
            rule = entry.factory
            assert isinstance(rule, type)
            assert issubclass(rule, Rule)
            assert rule.kind.family == family
    assert {entry.name for found in listing.families().values() for entry in found} == set(
        catalog.entries("rules")
    )


def test_metrics_and_scores_are_read_as_the_modules_have_them() -> None:
    functions = {name for name in metrics.__all__ if name[0].islower()}
    assert set(listing.summaries("metrics")) == functions
    known = scores.SCORES | scores.AT | scores.DIAGNOSTICS
    meanings = {name: score.meaning for name, score in known.items()}
    assert listing.summaries("scores") == meanings
