"""FedAvg: clients are weighted by their numbers of samples.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data,
AISTATS 2017.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from commonweal.rules.private_form import PrivateForm
from commonweal.rules.rule import Kind, Reports, Stateless, prior_weights


@dataclass(frozen=True)
class FedAvg(Stateless):
    """weights_i = n_i / sum n"""

    kind = Kind("mixture", "0", "one entropic step from the sizes")
    needs = frozenset({"size"})

    @property
    def private(self) -> PrivateForm:
        return PrivateForm()

    def response(self, losses: Tensor) -> Tensor:
        return torch.zeros_like(losses)

    def weigh(self, reports: Reports) -> Tensor:
        return prior_weights(reports, "sizes")


ENTRIES = {"fedavg": FedAvg}
