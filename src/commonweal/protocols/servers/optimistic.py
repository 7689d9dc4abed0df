"""optimistic: steps along 2 g_t - g_(t-1), the model's part of optimistic gradient descent-ascent.

Mohri, Sivek, Suresh, Agnostic Federated Learning, ICML 2019, Fig. 3 (OPTIMISTIC-STOCHASTIC-AFL):
with the rule `afl(optimistic=true)` both players are optimistic, and their last models converge
where those of plain steps go in circles.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from commonweal.base.tensors import State
from commonweal.protocols.servers.server import Wrapper


@dataclass(frozen=True)
class Optimistic(Wrapper):
    """the steps of another server optimizer along 2 * direction - the last direction

    Args:
        step: the server optimizer that takes them.
    """

    def init(self, w: Tensor) -> State:
        return {"t": torch.tensor(1), "last": torch.zeros_like(w), **super().init(w)}

    def __call__(self, w: Tensor, direction: Tensor, state: State) -> tuple[Tensor, State]:
        t = int(state["t"])
        last = state["last"] if t > 1 else direction  # the first step is a plain one
        w, inner = self.step(w, 2 * direction - last, self.inner(state))
        return w, {"t": torch.tensor(t + 1), "last": direction, "inner": inner}


ENTRIES = {"optimistic": Optimistic}
