"""uniform: every client with the same probability, without replacement."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from commonweal.protocols.samplers.sampler import Draw, Sampler, at_most


@dataclass(frozen=True)
class Uniform(Sampler):
    """`cohort` distinct clients, all equally likely"""

    def choose(self, draw: Draw) -> Tensor:
        return at_most(draw, np.arange(draw.population.clients))


ENTRIES = {"uniform": Uniform}
