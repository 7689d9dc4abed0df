"""The interface of channels.

A channel changes a reply at the client (`encode`), restores what the server needs (`decode`), and
may change the weighted sum before the model moves (`release`). Channels are applied in the order
in which the experiment lists them, and undone in the opposite order.
"""

import numpy as np
from torch import Tensor

from commonweal.base.tensors import Tensors
from commonweal.task.task import Task


class Channel:
    """The identity. `encode` speaks of one client; all methods are pure."""

    def init(self, task: Task) -> Tensors:
        """A client's memory before its first round (error feedback, say)."""
        return {}

    def draws(self, task: Task) -> int:
        """Uniform random numbers that `encode` needs."""
        return 0

    def encode(self, reply: Tensors, memory: Tensors, noise: Tensor) -> tuple[Tensors, Tensors]:
        """The reply as it is sent, and the client's memory after it."""
        return reply, memory

    def decode(self, values: Tensors) -> Tensors:
        """The replies (R, ...) as the server uses them."""
        return values

    def release(self, direction: Tensor, weights: Tensor, rng: np.random.Generator) -> Tensor:
        """The weighted sum (d,) as the server's optimizer sees it."""
        return direction
