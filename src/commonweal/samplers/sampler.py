"""The interface of samplers."""

from typing import ClassVar

import numpy as np
from torch import Tensor

from commonweal.data.population import Population

__all__ = ["Sampler"]


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
        """Draw about `size` of the clients; return their ids, sorted.

        weights: the rule's distribution over all clients (K,), where it has one
        """
        raise NotImplementedError

    def check(self, population: Population) -> None:
        """Raise DataError where the clients that the sampler names are not those of the data."""
