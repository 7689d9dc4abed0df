"""FedAvg: every row counts the same, so a client counts by how many it has.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017.
"""

from dataclasses import dataclass

from torch import Tensor

from commonweal.rule import Reports, State

__all__ = ["FedAvg"]


@dataclass(frozen=True)
class FedAvg:
    """weights_i = n_i / sum n"""

    def init(self, clients: int) -> State:
        return {}

    def __call__(self, reports: Reports, state: State) -> tuple[Tensor, State]:
        sizes = reports.sizes.double()
        return sizes / sizes.sum(), state
