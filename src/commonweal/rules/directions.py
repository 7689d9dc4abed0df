"""directions: common descent directions from multi-task learning (TorchJD).

Quinton, Rey, Jacobian Descent for Multi-Objective Optimization, 2024, and the methods that its
library TorchJD implements. A client is a task: methods that map the Gram matrix of the tasks'
gradients to weights are rules. PCGrad projects in a random order: `fedfv` is its fair form.
MGDA is `fedmgda`, which is solved exactly.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from commonweal.base.arguments import check_bounds
from commonweal.base.errors import ConfigError, install
from commonweal.rules._lengths import as_long_as_the_mean
from commonweal.rules.rule import Kind, Reports, Stateless

Method = Literal["aligned-mtl", "cagrad", "dualproj", "fairgrad", "imtl-g", "upgrad"]


@dataclass(frozen=True)
class Directions(Stateless):
    """weights = method(G), scaled to the length of the mean update; do not sum to 1

    Args:
        method: "fairgrad" (alpha-fair: G w = w^(-1/alpha)), "aligned-mtl", "imtl-g";
            "upgrad" and "dualproj" need torchjd[quadprog_projector], "cagrad" needs
            torchjd[cagrad].
        alpha: of fairgrad: 1 is proportional fairness, large values approach the worst
            client.
        c: of cagrad: how far the direction may be from the mean, in [0, 1).
        scale: "mean" takes the norm of the mean update, "none" leaves the method's own
            length.
    """

    method: Method = "aligned-mtl"
    alpha: float = 1.0
    c: float = 0.5
    scale: Literal["mean", "none"] = "mean"

    kind = Kind("direction", "none: updates only", "a multi-task method's own")
    needs = frozenset({"size", "update"})
    mixing = False

    def __post_init__(self) -> None:
        check_bounds("directions alpha", self.alpha, above=0)
        check_bounds("directions c", self.c, least=0, below=1)

    def weigh(self, reports: Reports) -> Tensor:
        moving = reports.norms > 0
        if not moving.any():
            return torch.full_like(reports.norms, 1 / len(moving))
        # Methods iterate in the order of clients: by id, it does not depend on who answers first.
        order = reports.ids.argsort()
        order = order[moving[order]]
        gram = reports.gram[order][:, order]
        size = gram.diagonal().mean()
        weights = torch.zeros_like(reports.norms)
        weights[order] = self._weighting()(gram / size).detach().double()
        if self.scale == "none":
            return weights
        return as_long_as_the_mean(weights, reports.gram)

    def _weighting(self) -> Callable[[Tensor], Tensor]:
        try:
            from torchjd import aggregation
        except ImportError as error:
            raise ConfigError(f"{error}: {install('directions')}") from None
        weightings: dict[str, Callable[[], Callable[[Tensor], Tensor]]] = {
            "aligned-mtl": aggregation.AlignedMTLWeighting,
            "cagrad": lambda: aggregation.CAGradWeighting(c=self.c),
            "dualproj": aggregation.DualProjWeighting,
            "fairgrad": lambda: aggregation.FairGradWeighting(alpha=self.alpha),
            "imtl-g": aggregation.IMTLGWeighting,
            "upgrad": aggregation.UPGradWeighting,
        }
        try:
            return weightings[self.method]()
        except ImportError as error:
            raise ConfigError(f"directions method = {self.method!r}: {error}") from None


ENTRIES = {"directions": Directions}
