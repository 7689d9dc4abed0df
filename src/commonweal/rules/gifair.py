"""GIFAIR: a penalty on pairwise differences of losses; weights follow the ranks.

Yue, Nouiehed, Al Kontar, GIFAIR-FL, INFORMS Journal on Data Science 2023, as aggregation weights
(Semi-VRed, table 3).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from commonweal.base.arguments import check_bounds
from commonweal.rules.rule import Kind, Reports, Stateless, prior_weights


@dataclass(frozen=True)
class GIFAIR(Stateless):
    """weights_i = p_i + lam (reporters with smaller loss - with larger loss),
    lam = strength * min p / (S - 1)

    Args:
        strength: the fraction of the largest lam that keeps all weights positive.
    """

    strength: float = 1.0

    kind = Kind("reweighting", "rank of f", "penalty on pairwise differences")
    mixing = False

    def __post_init__(self) -> None:
        check_bounds("gifair strength", self.strength, least=0, most=1)

    def weigh(self, reports: Reports) -> Tensor:
        p = prior_weights(reports, "sizes")
        f = reports.losses.double().contiguous()
        ranked = f.sort().values
        smaller = torch.searchsorted(ranked, f)
        larger = len(f) - torch.searchsorted(ranked, f, right=True)
        lam = self.strength * p.min() / max(1, len(f) - 1)
        return p + lam * (smaller - larger)


ENTRIES = {"gifair": GIFAIR}
