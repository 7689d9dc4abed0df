"""Work of clients for boosting: the outputs of the trees so far, derivatives and bins.

Each request says all that an answer needs, so that a client keeps nothing between them. What it has
computed for one request is remembered for the next, as long as it follows from it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from commonweal.base.tensors import Tensors
from commonweal.data.rows import Rows
from commonweal.models.tree_ensemble import Trees, leaf_values
from commonweal.task.task import Task
from commonweal.training import gradients
from commonweal.training.bins import Bins
from commonweal.training.histograms import Codes, Histograms, codes_of, exact

Floats = NDArray[np.float64]
Numbers = NDArray[np.uint32]
LEFT, VALUE = 3, 5  # the columns of trees
AT_ONCE = 1 << 18  # rows whose leaves are found together


@dataclass
class Part:
    """The rows that reach a node of a tree: those of its children once it is divided.

    Attributes:
        rows: Their numbers (n,).
        question: By which it is divided: feature, threshold, whether missing values go left.
        children: The parts on the left and right.
    """

    rows: Numbers | None
    question: Sequence[float] = ()
    children: tuple["Part", ...] = ()

    def pieces(self) -> Iterator[Numbers]:
        """The numbers of its rows, in pieces."""
        if self.rows is not None:
            yield self.rows
        for child in self.children:
            yield from child.pieces()

    @property
    def numbers(self) -> Numbers:
        """The numbers of its rows (n,)."""
        return np.concatenate(list(self.pieces())) if self.rows is None else self.rows


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
        self._ordered: tuple[Tensor, Tensor] | None = None  # until there are bins
        self._bins: Bins | None = None
        self._codes: Codes = np.empty((0, 0), np.uint8)
        self._forget()

    def _forget(self) -> None:
        """Forget what was computed by trees."""
        self._trees = torch.empty(0, 0, 6)
        self._base = torch.empty(0)
        self._sums = np.empty((0, 0))
        self._derivatives: tuple[Floats, Floats] | None = None
        self._weighing: tuple[Tensor, ...] = ()
        self._weights = np.empty(0)
        self._roots: list[Part] = []  # of the growing tree of each column
        self._adding: tuple[tuple[int, ...], list[Histograms]] | None = None

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
        self._forget()  # it was for others

    def weigh(self, key: tuple[Tensor, ...], weights: Callable[[], Floats]) -> None:
        """Set by what each row's derivatives are multiplied (N,); 0: it does not count.

        Args:
            key: The weights are those of before where this is the same.
            weights: Computes them.
        """
        if len(key) == len(self._weighing) and all(map(torch.equal, key, self._weighing)):
            return
        self._weighing, self._weights = key, weights()
        self._roots = []
        self._adding = None

    def ordered(self, index: Tensor) -> Tensor:
        """The values of each feature of some rows in their order, (features, n); NaN is last."""
        if self._ordered is None or not torch.equal(self._ordered[0], index):
            self._ordered = index, torch.from_numpy(np.sort(self.x[index].T.numpy(), axis=1))
        return self._ordered[1]

    def sums(self, message: Tensors) -> Floats:
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
            self._trees = table[:0]
            start = base[1:] - base[:1] if len(base) == 2 else base
            self._sums = start.double().repeat(len(self.rows.y), 1).numpy()
        new = table[len(self._trees) :]
        if len(new) or not continues:
            self._add(new)
            self._trees, self._base = table, base
            self._derivatives = None
            self._adding = None
        return self._sums

    def _add(self, table: Tensor) -> None:
        """Add the values of further trees to the sums, one after another."""
        others = np.arange(len(self.x))
        if len(self._roots) == len(table):  # they grew here
            for column, tree in enumerate(table):
                values, sums = tree[:, VALUE].tolist(), self._sums[:, column]
                for leaf, part in self._reached(column, tree):
                    for rows in part.pieces():
                        sums[rows] += values[leaf]
            others = np.flatnonzero(self._weights <= 0)
        columns = self._sums.shape[1]
        for start in range(0, len(others), AT_ONCE):
            chunk = others[start : start + AT_ONCE]
            client = None if self.client is None else self.client[chunk]
            for begin in range(0, len(table), columns):
                some = Trees.unpacked(table[begin : begin + columns])
                added = leaf_values(some, self.x[chunk], self.depth, client)
                self._sums[chunk] += added.squeeze(-1).numpy()

    def outputs(self, message: Tensors) -> Tensor:
        """The outputs (N, outputs) of the trees so far, in float64."""
        sums = torch.from_numpy(self.sums(message))
        base = message["base"]
        if len(base) == 2:
            sums = torch.cat([base[0] + torch.zeros_like(sums), base[0] + sums], 1)
        return sums

    def derivatives(self, message: Tensors) -> tuple[Floats, Floats]:
        """The first and second derivatives (N, columns) of the rows' losses."""
        sums = self.sums(message)
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

    def _find_codes(self, message: Tensors) -> Bins:
        """Find the rows' bins, once."""
        bins = bins_of(message)
        if self._bins is None or not self._bins.equals(bins):
            self._codes, self._bins = codes_of(self.x, bins), bins
            self._ordered = self._adding = None
            self._roots = []
        return self._bins

    def _reached(self, column: int, tree: Tensor) -> Iterator[tuple[int, Part]]:
        """Yield the leaves of a column's tree (n, 6), with the rows that count and reach them."""
        if not self._roots:
            rows = np.flatnonzero(self._weights > 0).astype(np.uint32)
            self._roots = [Part(rows) for _ in range(self._sums.shape[1])]
        nodes = tree.tolist()
        waiting = [(0, self._roots[column])]
        while waiting:
            node, part = waiting.pop()
            *question, left, right, _ = nodes[node]
            if left == node:
                yield node, part
                continue
            self._divide(part, question)
            waiting += zip((int(left), int(right)), part.children, strict=True)

    def _divide(self, part: Part, question: list[float]) -> None:
        """Divide the rows of a part by a question, unless they are."""
        if part.question == question:
            return
        rows = part.numbers
        is_left = self._goes_left(rows, *question)
        part.rows = None
        part.question = question
        part.children = Part(rows.compress(is_left)), Part(rows.compress(~is_left))

    def _goes_left(
        self, rows: Numbers, feature: float, threshold: float, missing_left: float
    ) -> NDArray[np.bool_]:
        """Return which of some rows a question sends to the left."""
        number = int(feature) - len(self._codes)
        if number >= 0:
            assert self.client is not None
            other: NDArray[np.bool_] = self.client.numpy()[rows] != number
            return other
        assert self._bins is not None
        cuts = self._bins.of_feature(int(feature))
        codes = self._codes[int(feature)].take(rows)
        is_left: NDArray[np.bool_] = codes <= np.searchsorted(cuts, threshold)
        if missing_left:
            is_left |= codes > len(cuts)
        return is_left

    def histograms(self, message: Tensors) -> tuple[Tensor, Tensor]:
        """The histograms that a message asks for, summed over the rows.

        Args:
            message: The trees so far, the growing ones, the bins, and in which slot each node's
                rows are added up.

        Returns:
            The sums of derivatives (slots, 2, cells), and the rows (slots, cells).
        """
        bins = self._find_codes(message)
        adding = self._histograms(message, bins)
        sums, rows = [], []
        for column, slots in enumerate(message["slots"].numpy()):
            if slots.max() < 0:
                continue
            reached = self._reached(column, message["tree"][column])
            nodes = {slots[node]: part.numbers for node, part in reached if slots[node] >= 0}
            own = adding[column].of([nodes[slot] for slot in sorted(nodes)])
            sums.append(own[0])
            rows.append(own[1])
        return torch.from_numpy(np.concatenate(sums)), torch.from_numpy(np.concatenate(rows))

    def _histograms(self, message: Tensors, bins: Bins) -> list[Histograms]:
        """What adds up the rows for the tree of each column."""
        first, second = self.derivatives(message)
        features, clients = message["features"].numpy(), int(message["clients"])
        key = (*features.tolist(), clients)
        if self._adding is None or self._adding[0] != key:
            codes, some = self._codes, bins
            if len(features) < len(codes):
                codes, some = codes[features], bins.only(features)
            client = self.client.numpy() if self.client is not None and clients else None
            self._adding = (
                key,
                [
                    Histograms(
                        codes,
                        some,
                        exact(first[:, column] * self._weights),
                        exact(second[:, column] * self._weights),
                        client,
                        clients,
                    )
                    for column in range(first.shape[1])
                ],
            )
        return self._adding[1]

    def below(self, message: Tensors) -> Tensor:
        """The weights of the rows of each leaf whose labels exceed the sums by at most a number.

        Args:
            message: The trees so far, another one, the slots of its leaves, and for each leaf
                numbers in rising order (slots, k).

        Returns:
            The weights (slots, k).
        """
        rest = self.task.scaled(self.rows.y).double().numpy() - self.sums(message)[:, 0]
        if "cuts" in message:
            self._find_codes(message)
        slots, thresholds = message["slots"][0].numpy(), message["thresholds"].numpy()
        below = np.zeros(thresholds.shape)
        for leaf, part in self._reached(0, message["tree"][0]):
            rows = part.numbers
            rows = rows[np.argsort(rest[rows])]
            weights = np.concatenate([[0.0], exact(self._weights[rows]).cumsum(dtype=np.float64)])
            number = np.searchsorted(rest[rows], thresholds[slots[leaf]], side="right")
            below[slots[leaf]] = weights[number]
        return torch.from_numpy(below)


def bins_of(message: Tensors) -> Bins:
    """The bins that a message describes."""
    return Bins(*(message[name].numpy() for name in ("cuts", "lengths", "missing")))
