"""weight: clients are asked as often as the rule weighs them.

Deng, Kamani and Mahdavi, Distributionally Robust Federated Averaging, NeurIPS 2020, sample by the
mixture that is worst for the model. Combine it with a rule that has a mixture over all clients.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from commonweal.base.errors import ConfigError
from commonweal.data.population import Population
from commonweal.samplers.sampler import Sampler

__all__ = ["ByWeight"]


@dataclass(frozen=True)
class ByWeight(Sampler):
    """`cohort` clients with probability p_i, p the rule's mixture over all clients

    Args:
        replacement: whether a client may be drawn more than once; its id is then repeated.
    """

    replacement: bool = False

    uses_weights: ClassVar[bool] = True

    def __call__(
        self,
        round: int,
        population: Population,
        size: int,
        weights: Tensor | None,
        rng: np.random.Generator,
    ) -> Tensor:
        if weights is None:
            raise ConfigError(
                "sampler 'weight' needs a rule with a mixture over all clients, such as 'afl'"
            )
        p = weights.double().clamp(min=0).numpy()
        p = p / p.sum()
        if not self.replacement:
            size = min(size, int((p > 0).sum()))
        ids = rng.choice(len(p), size, replace=self.replacement, p=p)
        return torch.from_numpy(np.sort(ids))


ENTRIES = {"weight": ByWeight}
