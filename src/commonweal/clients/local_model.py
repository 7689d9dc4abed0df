"""Local training as a client does it well: a network, a linear model and a forest, mixed at home.

In the first rounds a client trains its network without its validation samples. The losses on
them say whether training should stop early. If so, the best network goes on for a fourth of its
rounds with all samples; otherwise the last one goes on with all samples. A linear model is fitted,
too, with a weight decay that is chosen on the same samples, and for tables a random forest. So are
their weights next to the network.

A fifth of few samples says too little. With fewer than 100 the network trains in all rounds, and
the linear model and the forest are cross-validated: every sample is tested once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from commonweal.base.errors import ConfigError
from commonweal.base.randomness import purpose, stream
from commonweal.base.shares import product
from commonweal.base.tensors import Tensors
from commonweal.data.federation import Federation
from commonweal.data.rows import Rows, joined_rows
from commonweal.task.linear import LOSSES, STRENGTHS, fit_linear, has_linear, linear_outputs
from commonweal.task.members import FOREST, KINDS, fit_trees, has_trees, member_outputs
from commonweal.task.task import Task
from commonweal.task.uses import Uses, mix_outputs, one_model
from commonweal.training.ask import Ask, Samples
from commonweal.training.client import Client, Notes, Requests, ToAll, sgd_parameters
from commonweal.training.objective import At, Objective

GRID = torch.linspace(0, 1, 11)  # the weights in mixtures that are compared
PAIRS = torch.stack([1 - GRID, GRID], 1)  # (11, 2) weights of two models that are compared
# Losses in units of log-likelihood.
LIKELIHOODS = ("cross-entropy", "binary", "tokens", "causal", "cox")
LARGEST = torch.finfo(torch.float32).max
SMALLEST = 1e-12  # mean loss of a model that is right on all samples
SCOUTED = 0.6  # the share of the rounds with validation samples
FURTHER = 0.25  # rounds on all samples after an early stop, as a share of those before it
FEW = 100  # samples of a client below which a fifth of them says too little
FOLDS = 5  # in which few samples are tested
FOREST_OF_FOLD = 20  # trees
FORESTS = purpose("forests")  # of the random streams that draw their rows
VALIDATION_SHARE = 0.2  # the share of the training samples on which local models are compared


def with_own_validation(federation: Federation, seed: int) -> Federation:
    """Make a part of the training samples `validation`, in place of what it was."""
    plain = replace(federation, validation=None, validated=None)
    return plain.with_validation(VALIDATION_SHARE, seed)


def check_local(task: Task, method: str) -> None:
    """Raise ConfigError where there are no local models next to trees grown together."""
    if task.loss not in LOSSES:
        raise ConfigError(
            f"client {method!r} has no local models for the loss {task.loss!r} next to trees grown "
            "together: leave client out"
        )


class Divided(NamedTuple):
    """The samples of local training."""

    first: Rows  # of the rounds with validation samples
    held: Rows | None  # the samples on which models are compared meanwhile
    whole: Rows  # of the rounds after them


@dataclass(frozen=True)
class LocalModel(Client):
    """Local SGD of a model that the client keeps.

    Args:
        vector: The name of the model in the client's state.
        counter: The name of the number of rounds that it was trained.
        until: Where the counter is afterwards: at the next round, at the server's ("round"), or
            where the state says that training stops ("stop").
    """

    vector: str = "local"
    counter: str = "local_rounds"
    until: Literal["next", "round", "stop"] = "next"

    def start(self, task: Task, message: Tensors, state: Tensors) -> Tensors:
        return {"w": message["w"], self.vector: state[self.vector]}

    def objective(self, task: Task, message: Tensors) -> Objective:
        return Objective((At(self.vector),))

    def reply(
        self, task: Task, vectors: Tensors, message: Tensors, state: Tensors, steps: Tensor
    ) -> tuple[Tensors, Tensors]:
        return {}, state | {
            self.vector: vectors[self.vector],
            self.counter: self.reached(message, state),
        }

    def reached(self, message: Tensors, states: Tensors) -> Tensor:
        """The counter after training."""
        counter = states[self.counter]
        if self.until == "next":
            return counter + 1
        if self.until == "stop":
            return states["stop"]
        return message["round"].expand_as(counter).float()

    def train(self, ask: Ask, rows: Rows, going: Tensor | bool = True) -> Tensors:
        """The states (S, ...) after the rounds that are left, of the clients (S, 1) that go on."""
        if not ask.task.is_network:
            return ask.states
        left = self.reached(ask.message, ask.states) - ask.states[self.counter]
        rounds = left.clamp(min=0) * going
        return ask.train_at_home(self, rows, rounds=rounds.flatten().long())


@dataclass(frozen=True)
class LocalTraining(Client):
    """The base of the methods whose clients have a local model."""

    trees: bool = True

    personalizes = True
    plans_rounds = True
    local: ClassVar[str] = "local"  # its name in the client's state

    def scouted(self, rounds: int) -> int:
        """The last round with validation samples."""
        return math.ceil(product(SCOUTED, rounds))

    def divided(self, samples: Samples) -> Divided:
        """Return the samples by their purpose in local training."""
        return Divided(samples.kept, samples.held, samples.train)

    def rows(self, ask: Ask) -> Rows:
        """The samples on which local models are trained in the round of a request."""
        divided = self.divided(ask.samples)
        return divided.first if ask.round <= self.scouted(ask.rounds) else divided.whole

    # What a client keeps and uses

    def init_local(self, task: Task) -> Tensors:
        """Return the part of a client's state that local training needs."""
        w = task.initial if task.is_network else torch.empty(0)
        return {
            self.local: w.clone(),
            "best": w.clone(),  # the local model where it was best on the validation samples
            "best_loss": torch.full((1,), LARGEST),
            "best_round": torch.zeros(1),
            "stop": torch.zeros(1),  # how many rounds the best one goes on; 0: it is the last one
            f"{self.local}_rounds": torch.zeros(1),
            "further_rounds": torch.zeros(1),
            **dict.fromkeys(KINDS, torch.empty(0)),
            "other_weights": torch.empty(0),
        }

    def local_uses(self, task: Task, state: Tensors) -> Uses:
        """The local network, if there is one, and models of other kinds as far as there are some.

        Next to trees that are grown together there is no network, and first no model at all.
        """
        if not task.is_network:
            none = task.initial.new_empty(0, task.size)
            return Uses(none, state["other_weights"], other_models(state))
        network = torch.where(state["stop"] > 0, state["best"], state[self.local])
        return with_others(network, state)

    # The conversation

    def after(self, round: int, rounds: int) -> Requests:
        if round == self.scouted(rounds):
            yield ToAll("fit", silent=True)
            yield ToAll("retrain", silent=True)
        if round == rounds:
            yield ToAll("tune", silent=True)
        return Notes()

    def answer(self, ask: Ask) -> tuple[Tensors, Tensors]:
        """Answer the requests that concern local models only."""
        if ask.purpose == "fit":
            states, _ = self.fitted(ask, self.watched(ask, self.caught_up(ask, self.rows(ask))))
        elif ask.purpose == "retrain":
            states = self.retrained(ask)
        elif ask.purpose == "tune":
            states = self.caught_up(ask, self.divided(ask.samples).whole)
        else:
            return super().answer(ask)
        return {"size": ask.sizes}, states

    # The network

    @property
    def network(self) -> LocalModel:
        """The training of the local network."""
        return LocalModel(**sgd_parameters(self), vector=self.local, counter=f"{self.local}_rounds")

    def trained(self, ask: Ask) -> Tensors:
        """The states (S, ...) after a round of local training, where it has not stopped."""
        return self.watched(ask, self.network.train(ask, self.rows(ask), ask.states["stop"] == 0))

    def caught_up(self, ask: Ask, rows: Rows) -> Tensors:
        """The states (S, ...) after the rounds that clients have missed."""
        network = replace(self.network, until="round")
        return network.train(ask, rows, ask.states["stop"] == 0)

    def retrained(self, ask: Ask) -> Tensors:
        """The states (S, ...) after the further rounds of those who have stopped early."""
        best = replace(self.network, vector="best", counter="further_rounds", until="stop")
        return best.train(ask, self.divided(ask.samples).whole)

    def watched(self, ask: Ask, states: Tensors) -> Tensors:
        """The states (S, ...) with the best networks, while there are validation samples."""
        held = self.divided(ask.samples).held
        if held is None or not ask.task.is_network or ask.round > self.scouted(ask.rounds):
            return states
        losses = ask.evaluate(one_model(states[self.local]), held).losses.float()[:, None]
        better = losses < states["best_loss"]  # false without samples
        now = {
            "best": states[self.local],
            "best_loss": losses,
            "best_round": states[self.network.counter],
        }
        return states | {n: torch.where(better, value, states[n]) for n, value in now.items()}

    # The models of other kinds

    def kinds(self, task: Task, rows: Rows) -> tuple[str, ...]:
        """The kinds of models that clients fit in addition."""
        linear: tuple[str, ...] = ("linear",) if has_linear(task, rows) else ()
        return (*linear, "forest") if self.trees and has_trees(task, rows) else linear

    def fitted(self, ask: Ask, states: Tensors) -> tuple[Tensors, list[Tensor]]:
        """Let clients decide whether to stop, and fit models of other kinds.

        Each is mixed with those before it, with a weight that the validation samples decide.

        Returns:
            The next states (S, ...), and the outputs (N, ...) of each client's local models for the
            validation samples, as they were before these were trained on.
        """
        first, held, whole = self.divided(ask.samples)
        assert held is not None
        kinds = self.kinds(ask.task, first)
        if not ask.task.is_network and not kinds:
            raise ConfigError(
                "these samples have too many features for local models other than networks: leave "
                "client out, or take the algorithm 'averaging'"
            )
        counter, best = states[self.network.counter], states["best_round"]
        goes_on = (best == counter) | (whole.sizes[ask.ids] < FEW)[:, None]
        best = torch.where(goes_on, counter, best)
        states = states | {"best": torch.where(goes_on, states[self.local], states["best"])}
        vectors: dict[str, list[Tensor]] = {kind: [] for kind in kinds}
        weights, outputs = [], []
        for k, own in enumerate(ask.of_each(held)):
            client = int(ask.ids[k])
            # In every round and method the same forest, if the samples are the same.
            draws = stream(ask.streams.seed, 0, ask.streams.keys[k], FORESTS)
            folds = _folds(first.client(client), own)
            tested = _joined([fold.tested for fold in folds])
            mixture = Mixture(torch.empty(0), torch.empty(0))
            # Of few samples, the network's outputs are known for a part of the tested ones only.
            begins = ask.task.is_network and len(folds) == 1
            if begins:
                mixture = mixture.joined(ask.task, ask.outputs(states["best"][k], own), own)
            for kind in kinds:
                vector, predicted = _fitted(ask.task, kind, folds, whole.client(client), draws)
                vectors[kind].append(vector)
                mixture = mixture.joined(ask.task, predicted, tested)
            mixture = mixture._replace(outputs=mixture.outputs[: len(own.y)])
            if ask.task.is_network and not begins:
                mixture = mixture.joined(ask.task, ask.outputs(states["best"][k], own), own)
            weights.append(mixture.shares[1:] if begins else mixture.shares[: len(kinds)])
            outputs.append(mixture.outputs)
        # Where no round is left for the validation samples, the best network goes on with them.
        goes_on = goes_on & (self.scouted(ask.rounds) < ask.rounds)
        states = states | {"stop": torch.where(goes_on, 0.0, (FURTHER * best).ceil())}
        if kinds:
            states |= {kind: torch.stack(vectors[kind]) for kind in kinds}
            states["other_weights"] = torch.stack(weights)
        return states, outputs


class Mixture(NamedTuple):
    """What several models of a client predict together for some samples.

    Attributes:
        outputs: What they give (N, ...).
        shares: Their weights; none at first.
    """

    outputs: Tensor
    shares: Tensor

    def joined(self, task: Task, outputs: Tensor, rows: Rows) -> "Mixture":
        """The mixture with one more model, by the weight that the samples decide."""
        if len(self.shares) == 0:
            return Mixture(outputs, torch.ones(1))
        both = torch.stack([self.outputs, outputs])
        weight = posterior_mean(mixture_losses(task, both, PAIRS, rows))
        shares = torch.cat([(1 - weight) * self.shares, weight])
        return Mixture(mix_outputs(task.loss, both, torch.cat([1 - weight, weight])), shares)


class Fold(NamedTuple):
    """Samples to fit a model to, and others to test it on."""

    rows: Rows
    tested: Rows


def _folds(first: Rows, held: Rows) -> list[Fold]:
    """The held samples, tested by models of the first ones; of few samples, all of them in turn."""
    folds = [Fold(first, held)]
    count = len(first.y)
    if count < 2 or count + len(held.y) >= FEW:
        return folds
    part = torch.arange(count) % (FOLDS - 1)
    for number in range(min(FOLDS - 1, count)):
        others, tested = (_some(first, mask) for mask in (part != number, part == number))
        folds.append(Fold(_joined([others, held]), tested))
    return folds


def _some(rows: Rows, mask: Tensor) -> Rows:
    """Some of the samples of one client."""
    return rows.take(mask.nonzero().flatten(), torch.tensor([0, int(mask.sum())]))


def _joined(parts: Sequence[Rows]) -> Rows:
    """The samples of one client from several parts."""
    only = torch.tensor([0])
    return reduce(lambda first, second: joined_rows(first, second, only), parts)


def with_others(network: Tensor, state: Tensors) -> Uses:
    """A network (d,) and the models of other kinds in a client's state, with their weights."""
    others = other_models(state)
    if not others:
        return one_model(network)
    weights = state["other_weights"]
    own = 1 - weights.sum(0, keepdim=True)
    return Uses(network[None], torch.cat([own.clamp(min=0), weights]), others)


def other_models(state: Tensors) -> Tensors:
    """The models of other kinds in a client's state, by kind."""
    return {kind: state[kind] for kind in KINDS if len(state[kind])}


def _fitted(
    task: Task, kind: str, folds: Sequence[Fold], whole: Rows, draws: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """A model of a kind, fitted to all samples of a client.

    Returns:
        The model, and what models that were fitted without them give for the tested samples.
    """
    if kind == "linear":
        strength, predicted = _linear(task, folds)
        return fit_linear(task, whole, strength), predicted
    count = FOREST if len(folds) == 1 else FOREST_OF_FOLD
    predicted = torch.cat(
        [
            member_outputs(kind, fit_trees(task, rows, kind, draws, count), _ready(task, tested))
            for rows, tested in folds
        ]
    )
    return fit_trees(task, whole, kind, draws), predicted


def _linear(task: Task, folds: Sequence[Fold]) -> tuple[float, Tensor]:
    """The strength after which the loss on the tested samples grows, and the outputs for them."""
    labels = _joined([fold.tested for fold in folds])
    models: list[Tensor | None] = [None] * len(folds)
    best: tuple[float, Tensor] | None = None
    least = torch.inf
    for strength in STRENGTHS:
        fitted = [
            fit_linear(task, fold.rows, strength, near)
            for fold, near in zip(folds, models, strict=True)
        ]
        pairs = zip(fitted, folds, strict=True)
        parts = [linear_outputs(model, _ready(task, fold.tested)) for model, fold in pairs]
        outputs = torch.cat(parts)
        loss = float(_loss_sums(task, outputs[None], torch.ones(1, 1), labels))
        if best is not None and not loss < least:
            break
        best, least, models = (strength, outputs), loss, [*fitted]
    assert best is not None
    return best


def _ready(task: Task, rows: Rows) -> Tensor:
    return task.ready_tensor(rows.x.cpu())


# Mixtures


def posterior_mean(losses: Tensor) -> Tensor:
    """The mean (..., 1) of the weights of the grid, each as likely as its losses (..., 11) say."""
    posterior = torch.softmax(-losses.double(), -1).to(GRID.dtype)
    return (posterior * GRID).sum(-1, keepdim=True)


def mixture_losses(task: Task, outputs: Tensor, weights: Tensor, rows: Rows) -> Tensor:
    """The negative log-likelihoods (G,) of mixtures on the samples of one client.

    A loss that is none, such as the squared error, is taken as the spread of a t-distribution: its
    scale is the mean loss of the first mixture, so that neither the unit of the labels nor a
    single client whose losses are large decides.

    Args:
        outputs: What each model gives for the samples (M, N, ...).
        weights: The weights of the models in the mixtures (G, M).
    """
    sums = _loss_sums(task, outputs, weights, rows)
    if task.loss in LIKELIHOODS or len(rows.y) == 0:
        return sums
    scale = (sums[0] / len(rows.y)).clamp(min=SMALLEST)
    return len(rows.y) / 2 * torch.log1p(sums / scale)


def _loss_sums(task: Task, outputs: Tensor, weights: Tensor, rows: Rows) -> Tensor:
    """The sums (G,) of the losses of mixtures over the samples of one client."""
    count, mixtures = len(rows.y), len(weights)
    if count == 0:
        return torch.zeros(mixtures)
    mixed = mix_outputs(task.loss, outputs[:, None], weights.T)  # (G, N, ...)
    labels = torch.cat([rows.y.cpu()] * mixtures)
    losses, _ = task.reporting.row_results(mixed.flatten(0, 1), labels)
    offsets = count * torch.arange(mixtures + 1)
    return count * task.mean_losses(losses, offsets).float()
