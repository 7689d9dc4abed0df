"""Local optimizers, in place. They follow torch.optim step by step."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from commonweal.base.tensors import Tensors

EPSILON = 1e-8  # of Adam


def step_decay(lr: float, factor: float, every: int, round: int) -> float:
    """The learning rate of round 1, 2, ...: multiplied by `factor` every `every` rounds."""
    return lr * factor ** ((round - 1) // every)


class Optimizer(NamedTuple):
    """The parameters of torch.optim.SGD, Adam or AdamW, and the steps.

    Steps are elementwise but for the norm of a gradient, which is over the last axis: vectors may
    have a leading client axis.
    """

    kind: Literal["sgd", "adam", "adamw"]
    lr: float
    momentum: float = 0.0  # of SGD
    weight_decay: float = 0.0  # decoupled for "adamw"
    clip: float | None = None  # the largest norm of a gradient, as clip_grad_norm_ has it
    betas: tuple[float, float] = (0.9, 0.999)  # of Adam

    @property
    def is_plain(self) -> bool:
        """True if a step is linear in the gradient."""
        return self.kind == "sgd" and self.clip is None

    def memory(self, v: Tensor) -> Tensors:
        """Return the optimizer's memory of a vector before its first step: zeros."""
        if self.kind != "sgd":
            zeros = torch.zeros_like(v)
            return {"t": torch.zeros_like(v[..., :1]), "m": zeros, "v": zeros.clone()}
        return {"velocity": torch.zeros_like(v)} if self.momentum else {}

    def step(self, v: Tensor, grad: Tensor, memory: Tensors, mask: Tensor | None = None) -> None:
        """Move a vector along its gradient. The vector and its memory are changed in place.

        mask: the coordinates (d,) that move; None: all of them
        """
        before = v
        if mask is not None:
            grad = grad * mask
            before = v.clone()
        if self.clip is not None:
            norm = grad.square().sum(-1, keepdim=True) ** 0.5
            grad = grad * (self.clip / (norm + 1e-6)).clamp(max=1)
        if self.weight_decay and self.kind != "adamw":
            grad = grad.add(v, alpha=self.weight_decay)
        if self.kind == "sgd":
            self._sgd(v, grad, memory)
        else:
            self._adam(v, grad, memory)
        if mask is not None:  # momentum and weight decay must not move the other part
            torch.where(mask, v, before, out=v)

    def _sgd(self, v: Tensor, grad: Tensor, memory: Tensors) -> None:
        if self.momentum:
            velocity = memory["velocity"]
            grad = torch.add(grad, velocity, alpha=self.momentum, out=velocity)
        v.sub_(grad, alpha=self.lr)

    def _adam(self, v: Tensor, grad: Tensor, memory: Tensors) -> None:
        if self.kind == "adamw":
            v.mul_(1 - self.lr * self.weight_decay)
        beta1, beta2 = self.betas
        t = memory["t"].add_(1)
        mean = memory["m"].lerp_(grad, 1 - beta1)
        square = memory["v"].lerp_(grad.square(), 1 - beta2)
        step = self.lr * (mean / (1 - beta1**t))
        variance = square / (1 - beta2**t)
        v.sub_(step / variance.sqrt().add(EPSILON))
