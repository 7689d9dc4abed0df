"""The release of a round: a bounded sum, with noise for one client.

A client sends v = h clip(u, C), its weighted update, and statistics s in [-1/2, 1/2]^k. With
0 <= h <= H, a client changes the sum of v by at most H C, and that of s by at most sqrt(k) / 2.
Scaled by these, both are one Gaussian mechanism of noise z, if the noises of the parts are
z / sqrt(1 - share) and z / sqrt(share).
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from commonweal.base.tensors import is_finite
from commonweal.protocols.privacy.entropy import Bytes, secure_normal

SHORTEST = 1e-12  # an update of length 0 is divided by this
RATE = 0.2  # of the clip bound's changes (Andrew et al., NeurIPS 2021)
FLOOR, CEILING = 0.1, 100.0  # of the clip bound, relative to the first one


class Contribution(NamedTuple):
    """The columns that clients add to the sums of a round."""

    updates: Tensor  # (S, d)
    statistics: Tensor  # (S, k)
    weights: Tensor  # (S,) as they were clamped
    usable: Tensor  # (S,) whose numbers were finite; the others contribute 0


def contribute(
    updates: Tensor, weights: Tensor, statistics: Tensor, clip: float, most: float
) -> Contribution:
    """Clip updates (S, d), then weigh them, so that no client exceeds its bound.

    Weights (S,) and statistics (S, k) are clamped, whatever computed them.
    """
    usable = is_finite(updates) & is_finite(weights) & is_finite(statistics)
    clamped = weights.clamp(0, most)
    lengths = torch.linalg.vector_norm(updates, dim=1, dtype=torch.float64)
    factors = clamped.double() * (clip / lengths.clamp(min=SHORTEST)).clamp(max=1)
    bounded = updates * factors[:, None].to(updates.dtype)
    boxed = statistics.clamp(-0.5, 0.5)
    if not usable.all():
        nothing = ~usable
        bounded[nothing] = 0
        boxed[nothing] = 0
        clamped = clamped.masked_fill(nothing, 0)
    return Contribution(bounded, boxed, clamped, usable)


class Sensitivity(NamedTuple):
    """The sensitivity of a round's sums to one client, and the noise that hides it.

    Attributes:
        update: H C, of the sum of weighted updates.
        statistics: k, how many statistics there are.
        noise: z, relative to the sensitivity of both parts together.
        share: The part of the promise that the statistics use; without statistics it is 0.
    """

    update: float
    statistics: int
    noise: float
    share: float

    @property
    def update_deviation(self) -> float:
        """The standard deviation of the noise on each number of the update."""
        share = self.share if self.statistics else 0.0
        return self.noise / math.sqrt(1 - share) * self.update

    @property
    def statistics_deviation(self) -> float:
        """The standard deviation of the noise on each statistic."""
        if not self.statistics:
            return 0.0
        return self.noise / math.sqrt(self.share) * math.sqrt(self.statistics) / 2


def release(
    update: Tensor, statistics: Tensor, sensitivity: Sensitivity, draw: Bytes
) -> tuple[Tensor, Tensor]:
    """Add fresh noise to the sums (d,) and (k,), in float64."""
    noise = torch.from_numpy(secure_normal(len(update) + len(statistics), draw))
    count = len(update)
    return (
        update.double() + sensitivity.update_deviation * noise[:count],
        statistics.double() + sensitivity.statistics_deviation * noise[count:],
    )


def adapted_clip(clip: float, first: float, fitting: float, quantile: float) -> float:
    """Return the next clip bound.

    Args:
        clip: The present one.
        first: The one of the first round.
        fitting: The noised share of updates that were not clipped.
        quantile: The share that should not be.
    """
    share = min(1.0, max(0.0, fitting))
    return min(CEILING * first, max(FLOOR * first, clip * math.exp(-RATE * (share - quantile))))
