"""A protocol between a server and clients: `ask` gives what to send, clients `work`, `tell` gives the next server.

Nothing is remembered in between, so the server value is the checkpoint, and any engine can carry the messages.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from commonweal.federation import Rows
from commonweal.local import Lift, Local, Tensors, measure, measure_each, plan, visit
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
        w, local = task.initial.clone(), cast(Any, self.local)
        server = {
            "round": torch.tensor(1),
            "w": w,
            "rule": self.rule.init(clients),
            "step": self.step.init(w[: task.trained]),
        }
        return server | ({"shared": local.share(task)} if hasattr(local, "share") else {})

    def ask(self, server: Server) -> Tensors:
        """What every client of the cohort is sent."""
        return {"w": server["w"], "round": server["round"], **server.get("shared", {})}

    @property
    def personal(self) -> Callable[[Task, Tensors, Tensors], Tensor] | None:
        """What a client is served with, from what it is sent and keeps; None: the server's model, as everyone."""
        return getattr(self.local, "personal", None)

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
        private = self.local.private(task)
        losses, scores = (
            measure(task, seen["w"], rows, ids)
            if private is None  # one model for all: one pass
            else measure_each(task, self._received(task, seen, kept, ids, lift), rows, ids, lift)
        )
        planned = plan(self.local, task, rows, ids, streams)
        replies, after = visit(self.local, task, seen, kept, rows, planned, lift)
        if getattr(self.rule, "needs_after", False):
            update = _everywhere(replies["update"], private)
            trained = (seen["w"] if private is None else self._received(task, seen, after, ids, lift)) - update
            each = [measure(task, w, rows, ids[k : k + 1])[0] for k, w in enumerate(trained)]
            replies = replies | {"after": torch.cat(each)}
        replies = replies | {"loss": losses, "score": scores, "size": rows.sizes[ids]}
        return replies, sound(kept, after, replies["update"])

    def _received(self, task: Task, seen: Tensors, kept: Tensors, ids: Tensor, lift: Lift) -> Tensor:
        """What each client makes of the received model with its own part of it, (S, d)."""
        models: Tensor = lift(lambda k, _: self.local.start(task, seen, k)["w"], (0, 0))(kept, ids)
        return models

    def tell(self, task: Task, server: Server, ids: Tensor, replies: Tensors, clients: int) -> Told:
        """Weigh the reports and move the model. What is not finite is dropped; with nothing left, nothing moves."""
        dropped = _unusable(ids, replies)
        if dropped:
            good = torch.tensor([k for k, i in enumerate(ids.tolist()) if i not in dropped], dtype=torch.int64)
            ids, replies = ids[good], _of(replies, good)
        following = server | {"round": server["round"] + 1}
        if len(ids) == 0:
            return Told(following, ids, torch.empty(0, dtype=torch.float64), dropped, [])
        update, trained, private = replies["update"], task.trained, self.local.private(task)
        travels = trained if private is None else int((~private[:trained]).sum())  # trained coordinates in an update
        size, loss, score = (replies[name] for name in ("size", "loss", "score"))
        reports = Reports(ids, size, loss, score, update[:, :travels], clients, replies.get("after"))
        weights, state = self.rule(reports, server["rule"])
        w, moved = server["w"], weights.to(update.dtype)
        # Statistics are averaged, whatever the server's optimiser makes of gradients and the rule of signs and scale:
        # a variance must stay one.
        share = moved.clamp(min=0) if (moved > 0).any() else torch.ones_like(moved)
        mean = share / share.sum() @ update[:, travels:]
        whole = _everywhere(torch.cat([moved @ update[:, :travels], mean]), private)
        trainable, step = self.step(w[:trained], whole[:trained], server["step"])
        following |= {"w": torch.cat([trainable, w[trained:] - whole[trained:]]), "rule": state, "step": step}
        extra, local = cast(Any, self.rule), cast(Any, self.local)
        rejected = extra.rejected(reports) if hasattr(extra, "rejected") else {}
        if hasattr(local, "absorb"):
            believed = torch.tensor([i not in rejected for i in ids.tolist()])
            heard = _of(replies, believed) if rejected else replies  # a copy of all updates, for the few who need it
            following["shared"] = local.absorb(server["shared"], heard, clients)
        dropped |= rejected
        notes = extra.notes(reports, state) if hasattr(extra, "notes") else []
        return Told(following, ids, weights.double(), dropped, notes)

    def model(self, task: Task, server: Server) -> Tensor:
        """The model that the server would give away: the last one, or what its step makes of all."""
        w: Tensor = server["w"]
        if not hasattr(self.step, "output"):
            return w
        return torch.cat([self.step.output(w[: task.trained], server["step"]), w[task.trained :]])


def _everywhere(part: Tensor, private: Tensor | None) -> Tensor:
    """What travelled, (..., p), among all coordinates, (..., d): nothing at the private ones."""
    if private is None:
        return part
    whole = part.new_zeros(*part.shape[:-1], len(private))
    whole[..., ~private] = part
    return whole


def _of(replies: Tensors, which: Tensor) -> Tensors:
    """The replies of some of the clients."""
    return {name: value[which] for name, value in replies.items()}


def finite(value: Tensor) -> Tensor:
    """Which clients' values (S, ...) are finite throughout, (S,)."""
    flat = value.reshape(len(value), -1)
    good = torch.isfinite(flat.sum(1))  # one cheap pass; a sum may overflow though its terms are finite
    return good if good.all() else torch.isfinite(flat).all(1)


def sound(before: Tensors, after: Tensors, update: Tensor) -> Tensors:
    """What clients keep: those whose training diverged keep what they had, or they could never take part again."""
    if not after:
        return after
    each = [update, *(value for value in after.values() if value.is_floating_point())]
    good = torch.stack([finite(value) for value in each]).all(0)  # (S,)
    if good.all():
        return after
    return {
        name: torch.stack([(a if g else b) for a, b, g in zip(value, before[name], good, strict=True)])
        for name, value in after.items()
    }


def _unusable(ids: Tensor, replies: Tensors) -> dict[int, str]:
    """The clients with a reply that is not finite, and which. A score may have no value (AUROC of a single class)."""
    why: dict[int, str] = {}
    for name, value in {"loss": replies["loss"], **replies}.items():
        if not value.is_floating_point() or name == "score":
            continue
        words = "loss is not a finite number" if name == "loss" else f"{name} is not finite: local training diverged"
        for client in ids[~finite(value)].tolist():
            why.setdefault(client, f"its {words}")
    return why
