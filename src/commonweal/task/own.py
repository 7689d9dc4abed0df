"""A user's own functions: losses, scores, and what picks the outputs of a model."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from commonweal.base.errors import ConfigError
from commonweal.task.scores import Score, sum_by_client

LossFunction = Callable[[Tensor, Tensor], Tensor]  # outputs, labels -> (N,), or a torch loss
Counted = Callable[[Tensor], Tensor]  # labels (N, ...) -> whether each position counts
ScoreFunction = Callable[[Tensor, Tensor], Tensor | float]  # of a client: (N,), or one number
Pick = Callable[[object], Tensor]  # what a module returns -> its outputs
UNDEFINED = torch.tensor(torch.nan, dtype=torch.float64)  # the score of a client without samples


@runtime_checkable
class HasLogits(Protocol):
    """The output of models of transformers."""

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


@dataclass(frozen=True)
class Unlike:
    """Counts the labels of positions that are not to be ignored. Soft labels count once."""

    ignore_index: int

    def __call__(self, y: Tensor) -> Tensor:
        return torch.ones_like(y[..., :1]) if y.is_floating_point() else y != self.ignore_index


def labelled(y: Tensor) -> Tensor:
    """Whether positions have a label: -1 stands for none."""
    return y >= 0


def labelled_next(y: Tensor) -> Tensor:
    """Whether the position after each has a label."""
    return y[:, 1:] >= 0


def counted_by(function: LossFunction) -> Counted | None:
    """The positions that a torch loss counts; None: it is not known to ignore any."""
    if known_loss(function):
        return None
    if isinstance(function, nn.CrossEntropyLoss | nn.NLLLoss):
        return Unlike(function.ignore_index)
    inner = function.func if isinstance(function, partial) else function
    if inner in (nn.functional.cross_entropy, nn.functional.nll_loss):
        given = function.keywords if isinstance(function, partial) else {}
        return Unlike(given.get("ignore_index", -100))
    return None


class OwnLoss:
    """A user's loss, which gives one value per sample (N,), or per position (N, ...).

    torch's losses are asked not to take the mean, and take outputs (N, 1) with labels (N,), as
    those of the catalog do. Positions that are not counted are left out of a sample's mean.

    >>> losses = OwnLoss(nn.functional.mse_loss)
    >>> losses(torch.tensor([[1.0], [2.0]]), torch.tensor([0, 0]))
    tensor([1., 4.])
    """

    def __init__(self, function: Callable[..., Tensor], counted: Counted | None = None) -> None:
        self._counted = counted
        self.name = function_name(function)
        if isinstance(function, nn.modules.loss._Loss):
            function = copy(function)
            function.reduction = "none"
        elif _has_reduction(function):
            function = partial(function, reduction="none")
        self._function = function

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        given, labels = outputs, y
        if self.name.startswith("torch.") and (*y.shape, 1) == outputs.shape:
            given, labels = outputs.squeeze(-1), y.to(outputs.dtype)
        try:
            values = self._function(given, labels)
        except Warning:  # an operator that is slow under vmap warns, which is then an error
            raise
        except Exception as error:  # of a user's own code, too
            raise ConfigError(
                f"the loss {self.name} cannot take outputs of shape {tuple(outputs.shape)} and "
                f"labels of shape {tuple(y.shape)} ({y.dtype}): {_reason(error)}"
            ) from error
        if not isinstance(values, Tensor) or not _is_per_sample(values, outputs, y):
            shape = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ConfigError(
                f"the loss {self.name} gave {shape} for outputs of shape {tuple(outputs.shape)} "
                f"and labels of shape {tuple(y.shape)}: return one loss per sample (N,), without "
                "taking their mean, and squeeze outputs (N, 1) where labels are (N,)"
            )
        if outputs.requires_grad and not values.requires_grad:
            raise ConfigError(
                f"the loss {self.name} has no gradient: compute it from the outputs by torch's "
                "functions, without detach()"
            )
        if values.ndim == 1:
            return values
        if self._counted is None:
            return values.flatten(1).mean(1)
        counted = self._mask(y, values)
        total = torch.where(counted, values, 0.0).flatten(1).sum(1)
        return total / counted.flatten(1).sum(1).clamp(min=1)

    def _mask(self, y: Tensor, values: Tensor) -> Tensor:
        """Which of the losses of positions (N, ...) count."""
        assert self._counted is not None
        counted = self._counted(y).bool()
        if counted.shape != values.shape and counted.numel() == len(y):  # samples as a whole
            counted = counted.view(-1, *[1] * (values.ndim - 1)).expand_as(values)
        if counted.shape != values.shape:
            raise ConfigError(
                f"the loss {self.name} gave {tuple(values.shape)}, but the positions that count "
                f"have shape {tuple(counted.shape)}: let `counted` give one value per loss"
            )
        return counted

    def as_score(self) -> Score:
        """The loss as a score. Samples' statistics are their losses and the positions that count.

        Its values per sample have the mean over a client's positions as their mean.
        """

        def row_stats(outputs: Tensor, y: Tensor) -> Tensor:
            losses = self(outputs, y).double()
            counts = torch.ones_like(losses)
            if self._counted is not None:
                counts = self._counted(y).reshape(len(y), -1).sum(1).double()
            return torch.stack([losses, counts], 1)

        def reduce(stats: Tensor, offsets: Tensor) -> Tensor:
            losses, counts = stats.unbind(1)
            return sum_by_client(losses * counts, offsets) / sum_by_client(counts, offsets)

        def samples(stats: Tensor, offsets: Tensor) -> Tensor:
            losses, counts = stats.unbind(1)
            sizes = offsets.diff()
            per_sample = sum_by_client(counts, offsets) / sizes
            mean = reduce(stats, offsets).repeat_interleave(sizes)
            return mean + counts / per_sample.repeat_interleave(sizes) * (losses - mean)

        return Score(
            row_stats,
            reduce,
            "your own loss",
            lower_is_better=True,
            in_per_cent=False,
            samples=samples,
        )


def _has_reduction(function: LossFunction) -> bool:
    try:
        return "reduction" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin
        return False


def _reason(error: Exception) -> str:
    """The first line of an error of a user's function."""
    return f"{type(error).__name__}: {error}".split("\n")[0][:200]


def _is_per_sample(values: Tensor, outputs: Tensor, y: Tensor) -> bool:
    """Return whether these are the losses of samples, or of all numbers that samples consist of."""
    if values.shape[:1] != outputs.shape[:1]:
        return False
    by_position = outputs.shape[:1] + outputs.shape[2:]  # of classes, which are axis 1
    return values.numel() == len(values) or values.shape in (outputs.shape, y.shape, by_position)


def function_name(function: object) -> str:
    """The import path of a function, or of the class of an object."""
    if isinstance(function, partial):
        return function_name(function.func)
    if inspect.isfunction(function) or inspect.isbuiltin(function):
        return f"{function.__module__}:{function.__qualname__}"
    return f"{type(function).__module__}:{type(function).__qualname__}"


def is_importable(function: object) -> bool:
    """Return whether a function can be found again by its import path."""
    module, _, name = function_name(function).partition(":")
    return module != "__main__" and "<" not in name


def function_identity(function: object) -> str:
    """Return the import path and the parameters of a function, which tell it from others."""
    words = [function_name(function)]
    if isinstance(function, partial):
        words += [repr(function.args), repr(sorted(function.keywords.items()))]
    if isinstance(function, nn.Module):
        plain = [(k, v) for k, v in vars(function).items() if isinstance(v, int | float | str)]
        tensors = {name: value.tolist() for name, value in function.state_dict().items()}
        words += [repr(sorted(plain)), repr(tensors)]
    return " ".join(words)


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
    plain = function_name(function).rpartition(":")[2].rpartition(".")[2]
    return f"lower:{plain}" if lower_is_better else f"higher:{plain}"


def own_score(function: ScoreFunction, lower_is_better: bool) -> Score:
    """A user's score. The statistics of a sample are what the function takes: outputs, labels."""
    shape = labels = torch.Size()  # of a sample's outputs and labels
    dtype = torch.float32  # of labels

    def row_stats(outputs: Tensor, y: Tensor) -> Tensor:
        nonlocal shape, labels, dtype
        shape, labels, dtype = outputs.shape[1:], y.shape[1:], y.dtype
        n = len(outputs)
        return torch.cat([outputs.reshape(n, -1).double(), y.reshape(n, -1).double()], 1)

    def by_client(stats: Tensor, offsets: Tensor) -> Iterator[Tensor]:
        """Each client's score, or that of its samples."""
        width = shape.numel()
        for a, b in pairwise(offsets.tolist()):
            outputs = stats[a:b, :width].reshape(b - a, *shape).float()
            y = stats[a:b, width:].reshape(b - a, *labels).to(dtype)
            yield _value(function, outputs, y) if b > a else UNDEFINED

    def reduce(stats: Tensor, offsets: Tensor) -> Tensor:
        return torch.stack([value.mean() for value in by_client(stats, offsets)])

    def samples(stats: Tensor, offsets: Tensor) -> Tensor:
        parts = []
        for value, size in zip(by_client(stats, offsets), offsets.diff().tolist(), strict=True):
            has_samples = value.ndim > 0 or size == 1
            parts.append(value.expand(size) if has_samples else UNDEFINED.expand(size))
        return torch.cat(parts)

    return Score(
        row_stats,
        reduce,
        "your own score",
        lower_is_better=lower_is_better,
        in_per_cent=False,
        samples=samples,
    )


def _value(function: ScoreFunction, outputs: Tensor, y: Tensor) -> Tensor:
    """The score of a client's samples, or one value for each of them."""
    name = function_name(function)
    try:
        value = torch.as_tensor(function(outputs, y)).double()
    except Exception as error:  # of a user's own code
        raise ConfigError(
            f"the score {name} of outputs {tuple(outputs.shape)} and labels {tuple(y.shape)} "
            f"is no number ({_reason(error)}): return one, or one per sample"
        ) from error
    if value.numel() != 1 and value.shape != outputs.shape[:1]:
        raise ConfigError(
            f"the score {name} gave {tuple(value.shape)} for {len(outputs)} samples: return a "
            "number, or one per sample"
        )
    return value if value.shape == outputs.shape[:1] else value.reshape(())
