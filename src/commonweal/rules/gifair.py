"""GIFAIR: a client gains weight for every other that fares better, and loses it for every other that fares worse.

Yue, Nouiehed, Al Kontar, GIFAIR-FL, INFORMS Journal on Data Science 2023, as aggregation weights (Semi-VRed, table 3).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from commonweal.errors import ConfigError
from commonweal.rule import Kind, Reports, Stateless, shares

__all__ = ["GIFAIR"]

KIND = Kind("reweighting", "rank of f", "price on pairwise differences")


@dataclass(frozen=True)
class GIFAIR(Stateless):
    """weights_i = p_i + lam (reporters with smaller loss - with larger loss), lam = strength * min p / (S - 1)

    strength: the share of the largest lam that keeps all weights positive
    """

    strength: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.strength <= 1:
            raise ConfigError(f"gifair strength = {self.strength}: it is a share, from 0 to 1")

    def weigh(self, reports: Reports) -> Tensor:
        p, f = shares(reports, "sizes"), reports.losses.double().contiguous()
        ranked = f.sort().values
        smaller = torch.searchsorted(ranked, f)
        larger = len(f) - torch.searchsorted(ranked, f, right=True)
        lam = self.strength * p.min() / max(1, len(f) - 1)
        return p + lam * (smaller - larger)
