"""adam, yogi, adagrad, amsgrad: server optimizers that adapt the step per coordinate.

Reddi et al., Adaptive Federated Optimization, ICLR 2021, Algorithm 2. As there, there is no bias
correction, and v starts at tau^2.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from commonweal.base.arguments import check_bounds
from commonweal.base.tensors import State, Tensors
from commonweal.protocols.servers.server import ServerOptimizer
from commonweal.training.schedules import check_schedule, factor


class _Adaptive(ServerOptimizer):
    """w - lr m / (sqrt v + tau). Subclasses have the fields, and say how v is updated."""

    lr: float
    b1: float
    tau: float
    schedule: str | None

    def __post_init__(self) -> None:
        check_bounds("server lr", self.lr, above=0)
        check_bounds("server tau", self.tau, above=0)
        for decay_rate in ("b1", "b2"):
            check_bounds(f"server {decay_rate}", vars(self).get(decay_rate), least=0, below=1)

    def check(self, rounds: int) -> None:
        check_schedule(self.schedule, rounds)

    def init(self, w: Tensor) -> State:
        state = {"m": torch.zeros_like(w), "v": torch.full_like(w, self.tau**2)}
        return state if self.schedule is None else state | {"t": torch.tensor(1)}

    def __call__(self, w: Tensor, direction: Tensor, state: State) -> tuple[Tensor, State]:
        following: State = {}
        lr = self.lr
        if self.schedule is not None:
            lr *= factor(self.schedule, int(state["t"]))
            following["t"] = state["t"] + 1
        m = self.b1 * state["m"] + (1 - self.b1) * direction
        v, second_moments = self.second_moments(state, direction.square())
        return w - lr * m / (v.sqrt() + self.tau), {"m": m, **second_moments, **following}

    def second_moments(self, state: State, square: Tensor) -> tuple[Tensor, Tensors]:
        """The v to divide by, and the next state without m, from the direction's square."""
        raise NotImplementedError


@dataclass(frozen=True)
class Adam(_Adaptive):
    """w - lr m / (sqrt v + tau), v = b2 v + (1 - b2) direction^2

    Reddi et al., Adaptive Federated Optimization, ICLR 2021 (FedAdam).

    Args:
        lr: the learning rate.
        b1: the decay rate of m.
        b2: the decay rate of v.
        tau: the degree of adaptivity.
        schedule: what lr is multiplied by in round t, a formula such as "1/t" or
            "0.99^(t-1)".
    """

    lr: float = 0.01
    b1: float = 0.9
    b2: float = 0.99
    tau: float = 1e-3
    schedule: str | None = None

    def second_moments(self, state: State, square: Tensor) -> tuple[Tensor, Tensors]:
        v = self.b2 * state["v"] + (1 - self.b2) * square
        return v, {"v": v}


@dataclass(frozen=True)
class Yogi(Adam):
    """w - lr m / (sqrt v + tau), v = v - (1 - b2) direction^2 sign(v - direction^2)

    Reddi et al., Adaptive Federated Optimization, ICLR 2021 (FedYogi).
    Its parameters are those of adam: lr, b1, b2, tau, schedule
    """

    def second_moments(self, state: State, square: Tensor) -> tuple[Tensor, Tensors]:
        v = state["v"]
        v = v - (1 - self.b2) * square * (v - square).sign()
        return v, {"v": v}


@dataclass(frozen=True)
class Adagrad(_Adaptive):
    """w - lr m / (sqrt v + tau), v = v + direction^2

    Reddi et al., Adaptive Federated Optimization, ICLR 2021 (FedAdagrad).

    Args:
        lr: the learning rate.
        b1: the decay rate of m.
        tau: the degree of adaptivity.
        schedule: what lr is multiplied by in round t, a formula such as "1/t" or
            "0.99^(t-1)".
    """

    lr: float = 0.01
    b1: float = 0.0
    tau: float = 1e-3
    schedule: str | None = None

    def second_moments(self, state: State, square: Tensor) -> tuple[Tensor, Tensors]:
        v = state["v"] + square
        return v, {"v": v}


@dataclass(frozen=True)
class AMSGrad(Adam):
    """w - lr m / (sqrt vmax + tau), vmax the largest v so far, v = b2 v + (1 - b2) direction^2

    Reddi, Kale, Kumar, On the Convergence of Adam and Beyond, ICLR 2018, without bias correction.
    Its parameters are those of adam: lr, b1, b2, tau, schedule
    """

    def init(self, w: Tensor) -> State:
        state = super().init(w)
        return state | {"vmax": state["v"].clone()}

    def second_moments(self, state: State, square: Tensor) -> tuple[Tensor, Tensors]:
        v = self.b2 * state["v"] + (1 - self.b2) * square
        vmax = torch.maximum(state["vmax"], v)
        return vmax, {"v": v, "vmax": vmax}


ENTRIES = {"adam": Adam, "yogi": Yogi, "adagrad": Adagrad, "amsgrad": AMSGrad}
