"""How the server moves the model along the cohort's direction: an optimiser's step with the direction as gradient."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from commonweal.errors import ConfigError

__all__ = ["SGD", "Adagrad", "Adam", "AMSGrad", "Polyak", "Yogi"]

State = dict[str, Tensor]


class ServerStep(Protocol):
    """A step of the server. Pure: hyper-parameters are fields, what is remembered is a value."""

    def init(self, w: Tensor) -> State: ...

    def __call__(self, w: Tensor, direction: Tensor, state: State) -> tuple[Tensor, State]: ...


@dataclass(frozen=True)
class SGD:
    """w - lr * direction; with lr 1 and no momentum the server takes the weighted average of the clients' models.

    McMahan et al., AISTATS 2017; with momentum, Hsu et al. 2019 (FedAvgM).
    lr: the step; momentum: the share of the last step that is kept
    growth, growth_every: lr is multiplied by `growth` every `growth_every` rounds (the AAggFF authors' code divides
    the server's lr by what it multiplies the clients' with; papers keep it constant)
    """

    lr: float = 1.0
    momentum: float = 0.0
    growth: float = 1.0
    growth_every: int = 1

    def __post_init__(self) -> None:
        if self.lr <= 0 or self.growth <= 0 or self.growth_every < 1:
            raise ConfigError(f"server {self}: lr and growth must be above 0, growth_every at least 1")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"server momentum = {self.momentum}: it must be at least 0 and below 1")

    def init(self, w: Tensor) -> State:
        state = {"t": torch.tensor(1)}
        return state | {"velocity": torch.zeros_like(w)} if self.momentum else state

    def __call__(self, w: Tensor, direction: Tensor, state: State) -> tuple[Tensor, State]:
        t = int(state["t"])
        new = {"t": torch.tensor(t + 1)}
        if self.momentum:
            direction = self.momentum * state["velocity"] + direction
            new["velocity"] = direction
        return w - self.lr * self.growth ** ((t - 1) // self.growth_every) * direction, new


@dataclass(frozen=True)
class _Adaptive:
    """Reddi et al., Adaptive Federated Optimization, ICLR 2021, Algorithm 2: no bias correction, v starts at tau^2."""

    lr: float = 0.01
    b1: float = 0.9
    b2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        if self.lr <= 0 or self.tau <= 0 or not (0 <= self.b1 < 1 and 0 <= self.b2 < 1):
            raise ConfigError(f"server {self}: lr and tau must be above 0, b1 and b2 at least 0 and below 1")

    def init(self, w: Tensor) -> State:
        return {"m": torch.zeros_like(w), "v": torch.full_like(w, self.tau**2)}

    def __call__(self, w: Tensor, direction: Tensor, state: State) -> tuple[Tensor, State]:
        m = self.b1 * state["m"] + (1 - self.b1) * direction
        new = {"m": m, **self.second(state, direction.square())}
        return w - self.lr * m / (new.get("most", new["v"]).sqrt() + self.tau), new

    def second(self, state: State, square: Tensor) -> State:
        """What is remembered of the direction's square."""
        raise NotImplementedError


@dataclass(frozen=True)
class Adam(_Adaptive):
    """w - lr m / (sqrt v + tau), v = b2 v + (1 - b2) direction^2

    Reddi et al., Adaptive Federated Optimization, ICLR 2021 (FedAdam).
    lr: the step; b1, b2: what is kept of the direction and of its square; tau: how much adaptivity is damped
    """

    def second(self, state: State, square: Tensor) -> State:
        return {"v": self.b2 * state["v"] + (1 - self.b2) * square}


@dataclass(frozen=True)
class Yogi(_Adaptive):
    """w - lr m / (sqrt v + tau), v = v - (1 - b2) direction^2 sign(v - direction^2)

    Reddi et al., Adaptive Federated Optimization, ICLR 2021 (FedYogi).
    lr: the step; b1, b2: what is kept of the direction and of its square; tau: how much adaptivity is damped
    """

    def second(self, state: State, square: Tensor) -> State:
        v = state["v"]
        return {"v": v - (1 - self.b2) * square * (v - square).sign()}


@dataclass(frozen=True)
class Adagrad(_Adaptive):
    """w - lr m / (sqrt v + tau), v = v + direction^2

    Reddi et al., Adaptive Federated Optimization, ICLR 2021 (FedAdagrad); b2 has no part in it.
    lr: the step; b1: what is kept of the direction; tau: how much adaptivity is damped
    """

    b1: float = 0.0

    def second(self, state: State, square: Tensor) -> State:
        return {"v": state["v"] + square}


@dataclass(frozen=True)
class AMSGrad(_Adaptive):
    """w - lr m / (sqrt vmax + tau), vmax the largest v so far, v = b2 v + (1 - b2) direction^2

    Reddi, Kale, Kumar, On the Convergence of Adam and Beyond, ICLR 2018, without bias correction.
    lr: the step; b1, b2: what is kept of the direction and of its square; tau: how much adaptivity is damped
    """

    def init(self, w: Tensor) -> State:
        start = super().init(w)
        return start | {"most": start["v"].clone()}

    def second(self, state: State, square: Tensor) -> State:
        v = self.b2 * state["v"] + (1 - self.b2) * square
        return {"v": v, "most": torch.maximum(state["most"], v)}


@dataclass(frozen=True)
class Polyak:
    """the wrapped step; the model given away is the mean of all models so far

    Polyak, Juditsky 1992; the averaged output of AFL (Mohri et al., ICML 2019, Fig. 3).
    step: the server step whose models are averaged
    """

    step: ServerStep

    def init(self, w: Tensor) -> State:
        return {"n": torch.tensor(1), "mean": w.clone()} | {f"step.{k}": v for k, v in self.step.init(w).items()}

    def __call__(self, w: Tensor, direction: Tensor, state: State) -> tuple[Tensor, State]:
        inner = {name.removeprefix("step."): value for name, value in state.items() if name.startswith("step.")}
        w, inner = self.step(w, direction, inner)
        n = state["n"] + 1
        mean = state["mean"] + (w - state["mean"]) / n
        return w, {"n": n, "mean": mean} | {f"step.{k}": v for k, v in inner.items()}

    def output(self, w: Tensor, state: State) -> Tensor:
        return state["mean"]
