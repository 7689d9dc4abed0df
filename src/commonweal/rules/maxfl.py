"""MaxFL: the largest number of clients for whom the global model beats their local model.

Cho, Jhunjhunwala, Li, Smith and Joshi, Maximizing Global Model Appeal in Federated Learning, TMLR
2024 (arXiv 2205.14840), Algorithm 1. It descends the number of clients above their requirement,
smoothed by a sigmoid. Clients near their requirement count most; it gives up on those far above,
which is the opposite of AFL: use it to win clients, not to protect the worst off.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from commonweal.base.tensors import State
from commonweal.rules._local_losses import LocalLosses
from commonweal.rules.rule import Decision, Kind, Reports

SMALLEST = 1e-3  # of a client's weight, over the number of clients: nobody is left out for good


@dataclass(frozen=True)
class MaxFL(LocalLosses):
    """weights_i ~ s_i (1 - s_i) + 1e-3 / S, s_i = sigmoid(f_i - alone_i)

    A client that joins late has the mean of the others' local losses.

    Args:
        alone: the loss that each client requires, such as that of its local model, in the order of
            clients; empty: 0 for all.
        path: the folder of a run of the same clients with client = "alone", from which a run takes
            the lowest training loss that each of them reported.
    """

    kind = Kind(
        "mixture", "log s (1 - s), s = sigmoid(f - alone)", "one entropic step from the uniform"
    )

    def __call__(self, reports: Reports, state: State) -> Decision:
        gap = self.above_local(reports.losses, reports.ids, state["alone"])
        return Decision(_weights(gap), state)

    def response(self, losses: Tensor) -> Tensor:
        return _weights(self.above_local(losses, torch.arange(len(losses)), self.known)).log()


def _weights(gap: Tensor) -> Tensor:
    """The weights of clients whose losses are so far above what they require."""
    appeal = torch.sigmoid(gap) * torch.sigmoid(-gap) + SMALLEST / len(gap)
    return appeal / appeal.sum()


ENTRIES = {"maxfl": MaxFL}
