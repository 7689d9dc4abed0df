"""Training a flat vector on rows that lie at hand: Adam, batches, and a classifier from a fresh start."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from commonweal.errors import ConfigError, DataError
from commonweal.local import Tensors
from commonweal.task import Batch, Task

__all__ = ["adam", "batches", "check", "fit", "normal", "rate", "scaled", "unit"]

# What the authors' code trains everything with.
BETAS, WEIGHT_DECAY, TINY = (0.5, 0.999), 1e-4, 1e-8


def adam(w: Tensor, slope: Tensor, memory: Tensors, lr: float) -> tuple[Tensor, Tensors]:
    """A step of torch.optim.Adam on vectors (..., d), and what it remembers."""
    slope = slope.add(w, alpha=WEIGHT_DECAY)
    if not memory:
        memory = {"t": torch.zeros_like(w[..., :1]), "m": torch.zeros_like(w), "v": torch.zeros_like(w)}
    t = memory["t"] + 1
    m = memory["m"].lerp(slope, 1 - BETAS[0])
    v = memory["v"].lerp(slope.square(), 1 - BETAS[1])
    size = (v / (1 - BETAS[1] ** t)).sqrt_().add_(TINY)
    return w - lr * (m / (1 - BETAS[0] ** t)) / size, {"t": t, "m": m, "v": v}


def batches(n: int, size: int, epochs: int, steps: int | None, rng: np.random.Generator) -> Iterator[Tensor]:
    """Row numbers of `steps` batches, or of `epochs` passes, each pass in an order of its own."""
    a_pass = -(-n // size)
    for t in range(steps or epochs * a_pass):
        if t % a_pass == 0:
            order = rng.permutation(n)
        begin = t % a_pass * size
        yield torch.from_numpy(order[begin : begin + size])


def fit(task: Task, x: Tensor, y: Tensor, epochs: int, batch: int, lr: float, rng: np.random.Generator) -> Tensor:
    """The task's model, trained on these rows from a fresh start."""
    w = task.fresh(int(rng.integers(1 << 62)))
    memory: Tensors = {}
    with torch.random.fork_rng(devices=[], enabled=task.random):
        if task.random:
            torch.manual_seed(int(rng.integers(1 << 62)))
        for index in batches(len(y), batch, epochs, None, rng):
            if task.normalises and len(index) == 1:
                continue  # BatchNorm cannot take a rest of one row
            leaf = w.detach().requires_grad_()
            share = torch.full((len(index),), 1 / len(index))
            loss, statistics = task.loss(leaf, Batch(x[index], y[index], share))
            w, memory = adam(w, torch.autograd.grad(loss, leaf)[0], memory, lr)
            if len(statistics):
                w = torch.cat([w[: task.trained], statistics])
    return w


def scaled(x: Tensor) -> Tensor:
    """Rows as the model sees them: bytes become numbers in [0, 1]."""
    return x.to(torch.float32) / 255 if x.dtype == torch.uint8 else x


def unit(x: Tensor) -> Tensor:
    """These rows, if they are bytes or lie in [0, 1], where synthetic rows live; bytes are scaled batch by batch."""
    if x.dtype != torch.uint8 and (not x.is_floating_point() or x.amin() < 0 or x.amax() > 1):
        raise DataError(
            f"synthetic rows live in [0, 1], but there are rows of {x.dtype} from {float(x.amin()):g} to "
            f"{float(x.amax()):g}: scale them to [0, 1], or give images as bytes"
        )
    return x


def normal(shape: Sequence[int], rng: np.random.Generator) -> Tensor:
    return torch.from_numpy(rng.standard_normal(tuple(shape), dtype=np.float32))


def rate(how: Any, round: int) -> float:
    """The learning rate of round 1, 2, ... of an algorithm with the fields lr, decay and decay_every."""
    return float(how.lr * how.decay ** ((round - 1) // how.decay_every))


def check(how: Any, whole: Sequence[str] = (), above: Sequence[str] = (), least: Sequence[str] = ()) -> None:
    """Fields that must be at least 1, above 0, or at least 0; those that are not set are left alone."""
    name = type(how).__name__.lower()
    for fields, bottom, words in ((whole, 1, "at least 1"), (above, 0, "above 0"), (least, 0, "at least 0")):
        for field in fields:
            value = getattr(how, field)
            if value is not None and not (value > bottom if words == "above 0" else value >= bottom):
                raise ConfigError(f"{name} {field} = {value}: it must be {words}")
