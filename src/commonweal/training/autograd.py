"""The reference trainer: gradients by autograd, for any model and any objective."""

from dataclasses import dataclass

import torch
from torch import Tensor

from commonweal.base.tensors import Tensors
from commonweal.data.samples import Inputs
from commonweal.task.task import Batch, Task
from commonweal.task.vectorize import Vectorize
from commonweal.training.objective import Value, objective_value
from commonweal.training.trainer import Memory, Steps, Trainer


@dataclass(frozen=True, eq=False)
class AutogradTrainer(Trainer):
    """Evaluates an objective by torch, for all clients of a group at once or for one."""

    task: Task
    vectorize: Vectorize

    def on(self, vectors: Tensors, memory: Memory) -> "AutogradSteps":
        return AutogradSteps(self, vectors, memory)


@dataclass(frozen=True, eq=False)
class AutogradSteps(Steps):
    """The steps of some clients."""

    trainer: AutogradTrainer
    vectors: Tensors  # (S, ...)
    memory: Memory

    def __call__(self, batch: Batch, noise: Tensor, first: bool, losses: bool) -> Tensor:
        optimizer, objective = self.trainer.optimizer, self.trainer.objective
        learned = objective.learned if first else ()
        leaves = {}
        for name in (*objective.trained, *learned):
            leaves[name] = self.vectors[name].detach().requires_grad_()
        value = self.trainer.vectorize(self._value, (0, 0, 0, 0))
        total, statistics, means = value(self.vectors | leaves | {"noise": noise}, *batch)
        # Clients' losses are separate: one backward of the sum suffices.
        grads = torch.autograd.grad(total.sum(), tuple(leaves.values()), allow_unused=True)
        with torch.no_grad():
            for (name, leaf), grad in zip(leaves.items(), grads, strict=True):
                if grad is None:
                    grad = total.new_zeros(()).expand_as(leaf)
                if name in learned:  # a mixing coefficient
                    self.vectors[name].sub_(optimizer.lr * grad).clamp_(0, 1)
                else:
                    self._descend(name, grad)
            n = self.trainer.task.num_trainable
            for name, values in statistics.items():
                if values.shape[-1]:
                    self.vectors[name][:, n:] = values
        return means.detach()

    def _descend(self, name: str, grad: Tensor) -> None:
        """Take a step along the gradient of a vector. Its buffers are measured: they stay."""
        task, mask = self.trainer.task, self.trainer.mask
        vector, memory = self.vectors[name], self.memory[name]
        if vector.shape[-1] == task.size > task.num_trainable:
            trained = slice(task.num_trainable)
            vector, grad = vector[:, trained], grad[:, trained]
            memory = {key: value[:, trained] for key, value in memory.items()}
            mask = None if mask is None else mask[trained]
        self.trainer.optimizer.step(vector, grad, memory, mask)

    def _value(self, vectors: Tensors, x: Inputs, y: Tensor, weight: Tensor) -> Value:
        batch = Batch(x, y, weight)
        return objective_value(self.trainer.task, self.trainer.objective, vectors, batch)
