"""A rule, a server optimizer and channels on a Flower app's arrays."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from flwr.app import ArrayRecord
from torch import Tensor

from commonweal.base import randomness
from commonweal.base.errors import ConfigError, RunError
from commonweal.base.randomness import Streams
from commonweal.base.tensors import State, Tensors
from commonweal.config import catalog
from commonweal.data.population import Population
from commonweal.flower.arrays import Layout
from commonweal.flower.messages import to_arrays, values_of
from commonweal.flower.private import released
from commonweal.flower.reports import Report, column
from commonweal.protocols.algorithm import Group, Outcome, Replies
from commonweal.protocols.averaging import Averaging
from commonweal.protocols.private import Private
from commonweal.rules.fedavg import FedAvg
from commonweal.rules.rule import Rule
from commonweal.task.vectorize import vmap_clients
from commonweal.training.ask import Samples
from commonweal.training.client_state import NO_STATE

RISE = 1.5  # of the mean loss in a round, which a common descent should not have
DOMINANT = 0.8  # of the weight on one client: the others hardly count

Part = TypeVar("Part")
Named = str | Mapping[str, object]  # a part's name, or a table with its name and parameters


class Aggregation:
    """The server's model, with the states of the rule and of the server optimizer."""

    def __init__(self, layout: Layout, algorithm: Averaging, clients: int) -> None:
        self.layout = layout
        self.algorithm = algorithm
        self.private = algorithm if isinstance(algorithm, Private) else None
        if algorithm.init_client(0).channels:
            channels = [catalog.named_part(channel)["name"] for channel in algorithm.channels]
            raise ConfigError(
                f"a channel of {channels} keeps a memory at the client, which FairStrategy cannot "
                "give it: run a Commonweal experiment on Flower instead"
            )
        names = tuple(map(str, range(clients)))
        self.state: State = algorithm.init(Population(names, torch.ones(clients), (), 1))
        self._updates: Tensor = torch.empty(0, layout.size)
        self._data: list[bytes] = []  # of the arrays that `state["w"]` stands for

    def receive(self, arrays: ArrayRecord) -> None:
        """Take over the model that Flower's loop holds, which is the one that clients train."""
        data = _data_of(arrays)
        if list(map(id, data)) == list(map(id, self._data)):
            return  # nobody has changed what `arrays` returned
        w = self.layout.vector(values_of(arrays))
        if not self._data:
            n = self.algorithm.task.num_trainable
            self.state = self.state | {"server": self.algorithm.server.init(w[:n])}
        self.state = self.state | {"w": w}
        self._data = data

    def restore(self, saved: State) -> ArrayRecord:
        """Continue from a checkpoint. Returns the model."""
        if saved["w"].numel() != self.layout.size:
            raise RunError(
                f"checkpoint.safetensors is of another model, with {saved['w'].numel()} numbers "
                f"instead of {self.layout.size}: choose another folder"
            )
        self.state = {"server": {}, "rule": {}, "shared": {}} | saved
        return self.arrays()

    def place_of_updates(self, clients: int) -> Tensor:
        """A place (S, d) for the updates of so many clients, the same one in every round."""
        if len(self._updates) < clients:
            self._updates = torch.empty(clients, self.layout.size, dtype=self.layout.dtype)
        return self._updates[:clients]

    def tell(
        self, reports: Sequence[Report], updates: Tensor, clients: int, fallback: bool
    ) -> Outcome:
        """Ask the rule for weights, and move the model along the weighted updates.

        Args:
            reports: Of the clients whose replies can be used.
            updates: (S, d), in the order of the reports.
            clients: How many clients are known.
            fallback: Weigh by sample counts instead, and leave the rule's state as it is.
        """
        values: Tensors = {}
        if reports and self.private is not None:
            values = released(self.private, self.state, updates, reports)
        elif reports:
            values = self._values(reports, updates)
        ids = torch.tensor([report.client for report in reports], dtype=torch.int64)
        algorithm = replace(self.algorithm, rule=FedAvg()) if fallback else self.algorithm
        outcome = algorithm.tell(self.state, Replies(ids, values), clients)
        if fallback:
            outcome = replace(outcome, state=outcome.state | {"rule": self.state["rule"]})
        self.state = outcome.state
        return outcome

    def _values(self, reports: Sequence[Report], updates: Tensor) -> Tensors:
        values: Tensors = {"update": updates}
        for name in ("size", "loss", "score"):
            values[name] = column(reports, name)
        if "loss_after" in self.algorithm.rule.needs:
            values["loss_after"] = column(reports, "loss_after")
        losses = values["loss"]
        finite = losses[losses.isfinite()].tolist()
        for k, report in enumerate(reports):
            if report.loss is None:
                losses[k] = sum(finite) / len(finite) if finite else 1.0
        return self._encoded(reports, values) if self.algorithm.channels else values

    def _encoded(self, reports: Sequence[Report], values: Tensors) -> Tensors:
        """Do what channels do at the client, where the client is not ours."""
        seed, round = self.algorithm.seed, int(self.state["round"])
        keys = [randomness.key(report.name) for report in reports]
        streams = Streams(seed, round, keys, randomness.TRAIN)
        nothing = Samples(lambda role: None)  # they stay with the clients
        group = Group(torch.arange(len(reports)), nothing, NO_STATE, streams, vmap_clients)
        return self.algorithm.encode(values, {}, group)[0]

    def arrays(self) -> ArrayRecord:
        """The model, as Flower's loop gets it."""
        record = to_arrays(self.layout, self.state["w"])
        self._data = _data_of(record)
        return record


def _data_of(arrays: ArrayRecord) -> list[bytes]:
    return [array.data for array in arrays.values()]


def dominance(outcome: Outcome, reports: Sequence[Report]) -> tuple[str, ...]:
    """A warning where one of several clients has nearly all of the weight."""
    weights = outcome.weights.clamp(min=0)
    if len(weights) < 3 or float(weights.max()) <= DOMINANT * float(weights.sum()):
        return ()
    largest = int(outcome.clients[int(weights.argmax())])
    name = next(report.name for report in reports if report.client == largest)
    return (
        f"{100 * float(weights.max() / weights.sum()):.0f} % of the weight is on client {name}: "
        "the model becomes this client's, and may get worse for the others; choose a milder "
        "parameter of the rule (adafed: a smaller gamma)",
    )


def overshoot(
    rule: Rule, before: Mapping[int, float], losses: Mapping[int, float]
) -> tuple[str, ...]:
    """A warning where losses, by client, rise by much though the rule promises that all fall."""
    both = losses.keys() & before.keys()
    now = sum(losses[client] for client in both)
    last = sum(before[client] for client in both)
    if rule.kind.family != "direction" or now <= RISE * last:
        return ()
    return (
        f"the mean loss of the {len(both)} clients of this round and the last one rose by more "
        f"than {100 * (RISE - 1):.0f} %: the rule's common descent holds for short steps only; "
        "lower the clients' learning rate, or choose another rule",
    )


def built(kind: str, part: Named | Part, interface: type[Part]) -> Part:
    """The part that a name or a table stands for, or the part itself."""
    built = catalog.build(kind, part) if isinstance(part, str | Mapping) else part
    if not isinstance(built, interface):
        raise ConfigError(
            f"FairStrategy: {part!r} is no {catalog.KINDS[kind].label}: give a name of commonweal "
            f"list, a table with a name, or a {interface.__name__}; FedAvg's arguments are keywords"
        )
    return built
