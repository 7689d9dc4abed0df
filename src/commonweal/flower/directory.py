"""The clients of a Flower app as the server knows them: by node, and by the name that they give."""

import json
import math
from collections.abc import Container, Iterable
from dataclasses import dataclass, field, replace

import torch
from flwr.serverapp import Grid
from torch import Tensor

from commonweal.base.errors import DataError
from commonweal.base.tensors import State
from commonweal.flower.messages import node_keys
from commonweal.flower.reports import Evaluated


@dataclass
class Known:
    """A client: its name, and its last evaluation."""

    name: str
    last: Evaluated = field(default_factory=Evaluated)


@dataclass
class NodeKeys:
    """The key of each client's node: that of the first node that gave the client's name."""

    bound: dict[str, str] = field(default_factory=dict)  # fingerprints by name

    def bind(self, name: str, key: str | None) -> None:
        """Bind a name to a key. Raises DataError where it belongs to another one."""
        if key is not None and self.bound.setdefault(name, key) != key:
            raise DataError(
                f"the name {name!r} belongs to the node with the key {self.bound[name]}, but this "
                f"node has {key}: start it with its client's key, or, where nodes do not "
                "authenticate, set bind_names=False"
            )

    def saved(self) -> Tensor:
        """All names and keys, for a checkpoint."""
        return _bytes(json.dumps(self.bound))

    def restore(self, saved: Tensor) -> None:
        """Take over the names of a checkpoint. Raises DataError where one has another key now."""
        now = self.bound
        self.bound = json.loads(_text(saved))
        for name, key in now.items():
            self.bind(name, key)


def _bytes(text: str) -> Tensor:
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


def _text(saved: Tensor) -> str:
    return bytes(saved.tolist()).decode()


@dataclass
class Directory:
    """All clients by the id of their node. A node's id is its client's name until it gives one.

    Rules know a client by its position, which it gets when `place` is asked for it first.
    """

    bind_names: bool = False  # to keys
    known: dict[int, Known] = field(default_factory=dict)
    positions: dict[str, int] = field(default_factory=dict)  # by name
    remembered: dict[int, Known] = field(default_factory=dict)  # of the run that is resumed
    keys: NodeKeys = field(default_factory=NodeKeys)
    key_of: dict[int, str] = field(default_factory=dict)  # fingerprints by node

    def __getitem__(self, node: int) -> Known:
        return self.known[node]

    def __len__(self) -> int:
        return len(self.known)

    @property
    def by_name(self) -> list[int]:
        """All nodes, in the order of their clients' names."""
        return sorted(self.known, key=lambda node: (self.known[node].name, node))

    def meet(self, nodes: Iterable[int], grid: Grid | None) -> None:
        """Add nodes that were not seen before, with the fingerprints of their keys."""
        new = [node for node in nodes if node not in self.known]
        if new and grid is not None and self.bind_names:
            self.key_of |= node_keys(grid)
        for node in new:
            self.known[node] = Known(str(node))
            self._recall(node)

    def name(self, node: int, name: str, asked: Container[int]) -> None:
        """Give a node's client a name. A node that took another's place inherits its client.

        Args:
            node: The node that reports the name.
            name: The client's name.
            asked: The nodes that take part now.

        Raises:
            DataError: Another of them has this name, or it belongs to another key.
        """
        self.keys.bind(name, self.key_of.get(node))
        if name == self.known[node].name:
            return
        for other, known in list(self.known.items()):
            if known.name != name or other == node:
                continue
            if other in asked:
                raise DataError(f"node {node} has the name {name!r} of node {other}")
            self.known[node] = self.known.pop(other)
        self.known[node].name = name
        self._recall(node)

    def place(self, node: int) -> int:
        """The position of a node's client; a new one if it has none yet."""
        return self.positions.setdefault(self.known[node].name, len(self.positions))

    @property
    def clients(self) -> int:
        """The number of clients with a position, and of those that are known without one."""
        return len(self.positions.keys() | {known.name for known in self.known.values()})

    # Checkpoints

    def saved(self) -> State:
        """All clients, for a checkpoint."""
        names = _bytes(json.dumps(list(self.positions)))
        nodes: State = {"keys": self.keys.saved(), "positions": names}
        for node, known in self.known.items():
            loss = math.nan if known.last.loss is None else known.last.loss
            values = [loss, known.last.score, float(known.last.round)]
            evaluated = torch.tensor(values, dtype=torch.float64)
            nodes[str(node)] = {"name": _bytes(known.name), "evaluated": evaluated}
        return nodes

    def restore(self, saved: State) -> None:
        """Take over the clients of a checkpoint, as far as they are there again."""
        nodes = dict(saved)
        self.keys.restore(nodes.pop("keys"))
        names = json.loads(_text(nodes.pop("positions")))
        self.positions = {name: position for position, name in enumerate(names)}
        for node, values in nodes.items():
            loss, score, number = values["evaluated"].tolist()
            last = Evaluated(0, None if math.isnan(loss) else loss, score, int(number))
            self.remembered[int(node)] = Known(_text(values["name"]), last)
        for known in list(self.known):
            self._recall(known)

    @property
    def lost(self) -> bool:
        """True if none of the clients of the run that is resumed is there again."""
        names = {known.name for known in self.known.values()}
        before = {known.name for known in self.remembered.values()}
        return bool(before) and not names & before

    def _recall(self, node: int) -> None:
        """Give a client the name and the evaluation that it had before the run was resumed."""
        known = self.known[node]
        namesakes = (client for client in self.remembered.values() if client.name == known.name)
        before = self.remembered.get(node) or next(namesakes, None)
        if before is not None and not known.last.round:
            self.known[node] = replace(before)
