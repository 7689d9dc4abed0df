"""A value of a score for every sample, whose mean over a client's samples is the client's score.

Where the score is a mean (accuracy, an absolute error), these are its terms. Other scores have
jackknife pseudo-values: with the score s of n samples and the score s_i without sample i, sample i
has s + (n - 1) (s - s_i), shifted so that their mean is s. Their variance is that of the score
(Efron and Stein, 1981), so that differences between methods are tested like those of a mean. The
scores without a sample are closed forms of counts, sums and ranks:

    auroc                                   the ranks of all samples and of those of one class
    auprc                                   sums over samples that rank higher
    balanced-accuracy, f1                   counts by class
    r2, rmse, token-accuracy, likelihood    sums
    concordance                             the comparable pairs of each sample

The sensitivity at a specificity is a quantile, of which the jackknife says little: its samples have
influence values, with the ROC curve's slope between the bounds of the specificity.
"""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from commonweal.base.shares import wilson_bounds
from commonweal.task.intervals import Z
from commonweal.task.scores import (
    classes_by_client,
    cut_at,
    sensitivity_at,
    specificity_of,
    sum_by_client,
    ties,
)
from commonweal.task.survival import comparable_pairs

MEANS = ("accuracy", "top-5", "mae", "brier", "log-loss", "net-benefit")
ANCHOR = 0.5  # of samples without which a score is undefined; differences do not depend on it

# statistics (N, s), offsets (K + 1,) -> the score without each sample (N,), NaN: undefined
Without = Callable[[Tensor, Tensor], Tensor]


def sample_scores(
    name: str, stats: Tensor, offsets: Tensor, values: Tensor, variance: float | None
) -> Tensor | None:
    """The values of a score by sample (N,); None: it has no formula here.

    Args:
        name: The score.
        stats: What its `row_stats` gives, (N, s).
        offsets: Where the clients' samples begin, (K + 1,).
        values: The clients' scores (K,); NaN where one is undefined, as its samples' are then.
        variance: Of all labels, for pooled R^2.
    """
    if name == "r2-pooled" and variance is not None:
        scores = 1 - stats[:, 0] / variance
    elif name.partition("@")[0] in MEANS:
        scores = stats[:, 0]
    elif name == "neg-mae":
        scores = -stats[:, 0]
    elif name.startswith("sensitivity@"):
        scores = _sensitivity(stats, offsets, values)
    elif name in WITHOUT:
        return pseudo_values(values, WITHOUT[name](stats, offsets), offsets)
    else:
        return None
    return torch.where(_spread(values, offsets).isnan(), torch.nan, scores.double())


def pseudo_values(values: Tensor, without: Tensor, offsets: Tensor) -> Tensor:
    """Jackknife pseudo-values (N,) of the clients' scores (K,), from those without each sample.

    Where a client's score is undefined without some sample, such as the only positive one, the
    first of these carries all that the score is above the anchor, and the others have the anchor:
    what another such sample would give is as uncertain as the whole score.
    """
    sizes = offsets.diff()
    score = _spread(values.double(), offsets)
    n = _spread(sizes, offsets)
    needed = without.isnan()
    change = (n - 1) * torch.where(needed, 0.0, score - without)
    mean = _spread(sum_by_client(change, offsets), offsets) / n
    count = needed.cumsum(0)
    before = torch.cat([count.new_zeros(1), count])[offsets[:-1]]
    number = count - _spread(before, offsets)  # of the needed samples of a client, up to this one
    some = _spread(sum_by_client(needed, offsets) > 0, offsets)
    carries = needed & (number == 1)
    anchored = torch.where(carries, n * score - (n - 1) * ANCHOR, ANCHOR + 0 * score)
    return torch.where(some, anchored, score + change - mean)


def _spread(values: Tensor, offsets: Tensor) -> Tensor:
    """The clients' values (K,), once per sample (N,)."""
    return torch.repeat_interleave(values, offsets.diff())


def _without_sum(terms: Tensor, offsets: Tensor) -> Tensor:
    """The sum over a client's other samples (N,)."""
    return _spread(sum_by_client(terms, offsets), offsets) - terms


def _sensitivity(stats: Tensor, offsets: Tensor, values: Tensor) -> Tensor:
    """Influence values: a positive sample is found or not, a negative one moves the cut."""
    margin, y = stats[:, 0], stats[:, 1]
    specificity = specificity_of(stats, offsets)
    positives = sum_by_client(y, offsets)
    negatives = offsets.diff() - positives
    low, high = map(torch.from_numpy, wilson_bounds(specificity.numpy(), negatives.numpy(), Z))
    fall = sensitivity_at(stats, offsets, low) - sensitivity_at(stats, offsets, high)
    slope = fall / (high - low)
    above = (margin > _spread(cut_at(stats, offsets, specificity), offsets)).double()
    false = sum_by_client(above * (1 - y), offsets) / negatives
    score, n = _spread(values, offsets), _spread(offsets.diff(), offsets)
    hit = (above - score) * n / _spread(positives, offsets)
    moved = (_spread(false, offsets) - above) * _spread(slope, offsets)
    return score + torch.where(y > 0, hit, moved * n / _spread(negatives, offsets))


# The score without each sample


def _auroc(stats: Tensor, offsets: Tensor) -> Tensor:
    """Of the wins of positive samples over negative ones, those of a sample are its placement."""
    margin, y = stats.unbind(1)
    sizes = offsets.diff()
    client = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    total = _by_margin(margin, client, torch.ones_like(y))
    positive = _by_margin(margin, client, y)
    # A positive sample wins over negative ones below it, a negative one loses to those above it.
    positives = _spread(sum_by_client(y, offsets), offsets)
    above = positives - positive
    wins = torch.where(y > 0, total - positive, above)
    all_wins = _spread(sum_by_client(wins * y, offsets), offsets)
    m = positives - y
    n = _spread(sizes, offsets) - 1 - m
    return (all_wins - wins) / torch.where(m * n > 0, m * n, torch.nan)


def _by_margin(margin: Tensor, client: Tensor, weight: Tensor) -> Tensor:
    """The weight of a client's samples below each sample, those with its margin half (N,)."""
    order = torch.argsort(margin, stable=True)
    order = order[torch.argsort(client[order], stable=True)]  # by client, then by margin
    sorted_weight = weight[order]
    before = sorted_weight.cumsum(0) - sorted_weight
    first, last = ties(margin[order], client[order])
    upper = before[last] + sorted_weight[last]
    begins = torch.searchsorted(client, client)  # of the client's samples; they are in its order
    below = (before[first] + upper) / 2 - before[begins]
    result = torch.empty_like(below)
    result[order] = below
    return result


def _auprc(stats: Tensor, offsets: Tensor) -> Tensor:
    """Without a sample, the precision changes at the margins below its own."""
    parts = [_auprc_of(stats[a:b, 0], stats[a:b, 1]) for a, b in pairwise(offsets.tolist())]
    return torch.cat([*parts, stats.new_empty(0)])


def _auprc_of(margin: Tensor, y: Tensor) -> Tensor:
    order = torch.argsort(margin, descending=True, stable=True)
    sorted_margin, positive = margin[order], y[order]
    last = torch.searchsorted(-sorted_margin, -sorted_margin, right=True) - 1
    first = torch.searchsorted(-sorted_margin, -sorted_margin)
    right, taken = positive.cumsum(0)[last], (last + 1).double()
    fewer = (taken - 1).clamp(min=1)
    zero = positive.new_zeros(1)
    kept = torch.cat([zero, (positive * right / taken).cumsum(0)])[first]  # of those that are above

    def below(precision: Tensor) -> Tensor:
        """Sums over the positive samples from a sample's margin on."""
        sums = torch.cat([zero, (positive * precision).cumsum(0)])
        return sums[-1] - sums[first]

    one_less, one_false_less = (right - 1) / fewer, right / fewer
    without_positive = (kept + below(one_less) - one_less) / (positive.sum() - 1)
    without_negative = (kept + below(one_false_less)) / positive.sum()
    result = torch.empty_like(margin)
    result[order] = torch.where(positive > 0, without_positive, without_negative)
    return torch.where(result.isinf(), torch.nan, result)


def _balanced_accuracy(stats: Tensor, offsets: Tensor) -> Tensor:
    """A sample is in the share of its own class; the only one of a class takes it along."""
    right, _, true = classes_by_client(stats, offsets)
    recall = right / true.clamp(min=1)
    present = (true > 0).sum(1)
    predicted, y = stats[:, 0], stats[:, 1].long()
    client = torch.repeat_interleave(torch.arange(len(right)), offsets.diff())
    others = recall.sum(1)[client] - recall[client, y]
    count = true[client, y]
    hit = (predicted == y).double()
    own = torch.where(count > 1, (right[client, y] - hit) / (count - 1).clamp(min=1), 0.0)
    classes = present[client] - (count == 1).long()
    return (others + own) / torch.where(classes > 0, classes, torch.nan)


def _f1(stats: Tensor, offsets: Tensor) -> Tensor:
    """A sample counts in the class that is predicted and in the true one."""
    right, guessed, true = classes_by_client(stats, offsets)
    binary = right.shape[1] == 2
    total = guessed + true
    f1 = 2 * right / total.clamp(min=1)
    occurs = (total > 0).double()
    counted = torch.ones(right.shape[1], dtype=torch.float64)
    counted[0] = 0.0 if binary else 1.0
    predicted, y = stats[:, 0].long(), stats[:, 1].long()
    client = torch.repeat_interleave(torch.arange(len(right)), offsets.diff())
    same = (predicted == y).double()
    scores = (f1 * counted).sum(1)[client]
    classes = (occurs * counted).sum(1)[client]
    # A class that is predicted and true loses two counts at once; else each of two loses one.
    for label, lost, weight in ((y, 1 + same, 1.0), (predicted, torch.ones_like(same), 1 - same)):
        before = total[client, label]
        after = before - lost
        new = 2 * (right[client, label] - same) / after.clamp(min=1)
        own = counted[label] * weight
        scores = scores + own * (new - f1[client, label])
        classes = classes - own * (after == 0)
    return scores / torch.where(classes > 0, classes, torch.nan)


def _r2(stats: Tensor, offsets: Tensor) -> Tensor:
    error, y = stats.unbind(1)
    n = _spread(offsets.diff().double(), offsets)
    mean = _spread(sum_by_client(y, offsets), offsets) / n
    centred = (y - mean).square()
    total = _spread(sum_by_client(centred, offsets), offsets)
    rest = total - centred * n / (n - 1)
    varies = rest > 1e-12 * total  # but for rounding
    return 1 - _without_sum(error, offsets) / torch.where(varies, rest, torch.nan)


def _rmse(stats: Tensor, offsets: Tensor) -> Tensor:
    others = _spread(offsets.diff().double(), offsets) - 1
    mean = _without_sum(stats[:, 0], offsets).clamp(min=0) / others
    return torch.where(others > 0, mean, torch.nan).sqrt()


def _per_token(stats: Tensor, offsets: Tensor) -> Tensor:
    count = _without_sum(stats[:, 1], offsets)
    return _without_sum(stats[:, 0], offsets) / torch.where(count > 0, count, torch.nan)


def _concordance(stats: Tensor, offsets: Tensor) -> Tensor:
    """A sample takes its pairs along."""
    risk, time, event = stats.nan_to_num().unbind(1)
    pairs = comparable_pairs(risk, time, event, offsets)
    # Every pair is counted at both of its samples.
    rest = _spread(sum_by_client(pairs.all, offsets) / 2, offsets) - pairs.all
    right = _spread(sum_by_client(pairs.right, offsets) / 2, offsets) - pairs.right
    return right / torch.where(rest > 0, rest, torch.nan)


WITHOUT: dict[str, Without] = {
    "auroc": _auroc,
    "auprc": _auprc,
    "balanced-accuracy": _balanced_accuracy,
    "f1": _f1,
    "r2": _r2,
    "r2-pooled": _r2,  # where the variance of all samples is not known
    "rmse": _rmse,
    "concordance": _concordance,
    "token-accuracy": _per_token,
    "likelihood": lambda stats, offsets: _per_token(stats, offsets).exp(),
}
