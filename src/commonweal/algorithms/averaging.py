"""averaging: clients train the received model, the server moves it along their weighted updates.

McMahan et al., AISTATS 2017, with any rule, client method, server optimizer and channels.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from commonweal.algorithms import blending, local_fit
from commonweal.algorithms.algorithm import (
    Algorithm,
    Conversation,
    Group,
    Outcome,
    Replies,
    Request,
    Sample,
    TrainingLoss,
    decided,
    is_used,
    keep_finite,
    setting,
    unchanged,
)
from commonweal.base import randomness
from commonweal.base.errors import ConfigError
from commonweal.base.tensors import State, Tensors, select
from commonweal.channels.channel import Channel
from commonweal.channels.private import PrivateMask
from commonweal.clients.choice import ChoiceClient
from commonweal.data.population import Population
from commonweal.data.rows import Rows
from commonweal.rules.rule import Need, Reports, Rule, decide
from commonweal.servers.server import ServerOptimizer
from commonweal.training import schedules, scores
from commonweal.training.batches import BatchSchedule, schedule
from commonweal.training.client import Client, Stage
from commonweal.training.client_state import ClientState
from commonweal.training.evaluation import Evaluation, evaluate, evaluate_models
from commonweal.training.local import Trained, start_vectors, train_locally
from commonweal.training.task import Task
from commonweal.training.uses import one_model


class Work(NamedTuple):
    """One local training of some clients of a group."""

    rows: Rows
    positions: Tensor  # (S',) of the clients in the group
    plan: BatchSchedule
    stage: Stage
    times: Tensor  # (S',) how many rounds it makes up for


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
        self.client.check(self.task, self.rounds)
        schedules.check(self.client.schedule, self.rounds)
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
        if isinstance(self.client, ChoiceClient):
            state["taken"] = torch.zeros(len(self.client.candidates))
        return state

    def taken(self, state: State) -> dict[str, int]:
        if not isinstance(self.client, ChoiceClient):
            return {}
        counts = state["taken"].int().tolist()
        return dict(zip(self.client.candidates, counts, strict=True))

    def ask(self, state: State) -> Tensors:
        """What every client of the cohort is sent."""
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
        state = outcome.state
        everyone = torch.arange(sample.population.clients)
        for purpose in self.client.exchanges(int(state["round"]) - 1, self.rounds):
            message = self.message(state) | {"round": state["round"] - 1}  # still this round
            replies = yield Request(everyone, message, purpose)
            if purpose == "choose":
                taken = replies.values["taken"].sum(0)
                outcome = replace(outcome, state=state | {"taken": taken})
                if not taken[1:].any():
                    outcome = _warned(outcome, local_fit.NOBODY_LEAVES)
            if purpose == "mix":
                learned = blending.everyone(replies)
                if learned is None:
                    outcome = _warned(outcome, blending.NO_VALIDATION)
                else:
                    yield Request(everyone, message | learned, "weigh")
        return outcome

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
        """What the rule knows of the replies."""
        values = replies.values
        update = values.get("update")
        score = values.get("score")
        if score is not None and scores.find(self.task.score).lower_is_better:
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
        purpose, message = request.purpose, request.message
        if purpose == "train":
            return self._answer_train(request, group)
        if purpose == "describe":
            return {"labels": label_counts(group, int(message["classes"]))}, group.states
        fitting = self.client, self._reporting, message, group
        replies = self.size(group)
        method = group.states.method
        if purpose == "choose":
            taken, method = local_fit.choose(*fitting, method)
            replies = {"taken": taken}
        elif purpose == "weigh":
            method = blending.weigh(self.client, message, method)
        elif purpose in ("tune", "mix", "fit", "retrain"):
            method = self.train(self.work(request, group), request, group).states
            if purpose in ("mix", "fit"):
                method = local_fit.watch(self.client, self._reporting, request, group, method)
            if purpose == "fit":
                method, _ = local_fit.fit(*fitting, method)
            if purpose == "mix":
                compared, method = blending.compare(*fitting, method)
                replies |= compared
        else:
            raise ConfigError(f"averaging has no answer to a request for {purpose!r}")
        return replies, group.states._replace(method=method)

    def _answer_train(self, request: Request, group: Group) -> tuple[Tensors, ClientState]:
        """Evaluate the received model where the rule needs it, train, and send the update."""
        work = self.work(request, group)
        reporting = self.reporting(group, work[-1])
        before: Tensors = {}
        if self.training_loss != "first epoch":
            reported = self.evaluate_received(request.message, reporting)
            before = {"loss": reported.losses, "score": reported.score}
        trained = self.train(work, request, group)
        states = local_fit.watch(self.client, self._reporting, request, group, trained.states)
        replies = trained.replies | before | self.size(group)
        if "loss_after" in self.rule.needs:
            replies["loss_after"] = self._evaluate_each(trained.models, reporting).losses
        return self.encode(replies, states, group)

    def reporting(self, group: Group, work: Work) -> Group:
        """The group with the samples on which it evaluates the models for the rule."""
        if self.loss != "batch":
            return group._replace(rows=self.reported_rows(group))
        ids = torch.arange(len(group.ids))
        return group._replace(ids=ids, rows=first_batches(work.rows, work.plan))

    def reported_rows(self, group: Group) -> Rows:
        """The training samples, those that a method holds out from them included."""
        if self.client.holds_out == "training" and group.everything is not None:
            return group.everything
        return group.rows

    def size(self, group: Group) -> Tensors:
        """The numbers of training samples of a group, which every reply has."""
        return {"size": self.reported_rows(group).sizes[group.ids]}

    def work(self, request: Request, group: Group) -> list[Work]:
        """The local training that a request asks for, with its batches drawn."""
        states = group.states.method
        work = []
        stages = self.client.stages(
            self.task, request.purpose, request.message, group.validation is not None
        )
        for stage in stages:
            rows = group.rows
            if stage.samples == "all" and group.everything is not None:
                rows = group.everything
            # Each stage draws as if it were the only one, so that it equals that of other methods.
            streams = group.streams
            if stage is not stages[-1]:
                streams = [randomness.copied(stream) for stream in streams]
            due = _rounds_due(stage, states, request, len(group.ids))
            positions = due.nonzero().flatten()
            if len(positions) == 0:
                continue
            times = due[positions]
            own = [streams[k] for k in positions.tolist()]
            plan = schedule(stage.client, self.task, rows, group.ids[positions], own, times.numpy())
            work.append(Work(rows, positions, plan, stage, times))
        return work

    def train(self, work: list[Work], request: Request, group: Group) -> Trained:
        """Local training of a group; clients that diverge keep their method's states.

        work: what is trained, one after another; the last gives the replies
        """
        states = group.states.method
        reports_loss = self.training_loss == "first epoch" and request.purpose == "train"
        trained = Trained({}, states, torch.empty(len(group.ids), 0))
        for number, (rows, positions, plan, stage, times) in enumerate(work, 1):
            replies = number == len(work)
            everyone = len(positions) == len(group.ids)
            before = states if everyone else select(states, positions)
            trained = train_locally(
                stage.client,
                self.task,
                request.message,
                before,
                rows,
                plan,
                group.vectorize,
                group.at_once,
                models=replies and "loss_after" in self.rule.needs,
                losses=replies and reports_loss,
            )
            after = trained.states
            if stage.counter:
                after |= {stage.counter: before[stage.counter] + times[:, None]}
            after = keep_finite(before, after, trained.replies["update"])
            if not everyone:
                after = {n: states[n].index_copy(0, positions, after[n]) for n in states}
            states = after
        return trained._replace(states=states)

    @cached_property
    def _reporting(self) -> Task:
        """The task with the main score only."""
        return self.task.replace(also=()) if self.task.also else self.task

    def evaluate_received(self, message: Tensors, group: Group) -> Evaluation:
        """Evaluate the received model, with each client's private part, on the training samples."""
        if self.client.private(self.task) is None:
            return evaluate(self._reporting, message["w"], group.rows, group.ids)
        states, count = group.states.method, len(group.ids)
        vectors = start_vectors(self.client, self.task, message, states, count, group.vectorize)
        return self._evaluate_each(vectors["w"], group)

    def _evaluate_each(self, models: Tensor, group: Group) -> Evaluation:
        """Evaluate the models (S, d) of a group's clients."""
        uses = one_model(models)
        return evaluate_models(self._reporting, uses, group.rows, group.ids, group.vectorize)

    def encode(
        self, replies: Tensors, method: Tensors, group: Group
    ) -> tuple[Tensors, ClientState]:
        """Pass the replies of a group through the channels.

        method: the states of the client method after training
        """
        channels = dict(group.states.channels)
        for k, channel in enumerate(self.path):
            memory = channels.get(k, {})
            draws = channel.draws(self.task)
            noise = torch.stack([torch.from_numpy(rng.random(draws)) for rng in group.streams])
            replies, after = group.vectorize(channel.encode, (0, 0, 0))(replies, memory, noise)
            if after:
                channels[k] = keep_finite(memory, after, replies["update"])
        return replies, group.states._replace(method=method, channels=channels)


def _rounds_due(stage: Stage, states: Tensors, request: Request, clients: int) -> Tensor:
    """How many rounds of a stage the clients (S,) of a group have to train."""
    due = torch.ones(clients, dtype=torch.int64)
    if stage.catches_up:
        last = states[stage.until].flatten() if stage.until else request.message["round"]
        missing = last - states[stage.counter].flatten()
        due = missing.long().clamp(min=0)
    if stage.unless:
        due = due * (states[stage.unless].flatten() == 0)
    return due


def _warned(outcome: Outcome, warning: str) -> Outcome:
    return replace(outcome, warnings=(*outcome.warnings, warning))


def buffer_weights(weights: Tensor) -> Tensor:
    """Weights (S,) for averages of buffers: at least 0, with sum 1."""
    positive = weights.clamp(min=0)
    if not (positive > 0).any():
        positive = torch.ones_like(weights)
    return positive / positive.sum()


def first_batches(rows: Rows, plan: BatchSchedule) -> Rows:
    """The samples that each client of a schedule takes at its first step."""
    index, weight, _ = plan.at(0, len(plan.sizes))
    taken = weight > 0
    offsets = torch.nn.functional.pad(taken.sum(1).cumsum(0), (1, 0))
    return rows.take(index[taken], offsets)


def label_counts(group: Group, classes: int) -> Tensor:
    """How many training samples of each class the clients of a group have, (S, classes)."""
    y = group.rows.y
    if y.is_floating_point() or y.ndim > 1:
        raise ConfigError("the clients have no classes to count: their labels are values or tokens")
    labels = [group.rows.client(client).y.cpu() for client in group.ids.tolist()]
    return torch.stack([torch.bincount(y, minlength=classes) for y in labels])


ENTRIES = {"averaging": Averaging}
