"""The interface of samplers."""

from typing import ClassVar, NamedTuple

import numpy as np
from torch import Tensor

from commonweal.data.population import Population

__all__ = ["Draw", "Sampler"]


class Draw(NamedTuple):
    """What a sampler chooses from."""

    round: int
    population: Population
    size: int  # about so many clients are asked
    weights: Tensor | None  # the rule's distribution over all clients (K,), where it has one
    rng: np.random.Generator


class Sampler:
    """Draws the clients that a round asks. Pure: what is random comes from `rng`."""

    uses_weights: ClassVar[bool] = False  # whether it needs the rule's distribution

    def __call__(
        self,
        round: int,
        population: Population,
        size: int,
        weights: Tensor | None,
        rng: np.random.Generator,
    ) -> Tensor:
        """Draw about `size` of the clients; return their ids, sorted."""
        return self.choose(Draw(round, population, size, weights, rng))

    def choose(self, draw: Draw) -> Tensor:
        """Return the ids of the clients to ask, sorted. Subclasses define it."""
        raise NotImplementedError

    def check(self, population: Population) -> None:
        """Raise DataError where the clients that the sampler names are not those of the data."""
