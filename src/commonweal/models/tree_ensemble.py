"""Trees as arrays: what boosting and forests predict with, without the library that grew them.

An ensemble is a module whose tensors have fixed shapes, so that it is a flat vector like any other
model: it is saved without pickling, sent, mixed, evaluated and exported as a network is.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from commonweal.base.errors import ConfigError

AT_ONCE = 1 << 18  # nodes at which samples are looked at together: their values fit a cache
ABSENT = -20.0  # the logit of a class that no sample has
LARGEST = float(np.finfo(np.float32).max)
LEAST = 1e-12  # a probability: that of a class without samples in any leaf has no logarithm
Link = Literal["identity", "log", "logit"]


class Trees(NamedTuple):
    """T binary trees of n nodes each. Node 0 is the root; a leaf leads to itself.

    All are floating-point numbers, so that they can be parts of a model's vector.

    Attributes:
        feature: The feature that a node compares (T, n).
        threshold: Samples whose value is at most this go left (T, n).
        missing_left: 1 where samples without a value go left, else 0 (T, n).
        left: The node on the left (T, n).
        right: The node on the right (T, n).
        value: What a leaf adds to the outputs (T, n, v).
    """

    feature: Tensor
    threshold: Tensor
    missing_left: Tensor
    left: Tensor
    right: Tensor
    value: Tensor

    @classmethod
    def empty(cls, count: int, nodes: int, width: int = 1) -> "Trees":
        """Trees that consist of a root, which adds nothing."""
        zeros = torch.zeros(count, nodes)
        itself = torch.arange(nodes, dtype=torch.float32).repeat(count, 1)
        left, right = itself, itself.clone()
        values = torch.zeros(count, nodes, width)
        return cls(zeros, zeros.clone(), zeros.clone(), left, right, values)

    @classmethod
    def unpacked(cls, table: Tensor) -> "Trees":
        """The trees of a table (T, n, 5 + v), whose columns are the fields in their order."""
        feature, threshold, missing_left, left, right = table[..., :5].unbind(-1)
        return cls(feature, threshold, missing_left, left, right, table[..., 5:])

    @property
    def packed(self) -> Tensor:
        """The trees as one table (T, n, 5 + v)."""
        return torch.cat([torch.stack(self[:-1], -1), self.value], -1)

    def replaced(self, first: int, others: "Trees") -> "Trees":
        """The trees with some from number `first` on replaced, whose nodes may be fewer."""
        last = first + len(others.feature)
        nodes = others.feature.shape[1]
        padded = Trees.empty(len(others.feature), self.feature.shape[1], self.value.shape[2])
        whole = []
        for mine, blank, theirs in zip(self, padded, others, strict=True):
            blank[:, :nodes] = theirs
            whole.append(torch.cat([mine[:first], blank, mine[last:]]))
        return Trees(*whole)


def descend(
    trees: Trees, x: Tensor, position: Tensor, steps: int, client: Tensor | None = None
) -> Tensor:
    """The nodes (N, T) that samples reach from others in so many steps.

    Args:
        trees: The trees.
        x: The samples (N, features).
        position: Where they are (N, T).
        steps: How many splits they pass.
        client: Whose sample each is (N,), for trees that ask for it: `own_trees`.
    """
    start = _starts(trees)
    feature = trees.feature.flatten().long()
    threshold = trees.threshold.flatten()
    missing_left = trees.missing_left.flatten() > 0
    children = torch.stack([trees.left, trees.right], -1).long() + start[:, None, None]
    children = children.flatten()  # of node k of all: 2 k on the left, 2 k + 1 on the right
    shape = position.shape
    node = (position + start).flatten()
    for _ in range(steps):
        asked = feature.index_select(0, node).view(shape)
        if client is None:
            value = x.gather(1, asked).flatten()
        else:
            value = _with_clients(x, asked, client).flatten()
        is_left = value <= threshold.index_select(0, node)
        is_left = is_left | (value.isnan() & missing_left.index_select(0, node))
        node = children.index_select(0, 2 * node + ~is_left)
    return node.view(shape) - start


def _with_clients(x: Tensor, feature: Tensor, client: Tensor) -> Tensor:
    """The values (N, T) of features, those after the last one being 1 for one client, else 0."""
    features = x.shape[1]
    is_own = (feature - features == client[:, None]).to(x.dtype)
    return torch.where(feature < features, x.gather(1, feature.clamp(max=features - 1)), is_own)


def own_trees(trees: Trees, features: int, client: Tensor | int) -> Trees:
    """The trees of one client, where trees may ask who the client is.

    Feature `features + k` is 1 for client k and 0 for others. In the trees of one client these
    questions have an answer, so that samples need no such features.

    Args:
        trees: The trees.
        features: How many features samples have.
        client: The client's number; -1 for one that no tree knows.
    """
    asks = trees.feature >= features
    is_own = asks & (trees.feature == features + client)
    answer = torch.where(is_own, -LARGEST, LARGEST)  # all go right, or left
    return trees._replace(
        feature=torch.where(asks, 0.0, trees.feature),
        threshold=torch.where(asks, answer, trees.threshold),
        missing_left=torch.where(asks, (~is_own).float(), trees.missing_left),
    )


def leaf_values(trees: Trees, x: Tensor, depth: int, client: Tensor | None = None) -> Tensor:
    """Return each tree's part of the outputs of samples (N, features), (N, T, v)."""
    root = torch.zeros(x.shape[0], len(trees.feature), dtype=torch.int64)
    leaf = descend(trees, x, root, depth, client) + _starts(trees)
    values = trees.value.flatten(0, 1).index_select(0, leaf.flatten())
    return values.view(*leaf.shape, trees.value.shape[-1])


def _starts(trees: Trees) -> Tensor:
    """The numbers (T,) of the roots, where the nodes of all trees are counted through."""
    count, nodes = trees.feature.shape
    return torch.arange(count) * nodes


class TreeEnsemble(nn.Module):
    """The sum of trees. Tree t adds to output t % columns, or to all where leaves have them all.

    Two classes have one column, the logit of the second one.

    Args:
        trees: The trees.
        base: The outputs without any tree (outputs,).
        depth: How many steps the deepest leaf is away from its root.
        link: Where sums are probabilities: the outputs are their logarithms, or their logits.

    >>> ensemble = TreeEnsemble(Trees.empty(count=4, nodes=3), torch.zeros(1), depth=1)
    >>> ensemble(torch.ones(2, 5)).tolist()
    [[0.0], [0.0]]
    """

    feature: Tensor
    threshold: Tensor
    missing_left: Tensor
    left: Tensor
    right: Tensor

    def __init__(
        self,
        trees: Trees,
        base: Tensor,
        depth: int,
        link: Link = "identity",
    ) -> None:
        super().__init__()
        self.value = nn.Parameter(trees.value)
        self.base = nn.Parameter(base)
        for name, tensor in zip(Trees._fields[:-1], trees, strict=False):
            self.register_buffer(name, tensor)
        self.depth = depth
        self.link = link

    @property
    def trees(self) -> Trees:
        """The arrays, as they are now."""
        questions = self.feature, self.threshold, self.missing_left, self.left, self.right
        return Trees(*questions, self.value)

    def extra_repr(self) -> str:
        count, nodes = self.trees.feature.shape
        return f"trees={count}, nodes={nodes}, depth={self.depth}, outputs={len(self.base)}"

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        if torch.compiler.is_exporting():  # the number of samples is not known
            return self._outputs(x)
        at_once = max(1, AT_ONCE // len(self.trees.feature))
        parts = [self._outputs(part) for part in torch.split(x, at_once)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _outputs(self, x: Tensor) -> Tensor:
        values = leaf_values(self.trees, x, self.depth).double()
        outputs = len(self.base)
        width = values.shape[-1]
        columns = count_columns(outputs) if width == 1 else 1
        rounds = values.shape[1] // columns
        sums = values.view(values.shape[0], rounds, columns, width).sum(1).flatten(1)
        if outputs == 2 and columns * width == 1:
            sums = torch.cat([torch.zeros_like(sums), sums], 1)
        sums = sums + self.base.double()
        if self.link == "log":
            sums = sums.clamp(min=LEAST).log()
        if self.link == "logit":
            sums = sums.logit(LEAST)
        return sums.float()


def count_columns(outputs: int) -> int:
    """Return the number of trees of single numbers in a round of boosting."""
    return 1 if outputs <= 2 else outputs


# As one vector, which says by itself what it is

LINKS: tuple[Link, ...] = ("identity", "log", "logit")
HEADER = 6  # numbers before the ensemble's own


def flattened(ensemble: TreeEnsemble, count: int, nodes: int) -> Tensor:
    """An ensemble as a vector, with room for so many trees of so many nodes."""
    trees = ensemble.trees
    width, outputs = trees.value.shape[2], len(ensemble.base)
    sizes = count, nodes, width, outputs, ensemble.depth, LINKS.index(ensemble.link)
    padded = Trees.empty(count, nodes, width).replaced(0, trees)
    parts = [torch.tensor(sizes), ensemble.base.detach(), padded.packed.detach().flatten()]
    return torch.cat(parts).float()


def unflattened(vector: Tensor) -> TreeEnsemble:
    """The ensemble of a vector that `flattened` made."""
    count, nodes, width, outputs, depth, link = vector[:HEADER].int().tolist()
    base, table = vector[HEADER : HEADER + outputs], vector[HEADER + outputs :]
    columns = Trees.unpacked(table.view(count, nodes, 5 + width))
    # Copies: torch.export warns of tensors that share a memory.
    trees = Trees(*(column.clone(memory_format=torch.contiguous_format) for column in columns))
    return TreeEnsemble(trees, base.clone(), depth, LINKS[link])


# From scikit-learn


def from_sklearn(model: Any, outputs: int) -> TreeEnsemble:
    """The ensemble that predicts as a fitted model of scikit-learn does.

    Its outputs are those of a module: logits of classes (logarithms of probabilities for forests),
    values of a regression, or logarithms of rates for the loss "poisson". Classes are 0, 1, ...

    Args:
        model: RandomForest..., ExtraTrees..., or HistGradientBoosting... without categorical
            features.
        outputs: How many numbers a sample has; 1 with classes is the logit of class 1.

    Raises:
        ConfigError: It is another model.
    """
    from sklearn.ensemble import (
        ExtraTreesClassifier,
        ExtraTreesRegressor,
        HistGradientBoostingClassifier,
        HistGradientBoostingRegressor,
        RandomForestClassifier,
        RandomForestRegressor,
    )

    forests = RandomForestClassifier, ExtraTreesClassifier
    if isinstance(model, (*forests, RandomForestRegressor, ExtraTreesRegressor)):
        return _forest(model, outputs, isinstance(model, forests))
    if isinstance(model, HistGradientBoostingClassifier | HistGradientBoostingRegressor):
        return _boosting(model, outputs, isinstance(model, HistGradientBoostingClassifier))
    raise ConfigError(
        f"{type(model).__name__} cannot be written as arrays: give a RandomForest..., "
        "ExtraTrees... or HistGradientBoosting... of scikit-learn"
    )


def _forest(model: Any, outputs: int, classifies: bool) -> TreeEnsemble:
    grown = [estimator.tree_ for estimator in model.estimators_]
    link: Link = "identity"
    if classifies:
        link = "logit" if outputs == 1 else "log"
    size = max(tree.node_count for tree in grown)
    trees = Trees.empty(len(grown), size, outputs)
    for t, tree in enumerate(grown):
        leaf = tree.children_left < 0
        values = tree.value[:, 0, :]
        if classifies:
            probabilities = np.zeros((tree.node_count, max(2, outputs)))
            probabilities[:, model.classes_.astype(np.int64)] = values
            values = probabilities[:, -outputs:]
        _write(
            trees,
            t,
            leaf,
            tree.feature,
            tree.threshold,
            tree.missing_go_to_left,
            tree.children_left,
            tree.children_right,
            values / len(grown),
        )
    depth = max(tree.max_depth for tree in grown)
    return TreeEnsemble(trees, torch.zeros(outputs), depth, link)


def _boosting(model: Any, outputs: int, classifies: bool) -> TreeEnsemble:
    grown = [[tree.nodes for tree in trees] for trees in model._predictors]
    if any(nodes["is_categorical"].any() for trees in grown for nodes in trees):
        raise ConfigError(
            "trees that split by categories cannot be written as arrays: give the categories as "
            "columns of 0 and 1, or as numbers"
        )
    start = model._baseline_prediction.flatten()  # (1,), or (classes,)
    columns = count_columns(outputs)
    base = torch.zeros(outputs)
    # What the trees of a round add to which columns, and with which sign.
    places = [(column, [(column, 1.0)]) for column in range(len(start))]
    if classifies:
        classes = model.classes_.astype(np.int64).tolist()
        base, places = _class_columns(classes, start, outputs)
    else:
        base += torch.from_numpy(start).float()
    size = max((len(nodes) for trees in grown for nodes in trees), default=1)
    trees = Trees.empty(max(1, len(grown)) * columns, size)
    for number, of_round in enumerate(grown):
        for tree, targets in places:
            for column, sign in targets:
                nodes = of_round[tree]
                _write(
                    trees,
                    number * columns + column,
                    nodes["is_leaf"].astype(bool),
                    nodes["feature_idx"],
                    nodes["num_threshold"],
                    nodes["missing_go_to_left"],
                    nodes["left"],
                    nodes["right"],
                    sign * nodes["value"][:, None],
                )
    depth = max((int(nodes["depth"].max()) for trees in grown for nodes in trees), default=0)
    return TreeEnsemble(trees, base, depth)


Places = list[tuple[int, list[tuple[int, float]]]]


def _class_columns(
    classes: Sequence[int], start: np.ndarray, outputs: int
) -> tuple[Tensor, Places]:
    """The outputs without trees, and the columns to which the trees of a round add, with signs.

    A client may lack classes: their outputs stay low.
    """
    if outputs <= 2:
        base = torch.zeros(outputs)
        base[-1] = float(start[0]) if len(classes) == 2 else (2 * classes[0] - 1) * -ABSENT
        return base, [(0, [(0, 1.0)])] if len(classes) == 2 else []
    base = torch.full((outputs,), ABSENT)
    if len(classes) == 2:  # one tree, of the logit between them
        first, second = classes
        base[first], base[second] = -float(start[0]) / 2, float(start[0]) / 2
        return base, [(0, [(first, -0.5), (second, 0.5)])]
    if len(classes) == 1:
        base[classes] = 0.0
        return base, []
    base[classes] = torch.from_numpy(start).float()
    return base, [(tree, [(column, 1.0)]) for tree, column in enumerate(classes)]


def _write(
    trees: Trees,
    t: int,
    leaf: np.ndarray,
    feature: np.ndarray,
    threshold: np.ndarray,
    missing_left: np.ndarray,
    left: np.ndarray,
    right: np.ndarray,
    value: np.ndarray,
) -> None:
    """Write the nodes of one tree into the arrays."""
    nodes = len(leaf)
    itself = np.arange(nodes)
    columns = (
        np.where(leaf, 0, feature),
        np.where(leaf, 0, not_above(threshold)),
        np.where(leaf, 0, missing_left),
        np.where(leaf, itself, left),
        np.where(leaf, itself, right),
        np.where(leaf[:, None], value, 0),
    )
    for array, column in zip(trees, columns, strict=True):
        array[t, :nodes] = torch.from_numpy(column.astype(np.float32))


def not_above(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """The largest float32 that is at most each number: it divides float32 in the same way."""
    with np.errstate(over="ignore"):
        rounded = values.astype(np.float32)
    return np.where(rounded > values, np.nextafter(rounded, np.float32(-np.inf)), rounded)
