"""Reads the metrics of a Flower app's replies: sizes, losses and scores under the app's names.

Nothing here imports flwr.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from commonweal.flower.directory import Known
from commonweal.flower.reports import Evaluated, Problem, Report, column
from commonweal.rules.rule import Need
from commonweal.training import scores

Losses = Literal["train", "evaluate"]  # where the losses come from that a rule decides by

# What apps call the loss and the score of an evaluation, where no key is given.
LOSS_NAMES = (
    *("loss", "eval-loss", "evaluate-loss", "val-loss", "valid-loss", "validation-loss"),
    "test-loss",
)
SCORE_NAMES = (
    *("accuracy", "acc", "eval-acc", "evaluate-acc", "val-acc", "valid-acc", "validation-acc"),
    *("test-acc", "eval-accuracy", "evaluate-accuracy", "val-accuracy", "valid-accuracy"),
    *("validation-accuracy", "test-accuracy", "score"),
)


def find_metric(
    metrics: Mapping[str, object], names: Sequence[str], part: str = ""
) -> float | None:
    """Find a metric that is a number. `_` and `-` are the same.

    Args:
        metrics: The metrics by name.
        names: Names to look for; the first that is there counts.
        part: Where none of them is there, the only name that contains this is taken.

    >>> find_metric({"eval_loss": 0.5}, ["loss", "eval-loss"])
    0.5
    >>> find_metric({"test_logloss": 0.7, "num-examples": 10}, ["loss"], part="loss")
    0.7
    """
    numbers: dict[str, float] = {}
    similar = []
    for name, value in metrics.items():
        if isinstance(value, int | float):
            key = name.replace("_", "-").lower()
            numbers[key] = float(value)
            if part and part in key:
                similar.append(key)
    for name in names:
        key = name.replace("_", "-").lower()
        if key in numbers:
            return numbers[key]
    return numbers[similar[0]] if len(similar) == 1 else None


def score_name(key: str | None, higher_is_better: bool) -> str:
    """The name by which a score is recorded: one of Commonweal's, or the app's own.

    >>> score_name("eval_acc", True), score_name("test_f1_macro", True), score_name("mae", False)
    ('accuracy', 'higher:test_f1_macro', 'mae')
    """
    if key is None or "acc" in key.lower():
        return "accuracy"
    name = key.lower().replace("_", "-")
    known = scores.SCORES.get(name)
    if known is not None and known.lower_is_better != higher_is_better:
        return name
    return f"{'higher' if higher_is_better else 'lower'}:{key}"


@dataclass
class ReplyReader:
    """Finds what replies report, under the names that the app gives it.

    The fields are arguments of `FairStrategy`.
    """

    losses: Losses
    loss_key: str
    evaluate_loss_key: str | None
    score_key: str | None
    higher_is_better: bool
    size_key: str
    max_examples: int | None
    per_cent: bool = False  # whether scores that are fractions are reported in per cent

    @property
    def score(self) -> str:
        """The name by which scores are recorded."""
        return score_name(self.score_key, self.higher_is_better)

    def fill(
        self,
        report: Report,
        values: Mapping[str, object],
        known: Known,
        needs: Collection[Need],
    ) -> None:
        """Fill in a report, or say why it cannot be used.

        Args:
            report: The report of one node.
            values: The metrics of its reply.
            known: What the server knows of its client.
            needs: What the rule needs.
        """
        report.problem = self._problem(values, needs)
        if report.problem is not None:
            return
        report.size = find_metric(values, (self.size_key,)) or math.nan
        report.loss = find_metric(values, (self.loss_key,))
        if report.loss is None and self.losses == "evaluate":
            report.loss = known.loss
        score = find_metric(values, ("score-before",))
        report.score = known.score if score is None else score
        after = find_metric(values, ("loss-after",))
        report.loss_after = math.nan if after is None else after

    def _problem(self, values: Mapping[str, object], needs: Collection[Need]) -> Problem | None:
        size = values.get(self.size_key)
        if size is None:
            return Problem(
                "size",
                f"it sent no {self.size_key!r}, the number of its training samples, but "
                f"{sorted(values)}: add it to the metrics of its reply",
            )
        if not isinstance(size, int | float) or not 0 < size < math.inf:
            return Problem("size", f"its {self.size_key!r} is {size!r}: it must be above 0")
        if self.max_examples is not None and size > self.max_examples:
            return Problem(
                "size", f"it reports {size} samples, more than max_examples = {self.max_examples}"
            )
        loss = values.get(self.loss_key)
        if isinstance(loss, list):
            return Problem(
                "loss", f"its {self.loss_key!r} is a list of {len(loss)} numbers: report one number"
            )
        if "loss_after" in needs and find_metric(values, ("loss-after",)) is None:
            return Problem(
                "loss",
                "the rule needs the loss after training: report it as the metric 'loss-after'",
            )
        return None

    def evaluated(self, values: Mapping[str, object]) -> Evaluated:
        """What an evaluation reports. Without a usable size it counts as one sample."""
        size = find_metric(values, (self.size_key,))
        if size is None or not 0 < size < math.inf:
            size = 1.0
        if self.evaluate_loss_key is None:
            loss = find_metric(values, LOSS_NAMES, "loss")
        else:
            loss = find_metric(values, (self.evaluate_loss_key,))
        if self.score_key is None:
            score = find_metric(values, SCORE_NAMES, "acc")
        else:
            score = find_metric(values, (self.score_key,))
        return Evaluated(size, loss, math.nan if score is None else score)

    def in_unit(self, evaluated: Mapping[int, Evaluated]) -> dict[int, Evaluated]:
        """Evaluations with scores as fractions, where an app reports them in per cent."""
        is_fraction = scores.find(self.score).in_per_cent
        if is_fraction and (column(list(evaluated.values()), "score") > 1).any():
            self.per_cent = True
        if not self.per_cent:
            return dict(evaluated)
        in_unit = {}
        for node, values in evaluated.items():
            in_unit[node] = replace(values, score=values.score / 100)
        return in_unit
