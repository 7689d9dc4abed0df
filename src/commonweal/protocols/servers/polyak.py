"""polyak: the model that is published is the mean of all models so far.

Polyak, Juditsky 1992; the averaged output of AFL (Mohri et al., ICML 2019, Fig. 3).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from commonweal.base.tensors import State
from commonweal.protocols.servers.server import Wrapper


@dataclass(frozen=True)
class Polyak(Wrapper):
    """the steps of another server optimizer; their models' mean is evaluated and published

    Args:
        step: the server optimizer whose models are averaged.
    """

    def init(self, w: Tensor) -> State:
        return {"n": torch.tensor(0), "mean": w.clone(), **super().init(w)}

    def __call__(self, w: Tensor, direction: Tensor, state: State) -> tuple[Tensor, State]:
        w, inner = self.step(w, direction, self.inner(state))
        n = state["n"] + 1
        mean = state["mean"] + (w - state["mean"]) / n
        return w, {"n": n, "mean": mean, "inner": inner}

    def output(self, w: Tensor, state: State) -> Tensor:
        mean: Tensor = state["mean"]
        return mean


ENTRIES = {"polyak": Polyak}
