"""blend: a client predicts with its local models, the global and the fine-tuned model together.

Each client trains local models as `alone` does and, in the rounds, the global model. It mixes their
predictions, not their parameters. How much the partners (the global model and its fine-tuned
version) count is learned on validation samples and bounded, so that a client whose partners are bad
keeps to its local models. Related: Peterson et al. 2019, Mansour et al. 2020 (MAPPER), Marfoq et
al. 2022 (kNN-Per).
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from commonweal.base.errors import ConfigError
from commonweal.base.shares import product
from commonweal.base.tensors import Tensors
from commonweal.clients.fine_tune import Tuned, tuning_parameters
from commonweal.clients.local_model import (
    GRID,
    LIKELIHOODS,
    Divided,
    LocalTraining,
    check_local,
    mixture_losses,
    posterior_mean,
)
from commonweal.data.rows import Rows
from commonweal.task.task import Task
from commonweal.task.uses import Uses
from commonweal.training.ask import Ask, Samples
from commonweal.training.client import Client, Notes, Requests, ToAll, at_least, sgd_parameters

NO_VALIDATION = (
    "no client has validation samples: predictions are mixed with fixed weights; set "
    "validation = 0.2 to learn them"
)


@dataclass(frozen=True)
class Blend(LocalTraining):
    """(1-m) p_local + m p_partners, with p_partners = (p_global + p_tuned) / 2

    p_local is that of `alone`. In the first rounds no model sees the validation samples. Then every
    client compares the mixtures with m = 0, 0.1, ..., 1 on them, and keeps the mean of m under
    exp(-(its losses + prior times everyone's mean losses)), at most `limit`. Only sums over clients
    are used by the server. From then on all models train on all samples. After the last round the
    client fine-tunes the global model. A client that was not in every cohort trains its local
    models for the missing rounds at home.
    Without validation samples, classification uses m = `weight`.

    partner: whose predictions join those of the local models: "global", "tuned", or "both"
    limit: the largest m (none: 2/3 for both, 1/2 for one partner)
    learn_at: the share of the rounds after which m is learned
    prior: how many samples everyone's losses are worth
    weight: m where there are no validation samples
    rejoin: whether validation samples return to training; without, `choose` can use them, and a
        fifth of the training samples takes their place
    tune_epochs: epochs of fine-tuning (none: a tenth of those of all rounds, at most 5)
    tune_lr: their learning rate (none: that of the round)
    trees: whether the local models have a forest, for tables (as of `alone`)
    The others are those of sgd, for all models
    With trees grown together (the algorithm "boosting") the local models are the linear model and
    the forest, and the trees are the only partner: there is nothing to fine-tune.
    """

    partner: Literal["both", "global", "tuned"] = "both"
    limit: float | None = None
    learn_at: float = 0.6
    prior: float = 5.0
    weight: float = 0.5
    rejoin: bool = True
    tune_epochs: int | float | None = None
    tune_lr: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, prior=0)
        for name in ("limit", "learn_at", "weight", "tune_epochs", "tune_lr"):
            value = vars(self)[name]
            largest = math.inf if name.startswith("tune") else 1
            if value is not None and not 0 < value <= largest:
                raise ConfigError(f"blend {name} = {value}: give a number above 0, up to {largest}")

    takes_trees = True

    def largest(self, task: Task) -> float:
        """The largest weight of the partners."""
        if self.limit is not None:
            return self.limit
        return 2 / 3 if self.partner == "both" and task.is_network else 1 / 2

    def check(self, task: Task, rounds: int) -> None:
        if task.is_network:
            return
        check_local(task, "blend")
        if self.partner == "tuned":
            raise ConfigError(
                "blend partner = 'tuned': trees that are grown together are not fine-tuned; leave "
                "partner out"
            )

    def scouted(self, rounds: int) -> int:
        """The round after which m is learned."""
        return math.ceil(product(self.learn_at, rounds))

    def divided(self, samples: Samples) -> Divided:
        if self.rejoin:
            return Divided(samples.train, samples.validation, samples.everything)
        return super().divided(samples)

    # The conversation

    def after(self, round: int, rounds: int) -> Requests:
        notes = Notes()
        if round == self.scouted(rounds):
            everyone = mean_losses((yield ToAll("mix")))
            if everyone is None:
                notes = Notes(warnings=(NO_VALIDATION,))
            else:
                yield ToAll("weigh", {"everyone": everyone}, silent=True)
            yield ToAll("retrain", silent=True)
        if round == rounds:
            yield ToAll("tune", silent=True)
        return notes

    def answer(self, ask: Ask) -> tuple[Tensors, Tensors]:
        if ask.purpose == "weigh":
            states = self.learned(ask.task, ask.states, ask.message["everyone"])
            return {"size": ask.sizes}, states
        rows = self.rows(ask)
        if ask.purpose == "train":
            states = self.trained(ask)
            return ask.train(Client(**sgd_parameters(self)), rows, states)
        if ask.purpose == "mix":
            return self.compared(ask)
        replies, states = super().answer(ask)
        if ask.purpose == "tune":
            states = self.tuned(ask, self.divided(ask.samples).whole, states)
        return replies, states

    def rows(self, ask: Ask) -> Rows:
        if self.divided(ask.samples).held is None:
            if not ask.task.is_network:
                raise ConfigError(
                    "client 'blend' needs validation samples to weigh trees and local models: set "
                    "validation = 0.2"
                )
            if ask.task.loss not in LIKELIHOODS:
                raise ConfigError(
                    f"client 'blend' needs validation samples for the loss {ask.task.loss!r}, "
                    "since a global model can be far off for some clients: set validation = 0.2"
                )
        return super().rows(ask)

    def tuned(self, ask: Ask, rows: Rows, states: Tensors) -> Tensors:
        """The states (S, ...) after fine-tuning the global model on some samples."""
        if not ask.task.is_network:
            return states
        return ask.train_at_home(self.tuner(ask.rounds), rows, states)

    def tuner(self, rounds: int) -> Client:
        """The training by which clients fine-tune the global model."""
        epochs = self.tune_epochs or min(5.0, 0.1 * self.epochs * rounds)
        return Tuned(**tuning_parameters(self, epochs, self.tune_lr))

    def compared(self, ask: Ask) -> tuple[Tensors, Tensors]:
        """Reply with the sums of the losses (S, 11) of mixtures over validation samples."""
        first, held, _ = self.divided(ask.samples)
        losses = torch.zeros(len(ask.ids), len(GRID))
        samples = torch.zeros(len(ask.ids))
        states = ask.states
        if held is not None:
            samples = held.sizes[ask.ids].float()
            states = self.caught_up(ask, first)
            states = self.watched(ask, self.tuned(ask, first, states))
            states, local = self.fitted(ask, states)
            for k, rows in enumerate(ask.of_each(held)):
                own = {name: value[k] for name, value in states.items()}
                partners = self.partners(ask.task, ask.message, own)
                predicted = [ask.outputs(w, rows) for w in partners]
                shares = [GRID / len(partners)] * len(partners)
                weights = torch.stack([1 - GRID, *shares], 1)
                losses[k] = mixture_losses(
                    ask.task, torch.stack([local[k], *predicted]), weights, rows
                )
        replies = {"size": ask.sizes, "sums": losses, "samples": samples}
        return replies, states | {"losses": losses}

    # What the client keeps

    def init_client(self, task: Task, seed: int) -> Tensors:
        local = self.init_local(task)
        return local | {
            "tuned": local[self.local].clone(),
            "is_tuned": torch.zeros(1),
            "losses": torch.zeros(len(GRID)),
            "m": torch.tensor([min(self.weight, self.largest(task))]),
        }

    def partners(self, task: Task, message: Tensors, state: Tensors) -> tuple[Tensor, ...]:
        """The models whose predictions join the local ones, with equal weights."""
        if not task.is_network:
            return (message["w"],)
        tuned = torch.where(state["is_tuned"] > 0, state["tuned"], message["w"])
        named = {"both": (message["w"], tuned), "global": (message["w"],), "tuned": (tuned,)}
        return named[self.partner]

    def learned(self, task: Task, state: Tensors, everyone: Tensor) -> Tensors:
        """The client's state with its m.

        everyone: the mean losses (11,) over all clients' validation samples
        """
        m = posterior_mean(state["losses"] + self.prior * everyone)
        return state | {"m": m.clamp(max=self.largest(task))}

    def uses(self, task: Task, message: Tensors, state: Tensors) -> Uses:
        local = self.local_uses(task, state)
        partners = self.partners(task, message, state)
        networks = len(local.models)
        m = state["m"] if len(local.weights) else torch.ones_like(state["m"])
        shares = [m / len(partners)] * len(partners)
        own = (1 - m) * local.weights
        weights = torch.cat([own[:networks], *shares, own[networks:]])
        return Uses(torch.cat([local.models, torch.stack(partners)]), weights, local.others)


def mean_losses(replies: Tensors) -> Tensor | None:
    """The mean losses (11,) of mixtures over all clients' samples; None without any."""
    if not replies:
        return None
    usable = torch.isfinite(replies["sums"]).all(1)
    samples = replies["samples"][usable].sum()
    if samples == 0:
        return None
    return replies["sums"][usable].sum(0) / samples


ENTRIES = {"blend": Blend}
