"""excess: a rule that sees how far each loss is above what the client reaches alone.

Erraji, Perrot, Bellet, Loss Gap Parity for Fairness in Heterogeneous Federated Learning, 2026
(arXiv 2603.29818), make these gaps alike by a penalty; here any rule gets them in place of losses.
Chu et al., FOCUS, 2022 (arXiv 2207.10265), measure fairness by them. A client whose labels are
noise has a large loss under any model, and fair rules chase it; its excess is small. With AFL this
is minimax regret.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from commonweal.base.errors import ConfigError
from commonweal.base.tensors import State
from commonweal.data.population import Setting
from commonweal.rules.rule import Decision, Kind, Need, Reports, Rule

__all__ = ["Excess"]

LEAST = 1e-6  # keeps every excess above 0, as losses are


@dataclass(frozen=True)
class Excess(Rule):
    """weights of the rule for the losses max(f_i - alone_i, 0) + 1e-6

    rule: any rule
    alone: the lowest loss that each client reaches alone with the same model, in the order of
    clients; empty: 0 for all
    path: the folder of a run of the same clients with client = "alone", from which a run takes the
    lowest training loss that each of them reported

    Any client id is accepted. A client that joins late has the mean of the others' losses alone.
    """

    rule: Rule
    alone: tuple[float, ...] = ()
    path: str | None = None

    kind: ClassVar[Kind] = Kind(
        "combinator", "the rule's own, of the loss above the client's own best", "the rule's own"
    )

    @property
    def mixing(self) -> bool:
        return self.rule.mixing

    @property
    def needs(self) -> frozenset[Need]:
        return self.rule.needs

    def init(self, setting: Setting | int) -> State:
        setting = Setting.of(setting)
        if self.path is not None and not self.alone:
            raise ConfigError(
                f"excess path = {self.path!r} is read where a run is built: outside of a run give "
                "alone = [...]"
            )
        if self.alone and len(self.alone) != setting.clients:
            raise ConfigError(
                f"excess: {len(self.alone)} losses alone for {setting.clients} clients; "
                "give every client's"
            )
        return {"rule": self.rule.init(setting)}

    def __call__(self, reports: Reports, state: State) -> Decision:
        losses_after = reports.losses_after
        if losses_after is not None:
            losses_after = self._excess(reports.ids, losses_after)
        above = replace(
            reports,
            losses=self._excess(reports.ids, reports.losses),
            losses_after=losses_after,
        )
        decision = self.rule(above, state.get("rule", {}))
        return replace(decision, state={"rule": decision.state})

    def _excess(self, ids: Tensor, losses: Tensor) -> Tensor:
        alone = torch.tensor(self.alone or (0.0,), dtype=torch.float64)
        place = ids.clamp(0, len(alone) - 1)
        floor = torch.where(place == ids, alone[place], alone.mean())
        return (losses.double() - floor).clamp(min=0) + LEAST

    def distribution(self, state: State, clients: int) -> Tensor | None:
        return self.rule.distribution(state.get("rule", {}), clients)

    def averaged(self, state: State, clients: int) -> Tensor | None:
        return self.rule.averaged(state.get("rule", {}), clients)


ENTRIES = {"excess": Excess}
