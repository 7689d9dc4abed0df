"""A module, its loss and its score, as functions of one flat vector.

The vector holds the trained parameters first and the running statistics (BatchNorm's) after them: statistics travel and
are averaged like the rest, but no gradient moves them.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from commonweal import scores
from commonweal.errors import ConfigError, did_you_mean

__all__ = ["LOSSES", "Batch", "Task"]


class Batch(NamedTuple):
    """Some rows of one client, each with its share in the batch's loss (padding has share 0, the others sum to 1)."""

    x: Tensor  # (B, ...)
    y: Tensor  # (B,), or (B, L) where each token has a label
    share: Tensor  # (B,)


def _cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    # As logsumexp - logit: torch's own cross_entropy has no batching rule and is taken apart in Python under vmap.
    return outputs.logsumexp(-1) - outputs.gather(-1, y[:, None]).squeeze(-1)


def _binary(outputs: Tensor, y: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(outputs.squeeze(-1), y.to(outputs.dtype), reduction="none")


def _squared(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs.squeeze(-1) - y).square()


def _tokens(outputs: Tensor, y: Tensor) -> Tensor:
    """A row is a sequence: the mean over its tokens that count, (N, L, V), (N, L) -> (N,); a label of -1 does not."""
    if outputs.ndim != 3:
        raise ConfigError(
            f"the data labels each token, but the model gives one answer a row, of shape {tuple(outputs.shape[1:])}: "
            "take a model of sequences, such as 'lstm'"
        )
    valid = y >= 0
    surprise = outputs.logsumexp(-1) - outputs.gather(-1, y.clamp(min=0)[..., None]).squeeze(-1)
    return (surprise * valid).sum(-1) / valid.sum(-1).clamp(min=1)


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {  # (N, outputs), (N,) -> (N,)
    "cross-entropy": _cross_entropy,
    "binary": _binary,
    "squared": _squared,
    "tokens": _tokens,
}


@dataclass(frozen=True, eq=False)
class Task:
    """A module with what it is trained on (`criterion`, a name in LOSSES) and judged by (`score`, a name in SCORES).

    A run starts from the values that the module has. Parameters that require no gradient stay with the module.

    >>> task = Task(nn.Linear(2, 3))
    >>> task.size, task.initial.shape
    (9, torch.Size([9]))
    """

    module: nn.Module
    criterion: str = "cross-entropy"
    score: str = "accuracy"

    def __post_init__(self) -> None:
        scores.named(self.score)
        if self.score in ("ece", "mce") and self.criterion not in ("cross-entropy", "binary"):
            raise ConfigError(
                f"{self.score} needs probabilities of classes, which a model of {self.criterion!r} has not"
            )
        if self.criterion not in LOSSES:
            raise ConfigError(f"no loss is called {self.criterion!r}: {did_you_mean(self.criterion, LOSSES)}")
        if not any(p.requires_grad for p in self.module.parameters()):
            raise ConfigError(f"{type(self.module).__name__} has no parameter to train")
        for part in self.module.modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.running_mean is None:
                raise ConfigError(
                    f"{type(part).__name__} keeps no statistics to judge by: set track_running_stats=True"
                )

    @cached_property
    def _pieces(self) -> dict[str, Tensor]:
        """The trained parameters, then the floating-point buffers, by name, in the vector's order."""
        trained = {name: p.detach() for name, p in self.module.named_parameters() if p.requires_grad}
        return trained | {name: b for name, b in self.module.named_buffers() if b.is_floating_point()}

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(self._pieces)

    @cached_property
    def shapes(self) -> tuple[torch.Size, ...]:
        return tuple(p.shape for p in self._pieces.values())

    @cached_property
    def sizes(self) -> list[int]:
        return [p.numel() for p in self._pieces.values()]

    @cached_property
    def size(self) -> int:
        return sum(self.sizes)

    @cached_property
    def trained(self) -> int:
        """How many of the vector's coordinates gradients move; those after them are statistics."""
        return sum(p.numel() for p in self.module.parameters() if p.requires_grad)

    def moving(self, w: Tensor) -> Tensor:
        """What gradients move of w (d,): w itself where that is all of it, since the gradient of a slice is a copy."""
        return w if self.trained == self.size else w[: self.trained]

    @cached_property
    def initial(self) -> Tensor:
        """The module's own values."""
        return torch.cat([p.flatten() for p in self._pieces.values()]).to(torch.float32)

    @cached_property
    def layers(self) -> list[int]:
        """For every piece of the vector the number of the module that owns it: a weight and its bias have the same."""
        owners = [name.rpartition(".")[0] for name in self.names]
        number = {owner: i for i, owner in enumerate(dict.fromkeys(owners))}
        return [number[owner] for owner in owners]

    def fresh(self, seed: int) -> Tensor:
        """Another random start of the same architecture (layers that cannot reset themselves keep their values)."""
        module = deepcopy(self.module)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for part in module.modules():
                reset = getattr(part, "reset_parameters", getattr(part, "_reset_parameters", None))  # of attention
                if callable(reset):
                    reset()
        return Task(module, self.criterion, self.score).initial

    def tensors(self, w: Tensor) -> dict[str, Tensor]:
        """The vector cut into the module's named tensors (views; the backward of torch.split is a single cat)."""
        pieces = torch.split(w, self.sizes)
        return {name: p.view(shape) for name, p, shape in zip(self.names, pieces, self.shapes, strict=True)}

    @cached_property
    def _training(self) -> nn.Module:
        module = deepcopy(self.module).train()
        for part in module.modules():
            if type(part) is nn.Linear:
                part.__class__ = _Linear
        return module

    @cached_property
    def _judging(self) -> nn.Module:
        return deepcopy(self.module).eval()

    def vector(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The vector of tensors by name, as a run's `Record.model()` gives them: the inverse of `tensors`."""
        return torch.cat([tensors[name].flatten() for name in self.names])

    def loss(self, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """The batch's loss in training mode, and the statistics after it (empty where the module has none)."""
        tensors = self.tensors(w)
        # Normalisation layers write their statistics in place: give them copies, so that the vector stays as it was.
        kept = {name: tensors[name].detach().clone() for name in self.names[self._parameters :]}
        counters = {name: b.clone() for name, b in self._counters.items()}
        outputs = self._call(self._training, tensors | kept | counters, batch.x)
        loss = (LOSSES[self.criterion](outputs, batch.y) * batch.share).sum()
        return loss, torch.cat([k.flatten() for k in kept.values()]) if kept else w.new_empty(0)

    @cached_property
    def _counters(self) -> dict[str, Tensor]:
        return {name: b for name, b in self.module.named_buffers() if not b.is_floating_point()}

    @cached_property
    def _parameters(self) -> int:
        return sum(p.requires_grad for p in self.module.parameters())

    def outputs(self, w: Tensor, x: Tensor) -> Tensor:
        """What the model says of rows, in judging mode."""
        return self._call(self._judging, self.tensors(w), x)

    def _call(self, module: nn.Module, tensors: dict[str, Tensor], x: Tensor) -> Tensor:
        result: Tensor = functional_call(module, tensors, (self._ready(x),), tie_weights=self._tied)
        return result

    def _ready(self, x: Tensor) -> Tensor:
        """Rows are stored small and become what a model takes with each batch: images in [0, 1], sounds in [-1, 1]."""
        if x.dtype == torch.uint8:
            return x.to(torch.float32) / 255
        if x.dtype == torch.int16:
            return x.to(torch.float32) / 32768
        return x if x.is_floating_point() else x.to(torch.int64 if self._tokens else torch.float32)

    @cached_property
    def _tokens(self) -> bool:
        return any(isinstance(m, nn.Embedding | nn.EmbeddingBag) for m in self.module.modules())

    @cached_property
    def normalises(self) -> bool:
        return any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in self.module.modules())

    @cached_property
    def _tied(self) -> bool:
        """Whether a parameter stands under two names; looking for that at every call costs as much as a small layer."""
        every = [p for _, p in self.module.named_parameters(remove_duplicate=False)]
        return len(every) > len(list(self.module.parameters()))

    def judge(self, w: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Each row's loss (N,) and its evidence for the score (N, c)."""
        outputs = self.outputs(w, x)
        return LOSSES[self.criterion](outputs, y), scores.named(self.score).rows(outputs, y)

    @cached_property
    def _widths(self) -> dict[torch.Size, int]:
        return {}

    def width(self, x: Tensor) -> int:
        """How many numbers the module computes for one row of x: what a row costs in memory, on every machine alike."""
        if x.shape[1:] not in self._widths:
            row = x.new_zeros((1, *x.shape[1:]))
            self._widths[x.shape[1:]] = _count_numbers(deepcopy(self._judging), self._ready(row)) + row.numel()
        return self._widths[x.shape[1:]]

    @cached_property
    def random(self) -> bool:
        """Whether training draws random numbers inside the module (dropout)."""
        parts = list(self.module.modules())
        dropout = any(isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0 for m in parts)
        inside = any(isinstance(m, nn.RNNBase | nn.MultiheadAttention) and m.dropout > 0 for m in parts)
        return dropout or inside or any(isinstance(m, nn.RReLU) for m in parts)


class _Linear(nn.Linear):
    """W x' instead of x W': under vmap the weights' gradient then comes out in their own layout, without a copy."""

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 2:
            return super().forward(x)
        outputs = (self.weight @ x.mT).mT
        return outputs if self.bias is None else outputs + self.bias


def _count_numbers(module: nn.Module, x: Tensor) -> int:
    count = 0

    def add(_module: nn.Module, _inputs: object, output: object) -> None:
        nonlocal count
        count += sum(o.numel() for o in (output if isinstance(output, tuple) else (output,)) if isinstance(o, Tensor))

    for part in module.modules():
        if not list(part.children()):
            part.register_forward_hook(add)
    with torch.no_grad():
        module(x)
    return count
