"""Robust tests of what a cohort reports, by medians and median deviations.

A minority cannot move them: they hold as long as more than half of the reporters are honest. The
median of two values is the lower one, so that a single false report of two is found. With fewer
than FEW reporters there is no spread to speak of, and only gross differences count.
"""

import math

import torch
from torch import Tensor

from commonweal.rules.rule import Reports, in_double, required

FEW = 5
FEW_FACTOR = 5.0  # with few reporters, the limit is this many times as high
SCALE = 1.4826  # the standard deviation of a normal distribution, in median deviations
CLEAR = 4.0  # in standard deviations: what is farther out does not belong to the others
CLEAR_SIZE = 6.0  # the same for sizes
LEAST = 4.0  # a smaller multiple of the median is never implausible
COPY = 24  # the power of a relative cosine: 0.99 counts as 0.79 copies, 0.9 as 0.08
PARALLEL = 0.99  # a usual cosine above which all updates are alike
REFERENCES = 64  # each client's update is compared with at most so many others
APART = 0.1  # the least difference of two log sizes that says something about the norms


def excess(values: Tensor, limit: float, *, sizes: bool = False) -> Tensor:
    """Return values (S,) relative to the largest plausible given the others: 1 is just at it.

    A multiple of the median is plausible up to CLEAR standard deviations of the logarithms, but any
    up to LEAST, and none above the limit. Sizes differ more than losses: all up to the limit are
    plausible, and more if most clients differ much.
    """
    values = values.double().nan_to_num(nan=torch.inf)
    middle = values.median()
    if not middle > 0 or middle.isinf():  # nothing to compare with
        return torch.where(values.isinf(), torch.inf, 0.0)
    ratio = values / middle
    if len(ratio) < FEW:
        return ratio / (FEW_FACTOR * limit)
    logs = ratio.clamp(1e-30, 1e30).log()
    deviation = SCALE * float((logs - logs.median()).abs().median())
    plausible = math.exp(min((CLEAR_SIZE if sizes else CLEAR) * deviation, 700))
    return ratio / (max(plausible, limit) if sizes else min(max(plausible, LEAST), limit))


def norms_for_sizes(reports: Reports) -> Tensor:
    """The norms (S,) of the updates, divided by what is usual for clients of that size.

    Clients with more samples take more steps. The exponent is the median slope between pairs of
    clients (Theil and Sen) on a log scale, which a minority cannot choose.
    """
    norms = reports.norms
    usable = norms.isfinite() & (norms > 0)
    sizes = reports.sizes.double().clamp(min=1).log()
    place = _references(reports.ids[usable])
    x = sizes[usable][place]
    y = norms[usable][place].log()
    apart = x[:, None] - x > APART
    if len(reports.ids) < FEW or not apart.any():
        return norms
    slope = ((y[:, None] - y)[apart] / (x[:, None] - x)[apart]).median().clamp(0, 1)
    return norms / (slope * (sizes - sizes.median())).exp()


def _references(ids: Tensor) -> Tensor:
    """Positions of at most REFERENCES clients, the same ones in any order of the reports."""
    size = len(ids)
    if size <= REFERENCES:
        return torch.arange(size)
    return ids.argsort()[torch.linspace(0, size - 1, REFERENCES).long()]


def cosines(reports: Reports) -> Tensor:
    """The cosines (S, R) of the updates with those of at most REFERENCES clients, in float64.

    NaN stands for a client with itself, and where one of both updates is zero.
    """
    size = len(reports.ids)
    chosen = _references(reports.ids)
    if len(chosen) == size:
        products = reports.gram
    else:
        products = torch.zeros(size, len(chosen), dtype=torch.float64)
        for block in in_double(required(reports.updates, "updates")):
            products.addmm_(block, block[chosen].T)
    norms = reports.norms
    own = torch.arange(size)[:, None] == chosen
    return (products / norms[:, None] / norms[chosen]).masked_fill(own, torch.nan)


def copies(reports: Reports) -> Tensor:
    """Return the number of clients (S,) that send the same update as each, itself included.

    A pair counts by how much more alike it is than pairs usually are: two copies count fully, two
    clients with similar data hardly.
    """
    alike = cosines(reports)
    usual = alike.nanmedian()
    if len(alike) < FEW or not usual < PARALLEL:
        return torch.ones(len(alike), dtype=torch.float64)
    beyond = ((alike - usual) / (1 - usual)).clamp(0, 1).nan_to_num(0)
    drawn = (len(alike) - 1) / (alike.shape[1] - 1)
    return 1 + drawn * (beyond**COPY).sum(1)
