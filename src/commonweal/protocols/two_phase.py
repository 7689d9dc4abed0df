"""two-phase: losses first, then updates that are already weighted, of which only the sum is used.

What secure aggregation needs: the server never looks at a single update. It equals averaging for
rules that do not need updates.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from commonweal.base.errors import ConfigError
from commonweal.base.tensors import State, Tensors
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
from commonweal.rules.rule import Decision, decide
from commonweal.training.client_state import ClientState


@dataclass(frozen=True, eq=False)
class TwoPhase(Averaging):
    """w <- server optimizer's step along sum_i v_i, v_i = weights_i (w - w_i) computed by client i

    Where a client does not answer the second request, the others' weights are scaled up.
    """

    always_evaluates: ClassVar[bool] = True  # losses come first

    def __post_init__(self) -> None:
        super().__post_init__()
        unavailable = self.rule.needs & {"update", "loss_after"}
        if unavailable:
            raise ConfigError(
                f"two-phase decides before clients train, but the rule needs {sorted(unavailable)}"
                ": use a rule of losses, such as 'aaggff-s', or the algorithm 'averaging'"
            )
        if self.client.init_shared(self.task):
            raise ConfigError(
                "two-phase shows the server sums only, but this client method needs each reply: "
                "use the algorithm 'averaging'"
            )

    def exchange(self, state: State, sample: Sample) -> Conversation:
        """Losses first, then weighted updates."""
        clients = sample.population.clients
        cohort = self.cohort(state, sample)
        reports = (yield Request(cohort, self.ask(state), "loss")).finite()
        if len(reports.clients) == 0:
            return unchanged(state, reports)
        decision = decide(self.rule, self.reports(reports, clients), state["rule"])
        each = {
            "weight": decision.weights.float(),
            "buffer_weight": buffer_weights(decision.weights).float(),
        }
        replies = yield Request(reports.clients, self.ask(state), "train", each)
        return self.finish(state, reports, decision, replies)

    def finish(
        self, state: State, reports: Replies, decision: Decision, replies: Replies
    ) -> Outcome:
        """Move the model along the sum of what arrived."""
        replies = self.decode(replies.finite())
        failed = reports.failed | replies.failed
        diverged = reports.diverged | replies.diverged
        answered = torch.isin(reports.clients, replies.clients)
        weights = decision.weights.double()
        arrived = weights[answered].sum() / weights.sum()
        if not arrived > 0:  # nobody answered, or clients of weight 0 only
            return unchanged(state, Replies(replies.clients, {}, failed, diverged))
        n = self.task.num_trainable
        total = replies.values["update"].sum(0)
        buffers = buffer_weights(weights)[answered].sum()
        direction = torch.cat([total[:n] / arrived, total[n:] / buffers]).to(total.dtype)
        following = self.move(state, direction, weights[answered]) | {"rule": decision.state}
        return Outcome(
            following,
            reports.clients[answered],
            weights[answered] / arrived,
            failed | decision.dropped,
            decision.capped,
            decision.warnings,
            diverged,
        )

    def answer(self, request: Request, group: Group) -> tuple[Tensors, ClientState]:
        if request.purpose == "loss":
            return self.report(request.message, group) | self.size(group), group.states
        if request.purpose != "train":
            return super().answer(request, group)
        # Channels come first: a client clips what it computed, and then weighs it.
        replies, states = self.trained(request, group)
        return {"update": replies["update"] * self._factors(group)}, states

    def _factors(self, group: Group) -> Tensor:
        """Return the factors (S, p) of the coordinates of an encoded update."""
        is_buffer = torch.arange(self.task.size) >= self.task.num_trainable
        mask = self.client.private(self.task)
        if mask is not None:
            is_buffer = is_buffer[~mask]
        weight = group.each["weight"][:, None]
        return torch.where(is_buffer, group.each["buffer_weight"][:, None], weight)


ENTRIES = {"two-phase": TwoPhase}
