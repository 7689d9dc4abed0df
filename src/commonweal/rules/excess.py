"""excess: a rule that sees how far each loss is above what the client reaches alone.

Erraji, Perrot, Bellet, Loss Gap Parity for Fairness in Heterogeneous Federated Learning, 2026
(arXiv 2603.29818), make these gaps alike by a penalty; here any rule gets them in place of losses.
Chu et al., FOCUS, 2022 (arXiv 2207.10265), measure fairness by them. A client whose labels are
noise has a large loss under any model, and fair rules chase it; its excess is small. With AFL this
is minimax regret.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from commonweal.base.errors import ConfigError
from commonweal.base.tensors import State
from commonweal.data.population import Setting
from commonweal.rules.rule import Combinator, Decision, Kind, Reports

__all__ = ["Excess"]

LEAST = 1e-6  # keeps every excess above 0, as losses are


@dataclass(frozen=True)
class Excess(Combinator):
    """weights of the rule for the losses max(f_i - alone_i, 0) + 1e-6

    Any client id is accepted. A client that joins late has the mean of the others' local losses.

    Args:
        rule: any rule.
        alone: the lowest loss that each client reaches alone with the same model, in the order of
            clients; empty: 0 for all.
        path: the folder of a run of the same clients with client = "alone", from which a run takes
            the lowest training loss that each of them reported.
    """

    alone: tuple[float, ...] = ()
    path: str | None = None

    kind: ClassVar[Kind] = Kind(
        "combinator", "the rule's own, of the loss above the client's own best", "the rule's own"
    )

    @property
    def local_run(self) -> str | None:
        return super().local_run if self.path is None else self.path

    def with_local_losses(self, losses: tuple[float, ...]) -> Self:
        changed = super().with_local_losses(losses)
        return changed if self.path is None else replace(changed, alone=losses)

    def init(self, setting: Setting | int) -> State:
        setting = Setting.of(setting)
        if self.path is not None and not self.alone:
            raise ConfigError(
                f"excess path = {self.path!r} is read where a run is built: outside of a run give "
                "alone = [...]"
            )
        alone = torch.tensor(self.alone or (0.0,), dtype=torch.float64)
        if self.alone and setting.members is not None and len(alone) == setting.members.shape[1]:
            alone = setting.members @ alone  # a group's loss is the mean of its members'
        if self.alone and len(alone) != setting.clients:
            raise ConfigError(
                f"excess: {len(self.alone)} losses alone for {setting.clients} clients; "
                "give every client's"
            )
        return {**super().init(setting), "alone": alone}

    def __call__(self, reports: Reports, state: State) -> Decision:
        losses_after = reports.losses_after
        if losses_after is not None:
            losses_after = _excess(losses_after, reports.ids, state["alone"])
        above = replace(
            reports,
            losses=_excess(reports.losses, reports.ids, state["alone"]),
            losses_after=losses_after,
        )
        decision = self.rule(above, self.inner(state))
        return replace(decision, state={"rule": decision.state, "alone": state["alone"]})

    def response(self, losses: Tensor) -> Tensor | None:
        alone = torch.tensor(self.alone or (0.0,), dtype=torch.float64)
        return self.rule.response(_excess(losses, torch.arange(len(losses)), alone))


def _excess(losses: Tensor, ids: Tensor, alone: Tensor) -> Tensor:
    """How far the losses (S,) are above the local ones of the clients 0, 1, ... (K,)."""
    place = ids.clamp(0, len(alone) - 1)
    floor = torch.where(place == ids, alone[place], alone.mean())
    return (losses.double() - floor).clamp(min=0) + LEAST


ENTRIES = {"excess": Excess}
