"""only: some clients are asked, and all are evaluated.

What a model is worth to clients that had no part in its training: the rows "trained on one domain"
of Mohri, Sivek, Suresh, Agnostic Federated Learning, ICML 2019, Tables 1 and 3.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from commonweal.base.errors import ConfigError, DataError, did_you_mean
from commonweal.data.population import Population
from commonweal.samplers.sampler import Sampler

__all__ = ["Only"]


@dataclass(frozen=True)
class Only(Sampler):
    """`cohort` of the named clients, all equally likely

    Args:
        names: clients, or groups of clients where the data has groups.
    """

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.names:
            names = list(self.names)
            raise ConfigError(f"sampler only names = {names}: give the name of at least one client")

    def __call__(
        self,
        round: int,
        population: Population,
        size: int,
        weights: Tensor | None,
        rng: np.random.Generator,
    ) -> Tensor:
        ids = self._ids(population)
        if len(ids) > size:
            ids = np.sort(rng.choice(ids, size, replace=False))
        return torch.from_numpy(ids)

    def check(self, population: Population) -> None:
        self._ids(population)

    def _ids(self, population: Population) -> np.ndarray:
        """The named clients (S,), sorted."""
        groups = population.groups or population.names
        chosen = set()
        for name in self.names:
            found = [i for i, group in enumerate(groups) if name in (group, population.names[i])]
            if not found:
                known = dict.fromkeys([*population.names, *groups])
                hint = did_you_mean(name, known)
                raise DataError(f"sampler only names {name!r}, which is not in the data: {hint}")
            chosen |= set(found)
        return np.array(sorted(chosen), dtype=np.int64)


ENTRIES = {"only": Only}
