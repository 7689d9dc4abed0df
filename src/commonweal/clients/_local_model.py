"""Local training as a client does it well: when to stop, and a linear model, are chosen at home.

A client holds some of its samples out and trains a scout on the others. The scout's loss on what is
held out says after how many rounds training should stop. A linear model is fitted, too, with a
weight decay that is chosen on the same samples, and so is its weight next to the network. The
models that the client uses are trained on all of its samples.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from commonweal.base.tensors import Tensors
from commonweal.data.federation import Federation
from commonweal.training.client import Client, Stage, sgd_parameters
from commonweal.training.objective import At, Objective
from commonweal.training.task import Task
from commonweal.training.uses import Uses, one_model

__all__ = ["GRID", "HELD_OUT", "LocalModel", "LocalTraining", "hold_out", "posterior_mean"]

GRID = torch.linspace(0, 1, 11)  # the weights in mixtures that are compared
LARGEST = torch.finfo(torch.float32).max
SCOUTED = 0.6  # the share of the rounds in which scouts train; later training may only go on
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

    local: ClassVar[str] = "local"  # its name in the client's state

    def scouted(self, rounds: int) -> int:
        """The last round in which scouts train."""
        return math.ceil(SCOUTED * rounds)

    def local_stages(self, purpose: str, message: Tensors, held_out: bool) -> tuple[Stage, ...]:
        """The training of the local model and its scout that a request asks for.

        After a round's training, clients that have missed rounds make up for them: scouts when
        "mix" or "fit" is asked for, local models at the end.

        Args:
            purpose: "train", "mix", "fit" or "tune".
            message: What the server sent, with the round.
            held_out: Whether samples are held out.
        """
        plain = sgd_parameters(self)
        local = Stage(LocalModel(**plain, vector=self.local), "all", f"{self.local}_rounds")
        scout = Stage(LocalModel(**plain, vector="scout"), "train", "scout_rounds")
        round, rounds = int(message["round"]), int(message["rounds"])
        last = self.scouted(rounds)
        if purpose == "train":
            return (scout, local) if held_out and round <= last else (local,)
        stages = []
        if round == rounds:
            stages.append(local._replace(catches_up=True))
        if purpose in ("mix", "fit") and held_out:
            stages.append(scout._replace(catches_up=True, until=last))
        return tuple(stages)

    def init_local(self, task: Task) -> Tensors:
        """What a client keeps for local training."""
        w = task.initial
        return {
            self.local: w.clone(),
            "stopped": w.clone(),  # the local model where the scout was best
            "scout": w.clone(),
            "best": w.clone(),  # the scout where it was best
            "best_loss": torch.full((1,), LARGEST),
            "best_round": torch.zeros(1),
            "stops": torch.zeros(1),  # 1: training beyond the best round does not pay
            f"{self.local}_rounds": torch.zeros(1),
            "scout_rounds": torch.zeros(1),
            "linear": torch.empty(0),
            "linear_weight": torch.zeros(1),
        }

    def local_uses(self, state: Tensors) -> Uses:
        """The local network and the linear model, as far as there is one."""
        network = torch.where(state["stops"] > 0, state["stopped"], state[self.local])
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
