"""Reports of nodes: sizes, losses and scores under the names that an app gives them."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from commonweal.base.errors import DataError, RunError
from commonweal.flower.content import PREFIXES, Numbers, find_loss, find_metric, plain
from commonweal.rules.rule import Need
from commonweal.task import scores

SHOWN = 5  # clients or nodes that a message names
# What apps call the score of an evaluation, where no key is given.
SCORE_NAMES = ["accuracy", *(f"{p}acc" for p in PREFIXES), *(f"{p}accuracy" for p in PREFIXES)]
SCORE_NAMES.append("score")

Losses = Literal["train", "evaluate"]  # where the losses come from that a rule decides by


class Problem(NamedTuple):
    """The reason why a node's reply cannot be used."""

    kind: Literal["silent", "unavailable", "app", "name", "metrics", "arrays", "schema", "rule"]
    text: str

    @property
    def passing(self) -> bool:
        """True if the node may answer the next time without a change."""
        return self.kind in ("silent", "unavailable")


@dataclass
class Report:
    """A node's reply to a request for training."""

    node: int
    name: str
    problem: Problem | None = None
    client: int = -1  # its position, by which rules know it, if the reply can be used
    size: float = math.nan
    loss: float | None = None  # of the received model; None: not known
    score: float = math.nan  # of the received model
    loss_after: float = math.nan  # of the trained model
    statistics: Numbers = field(default_factory=list)  # of a private round
    weight: float = math.nan  # by which the client weighed itself, in a private round


@dataclass
class Evaluated:
    """A node's report on the global model."""

    size: float = 0.0
    loss: float | None = None
    score: float = math.nan
    round: int = 0  # 0: it was not evaluated yet


def column(records: Iterable[Report | Evaluated], name: str) -> Tensor:
    """One number of all reports (S,), in float64. NaN: not known."""
    values = [vars(record)[name] for record in records]
    numbers = [math.nan if value is None else value for value in values]
    return torch.tensor(numbers, dtype=torch.float64)


def check_trained(reports: Sequence[Report]) -> None:
    """Raise RunError where all clients are refused for the same reason: no round will train."""
    first = reports[0].problem if reports else None
    kinds = {None if report.problem is None else report.problem.kind for report in reports}
    if first is not None and not first.passing and len(kinds) == 1:
        raise RunError(
            f"nothing can be trained: all {len(reports)} clients are refused; of the first: "
            f"{first.text}"
        )


def listed(names: Sequence[str]) -> str:
    """Some names, and how many more there are.

    >>> listed(["c", "a"]), listed([str(k) for k in range(7)])
    ('a, c', '0, 1, 2, 3, 4 and 2 more')
    """
    shown = ", ".join(sorted(names)[:SHOWN])
    return shown if len(names) <= SHOWN else f"{shown} and {len(names) - SHOWN} more"


def recorded_score(key: str | None, higher_is_better: bool) -> str:
    """The name by which a score is recorded: one of Commonweal's, or the app's own.

    >>> recorded_score("eval_acc", True), recorded_score("mae", False)
    ('accuracy', 'mae')
    >>> recorded_score("test_f1_macro", True)
    'higher:test_f1_macro'
    """
    if key is None or "acc" in key.lower():
        return "accuracy"
    known = scores.SCORES.get(plain(key))
    if known is not None and known.lower_is_better != higher_is_better:
        return plain(key)
    return f"{'higher' if higher_is_better else 'lower'}:{key}"


@dataclass
class ReplyReader:
    """Reads the metrics of replies. The fields are arguments of `FairStrategy`."""

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
        return recorded_score(self.score_key, self.higher_is_better)

    def fill(
        self,
        report: Report,
        values: Mapping[str, object],
        last: Evaluated,
        needs: Collection[Need],
    ) -> None:
        """Fill in a report. Raises DataError where it cannot be used.

        Args:
            report: The report of one node.
            values: The metrics of its reply.
            last: The client's last evaluation.
            needs: What the rule needs.
        """
        size = self._size(values)
        loss = values.get(self.loss_key)
        if self.losses == "train" and isinstance(loss, list):
            raise DataError(
                f"its {self.loss_key!r} is a list of {len(loss)} numbers: report one number"
            )
        after = find_metric(values, ["loss-after"])
        if after is not None:
            report.loss_after = after
        elif "loss_after" in needs:
            raise DataError(
                "the rule needs the loss after training: report it as the metric 'loss-after'"
            )
        report.size = size
        evaluated = self.losses == "evaluate"
        report.loss = last.loss if evaluated else find_metric(values, [self.loss_key])
        score = find_metric(values, ["score-before"])
        report.score = last.score if score is None else score

    def _size(self, values: Mapping[str, object]) -> float:
        size = values.get(self.size_key)
        if size is None:
            raise DataError(
                f"it sent no {self.size_key!r}, the number of its training samples, but "
                f"{sorted(values)}: add it to the metrics of its reply"
            )
        if not isinstance(size, int | float) or not 0 < size < math.inf:
            raise DataError(f"its {self.size_key!r} is {size!r}: it must be above 0")
        if self.max_examples is not None and size > self.max_examples:
            raise DataError(
                f"it reports {size} samples, more than max_examples = {self.max_examples}"
            )
        return size

    def evaluated(self, values: Mapping[str, object], round: int) -> Evaluated:
        """Read an evaluation. Without a usable size it counts as one sample."""
        size = find_metric(values, [self.size_key])
        if size is None or not 0 < size < math.inf:
            size = 1.0
        loss = find_loss(values, self.evaluate_loss_key)
        score_names = SCORE_NAMES if self.score_key is None else [self.score_key]
        score = find_metric(values, score_names, "acc" if self.score_key is None else "")
        return Evaluated(size, loss, math.nan if score is None else score, round)

    def to_fractions(self, evaluated: Collection[Evaluated]) -> None:
        """Turn scores into fractions, where an app reports them in per cent."""
        if scores.find_score(self.score).in_per_cent and (column(evaluated, "score") > 1).any():
            self.per_cent = True
        for result in evaluated if self.per_cent else ():
            result.score /= 100
