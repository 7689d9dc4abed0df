"""Growing a tree from histograms: which split is the best of a node, and which nodes are split.

As in scikit-learn's boosting: the node with the largest gain is split first, until there are enough
leaves. Here nodes of one depth are looked at together, as each look is a request to all clients. A
node that would not be among the best splits so far cannot be among them later, when more are
known, so it is not asked for. The tree is that of splitting one node after the other.
"""

import heapq
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from commonweal.models.tree_ensemble import LARGEST
from commonweal.training.bins import Bins

Floats = NDArray[np.float64]
TINY = 1e-15  # keeps quotients finite where no row has a second derivative
NOISE = 1e-12  # of a gain, relative to what it is the difference of
FIRST, SECOND, ROWS = 0, 1, 2  # the columns of sums
LEFT, RIGHT = 3, 4  # the columns of nodes


class Limits(NamedTuple):
    """The limits at which a tree stops growing, and the share of its steps that is taken.

    Attributes:
        leaves: The largest number of leaves.
        depth: The largest number of splits on the way to a leaf.
        rows: The least number of rows of a leaf.
        curvature: The least sum of second derivatives of a leaf.
        l2: Is added to sums of second derivatives: shrinks the values of small leaves.
        lr: By which leaves' values are multiplied.
    """

    leaves: int
    depth: int
    rows: int = 20
    curvature: float = 1e-3
    l2: float = 0.0
    lr: float = 0.1


class TreeSplit(NamedTuple):
    """A question that divides a node. Sums are of first and second derivatives, and rows (3,)."""

    gain: float
    feature: int
    threshold: float
    missing_left: bool
    left: Floats
    right: Floats


class Question(NamedTuple):
    """The possible splits of nodes: after each cell, with missing values on the right or left.

    Attributes:
        feature: Of each cell (cells,).
        threshold: After each cell (cells,); after the last one all values are below it.
        is_right: The cells after which a split has missing values on the right (cells,).
        is_left: Those after which it has them on the left (cells,).
        has_missing: Whether the feature of a cell has missing values (cells,).
    """

    feature: NDArray[np.int64]
    threshold: NDArray[np.float32]
    is_right: NDArray[np.bool_]
    is_left: NDArray[np.bool_]
    has_missing: NDArray[np.bool_]

    @classmethod
    def of(cls, bins: Bins, features: NDArray[np.int64], clients: NDArray[np.int64]) -> "Question":
        """The possible splits between bins, and between a client and the others.

        Args:
            bins: The bins of some features.
            features: Which these are.
            clients: The features that are 1 for one client; empty: trees do not ask for it.
        """
        count = len(clients)
        shift = bins.starts - (bins.lengths.cumsum() - bins.lengths)
        between = np.arange(len(bins.cuts)) + np.repeat(shift, bins.lengths)  # cells before cuts
        last = (bins.starts + bins.lengths)[bins.missing]  # of values that are not missing
        threshold = np.full(bins.total, LARGEST, np.float32)
        threshold[between] = bins.cuts
        is_right = np.zeros(bins.total, np.bool_)
        is_right[between] = True
        is_right[last] = True  # all values on one side and missing ones on the other
        has_missing = np.repeat(bins.missing, bins.sizes)
        is_left = has_missing & (threshold < LARGEST)
        none = np.zeros(count, np.bool_)
        return cls(
            np.concatenate([np.repeat(features, bins.sizes), clients]),
            np.concatenate([threshold, np.full(count, 0.5, np.float32)]),
            np.concatenate([is_right, ~none]),
            np.concatenate([is_left, none]),
            np.concatenate([has_missing, none]),
        )


def best_splits(
    histograms: Floats, bins: Bins, question: Question, limits: Limits
) -> list[TreeSplit | None]:
    """The best split of each node, or None where none gains anything.

    Args:
        histograms: The sums of derivatives and the rows, by cell (nodes, 3, cells).
        bins: The bins of the features.
        question: The possible splits.
        limits: What a split must leave.
    """
    totals = histograms[..., : bins.sizes[0]].sum(2)  # (nodes, 3): all bins of any feature
    left = histograms.copy()
    ordered = left[..., : bins.total]
    ordered[..., bins.starts[1:]] -= np.add.reduceat(ordered, bins.starts, axis=2)[..., :-1]
    np.cumsum(ordered, axis=2, out=ordered)
    left[..., bins.total :] = totals[..., None] - left[..., bins.total :]  # others than a client
    lefts = [left]
    gains = [_gains(left, totals, question.is_right, limits)]
    if question.is_left.any():
        last = bins.starts + bins.sizes - 1
        missing = np.where(bins.missing, histograms[..., last], 0.0)
        lefts.append(left.copy())
        lefts[1][..., : bins.total] += np.repeat(missing, bins.sizes, axis=2)
        gains.append(_gains(lefts[1], totals, question.is_left, limits))
    splits: list[TreeSplit | None] = []
    for node, total in enumerate(totals):
        cells = [int(gain[node].argmax()) for gain in gains]
        best = [float(gain[node, cell]) for gain, cell in zip(gains, cells, strict=True)]
        side = int(np.argmax(best))
        least = NOISE * (total[FIRST] ** 2 / (total[SECOND] + limits.l2 + TINY))
        if not best[side] > least:
            splits.append(None)
            continue
        cell = cells[side]
        feature = int(question.feature[cell])
        below = lefts[side][node, :, cell]
        above = total - below
        missing_left = side == 1
        if not question.has_missing[cell]:  # such rows go where most are
            missing_left = bool(below[ROWS] > above[ROWS])
        threshold = float(question.threshold[cell])
        splits.append(TreeSplit(best[side], feature, threshold, missing_left, below, above))
    return splits


def _gains(left: Floats, totals: Floats, asked: NDArray[np.bool_], limits: Limits) -> Floats:
    """Return twice the fall of the loss by each split (nodes, cells); -inf: not allowed."""
    total = totals[..., None]
    right = total - left
    # In the order of scikit-learn's operations: splits of equal gain are ordered by rounding.
    gains: Floats = _score(left, limits) - _score(total, limits)
    gains += _score(right, limits)
    allowed = (left[:, ROWS] >= limits.rows) & (right[:, ROWS] >= limits.rows) & asked
    allowed &= (left[:, SECOND] >= limits.curvature) & (right[:, SECOND] >= limits.curvature)
    gains[~allowed] = -np.inf
    return gains


def _score(sums: Floats, limits: Limits) -> Floats:
    score: Floats = sums[:, SECOND] + limits.l2
    score += TINY
    np.divide(sums[:, FIRST], score, out=score)
    score *= sums[:, FIRST]
    return score


@dataclass
class TreeNode:
    """A node of a growing tree."""

    sums: Floats  # (3,)
    depth: int
    split: TreeSplit | None = None
    children: tuple[int, int] | None = None
    histogram: Floats | None = None  # (3, cells), until its children's are known


@dataclass
class Growing:
    """A tree between requests.

    Attributes:
        bins: The bins of the features.
        question: The possible splits.
        limits: When it stops growing.
        nodes: The root is the first.
        asked: The nodes whose histograms are requested.
    """

    bins: Bins
    question: Question
    limits: Limits
    nodes: list[TreeNode] = field(default_factory=lambda: [TreeNode(np.zeros(3), 0)])
    asked: list[int] = field(default_factory=lambda: [0])

    def receive(self, histograms: Floats) -> None:
        """Take the histograms (asked, 3, cells), and ask for those of the next depth."""
        known = self.asked
        if known == [0]:
            self.nodes[0].sums = histograms[0, :, : self.bins.sizes[0]].sum(1)
        for k, histogram in zip(self.asked, histograms, strict=True):
            self.nodes[k].histogram = histogram
        known = known + self._subtract()
        self._find_splits(known)
        self.asked = []
        chosen = self.chosen()
        for k, node in enumerate(self.nodes):
            if k not in chosen:  # it never will be
                node.histogram = None
        for k in chosen:
            if self.nodes[k].children is None:
                self._divide(k)

    def _subtract(self) -> list[int]:
        """Set the histograms of the siblings of those that were asked for; returns the siblings."""
        others = []
        for node in self.nodes:
            if node.children is None or node.histogram is None:
                continue
            pair = node.children
            asked = [k for k in pair if self.nodes[k].histogram is not None]
            if asked:
                sibling = pair[1] if asked == [pair[0]] else pair[0]
                own = self.nodes[asked[0]].histogram
                assert own is not None
                self.nodes[sibling].histogram = node.histogram - own
                node.histogram = None
                others.append(sibling)
        return others

    def _find_splits(self, known: list[int]) -> None:
        """Find the best splits of nodes whose histograms are known."""
        open_nodes = [k for k in known if self._may_split(self.nodes[k])]
        if not open_nodes:
            return
        found = [self.nodes[k].histogram for k in open_nodes]
        histograms = np.stack([histogram for histogram in found if histogram is not None])
        splits = best_splits(histograms, self.bins, self.question, self.limits)
        for k, split in zip(open_nodes, splits, strict=True):
            self.nodes[k].split = split

    def _may_split(self, node: TreeNode) -> bool:
        """Return whether a node is neither too deep nor too small."""
        enough = node.sums[ROWS] >= 2 * self.limits.rows
        return bool(node.depth < self.limits.depth and enough)

    def _divide(self, k: int) -> None:
        """Give a node its children, and ask for the smaller one's histogram if one may split."""
        node = self.nodes[k]
        assert node.split is not None
        first = len(self.nodes)
        pair = TreeNode(node.split.left, node.depth + 1), TreeNode(node.split.right, node.depth + 1)
        node.children = first, first + 1
        self.nodes += pair
        if any(map(self._may_split, pair)):
            is_right = bool(pair[1].sums[ROWS] <= pair[0].sums[ROWS])
            self.asked.append(first + is_right)
        else:
            node.histogram = None

    def chosen(self) -> list[int]:
        """The nodes that are split, the largest gain first, of all that is known so far."""
        chosen: list[int] = []
        waiting: list[tuple[float, int]] = []

        def add(k: int) -> None:
            split = self.nodes[k].split
            if split is not None:
                heapq.heappush(waiting, (-split.gain, k))

        add(0)
        while waiting and len(chosen) < self.limits.leaves - 1:
            _, k = heapq.heappop(waiting)
            chosen.append(k)
            for child in self.nodes[k].children or ():
                add(child)
        return chosen

    def so_far(self) -> Floats:
        """All nodes (n, 6) as the fields of `Trees`, for clients to find where their rows are."""
        table = np.zeros((len(self.nodes), 6))
        table[:, LEFT] = table[:, RIGHT] = np.arange(len(self.nodes))
        for k, node in enumerate(self.nodes):
            if node.children is not None and node.split is not None:
                table[k] = _fields(node.split, *node.children, 0.0)
        return table

    def finished(self) -> Floats:
        """The nodes (n, 6) of the tree as the fields of `Trees`, with the values of its leaves."""
        chosen = set(self.chosen())
        order = [0]
        table = []
        for k in order:  # which grows
            node = self.nodes[k]
            if k in chosen and node.split is not None and node.children is not None:
                first = len(order)
                order += node.children
                table.append(_fields(node.split, first, first + 1, 0.0))
            else:
                number = len(table)
                table.append(np.array([0, 0, 0, number, number, self._value(node)], np.float64))
        return np.stack(table)

    def _value(self, leaf: TreeNode) -> float:
        first, second, _ = leaf.sums
        return float(-self.limits.lr * first / (second + self.limits.l2 + TINY))

    def gains(self, features: int) -> Floats:
        """Return the gains by each feature (features,); those of splits by clients are the last."""
        total = np.zeros(features)
        for k in self.chosen():
            split = self.nodes[k].split
            if split is not None:
                total[min(split.feature, features - 1)] += split.gain
        return total


def _fields(split: TreeSplit, left: int, right: int, value: float) -> Floats:
    threshold = np.float64(split.threshold)
    return np.array([split.feature, threshold, split.missing_left, left, right, value])
