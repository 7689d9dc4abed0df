"""drfa: clients are sampled by the mixture that is worst for the model, which is learnt meanwhile.

Deng, Kamani and Mahdavi, Distributionally Robust Federated Averaging, NeurIPS 2020, Algorithm 1.
Two exchanges per round: clients sampled by lam train; then clients sampled uniformly report the
loss of the mean model after a random number of the local steps.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from commonweal.base import randomness
from commonweal.base.errors import RunError
from commonweal.base.tensors import State, Tensors
from commonweal.data.population import Population
from commonweal.protocols.algorithm import (
    Conversation,
    Group,
    Outcome,
    Replies,
    Request,
    Sample,
    unchanged,
)
from commonweal.protocols.averaging import Averaging, buffer_weights
from commonweal.protocols.channels.channel import Channel
from commonweal.protocols.samplers.by_weight import ByWeight
from commonweal.protocols.samplers.uniform import Uniform
from commonweal.rules.fedavg import FedAvg
from commonweal.rules.rule import Rule
from commonweal.rules.simplex import project
from commonweal.task.task import Task
from commonweal.training.client import Client, sgd_parameters
from commonweal.training.client_state import ClientState
from commonweal.training.objective import Objective


@dataclass(frozen=True)
class _Snapshot(Client):
    """Local SGD that also returns the model after `message["snapshot"]` steps."""

    def start(self, task: Task, message: Tensors, state: Tensors) -> Tensors:
        w = message["w"]
        return {"w": w, "snapshot": w, "left": message["snapshot"].to(w.dtype).reshape(1)}

    def objective(self, task: Task, message: Tensors) -> Objective:
        return Objective(after=self._count)

    def _count(self, vectors: Tensors, lr: float) -> Tensors:
        left = vectors["left"] - 1
        return {"snapshot": torch.where(left == 0, vectors["w"], vectors["snapshot"]), "left": left}

    def reply(
        self, task: Task, vectors: Tensors, message: Tensors, state: Tensors, steps: Tensor
    ) -> tuple[Tensors, Tensors]:
        return {"snapshot": message["w"] - vectors["snapshot"]}, state


@dataclass(frozen=True, eq=False)
class DRFA(Averaging):
    """w <- mean of the models after tau steps; lam <- project(lam + tau ascent v)

    v_i = K / S f_i(w') for S uniformly sampled clients, else 0; w' is the mean of the models
    after a random number of steps in 1, ..., tau.
    ascent: the step size of lam; steps: tau, where the client's `steps` is not set
    """

    rule: Rule = field(default=FedAvg(), init=False)
    channels: tuple[Channel, ...] = field(default=(), init=False)
    loss: Literal["always"] = field(default="always", init=False)
    ascent: float = 0.01
    steps: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_fields("ascent", "steps", above=0)
        self._check_plain_sgd()

    @cached_property
    def tau(self) -> int:
        return self.client.steps or self.steps

    @cached_property
    def _trainer(self) -> Averaging:
        client = _Snapshot(**(sgd_parameters(self.client) | {"steps": self.tau}))
        return Averaging(self.task, self.rule, client, self.server, loss=self.loss)

    def init(self, population: Population) -> State:
        zeros = torch.zeros(population.clients, dtype=torch.float64)
        mixtures = {"lam": zeros + 1 / population.clients, "mean": zeros}  # over the rounds
        return super().init(population) | mixtures

    def round(self, state: State, sample: Sample) -> Conversation:
        number = int(state["round"])
        rng = randomness.stream(self.seed, number, 0, randomness.SNAPSHOT)
        snapshot = torch.tensor(int(rng.integers(1, self.tau + 1)))
        lam = _grown(state["lam"], sample.population.clients)
        drawn = sample(lambda: lam, ByWeight(replacement=True))
        cohort, counts = torch.unique(drawn, return_counts=True)
        message = {"w": state["w"], "round": state["round"], "snapshot": snapshot}
        trained = (yield Request(cohort, message)).finite()
        if len(trained.clients) == 0:
            return unchanged(state | {"lam": lam, "mean": _averaged(state, lam)}, trained)
        weights = counts[torch.isin(cohort, trained.clients)].double()
        weights = weights / weights.sum()
        middle = state["w"] - weights.to(state["w"].dtype) @ trained.values["snapshot"]
        message = {"w": middle, "round": state["round"]}
        asked = sample(sampler=Uniform())
        judged = (yield Request(asked, message, "loss")).finite()
        update = trained.values["update"]
        direction = buffer_weights(weights).to(update.dtype) @ update
        following = self.move(state, direction, weights)
        following |= {"lam": self._ascend(lam, judged), "mean": _averaged(state, lam)}
        failed = trained.failed | judged.failed
        diverged = trained.diverged | judged.diverged
        return Outcome(following, trained.clients, weights, failed, diverged=diverged)

    def _ascend(self, lam: Tensor, judged: Replies) -> Tensor:
        if len(judged.clients) == 0:
            return lam
        v = torch.zeros_like(lam)
        v[judged.clients] = len(lam) / len(judged.clients) * judged.values["loss"].double()
        return project(lam + self.tau * self.ascent * v)

    def mixture(self, state: State, clients: int) -> Tensor | None:
        return _grown(state["mean"], clients) if int(state["round"]) > 1 else None

    def answer(self, request: Request, group: Group) -> tuple[Tensors, ClientState]:
        reported = self.evaluate_received(request.message, group)
        replies = {"loss": reported.losses, "score": reported.score}
        if request.purpose == "train":
            replies |= self._trainer.trained(request, group)[0]
        return replies, group.states


def _grown(lam: Tensor, clients: int) -> Tensor:
    """The mixture with clients that joined late: each begins with an equal share."""
    new = clients - len(lam)
    if new < 0:
        raise RunError(
            f"drfa has a mixture of {len(lam)} clients, but there are only {clients} now: bring "
            "the others back, or start the run again in another folder"
        )
    if new == 0:
        return lam
    share = torch.full((new,), 1 / clients, dtype=lam.dtype)
    return torch.cat([lam * (len(lam) / clients), share])


def _averaged(state: State, lam: Tensor) -> Tensor:
    """The mean of the mixtures by which clients were drawn so far."""
    mean = _grown(state["mean"], len(lam))
    averaged: Tensor = mean + (lam - mean) / int(state["round"])
    return averaged


ENTRIES = {"drfa": DRFA}
