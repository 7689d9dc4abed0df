"""FedDG-GA: clients whose loss rises most by averaging get more weight.

Zhang et al., Federated Domain Generalization with Generalization Adjustment, CVPR 2023. The gap of
a client is the loss of the received model less the loss of the model that it trained itself, when
it took part last.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from commonweal.base.arguments import check_bounds
from commonweal.base.tensors import State
from commonweal.data.population import Setting
from commonweal.rules.online import on_cohort
from commonweal.rules.rule import Decision, Kind, Reports, Rule, required
from commonweal.rules.slots import extend, extend_mixture, over_all


@dataclass(frozen=True)
class FedDGGA(Rule):
    """a_i <- a_i + d_t (g_i - mean g) / max |g - mean g|, clipped to [0, 1], normalised over the
    cohort; g_i = f_i - (loss after own training, last time), d_t = d (1 - (t - 1) / T)

    A client's first report changes no weight; one that joins late begins with 1 / K, and the others
    are scaled down in proportion.

    Args:
        d: the first step, of weights that sum to 1 over the cohort.
    """

    d: float = 0.2

    kind = Kind("online", "loss above that after own training", "a signed step")
    needs = frozenset({"size", "loss", "loss_after"})
    plans_rounds = True

    def __post_init__(self) -> None:
        check_bounds("feddg-ga d", self.d, above=0, most=1)

    def init(self, setting: Setting | int) -> State:
        setting = Setting.of(setting)
        zeros = torch.zeros(setting.clients, dtype=torch.float64)
        return {
            "t": torch.tensor(1),
            "rounds": torch.tensor(setting.rounds),
            "a": zeros + 1 / setting.clients,
            "trained": zeros,  # the loss after own training, where `seen`
            "seen": torch.zeros(setting.clients, dtype=torch.bool),
        }

    def __call__(self, reports: Reports, state: State) -> Decision:
        ids = reports.ids
        a = extend_mixture(state["a"], reports.clients)
        trained = extend(state["trained"], len(a), 0.0)
        seen = extend(state["seen"], len(a), 0.0).bool()
        gap = torch.where(seen[ids], reports.losses.double() - trained[ids], torch.nan)
        weights = self._adjusted(on_cohort(a, ids), gap, state)
        after = required(reports.losses_after, "losses after local training").double()
        following = {
            "t": state["t"] + 1,
            "rounds": state["rounds"],
            "a": a.index_copy(0, ids, a[ids].sum() * weights),
            "trained": trained.index_copy(0, ids, after),
            "seen": seen.index_fill(0, ids, True),
        }
        return Decision(weights, following)

    def _adjusted(self, weights: Tensor, gap: Tensor, state: State) -> Tensor:
        """Move weights (S,) by the gaps (S,), which are NaN for clients without one."""
        deviation = (gap - gap.nanmean()).nan_to_num(nan=0.0)
        largest = deviation.abs().max()
        # Gaps that differ by rounding only say nothing.
        if largest <= 1e-12 * (1 + gap.nan_to_num(nan=0.0).abs().max()):
            return weights
        remaining = 1 - (int(state["t"]) - 1) / int(state["rounds"])
        moved = (weights + self.d * max(0.0, remaining) * deviation / largest).clamp(0, 1)
        return moved / moved.sum()

    def distribution(self, state: State, clients: int) -> Tensor:
        return over_all(state["a"], clients)


ENTRIES = {"feddg-ga": FedDGGA}
