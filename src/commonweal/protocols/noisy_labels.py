"""Finding wrong labels: the dimension of a model's predictions, and mixtures of two Gaussians."""

import warnings

import numpy as np
import torch
from torch import Tensor

AT_ONCE = 1024  # rows whose distances to all others are held at once


def intrinsic_dimension(points: Tensor, neighbours: int = 20) -> Tensor:
    """The local intrinsic dimension (N,) around each point (N, p), from its nearest neighbours.

    -1 / mean_j log(r_j / r_k), r_1 <= ... <= r_k the distances: Amsaleg et al., KDD 2015. 0 where a
    point lies on others, and where there are fewer than three points.
    """
    points = points.double()
    k = min(neighbours, len(points) - 1)
    if k < 2:
        return points.new_zeros(len(points))
    dimensions = []
    for part in torch.split(points, AT_ONCE):
        nearest = torch.cdist(part, points).topk(k + 1, largest=False).values[:, 1:]
        farthest = nearest[:, -1:]
        mean = (nearest / farthest).clamp(min=1e-300).log().mean(1)
        dimensions.append(torch.where((mean < 0) & (farthest[:, 0] > 1e-12), -1 / mean, 0.0))
    return torch.cat(dimensions)


def upper_component(values: Tensor) -> Tensor:
    """Return which values (N,) belong to the upper of two Gaussians; none where all are equal."""
    from sklearn.mixture import GaussianMixture  # slow to import

    numbers = values.double().numpy()[:, None]
    if len(np.unique(numbers)) < 2:
        return torch.zeros(len(values), dtype=torch.bool)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it has not converged: the parts are clear by then
        fitted = GaussianMixture(2, random_state=0).fit(numbers)
    upper = int(fitted.means_[:, 0].argmax())
    return torch.from_numpy(fitted.predict(numbers) == upper)
