"""State of a client between rounds."""

import re
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from commonweal.base.errors import CommonwealWarning, RunError
from commonweal.base.tensors import State, Tensors, flatten, is_finite, num_bytes, stack

NONE: Tensors = {}
NO_MEMORY: dict[int, Tensors] = {}
PATH = re.compile(r"(method|protocol)/[^/]+|channels/[0-9]+/[^/]+")  # of a saved tensor


class ClientState(NamedTuple):
    """A client's state, or those of a group of clients (S, ...)."""

    method: Tensors = NONE  # what the client method keeps, such as a personal model
    channels: dict[int, Tensors] = NO_MEMORY  # memories of channels, by their position
    protocol: Tensors = NONE  # what the algorithm itself keeps, such as corrected labels

    def __bool__(self) -> bool:
        """Return whether the client keeps anything."""
        return bool(self.method or self.channels or self.protocol)

    @property
    def num_bytes(self) -> int:
        """The size of all tensors."""
        return num_bytes(flatten(self.saved()))

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
        is_flat = all(isinstance(value, Tensor) for value in saved.values())
        if is_flat and not any(name.startswith("channel-") for name in saved):
            saved = {"method": saved}
        if not all(map(PATH.fullmatch, flatten(saved))):
            raise RunError(
                f"the saved state of a client does not fit this experiment (its parts are "
                f"{sorted(saved)}): delete checkpoint.safetensors to start again"
            )
        channels = {int(k): memory for k, memory in saved.get("channels", {}).items()}
        return cls(saved.get("method", {}), channels, saved.get("protocol", {}))


NO_STATE = ClientState()  # of a client that keeps nothing


def stack_states(states: Sequence[ClientState]) -> ClientState:
    """Stack the states of several clients: a leading client axis (S, ...)."""
    method = stack([state.method for state in states])
    channels = {}
    for k in states[0].channels:
        channels[k] = stack([state.channels[k] for state in states])
    protocol = stack([state.protocol for state in states])
    return ClientState(method, channels, protocol)


def keep_finite(before: Tensors, after: Tensors, update: Tensor) -> Tensors:
    """Keep the previous state of clients whose update or new state is not finite.

    A warning says so where their update is finite: they are not dropped, and nobody else would.
    """
    if not after:
        return after
    checked = [update, *(value for value in after.values() if value.is_floating_point())]
    finite = torch.stack([is_finite(value) for value in checked]).all(0)  # (S,)
    if finite.all():
        return after
    if (is_finite(update) & ~finite).any():
        warnings.warn(
            "the states of some clients, such as personal models, are not finite after training: "
            "they keep those of the round before; lower client.lr, or set client.clip",
            CommonwealWarning,
            stacklevel=2,
        )
    states = {}
    for name, value in after.items():
        states[name] = value.clone()
        states[name][~finite] = before[name][~finite]
    return states
