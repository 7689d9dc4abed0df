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

__all__ = ["Excess", "check_local_losses", "local_losses"]

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
        alone = check_local_losses("excess", self.alone, self.path, setting)
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
    return (losses.double() - local_losses(ids, alone)).clamp(min=0) + LEAST


def local_losses(ids: Tensor, alone: Tensor) -> Tensor:
    """The local losses of some clients; the mean for those that joined late.

    Args:
        ids: The clients (S,).
        alone: The local losses of the clients 0, 1, ... (K,).
    """
    place = ids.clamp(0, len(alone) - 1)
    return torch.where(place == ids, alone[place], alone.mean())


def check_local_losses(
    rule: str, alone: tuple[float, ...], path: str | None, setting: Setting | int
) -> Tensor:
    """The local losses (K,) that a rule was given, one for every client.

    Args:
        rule: Its name, for errors.
        alone: The losses; empty: 0 for all.
        path: The run of local models that they are from.
        setting: The clients.

    Raises:
        ConfigError: They are missing, or not those of these clients.
    """
    setting = Setting.of(setting)
    if path is not None and not alone:
        raise ConfigError(
            f"{rule} path = {path!r} is read where a run is built: outside of a run give "
            "alone = [...]"
        )
    losses = torch.tensor(alone or (0.0,), dtype=torch.float64)
    if alone and setting.members is not None and len(losses) == setting.members.shape[1]:
        losses = setting.members @ losses  # a group's loss is the mean of its members'
    if alone and len(losses) != setting.clients:
        raise ConfigError(
            f"{rule}: {len(alone)} losses alone for {setting.clients} clients; give every client's"
        )
    return losses


ENTRIES = {"excess": Excess}
