"""Local training as a client does it well: when to stop, and a linear model, are chosen at home.

In the first rounds a client trains its network without the samples that it holds out. The losses on
them say whether training should stop early. If so, the best network goes on for a fourth of its
rounds with all samples; otherwise the last one goes on with all samples. A linear model is fitted,
too, with a weight decay that is chosen on the same samples, and so is its weight next to the
network.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from commonweal.base.tensors import Tensors
from commonweal.data.federation import Federation
from commonweal.training.client import Client, Samples, Stage, sgd_parameters
from commonweal.training.objective import At, Objective
from commonweal.training.task import Task
from commonweal.training.uses import Uses, one_model

GRID = torch.linspace(0, 1, 11)  # the weights in mixtures that are compared
LARGEST = torch.finfo(torch.float32).max
SCOUTED = 0.6  # the share of the rounds in which samples are held out
FURTHER = 0.25  # rounds on all samples after an early stop, as a share of those before it
HELD_OUT = 0.2  # the share of the training samples on which local models are compared


def hold_out(federation: Federation, seed: int) -> Federation:
    """Hold out a part of the training samples as `validation`, in place of what it was."""
    plain = replace(federation, validation=None, validated=None)
    return plain.with_validation(HELD_OUT, seed)


def posterior_mean(losses: Tensor) -> Tensor:
    """The mean (..., 1) of the weights of the grid, each as likely as its losses (..., 11) say."""
    posterior = torch.softmax(-losses.double(), -1).to(GRID.dtype)
    return (posterior * GRID).sum(-1, keepdim=True)


@dataclass(frozen=True)
class LocalTraining(Client):
    """The base of the methods whose clients have a local model."""

    personalizes = True
    plans_rounds = True
    local: ClassVar[str] = "local"  # its name in the client's state
    fitting: ClassVar[tuple[str, ...]] = ("fit", "retrain")  # requests when samples rejoin
    closing: ClassVar[tuple[str, ...]] = ("tune",)  # requests after the last round

    def scouted(self, rounds: int) -> int:
        """The last round in which samples are held out."""
        return math.ceil(SCOUTED * rounds)

    def exchanges(self, round: int, rounds: int) -> tuple[str, ...]:
        fitting = self.fitting if round == self.scouted(rounds) else ()
        return fitting if round < rounds else fitting + self.closing

    def local_stages(self, purpose: str, message: Tensors) -> tuple[Stage, ...]:
        """The training of the local model for "train", "mix", "fit", "retrain" or "tune".

        After a round's training, clients that have missed rounds make up for them.
        """
        plain = sgd_parameters(self)
        if purpose == "retrain":
            best = LocalModel(**plain, vector="best")
            return (Stage(best, "all", "further_rounds", catches_up=True, until="stop"),)
        local = LocalModel(**plain, vector=self.local)
        holds_out = int(message["round"]) <= self.scouted(int(message["rounds"]))
        samples: Samples = "train" if holds_out and purpose != "tune" else "all"
        catches_up = purpose != "train"
        return (Stage(local, samples, f"{self.local}_rounds", catches_up, unless="stop"),)

    def init_local(self, task: Task) -> Tensors:
        """What a client keeps for local training."""
        w = task.initial
        return {
            self.local: w.clone(),
            "best": w.clone(),  # the local model where it was best on what is held out
            "best_loss": torch.full((1,), LARGEST),
            "best_round": torch.zeros(1),
            "stop": torch.zeros(1),  # how many rounds the best one goes on; 0: it is the last one
            f"{self.local}_rounds": torch.zeros(1),
            "further_rounds": torch.zeros(1),
            "linear": torch.empty(0),
            "linear_weight": torch.zeros(1),
        }

    def local_uses(self, state: Tensors) -> Uses:
        """The local network and the linear model, as far as there is one."""
        network = torch.where(state["stop"] > 0, state["best"], state[self.local])
        if not len(state["linear"]):
            return one_model(network)
        weight = state["linear_weight"]
        return Uses(network[None], torch.cat([1 - weight, weight]), state["linear"])


@dataclass(frozen=True)
class LocalModel(Client):
    """Local SGD of a model that the client keeps."""

    vector: str = "local"

    def start(self, task: Task, message: Tensors, state: Tensors) -> Tensors:
        return {"w": message["w"], self.vector: state[self.vector]}

    def objective(self, task: Task, message: Tensors) -> Objective:
        return Objective((At(self.vector),))

    def reply(
        self, task: Task, vectors: Tensors, message: Tensors, state: Tensors, steps: Tensor
    ) -> tuple[Tensors, Tensors]:
        return {}, state | {self.vector: vectors[self.vector]}
