"""The reference trainer: gradients by autograd, for any model and any objective."""

from dataclasses import dataclass
from operator import itemgetter

import torch
from torch import Tensor

from commonweal.base.tensors import Tensors
from commonweal.data.samples import Inputs, Stacked
from commonweal.task.task import Batch, Task
from commonweal.task.vectorize import Vectorize
from commonweal.training.objective import Objective, Value, objective_value
from commonweal.training.trainer import Memory, Steps, Trainer


@dataclass(frozen=True, eq=False)
class AutogradTrainer(Trainer):
    """Evaluates an objective by torch, for all clients of a group at once or for one."""

    task: Task
    vectorize: Vectorize
    at_once: int | None  # samples of a group in one forward and backward pass; None: any number

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
        first_part, *others = self._parts(batch)
        vectors = self.vectors | leaves | {"noise": noise}
        means, statistics, grads = self._gradients(objective, vectors, leaves, first_part)
        for part in others:
            further = self._gradients(objective.of_samples, vectors, leaves, part)
            means += further[0]
            for name, grad in further[2].items():
                grads[name] = grads[name] + grad if name in grads else grad
        with torch.no_grad():
            for name, leaf in leaves.items():
                grad = grads.get(name, means.new_zeros(()).expand_as(leaf))
                if name in learned:  # a mixing coefficient
                    self.vectors[name].sub_(optimizer.lr * grad).clamp_(0, 1)
                else:
                    self._descend(name, grad)
            n = self.trainer.task.num_trainable
            for name, values in statistics.items():
                if values.shape[-1]:
                    self.vectors[name][:, n:] = values
        return means

    def _parts(self, batch: Batch) -> list[Batch]:
        """The parts of a batch (S, B, ...) of which memory holds the passes."""
        clients, samples = batch.weight.shape
        at_once = self.trainer.at_once
        columns = samples if at_once is None else max(1, at_once // clients)
        if columns >= samples:
            return [batch]
        x = batch.inputs
        assert isinstance(x, Tensor | Stacked)  # read before the step
        parts = []
        for begin in range(0, samples, columns):
            part = (slice(None), slice(begin, begin + columns))
            own = x[part] if isinstance(x, Tensor) else x.map(itemgetter(part))
            parts.append(Batch(own, batch.y[part], batch.weight[part]))
        return parts

    def _gradients(
        self, objective: Objective, vectors: Tensors, leaves: Tensors, batch: Batch
    ) -> tuple[Tensor, Tensors, Tensors]:
        """The mean losses (S,) of a batch, the statistics after it, and the gradients by name."""

        def value_of(vectors: Tensors, x: Inputs, y: Tensor, weight: Tensor) -> Value:
            return objective_value(self.trainer.task, objective, vectors, Batch(x, y, weight))

        value = self.trainer.vectorize(value_of, (0, 0, 0, 0))
        total, statistics, means = value(vectors, *batch)
        # Clients' losses are separate: one backward of the sum suffices.
        grads = torch.autograd.grad(total.sum(), tuple(leaves.values()), allow_unused=True)
        known = {name: grad for name, grad in zip(leaves, grads, strict=True) if grad is not None}
        return means.detach(), statistics, known

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
