"""Semi-VRed: a penalty on the variance of the losses that are above the mean.

Semi-Variance Reduction for Fair Federated Learning (anonymous, under review), eq. 10.
"""

from dataclasses import dataclass

from torch import Tensor

from commonweal.rules.private_forms import PrivateSemiVRed
from commonweal.rules.rule import Kind, Reports, prior_weights
from commonweal.rules.vred import VRed


@dataclass(frozen=True)
class SemiVRed(VRed):
    """weights_i = p_i (1 + 2 beta ((f_i - fbar)_+ - sum_j p_j (f_j - fbar)_+)),
    p_i = n_i / sum n; sum to 1

    Args:
        beta: the penalty on variance; weights are positive while beta < 1 / (2 sum_j p_j
            (f_j - fbar)_+).
    """

    beta: float = 1.0

    entry = "semi-vred"
    kind = Kind("reweighting", "(f - mean f)_+", "penalty on the upper semi-variance")

    @property
    def private(self) -> PrivateSemiVRed:
        return PrivateSemiVRed(beta=self.beta)

    def deviations(self, reports: Reports) -> Tensor:
        above = super().deviations(reports).clamp(min=0)
        return above - prior_weights(reports, "sizes") @ above


ENTRIES = {"semi-vred": SemiVRed}
