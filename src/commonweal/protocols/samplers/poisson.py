"""poisson: each client independently with the same probability, so that their number varies.

The sampling that the usual analysis of differential privacy assumes.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from commonweal.protocols.samplers.sampler import Draw, Sampler


@dataclass(frozen=True)
class Poisson(Sampler):
    """each client with probability cohort / K, independently; a round may ask nobody"""

    def choose(self, draw: Draw) -> Tensor:
        clients = draw.population.clients
        chosen = draw.rng.random(clients) < draw.size / clients
        return torch.from_numpy(np.flatnonzero(chosen))


ENTRIES = {"poisson": Poisson}
