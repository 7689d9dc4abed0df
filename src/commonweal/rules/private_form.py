"""The interface of private forms: how a client weighs itself.

A weight that a client computes alone, from its own loss, its own memory and public numbers, says
nothing about other clients. The public numbers (a mean loss, a quantile, a normaliser) are learnt
from the noised sums of the round before, so that a round is one request and one release.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from commonweal.base.tensors import Tensors

KEEP = 0.8  # of a public number in each round; the rest is what the round says


class Federated(NamedTuple):
    """The public facts of a run before its first round."""

    clients: int  # K
    rate: float  # q, the probability of a client to take part in a round
    loss: float  # of a model that guesses


class Weighed(NamedTuple):
    """The way clients weigh themselves, and what they send of their losses."""

    weights: Tensor  # (S,)
    statistics: Tensor  # (S, m), each in [-1/2, 1/2]
    memory: Tensors  # (S, ...), what each client keeps


@dataclass(frozen=True)
class PrivateForm:
    """Every client has the weight 1. Subclasses define how it follows from the loss.

    All functions are elementwise: what they return for a client depends on its own loss, its own
    memory and the public numbers only.

    Args:
        cap: The largest weight before normalisation.
        bound: Losses above it count as it.
    """

    cap: float = 4.0
    bound: float = 5.0

    statistics: ClassVar[int] = 0  # m, how many numbers a client tells about its loss

    def init(self, known: Federated) -> Tensors:
        """Return the public numbers before the first round, as scalars."""
        return {}

    def init_client(self) -> Tensors:
        """Return a client's memory before its first round."""
        return {}

    def weigh(self, losses: Tensor, memory: Tensors, public: Tensors) -> Weighed:
        """Weigh clients by their losses (S,), which are between 0 and `bound`."""
        return Weighed(torch.ones_like(losses), losses.new_zeros(len(losses), 0), memory)

    def most(self, public: Tensors) -> float:
        """Return H, the largest weight. The algorithm clamps weights to it."""
        return 1.0

    def learn(self, public: Tensors, means: Tensor) -> Tensors:
        """Return the next public numbers, from the noised means (m,) of the statistics."""
        return public


def number(value: float) -> Tensor:
    """A public number."""
    return torch.tensor(value, dtype=torch.float64)


def tracked(before: Tensor, mean: Tensor, largest: float, least: float) -> Tensor:
    """Follow the mean of x in [0, largest], whose statistic is x / largest - 1/2."""
    now = largest * (mean.double() + 0.5).clamp(0, 1)
    return (KEEP * before + (1 - KEEP) * now).clamp(min=least)


def guessing_loss(loss: str, outputs: int) -> float:
    """The loss of a model that guesses, which is where public numbers begin."""
    return math.log(outputs) if loss == "cross-entropy" and outputs > 1 else 1.0
