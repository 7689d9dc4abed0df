"""pooled: one model trained on all clients' samples in one place.

The ceiling that a federation is measured against, not a federation: it needs all samples in one
process, so only the simulator can run it. Each round is the work of plain local SGD (its epochs and
batches) on all training samples together; the scores are each client's, as always. After the last
round, when to stop is chosen as in local training. So is how much a linear model counts and, for
tables, gradient boosting.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import torch

from commonweal.base import randomness
from commonweal.base.errors import ConfigError
from commonweal.base.tensors import State, Tensors
from commonweal.clients.local_model import VALIDATION_SHARE, LocalTraining, with_others
from commonweal.config.experiment import RunSettings
from commonweal.data.federation import Federation
from commonweal.data.rows import Rows
from commonweal.protocols.algorithm import Conversation, Group, Request, Sample
from commonweal.protocols.averaging import Averaging
from commonweal.protocols.channels.channel import Channel
from commonweal.rules.fedavg import FedAvg
from commonweal.rules.rule import Rule
from commonweal.task.members import KINDS
from commonweal.task.task import Task
from commonweal.task.uses import Uses
from commonweal.training.ask import Ask, Samples
from commonweal.training.client import sgd_parameters
from commonweal.training.client_state import ClientState

OTHERS = (*KINDS, "other_weights")  # what clients keep of the models of other kinds


@dataclass(frozen=True)
class _Everything(LocalTraining):
    """Local training of the received model, as of one client that has all samples.

    A scout trains without its validation samples.
    """

    local: ClassVar[str] = "scout"

    def answer(self, ask: Ask) -> tuple[Tensors, Tensors]:
        if ask.purpose == "fit":
            states, _ = self.fitted(ask, ask.states)
            ask = replace(ask, states=states)
            return {}, self.retrained(ask)
        states = ask.states
        if ask.round <= self.scouted(ask.rounds):
            states = self.trained(ask)
        return ask.train(self, states=states)

    def kinds(self, task: Task, rows: Rows) -> tuple[str, ...]:
        kinds = super().kinds(task, rows)
        return tuple("boosting" if kind == "forest" else kind for kind in kinds)

    def init_client(self, task: Task, seed: int) -> Tensors:
        return self.init_local(task) | {"whole": task.initial}

    def reply(
        self, task: Task, vectors: Tensors, message: Tensors, state: Tensors, steps: torch.Tensor
    ) -> tuple[Tensors, Tensors]:
        return {}, state | {"whole": vectors["w"]}


@dataclass(frozen=True, eq=False)
class Pooled(Averaging):
    """w <- server optimizer's step along w - w', w' trained on all samples as if of one client"""

    rule: Rule = field(default=FedAvg(), init=False)
    channels: tuple[Channel, ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_plain_sgd()

    @property
    def plans_rounds(self) -> bool:
        return True  # scouts train in the first rounds only

    @property
    def personalizes(self) -> bool:
        return True  # all clients use the same: the network and models of other kinds

    def check(self, settings: RunSettings, federation: Federation | None) -> None:
        super().check(settings, federation)
        if settings.policy:
            raise ConfigError("pooled needs all samples in one place, which no policy permits")

    @cached_property
    def _trainer(self) -> Averaging:
        """The training of one client that has all samples."""
        client = _Everything(**sgd_parameters(self.client))
        return Averaging(self.task, self.rule, client, self.server, (), self.rounds, self.seed)

    def init_client(self, seed: int) -> ClientState:
        return ClientState(dict.fromkeys(OTHERS, torch.empty(0)))

    def _kept(self, trained: Tensors) -> ClientState:
        """The state of the client that pools: that of any client, and the training's."""
        names = self.init_client(0).method
        others = {name: value for name, value in trained.items() if name not in names}
        return ClientState({name: trained[name] for name in names}, protocol=others)

    def round(self, state: State, sample: Sample) -> Conversation:
        """Ask the first client, in whose place all samples are trained on."""
        first = torch.zeros(1, dtype=torch.int64)
        replies = yield Request(first, self.ask(state))
        outcome = self.tell(state, replies, sample.population.clients)
        if int(state["round"]) == self.rounds:
            replies = yield Request(first, self.ask(state), "fit")
            fitted = {name: value[0] for name, value in replies.values.items()}
            outcome = replace(outcome, state=outcome.state | {"w": fitted["network"]})
            message = self.ask(outcome.state) | fitted
            message["round"] = state["round"]  # else the states would be those of a later round
            yield Request(first, message, "share")  # its state is another than the others'
            yield Request(torch.arange(1, sample.population.clients), message, "share")
        return outcome

    def answer(self, request: Request, group: Group) -> tuple[Tensors, ClientState]:
        if request.purpose == "share":
            count = len(group.ids)
            shared = {name: request.message[name].expand(count, -1) for name in OTHERS}
            return self.size(group), ClientState(shared)
        begun = {n: value[None] for n, value in self._trainer.init_client(0).method.items()}
        own = group.states.method | group.states.protocol
        one = group._replace(states=ClientState(begun | own), samples=self._divided(group.rows))
        replies, states = self._trainer.answer(request, one)
        if request.purpose == "train":
            return replies, self._kept(states.method)
        method = states.method
        fitted = {
            "network": torch.where(method["stop"] > 0, method["best"], method["whole"]),
            **{name: method[name] for name in OTHERS},
        }
        return fitted, self._kept(begun | own)  # "share" gives it to all clients

    def _divided(self, rows: Rows) -> Samples:
        """All samples as those of one client, a part of them for validation."""
        count = len(rows.y)
        everything = replace(rows, offsets=torch.tensor([0, count]))
        order = randomness.stream(self.seed, 0, 0, randomness.SPLIT).permutation(count)
        held = torch.zeros(count, dtype=torch.bool)
        held[torch.from_numpy(order[: int(VALIDATION_SHARE * count)])] = True
        parts = {}
        for name, mask in (("kept", ~held), ("held", held)):
            index = mask.nonzero().flatten()
            parts[name] = everything.take(index, torch.tensor([0, len(index)]))
        return Samples.of(everything, **parts)

    def uses(self, message: Tensors, client_state: ClientState) -> Uses:
        return with_others(message["w"], client_state.method)


ENTRIES = {"pooled": Pooled}
