"""grouped: a rule applied to groups of clients (domains, protected groups) instead of clients.

Mohri, Sivek, Suresh, Agnostic Federated Learning, ICML 2019, sec. 7.1, for any rule. A group
reports the mean of its members, weighted by their rows; its weight is divided among them by their
rows.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from commonweal.base.errors import ConfigError
from commonweal.base.tensors import State
from commonweal.data.population import Setting
from commonweal.rules._clusters import label_clusters
from commonweal.rules.rule import Decision, Kind, Need, Reports, Rule

__all__ = ["Grouped"]


@dataclass(frozen=True)
class Grouped(Rule):
    """weights_i = (the rule's weight of client i's group) n_i / (the group's rows in the cohort)

    rule: any rule
    domains: "data" (the groups that come with the dataset), a list with every client's group, or a
    number of groups to be found by clustering the clients' label distributions

    Any client id is accepted. Clients that join late form a group of newcomers.
    """

    rule: Rule
    domains: Literal["data"] | int | tuple[str | int, ...] = "data"

    kind: ClassVar[Kind] = Kind(
        "combinator", "the rule's own, of a group's mean loss", "the rule's own, over groups"
    )

    @property
    def mixing(self) -> bool:
        return self.rule.mixing

    @property
    def needs(self) -> frozenset[Need]:
        if isinstance(self.domains, int):
            return self.rule.needs | {"labels"}
        return self.rule.needs

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
        inner = Setting(clients=len(number), rounds=setting.rounds, lr=setting.lr)
        return {"group": group, "rule": self.rule.init(inner)}

    def _names(self, setting: Setting) -> tuple[str | int, ...]:
        """Every client's group."""
        if isinstance(self.domains, int):
            return label_clusters(setting.label_counts, self.domains)
        if self.domains != "data":
            return self.domains
        if setting.groups is None:
            raise ConfigError(
                "grouped: the data has no domains of its own; give a list, or a number of clusters"
            )
        return setting.groups

    def __call__(self, reports: Reports, state: State) -> Decision:
        merged = _merge(reports, state["group"], "update" in self.rule.needs)
        decision = self.rule(merged.reports, state.get("rule", {}))
        return Decision(
            decision.weights[merged.position] * merged.fraction,
            {"group": state["group"], "rule": decision.state},
            decision.warnings,
            merged.members(reports, decision.dropped),
            merged.members(reports, decision.capped),
        )


class Merged(NamedTuple):
    """What the groups of a cohort report."""

    reports: Reports
    position: Tensor  # (S,) of each client's group in `reports`
    fraction: Tensor  # (S,) of the group's rows that are the client's

    def members(self, cohort: Reports, reasons: dict[int, str]) -> dict[int, str]:
        """Give the reasons of groups to their members."""
        groups = self.reports.ids[self.position].tolist()
        members = zip(cohort.ids.tolist(), groups, strict=True)
        return {i: f"its group: {reasons[group]}" for i, group in members if group in reasons}


def _merge(reports: Reports, group: Tensor, with_updates: bool) -> Merged:
    groups = int(group.max()) + 1
    each = _group_of(reports.ids, group, groups)
    newcomers = reports.clients > len(group) or bool((each == groups).any())
    present, position = torch.unique(each, return_inverse=True)
    rows = reports.sizes.double()
    empty = torch.zeros(len(present), dtype=torch.float64)
    sizes = empty.index_add(0, position, rows)
    fraction = rows / sizes[position]
    mean = torch.zeros(len(present), len(rows), dtype=torch.float64)
    mean[position, torch.arange(len(rows))] = fraction
    merged = Reports(
        ids=present,
        sizes=sizes,
        losses=mean @ reports.losses.double(),
        clients=groups + newcomers,
        scores=_average(mean, reports.scores),
        losses_after=_average(mean, reports.losses_after),
        updates=_average_updates(mean, reports.updates) if with_updates else None,
    )
    return Merged(merged, position, fraction)


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
