"""Uniform: all clients have the same weight.

A control that papers omit: part of what a fair method gains over FedAvg may come from starting with
equal weights.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from commonweal.rules.private_form import PrivateForm
from commonweal.rules.rule import Kind, Reports, Stateless, prior_weights


@dataclass(frozen=True)
class Uniform(Stateless):
    """weights_i = 1 / S"""

    kind = Kind("mixture", "0", "one entropic step from equal weights")
    needs = frozenset({"size"})

    @property
    def private(self) -> PrivateForm:
        return PrivateForm()

    def response(self, losses: Tensor) -> Tensor:
        return torch.zeros_like(losses)

    def weigh(self, reports: Reports) -> Tensor:
        return prior_weights(reports, "uniform")


ENTRIES = {"uniform": Uniform}
