"""pooled: one model trained on all clients' rows in one place.

The ceiling that a federation is measured against, not a federation: it needs all rows in one
process, so only the simulator can run it. Each round is the client method's work (its epochs and
batches) on all training rows together; the scores are each client's, as always.
"""

from dataclasses import dataclass, field

import torch

from commonweal.algorithms.algorithm import Conversation, Group, Request, Sample
from commonweal.algorithms.averaging import Averaging
from commonweal.base.errors import ConfigError
from commonweal.base.tensors import State, Tensors
from commonweal.channels.channel import Channel
from commonweal.data.federation import Rows
from commonweal.rules.fedavg import FedAvg
from commonweal.rules.rule import Rule
from commonweal.training.client_state import ClientState

__all__ = ["Pooled"]


@dataclass(frozen=True, eq=False)
class Pooled(Averaging):
    """w <- server optimizer's step along w - w', w' trained on all rows as if of one client"""

    rule: Rule = field(default=FedAvg(), init=False)
    channels: tuple[Channel, ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.client.personalizes:
            raise ConfigError(
                f"pooled trains one model for all, but {type(self.client).__name__} gives clients "
                "their own: take a client method without own models, such as 'sgd'"
            )

    def round(self, state: State, sample: Sample) -> Conversation:
        """Ask the first client, in whose place all rows are trained on."""
        replies = yield Request(torch.zeros(1, dtype=torch.int64), self.ask(state))
        return self.tell(state, replies, sample.population.clients)

    def answer(self, request: Request, group: Group) -> tuple[Tensors, ClientState]:
        everything = Rows(group.rows.x, group.rows.y, torch.tensor([0, len(group.rows.y)]))
        return super().answer(request, group._replace(rows=everything))


ENTRIES = {"pooled": Pooled}
