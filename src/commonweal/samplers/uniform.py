"""uniform: every client with the same probability, without replacement."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from commonweal.samplers.sampler import Draw, Sampler

__all__ = ["Uniform"]


@dataclass(frozen=True)
class Uniform(Sampler):
    """`cohort` distinct clients, all equally likely"""

    def choose(self, draw: Draw) -> Tensor:
        clients = draw.population.clients
        if draw.size >= clients:
            return torch.arange(clients)
        return torch.from_numpy(np.sort(draw.rng.choice(clients, draw.size, replace=False)))


ENTRIES = {"uniform": Uniform}
