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
from commonweal.clients.fine_tune import Tuned, tuning_parameters
from commonweal.clients.local_model import LocalTraining
from commonweal.training import choice
from commonweal.training.choice import ALONE, RIGHT_OR_WRONG, Evidence, How
from commonweal.training.client import Client, HoldsOut, Stage, sgd_parameters
from commonweal.training.task import Task
from commonweal.training.uses import Uses, one_model


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
    The others are those of sgd, for all models
    """

    closing = ("tune", "choose")
    candidates: ClassVar[tuple[str, ...]] = (ALONE, "global", "tuned")

    how: How = "safe"
    level: float = 0.95
    tune_epochs: int | float = 5
    tune_lr: float | None = None

    def check(self, task: Task, rounds: int) -> None:
        choice.choose([], self.how, level=self.level)  # raises where they are wrong
        if task.loss == "cox" or (self.how == "proved" and task.loss == "squared"):
            raise ConfigError(
                f"client 'choice' with how = {self.how!r} has no evidence by sample for the loss "
                f"{task.loss!r}: use blend"
            )

    @property
    def holds_out(self) -> HoldsOut:
        return "training"

    def stages(
        self, task: Task, purpose: str, message: Tensors, validates: bool
    ) -> tuple[Stage, ...]:
        local = self.local_stages(purpose, message)
        if purpose == "tune":
            tuned = Tuned(**tuning_parameters(self, self.tune_epochs, self.tune_lr))
            return (*local, Stage(tuned, "all"))
        if purpose != "train":
            return local
        return (*local, Stage(Client(**sgd_parameters(self)), "all"))

    def init_client(self, task: Task, seed: int) -> Tensors:
        return self.init_local(task) | {
            "tuned": task.initial.clone(),
            "is_tuned": torch.zeros(1),
            "taken": torch.tensor([1.0, 0.0, 0.0]),
        }

    def uses_of(self, name: str, message: Tensors, state: Tensors) -> Uses:
        """What the client would use with a candidate."""
        if name == ALONE:
            return self.local_uses(state)
        return one_model(message["w"] if name == "global" else state["tuned"])

    def choose(self, task: Task, evaluated: Mapping[str, Tensor]) -> str:
        """The candidate that the client takes.

        evaluated: the loss and the main score (N, 2) of each validation sample, by candidate
        """
        by_score = task.score in RIGHT_OR_WRONG
        evidence = {}
        for name, values in evaluated.items():
            losses, scores = values.numpy().T
            evidence[name] = Evidence(losses, scores if by_score else None)
        bound = 1.0 if by_score else choice.largest_loss(2)
        compared = choice.improvements(evidence, self.how == "proved", bound)
        (taken,) = choice.choose([compared], self.how, level=self.level, bound=bound)
        return taken

    def uses(self, task: Task, message: Tensors, state: Tensors) -> Uses:
        local = self.local_uses(state)
        taken = state["taken"]
        models = torch.stack([local.models[0], message["w"], state["tuned"]])
        own = taken[:1] * local.weights
        weights = torch.cat([own[:1], taken[1:], own[1:]])
        return Uses(models, weights, local.linear)


ENTRIES = {"choice": ChoiceClient}
