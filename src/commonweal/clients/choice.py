"""choice: every client takes its local, the global or the fine-tuned model, whichever is better.

What `commonweal choose` does with finished runs of `alone`, `sgd` and `fine-tune` happens inside
one run, and on Flower at the clients' own nodes. A client leaves its local models only for one that
is better on validation samples that none of them was trained on. Its reply says which one it took,
and nothing else: with a secure sum the server learns only how many took which. Yu et al., Salvaging
Federated Learning by Local Adaptation, 2020, compare the same models.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from commonweal.base.errors import ConfigError
from commonweal.base.tensors import Tensors
from commonweal.clients.evidence import (
    ALONE,
    RIGHT_OR_WRONG,
    Evidence,
    How,
    choose_by_client,
    improvements,
    largest_loss,
)
from commonweal.clients.fine_tune import Tuned, tuning_parameters
from commonweal.clients.local_model import LocalTraining, check_local
from commonweal.data.rows import Rows
from commonweal.task.task import Task
from commonweal.task.uses import Uses, one_model
from commonweal.task.vectorize import single
from commonweal.training.ask import Ask
from commonweal.training.client import Client, Notes, Requests, ToAll, sgd_parameters
from commonweal.training.evaluation import evaluate_rows_by_models

NOBODY_LEAVES = (
    "no client takes the global or the fine-tuned model; choosing needs validation samples: set "
    "validation = 0.2 where there are none"
)


@dataclass(frozen=True)
class ChoiceClient(LocalTraining):
    """one of p_local, p_global and p_tuned, chosen on the client's validation samples

    p_local is that of `alone`. The local models stay unless another has a lower loss: with
    how = "safe" in expectation, with 95 % confidence by Student's t; with "likely" on average; with
    "proved" whatever the distribution, with the confidence `level`, for classification only.
    Without validation samples everybody keeps them, and the run says so. Costs about as much
    training as `blend`.

    how: how much evidence a client needs before it leaves its local models
    level: the confidence level of "proved"
    tune_epochs: epochs of fine-tuning; tune_lr: their learning rate (none: that of the round)
    trees: whether the local models have a forest, for tables (as of `alone`)
    The others are those of sgd, for all models
    """

    candidates: ClassVar[tuple[str, ...]] = (ALONE, "global", "tuned")

    how: How = "safe"
    level: float = 0.95
    tune_epochs: int | float = 5
    tune_lr: float | None = None

    takes_trees = True

    def check(self, task: Task, rounds: int) -> None:
        choose_by_client([], self.how, level=self.level)  # raises where they are wrong
        if not task.is_network:
            check_local(task, "choice")
        if task.loss == "cox" or (self.how == "proved" and task.loss == "squared"):
            raise ConfigError(
                f"client 'choice' with how = {self.how!r} has no evidence by sample for the loss "
                f"{task.loss!r}: use blend"
            )

    # The conversation

    def after(self, round: int, rounds: int) -> Requests:
        notes = yield from super().after(round, rounds)
        if round < rounds:
            return notes
        replies = yield ToAll("choose")
        if not replies:
            return notes
        taken = replies["taken"].sum(0)
        return Notes(taken, () if taken[1:].any() else (NOBODY_LEAVES,))

    def answer(self, ask: Ask) -> tuple[Tensors, Tensors]:
        if ask.purpose == "train":
            states = self.trained(ask)
            return ask.train(Client(**sgd_parameters(self)), states=states)
        if ask.purpose == "choose":
            taken = self.chosen(ask)
            return {"taken": taken}, ask.states | {"taken": taken}
        replies, states = super().answer(ask)
        if ask.purpose == "tune" and ask.task.is_network:
            tuned = Tuned(**tuning_parameters(self, self.tune_epochs, self.tune_lr))
            states = ask.train_at_home(tuned, states=states)
        return replies, states

    def chosen(self, ask: Ask) -> Tensor:
        """Return each client's choice on its validation samples, as one-hot rows (S, 3)."""
        candidates = self.candidates if ask.task.is_network else self.candidates[:2]
        taken = torch.zeros(len(ask.ids), len(self.candidates))
        validation = ask.samples.validation
        if validation is None:  # there is nothing to choose on
            taken[:, self.candidates.index(ALONE)] = 1.0
            return taken
        for k, rows in enumerate(ask.of_each(validation)):
            state = {name: value[k] for name, value in ask.states.items()}
            evaluated = {}
            for name in candidates:
                uses = self.uses_of(ask.task, name, ask.message, state)
                evaluated[name] = _by_sample(ask, uses, rows)
            outputs = ask.outputs(ask.message["w"], rows)  # (N, ..., classes)
            classes = outputs.shape[-1] if outputs.ndim > 1 else 2
            taken[k, self.candidates.index(self.choose(ask.task, evaluated, classes))] = 1.0
        return taken

    # What a client keeps and uses

    def init_client(self, task: Task, seed: int) -> Tensors:
        local = self.init_local(task)
        return local | {
            "tuned": local[self.local].clone(),
            "is_tuned": torch.zeros(1),
            "taken": torch.tensor([1.0, 0.0, 0.0]),
        }

    def uses_of(self, task: Task, name: str, message: Tensors, state: Tensors) -> Uses:
        """Return the models and weights that a client would use with a candidate."""
        if name == ALONE:
            return self.local_uses(task, state)
        return one_model(message["w"] if name == "global" else state["tuned"])

    def choose(self, task: Task, evaluated: Mapping[str, Tensor], classes: int) -> str:
        """The candidate that the client takes.

        evaluated: the loss and the main score (N, 2) of each validation sample, by candidate
        """
        by_score = task.score in RIGHT_OR_WRONG
        evidence = {}
        for name, values in evaluated.items():
            losses, scores = values.numpy().T
            evidence[name] = Evidence(losses, scores if by_score else None)
        bound = 1.0 if by_score else largest_loss(classes)
        compared = improvements(evidence, self.how == "proved", bound)
        (taken,) = choose_by_client([compared], self.how, level=self.level, bound=bound)
        return taken

    def uses(self, task: Task, message: Tensors, state: Tensors) -> Uses:
        local = self.local_uses(task, state)
        networks = len(local.models)
        taken = state["taken"] if len(local.weights) else torch.eye(3)[1]
        partners = (message["w"], state["tuned"]) if task.is_network else (message["w"],)
        own = taken[:1] * local.weights
        weights = torch.cat([own[:networks], taken[1 : 1 + len(partners)], own[networks:]])
        return Uses(torch.cat([local.models, torch.stack(partners)]), weights, local.others)


def _by_sample(ask: Ask, uses: Uses, rows: Rows) -> Tensor:
    """The loss and the main score (N, 2) of every sample of a client by what it uses."""
    stacked = uses.map(lambda value: value[None])
    task, first = ask.task.reporting, torch.tensor([0])
    losses, stats = evaluate_rows_by_models(task, stacked, rows, first, single)
    return torch.stack([losses.double(), stats[task.score][:, 0].double()], 1)


ENTRIES = {"choice": ChoiceClient}
