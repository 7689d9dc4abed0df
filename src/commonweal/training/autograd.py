"""The reference trainer: gradients by autograd, for any model and any objective."""

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import torch
from torch import Tensor, nn

from commonweal.base.tensors import Tensors
from commonweal.data.federation import Rows
from commonweal.data.samples import Inputs
from commonweal.training.dense import Features
from commonweal.training.memory_format import channels_last
from commonweal.training.objective import Objective, Value, objective_value
from commonweal.training.optimizers import Optimizer
from commonweal.training.task import Batch, Task
from commonweal.training.vectorize import Vectorize

__all__ = ["AutogradSteps", "AutogradTrainer"]


@dataclass(frozen=True, eq=False)
class Head:
    """The last layers of a model, where a phase trains no others.

    What the layers below give for a sample is computed once.

    Attributes:
        body: The layers below.
        task: The last layers, with the loss.
        features: What the body gives for each sample.
    """

    body: Task
    task: Task
    features: Features

    @classmethod
    def of(
        cls, task: Task, objective: Objective, mask: Tensor | None, rows: Rows, features: Features
    ) -> "Head | None":
        """The layers that a mask (d,) trains; None: these are not the last layers of a stack."""
        if mask is None or objective != Objective() or rows.transform is not None:
            return None
        if not isinstance(rows.inputs, Tensor) or task.draws_inside(rows.inputs):
            return None
        parts = _divided(task, mask)
        if parts is None:
            return None
        body, last = parts
        return cls(channels_last(body, rows.inputs), last, features)

    def outputs(self, w: Tensor, x: Tensor) -> Tensor:
        """What the bodies (S, p) give for samples (S, B, ...)."""
        with torch.no_grad():
            pairs = zip(w, x, strict=True)
            return torch.stack([self.body.raw_outputs(own, samples) for own, samples in pairs])


@lru_cache(maxsize=16)
def _divided(task: Task, mask: Tensor) -> tuple[Task, Task] | None:
    """A stack below and above the first layer that a mask (d,) trains; None: it is not such one.

    Remembered by the tensor, not by its values: masks are never changed.
    """
    module = task.module
    if type(module) is not nn.Sequential or task.output is not None:
        return None
    counts = [sum(p.numel() for p in layer.parameters()) for layer in module.children()]
    if task.size != sum(counts):  # buffers, or parameters that are not trained
        return None
    begin = int((~mask).sum())
    below = [sum(counts[:k]) for k in range(len(counts))]
    if begin == 0 or mask[:begin].any() or begin not in below:
        return None
    k = max(k for k, size in enumerate(below) if size == begin)
    flat = any(type(layer) is nn.Flatten for layer in list(module.children())[:k])
    if type(module[k]) is not nn.Linear or not flat:
        return None
    return Task(module[:k], implied=True), replace(task, module=module[k:])


@dataclass(frozen=True, eq=False)
class AutogradTrainer:
    """Evaluates an objective by torch, for all clients of a group at once or for one.

    Attributes:
        task: The model and its loss.
        objective: What is minimised.
        optimizer: How vectors move.
        mask: The coordinates (d,) that move. None: all of them.
        vectorize: How functions of one client are run for a group.
        head: The layers that move, where the others' outputs are computed once.
    """

    task: Task
    objective: Objective
    optimizer: Optimizer
    mask: Tensor | None
    vectorize: Vectorize
    head: Head | None = None

    def on(self, vectors: Tensors, memory: dict[str, Tensors], start: int) -> "AutogradSteps":
        """The steps of neighbouring clients from position `start` on, in place.

        Args:
            vectors: The clients' vectors (S, ...) by name.
            memory: What the optimizer remembers of each vector.
            start: The position of the first client.
        """
        if self.head is None:
            return AutogradSteps(self, vectors, memory, start)
        n = self.head.task.size
        remembered = {key: value[:, -n:] for key, value in memory["w"].items()}
        last = {"w": vectors["w"][:, -n:]}
        trainer = replace(self, task=self.head.task, mask=None)
        return AutogradSteps(trainer, last, {"w": remembered}, start, vectors["w"][:, :-n])


@dataclass(frozen=True, eq=False)
class AutogradSteps:
    """The steps of some clients."""

    trainer: AutogradTrainer
    vectors: Tensors  # (S, ...)
    memory: dict[str, Tensors]  # of the optimizer, by vector
    start: int  # the position of the first client
    body: Tensor | None = None  # (S, p) the layers below those that move

    def inputs(self, rows: Rows, index: Tensor, epoch: int) -> Inputs:
        """The samples (S, B, ...) with these numbers (S, B), or what the body gives for them."""
        head = self.trainer.head
        if head is None or self.body is None:
            return rows.inputs[index]
        if epoch:
            return head.features.read(index, self.start)
        outputs = head.outputs(self.body, rows.x[index])
        head.features.write(index, self.start, outputs)
        return outputs

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
