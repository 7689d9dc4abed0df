"""guarded: a rule that excludes implausible reports.

Fair rules give more weight to larger losses, so one client with a false report can take over a
model. A report is implausible if its loss or the norm of its update is more than `limit` times the
cohort's median, which is reliable as long as most reporters are honest.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from commonweal.errors import ConfigError
from commonweal.population import Setting
from commonweal.rules.rule import Decision, Kind, Need, Reports, Rule, required
from commonweal.tensors import State

__all__ = ["Guarded"]


@dataclass(frozen=True)
class Guarded(Rule):
    """the rule's weights over the reports with f_i <= limit * median f and
    |u_i| <= limit * median |u|

    rule: any rule
    limit: how many times the median is implausible
    action: "drop" the report, or "cap" its loss and the norm of its update at the largest plausible
    ones
    """

    rule: Rule
    limit: float = 100.0
    action: Literal["drop", "cap"] = "drop"

    kind: ClassVar[Kind] = Kind(
        "combinator", "the rule's own, of plausible losses", "the rule's own"
    )

    def __post_init__(self) -> None:
        if self.limit <= 1:
            raise ConfigError(f"guarded limit = {self.limit}: it must be above 1")

    @property
    def mixing(self) -> bool:
        return self.rule.mixing and self.action == "drop"  # the weight of a capped update shrinks

    @property
    def needs(self) -> frozenset[Need]:
        return self.rule.needs | {"update"}

    def init(self, setting: Setting | int) -> State:
        return self.rule.init(setting)

    def response(self, losses: Tensor) -> Tensor | None:
        return self.rule.response(losses)

    def bound(self, rounds: int, clients: int) -> float | None:
        return self.rule.bound(rounds, clients)

    def distribution(self, state: State, clients: int) -> Tensor | None:
        return self.rule.distribution(state, clients)

    def __call__(self, reports: Reports, state: State) -> Decision:
        excess = self._excess(reports)
        plausible = excess <= 1  # (2, S)
        if plausible.all():
            return self.rule(reports, state)
        reasons = self._reasons(reports.ids, excess)
        if self.action == "cap":
            return self._cap(reports, state, plausible, reasons)
        return self._drop(reports, state, plausible.all(0), reasons)

    def _excess(self, reports: Reports) -> Tensor:  # (2, S)
        """How far losses and norms are above the limit: 1 is at it."""
        values = torch.stack([reports.losses.double(), reports.norms]).nan_to_num(nan=torch.inf)
        # The lower one of two medians: a single false report of two is found.
        median = values.median(1, keepdim=True).values
        without_scale = torch.where(values.isinf(), torch.inf, 0.0)
        excess = torch.where(median > 0, values / (self.limit * median), without_scale)
        return excess.nan_to_num(nan=torch.inf, posinf=torch.inf)

    def _reasons(self, ids: Tensor, excess: Tensor) -> dict[int, str]:
        reasons = {}
        for name, row in zip(("loss", "update"), excess, strict=True):
            above = row > 1
            factors = (row[above] * self.limit).tolist()
            for client, factor in zip(ids[above].tolist(), factors, strict=True):
                reasons[client] = f"its {name} is {factor:.3g} times the cohort's median"
        return reasons

    def _drop(
        self, reports: Reports, state: State, plausible: Tensor, reasons: dict[int, str]
    ) -> Decision:
        weights = torch.zeros(len(plausible), dtype=torch.float64)
        if not plausible.any():
            return Decision(weights, state, dropped=reasons)
        decision = self.rule(reports.subset(plausible), state)
        weights = weights.to(decision.weights.dtype).masked_scatter(plausible, decision.weights)
        return replace(decision, weights=weights, dropped=reasons | decision.dropped)

    def _cap(
        self, reports: Reports, state: State, plausible: Tensor, reasons: dict[int, str]
    ) -> Decision:
        shrink = _shrink(reports.norms, plausible[1])
        decision = self.rule(_capped(reports, plausible[0], shrink), state)
        weights = decision.weights * shrink
        return replace(decision, weights=weights, capped=reasons | decision.capped)


def _shrink(norms: Tensor, plausible: Tensor) -> Tensor:
    """The factor (S,) that limits each update to the largest plausible norm."""
    factor = (norms[plausible].max() / norms).nan_to_num(nan=0.0)
    return torch.where(plausible, 1.0, factor)


def _capped(reports: Reports, plausible: Tensor, shrink: Tensor) -> Reports:
    losses = reports.losses.double()
    losses = torch.where(plausible, losses, losses[plausible].max())
    updates = required(reports.updates, "updates")
    factor = shrink[:, None]
    # Zero where the factor is zero: such an update may hold infinities.
    updates = torch.where(factor > 0, updates * factor.to(updates.dtype), 0)
    return replace(reports, losses=losses, updates=updates)


ENTRIES = {"guarded": Guarded}
