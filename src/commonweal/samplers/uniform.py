"""uniform: every client with the same probability, without replacement."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from commonweal.data.population import Population
from commonweal.samplers.sampler import Sampler

__all__ = ["Uniform"]


@dataclass(frozen=True)
class Uniform(Sampler):
    """`cohort` distinct clients, all equally likely"""

    def __call__(
        self,
        round: int,
        population: Population,
        size: int,
        weights: Tensor | None,
        rng: np.random.Generator,
    ) -> Tensor:
        clients = population.clients
        if size >= clients:
            return torch.arange(clients)
        return torch.from_numpy(np.sort(rng.choice(clients, size, replace=False)))


ENTRIES = {"uniform": Uniform}
