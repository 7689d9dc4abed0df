"""averaging: clients train the received model, the server moves it along their weighted updates.

McMahan et al., AISTATS 2017, with any rule, client method, server optimizer and channels.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from commonweal.base import randomness
from commonweal.base.errors import ConfigError
from commonweal.base.randomness import Streams
from commonweal.base.tensors import State, Tensors, select
from commonweal.data.population import Population
from commonweal.protocols.algorithm import (
    Algorithm,
    Conversation,
    Group,
    Outcome,
    Replies,
    Request,
    Sample,
    TrainingLoss,
    after_round,
    ask_clients,
    decided,
    is_used,
    setting,
    unchanged,
)
from commonweal.protocols.channels.channel import Channel
from commonweal.protocols.channels.private import PrivateMask
from commonweal.protocols.servers.server import ServerOptimizer
from commonweal.rules.rule import Need, Reports, Rule, decide
from commonweal.task import scores
from commonweal.task.task import Task
from commonweal.task.uses import one_model
from commonweal.training import schedules
from commonweal.training.ask import Ask, Samples, Wanted
from commonweal.training.batches import first_batches
from commonweal.training.client import Client
from commonweal.training.client_state import ClientState, keep_finite
from commonweal.training.evaluation import Evaluation, evaluate, evaluate_models
from commonweal.training.local import start_vectors


@dataclass(frozen=True, eq=False)
class Averaging(Algorithm):
    """w <- server optimizer's step along sum_i weights_i (w - w_i), w_i trained by client i

    loss: the samples on which clients evaluate the received model for rules that use its loss or
        score: "full", all training samples, or "batch", those of the first batch, as in the sampled
        algorithm of AFL (Fig. 4). "always" is "full" with any rule. Otherwise clients report the
        mean loss of their first epoch's batches, which costs nothing
    """

    task: Task
    rule: Rule
    client: Client
    server: ServerOptimizer
    channels: tuple[Channel, ...] = ()
    rounds: int = 100
    seed: int = 0
    loss: Literal["full", "batch", "always"] = "full"

    on_devices: ClassVar[bool] = True
    always_evaluates: ClassVar[bool] = False  # the received model, whatever the rule needs

    def __post_init__(self) -> None:
        if not self.task.is_network:
            raise ConfigError(
                "the model 'trees' has no gradients to train it by: use the algorithm 'boosting'"
            )
        self.client.check(self.task, self.rounds)
        schedules.check_schedule(self.client.schedule, self.rounds)
        self.server.check(self.rounds)

    @cached_property
    def path(self) -> tuple[Channel, ...]:
        """All channels, the private mask of the client method first."""
        mask = self.client.private(self.task)
        private = () if mask is None else (PrivateMask(mask),)
        return (*private, *self.channels)

    @property
    def plans_rounds(self) -> bool:
        return self.client.plans_rounds or self.rule.plans_rounds

    @property
    def needs(self) -> frozenset[Need]:
        return self.rule.needs

    @cached_property
    def training_loss(self) -> TrainingLoss:
        used = self.rule.needs & {"loss", "score", "loss_after"}
        if not used and not self.always_evaluates and self.loss != "always":
            return "first epoch"
        return "first batch" if self.loss == "batch" else "received"

    # The server

    def init(self, population: Population) -> State:
        w = self.task.initial.clone()
        state: State = {
            "round": torch.tensor(1),
            "w": w,
            "rule": self.rule.init(setting(population, self.rounds, self.client.lr)),
            "server": self.server.init(self.task.trainable(w)),
            "shared": self.client.init_shared(self.task),
        }
        if self.client.candidates:
            state["taken"] = torch.zeros(len(self.client.candidates))
        return state

    def ask(self, state: State) -> Tensors:
        """Return the message to every client of the cohort."""
        rounds = torch.tensor(self.rounds)
        return {"w": state["w"], "round": state["round"], "rounds": rounds, **state["shared"]}

    def message(self, state: State) -> Tensors:
        return self.ask(state) | {"w": self.model(state)}

    def exchange(self, state: State, sample: Sample) -> Conversation:
        """Ask a cohort for updates, and move the model along them."""
        replies = yield Request(self.cohort(state, sample), self.ask(state))
        return self.tell(state, replies, sample.population.clients)

    def round(self, state: State, sample: Sample) -> Conversation:
        """Make an exchange, and the further requests of the client method to all clients."""
        outcome = yield from self.exchange(state, sample)
        clients = sample.population.clients
        return (yield from after_round(self, self.client, self.rounds, outcome, clients))

    def cohort(self, state: State, sample: Sample) -> Tensor:
        """The clients to ask. One that is drawn twice is asked once."""
        clients = sample.population.clients
        drawn = sample(lambda: self.rule.distribution(state["rule"], clients))
        distinct: Tensor = torch.unique(drawn)
        return distinct

    def tell(self, state: State, replies: Replies, clients: int) -> Outcome:
        """Weigh the reports and move the model. Without usable replies nothing moves."""
        replies = self.decode(replies.finite())
        if len(replies.clients) == 0:
            return unchanged(state, replies)
        decision = decide(self.rule, self.reports(replies, clients), state["rule"])
        direction = self.direction(decision.weights, replies.values["update"])
        following = self.move(state, direction, decision.weights)
        following["rule"] = decision.state
        heard = replies.values
        if decision.dropped:
            heard = select(heard, is_used(decision, replies))
        following["shared"] = self.client.update_shared(state["shared"], heard, clients)
        return decided(following, replies, decision, decision.weights)

    def decode(self, replies: Replies) -> Replies:
        """The replies as they were before the channels."""
        if len(replies.clients) == 0:
            return replies
        values = replies.values
        for channel in reversed(self.path):
            values = channel.decode(values)
        return replies._replace(values=values)

    def reports(self, replies: Replies, clients: int) -> Reports:
        """Return the rule's reports: its view of the replies."""
        values = replies.values
        update = values.get("update")
        score = values.get("score")
        if score is not None and scores.find_score(self.task.score).lower_is_better:
            score = -score  # for rules higher is better
        return Reports(
            ids=replies.clients,
            sizes=values["size"],
            losses=values["loss"] if "loss" in values else values["train_loss"],
            scores=score,
            updates=None if update is None else update[:, : self.task.num_trainable],
            losses_after=values.get("loss_after"),
            clients=clients,
            checked=True,
        )

    def direction(self, weights: Tensor, update: Tensor) -> Tensor:
        """The weighted sum of the updates (R, d), with the mean of their buffers.

        Buffers are averaged whatever the signs and the scale of the weights: a variance must
        stay one.
        """
        n = self.task.num_trainable
        trained = weights.to(update.dtype) @ update[:, :n]
        buffers = buffer_weights(weights.to(update.dtype)) @ update[:, n:]
        return torch.cat([trained, buffers])

    def move(self, state: State, direction: Tensor, weights: Tensor) -> State:
        """The state after the server optimizer's step along a direction (d,)."""
        rng = randomness.stream(self.seed, int(state["round"]), 0, randomness.RELEASE)
        for channel in reversed(self.path):
            direction = channel.release(direction, weights, rng)
        n = self.task.num_trainable
        w = state["w"]
        trained, memory = self.server(w[:n], direction[:n], state["server"])
        moved = torch.cat([trained, w[n:] - direction[n:]])
        return state | {"round": state["round"] + 1, "w": moved, "server": memory}

    def model(self, state: State) -> Tensor:
        n = self.task.num_trainable
        w: Tensor = state["w"]
        return torch.cat([self.server.output(w[:n], state["server"]), w[n:]])

    def mixture(self, state: State, clients: int) -> Tensor | None:
        return self.rule.averaged(state["rule"], clients)

    # The clients

    def init_client(self, seed: int) -> ClientState:
        channels = {}
        for k, channel in enumerate(self.path):
            memory = channel.init(self.task)
            if memory:
                channels[k] = memory
        return ClientState(self.client.init_client(self.task, seed), channels)

    def answer(self, request: Request, group: Group) -> tuple[Tensors, ClientState]:
        if request.purpose == "describe":
            return {"labels": label_counts(group, int(request.message["classes"]))}, group.states
        if request.purpose != "train":
            replies, method = self.client.answer(self.ask_clients(request, group))
            return replies, group.states._replace(method=method)
        reports = self.size(group)
        if self.training_loss != "first epoch":
            reports |= self.report(request.message, group)
        replies, states = self.trained(request, group)
        return replies | reports, states

    def counted(self, request: Request, values: Tensors) -> Tensor:
        if request.purpose == "describe":
            return values["labels"]
        return torch.empty(0)

    def fewest(self, rows: int) -> int:
        return min(rows, self.client.batch or rows) if self.loss == "batch" else rows

    def trained(self, request: Request, group: Group) -> tuple[Tensors, ClientState]:
        """The client method's replies to a request to train, through the channels."""
        replies, method = self.client.answer(self.ask_clients(request, group))
        if "update" not in replies:
            raise ConfigError(
                f"client {type(self.client).__name__} answers a request to train without an "
                "'update': return the replies of ask.train"
            )
        if "model" in replies:
            losses = self._evaluate_each(replies.pop("model"), self.reporting(group)).losses
            replies["loss_after"] = losses
        return self.encode(replies, method, group)

    def ask_clients(self, request: Request, group: Group) -> Ask:
        """A request as the client method gets it."""
        wants: set[Wanted] = set()
        if request.purpose == "train" and self.training_loss == "first epoch":
            wants.add("train_loss")
        if request.purpose == "train" and "loss_after" in self.rule.needs:
            wants.add("model")
        return ask_clients(self.task, request, group, frozenset(wants))

    def size(self, group: Group) -> Tensors:
        """The numbers of training samples, or of the positions of their labels that count."""
        rows = group.rows
        if self.task.counted is None:
            return {"size": rows.sizes[group.ids]}
        index, offsets = rows.index_of(group.ids)
        return {"size": self.task.counted_sizes(rows.y[index], offsets)}

    def report(self, message: Tensors, group: Group) -> Tensors:
        """The loss and the score of the received model, for the rule."""
        evaluated = self.evaluate_received(message, self.reporting(group))
        return {"loss": evaluated.losses, "score": evaluated.score}

    def reporting(self, group: Group) -> Group:
        """The group with the samples on which it evaluates the models for the rule."""
        if self.loss != "batch":
            return group
        streams = group.streams._replace(purpose=randomness.TRAIN).begin()
        rows = first_batches(self.client, group.rows, group.ids, streams)
        return group._replace(ids=torch.arange(len(group.ids)), samples=Samples.of(rows))

    def evaluate_received(self, message: Tensors, group: Group) -> Evaluation:
        """Evaluate the received model, with each client's private part, on the training samples."""
        if self.client.private(self.task) is None:
            return evaluate(self.task.reporting, message["w"], group.rows, group.ids)
        states, count = group.states.method, len(group.ids)
        vectors = start_vectors(self.client, self.task, message, states, count, group.vectorize)
        return self._evaluate_each(vectors["w"], group)

    def _evaluate_each(self, models: Tensor, group: Group) -> Evaluation:
        """Evaluate the models (S, d) of a group's clients."""
        uses = one_model(models)
        return evaluate_models(self.task.reporting, uses, group.rows, group.ids, group.vectorize)

    def encode(
        self, replies: Tensors, method: Tensors, group: Group
    ) -> tuple[Tensors, ClientState]:
        """Pass the replies of a group through the channels.

        method: the states of the client method after training
        """
        channels = dict(group.states.channels)
        noise = self._noise(group.streams)
        for k, channel in enumerate(self.path):
            memory = channels.get(k, {})
            replies, after = group.vectorize(channel.encode, (0, 0, 0))(replies, memory, noise[k])
            if after:
                channels[k] = keep_finite(memory, after, replies["update"])
        return replies, group.states._replace(method=method, channels=channels)

    def _noise(self, streams: Streams) -> list[Tensor]:
        """The uniform random numbers (S, draws) of each channel."""
        draws = [channel.draws(self.task) for channel in self.path]
        if not any(draws):
            return [torch.empty(len(streams.keys), 0, dtype=torch.float64) for _ in draws]
        generators = streams._replace(purpose=randomness.CHANNEL).begin()
        return [torch.from_numpy(np.stack([rng.random(n) for rng in generators])) for n in draws]


def buffer_weights(weights: Tensor) -> Tensor:
    """Weights (S,) for averages of buffers: at least 0, with sum 1."""
    positive = weights.clamp(min=0)
    if not (positive > 0).any():
        positive = torch.ones_like(weights)
    return positive / positive.sum()


def label_counts(group: Group, classes: int) -> Tensor:
    """Return the numbers of training samples by client of a group and class, (S, classes)."""
    y = group.rows.y
    if y.is_floating_point() or y.ndim > 1:
        raise ConfigError("the clients have no classes to count: their labels are values or tokens")
    labels = [group.rows.client(client).y.cpu() for client in group.ids.tolist()]
    return torch.stack([torch.bincount(y, minlength=classes) for y in labels])


ENTRIES = {"averaging": Averaging}
