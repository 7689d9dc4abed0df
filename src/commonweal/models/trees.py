"""An ensemble of trees for tables, which the algorithm "boosting" grows, one tree per round."""

import torch
from torch import nn

from commonweal.base.arguments import check_bounds
from commonweal.models.shapes import Shape
from commonweal.models.tree_ensemble import TreeEnsemble, Trees, count_columns


def trees(shape: Shape, outputs: int, rounds: int, leaves: int = 15, depth: int = 6) -> nn.Module:
    """Room for the trees of all rounds, which add nothing yet.

    leaves: the largest number of leaves of a tree
    depth: the largest number of splits on the way to a leaf: as many requests as a tree takes
    """
    check_bounds("trees leaves", leaves, least=2)
    check_bounds("trees depth", depth, least=1)
    columns = count_columns(outputs)
    empty = Trees.empty(rounds * columns, 2 * leaves - 1)
    return TreeEnsemble(empty, torch.zeros(outputs), depth)


ENTRIES = {"trees": trees}
