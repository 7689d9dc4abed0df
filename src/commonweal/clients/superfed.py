"""superfed: a personal model that a line of low loss connects with the shared one.

Hahn, Jeong and Lee, Connecting Low-Loss Subspace for Personalized Federated Learning, KDD 2022;
Hahn's thesis, chapter II, Algorithms 2.3 and 2.4. The line is trained at random points of it.
BatchNorm takes batch statistics there, and the running ones are of the models that are used: the
variance of a mixture is not the mixture of the variances.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from commonweal.base.errors import ConfigError
from commonweal.base.shares import product
from commonweal.base.tensors import Tensors
from commonweal.task.task import Task
from commonweal.task.uses import Uses, one_model
from commonweal.training.client import Client, Grid, at_least
from commonweal.training.objective import At, Between, Objective, Proximal, interpolated


@dataclass(frozen=True)
class SuPerFedMM(Client):
    """superfed-mm: a personal model, joined to the global one by a line of low loss.

    loss((1-m) w_i + m v) + mu/2 |w_i - w|^2 + nu cos^2(w_i, v), m ~ U(0, 1) per batch
    Hahn, Jeong and Lee, Connecting Low-Loss Subspace for Personalized Federated Learning, KDD 2022.
    begin: the rounds in which only w_i is trained (m = 0), as a fraction below 1 or as a number
    mu: the penalty on the distance to the received model; nu: that on the angle of the two models
    m: the point of the line that the client uses. The others are those of sgd
    early: whether nu acts on both models before the own ones begin, as Algorithm 2.4 reads; the
        authors' code does not do so
    """

    personalizes = True
    plans_rounds = True
    grid: ClassVar[Grid] = {
        "mu": (0.0, 0.01, 0.1, 1.0),
        "nu": (0.0, 1.0, 2.0, 5.0),
    }
    by_layer: ClassVar[bool] = False  # whether every layer has a random m of its own

    mu: float = 0.01
    nu: float = 2.0
    begin: float = 0.4
    m: float = 0.5
    early: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, mu=0, nu=0)
        if not self.begin >= 0 or not 0 <= self.m <= 1:
            raise ConfigError(
                f"superfed begin = {self.begin}, m = {self.m}: begin is a fraction of the rounds "
                "below 1 or a number of rounds, m a point from 0 (the shared model) to 1 (the own)"
            )

    def check(self, task: Task, rounds: int) -> None:
        if self.begin >= max(rounds, 1):
            raise ConfigError(
                f"superfed begin = {self.begin:g} of {rounds} rounds: "
                "the clients' own models are never trained"
            )
        # Two seeds: the module itself may have been initialised with one of them.
        if torch.equal(task.reinitialised(0).initial, task.reinitialised(1).initial):
            raise ConfigError(
                "superfed needs another initialisation for every client, "
                f"but no layer of {type(task.module).__name__} has reset_parameters: add it"
            )

    def draws(self, task: Task) -> int:
        return max(task.layers) + 1 if self.by_layer else 1

    def init_client(self, task: Task, seed: int) -> Tensors:
        return {"own": task.reinitialised(seed).initial, "joined": torch.zeros(1)}

    def begun(self, message: Tensors) -> bool:
        """Return whether the clients' personal models are trained in this round."""
        begin = self.begin
        if begin < 1:
            begin = math.floor(product(begin, int(message["rounds"])))
        return int(message["round"]) > begin

    def _is_early(self, message: Tensors) -> bool:
        """Return whether only w_i is trained in this round, as in sgd."""
        return not (self.early or self.begun(message))

    def start(self, task: Task, message: Tensors, state: Tensors) -> Tensors:
        if self._is_early(message):
            return {"w": message["w"]}
        return {"w": message["w"], "own": state["own"]}

    def objective(self, task: Task, message: Tensors) -> Objective:
        near = (Proximal("w", self.mu, anchor="received"),)  # eq. 2.4
        if self._is_early(message):
            return Objective(proximal=near)
        # With the gradients of eq. 2.3, and the angle of eq. 2.5.
        line = Between("w", "own", "noise" if self.begun(message) else 0.0, angle=self.nu)
        used = Between("w", "own", self.m)
        return Objective((line,), proximal=near, statistics=(("w", At("w")), ("own", used)))

    def reply(
        self, task: Task, vectors: Tensors, message: Tensors, state: Tensors, steps: Tensor
    ) -> tuple[Tensors, Tensors]:
        if "own" in vectors:
            joined = float(self.begun(message))
            state = {"own": vectors["own"], "joined": torch.full_like(state["joined"], joined)}
        return {}, state

    def uses(self, task: Task, message: Tensors, state: Tensors) -> Uses:
        return one_model(interpolated(task, *self.endpoints(task, message, state), self.m))

    def endpoints(self, task: Task, message: Tensors, state: Tensors) -> tuple[Tensor, Tensor]:
        """Both are the received model as long as the client's own was never trained."""
        w = message["w"]
        return w, torch.where(state["joined"] > 0, state["own"], w)


@dataclass(frozen=True)
class SuPerFedLM(SuPerFedMM):
    """superfed-lm: as superfed-mm, with a random m per layer and batch.

    Hahn, Jeong and Lee, Connecting Low-Loss Subspace for Personalized Federated Learning, KDD 2022.
    Its parameters are those of superfed-mm: mu, nu, begin, early, m
    """

    by_layer = True


ENTRIES = {"superfed-mm": SuPerFedMM, "superfed-lm": SuPerFedLM}
