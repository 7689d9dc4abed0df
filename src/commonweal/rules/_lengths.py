"""The length of a direction that is a combination of updates, by their Gram matrix."""

from torch import Tensor

SHORT = 1e-5  # of the summed lengths: a shorter direction is what rounding leaves of none


def as_long_as_the_mean(weights: Tensor, gram: Tensor) -> Tensor:
    """Scale weights (S,) so that the direction has the length of the mean update.

    Where there is no common direction (updates cancel) weights are returned as they are.
    """
    norm = (weights @ gram @ weights).clamp(min=0).sqrt()
    mean = gram.mean().clamp(min=0).sqrt()
    if norm <= SHORT * (weights.abs() @ gram.diagonal().sqrt()):
        return weights
    return weights * (mean / norm)
