"""size: clients with more samples are asked more often, without replacement."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from commonweal.protocols.samplers.sampler import Draw, Sampler


@dataclass(frozen=True)
class BySize(Sampler):
    """`cohort` distinct clients, drawn one after the other with probability n_i / sum n

    Combine it with the rule "uniform": with "fedavg" sizes would count twice.
    """

    def choose(self, draw: Draw) -> Tensor:
        sizes = draw.population.sizes.double().numpy()
        count = min(draw.size, len(sizes))
        ids = draw.rng.choice(len(sizes), count, replace=False, p=sizes / sizes.sum())
        return torch.from_numpy(np.sort(ids))


ENTRIES = {"size": BySize}
