"""Uniform: every client counts the same.

A control that papers omit: part of what a fair method gains over FedAvg may be that it starts from equal weights.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from commonweal.online import mixture
from commonweal.rule import Kind, Reports, Stateless

__all__ = ["Uniform"]

KIND = Kind("mixture", "0", "one entropic step from equal shares")


@dataclass(frozen=True)
class Uniform(Stateless):
    """weights_i = 1 / S"""

    def response(self, losses: Tensor) -> Tensor:
        return torch.zeros_like(losses)

    def weigh(self, reports: Reports) -> Tensor:
        return mixture(reports, self.response(reports.losses.double()), "uniform")
