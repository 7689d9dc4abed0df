"""A classifier's energy-based model: samples have low energy where their label's logit is high.

Hahn, dissertation 2024, chapter IV; logits are read as energies by Grathwohl et al., ICLR 2020
(JEM).
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from commonweal.task.task import Task

AT_ONCE = 256  # samples per forward pass; all are independent
UNIT = (0.0, 1.0)  # where images are


def logit(outputs: Tensor, y: Tensor) -> Tensor:
    """f(x)[y] = -E(x, y), eq. 4.8: (N, L), (N,) -> (N,)"""
    return outputs.gather(-1, y[:, None]).squeeze(-1)


def energy_gradient(
    task: Task, w: Tensor, x: Tensor, y: Tensor, clip: float
) -> tuple[Tensor, Tensor]:
    """The energies of samples (N,), and their gradients by the samples, clipped by entry."""
    energies = []
    grads = []
    for rows, labels in zip(torch.split(x, AT_ONCE), torch.split(y, AT_ONCE), strict=True):
        leaf = rows.detach().requires_grad_()
        energy = -logit(task.outputs(w, leaf), labels)
        grad = torch.autograd.grad(energy.sum(), leaf)[0]
        energies.append(energy.detach())
        grads.append(grad.clamp(-clip, clip))
    return torch.cat(energies), torch.cat(grads)


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


def exponentials(negative_energy: Tensor, weights: Tensor) -> Tensor:
    """exp(-E) of S clients (S, M), each row over its largest, which changes no mixture."""
    absent = (weights == 0)[:, None]
    present = negative_energy.masked_fill(absent, -torch.inf)
    return (present - present.amax(0)).exp()


def mixture_gradient(weights: Tensor, boltzmann: Tensor, grads: Tensor) -> tuple[Tensor, Tensor]:
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
SCHEDULES: dict[str, Callable[[int, int], float]] = {"cosine": _cosine, "betas": _betas}
