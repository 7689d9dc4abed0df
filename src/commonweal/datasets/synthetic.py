"""Clients by formula: as many as you like, with labels, features and sizes as unequal as you like.

After Li et al., MLSys 2020 (FedProx): client k has n_k rows x ~ N(feature * c_k, diag(j^-1.2)) and labels
argmax((W + label * W_k)' x), with c_k, W and W_k standard normal and n_k log-normal.
"""

import numpy as np

from commonweal import randomness
from commonweal.errors import ConfigError
from commonweal.federation import Federation

__all__ = ["synthetic"]

AT_ONCE = 1 << 22  # numbers drawn at once


def synthetic(
    clients: int = 100,
    rows: int = 50,
    features: int = 20,
    classes: int = 5,
    label: float = 0.5,
    feature: float = 0.5,
    quantity: float = 1.0,
    test: float = 0.2,
    seed: int = 0,
) -> Federation:
    """Any number of clients; score: accuracy

    clients: how many; rows: the median of a client (at least 2); features, classes: how many
    label: how much the clients' rules differ; feature: how much their inputs do
    quantity: the deviation of log n_k (0: all alike); test: the share of test rows; seed: of all draws
    """
    least = {"clients": 1, "rows": 2, "features": 1, "classes": 2, "label": 0, "feature": 0, "quantity": 0}
    given = zip(least, (clients, rows, features, classes, label, feature, quantity), strict=True)
    for name, value in given:
        if value < least[name]:
            raise ConfigError(f"synthetic {name} = {value}: it must be at least {least[name]}")
    rng = randomness.stream(seed, 0, 0, randomness.DRAW)
    sizes = np.maximum(2, np.round(rows * np.exp(quantity * rng.standard_normal(clients)))).astype(np.int64)
    owner = np.repeat(np.arange(clients), sizes)
    scale = np.arange(1, features + 1, dtype=np.float32) ** -0.6  # deviations: variances fall as j^-1.2
    shared = rng.standard_normal((features, classes), dtype=np.float32)
    x = np.empty((len(owner), features), dtype=np.float32)
    y = np.empty(len(owner), dtype=np.int64)
    step = max(1, AT_ONCE // (features * classes * max(1, len(owner) // clients)))
    ends = sizes.cumsum()
    for k in range(0, clients, step):
        last = min(k + step, clients)
        part = slice(ends[k] - sizes[k], ends[last - 1])
        who = owner[part] - k
        centre = feature * rng.standard_normal((last - k, features), dtype=np.float32)
        own = shared + label * rng.standard_normal((last - k, features, classes), dtype=np.float32)
        x[part] = centre[who] + scale * rng.standard_normal((len(who), features), dtype=np.float32)
        y[part] = np.einsum("nf,nfc->nc", x[part], own[who]).argmax(1)
    return Federation.from_arrays(x, y, owner, test, seed, list(map(str, range(clients))), outputs=classes)
