"""grouped: applies a rule to groups of clients (domains, protected groups) instead of clients.

Mohri, Sivek, Suresh, Agnostic Federated Learning, ICML 2019, sec. 7.1, for any rule. A group
reports the mean of its members, weighted by their samples; its weight is divided among them by
their samples.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from commonweal.base.errors import ConfigError
from commonweal.base.tensors import State
from commonweal.data.population import Setting
from commonweal.rules.rule import Combinator, Decision, Kind, Need, Reports


@dataclass(frozen=True)
class Grouped(Combinator):
    """weights_i = (the rule's weight of client i's group) n_i / (the group's samples in the cohort)

    Any client id is accepted. Clients that join late form a group of newcomers.

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
        members = _means(group, _known_sizes(setting), len(number))
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
        merged = _merge(reports, state["group"], "update" in self.rule.needs)
        decision = self.rule(merged.reports, self.inner(state))
        return Decision(
            decision.weights[merged.position] * merged.fraction,
            {"group": state["group"], "part": state["part"], "rule": decision.state},
            decision.warnings,
            merged.members(reports, decision.dropped),
            merged.members(reports, decision.capped),
        )

    def bound(self, rounds: int, clients: int) -> float | None:
        return None  # the inner rule's is for decisions on groups, whose regret is another one

    def distribution(self, state: State, clients: int) -> Tensor | None:
        groups = _number_of_groups(state, clients)
        return _over_members(self.rule.distribution(self.inner(state), groups), state, clients)

    def averaged(self, state: State, clients: int) -> Tensor | None:
        groups = _number_of_groups(state, clients)
        return _over_members(self.rule.averaged(self.inner(state), groups), state, clients)


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


def _known_sizes(setting: Setting) -> Tensor:
    if setting.sizes is None:
        return torch.ones(setting.clients, dtype=torch.float64)
    return setting.sizes.double()


def _means(group: Tensor, sizes: Tensor, groups: int) -> Tensor:
    """The matrix (G, K) that averages the values of clients over each group, by their sizes."""
    totals = torch.zeros(groups, dtype=torch.float64).index_add(0, group, sizes)
    means = torch.zeros(groups, len(group), dtype=torch.float64)
    means[group, torch.arange(len(group))] = sizes / totals[group]
    return means


def _number_of_groups(state: State, clients: int) -> int:
    """With one of newcomers, if there are more clients than at the start."""
    group: Tensor = state["group"]
    return int(group.max()) + 1 + int(clients > len(group))


def _over_members(mixture: Tensor | None, state: State, clients: int) -> Tensor | None:
    """Divide a mixture of groups among all clients (K,), by their known sizes."""
    if mixture is None:
        return None
    known: Tensor = mixture[state["group"]] * state["part"]
    newcomers = clients - len(known)
    if newcomers <= 0:
        return known
    return torch.cat([known, mixture[-1].expand(newcomers) / newcomers])


class Merged(NamedTuple):
    """What the groups of a cohort report."""

    reports: Reports
    position: Tensor  # (S,) of each client's group in `reports`
    fraction: Tensor  # (S,) of the group's samples that are the client's

    def members(self, cohort: Reports, reasons: dict[int, str]) -> dict[int, str]:
        """Give the reasons of groups to their members."""
        groups = self.reports.ids[self.position].tolist()
        members = zip(cohort.ids.tolist(), groups, strict=True)
        return {i: f"its group: {reasons[group]}" for i, group in members if group in reasons}


def _merge(reports: Reports, group: Tensor, with_updates: bool) -> Merged:
    """Average the reports over the groups of the cohort, by the clients' sizes."""
    groups = int(group.max()) + 1
    group_of_client = _group_of(reports.ids, group, groups)
    newcomers = reports.clients > len(group) or bool((group_of_client == groups).any())
    present, position = torch.unique(group_of_client, return_inverse=True)
    sizes = reports.sizes.double()
    mean = _means(position, sizes, len(present))
    merged = Reports(
        ids=present,
        sizes=torch.zeros(len(present), dtype=torch.float64).index_add(0, position, sizes),
        losses=mean @ reports.losses.double(),
        clients=groups + newcomers,
        scores=_average(mean, reports.scores),
        losses_after=_average(mean, reports.losses_after),
        updates=_average_updates(mean, reports.updates) if with_updates else None,
        checked=True,
    )
    return Merged(merged, position, mean.sum(0))


def _group_of(ids: Tensor, group: Tensor, newcomers: int) -> Tensor:
    """Each client's group (S,)."""
    place = ids.clamp(0, len(group) - 1)
    return torch.where(place == ids, group[place], newcomers)


def _average(mean: Tensor, values: Tensor | None) -> Tensor | None:
    return None if values is None else mean @ values.double()


def _average_updates(mean: Tensor, updates: Tensor | None) -> Tensor | None:
    # In the precision of the updates, which may be large.
    return None if updates is None else mean.to(updates.dtype) @ updates


ENTRIES = {"grouped": Grouped}
