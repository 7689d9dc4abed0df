"""grouped: a rule that plays on groups of clients (domains, protected groups) instead of on clients.

Mohri, Sivek, Suresh, Agnostic Federated Learning, ICML 2019, sec. 7.1, for any rule. A group reports the mean of its
members by their rows; its weight is shared among them by their rows.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from commonweal.errors import ConfigError
from commonweal.federation import Federation
from commonweal.local import Local
from commonweal.rule import Kind, Reports, Rule, State, bound

__all__ = ["Grouped"]

KIND = Kind("combinator", "the rule's own, of a group's mean loss", "the rule's own, over groups")


@dataclass(frozen=True)
class Grouped:
    """weights_i = (the rule's weight of client i's group) n_i / (the group's rows in the cohort)

    rule: any rule; domains: "data" (the groups that come with the dataset), a list with every client's group, or a
    number of groups to be found by clustering the clients' label distributions
    """

    rule: Rule
    domains: Literal["data"] | int | tuple[str | int, ...] = "data"

    def bind(self, federation: Federation, local: Local) -> "Grouped":
        return replace(self, rule=bound(self.rule, federation, local), domains=_domains(self.domains, federation))

    @cached_property
    def _index(self) -> Tensor:  # (K,)
        if not isinstance(self.domains, tuple):
            raise ConfigError(f"grouped: domains = {self.domains!r} are known in an experiment only; here give a list")
        number = {name: i for i, name in enumerate(dict.fromkeys(self.domains))}
        return torch.tensor([number[name] for name in self.domains])

    @property
    def needs_after(self) -> bool:
        return getattr(self.rule, "needs_after", False)

    def init(self, clients: int) -> State:
        if len(self._index) != clients:
            raise ConfigError(f"grouped: {len(self._index)} domains for {clients} clients; name every client's")
        return self.rule.init(int(self._index.max()) + 1)

    def __call__(self, reports: Reports, state: State) -> tuple[Tensor, State]:
        group, share, merged = self._merged(reports)
        weights, state = self.rule(merged, state)
        return weights[group] * share, state

    def _merged(self, reports: Reports) -> tuple[Tensor, Tensor, Reports]:
        """Each reporter's group (S,), its share of the group's rows (S,), and what the groups report."""
        present, group = torch.unique(self._index[reports.ids], return_inverse=True)
        sizes = torch.zeros(len(present), dtype=torch.float64).index_add(0, group, reports.sizes.double())
        share = reports.sizes.double() / sizes[group]
        mix = torch.zeros(len(present), len(group), dtype=torch.float64)
        mix[group, torch.arange(len(group))] = share
        losses, scores = mix @ reports.losses.double(), mix @ reports.scores.double()
        after = None if reports.after is None else mix @ reports.after.double()
        updates = mix.to(reports.updates.dtype) @ reports.updates
        groups = int(self._index.max()) + 1
        return group, share, Reports(present, sizes, losses, scores, updates, groups, after)

    def notes(self, reports: Reports, state: State) -> list[str]:
        notes: Any = getattr(self.rule, "notes", None)
        return notes(self._merged(reports)[2], state) if notes else []

    def rejected(self, reports: Reports) -> dict[int, str]:
        """The members of groups that the rule does not believe, and why."""
        if not (rejected := getattr(self.rule, "rejected", None)):
            return {}
        group, _, merged = self._merged(reports)
        why, groups = rejected(merged), merged.ids[group].tolist()
        found = {client: why[g] for client, g in zip(reports.ids.tolist(), groups, strict=True) if g in why}
        return {client: words.replace("its ", "its group's ", 1) for client, words in found.items()}


def _domains(wanted: Any, federation: Federation) -> tuple[str | int, ...]:
    """Every client's group."""
    if isinstance(wanted, tuple):
        if len(wanted) != federation.clients:
            raise ConfigError(f"grouped: {len(wanted)} domains for {federation.clients} clients; name every client's")
        return wanted
    if wanted == "data":
        if federation.domains is None:
            raise ConfigError("grouped: this dataset has no domains of its own; give a list, or a number of clusters")
        return federation.domains
    return _clusters(wanted, federation)


def _clusters(count: int, federation: Federation) -> tuple[int, ...]:
    """Groups of clients with like shares of labels, by k-means from a fixed start."""
    if not 1 <= count <= federation.clients or federation.train.y.is_floating_point():
        raise ConfigError(f"grouped: cannot find {count} groups among {federation.clients} clients by their labels")
    y, owner = federation.train.y.numpy(), np.repeat(np.arange(federation.clients), federation.train.sizes.numpy())
    classes = int(y.max()) + 1
    table = np.bincount(owner * classes + y, minlength=federation.clients * classes).reshape(-1, classes)
    shares = table / table.sum(1, keepdims=True)
    if (distinct := len(np.unique(shares, axis=0))) < count:
        raise ConfigError(
            f"grouped: the clients have {distinct} different label distributions, too few for {count} groups"
        )
    from sklearn.cluster import KMeans  # slow to import, and few need it

    return tuple(KMeans(count, n_init=10, random_state=0).fit_predict(shares).tolist())
