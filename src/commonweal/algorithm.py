"""A protocol between a server and clients: `ask` gives what to send, clients `work`, `tell` gives the next server.

Nothing is remembered in between, so the server value is the checkpoint, and any engine can carry the messages.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from commonweal.federation import Rows
from commonweal.local import Lift, Local, Tensors, measure, plan, visit
from commonweal.rule import Reports, Rule
from commonweal.server import ServerStep
from commonweal.task import Task

__all__ = ["Averaging"]

Server = dict[str, Any]  # nested dicts of tensors: what the server knows between two rounds


@dataclass(frozen=True)
class Setting:
    """What an algorithm may know of an experiment beside its own parameters and the clients' replies."""

    shape: tuple[int, ...]  # of a row
    outputs: int  # classes, where rows are classified
    loss: str
    rounds: int
    seed: int


class Told(NamedTuple):
    """What a round did: the next server, how much each of `ids` counted, and why others did not."""

    server: Server
    ids: Tensor  # (S',) the clients whose reports were used
    weights: Tensor  # (S',)
    dropped: dict[int, str]  # client -> reason
    notes: list[str]  # what a person should know of the round


class Algorithm(Protocol):
    def init(self, task: Task, clients: int) -> Server: ...

    def ask(self, server: Server) -> Tensors: ...

    def keep(self, task: Task, seed: int) -> Tensors: ...

    def work(
        self,
        task: Task,
        seen: Tensors,
        kept: Tensors,
        rows: Rows,
        ids: Tensor,
        streams: Sequence[np.random.Generator],
        lift: Lift,
    ) -> tuple[Tensors, Tensors]: ...

    def tell(self, task: Task, server: Server, ids: Tensor, replies: Tensors, clients: int) -> Told: ...

    def model(self, task: Task, server: Server) -> Tensor: ...


@dataclass(frozen=True)
class Averaging:
    """The protocol of everything that moves weights: a rule, a local objective and a server step, chosen freely."""

    rule: Rule
    local: Local
    step: ServerStep

    def init(self, task: Task, clients: int) -> Server:
        w = task.initial.clone()
        return {
            "round": torch.tensor(1),
            "w": w,
            "rule": self.rule.init(clients),
            "step": self.step.init(w[: task.trained]),
        }

    def ask(self, server: Server) -> Tensors:
        """What every client of the cohort is sent."""
        return {"w": server["w"], "round": server["round"]}

    def keep(self, task: Task, seed: int) -> Tensors:
        return self.local.keep(task, seed)

    def work(
        self,
        task: Task,
        seen: Tensors,
        kept: Tensors,
        rows: Rows,
        ids: Tensor,
        streams: Sequence[np.random.Generator],
        lift: Lift,
    ) -> tuple[Tensors, Tensors]:
        """A group's visit: the received model's loss and score on the training rows first, then local training."""
        losses, scores = measure(task, seen["w"], rows, ids)
        planned = plan(self.local, task, rows, ids, streams)
        replies, kept = visit(self.local, task, seen, kept, rows, planned, lift)
        if getattr(self.rule, "needs_after", False):
            trained = seen["w"] - replies["update"]
            each = [measure(task, w, rows, ids[k : k + 1])[0] for k, w in enumerate(trained)]
            replies = replies | {"after": torch.cat(each)}
        return replies | {"loss": losses, "score": scores, "size": rows.sizes[ids]}, kept

    def tell(self, task: Task, server: Server, ids: Tensor, replies: Tensors, clients: int) -> Told:
        """Weigh the reports and move the model. What is not finite is dropped; with nothing left, nothing moves."""
        dropped = _unusable(ids, replies)
        if dropped:
            good = torch.tensor([k for k, i in enumerate(ids.tolist()) if i not in dropped], dtype=torch.int64)
            ids, replies = ids[good], {name: value[good] for name, value in replies.items()}
        following = server | {"round": server["round"] + 1}
        if len(ids) == 0:
            return Told(following, ids, torch.empty(0, dtype=torch.float64), dropped, [])
        update, trained = replies["update"], task.trained
        size, loss, score = (replies[name] for name in ("size", "loss", "score"))
        reports = Reports(ids, size, loss, score, update[:, :trained], clients, replies.get("after"))
        weights, state = self.rule(reports, server["rule"])
        w, moved = server["w"], weights.to(update.dtype)
        trainable, step = self.step(w[:trained], moved @ update[:, :trained], server["step"])
        # Statistics are averaged, whatever the server's optimiser makes of gradients and the rule of their scale.
        statistics = w[trained:] - moved / moved.sum() @ update[:, trained:]
        following |= {"w": torch.cat([trainable, statistics]), "rule": state, "step": step}
        extra: Any = self.rule
        dropped |= extra.rejected(reports) if hasattr(extra, "rejected") else {}
        notes = extra.notes(reports, state) if hasattr(extra, "notes") else []
        return Told(following, ids, weights.double(), dropped, notes)

    def model(self, task: Task, server: Server) -> Tensor:
        """The model that the server would give away: the last one, or what its step makes of all."""
        w: Tensor = server["w"]
        if not hasattr(self.step, "output"):
            return w
        return torch.cat([self.step.output(w[: task.trained], server["step"]), w[task.trained :]])


def _unusable(ids: Tensor, replies: Tensors) -> dict[int, str]:
    loss = torch.isfinite(replies["loss"])
    update = torch.isfinite(replies["update"].sum(1))  # one cheap pass; a sum may overflow though its terms are finite
    if not update.all():
        update = torch.isfinite(replies["update"]).all(1)
    why = {}
    for client, good_loss, good_update in zip(ids.tolist(), loss.tolist(), update.tolist(), strict=True):
        if not good_loss:
            why[client] = "its loss is not a finite number"
        elif not good_update:
            why[client] = "its update is not finite: local training diverged"
    return why
