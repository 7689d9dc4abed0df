"""ball: the model stays in a ball around 0, the set W of agnostic federated learning.

Mohri, Sivek, Suresh, Agnostic Federated Learning, ICML 2019, Fig. 3: after each step the model is
projected. Theorem 5 bounds the error of the averaged model for such a set.
"""

from dataclasses import dataclass

from torch import Tensor

from commonweal.base.arguments import check_bounds
from commonweal.base.tensors import State
from commonweal.protocols.servers.server import Wrapper


@dataclass(frozen=True)
class Ball(Wrapper):
    """the steps of another server optimizer, then w <- w min(1, radius / |w|)

    Args:
        step: the server optimizer that takes them. For the mean of projected models put "polyak"
            around "ball", not inside.
        radius: the largest Euclidean norm of all parameters together.
    """

    radius: float

    def __post_init__(self) -> None:
        check_bounds("ball radius", self.radius, above=0)

    def __call__(self, w: Tensor, direction: Tensor, state: State) -> tuple[Tensor, State]:
        w, inner = self.step(w, direction, self.inner(state))
        return self._project(w), {"inner": inner}

    def output(self, w: Tensor, state: State) -> Tensor:
        return self._project(super().output(w, state))

    def _project(self, w: Tensor) -> Tensor:
        norm = float(w.double().norm())
        return w if norm <= self.radius else w * (self.radius / norm)


ENTRIES = {"ball": Ball}
