"""FedMGDA+: the common descent direction of updates of unit length, near their mean.

Hu et al., Federated Learning Meets Multi-objective Optimization, IEEE TNSE 2022. Every update is
scaled to unit norm first, so that short ones do not rule the minimum norm, and the weights stay
within epsilon of the prior. The default epsilon is that of the published grid which serves several
federations (docs/results.md): the minimum norm itself turns to clients that fit already.
"""

from dataclasses import dataclass

from commonweal.rules.fedmgda import FedMGDA
from commonweal.rules.rule import Kind


@dataclass(frozen=True)
class FedMGDAPlus(FedMGDA):
    """weights_i = lam_i / |u_i|, lam = argmin lam' G lam of unit updates,
    |lam_i - prior_i| <= epsilon; do not sum to 1

    Args:
        epsilon: 1 is plain MGDA, 0 gives the prior (averaging).
        normalise: scale updates to unit norm.
        prior: "uniform" (as in the published code) or "sizes" (n_i).
    """

    epsilon: float = 0.01
    normalise: bool = True

    kind = Kind(
        "direction", "none: updates only", "minimum norm in the convex hull of unit updates"
    )


ENTRIES = {"fedmgda+": FedMGDAPlus}
