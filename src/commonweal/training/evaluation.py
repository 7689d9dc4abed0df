"""Evaluation of one model on all clients' rows, and of each client's own model on its rows."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Optional

import torch
from torch import Tensor

from commonweal.base.tensors import Tensors, select
from commonweal.data.federation import Rows
from commonweal.data.samples import Inputs, Lazy
from commonweal.training.dense import dense_stack
from commonweal.training.linear import linear_outputs
from commonweal.training.memory_format import channels_last
from commonweal.training.task import Task
from commonweal.training.uses import Uses, mix_outputs
from commonweal.training.vectorize import Vectorize, single, vmap_clients

__all__ = ["Evaluation", "by_client", "evaluate", "evaluate_models", "evaluate_rows"]
__all__ += ["evaluate_rows_by_models", "joined", "passes"]

PASS = 1 << 24  # numbers that a forward pass may hold: 64 MB


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Every client's loss and scores (K,); NaN without rows or where a score is undefined."""

    losses: Tensor
    scores: Tensors  # by name, the main score first
    sizes: Tensor  # (K,) the rows that were evaluated
    undefined: Tensor | None = None  # (K,) true where the main score is undefined for a client
    personal: Optional["Evaluation"] = None  # by the clients' own models, where they have any
    # (K,) of personal models: the weight of all but the local ones, if there are others
    partners: Tensor | None = None

    @property
    def score(self) -> Tensor:
        """The main score of every client."""
        return next(iter(self.scores.values()))

    @property
    def scored(self) -> Tensor:
        """The ids of the clients that have rows and a defined main score."""
        has_score = self.sizes > 0
        if self.undefined is not None:
            has_score = has_score & ~self.undefined
        return has_score.nonzero().flatten()

    def updated(self, ids: Tensor, other: "Evaluation") -> "Evaluation":
        """Replace the values of these clients by those of another evaluation, (S,)."""
        losses = self.losses.index_copy(0, ids, other.losses)
        scores = {n: v.index_copy(0, ids, other.scores[n]) for n, v in self.scores.items()}
        partners = self.partners
        if other.partners is not None:
            before = torch.full_like(self.losses, torch.nan) if partners is None else partners
            partners = before.index_copy(0, ids, other.partners)
        return replace(self, losses=losses, scores=scores, partners=partners)


def evaluate(task: Task, w: Tensor, rows: Rows, ids: Tensor | None = None) -> Evaluation:
    """Evaluate one model on each client's rows: one pass over all, then a reduction by client."""
    if ids is None:
        losses, stats = evaluate_rows(task, w, rows)
        return by_client(task, losses, stats, rows.offsets)
    index, offsets = rows.index_of(ids)
    losses, stats = evaluate_rows(task, w, rows, index)
    return by_client(task, losses, stats, offsets)


def evaluate_models(
    task: Task, uses: Uses, rows: Rows, ids: Tensor, vectorize: Vectorize
) -> Evaluation:
    """Evaluate what each client uses on its own samples.

    Args:
        task: The model and its scores.
        uses: The models (S, M, d) of the clients and their weights (S, M).
        rows: The samples of all clients.
        ids: The positions (S,) of the clients.
        vectorize: How functions of one client are run for a group.
    """
    losses, stats = evaluate_rows_by_models(task, uses, rows, ids, vectorize)
    evaluation = by_client(task, losses, stats, rows.offsets_of(ids))
    models = uses.models.shape[1]
    if models == 1:
        return evaluation
    partners = uses.weights[:, 1:models].sum(1)
    return replace(evaluation, partners=partners.to(evaluation.losses.dtype))


def by_client(task: Task, losses: Tensor, stats: Tensors, offsets: Tensor) -> Evaluation:
    """Reduce the losses and statistics of rows by client, whose rows begin at these offsets."""
    reduced = {n: task.find_score(n).reduce(values, offsets) for n, values in stats.items()}
    return Evaluation(task.mean_losses(losses, offsets), reduced, offsets.diff())


def passes(task: Task, rows: Rows, total: int | None = None) -> list[slice]:
    """The forward passes in which rows are evaluated: all of them, or so many."""
    at_once = max(1, _budget(rows) // task.width(rows.inputs))
    count = len(rows.y) if total is None else total
    # Without rows: one empty pass.
    return [slice(begin, begin + at_once) for begin in range(0, max(count, 1), at_once)]


def evaluate_rows(
    task: Task,
    w: Tensor,
    rows: Rows,
    index: Tensor | None = None,
    parts: Sequence[slice] | None = None,
) -> tuple[Tensor, Tensors]:
    """The loss and the statistics of every row by one model.

    Args:
        task: The model and its scores.
        w: The model (d,).
        rows: The samples of all clients.
        index: The numbers of the rows that are evaluated. None: all of them.
        parts: The passes that are made. None: all of them.
    """
    if parts is None:
        parts = passes(task, rows, None if index is None else len(index))
    task = channels_last(task, rows.inputs)
    w = w.to(rows.device)
    results = []
    with torch.no_grad():
        for part in parts:
            own = part if index is None else index[part]
            results.append(task.evaluate_rows(w, rows.inputs[own], rows.y[own]))
    return joined(results)


def evaluate_rows_by_models(
    task: Task, uses: Uses, rows: Rows, ids: Tensor, vectorize: Vectorize
) -> tuple[Tensor, Tensors]:
    """The loss and the statistics of every sample by what its client uses, client after client.

    Args:
        task: The model and its scores.
        uses: The models (S, M, d) of the clients and their weights (S, M).
        rows: The samples of all clients.
        ids: The positions (S,) of the clients.
        vectorize: How functions of one client are run for a group.
    """
    if vectorize is single:
        task = channels_last(task, rows.inputs)
    uses = Uses(*(value.to(rows.device) for value in uses))
    if not uses.linear.shape[-1]:
        uses = uses._replace(linear=uses.weights[:, :0])
    dense = vectorize is vmap_clients and isinstance(rows.inputs, Tensor)
    evaluate_group = _group_function(task, vectorize, dense)
    width = task.width(rows.inputs)
    sizes = rows.sizes[ids].tolist()
    parts = []
    with torch.no_grad():
        for a, b in _groups(sizes, task.size, width, vectorize is single):
            for row, real in _padded(rows, ids[a:b], max(1, _budget(rows) // width)):
                own = Uses(*(value[a:b] for value in uses))
                losses, stats = evaluate_group(own, rows.inputs[row], rows.y[row])
                parts.append((losses[real], select(stats, real)))
    return joined(parts)


def _budget(rows: Rows) -> int:
    """The numbers that a forward pass may hold: fewer where samples are read when needed."""
    return PASS // 16 if isinstance(rows.inputs, Lazy) else PASS


def _group_function(
    task: Task, vectorize: Vectorize, dense: bool
) -> Callable[[Uses, Inputs, Tensor], tuple[Tensor, Tensors]]:
    """A function of what clients use and their samples (S, B, ...): losses and statistics."""
    stack = dense_stack(task) if dense else None
    if stack is None:

        def evaluate_one(
            models: Tensor, weights: Tensor, linear: Tensor, x: Inputs, y: Tensor
        ) -> tuple[Tensor, Tensors]:
            outputs = [task.raw_outputs(w, x) for w in models]
            return task.row_results(_mixed(task, outputs, weights, linear, x), y)

        evaluate_all = vectorize(evaluate_one, (0, 0, 0, 0, 0))
        return lambda uses, x, y: evaluate_all(*uses, x, y)

    def evaluate_stack(uses: Uses, x: Inputs, y: Tensor) -> tuple[Tensor, Tensors]:
        assert isinstance(x, Tensor)
        outputs = [stack.outputs(w, x) for w in uses.models.unbind(1)]
        mixed = _mixed(task, outputs, uses.weights.T, uses.linear, x)
        losses, stats = task.row_results(mixed.flatten(0, 1), y.flatten())
        by_client = {name: values.view(*y.shape, -1) for name, values in stats.items()}
        return losses.view(y.shape), by_client

    return evaluate_stack


def _mixed(task: Task, outputs: list[Tensor], weights: Tensor, linear: Tensor, x: Inputs) -> Tensor:
    """The outputs of a mixture of models; those of a single one stay as they are."""
    if linear.shape[-1]:
        assert isinstance(x, Tensor)  # others have no linear model
        outputs = [*outputs, linear_outputs(linear, task.ready_tensor(x))]
    if len(outputs) == 1:
        return outputs[0]
    return mix_outputs(task.loss, torch.stack(outputs), weights)


def _padded(rows: Rows, ids: Tensor, columns: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Row numbers (S, columns) of these clients, and which are real.

    Padding repeats a client's first row. A group of several clients fits into one part.
    """
    index, offsets = rows.index_of(ids)
    size = offsets.diff()[:, None]
    first = offsets[:-1, None]
    for column in torch.split(torch.arange(int(size.max())), columns):
        real = column < size
        yield index[torch.where(real, first + column, first)], real


def joined(parts: list[tuple[Tensor, Tensors]]) -> tuple[Tensor, Tensors]:
    """The losses and statistics of rows from those of consecutive parts."""
    losses = torch.cat([loss for loss, _ in parts])
    names = parts[0][1]
    return losses, {name: torch.cat([stats[name] for _, stats in parts]) for name in names}


def _groups(
    sizes: list[int], parameters: int, width: int, one_by_one: bool
) -> Iterator[tuple[int, int]]:
    """Split clients into runs that are evaluated at once: of similar size, within the budget."""
    start = 0
    for i in range(1, len(sizes) + 1):
        group = sizes[start : i + 1]
        cost = len(group) * (parameters + max(group) * width)
        uneven = 2 * min(group) < max(group)
        if i == len(sizes) or one_by_one or uneven or cost > PASS:
            yield start, i
            start = i
