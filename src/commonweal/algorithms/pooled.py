"""pooled: one model trained on all clients' samples in one place.

The ceiling that a federation is measured against, not a federation: it needs all samples in one
process, so only the simulator can run it. Each round is the client method's work (its epochs and
batches) on all training samples together; the scores are each client's, as always. After the last
round, when to stop and how much a linear model counts are chosen as in local training.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import torch

from commonweal.algorithms.algorithm import Conversation, Group, Request, Sample
from commonweal.algorithms.averaging import Averaging
from commonweal.base import randomness
from commonweal.base.errors import ConfigError
from commonweal.base.tensors import State, Tensors
from commonweal.channels.channel import Channel
from commonweal.clients.local_model import HELD_OUT, LocalTraining
from commonweal.data.rows import Rows
from commonweal.rules.fedavg import FedAvg
from commonweal.rules.rule import Rule
from commonweal.training.client import Stage, sgd_parameters
from commonweal.training.client_state import ClientState
from commonweal.training.task import Task
from commonweal.training.uses import Uses, one_model


@dataclass(frozen=True)
class _Everything(LocalTraining):
    """Local training of the received model, as of one client that has all samples.

    A scout trains without what is held out.
    """

    local: ClassVar[str] = "scout"

    def stages(
        self, task: Task, purpose: str, message: Tensors, validates: bool
    ) -> tuple[Stage, ...]:
        if purpose == "fit":
            return ()
        scout = self.local_stages(purpose, message)
        if purpose == "retrain":
            return scout
        held_out = int(message["round"]) <= self.scouted(int(message["rounds"]))
        return (*(scout if held_out else ()), Stage(self, "all"))

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
        if self.client.personalizes:
            raise ConfigError(
                f"pooled trains one model for all, but {type(self.client).__name__} gives clients "
                "their own: take a client method without own models, such as 'sgd'"
            )

    @property
    def plans_rounds(self) -> bool:
        return True  # scouts train in the first rounds only

    @property
    def personalizes(self) -> bool:
        return True  # all clients use the same: the network and the linear model

    @cached_property
    def _trainer(self) -> Averaging:
        """The training of one client that has all samples."""
        client = _Everything(**sgd_parameters(self.client))
        return Averaging(self.task, self.rule, client, self.server, (), self.rounds, self.seed)

    def init_client(self, seed: int) -> ClientState:
        return ClientState({"linear": torch.empty(0), "linear_weight": torch.zeros(1)})

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
            shared = {n: request.message[n].expand(count, -1) for n in ("linear", "linear_weight")}
            return self.size(group), ClientState(shared)
        everything = Rows(group.rows.inputs, group.rows.y, torch.tensor([0, len(group.rows.y)]))
        begun = {n: value[None] for n, value in self._trainer.init_client(0).method.items()}
        own = group.states.method | group.states.protocol
        group = group._replace(states=ClientState(begun | own))
        divided = self._divided(group, everything)
        replies, states = self._trainer.answer(request, divided)
        if request.purpose == "fit":
            again = request._replace(purpose="retrain")
            _, states = self._trainer.answer(again, divided._replace(states=states))
            method = states.method
            fitted = {
                "network": torch.where(method["stop"] > 0, method["best"], method["whole"]),
                "linear": method["linear"],
                "linear_weight": method["linear_weight"],
            }
            return fitted, self._kept(begun | own)  # "share" gives it to all clients
        return replies, self._kept(states.method)

    def _divided(self, group: Group, everything: Rows) -> Group:
        """The group with all samples as those of its only client, a part of them held out."""
        count = len(everything.y)
        order = randomness.stream(self.seed, 0, 0, randomness.SPLIT).permutation(count)
        held = torch.zeros(count, dtype=torch.bool)
        held[torch.from_numpy(order[: int(HELD_OUT * count)])] = True
        parts = []
        for mask in (~held, held):
            index = mask.nonzero().flatten()
            parts.append(everything.take(index, torch.tensor([0, len(index)])))
        return group._replace(rows=parts[0], validation=parts[1], everything=everything)

    def uses(self, message: Tensors, client_state: ClientState) -> Uses:
        linear = client_state.method["linear"]
        if not len(linear):
            return one_model(message["w"])
        weight = client_state.method["linear_weight"]
        return Uses(message["w"][None], torch.cat([1 - weight, weight]), linear)


ENTRIES = {"pooled": Pooled}
