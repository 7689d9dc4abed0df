"""excess: gives a rule how far each loss is above that of the client's local model.

Erraji, Perrot, Bellet, Loss Gap Parity for Fairness in Heterogeneous Federated Learning, 2026
(arXiv 2603.29818), make these gaps alike by a penalty; here any rule gets them in place of losses.
Chu et al., FOCUS, 2022 (arXiv 2207.10265), measure fairness by them. A client whose labels are
noise has a large loss under any model, and fair rules chase it; its excess is small. With AFL this
is minimax regret.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from commonweal.base.tensors import State
from commonweal.rules._local_losses import LocalLosses
from commonweal.rules.rule import Combinator, Decision, Kind, Need, Reports

LEAST = 1e-6  # keeps every excess above 0, as losses are


@dataclass(frozen=True)
class Excess(LocalLosses, Combinator):
    """weights of the rule for the losses max(f_i - alone_i, 0) + 1e-6

    A client that joins late has the mean of the others' local losses.

    Args:
        rule: any rule.
        alone: the lowest loss that each client reaches by local training of the same model, in the
            order of clients; empty: 0 for all.
        path: the folder of a run of the same clients with client = "alone", from which a run takes
            the lowest training loss that each of them reported.
    """

    kind = Kind(
        "combinator", "the rule's own, of the loss above the local model's", "the rule's own"
    )

    @property
    def needs(self) -> frozenset[Need]:
        if self.alone or self.path is not None:
            return super().needs - {"nonnegative_loss"}  # the excess is above 0 in any case
        return super().needs | {"nonnegative_loss"}

    def __call__(self, reports: Reports, state: State) -> Decision:
        after = reports.losses_after
        if after is not None:
            after = self._excess(after, reports.ids, state["alone"])
        before = self._excess(reports.losses, reports.ids, state["alone"])
        decision = self.rule(replace(reports, losses=before, losses_after=after), self.inner(state))
        return replace(decision, state={"rule": decision.state, "alone": state["alone"]})

    def response(self, losses: Tensor) -> Tensor | None:
        return self.rule.response(self._excess(losses, torch.arange(len(losses)), self.known))

    def _excess(self, losses: Tensor, ids: Tensor, alone: Tensor) -> Tensor:
        return self.above_local(losses, ids, alone).clamp(min=0) + LEAST


ENTRIES = {"excess": Excess}
