"""only: some clients are trained on, and all are evaluated.

It shows what a model is worth to clients that had no part in its training: "trained on one domain"
in Mohri, Sivek, Suresh, Agnostic Federated Learning, ICML 2019, Tables 1 and 3.
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from commonweal.base.errors import ConfigError, DataError, did_you_mean
from commonweal.data.population import Population
from commonweal.protocols.samplers.sampler import Draw, Sampler, at_most


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

    def choose(self, draw: Draw) -> Tensor:
        return at_most(draw, self._ids(draw.population))

    def check(self, population: Population) -> None:
        self._ids(population)

    def _ids(self, population: Population) -> np.ndarray:
        """The named clients (S,), sorted."""
        groups = population.groups or population.names
        chosen = set()
        for name in self.names:
            pairs = zip(groups, population.names, strict=True)
            members = [i for i, names in enumerate(pairs) if name in names]
            if not members:
                known = dict.fromkeys([*population.names, *groups])
                hint = did_you_mean(name, known)
                raise DataError(f"sampler only names {name!r}, which is not in the data: {hint}")
            chosen |= set(members)
        return np.array(sorted(chosen), dtype=np.int64)


ENTRIES = {"only": Only}
