"""FedAvg: every row counts the same, so a client counts by how many it has.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from commonweal.online import mixture
from commonweal.rule import Kind, Reports, Stateless

__all__ = ["FedAvg"]

KIND = Kind("mixture", "0", "one entropic step from the sizes")


@dataclass(frozen=True)
class FedAvg(Stateless):
    """weights_i = n_i / sum n"""

    def response(self, losses: Tensor) -> Tensor:
        return torch.zeros_like(losses)

    def weigh(self, reports: Reports) -> Tensor:
        return mixture(reports, self.response(reports.losses.double()), "sizes")
