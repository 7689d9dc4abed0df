"""The energy-based model behind a classifier: low energy where the logit of the row's label is high.

Hahn, dissertation 2024, chapter IV; the reading of logits as energies is Grathwohl et al., ICLR 2020 (JEM).
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from commonweal.local import Tensors
from commonweal.synthetic._fit import adam, batches, normal, rate, scaled
from commonweal.task import LOSSES, Task

__all__ = ["SCHEDULES", "ascent", "contrast", "langevin", "logit", "mixture", "train"]

AT_ONCE = 256  # rows in a pass; all are independent


def logit(outputs: Tensor, y: Tensor) -> Tensor:
    """f(x)[y] = -E(x, y), eq. 4.8: (N, L), (N,) -> (N,)"""
    return outputs.gather(-1, y[:, None]).squeeze(-1)


def ascent(task: Task, w: Tensor, x: Tensor, y: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """The rows' energies (N,), and the energies' gradients in the rows, clipped coordinate by coordinate."""
    energies, slopes = [], []
    for rows, labels in zip(torch.split(x, AT_ONCE), torch.split(y, AT_ONCE), strict=True):
        leaf = rows.detach().requires_grad_()
        energy = -logit(task.outputs(w, leaf), labels)
        slopes.append(torch.autograd.grad(energy.sum(), leaf)[0].clamp(-clip, clip))
        energies.append(energy.detach())
    return torch.cat(energies), torch.cat(slopes)


def langevin(x: Tensor, slope: Tensor, step: float, noise: float, epsilon: Tensor) -> Tensor:
    """x - step grad E + noise epsilon (eqs. 4.9 and 4.14), kept in [0, 1] as the authors' code does."""
    return (x - step * slope + noise * epsilon).clamp(0, 1)


def contrast(real: Tensor, negative: Tensor) -> Tensor:
    """What falls as the likelihood of real rows rises, from the logits f(x)[y] of both.

    Eq. 4.4: its gradient is that of E(real) - E(sampled). Algorithm 4.2, line 13, prints the opposite sign.
    """
    return negative.mean() - real.mean()


def train(
    how: Any, task: Task, w: Tensor, seen: Tensors, x: Tensor, y: Tensor, rng: np.random.Generator
) -> tuple[Tensor, Tensors]:
    """Algorithm 4.2 on one client's rows as FedEvg's fields say: its classifier, and mean loss and score meanwhile."""
    chains, labels, cross = seen["x"].clone(), seen["y"], LOSSES["cross-entropy"]
    memory: Tensors = {}
    losses, right = [], []
    for index in batches(len(y), how.batch, how.epochs, how.steps, rng):
        pick = torch.from_numpy(rng.choice(len(labels), min(len(index), len(labels)), replace=False))
        before = (chains if how.chosen["anchor"] == "chain" else seen["x"])[pick]
        chains[pick] = negative = _chain(how, task, w, chains[pick], labels[pick], rng)
        leaf = w.detach().requires_grad_()
        outputs = task.outputs(leaf, torch.cat([scaled(x[index]), before, negative]))
        real, start, end = torch.split(outputs, [len(index), len(pick), len(pick)])
        own, other = cross(real, y[index]), cross(start, labels[pick])
        loss = own.mean() + how.lam * other.mean() + contrast(logit(real, y[index]), logit(end, labels[pick]))
        w, memory = adam(w, torch.autograd.grad(loss, leaf)[0], memory, rate(how, int(seen["round"])))
        losses.append(own.detach())
        right.append(real.argmax(1) == y[index])
    return w, {"loss": torch.cat(losses).double().mean(), "score": torch.cat(right).double().mean()}


def _chain(how: Any, task: Task, w: Tensor, x: Tensor, y: Tensor, rng: np.random.Generator) -> Tensor:
    for _ in range(how.chain_steps):
        _, slope = ascent(task, w, x, y, how.clip)
        x = langevin(x, slope, how.chain_step, how.chain_noise, normal(x.shape, rng))
    return x


def mixture(weights: Tensor, boltzmann: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
    """The energy gradient of a mixture of S densities (eq. 4.13), and how much each counted for each of M rows.

    weights (S,), boltzmann = exp(-E) (S, M), slopes = grad E (S, M, ...) -> (M, ...), (S, M)
    """
    share = weights.to(boltzmann.dtype)[:, None] * boltzmann
    share = share / share.sum(0)
    return torch.einsum("sm,sm...->m...", share, slopes), share


def _cosine(t: int, rounds: int) -> float:
    return (1 - math.cos(math.pi * (t - 1) / max(1, rounds - 1))) / 2


def _betas(t: int, rounds: int) -> float:
    """1 - a(t) / a(t - 1) with a(t) = cos^2: the noise added per step by Nichol and Dhariwal 2021, eq. 17."""
    kept = [math.cos((s / rounds + 0.008) / 1.008 * math.pi / 2) ** 2 for s in (t - 1, t)]
    return 1 - kept[1] / kept[0]


# How far round t = 1..T has come from the first step size (0) to the last (1).
SCHEDULES: dict[str, Callable[[int, int], float]] = {"cosine": _cosine, "betas": _betas}
