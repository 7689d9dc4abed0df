"""weight: a client is asked with the probability that the rule gives it.

Deng, Kamani and Mahdavi, Distributionally Robust Federated Averaging, NeurIPS 2020, sample by the
mixture that is worst for the model. Combine it with a rule that has a mixture over all clients.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from commonweal.base.errors import ConfigError
from commonweal.protocols.samplers.sampler import Draw, Sampler


@dataclass(frozen=True)
class ByWeight(Sampler):
    """`cohort` clients with probability p_i, p the rule's mixture over all clients

    Args:
        replacement: whether a client may be drawn more than once; its id is then repeated.
    """

    replacement: bool = False

    uses_weights: ClassVar[bool] = True

    def choose(self, draw: Draw) -> Tensor:
        if draw.weights is None:
            raise ConfigError(
                "sampler 'weight' needs a rule with a mixture over all clients, such as 'afl'"
            )
        p = draw.weights.double().clamp(min=0).numpy()
        p = p / p.sum()
        size = draw.size
        if not self.replacement:
            size = min(size, int((p > 0).sum()))
        ids = draw.rng.choice(len(p), size, replace=self.replacement, p=p)
        return torch.from_numpy(np.sort(ids))


ENTRIES = {"weight": ByWeight}
