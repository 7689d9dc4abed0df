"""Evaluation of one model on all clients' rows, and of each client's own model on its rows."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Optional

import torch
from torch import Tensor

from commonweal.base.packing import pack
from commonweal.base.tensors import Tensors, select
from commonweal.base.threads import in_threads
from commonweal.data.rows import Rows
from commonweal.data.samples import Inputs, Lazy
from commonweal.task.members import member_outputs
from commonweal.task.memory_format import channels_last
from commonweal.task.task import Task
from commonweal.task.uses import Uses, mix_outputs, partner_weights, recalibrated
from commonweal.task.vectorize import Vectorize, single, vmap_clients
from commonweal.training.dense import DenseStack, dense_stack

PASS = 1 << 22  # numbers that a forward pass may hold: 16 MB


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
    refused: Mapping[int, str] = field(default_factory=dict)  # client -> why it sent nothing

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

    def without(self, refused: Mapping[int, str]) -> "Evaluation":
        """The evaluation without the values of some clients."""
        missing = torch.zeros(len(self.sizes), dtype=torch.bool)
        missing[list(refused)] = True
        return replace(
            self,
            losses=self.losses.masked_fill(missing, torch.nan),
            scores={k: v.masked_fill(missing, torch.nan) for k, v in self.scores.items()},
            sizes=self.sizes.masked_fill(missing, 0),
            undefined=missing if self.undefined is None else self.undefined | missing,
            personal=None if self.personal is None else self.personal.without(refused),
            partners=None
            if self.partners is None
            else self.partners.masked_fill(missing, torch.nan),
            refused=refused,
        )

    def updated(self, ids: Tensor, other: "Evaluation") -> "Evaluation":
        """Replace the values of these clients by those of another evaluation, (S,)."""
        losses = self.losses.index_copy(0, ids, other.losses)
        scores = {}
        for name, values in self.scores.items():
            scores[name] = values.index_copy(0, ids, other.scores[name])
        partners = self.partners
        if other.partners is not None:
            before = torch.full_like(self.losses, torch.nan) if partners is None else partners
            partners = before.index_copy(0, ids, other.partners)
        return replace(self, losses=losses, scores=scores, partners=partners)


def evaluate(task: Task, w: Tensor, rows: Rows, ids: Tensor | None = None) -> Evaluation:
    """Evaluate one model on each client's rows: one pass over all, then a reduction by client."""
    index, offsets = (None, rows.offsets) if ids is None else rows.index_of(ids)
    losses, stats = evaluate_rows(task, w, rows, index)
    return by_client(task, losses, stats, offsets)


def evaluate_models(
    task: Task, uses: Uses, rows: Rows, ids: Tensor, vectorize: Vectorize
) -> Evaluation:
    """Evaluate what each client uses on its own samples: `uses` has a client axis (S, ...)."""
    losses, stats = evaluate_rows_by_models(task, uses, rows, ids, vectorize)
    evaluation = by_client(task, losses, stats, rows.offsets_of(ids))
    partners = partner_weights(task, uses)
    if partners is None:
        return evaluation
    return replace(evaluation, partners=partners.to(evaluation.losses.dtype))


def by_client(task: Task, losses: Tensor, stats: Tensors, offsets: Tensor) -> Evaluation:
    """Reduce the losses and statistics of rows by client, whose rows begin at these offsets."""
    scores = {}
    for name, values in stats.items():
        scores[name] = task.find_score(name).reduce(values, offsets)
    return Evaluation(task.mean_losses(losses, offsets), scores, offsets.diff())


def passes(task: Task, rows: Rows, total: int | None = None) -> list[slice]:
    """The forward passes in which rows are evaluated: all of them, or so many."""
    at_once = _rows_at_once(task, rows)
    count = len(rows.y) if total is None else total
    begins = range(0, max(count, 1), at_once)  # without rows: one empty pass
    return [slice(begin, begin + at_once) for begin in begins]


def evaluate_rows(
    task: Task,
    w: Tensor,
    rows: Rows,
    index: Tensor | None = None,
    parts: Sequence[slice] | None = None,
) -> tuple[Tensor, Tensors]:
    """The loss and the statistics of every row, or of those with some numbers, by one model (d,).

    parts: the passes that are made; None: all of them
    """
    if parts is None:
        parts = passes(task, rows, None if index is None else len(index))
    task = channels_last(task, rows.inputs)
    w = w.to(rows.device)

    @torch.no_grad()
    def evaluate_part(part: slice) -> tuple[Tensor, Tensors]:
        chosen = part if index is None else index[part]
        return task.evaluate_rows(w, rows.inputs[chosen], rows.y[chosen])

    total = len(rows.y) if index is None else len(index)
    count = sum(len(range(total)[part]) for part in parts)
    return joined(in_threads(evaluate_part, parts, _pieces(rows, len(parts))), count)


def evaluate_rows_by_models(
    task: Task, uses: Uses, rows: Rows, ids: Tensor, vectorize: Vectorize
) -> tuple[Tensor, Tensors]:
    """The loss and the statistics of every sample by what its client uses, client after client.

    `uses` has a client axis (S, ...); `ids` are the positions (S,) of these clients in `rows`.
    """
    if vectorize is single:
        task = channels_last(task, rows.inputs)
    uses = uses.map(lambda value: value.to(rows.device))
    can_be_dense = vectorize is vmap_clients and isinstance(rows.inputs, Tensor)
    stack = dense_stack(task) if can_be_dense else None
    at_once = _rows_at_once(task, rows)
    sizes = rows.sizes[ids]
    costs = task.size + sizes * task.width(rows.inputs)
    budget = 0 if vectorize is single else PASS

    @torch.no_grad()
    def evaluate_group(group: slice) -> list[tuple[Tensor, Tensors]]:
        own = _part(uses, group)
        parts = []
        for row, real in _padded(rows, ids[group], at_once):
            x, y = rows.inputs[row], rows.y[row]
            losses, stats = _evaluate_group(task, stack, vectorize, own, x, y)
            parts.append((losses[real], select(stats, real)))
        return parts

    groups = pack(costs.tolist(), budget, sizes.tolist())
    parts = in_threads(evaluate_group, groups, _pieces(rows, len(groups)))
    return joined(chain.from_iterable(parts), int(sizes.sum()))


def _pieces(rows: Rows, count: int) -> int:
    """The pieces of work that threads may share: one where samples are read or elsewhere."""
    shared = rows.device.type == "cpu" and not isinstance(rows.inputs, Lazy)
    return count if shared else 1


def _rows_at_once(task: Task, rows: Rows) -> int:
    """The rows of a forward pass: fewer where samples are read when needed."""
    budget = PASS // 16 if isinstance(rows.inputs, Lazy) else PASS
    return max(1, budget // task.width(rows.inputs))


def _evaluate_group(
    task: Task, stack: DenseStack | None, vectorize: Vectorize, uses: Uses, x: Inputs, y: Tensor
) -> tuple[Tensor, Tensors]:
    """The losses (S, B) and statistics of clients' samples (S, B, ...) by what they use."""
    others = _outputs_of_others(task, uses, x)
    if stack is None:

        def evaluate_one(
            models: Tensor, weights: Tensor, x: Inputs, y: Tensor, *further: Tensor
        ) -> tuple[Tensor, Tensors]:
            outputs = [task.raw_outputs(w, x) for w in models]
            mixed = _mixed(task, [*outputs, *further[: len(others)]], weights)
            line = dict(zip(uses.calibration, further[len(others) :], strict=True))
            return task.row_results(recalibrated(mixed, line), y)

        further = (*others, *uses.calibration.values())
        axes = (0,) * (4 + len(further))
        return vectorize(evaluate_one, axes)(uses.models, uses.weights, x, y, *further)
    assert isinstance(x, Tensor)
    outputs = [stack.outputs(w, x) for w in uses.models.unbind(1)]
    mixed = _mixed(task, [*outputs, *others], uses.weights.T)
    mixed = recalibrated(mixed, uses.calibration)
    losses, stats = task.row_results(mixed.flatten(0, 1), y.flatten())
    for name, values in stats.items():
        stats[name] = values.view(*y.shape, -1)
    return losses.view(y.shape), stats


def _part(uses: Uses, group: slice) -> Uses:
    """Select what some of the clients use."""
    return uses.map(lambda value: value[group])


def _outputs_of_others(task: Task, uses: Uses, x: Inputs) -> list[Tensor]:
    """Return what each client's models of other kinds give for its samples, (S, B, k) each."""
    outputs = []
    for kind, vectors in uses.others.items():
        assert isinstance(x, Tensor)  # others have networks only
        pairs = zip(vectors, x, strict=True)
        each = [member_outputs(kind, vector, task.ready_tensor(own)) for vector, own in pairs]
        outputs.append(torch.stack(each))
    return outputs


def _mixed(task: Task, outputs: list[Tensor], weights: Tensor) -> Tensor:
    """The outputs of a mixture of models; those of a single one stay as they are."""
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


def joined(parts: Iterable[tuple[Tensor, Tensors]], count: int) -> tuple[Tensor, Tensors]:
    """The losses and statistics of so many rows from those of consecutive parts.

    They are copied part by part: small tensors that stay between large ones which are freed would
    keep their memory from being used again.
    """
    everything: Tensors = {}
    begin = 0
    for losses, stats in parts:
        for name, values in {"": losses, **stats}.items():
            if name not in everything:
                everything[name] = values.new_empty(count, *values.shape[1:])
            everything[name][begin : begin + len(values)] = values
        begin += len(losses)
    return everything.pop(""), everything
