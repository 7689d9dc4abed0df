"""The conversation between a server and its clients, as types.

A round is a generator of requests: it yields who is asked what, is sent who answered what, and
returns an outcome. Whoever drives it is an engine. Nothing but the state survives a round, so that
the state is the server's checkpoint.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from commonweal.base import randomness
from commonweal.base.arguments import check_bounds
from commonweal.base.errors import ConfigError
from commonweal.base.randomness import Streams
from commonweal.base.tensors import State, Tensors, is_finite, select
from commonweal.config.experiment import RunSettings
from commonweal.config.policy import Policy
from commonweal.data.federation import Federation
from commonweal.data.population import Population, Setting
from commonweal.data.rows import Rows
from commonweal.protocols.privacy.promise import Promise
from commonweal.protocols.samplers.sampler import Draw, Sampler
from commonweal.rules.rule import Decision, Descent, Need
from commonweal.task.task import Task
from commonweal.task.uses import Uses, one_model
from commonweal.task.vectorize import Vectorize
from commonweal.training.ask import Ask, Samples, Wanted
from commonweal.training.client import Client, Notes
from commonweal.training.client_state import NO_STATE, ClientState

# The loss that clients report: of the received model, on all training samples or on the first
# batch, or the mean over the batches of the first epoch.
TrainingLoss = Literal["received", "first batch", "first epoch"]
NONE: Tensors = {}
NOBODY: dict[int, str] = {}


class Request(NamedTuple):
    """A request to some clients. `message` goes to all of them, a row of `each` to each."""

    clients: Tensor  # (S,) ids
    message: Tensors  # has "round"
    purpose: str = "train"  # which of the client's functions answers; part of its random stream
    each: Tensors = NONE  # (S, ...)
    summed: bool = False  # only the sum over the replies is used, and given: (1, ...)


class Replies(NamedTuple):
    """The replies of some clients. Fewer than were asked is a normal case."""

    clients: Tensor  # (R,) ids
    values: Tensors  # (R, ...)
    failed: dict[int, str] = NOBODY  # client id -> why there is no usable reply
    diverged: frozenset[int] = frozenset()  # those of the failed whose numbers are not finite

    def finite(self, optional: Sequence[str] = ("score",)) -> "Replies":
        """Move clients whose values are not finite to the failed ones. `optional` may be NaN."""
        reasons: dict[int, str] = {}
        loss_first = sorted(self.values, key=lambda name: name != "loss")
        for name in loss_first:
            value = self.values[name]
            if name in optional or not value.is_floating_point():
                continue
            for client in self.clients[~is_finite(value)].tolist():
                what = "a finite number" if name == "loss" else "finite: local training diverged"
                reasons.setdefault(client, f"its {name} is not {what}")
        if not reasons:
            return self
        usable = torch.tensor([client not in reasons for client in self.clients.tolist()])
        values = select(self.values, usable)
        diverged = self.diverged | reasons.keys()
        return Replies(self.clients[usable], values, self.failed | reasons, diverged)


@dataclass(frozen=True, eq=False)
class Outcome:
    """The results of a round."""

    state: State
    clients: Tensor  # (S,) whose replies were used
    weights: Tensor  # (S,) float64
    dropped: dict[int, str] = field(default_factory=dict)  # client id -> why it was not used
    capped: dict[int, str] = field(default_factory=dict)  # client id -> why it was reduced
    warnings: tuple[str, ...] = ()
    diverged: frozenset[int] = frozenset()  # those of the dropped whose numbers are not finite
    descent: Descent | None = None  # along the direction taken, of the clients whose replies count


def unchanged(state: State, replies: Replies) -> Outcome:
    """The outcome of a round in which no reply can be used."""
    following = state | {"round": state["round"] + 1}
    weights = torch.empty(0, dtype=torch.float64)
    nobody = replies.clients[:0]
    return Outcome(following, nobody, weights, replies.failed, diverged=replies.diverged)


def is_used(decision: Decision, replies: Replies) -> Tensor:
    """True for each reply (R,) that counts: a rule may drop some."""
    return torch.tensor([client not in decision.dropped for client in replies.clients.tolist()])


def decided(state: State, replies: Replies, decision: Decision, weights: Tensor) -> Outcome:
    """The outcome of a round in which a rule weighed the replies.

    Args:
        state: After the round.
        weights: The weights (R,) that the replies had in the end.
    """
    used = is_used(decision, replies)
    descent = decision.descent
    if descent is not None:
        descent = descent._replace(rates=descent.rates[used])
    return Outcome(
        state,
        replies.clients[used],
        weights.double()[used],
        replies.failed | decision.dropped,
        decision.capped,
        decision.warnings,
        replies.diverged,
        descent,
    )


class Group(NamedTuple):
    """The clients that answer together: one in a real deployment, a chunk in the simulator."""

    ids: Tensor  # (S,) positions in the samples
    samples: Samples
    states: ClientState  # (S, ...)
    streams: Streams
    vectorize: Vectorize
    each: Tensors = NONE  # (S, ...) their rows of `Request.each`
    at_once: int | None = None  # numbers that clients who are trained together may hold

    @property
    def rows(self) -> Rows:
        """The training samples."""
        return self.samples.train


@dataclass(frozen=True, eq=False)
class Sample:
    """Draws the clients of one round; draws of a round continue one random stream."""

    population: Population
    size: int  # clients to ask
    round: int
    sampler: Sampler
    rng: np.random.Generator

    def __call__(
        self,
        weights: Callable[[], Tensor | None] | None = None,
        sampler: Sampler | None = None,
    ) -> Tensor:
        """Draw the ids of a cohort.

        weights: gives a distribution (K,), for samplers that use one; sampler: not the run's own
        """
        sampler = sampler or self.sampler
        distribution = None
        if weights is not None and sampler.uses_weights:
            distribution = weights()
        return sampler.choose(Draw(self.round, self.population, self.size, distribution, self.rng))


Conversation = Generator[Request, Replies, Outcome]


def answer_within(
    policy: Policy | None, algorithm: "Algorithm", request: Request, group: Group, rounds: int
) -> tuple[Tensors, ClientState]:
    """The answer of a group; with a policy of one client. Raises PolicyError where it refuses.

    rounds: that the client has answered today, with this one
    """
    if policy is None:
        return algorithm.answer(request, group)
    policy.check_request(request.purpose, algorithm.task.scores, rounds)
    client = int(group.ids)
    sizes = [group.samples.train.sizes]
    replies, states = algorithm.answer(request, group._replace(samples=group.samples.noting(sizes)))
    rows = min(int(known[client]) for known in sizes if known[client] > 0)
    counts = algorithm.counted(request, replies)
    policy.check_reply(algorithm.fewest(rows), counts.flatten().tolist())
    return replies, states


def ask_clients(
    task: Task, request: Request, group: Group, wants: frozenset[Wanted] = frozenset()
) -> Ask:
    """A request as the client method gets it."""
    return Ask(
        task=task,
        purpose=request.purpose,
        message=request.message,
        states=group.states.method,
        samples=group.samples,
        ids=group.ids,
        streams=group.streams,
        vectorize=group.vectorize,
        at_once=group.at_once,
        wants=wants,
    )


class Algorithm:
    """A protocol between a server and its clients. Pure: fields are fixed, the state is a value."""

    task: Task  # whose vector `model` returns
    on_devices: ClassVar[bool] = False  # whether clients compute where their samples are
    together: ClassVar[bool] = False  # whether all who are asked answer as one group
    client: Client | None  # what a group of clients runs; None: they answer one at a time

    @property
    def client_task(self) -> Task:
        """The task that clients train, where it is not the one that is evaluated."""
        return self.task

    @property
    def training_loss(self) -> TrainingLoss:
        """A description of the losses that clients report."""
        return "received"

    @property
    def one_by_one(self) -> bool:
        """True if clients answer one at a time, as where their states differ in shape."""
        return False

    @property
    def plans_rounds(self) -> bool:
        """True if a round depends on how many there are: such a run cannot be given more."""
        return True

    @property
    def needs(self) -> frozenset[Need]:
        """The facts on clients that the server needs. "labels": their label counts, for `init`."""
        return frozenset()

    @property
    def masked(self) -> frozenset[str]:
        """The purposes of requests whose replies leave a client masked, for secure sums."""
        return frozenset()

    @property
    def promise(self) -> Promise | None:
        """The run's promise about the privacy of its clients; None: there is none."""
        return None

    def _check_fields(
        self, *names: str, least: float | None = None, above: float | None = None
    ) -> None:
        """Raise ConfigError for a parameter out of its bounds. None is not checked."""
        kind = type(self).__name__.lower()
        for name in names:
            check_bounds(f"{kind} {name}", vars(self)[name], least=least, above=above)

    def _check_plain_sgd(self) -> None:
        """Raise ConfigError where clients do not train by plain local SGD."""
        if type(self.client) is not Client:
            kind, client = type(self).__name__.lower(), type(self.client).__name__
            raise ConfigError(
                f"{kind} trains by plain local SGD, not by {client}: use client 'sgd'"
            )

    def check(self, settings: RunSettings, federation: Federation | None) -> None:
        """Raise ConfigError where the algorithm cannot run with these settings or this data.

        Args:
            settings: Of the run.
            federation: The data, where it is in this process.
        """

    def public_numbers(self, state: State) -> dict[str, float]:
        """Return the numbers of a round that a private run may publish besides its model."""
        return {}

    def init(self, population: Population) -> State:
        """The server's state before the first round."""
        raise NotImplementedError

    def round(self, state: State, sample: Sample) -> Conversation:
        """Yield the requests of a round, receive the replies, return the outcome."""
        raise NotImplementedError

    def init_client(self, seed: int) -> ClientState:
        """A client's state before its first round."""
        return NO_STATE

    def answer(self, request: Request, group: Group) -> tuple[Tensors, ClientState]:
        """Answer a request: return the clients' replies and their next states, (S, ...) each."""
        raise NotImplementedError

    def counted(self, request: Request, values: Tensors) -> Tensor:
        """The samples in each category and bin that one client's reply counts, for policies.

        Where an algorithm does not say, a reply may be about a single sample.
        """
        return torch.ones(1)

    def fewest(self, rows: int) -> int:
        """Return the fewest samples that a loss or score rests on, where a client has so many."""
        return rows

    def model(self, state: State) -> Tensor:
        """The server's model (d,). An accessor: it trains nothing."""
        raise NotImplementedError

    def mixture(self, state: State, clients: int) -> Tensor | None:
        """The mixture of clients (K,) that was learnt, as a mean over the rounds so far."""
        return None

    def importance(self, state: State) -> Tensor | None:
        """Return each feature's importance (features,); after them: who the client is."""
        return None

    def before_evaluation(self, state: State) -> State:
        """The state with whatever `model` needs that rounds do not make."""
        return state

    def message(self, state: State) -> Tensors:
        """Return the message that a client would be sent now."""
        return {"w": self.model(state), "round": state["round"]}

    @property
    def personalizes(self) -> bool:
        """True if clients use models of their own."""
        return self.client is not None and self.client.personalizes

    def uses(self, message: Tensors, client_state: ClientState) -> Uses:
        """The models that a client predicts with."""
        if self.client is None:
            return one_model(message["w"])
        return self.client.uses(self.task, message, client_state.method)

    def samples(self, state: State) -> tuple[Tensor, Tensor] | None:
        """Synthetic samples and their labels, where the algorithm makes some."""
        return None


def after_round(
    algorithm: Algorithm, client: Client, rounds: int, outcome: Outcome, clients: int
) -> Conversation:
    """The requests of a client method to all clients after a round, and what comes of them."""
    state = outcome.state
    number = state["round"] - 1  # still this round
    everyone = torch.arange(clients)
    requests = client.after(int(number), rounds)
    notes = Notes()
    try:
        request = next(requests)
        while True:
            message = algorithm.message(state) | {"round": number} | request.message
            replies = yield Request(everyone, message, request.purpose)
            is_used = len(replies.clients) > 0 and not request.silent
            request = requests.send(replies.values if is_used else {})
    except StopIteration as stop:
        notes = stop.value
    if notes.taken is not None:
        state = state | {"taken": notes.taken}
    return replace(outcome, state=state, warnings=(*outcome.warnings, *notes.warnings))


def setting(population: Population, rounds: int, lr: float) -> Setting:
    """The facts on a run that a rule may know before its first round."""
    return Setting(
        clients=population.clients,
        rounds=rounds,
        lr=lr,
        groups=population.groups,
        label_counts=population.label_counts,
        sizes=population.sizes,
    )


def first_state(algorithm: Algorithm, seed: int, client: int) -> ClientState:
    """The state of a client, given by its key, before its first round."""
    rng = randomness.stream(seed, 0, client, randomness.INIT_CLIENT)
    return algorithm.init_client(int(rng.integers(1 << 62)))
