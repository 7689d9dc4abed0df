"""The reference trainer: gradients by autograd, for any model and any objective."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from commonweal.base.tensors import Tensors
from commonweal.data.federation import Rows
from commonweal.data.samples import Inputs
from commonweal.training.objective import Objective, Value, objective_value
from commonweal.training.optimizers import Optimizer
from commonweal.training.task import Batch, Task
from commonweal.training.vectorize import Vectorize

__all__ = ["AutogradSteps", "AutogradTrainer"]


@dataclass(frozen=True, eq=False)
class AutogradTrainer:
    """Evaluates an objective by torch, for all clients of a group at once or for one.

    Attributes:
        task: The model and its loss.
        objective: What is minimised.
        optimizer: How vectors move.
        mask: The coordinates (d,) that move. None: all of them.
        vectorize: How functions of one client are run for a group.
    """

    task: Task
    objective: Objective
    optimizer: Optimizer
    mask: Tensor | None
    vectorize: Vectorize

    def on(self, vectors: Tensors, memory: dict[str, Tensors], start: int) -> "AutogradSteps":
        """The steps of neighbouring clients from position `start` on, in place.

        Args:
            vectors: The clients' vectors (S, ...) by name.
            memory: What the optimizer remembers of each vector.
            start: The position of the first client.
        """
        return AutogradSteps(self, vectors, memory)


@dataclass(frozen=True, eq=False)
class AutogradSteps:
    """The steps of some clients."""

    trainer: AutogradTrainer
    vectors: Tensors  # (S, ...)
    memory: dict[str, Tensors]  # of the optimizer, by vector

    def inputs(self, rows: Rows, index: Tensor, epoch: int) -> Inputs:
        """The samples (S, B, ...) with these numbers (S, B)."""
        return rows.inputs[index]

    @cached_property
    def _trained(self) -> tuple[str, ...]:
        return self.trainer.objective.trained

    def __call__(self, batch: Batch, noise: Tensor, first: bool, losses: bool) -> Tensor:
        """Take a gradient step on batches (S, B, ...), in place.

        Args:
            batch: The clients' batches.
            noise: Their random numbers (S, draws).
            first: Whether it is the first step of the round.
            losses: Whether the batches' losses are asked for, which are known in any case.

        Returns:
            The mean losses (S,) of the batches, before the step.
        """
        trainer = self.trainer
        learned = trainer.objective.learned if first else ()
        names = (*self._trained, *learned)
        leaves = {name: self.vectors[name].detach().requires_grad_() for name in names}
        value = trainer.vectorize(self._value, (0, 0, 0, 0))
        total, statistics, means = value(self.vectors | leaves | {"noise": noise}, *batch)
        # Clients' losses are separate: one backward of the sum suffices.
        grads = torch.autograd.grad(total.sum(), list(leaves.values()), allow_unused=True)
        with torch.no_grad():
            for name, grad in zip(names, grads, strict=True):
                if grad is None:
                    grad = total.new_zeros(()).expand_as(leaves[name])
                if name in learned:
                    self.vectors[name].sub_(trainer.optimizer.lr * grad).clamp_(0, 1)
                else:
                    memory = self.memory[name]
                    trainer.optimizer.step(self.vectors[name], grad, memory, trainer.mask)
            for name, values in statistics.items():
                if values.shape[-1]:
                    self.vectors[name][:, trainer.task.num_trainable :] = values
        return means.detach()

    def _value(self, vectors: Tensors, x: Inputs, y: Tensor, weight: Tensor) -> Value:
        batch = Batch(x, y, weight)
        return objective_value(self.trainer.task, self.trainer.objective, vectors, batch)
