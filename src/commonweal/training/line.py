"""The line between two models: points of it, and the angle at which its ends stand."""

import torch
from torch import Tensor

from commonweal.base.tensors import Tensors
from commonweal.training.task import Batch, Task

__all__ = ["between", "by_layer", "squared_cosine", "statistics"]


def between(task: Task, w: Tensor, own: Tensor, m: float) -> Tensor:
    """The point m of the line from w to own. The statistics of BatchNorm are those of own."""
    mixture = (1 - m) * w + m * own
    n = task.num_trainable
    return torch.cat([mixture[:n], own[n:]]) if task.has_batchnorm else mixture


def by_layer(task: Task, noise: Tensor) -> Tensor:
    """A number per coordinate (d,), the same within a layer, of one per layer."""
    # Expanded piece by piece: to gather by coordinate is many times slower under vmap.
    pieces = zip(task.layers, task.sizes, strict=True)
    wide = [noise[..., k : k + 1].expand(*noise.shape[:-1], size) for k, size in pieces]
    return torch.cat(wide, -1)


def squared_cosine(a: Tensor, b: Tensor) -> Tensor:
    # As sums of products: vmap turns the product of two vectors into slow matrix products.
    # A model of zeros, such as logistic at its start, has no angle.
    lengths = ((a * a).sum(-1) * (b * b).sum(-1)).clamp(min=1e-12)
    return (a * b).sum(-1).square() / lengths


def statistics(
    task: Task, w: Tensor, own: Tensor, m: float, batch: Batch, buffers: Tensor
) -> Tensors:
    """The buffers of the shared model, and of the point m that the client uses."""
    if not task.has_batchnorm:
        return {"w": buffers, "own": buffers}
    shared = w.detach()
    used = between(task, shared, own.detach(), m)
    return {n: task.batch_loss(v, batch)[1] for n, v in (("w", shared), ("own", used))}
