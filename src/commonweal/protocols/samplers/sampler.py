"""The interface of samplers."""

from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from commonweal.data.population import Population


class Draw(NamedTuple):
    """The clients that a sampler chooses from."""

    round: int
    population: Population
    size: int  # about so many clients are asked
    weights: Tensor | None  # the rule's distribution over all clients (K,), where it has one
    rng: np.random.Generator


class Sampler:
    """Draws the clients that a round asks. Pure: what is random comes from `draw.rng`."""

    uses_weights: ClassVar[bool] = False  # whether it needs the rule's distribution

    def choose(self, draw: Draw) -> Tensor:
        """The ids of the clients to ask, sorted."""
        raise NotImplementedError

    def check(self, population: Population) -> None:
        """Raise DataError where the clients that the sampler names are not those of the data."""


def at_most(draw: Draw, ids: np.ndarray) -> Tensor:
    """`draw.size` of these sorted ids, all equally likely; all where there are not more."""
    if len(ids) > draw.size:
        ids = np.sort(draw.rng.choice(ids, draw.size, replace=False))
    return torch.from_numpy(ids)
