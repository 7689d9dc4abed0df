"""clip: no client's update is longer than a bound.

The first half of differentially private federated averaging (McMahan et al., ICLR 2018), and a
protection against single clients that move the model too far.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from commonweal.base.arguments import check_bounds
from commonweal.base.tensors import Tensors
from commonweal.protocols.channels.channel import Channel


@dataclass(frozen=True)
class Clip(Channel):
    """u <- u min(1, norm / |u|)

    Args:
        norm: the largest Euclidean norm of an update.
    """

    norm: float = 1.0

    def __post_init__(self) -> None:
        check_bounds("clip norm", self.norm, above=0)

    def encode(self, reply: Tensors, memory: Tensors, noise: Tensor) -> tuple[Tensors, Tensors]:
        update = reply["update"]
        norm = torch.linalg.vector_norm(update)
        factor = (self.norm / norm.clamp(min=1e-12)).clamp(max=1)
        return reply | {"update": update * factor}, memory


ENTRIES = {"clip": Clip}
