"""The reference trainer: gradients by autograd, for any model and any objective."""

from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor, nn

from commonweal.base.tensors import Tensors
from commonweal.data.rows import Rows
from commonweal.data.samples import Inputs
from commonweal.training.memory_format import channels_last
from commonweal.training.objective import Objective, Value, objective_value
from commonweal.training.task import Batch, Task
from commonweal.training.trainer import Features, Memory, Steps, Trainer
from commonweal.training.vectorize import Vectorize


@dataclass(frozen=True, eq=False)
class Head:
    """The last layers of a model, where a phase trains no others.

    What the layers below give for a sample is computed once.
    """

    body: Task  # the layers below
    task: Task  # the last layers, with the loss
    features: Features  # what the body gives for each sample

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
        outputs = []
        with torch.no_grad():
            for body, samples in zip(w, x, strict=True):
                outputs.append(self.body.raw_outputs(body, samples))
        return torch.stack(outputs)


@lru_cache(maxsize=16)
def _divided(task: Task, mask: Tensor) -> tuple[Task, Task] | None:
    """A stack below and above the first layer that a mask (d,) trains; None: it is not such one.

    Remembered by the tensor, not by its values: masks are never changed.
    """
    module = task.module
    if type(module) is not nn.Sequential or task.output is not None:
        return None
    begin = int((~mask).sum())  # of the part that is trained
    if begin == 0 or mask[:begin].any():
        return None
    parameters = 0
    first: int | None = None  # the last layer that begins there
    flat = False
    is_flat_below = False
    for k, layer in enumerate(module):
        if parameters == begin:
            first, is_flat_below = k, flat
        parameters += sum(value.numel() for value in layer.parameters())
        flat = flat or type(layer) is nn.Flatten
    if first is None or not is_flat_below or type(module[first]) is not nn.Linear:
        return None
    if task.size != parameters:  # buffers, or parameters that are not trained
        return None
    return Task(module[:first]), task.replace(module=module[first:])


@dataclass(frozen=True, eq=False)
class AutogradTrainer(Trainer):
    """Evaluates an objective by torch, for all clients of a group at once or for one."""

    task: Task
    vectorize: Vectorize
    head: Head | None = None  # the layers that move, where the others' outputs are computed once

    def on(self, vectors: Tensors, memory: Memory, start: int) -> "AutogradSteps":
        if self.head is None:
            return AutogradSteps(self, vectors, memory)
        n = self.head.task.size
        body, last = vectors["w"][:, :-n], vectors["w"][:, -n:]
        last_memory = {name: value[:, -n:] for name, value in memory["w"].items()}
        trainer = replace(self, task=self.head.task, mask=None)
        return HeadSteps(trainer, {"w": last}, {"w": last_memory}, self.head, body, start)


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
                    mask = self.trainer.mask
                    optimizer.step(self.vectors[name], grad, self.memory[name], mask)
            n = self.trainer.task.num_trainable
            for name, values in statistics.items():
                if values.shape[-1]:
                    self.vectors[name][:, n:] = values
        return means.detach()

    def _value(self, vectors: Tensors, x: Inputs, y: Tensor, weight: Tensor) -> Value:
        batch = Batch(x, y, weight)
        return objective_value(self.trainer.task, self.trainer.objective, vectors, batch)


@dataclass(frozen=True, eq=False)
class HeadSteps(AutogradSteps):
    """The steps of the last layers of some clients."""

    head: Head
    body: Tensor  # (S, p) the layers below those that move
    start: int  # the position of the first client

    def inputs(self, rows: Rows, index: Tensor, epoch: int) -> Tensor:
        def compute() -> Tensor:
            return self.head.outputs(self.body, rows.x[index])

        return self.head.features.get(index, self.start, epoch, compute)
