"""Work of clients for boosting: the outputs of the trees so far, derivatives and bins.

Each request says all that an answer needs, so that a client keeps nothing between them. What it has
computed for one request is remembered for the next, as long as it follows from it.
"""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from commonweal.base.tensors import Tensors
from commonweal.data.rows import Rows
from commonweal.models.tree_ensemble import Trees, descend, leaf_values
from commonweal.task.task import Task
from commonweal.training import gradients
from commonweal.training.bins import Bins
from commonweal.training.histograms import Cells, exact, histograms

Floats = NDArray[np.float64]
LEFT = 3  # the column of trees
AT_ONCE = 1 << 18  # rows whose leaves are found together


class TreeWork:
    """The rows of some clients, and what was computed of them.

    Args:
        task: Its module is a `TreeEnsemble`.
        rows: The clients' training rows.
        depth: The largest number of splits on the way to a leaf.
    """

    def __init__(self, task: Task, rows: Rows, depth: int) -> None:
        self.task = task
        self.rows = rows
        self.depth = depth
        self.client: Tensor | None = None  # whose row each is (N,), where trees ask for it
        self.x = task.ready_tensor(rows.x).reshape(len(rows.y), -1).float()
        self._trees = torch.empty(0, 0, 6)
        self._base = torch.empty(0)
        self._sums = torch.empty(0)
        self._derivatives: tuple[Floats, Floats] | None = None
        self._ordered: tuple[Tensor, Tensor] | None = None  # until there are bins
        self._bins: Bins | None = None
        self._cells: Cells | None = None
        self._drawn: tuple[tuple[int, ...], Cells, Bins] | None = None
        self._tree = torch.empty(0, 0, 6)  # the growing one, of each column
        self._level = 0  # its depth
        self._nodes = torch.empty(0, 0, dtype=torch.int64)  # where the rows are in it

    def name(self, ids: Tensor, clients: Tensor) -> None:
        """Say which clients some positions in the rows are, for trees that ask for it."""
        named = torch.full((len(self.rows.sizes),), -1)
        if self.client is not None:
            first = self.rows.offsets[:-1].clamp(max=len(self.client) - 1)
            named = self.client[first]
        if torch.equal(named[ids], clients):
            return
        named[ids] = clients
        self.client = named.repeat_interleave(self.rows.sizes)
        self._trees = torch.empty(0, 0, 6)  # what was computed was for others
        self._base = torch.empty(0)
        self._tree = torch.empty(0, 0, 6)
        self._drawn = None

    def ordered(self, index: Tensor) -> Tensor:
        """The values of each feature of some rows in their order, (features, n); NaN is last."""
        if self._ordered is None or not torch.equal(self._ordered[0], index):
            self._ordered = index, torch.from_numpy(np.sort(self.x[index].T.numpy(), axis=1))
        return self._ordered[1]

    def sums(self, message: Tensors) -> Tensor:
        """Return the outputs of the trees so far for all rows, (N, columns)."""
        table, base = message["trees"], message["base"]
        known = len(self._trees)
        continues = (
            torch.equal(self._base, base)
            and known <= len(table)
            and self._trees.shape[1:] == table.shape[1:]
            and torch.equal(self._trees, table[:known])
        )
        if not continues:
            known = 0
            start = base[1:] - base[:1] if len(base) == 2 else base
            self._sums = start.double().repeat(len(self.rows.y), 1)
        if known < len(table) or not continues:
            self._add(Trees.unpacked(table[known:]))
            self._trees, self._base = table, base
            self._derivatives = None
        return self._sums

    def _parts(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        """The rows in parts, each with whose they are."""
        for begin in range(0, max(1, len(self.x)), AT_ONCE):
            part = slice(begin, begin + AT_ONCE)
            yield self.x[part], None if self.client is None else self.client[part]

    def _add(self, trees: Trees) -> None:
        """Add the values of further trees to the sums, one after another."""
        columns = self._sums.shape[1]
        for begin in range(0, len(trees.feature), columns):
            some = Trees(*(values[begin : begin + columns] for values in trees))
            parts = [leaf_values(some, x, self.depth, own) for x, own in self._parts()]
            self._sums = self._sums + torch.cat(parts).squeeze(-1)

    def outputs(self, message: Tensors) -> Tensor:
        """The outputs (N, outputs) of the trees so far, in float64."""
        sums = self.sums(message)
        base = message["base"]
        if len(base) == 2:
            sums = torch.cat([base[0] + torch.zeros_like(sums), base[0] + sums], 1)
        return sums

    def derivatives(self, message: Tensors) -> tuple[Floats, Floats]:
        """The first and second derivatives (N, columns) of the rows' losses."""
        sums = self.sums(message).numpy()
        if self._derivatives is None:
            task = self.task
            y = task.scaled(self.rows.y).double().numpy()
            if task.loss == "cox":
                self._derivatives = gradients.cox(sums, y, self.rows.offsets.numpy())
            else:
                self._derivatives = gradients.GRADIENTS[task.loss](sums, y)
            if task.class_weight is not None:
                factor = task.weight_of(self.rows.y).double().numpy()[:, None]
                first, second = self._derivatives
                self._derivatives = first * factor, second * factor
        return self._derivatives

    def cells(self, message: Tensors) -> tuple[Cells, Bins]:
        """The rows' cells in the bins of the features that a message names, and these bins."""
        bins = bins_of(message)
        features, clients = message["features"].numpy(), int(message["clients"])
        if self._cells is None or self._bins is None or not self._bins.equals(bins):
            self._cells = Cells.of(self.x, bins)
            self._bins = bins
            self._ordered = self._drawn = None
        key = (*features.tolist(), clients)
        if self._drawn is None or self._drawn[0] != key:
            some = bins.only(features)
            cells = self._cells.only(features, bins, some)
            if clients:
                assert self.client is not None
                cells = cells.with_clients(self.client.numpy(), clients)
            self._drawn = key, cells, some
        return self._drawn[1:]

    def nodes(self, tree: Tensor, level: int) -> Tensor:
        """Return each row's node in a growing tree of each column (columns, n, 6), (N, columns)."""
        begin, position = 0, torch.zeros(len(self.x), len(tree), dtype=torch.int64)
        if self._grows_from(tree, level):
            begin, position = self._level, self._nodes
        trees = Trees.unpacked(tree)
        parts = [
            descend(trees, x, known, level - begin, own)
            for (x, own), known in zip(self._parts(), torch.split(position, AT_ONCE), strict=True)
        ]
        self._tree, self._level, self._nodes = tree, level, torch.cat(parts)
        return self._nodes

    def _grows_from(self, tree: Tensor, level: int) -> bool:
        """Return whether a tree is the last one with some of its leaves divided."""
        before = self._tree
        if len(before) != len(tree) or before.shape[1] > tree.shape[1] or level < self._level:
            return False
        same = (before == tree[:, : before.shape[1]]).all(-1)
        is_leaf = before[..., LEFT] == torch.arange(before.shape[1])
        return bool((same | is_leaf).all())

    def histograms(self, message: Tensors, row_weight: Floats) -> tuple[Tensor, Tensor]:
        """The histograms that a message asks for, summed over the rows.

        Args:
            message: The trees so far, the growing ones, the bins, and in which slot each node's
                rows are added up.
            row_weight: By which each row's derivatives are multiplied (N,); 0: it does not count.

        Returns:
            The sums of derivatives (slots, cells, 2), and the rows (slots, cells).
        """
        cells, bins = self.cells(message)
        first, second = self.derivatives(message)
        nodes = self.nodes(message["tree"], int(message["level"])).numpy()
        sums, rows = [], []
        for column, slots in enumerate(message["slots"].numpy()):
            asked = slots[slots >= 0]
            if len(asked) == 0:
                continue
            slot = slots[nodes[:, column]] - asked.min()
            counted = np.flatnonzero((slot >= 0) & (row_weight > 0))
            both = np.stack([first[counted, column], second[counted, column]], 1)
            weighted = exact(both * row_weight[counted, None])
            own = histograms(cells, bins, counted, slot[counted], weighted, len(asked))
            sums.append(own[0])
            rows.append(own[1])
        return torch.from_numpy(np.concatenate(sums)), torch.from_numpy(np.concatenate(rows))

    def below(self, message: Tensors, row_weight: Floats) -> Tensor:
        """The weights of the rows of each leaf whose labels exceed the sums by at most a number.

        Args:
            message: The trees so far, another one, the slots of its leaves, and for each leaf
                numbers in rising order (slots, k).
            row_weight: Of each row (N,).

        Returns:
            The weights (slots, k).
        """
        rest = self.task.scaled(self.rows.y).double().numpy() - self.sums(message)[:, 0].numpy()
        nodes = self.nodes(message["tree"], int(message["level"]))[:, 0].numpy()
        slot = np.where(row_weight > 0, message["slots"][0].numpy()[nodes], -1)
        order = np.lexsort((rest, slot))
        ends = np.searchsorted(slot[order], np.arange(len(message["thresholds"])), side="right")
        begins = np.searchsorted(slot[order], np.arange(len(message["thresholds"])))
        below = []
        for begin, end, own in zip(begins, ends, message["thresholds"].numpy(), strict=True):
            rows = order[begin:end]
            weights = np.concatenate([[0.0], exact(row_weight[rows]).cumsum()])
            below.append(weights[np.searchsorted(rest[rows], own, side="right")])
        return torch.from_numpy(np.stack(below))


def bins_of(message: Tensors) -> Bins:
    """The bins that a message describes."""
    return Bins(*(message[name].numpy() for name in ("cuts", "lengths", "missing")))
