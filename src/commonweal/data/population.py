"""What a server may know of the clients: never their rows."""

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from commonweal.base import randomness

__all__ = ["Population", "Setting"]


@dataclass(frozen=True, eq=False)
class Population:
    """The clients by name, with what they told about their data. A client's id is its position."""

    names: tuple[str, ...]
    sizes: Tensor  # (K,) training rows
    shape: tuple[int, ...]  # of a row
    outputs: int  # numbers that a model gives per row: the classes, in classification
    loss: str = "cross-entropy"
    groups: tuple[str, ...] | None = None  # each client's group, where the data has groups
    label_counts: Tensor | None = None  # (K, classes), where a rule asked the clients for it

    @property
    def clients(self) -> int:
        return len(self.names)

    @cached_property
    def ids(self) -> dict[str, int]:
        return {name: client for client, name in enumerate(self.names)}

    def key(self, client: int) -> int:
        """The number by which a client's random streams are known: it depends on its name only."""
        return randomness.key(self.names[client])


@dataclass(frozen=True, eq=False)
class Setting:
    """What a rule may know of a run before its first round."""

    clients: int
    rounds: int = 100
    lr: float = 0.1  # the clients' learning rate
    groups: tuple[str | int, ...] | None = None  # each client's group, where the data has groups
    label_counts: Tensor | None = None  # (K, classes), for rules that need "labels"

    @classmethod
    def of(cls, setting: "Setting | int") -> "Setting":
        """Accept a number of clients in place of a setting, for use in a loop of one's own."""
        return setting if isinstance(setting, Setting) else cls(clients=int(setting))
