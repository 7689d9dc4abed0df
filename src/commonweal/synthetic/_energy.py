"""A classifier's energy-based model: samples have low energy where their label's logit is high.

Hahn, dissertation 2024, chapter IV; logits are read as energies by Grathwohl et al., ICLR 2020
(JEM).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from commonweal.base.tensors import Tensors
from commonweal.synthetic._fit import adam, batches, normal, scaled
from commonweal.training.task import LOSSES, Task

__all__ = [
    "SCHEDULES",
    "UNIT",
    "EnergyTraining",
    "contrast",
    "energy_gradient",
    "exponentials",
    "langevin",
    "logit",
    "mixture",
]

AT_ONCE = 256  # samples per forward pass; all are independent


def logit(outputs: Tensor, y: Tensor) -> Tensor:
    """f(x)[y] = -E(x, y), eq. 4.8: (N, L), (N,) -> (N,)"""
    return outputs.gather(-1, y[:, None]).squeeze(-1)


def energy_gradient(
    task: Task, w: Tensor, x: Tensor, y: Tensor, clip: float
) -> tuple[Tensor, Tensor]:
    """The energies of samples (N,), and their gradients by the samples, clipped by entry."""
    energies = []
    grads = []
    parts = zip(torch.split(x, AT_ONCE), torch.split(y, AT_ONCE), strict=True)
    for rows, labels in parts:
        leaf = rows.detach().requires_grad_()
        outputs = task.outputs(w, leaf)
        energy = -logit(outputs, labels)
        grad = torch.autograd.grad(energy.sum(), leaf)[0]
        energies.append(energy.detach())
        grads.append(grad.clamp(-clip, clip))
    return torch.cat(energies), torch.cat(grads)


UNIT = (0.0, 1.0)  # where images are


def langevin(
    x: Tensor,
    grad: Tensor,
    step: float,
    noise: float,
    epsilon: Tensor,
    limits: tuple[float, float] = UNIT,
) -> Tensor:
    """x - step grad E + noise epsilon (eqs. 4.9, 4.14), clipped to [0, 1] as in the authors' code.

    epsilon: standard normal numbers; limits: others than 0 and 1, for samples of tables
    """
    moved = x - step * grad + noise * epsilon
    return moved.clamp(*limits)


def contrast(real: Tensor, negative: Tensor) -> Tensor:
    """A loss that falls as the likelihood of real samples rises, from the logits f(x)[y] of both.

    Eq. 4.4: its gradient is that of E(real) - E(sampled). Algorithm 4.2, line 13, prints the
    opposite sign.
    """
    return negative.mean() - real.mean()


class Synthetic(NamedTuple):
    """Synthetic samples in a client's batch."""

    anchor: Tensor  # for the cross-entropy
    negative: Tensor  # for the contrastive term: after a step of their Langevin chains
    y: Tensor  # labels of both


@dataclass(frozen=True)
class EnergyTraining:
    """How a client trains its classifier as an energy-based model: Algorithm 4.2."""

    lr: float
    batch: int
    epochs: int
    steps: int | None
    lam: float  # weight of the cross-entropy on synthetic samples
    clip: float  # largest entry of an energy gradient
    anchor: str  # cross-entropy on the chain's samples ("chain") or on those received
    chain_steps: int
    chain_step: float
    chain_noise: float
    limits: tuple[float, float] = UNIT

    def train(
        self,
        task: Task,
        w: Tensor,
        message: Tensors,
        x: Tensor,
        y: Tensor,
        rng: np.random.Generator,
    ) -> tuple[Tensor, Tensors]:
        """Train on a client's samples: its classifier, and the mean loss and score during training.

        message: the synthetic samples "x" and their labels "y"
        """
        chains = message["x"].clone()
        optimizer = adam(self.lr)
        w = w.clone()
        memory = optimizer.memory(w)
        reports = []
        for index in batches(len(y), self.batch, self.epochs, self.steps, rng):
            real = scaled(x[index])
            synthetic = self.advance(task, w, message, chains, len(index), rng)
            grad, outputs = self.gradient(task, w, real, y[index], synthetic)
            optimizer.step(w, grad, memory)
            reports.append(_report(outputs, y[index]))
        return w, _means(reports)

    def advance(
        self,
        task: Task,
        w: Tensor,
        message: Tensors,
        chains: Tensor,
        count: int,
        rng: np.random.Generator,
    ) -> Synthetic:
        """Continue the chains of `count` random samples (all, if there are fewer), in place."""
        labels = message["y"]
        drawn = rng.choice(len(labels), min(count, len(labels)), replace=False)
        pick = torch.from_numpy(drawn)
        anchors = chains if self.anchor == "chain" else message["x"]
        anchor = anchors[pick]  # a copy, taken before the chain moves
        chains[pick] = self.sample(task, w, chains[pick], labels[pick], rng)
        return Synthetic(anchor=anchor, negative=chains[pick], y=labels[pick])

    def sample(
        self, task: Task, w: Tensor, x: Tensor, y: Tensor, rng: np.random.Generator
    ) -> Tensor:
        """Continue the Langevin chains of these samples."""
        for _ in range(self.chain_steps):
            _, grad = energy_gradient(task, w, x, y, self.clip)
            epsilon = normal(x.shape, rng)
            x = langevin(x, grad, self.chain_step, self.chain_noise, epsilon, self.limits)
        return x

    def gradient(
        self, task: Task, w: Tensor, x: Tensor, y: Tensor, synthetic: Synthetic
    ) -> tuple[Tensor, Tensor]:
        """The gradient of a batch's loss, and the outputs for its real samples."""
        leaf = w.detach().requires_grad_()
        rows = torch.cat([x, synthetic.anchor, synthetic.negative])
        count = len(synthetic.y)
        outputs = task.outputs(leaf, rows)
        real, anchor, negative = torch.split(outputs, [len(y), count, count])
        own = _cross_entropy(real, y).mean()
        anchored = _cross_entropy(anchor, synthetic.y).mean()
        contrastive = contrast(logit(real, y), logit(negative, synthetic.y))
        loss = own + self.lam * anchored + contrastive
        grad = torch.autograd.grad(loss, leaf)[0]
        return grad, real.detach()


def _cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    return LOSSES["cross-entropy"](outputs, y)


def _report(outputs: Tensor, y: Tensor) -> Tensors:
    """The loss and the correctness of each row."""
    losses = _cross_entropy(outputs, y)
    correct = outputs.argmax(1) == y
    return {"loss": losses, "score": correct}


def _means(reports: list[Tensors]) -> Tensors:
    means = {}
    for name in reports[0]:
        values = torch.cat([report[name] for report in reports])
        means[name] = values.double().mean()
    return means


def exponentials(negative_energy: Tensor, weights: Tensor) -> Tensor:
    """exp(-E) of S clients (S, M), each row over its largest, which changes no mixture."""
    absent = (weights == 0)[:, None]
    present = negative_energy.masked_fill(absent, -torch.inf)
    return (present - present.amax(0)).exp()


def mixture(weights: Tensor, boltzmann: Tensor, grads: Tensor) -> tuple[Tensor, Tensor]:
    """The energy gradient of a mixture of S densities (eq. 4.13), and their weights per row.

    weights (S,), boltzmann = exp(-E) (S, M), grads = grad E (S, M, ...) -> (M, ...), (S, M)
    """
    joint = weights.to(boltzmann.dtype)[:, None] * boltzmann
    posterior = joint / joint.sum(0)
    grad = torch.einsum("sm,sm...->m...", posterior, grads)
    return grad, posterior


def _cosine(t: int, rounds: int) -> float:
    angle = math.pi * (t - 1) / max(1, rounds - 1)
    return (1 - math.cos(angle)) / 2


def _betas(t: int, rounds: int) -> float:
    """1 - a(t) / a(t - 1), a = cos^2: the noise per step of Nichol and Dhariwal 2021, eq. 17."""

    def a(step: int) -> float:
        progress = (step / rounds + 0.008) / 1.008
        return math.cos(progress * math.pi / 2) ** 2

    return 1 - a(t) / a(t - 1)


# The progress of round t = 1..T from the first step size (0) to the last (1).
SCHEDULES: dict[str, Callable[[int, int], float]] = {
    "cosine": _cosine,
    "betas": _betas,
}
