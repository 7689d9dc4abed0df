"""The private part of a model (FedPer and its kin) is removed before a reply is sent."""

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from commonweal.base.tensors import Tensors, put, take
from commonweal.protocols.channels.channel import Channel


@dataclass(frozen=True, eq=False)
class PrivateMask(Channel):
    """Send the coordinates outside the mask; at the server the private ones are 0.

    A method with private layers brings this channel along: it is not chosen in an experiment.
    """

    mask: Tensor  # (d,) true where the coordinate stays with the client

    @cached_property
    def sent(self) -> Tensor:
        return ~self.mask

    def encode(self, reply: Tensors, memory: Tensors, noise: Tensor) -> tuple[Tensors, Tensors]:
        return reply | {"update": take(reply["update"], self.sent)}, memory

    def decode(self, values: Tensors) -> Tensors:
        sent = values["update"]
        update = sent.new_empty(len(sent), len(self.mask))
        put(update, sent, self.sent)
        private = len(self.mask) - sent.shape[-1]
        put(update, sent.new_zeros(()).expand(len(sent), private), self.mask)
        return values | {"update": update}
