"""Local optimizers, as functions of vectors by name. They follow torch.optim step by step.

All are elementwise but for the norm, which is over the last axis: a leading client axis is allowed.
"""

import torch
from torch import Tensor

from commonweal.base.tensors import State, Tensors

__all__ = ["adam_step", "clip_gradients", "sgd_step", "step_decay"]


def step_decay(lr: float, factor: float, every: int, round: int) -> float:
    """The learning rate of round 1, 2, ...: multiplied by `factor` every `every` rounds."""
    return lr * factor ** ((round - 1) // every)


def clip_gradients(grads: Tensors, max_norm: float) -> Tensors:
    """Scale each gradient down to the norm `max_norm`, as torch.nn.utils.clip_grad_norm_."""
    clipped = {}
    for name, grad in grads.items():
        norm = grad.square().sum(-1, keepdim=True) ** 0.5
        clipped[name] = grad * (max_norm / (norm + 1e-6)).clamp(max=1)
    return clipped


def sgd_step(
    params: Tensors,
    grads: Tensors,
    opt_state: State,
    lr: float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
) -> tuple[Tensors, State]:
    """One step of torch.optim.SGD. The state is empty before the first step."""
    if weight_decay:
        grads = {name: g.add(params[name], alpha=weight_decay) for name, g in grads.items()}
    if momentum:
        if opt_state:
            grads = {name: g.add(opt_state[name], alpha=momentum) for name, g in grads.items()}
        opt_state = grads
    return {name: params[name].sub(g, alpha=lr) for name, g in grads.items()}, opt_state


def adam_step(
    params: Tensors,
    grads: Tensors,
    opt_state: State,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    weight_decay: float = 0.0,
    decoupled: bool = False,
    eps: float = 1e-8,
) -> tuple[Tensors, State]:
    """One step of torch.optim.Adam, or of AdamW where the weight decay is decoupled."""
    new_params = {}
    new_state = {}
    for name, grad in grads.items():
        w = params[name]
        if decoupled:
            w = w * (1 - lr * weight_decay)
        elif weight_decay:
            grad = grad.add(w, alpha=weight_decay)
        moments = _moments(opt_state.get(name), grad, betas)
        step = lr * (moments["m"] / (1 - betas[0] ** moments["t"]))
        variance = moments["v"] / (1 - betas[1] ** moments["t"])
        new_params[name] = w - step / variance.sqrt().add(eps)
        new_state[name] = moments
    return new_params, new_state


def _moments(before: Tensors | None, grad: Tensor, betas: tuple[float, float]) -> Tensors:
    """The running means of the gradient and its square, and their number of steps."""
    if before is None:
        zeros = torch.zeros_like(grad)
        before = {"t": zeros[..., :1], "m": zeros, "v": zeros}
    return {
        "t": before["t"] + 1,
        "m": before["m"].lerp(grad, 1 - betas[0]),
        "v": before["v"].lerp(grad.square(), 1 - betas[1]),
    }
