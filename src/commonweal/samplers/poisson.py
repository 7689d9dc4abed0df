"""poisson: every client by a coin of its own, so that the number of clients varies.

The sampling that the usual analysis of differential privacy assumes.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from commonweal.data.population import Population
from commonweal.samplers.sampler import Sampler

__all__ = ["Poisson"]


@dataclass(frozen=True)
class Poisson(Sampler):
    """each client with probability cohort / K, independently; a round may ask nobody"""

    def __call__(
        self,
        round: int,
        population: Population,
        size: int,
        weights: Tensor | None,
        rng: np.random.Generator,
    ) -> Tensor:
        chosen = rng.random(population.clients) < size / population.clients
        return torch.from_numpy(np.flatnonzero(chosen))


ENTRIES = {"poisson": Poisson}
