"""Per-client evaluation metrics: statistics per row, reduced by client.

A score is a pair of functions, so that all clients are evaluated in one pass over all rows. Higher
is better, but for errors (`lower_is_better`).
"""

import math
from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from commonweal.base.errors import ConfigError, did_you_mean
from commonweal.data.rows import CLASSIFICATION, REGRESSION
from commonweal.task import calibration
from commonweal.task.survival import comparable_pairs


class Score(NamedTuple):
    """A score as two functions: statistics of rows, and their reduction by client."""

    row_stats: Callable[[Tensor, Tensor], Tensor]  # outputs (N, c), labels (N,) -> (N, s)
    reduce: Callable[[Tensor, Tensor], Tensor]  # (N, s), offsets (K + 1,) -> (K,), NaN: undefined
    meaning: str
    losses: tuple[str, ...] = ()  # of tasks that it fits; empty: all
    lower_is_better: bool = False
    in_per_cent: bool = True  # a fraction, shown in per cent; else in the units of the labels
    # Of a user's own score: (N, s), offsets -> (N,); NaN where it gives no value per sample.
    samples: Callable[[Tensor, Tensor], Tensor] | None = None


def mean_by_client(values: Tensor, offsets: Tensor) -> Tensor:
    """The mean over each client's rows, in float64; NaN for a client without rows."""
    sizes = offsets.diff().double()
    return sum_by_client(values, offsets) / (sizes if values.ndim == 1 else sizes[:, None])


def sum_by_client(values: Tensor, offsets: Tensor) -> Tensor:
    """The sum over each client's rows, in float64."""
    total: Tensor = torch.segment_reduce(values.double(), "sum", offsets=offsets, axis=0)
    return total


def _classes(outputs: Tensor) -> Tensor:
    """The predicted classes (N,). One output is the logit of class 1."""
    if outputs.shape[-1] == 1:
        return (outputs.squeeze(-1) > 0).long()
    return outputs.argmax(-1)


def _correct(outputs: Tensor, y: Tensor) -> Tensor:
    return (_classes(outputs) == y).double()[:, None]


def _top5(outputs: Tensor, y: Tensor) -> Tensor:
    best = outputs.topk(min(5, outputs.shape[-1]), dim=-1).indices
    return (best == y[:, None]).any(-1).double()[:, None]


def _log_probabilities(outputs: Tensor) -> Tensor:
    """Of the classes, (N, classes). One output is the logit of class 1."""
    outputs = outputs.double()
    if outputs.shape[-1] == 1:
        outputs = torch.cat([torch.zeros_like(outputs), outputs], -1)
    return outputs.log_softmax(-1)


def _brier(outputs: Tensor, y: Tensor) -> Tensor:
    """The squared error of the probabilities: of class 1 where there are two, else their sum."""
    probabilities = _log_probabilities(outputs).exp()
    classes = probabilities.shape[-1]
    errors = probabilities - (torch.arange(classes) == y[:, None]).double()
    return errors.square().sum(-1, keepdim=True) / (2 if classes == 2 else 1)


def _log_loss(outputs: Tensor, y: Tensor) -> Tensor:
    return -_log_probabilities(outputs).gather(-1, y.long()[:, None])


def _margins(outputs: Tensor, y: Tensor) -> Tensor:
    """The log odds of class 1 and the class of each row, (N, 2)."""
    if outputs.shape[-1] > 2:
        raise ConfigError(
            f"a score of two classes cannot be computed of a model with {outputs.shape[-1]}: "
            "choose log-loss, brier or balanced-accuracy"
        )
    margin = outputs[:, 0]
    if outputs.shape[-1] == 2:
        margin = outputs[:, 1] - outputs[:, 0]
    return torch.stack([margin.double(), y.double()], 1)


def _auroc(stats: Tensor, offsets: Tensor) -> Tensor:
    """The probability that a positive row ranks above a negative one, ties half (Mann-Whitney)."""
    margin, y = stats.unbind(1)
    sizes = offsets.diff()
    client = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    order = torch.argsort(margin, stable=True)
    order = order[torch.argsort(client[order], stable=True)]  # by client, then by margin
    y = y[order]
    tied = ties(margin[order], client)
    rank = (tied.first + tied.last).double() / 2 - offsets[client] + 1  # within the client, from 1
    positives = torch.segment_reduce(y, "sum", offsets=offsets)
    ranks = torch.segment_reduce(rank * y, "sum", offsets=offsets)
    wins = ranks - positives * (positives + 1) / 2
    area = wins / (positives * (sizes - positives))  # 0 / 0 = NaN with one class
    has_nan = mean_by_client(margin.isnan(), offsets) > 0
    return area.masked_fill(has_nan, torch.nan)


class Ties(NamedTuple):
    """The first and the last position of the rows that are equal to a row, (N,)."""

    first: Tensor
    last: Tensor


def ties(margin: Tensor, client: Tensor) -> Ties:
    """Equal margins of a client, in rows sorted by both."""
    n = len(margin)
    starts = torch.ones(n, dtype=torch.bool)
    starts[1:] = (margin[1:] != margin[:-1]) | (client[1:] != client[:-1])
    first = starts.nonzero().flatten()
    following = torch.cat([first[1:], torch.tensor([n])])[: len(first)]
    tie = starts.cumsum(0) - 1
    return Ties(first[tie], following[tie] - 1)


def _net_benefits(outputs: Tensor, y: Tensor, at: float) -> Tensor:
    """Each row's benefit, whether it is a true or a false positive, and the cost of one, (N, 4)."""
    margin, label = _margins(outputs, y).unbind(1)
    odds = at / (1 - at)
    treated = (margin >= math.log(odds)).double()
    true, false = treated * label, treated * (1 - label)
    return torch.stack([true - odds * false, true, false, torch.full_like(true, odds)], 1)


def _margins_at(outputs: Tensor, y: Tensor, at: float) -> Tensor:
    """Margins, classes and the specificity that is asked for, (N, 3)."""
    margins = _margins(outputs, y)
    return torch.cat([margins, torch.full_like(margins[:, :1], at)], 1)


def cut_at(stats: Tensor, offsets: Tensor, specificity: Tensor) -> Tensor:
    """The margins (K,) above which at most 1 - specificity (K,) of a client's negatives are."""
    margin, y = stats[:, 0], stats[:, 1]
    sizes = offsets.diff()
    client = torch.repeat_interleave(torch.arange(len(sizes)), sizes)[y == 0]
    order = torch.argsort(margin[y == 0], stable=True)
    order = order[torch.argsort(client[order], stable=True)]
    negatives = torch.bincount(client, minlength=len(sizes))
    allowed = ((1 - specificity) * negatives + 1e-9).floor().long()
    position = negatives.cumsum(0) - 1 - allowed
    cut = margin.new_full((len(sizes),), -torch.inf)
    within = allowed < negatives
    cut[within] = margin[y == 0][order][position[within]]
    return cut


def sensitivity_at(stats: Tensor, offsets: Tensor, specificity: Tensor) -> Tensor:
    """The share of a client's positives above the cut of a specificity (K,); NaN: one class."""
    margin, y = stats[:, 0], stats[:, 1]
    cut = torch.repeat_interleave(cut_at(stats, offsets, specificity), offsets.diff())
    positives = sum_by_client(y, offsets)
    share = sum_by_client(y * (margin > cut), offsets) / positives
    is_undefined = (positives == offsets.diff()) | (sum_by_client(margin.isnan(), offsets) > 0)
    return share.masked_fill(is_undefined, torch.nan)


def specificity_of(stats: Tensor, offsets: Tensor) -> Tensor:
    """The specificity (K,) that the rows' statistics ask for."""
    return stats[:, 2].max().expand(len(offsets) - 1) if len(stats) else offsets[1:].double()


def _sensitivity(stats: Tensor, offsets: Tensor) -> Tensor:
    return sensitivity_at(stats, offsets, specificity_of(stats, offsets))


def _errors(outputs: Tensor, y: Tensor) -> Tensor:
    y = y.double()
    return torch.stack([(outputs.squeeze(-1).double() - y).square(), y], 1)


def _r2_pooled(stats: Tensor, offsets: Tensor, variance: float) -> Tensor:
    """R^2 against one variance for all clients."""
    return 1 - mean_by_client(stats[:, 0], offsets) / variance


def _r2(stats: Tensor, offsets: Tensor) -> Tensor:
    """R^2 against each client's own variance."""
    error, mean = mean_by_client(stats, offsets).unbind(1)
    # Centred first, against cancellation.
    centred = stats[:, 1] - torch.repeat_interleave(mean, offsets.diff())
    variance = mean_by_client(centred.square(), offsets)
    constant = variance <= 1e-24 * mean.square()  # but for rounding
    return 1 - error / torch.where(constant, torch.nan, variance)


def _rmse(stats: Tensor, offsets: Tensor) -> Tensor:
    return mean_by_client(stats[:, 0], offsets).sqrt()


def _absolute(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs.squeeze(-1).double() - y.double()).abs()[:, None]


def classes_by_client(stats: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Right, predicted and true rows per client and class, (K, classes)."""
    predicted, y, width = stats.long().unbind(1)
    sizes = offsets.diff()
    clients = len(sizes)
    classes = int(width.max()) if len(width) else 2
    first_cell = torch.repeat_interleave(torch.arange(clients), sizes) * classes

    def count(cells: Tensor) -> Tensor:
        counts = torch.bincount(cells, minlength=clients * classes)
        return counts.view(clients, classes).double()

    true = first_cell + y
    return count(true[predicted == y]), count(first_cell + predicted), count(true)


def _predicted(outputs: Tensor, y: Tensor) -> Tensor:
    predicted = _classes(outputs)
    classes = torch.full_like(predicted, max(2, outputs.shape[-1]))
    return torch.stack([predicted, y, classes], 1).double()


def _balanced_accuracy(stats: Tensor, offsets: Tensor) -> Tensor:
    """The mean over a client's classes of the share of their rows that is right."""
    right, _, true = classes_by_client(stats, offsets)
    present = true > 0
    recall = right / true.clamp(min=1)
    return (recall * present).sum(1) / present.sum(1)


def _f1(stats: Tensor, offsets: Tensor) -> Tensor:
    """2 right / (predicted + true): of class 1 where there are two, else the mean over classes."""
    right, guessed, true = classes_by_client(stats, offsets)
    if right.shape[1] == 2:
        right, guessed, true = right[:, 1:], guessed[:, 1:], true[:, 1:]
    total = guessed + true
    occurs = total > 0  # a class that is neither predicted nor true says nothing
    f1 = 2 * right / total.clamp(min=1)
    return (f1 * occurs).sum(1) / occurs.sum(1)


def _auprc(stats: Tensor, offsets: Tensor) -> Tensor:
    """Average precision: the mean, over positive rows, of the precision at their margin."""
    values = []
    for a, b in pairwise(offsets.tolist()):
        margin, y = stats[a:b].unbind(1)
        order = torch.argsort(margin, descending=True, stable=True)
        margin, y = margin[order], y[order]
        # Rows with equal margins are taken together: the precision is that of the last of them.
        last = torch.searchsorted(-margin, -margin, right=True) - 1
        precision = y.cumsum(0) / torch.arange(1, b - a + 1)
        mean = (precision[last] * y).sum() / y.sum()
        values.append(mean + 0 * margin.sum())  # NaN where a margin is
    return torch.stack(values)


def survival_stats(outputs: Tensor, y: Tensor) -> Tensor:
    """Risk, time and event of each row, (N, 3)."""
    return torch.cat([outputs.double(), y.double()], 1)


def _concordance(stats: Tensor, offsets: Tensor) -> Tensor:
    """Harrell's C: of pairs of which one has its event first, the share ranked so, ties half."""
    risk, time, event = stats.unbind(1)
    pairs = comparable_pairs(risk.nan_to_num(), time, event, offsets)
    share = sum_by_client(pairs.right, offsets) / sum_by_client(pairs.all, offsets)
    is_lost = sum_by_client((~risk.isfinite()).double(), offsets) > 0
    return share.masked_fill(is_lost, torch.nan)


def _without_pairs(y: Tensor, offsets: Tensor) -> list[int]:
    """The clients with rows of which none has its event before another's time."""
    time, event = y.double().unbind(1)
    last = torch.segment_reduce(time, "max", offsets=offsets, initial=-torch.inf)
    sizes = offsets.diff()
    is_earlier = (event > 0) & (time < torch.repeat_interleave(last, sizes))
    has_none = sum_by_client(is_earlier.double(), offsets) == 0
    clients: list[int] = (has_none & (sizes > 0)).nonzero().flatten().tolist()
    return clients


def _sequences(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Rows with one label are sequences of one token."""
    return (outputs, y) if y.ndim > 1 else (outputs[:, None], y[:, None])


def _correct_tokens(outputs: Tensor, y: Tensor) -> Tensor:
    outputs, y = _sequences(outputs, y)
    valid = y >= 0
    correct = (outputs.argmax(-1) == y) & valid
    return torch.stack([correct.sum(-1), valid.sum(-1)], 1).double()


def _log_likelihoods(outputs: Tensor, y: Tensor) -> Tensor:
    outputs, y = _sequences(outputs, y)
    valid = y >= 0
    labels = y.clamp(min=0)[..., None]
    log_probability = outputs.log_softmax(-1).gather(-1, labels).squeeze(-1)
    total = (log_probability.double() * valid).sum(-1)
    return torch.stack([total, valid.sum(-1).double()], 1)


def _per_token(stats: Tensor, offsets: Tensor) -> Tensor:
    total, count = mean_by_client(stats, offsets).unbind(1)
    return total / count


def _mean(stats: Tensor, offsets: Tensor) -> Tensor:
    return mean_by_client(stats[:, 0], offsets)


SURVIVAL = ("cox",)
TOKENS = ("tokens", "causal", "cross-entropy")

# The score of a task that names none, by its loss.
DEFAULTS = dict.fromkeys(REGRESSION, "r2-pooled") | {
    "tokens": "token-accuracy",
    "causal": "likelihood",
    "cox": "concordance",
}

_VALUE = partial(Score, losses=REGRESSION, in_per_cent=False)
_ERROR = partial(_VALUE, lower_is_better=True)
_OF_CLASSES = partial(Score, losses=CLASSIFICATION, in_per_cent=False)

SCORES = {
    "accuracy": Score(_correct, _mean, "share of rows whose class is right", CLASSIFICATION),
    "top-5": Score(
        _top5, _mean, "share of rows whose class is among the five likeliest", ("cross-entropy",)
    ),
    "auroc": Score(
        _margins,
        _auroc,
        "probability that a positive row ranks above a negative one; needs both in each client",
        CLASSIFICATION,
    ),
    "auprc": Score(
        _margins,
        _auprc,
        "average precision: area under precision by recall; needs a positive row in each client",
        CLASSIFICATION,
    ),
    "balanced-accuracy": Score(
        _predicted,
        _balanced_accuracy,
        "mean over classes of the share of rows that is right",
        CLASSIFICATION,
    ),
    "f1": Score(
        _predicted,
        _f1,
        "F1 of class 1, or the mean over classes where there are more",
        CLASSIFICATION,
    ),
    "brier": _OF_CLASSES(
        _brier,
        _mean,
        "Brier score: mean squared error of the probabilities; lower is better",
        lower_is_better=True,
    ),
    "log-loss": _OF_CLASSES(
        _log_loss,
        _mean,
        "mean of minus the logarithm of the right class' probability; lower is better",
        lower_is_better=True,
    ),
    "r2": _VALUE(_errors, _r2, "R^2: 1 - squared error / variance of the client's own rows"),
    "r2-pooled": _VALUE(
        _errors,
        _r2,  # until the variance of all rows is known: see `find_score`
        "1 - squared error / variance of all clients' training rows: also defined for one row",
    ),
    "mae": _ERROR(_absolute, _mean, "mean absolute error, in the target's units; lower is better"),
    "rmse": _ERROR(
        _errors, _rmse, "root of the mean squared error, in the target's units; lower is better"
    ),
    "neg-mae": _VALUE(
        _absolute, lambda stats, offsets: -_mean(stats, offsets), "minus the mean absolute error"
    ),
    "concordance": Score(
        survival_stats,
        _concordance,
        "probability that of two rows the one with the earlier event has the higher risk",
        SURVIVAL,
    ),
    "token-accuracy": Score(_correct_tokens, _per_token, "share of tokens that are right", TOKENS),
    "likelihood": Score(
        _log_likelihoods,
        lambda stats, offsets: _per_token(stats, offsets).exp(),
        "geometric mean of the probability of the right class or token; 1 / perplexity",
        TOKENS,
    ),
}

# Scores with a number in their name, as in net-benefit@0.2.
AT = {
    "net-benefit": _OF_CLASSES(
        partial(_net_benefits, at=math.nan),
        _mean,
        "share of true positives minus that of false ones times the odds of the threshold: "
        "net-benefit@0.2 treats from a probability of 0.2 on",
    ),
    "sensitivity": Score(
        partial(_margins_at, at=math.nan),
        _sensitivity,
        "share of positive rows that are found at a specificity: sensitivity@0.9",
        CLASSIFICATION,
    ),
}

# Not allowed as a run's main score.
_GAP = partial(Score, calibration.row_stats, losses=CLASSIFICATION, lower_is_better=True)
DIAGNOSTICS = {
    "ece": _GAP(calibration.ece, "expected calibration error, 20 bins"),
    "mce": _GAP(calibration.mce, "maximum calibration error, 20 bins"),
    "calibration-intercept": _OF_CLASSES(
        _margins,
        calibration.intercept,
        "log odds by which predictions are too low on average (0: right); needs both classes",
    ),
    "calibration-slope": _OF_CLASSES(
        _margins,
        calibration.slope,
        "slope of labels on predicted log odds (1: right, below: too extreme); needs both classes",
    ),
}


def _not_computed(outputs: Tensor, y: Tensor) -> Tensor:
    raise ConfigError(f"clients report this score: it cannot be computed of {len(y)} samples here")


# Of scores that an app's own clients compute and report, as in "higher:f1_macro".
_HIGHER = Score(
    _not_computed, _not_computed, "a score that clients report themselves", in_per_cent=False
)
REPORTED = {"higher": _HIGHER, "lower": _HIGHER._replace(lower_is_better=True)}


def find_score(name: str, variance: float | None = None) -> Score:
    """The score or diagnostic of that name. variance: of all rows' target, for pooled R^2."""
    known = SCORES | DIAGNOSTICS
    direction, _, key = name.partition(":")
    if key and direction in REPORTED:
        return REPORTED[direction]
    base, _, at = name.partition("@")
    if base in AT:
        return _score_at(name, base, at)
    if name not in known:
        raise ConfigError(f"no score is called {name!r}: {did_you_mean(name, SCORES | AT)}")
    if name == "r2-pooled" and variance is not None:
        return known[name]._replace(reduce=partial(_r2_pooled, variance=variance))
    return known[name]


def _score_at(name: str, base: str, at: str) -> Score:
    """The score of a threshold or of a specificity."""
    try:
        value = float(at)
    except ValueError:
        value = math.nan
    if not 0 < value < 1:
        raise ConfigError(f"score = {name!r}: give a number between 0 and 1, as in {base}@0.9")
    score = AT[base]
    assert isinstance(score.row_stats, partial)
    return score._replace(row_stats=partial(score.row_stats.func, at=value))


def score_title(name: str) -> str:
    """A score as people read it, with its direction where lower is better or it is a user's own.

    >>> score_title("accuracy"), score_title("rmse"), score_title("higher:recall")
    ('accuracy', 'rmse (lower is better)', 'recall (higher is better)')
    """
    direction, _, own = name.rpartition(":")
    if find_score(name).lower_is_better:
        return f"{own} (lower is better)"
    return f"{own} (higher is better)" if direction else own


def check_score(name: str, loss: str) -> None:
    """Raise ConfigError if the score does not exist, or does not fit tasks of this loss."""
    fits = find_score(name).losses
    if fits and ":" not in loss and loss not in fits:  # what suits an own loss is not known
        possible = [other for other, score in SCORES.items() if loss in (score.losses or (loss,))]
        hint = did_you_mean(name, possible)
        raise ConfigError(f"score = {name!r} does not fit data whose loss is {loss!r}: {hint}")


def check_labels(names: Iterable[str], y: Tensor) -> None:
    """Raise ConfigError if a score compares classes, but the labels are no whole numbers."""
    if not y.is_floating_point() or bool((y == y.round()).all()):
        return
    for name in names:
        if ":" not in name and "cross-entropy" in find_score(name).losses:
            value = float(y[y != y.round()][0])
            raise ConfigError(
                f"score = {name!r} compares classes, but a label is {value:g}: choose mae, rmse or "
                "r2, or give whole numbers as labels"
            )


def undefined(name: str, y: Tensor, offsets: Tensor) -> list[int]:
    """The clients with rows whose score is undefined.

    AUROC and sensitivity need both classes, average precision and the F1 of two classes a positive
    row, R^2 against a client's own variance two values.
    """
    if name == "concordance":
        return _without_pairs(y, offsets)
    binary = len(y) > 0 and int(y.max()) <= 1
    needs_positive = name == "auprc" or (name == "f1" and binary)
    if len(y) == 0 or not (
        needs_positive or name.partition("@")[0] in ("auroc", "r2", "sensitivity")
    ):
        return []
    sizes = offsets.diff()
    if needs_positive:
        missing = mean_by_client((y == 1).double(), offsets) == 0
    else:
        first = y[offsets[:-1].clamp(max=len(y) - 1)].double()
        differs = y.double() != torch.repeat_interleave(first, sizes)
        missing = mean_by_client(differs.double(), offsets) == 0
    clients: list[int] = (missing & (sizes > 0)).nonzero().flatten().tolist()
    return clients
