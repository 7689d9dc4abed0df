"""Groups of clients with similar label distributions."""

import numpy as np
from torch import Tensor

from commonweal.base.errors import ConfigError

__all__ = ["label_clusters"]


def label_clusters(label_counts: Tensor | None, count: int) -> tuple[int, ...]:
    """Cluster clients by their label distributions, with k-means from a fixed seed.

    label_counts: each client's rows per class (K, classes)
    """
    if label_counts is None:
        raise ConfigError(
            f"grouped: finding {count} groups needs the clients' label counts, which are not known "
            "here; give a list with every client's group"
        )
    clients = len(label_counts)
    if not 1 <= count <= clients:
        raise ConfigError(
            f"grouped: cannot find {count} groups among {clients} clients by their labels"
        )
    table = label_counts.double().numpy()
    rows = table.sum(1, keepdims=True)
    distributions = table / np.maximum(rows, 1)
    distinct = len(np.unique(distributions, axis=0))
    if distinct < count:
        raise ConfigError(
            f"grouped: the clients have {distinct} different label distributions, "
            f"too few for {count} groups"
        )
    from sklearn.cluster import KMeans  # slow to import

    kmeans = KMeans(count, n_init=10, random_state=0)
    return tuple(kmeans.fit_predict(distributions).tolist())
