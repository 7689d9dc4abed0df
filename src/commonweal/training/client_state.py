"""What a client keeps between rounds."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from commonweal.base.errors import RunError
from commonweal.base.tensors import State, Tensors, num_bytes, stack

NONE: Tensors = {}
NO_MEMORY: dict[int, Tensors] = {}


class ClientState(NamedTuple):
    """A client's state, or those of a group of clients (S, ...)."""

    method: Tensors = NONE  # what the client method keeps, such as a personal model
    channels: dict[int, Tensors] = NO_MEMORY  # memories of channels, by their position
    protocol: Tensors = NONE  # what the algorithm itself keeps, such as corrected labels

    def __bool__(self) -> bool:
        """Whether the client keeps anything."""
        return bool(self.method or self.channels or self.protocol)

    @property
    def num_bytes(self) -> int:
        """The size of all tensors."""
        memories = sum(num_bytes(memory) for memory in self.channels.values())
        return num_bytes(self.method) + memories + num_bytes(self.protocol)

    def row(self, k: int, copy: bool = True) -> "ClientState":
        """The state of one client of a group, as a copy or as views of the group's tensors."""
        return self.map(lambda value: value[k].clone() if copy else value[k])

    def map(self, function: Callable[[Tensor], Tensor]) -> "ClientState":
        """The state with a function applied to every tensor."""

        def mapped(tensors: Tensors) -> Tensors:
            return {name: function(value) for name, value in tensors.items()}

        channels = {k: mapped(memory) for k, memory in self.channels.items()}
        return ClientState(mapped(self.method), channels, mapped(self.protocol))

    def saved(self) -> State:
        """The state as nested dicts, which files hold."""
        channels = {str(k): memory for k, memory in self.channels.items()}
        return {"method": self.method, "channels": channels, "protocol": self.protocol}

    @classmethod
    def read(cls, saved: State) -> "ClientState":
        """Read what `saved` gave. Version 0.2 wrote the tensors of the client method only;
        with those of channels among them it is refused.

        Raises:
            RunError: These are no states of a client.
        """
        flat = all(isinstance(value, Tensor) for value in saved.values())
        if flat and not any(name.startswith("channel-") for name in saved):
            saved = {"method": saved}
        parts = [saved.get(name, {}) for name in cls._fields]
        is_known = not set(saved) - set(cls._fields)
        if not is_known or not all(isinstance(part, dict) for part in parts) or not _fit(*parts):
            raise RunError(
                f"the saved state of a client does not fit this experiment (its parts are "
                f"{sorted(saved)}): delete checkpoint.safetensors to start again"
            )
        method, channels, protocol = parts
        return cls(method, {int(k): memory for k, memory in channels.items()}, protocol)


def _fit(method: State, channels: State, protocol: State) -> bool:
    """Whether the parts hold tensors, and those of channels are by position."""
    if not all(k.isascii() and k.isdecimal() for k in channels):
        return False
    for table in (method, protocol, *channels.values()):
        if not isinstance(table, dict):
            return False
        if not all(isinstance(value, Tensor) for value in table.values()):
            return False
    return True


NO_STATE = ClientState()  # of a client that keeps nothing


def stack_states(states: Sequence[ClientState]) -> ClientState:
    """Stack the states of several clients: a leading client axis (S, ...)."""
    method = stack([state.method for state in states])
    channels = {}
    for k in states[0].channels:
        channels[k] = stack([state.channels[k] for state in states])
    protocol = stack([state.protocol for state in states])
    return ClientState(method, channels, protocol)
