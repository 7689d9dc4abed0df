"""Answers of a client method: to a request, with the samples and states of those it asks.

`Client.answer` speaks of a group of clients, of which every value has an axis (S, ...): training
many small clients one by one would take many times as long.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from commonweal.base.randomness import Streams
from commonweal.base.tensors import Tensors, select
from commonweal.data.rows import Rows
from commonweal.task.task import Task
from commonweal.task.uses import Uses
from commonweal.task.vectorize import Vectorize
from commonweal.training.batches import schedule
from commonweal.training.client import Client
from commonweal.training.client_state import keep_finite
from commonweal.training.evaluation import Evaluation, evaluate_models
from commonweal.training.local import Trained, train_locally

Role = Literal["train", "kept", "held", "validation", "everything"]
Wanted = Literal["train_loss", "model"]  # what the server wants besides the update


@dataclass(frozen=True, eq=False)
class Samples:
    """Clients' samples by what they are for, read when they are touched.

    Args:
        read: Gives the samples of a role; None: there are none.
    """

    read: Callable[[Role], Rows | None]

    @classmethod
    def of(cls, train: Rows, **others: Rows) -> "Samples":
        """Samples that are in memory, by role."""
        return cls({"train": train, **others}.get)

    def noting(self, sizes: list[Tensor]) -> "Samples":
        """These samples; the clients' numbers of them are appended whenever they are read."""

        def read(role: Role) -> Rows | None:
            rows = self.read(role)
            if rows is not None:
                sizes.append(rows.sizes)
            return rows

        return Samples(read)

    @property
    def train(self) -> Rows:
        """The training samples."""
        rows = self.read("train")
        assert rows is not None
        return rows

    @property
    def kept(self) -> Rows:
        """The training samples without `held`."""
        rows = self.read("kept")
        return self.train if rows is None else rows

    @property
    def held(self) -> Rows | None:
        """A fifth of the training samples, which a method may take for validation."""
        return self.read("held")

    @property
    def validation(self) -> Rows | None:
        """The run's validation samples, which are no training samples."""
        return self.read("validation")

    @property
    def everything(self) -> Rows:
        """The training and the validation samples."""
        rows = self.read("everything")
        return self.train if rows is None else rows


@dataclass(frozen=True, eq=False)
class Ask:
    """A request to some clients (S,), and what they need to answer it.

    Attributes:
        task: The model that is trained.
        purpose: "train" in a round, or the purpose of a request of `Client.after`.
        message: What the server sent.
        states: What the method keeps for each client (S, ...).
        samples: Of the clients.
        ids: The positions (S,) of the clients in `samples`.
        streams: The clients' random numbers. Each training draws as if it were the only one.
        vectorize: How the functions of one client are run for the group.
        at_once: The numbers that clients who are trained together may hold. None: any.
        wants: What replies of `train` have besides the update.
    """

    task: Task
    purpose: str
    message: Tensors
    states: Tensors
    samples: Samples
    ids: Tensor
    streams: Streams
    vectorize: Vectorize
    at_once: int | None = None
    wants: frozenset[Wanted] = frozenset()

    @property
    def round(self) -> int:
        """The round, from 1."""
        return int(self.message["round"])

    @property
    def rounds(self) -> int:
        """The rounds of the run."""
        return int(self.message["rounds"])

    @property
    def sizes(self) -> Tensor:
        """The numbers (S,) of training samples."""
        return self.samples.train.sizes[self.ids]

    def of_each(self, rows: Rows) -> list[Rows]:
        """The samples of each client."""
        return [rows.client(client) for client in self.ids.tolist()]

    # Training

    def train(
        self, client: Client, rows: Rows | None = None, states: Tensors | None = None
    ) -> tuple[Tensors, Tensors]:
        """Train from the message for a round.

        Clients whose numbers are not finite afterwards keep their states.

        Args:
            client: What is minimised, and how.
            rows: The samples; None: the training samples.
            states: The states (S, ...) before; None: those of the request.

        Returns:
            The replies (S, ...), with "update", and the next states (S, ...).
        """
        states = self.states if states is None else states
        rows = self.samples.train if rows is None else rows
        trained = self._train(client, rows, states, self._once, self.wants)
        replies = trained.replies
        if "model" in self.wants:
            replies["model"] = trained.models
        return replies, trained.states

    def train_at_home(
        self,
        client: Client,
        rows: Rows | None = None,
        states: Tensors | None = None,
        rounds: Tensor | None = None,
    ) -> Tensors:
        """Train models that stay with the clients. Returns the next states (S, ...).

        Args:
            client: What is minimised, and how.
            rows: The samples; None: the training samples.
            states: The states (S, ...) before; None: those of the request.
            rounds: How many rounds (S,) each client trains, or 0; None: one.
        """
        states = self.states if states is None else states
        rows = self.samples.train if rows is None else rows
        if rounds is None:
            rounds = self._once
        some = rounds.nonzero().flatten()
        if len(some) == 0:
            return states
        if len(some) == len(self.ids):
            return self._train(client, rows, states, rounds).states
        part = replace(self, ids=self.ids[some], streams=self.streams.of(some.tolist()))
        after = part._train(client, rows, select(states, some), rounds[some]).states
        return {n: states[n].index_copy(0, some, value) for n, value in after.items()}

    @property
    def _once(self) -> Tensor:
        """One round (S,) for each client."""
        return torch.ones(len(self.ids), dtype=torch.int64)

    def _train(
        self,
        client: Client,
        rows: Rows,
        states: Tensors,
        rounds: Tensor,
        wants: frozenset[Wanted] = frozenset(),
    ) -> Trained:
        """Train for so many rounds (S,). Clients that diverge keep their states."""
        plan = schedule(client, self.task, rows, self.ids, self.streams.begin(), rounds.numpy())
        trained = train_locally(
            client,
            self.task,
            self.message,
            states,
            rows,
            plan,
            self.vectorize,
            self.at_once,
            models="model" in wants,
            losses="train_loss" in wants,
        )
        after = keep_finite(states, trained.states, trained.replies["update"])
        return trained._replace(states=after)

    # Evaluation

    def uses(self, client: Client, states: Tensors) -> Uses:
        """The models (S, ...) that clients in these states (S, ...) predict with."""

        def uses_one(state: Tensors) -> Uses:
            return client.uses(self.task, self.message, state)

        uses: Uses = torch.vmap(uses_one)(states)
        return uses

    def evaluate(self, uses: Uses, rows: Rows) -> Evaluation:
        """Evaluate what each client uses (S, ...) on its own samples.

        Returns:
            The losses (S,) and the main scores (S,), NaN without samples.
        """
        sizes = rows.sizes[self.ids]
        some = sizes.nonzero().flatten()
        unknown = torch.full((len(self.ids),), torch.nan, dtype=torch.float64)
        whole = Evaluation(unknown, {self.task.score: unknown}, sizes)
        if len(some) == 0:
            return whole
        own = uses.map(lambda value: value[some])
        task = self.task.reporting
        part = evaluate_models(task, own, rows, self.ids[some], self.vectorize)
        return whole.updated(some, part) if len(some) < len(self.ids) else part

    def outputs(self, w: Tensor, rows: Rows) -> Tensor:
        """Return the outputs of a model (d,) for samples, (N, ...) on the CPU."""
        with torch.no_grad():
            return self.task.raw_outputs(w.to(rows.device), rows.inputs[:]).cpu()
