"""Facts on the clients that a server may know: never their samples."""

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from commonweal.base import randomness


@dataclass(frozen=True, eq=False)
class Population:
    """The clients by name, with what is known of their data. A client's id is its position.

    Attributes:
        names: the clients' names.
        sizes: their numbers of training samples (K,).
        shape: the shape of a sample.
        outputs: the numbers that a model gives per sample: the classes, in classification.
        groups: each client's group, where the data has groups.
        label_counts: each client's samples per class (K, classes), where a rule asked for them.
    """

    names: tuple[str, ...]
    sizes: Tensor
    shape: tuple[int, ...]
    outputs: int
    groups: tuple[str, ...] | None = None
    label_counts: Tensor | None = None

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
    """The facts on a run that a rule may know before its first round.

    Attributes:
        clients: K, the number of clients.
        rounds: the number of rounds.
        lr: the clients' learning rate.
        groups: each client's group, where the data has groups.
        label_counts: each client's samples per class (K, classes), for rules that need "labels".
        sizes: each client's number of training samples (K,), where it is known.
        members: where `clients` are groups of clients: the matrix (clients, K) that averages the
            values of all K clients over each group.
    """

    clients: int
    rounds: int = 100
    lr: float = 0.1
    groups: tuple[str | int, ...] | None = None
    label_counts: Tensor | None = None
    sizes: Tensor | None = None
    members: Tensor | None = None

    @classmethod
    def of(cls, setting: "Setting | int") -> "Setting":
        """Accept a number of clients in place of a setting, for a training loop of your own."""
        return setting if isinstance(setting, Setting) else cls(clients=int(setting))
