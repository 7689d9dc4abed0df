"""two-phase: losses first, then updates that are already weighted, of which only the sum is used.

What secure aggregation needs: the server never looks at a single update. It equals averaging for
rules that do not need updates. With `secure`, Flower masks the updates of its clients.
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
from commonweal.protocols.sums import UNAVAILABLE, collected, rules_of_losses
from commonweal.rules.rule import Decision, decide
from commonweal.training.client_state import ClientState

NEARLY_ALL = 0.9  # of the weight: a sum in which one client has more is nearly its update


@dataclass(frozen=True, eq=False)
class TwoPhase(Averaging):
    """w <- server optimizer's step along sum_i v_i, v_i = weights_i (w - w_i) computed by client i

    Where a client does not answer the second request, the others' weights are scaled up.

    secure: clients on Flower mask their updates, so that the server sees only their sum (SecAgg+).
        The simulator adds them up without masks
    """

    secure: bool = False

    always_evaluates: ClassVar[bool] = True  # losses come first

    def __post_init__(self) -> None:
        super().__post_init__()
        unavailable = self.rule.needs & UNAVAILABLE
        if unavailable:
            raise ConfigError(
                f"two-phase decides before clients train, but the rule needs {sorted(unavailable)}"
                f": use a rule of losses, which are {', '.join(rules_of_losses())}, or grouped or "
                "excess around one of them, or the algorithm 'averaging'"
            )
        if self.client.init_shared(self.task):
            raise ConfigError(
                "two-phase shows the server sums only, but this client method needs each reply: "
                "use the algorithm 'averaging'"
            )
        collects = collected(self.client, self.rounds) if self.secure else ""
        if collects:
            raise ConfigError(
                "secure = true shows the server sums only, but this client method collects each "
                f"client's reply ({collects}): use 'sgd', 'ditto' or 'fedper', or secure = false"
            )

    @property
    def masked(self) -> frozenset[str]:
        return frozenset({"train"}) if self.secure else frozenset()

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
        replies = yield Request(reports.clients, self.ask(state), "train", each, self.secure)
        return self.finish(state, reports, decision, replies)

    def finish(
        self, state: State, reports: Replies, decision: Decision, replies: Replies
    ) -> Outcome:
        """Move the model along the sum of what arrived."""
        replies = self.decode(_finite_sum(replies) if self.secure else replies.finite())
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
        warnings = decision.warnings
        share = float((weights[answered].abs() / weights[answered].abs().sum()).max())
        if self.secure and share > NEARLY_ALL:
            warnings += (f"{share:.0%} of the weight is one client's: the sum shows its update",)
        return Outcome(
            following,
            reports.clients[answered],
            weights[answered] / arrived,
            failed | decision.dropped,
            decision.capped,
            warnings,
            diverged,
        )

    def answer(self, request: Request, group: Group) -> tuple[Tensors, ClientState]:
        if request.purpose == "loss":
            return self.report(request.message, group) | self.size(group), group.states
        if request.purpose != "train":
            replies, states = super().answer(request, group)
            # Of the requests of a client method only silent ones are left.
            return ({} if self.secure and request.purpose != "describe" else replies), states
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


def _finite_sum(replies: Replies) -> Replies:
    """The sum over the replies, or nobody's where it is not finite: who spoils it is not known."""
    if all(value.isfinite().all() for value in replies.values.values()):
        return replies
    reason = "the sum of the updates is not finite: local training diverged"
    lost = dict.fromkeys(replies.clients.tolist(), reason)
    diverged = replies.diverged | lost.keys()
    return Replies(replies.clients[:0], {}, replies.failed | lost, diverged)


ENTRIES = {"two-phase": TwoPhase}
