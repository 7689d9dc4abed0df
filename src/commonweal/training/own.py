"""A user's own functions: losses, scores, and what picks the outputs of a model."""

import inspect
from collections.abc import Callable, Mapping
from copy import copy
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from commonweal.base.errors import ConfigError
from commonweal.training.scores import Score

__all__ = ["LossFunction", "OwnScore", "Pick", "ScoreFunction", "known_loss", "loss_name"]
__all__ += ["pick_outputs", "score_name", "score_path", "unreduced"]

LossFunction = Callable[[Tensor, Tensor], Tensor]  # outputs, labels -> (N,), or a torch loss
ScoreFunction = Callable[[Tensor, Tensor], Tensor | float]  # of a client: (N,), or one number
Pick = Callable[[object], Tensor]  # what a module returns -> its outputs


@runtime_checkable
class HasLogits(Protocol):
    """What models of transformers return."""

    logits: Tensor


def pick_outputs(result: object, pick: Pick | None) -> Tensor:
    """The tensor of outputs (N, ...) among what a module returned."""
    if pick is not None:
        result = pick(result)
    elif isinstance(result, Mapping) and "logits" in result:
        result = result["logits"]
    elif not isinstance(result, Tensor) and isinstance(result, HasLogits):
        result = result.logits
    if not isinstance(result, Tensor):
        kind = type(result).__name__
        raise ConfigError(
            f"the model returned a {kind}, not a tensor: say which part of it is the output, as in "
            "Task(module, output=lambda result: result[0])"
        )
    return result


# Losses


def known_loss(function: LossFunction) -> str:
    """The loss of the catalog that a torch loss with default arguments is; empty: none."""
    if function is nn.functional.cross_entropy:
        return "cross-entropy"
    if type(function) is nn.CrossEntropyLoss:
        plain = function.weight is None and function.ignore_index == -100
        return "cross-entropy" if plain and function.label_smoothing == 0 else ""
    return ""


def unreduced(function: Callable[..., Tensor]) -> LossFunction:
    """The function that gives one loss per sample (N,), where torch allows to ask for it.

    >>> losses = unreduced(nn.functional.mse_loss)
    >>> losses(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 0.0]))
    tensor([1., 4.])
    """
    if isinstance(function, nn.modules.loss._Loss):
        function = copy(function)
        function.reduction = "none"
    elif "reduction" in _parameters(function):
        function = partial(function, reduction="none")

    def losses(outputs: Tensor, y: Tensor) -> Tensor:
        try:
            values = function(outputs, y)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            reason = str(error).split("\n")[0][:200]
            raise ConfigError(
                f"the loss {loss_name(function)} cannot take outputs of shape "
                f"{tuple(outputs.shape)} and labels of shape {tuple(y.shape)} ({y.dtype}): {reason}"
            ) from error
        if not isinstance(values, Tensor) or values.shape[:1] != outputs.shape[:1]:
            shape = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ConfigError(
                f"the loss {loss_name(function)} gave {shape} for {len(outputs)} samples: return "
                "one loss per sample (N,), without taking their mean"
            )
        return values if values.ndim == 1 else values.flatten(1).mean(1)

    return losses


def _parameters(function: LossFunction) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin
        return {}


def loss_name(function: object) -> str:
    """The import path of a function, or the name of its class."""
    if isinstance(function, partial):
        return loss_name(function.func)
    named = function if inspect.isfunction(function) or inspect.isbuiltin(function) else None
    if named is not None:
        return f"{named.__module__}:{named.__qualname__}"
    return f"{type(function).__module__}:{type(function).__qualname__}"


# Scores


def score_path(text: str) -> str:
    """The import path of a score of the user's own, as an experiment names it; empty: it is not.

    >>> score_path("lower:./my_scores.py:log_error"), score_path("accuracy")
    ('./my_scores.py:log_error', '')
    """
    path = text.removeprefix("lower:").removeprefix("higher:")
    return path if ":" in path else ""


def score_name(function: object, lower_is_better: bool) -> str:
    """The name of a user's score, which also says in which direction it is better."""
    plain = loss_name(function).rpartition(":")[2].rpartition(".")[2]
    return f"lower:{plain}" if lower_is_better else f"higher:{plain}"


class OwnScore:
    """A user's score: a function of a client's outputs and labels."""

    def __init__(self, function: ScoreFunction, lower_is_better: bool) -> None:
        self.function = function
        self.lower_is_better = lower_is_better
        self._outputs: torch.Size = torch.Size()
        self._labels: torch.Size = torch.Size()
        self._type = torch.float32

    def score(self) -> Score:
        """The score as statistics of samples, which are its arguments, and their reduction."""
        meaning = "your own score"
        return Score(
            self._stats,
            self._reduce,
            meaning,
            lower_is_better=self.lower_is_better,
            in_per_cent=False,
        )

    def _stats(self, outputs: Tensor, y: Tensor) -> Tensor:
        self._outputs, self._labels, self._type = outputs.shape[1:], y.shape[1:], y.dtype
        n = len(outputs)
        return torch.cat([outputs.reshape(n, -1).double(), y.reshape(n, -1).double()], 1)

    def _reduce(self, stats: Tensor, offsets: Tensor) -> Tensor:
        width = self._outputs.numel()
        values = []
        for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
            outputs = stats[a:b, :width].reshape(b - a, *self._outputs).float()
            y = stats[a:b, width:].reshape(b - a, *self._labels).to(self._type)
            value = torch.as_tensor(self.function(outputs, y)) if b > a else torch.tensor(torch.nan)
            values.append(value.double().mean())
        return torch.stack(values)
