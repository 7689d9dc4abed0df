"""guarded: a rule that does not believe reports which cannot be true.

Fair rules lean on whoever reports a large loss, so one liar can take a model over. A report is rejected if its loss or
the length of its update is more than `limit` times the cohort's median, which stands as long as most reporters are
honest.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from commonweal.errors import ConfigError
from commonweal.federation import Federation
from commonweal.local import Local
from commonweal.rule import Kind, Reports, Rule, State, bound

__all__ = ["Guarded"]

KIND = Kind("combinator", "the rule's own, of believable losses", "the rule's own")


@dataclass(frozen=True)
class Guarded:
    """the rule's weights over the reports with f_i <= limit * median f and |u_i| <= limit * median |u|

    rule: any rule; limit: how many times the median is absurd
    action: "drop" the report, or "cap" its loss and its update's length at the limit
    """

    rule: Rule
    limit: float = 100.0
    action: Literal["drop", "cap"] = "drop"

    def __post_init__(self) -> None:
        if self.limit <= 1:
            raise ConfigError(f"guarded limit = {self.limit}: it must be above 1")

    def bind(self, federation: Federation, local: Local) -> "Guarded":
        return replace(self, rule=bound(self.rule, federation, local))

    @property
    def needs_after(self) -> bool:
        return getattr(self.rule, "needs_after", False)

    def init(self, clients: int) -> State:
        return self.rule.init(clients)

    def __call__(self, reports: Reports, state: State) -> tuple[Tensor, State]:
        excess = self._excess(reports)
        if not (excess > 1).any():
            return self.rule(reports, state)
        if self.action == "cap":
            shrink = 1 / torch.maximum(excess[1], torch.ones_like(excess[1]))
            weights, state = self.rule(self._capped(reports, excess, shrink), state)
            return weights * shrink, state
        good = (excess <= 1).all(0)
        some, state = self.rule(_subset(reports, good), state)
        return torch.zeros(len(good), dtype=some.dtype).masked_scatter(good, some), state

    def _excess(self, reports: Reports) -> Tensor:  # (2, S)
        """How far losses and lengths are beyond the limit: 1 is at it."""
        values = torch.stack([reports.losses.double(), reports.lengths])
        values = values.nan_to_num(nan=torch.inf)
        middle = values.median(1, keepdim=True).values  # the lower one of two: a single liar of two is caught
        return torch.where(middle > 0, values / (self.limit * middle), torch.where(values.isinf(), torch.inf, 0.0))

    def _capped(self, reports: Reports, excess: Tensor, shrink: Tensor) -> Reports:
        over = torch.maximum(excess[0], torch.ones_like(excess[0]))
        losses = torch.where(
            over.isinf(), self.limit * reports.losses.double().nanmedian(), reports.losses.double() / over
        )
        return replace(reports, losses=losses, updates=reports.updates * shrink[:, None].to(reports.updates.dtype))

    def rejected(self, reports: Reports) -> dict[int, str]:
        """The clients whose reports are not believed, and why."""
        loss, length = self._excess(reports)
        why = {}
        for client, a, b in zip(reports.ids.tolist(), loss.tolist(), length.tolist(), strict=True):
            for name, excess in (("loss", a), ("update", b)):
                if excess > 1:
                    done = "dropped" if self.action == "drop" else "capped"
                    why[client] = f"{done}: its {name} is {excess * self.limit:.3g} times the cohort's median"
        return why

    def notes(self, reports: Reports, state: State) -> list[str]:
        notes: Any = getattr(self.rule, "notes", None)
        good = (self._excess(reports) <= 1).all(0)
        return notes(_subset(reports, good), state) if notes else []


def _subset(reports: Reports, good: Tensor) -> Reports:
    return Reports(
        reports.ids[good],
        reports.sizes[good],
        reports.losses[good],
        reports.scores[good],
        reports.updates[good],
        reports.clients,
        None if reports.after is None else reports.after[good],
    )
