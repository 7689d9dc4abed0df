"""Models of single clients that are no networks, as vectors: linear models, forests and boosting.

A client mixes their predictions with those of its network. Few samples often suit a linear model or
a forest better. Each kind is fitted by scikit-learn, and predicts without it.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from commonweal.data.rows import Rows
from commonweal.models.tree_ensemble import (
    TreeEnsemble,
    Trees,
    count_columns,
    flattened,
    from_sklearn,
    unflattened,
)
from commonweal.task.linear import LOSSES, count_outputs, linear_outputs
from commonweal.task.task import Task

KINDS = ("linear", "forest", "boosting")

MOST_FEATURES = 512  # of a table: more are pixels or other signals, which trees read badly
FOREST = 50  # trees
FOREST_LEAVES, FOREST_DEPTH = 32, 8
ROUNDS = 100  # of boosting
BOOSTING_LEAVES, BOOSTING_DEPTH = 31, 10
SEEDS = 1 << 31  # of scikit-learn


def has_trees(task: Task, rows: Rows) -> bool:
    """Return whether there are trees for this loss and these samples: rows of a table."""
    if task.loss not in LOSSES or rows.y.ndim > 1:
        return False
    x = rows.inputs
    if not isinstance(x, Tensor) or x.ndim != 2 or x.shape[1] > MOST_FEATURES:
        return False
    return x.is_floating_point()


def fit_trees(
    task: Task, rows: Rows, kind: str, draws: np.random.Generator, count: int = FOREST
) -> Tensor:
    """Fit a forest or boosting to the samples of one client. The task's loss decides which.

    Args:
        task: Its loss decides between classes and values.
        rows: The client's samples.
        kind: "forest" or "boosting".
        draws: The client's random numbers.
        count: The trees of a forest.
    """
    outputs = count_outputs(task, rows.x.shape[1:])
    leaves = FOREST_LEAVES
    if kind == "boosting":
        count, leaves = ROUNDS * count_columns(outputs), BOOSTING_LEAVES
    if len(rows.y) == 0:
        width = outputs if kind == "forest" else 1
        nothing = TreeEnsemble(Trees.empty(1, 1, width), torch.zeros(outputs), 0)
        return flattened(nothing, count, 2 * leaves - 1)
    x = task.ready_tensor(rows.x).cpu().float().numpy()
    y = task.scaled(rows.y).cpu().double().numpy()
    weights = None if task.class_weight is None else task.weight_of(rows.y).cpu().numpy()
    model = _model(task, kind, int(draws.integers(SEEDS)), count)
    model.fit(x, y if task.loss == "squared" else y.astype(np.int64), sample_weight=weights)
    return flattened(from_sklearn(model, outputs), count, 2 * leaves - 1)


def _model(task: Task, kind: str, seed: int, count: int) -> Any:
    from sklearn import ensemble  # slow to import

    classifies = task.loss != "squared"
    if kind == "forest":
        forest = ensemble.RandomForestClassifier if classifies else ensemble.RandomForestRegressor
        return forest(
            count, max_leaf_nodes=FOREST_LEAVES, max_depth=FOREST_DEPTH, random_state=seed
        )
    boosting = (
        ensemble.HistGradientBoostingClassifier
        if classifies
        else ensemble.HistGradientBoostingRegressor
    )
    return boosting(
        max_iter=ROUNDS,
        max_leaf_nodes=BOOSTING_LEAVES,
        max_depth=BOOSTING_DEPTH,
        early_stopping=False,
        random_state=seed,
    )


def member_outputs(kind: str, vector: Tensor, x: Tensor) -> Tensor:
    """The outputs (N, k) of a model of a kind for samples (N, ...) that are ready for the task."""
    if kind == "linear":
        return linear_outputs(vector, x)
    with torch.no_grad():
        outputs: Tensor = unflattened(vector.cpu())(x.cpu().float())
    return outputs.to(x.device)


def member_module(kind: str, vector: Tensor) -> nn.Module:
    """A model of a kind as a module."""
    return LinearModule(vector) if kind == "linear" else unflattened(vector)


class LinearModule(nn.Module):
    """A linear model of `task/linear.py` as a module."""

    linear: Tensor

    def __init__(self, linear: Tensor) -> None:
        super().__init__()
        self.register_buffer("linear", linear)

    def forward(self, x: Tensor) -> Tensor:
        return linear_outputs(self.linear, x)
