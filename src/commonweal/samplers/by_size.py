"""size: clients with more rows are asked more often, without replacement."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from commonweal.data.population import Population
from commonweal.samplers.sampler import Sampler

__all__ = ["BySize"]


@dataclass(frozen=True)
class BySize(Sampler):
    """`cohort` distinct clients, drawn one after the other with probability n_i / sum n

    Combine it with the rule "uniform": with "fedavg" rows would count twice.
    """

    def __call__(
        self,
        round: int,
        population: Population,
        size: int,
        weights: Tensor | None,
        rng: np.random.Generator,
    ) -> Tensor:
        share = population.sizes.double().numpy()
        size = min(size, population.clients)
        ids = rng.choice(len(share), size, replace=False, p=share / share.sum())
        return torch.from_numpy(np.sort(ids))


ENTRIES = {"size": BySize}
