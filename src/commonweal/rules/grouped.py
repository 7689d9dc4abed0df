"""grouped: applies a rule to groups of clients (domains, protected groups) instead of clients.

Mohri, Sivek, Suresh, Agnostic Federated Learning, ICML 2019, sec. 7.1, for any rule. A group
reports the mean of its members, weighted by their samples; its weight is divided among them by
their samples.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from commonweal.base.errors import ConfigError
from commonweal.base.tensors import State
from commonweal.data.population import Setting
from commonweal.rules.rule import Combinator, Decision, Kind, Need, Reports
from commonweal.rules.slots import extend


@dataclass(frozen=True)
class Grouped(Combinator):
    """weights_i = (the rule's weight of client i's group) n_i / (the group's samples in the cohort)

    Clients that join late form a group of newcomers.

    Args:
        rule: any rule.
        domains: "data" (the groups that come with the dataset), a list with every client's group,
            or a number of groups to be found by clustering the clients' label distributions.
    """

    domains: Literal["data"] | int | tuple[str | int, ...] = "data"

    kind = Kind(
        "combinator", "the rule's own, of a group's mean loss", "the rule's own, over groups"
    )

    @property
    def needs(self) -> frozenset[Need]:
        return super().needs | {"labels"} if isinstance(self.domains, int) else super().needs

    def init(self, setting: Setting | int) -> State:
        setting = Setting.of(setting)
        names = self._names(setting)
        if len(names) != setting.clients:
            raise ConfigError(
                f"grouped: {len(names)} domains for {setting.clients} clients; "
                "give every client's domain"
            )
        number = {name: i for i, name in enumerate(dict.fromkeys(names))}
        group = torch.tensor([number[name] for name in names])
        sizes = torch.ones(len(group)) if setting.sizes is None else setting.sizes
        members = _means(group, sizes.double(), len(number))
        inner = Setting(clients=len(number), rounds=setting.rounds, lr=setting.lr, members=members)
        # What part of its group's samples a client has, for the mixture over all clients.
        return {"group": group, "part": members.sum(0), "rule": self.rule.init(inner)}

    def _names(self, setting: Setting) -> tuple[str | int, ...]:
        """Every client's group."""
        if isinstance(self.domains, int):
            return _label_clusters(setting.label_counts, self.domains)
        if self.domains != "data":
            return self.domains
        if setting.groups is None:
            raise ConfigError(
                "grouped: the data has no domains of its own; give a list, or a number of clusters"
            )
        return setting.groups

    def __call__(self, reports: Reports, state: State) -> Decision:
        merged, position, fraction = self._merge(reports, state["group"])
        decision = self.rule(merged, self.inner(state))
        group_of = dict(zip(reports.ids.tolist(), merged.ids[position].tolist(), strict=True))
        return Decision(
            decision.weights[position] * fraction,
            state | {"rule": decision.state},
            decision.warnings,
            _for_members(decision.dropped, group_of),
            _for_members(decision.capped, group_of),
        )

    def _merge(self, reports: Reports, group: Tensor) -> tuple[Reports, Tensor, Tensor]:
        """Average the reports over the groups of the cohort, by the clients' sizes.

        Returns:
            What the groups report, the position (S,) of each client's group among them, and the
            fraction (S,) of its group's samples that are the client's.
        """
        groups = int(group.max()) + 1
        group_of_client = extend(group, reports.clients, groups)[reports.ids]
        present, position = torch.unique(group_of_client, return_inverse=True)
        newcomers = reports.clients > len(group)
        sizes = reports.sizes.double()
        mean = _means(position, sizes, len(present))
        columns = reports.tensors
        totals = sizes.new_zeros(len(present)).index_add(0, position, sizes)
        averages = {"ids": present, "sizes": totals}
        for name in ("losses", "scores", "losses_after"):
            if name in columns:
                averages[name] = mean @ columns[name].double()
        if "updates" in columns and "update" in self.rule.needs:
            updates = columns["updates"]  # may be large: averaged in their own precision
            averages["updates"] = mean.to(updates.dtype) @ updates
        merged = Reports(clients=groups + newcomers, checked=True, **averages)
        return merged, position, mean.sum(0)

    def bound(self, rounds: int, clients: int) -> float | None:
        return None  # the inner rule's is for decisions on groups, whose regret is another one

    def distribution(self, state: State, clients: int) -> Tensor | None:
        return self._over_members(self.rule.distribution, state, clients)

    def averaged(self, state: State, clients: int) -> Tensor | None:
        return self._over_members(self.rule.averaged, state, clients)

    def _over_members(
        self, over_groups: Callable[[State, int], Tensor | None], state: State, clients: int
    ) -> Tensor | None:
        """Divide a mixture of groups among all clients (K,), by their known sizes."""
        group = state["group"]
        newcomers = clients - len(group)  # form a group of their own
        mixture = over_groups(self.inner(state), int(group.max()) + 1 + (newcomers > 0))
        if mixture is None:
            return None
        known: Tensor = mixture[group] * state["part"]
        if newcomers <= 0:
            return known
        return torch.cat([known, mixture[-1].expand(newcomers) / newcomers])


def _label_clusters(label_counts: Tensor | None, count: int) -> tuple[int, ...]:
    """Cluster clients by their label distributions, with k-means from a fixed seed.

    label_counts: each client's samples per class (K, classes)
    """
    if label_counts is None:
        raise ConfigError(
            f"grouped: finding {count} groups needs the clients' label counts, which are not known "
            "here; give a list with every client's group"
        )
    clients = len(label_counts)
    if not 1 <= count <= clients:
        raise ConfigError(
            f"grouped: cannot find {count} groups among {clients} clients by their labels"
        )
    table = label_counts.double().numpy()
    rows = table.sum(1, keepdims=True)
    distributions = table / np.maximum(rows, 1)
    distinct = len(np.unique(distributions, axis=0))
    if distinct < count:
        raise ConfigError(
            f"grouped: the clients have {distinct} different label distributions, "
            f"too few for {count} groups"
        )
    from sklearn.cluster import KMeans  # slow to import

    kmeans = KMeans(count, n_init=10, random_state=0)
    return tuple(kmeans.fit_predict(distributions).tolist())


def _means(group: Tensor, sizes: Tensor, groups: int) -> Tensor:
    """The matrix (G, K) that averages the values of clients over each group, by their sizes."""
    totals = torch.zeros(groups, dtype=torch.float64).index_add(0, group, sizes)
    means = torch.zeros(groups, len(group), dtype=torch.float64)
    means[group, torch.arange(len(group))] = sizes / totals[group]
    return means


def _for_members(reasons: dict[int, str], group_of: dict[int, int]) -> dict[int, str]:
    """Give the reasons of groups to their members."""
    return {i: f"its group: {reasons[g]}" for i, g in group_of.items() if g in reasons}


ENTRIES = {"grouped": Grouped}
