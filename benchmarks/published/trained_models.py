"""A run's models, for the thesis' figures: the loss around three of them, and their calibration.

Functions take a job and the server's state, as `reopen(folder, trust=True)` gives them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from commonweal.base.errors import ConfigError
from commonweal.base.tensors import State
from commonweal.data.rows import Rows
from commonweal.jobs.job import Job
from commonweal.protocols.algorithm import Request
from commonweal.protocols.averaging import Averaging
from commonweal.study.interpolation import EndModels
from commonweal.task import calibration
from commonweal.task.task import Task
from commonweal.training.evaluation import evaluate_rows, evaluate_rows_by_models

__all__ = ["Landscape", "landscape", "loss_landscape", "reliability"]

# Calibration


def reliability(job: Job, state: State) -> dict[str, Tensor]:
    """All clients' test samples in bins by confidence, of the global and the personal models.

    A table (20, 3) has the number of samples in each bin, their mean confidence and accuracy; NaN
    where a bin is empty.
    """
    models = EndModels(job, state)
    tables = {"global model": _bins(models, personal=False)}
    if job.algorithm.personalizes:
        tables["personal models"] = _bins(models, personal=True)
    return tables


def _bins(models: EndModels, personal: bool) -> Tensor:
    test = models.federation.test
    task = models.job.task.replace(score="ece", also=())
    others = set(models.federation.scored.tolist())
    parts = []
    if personal:
        for ids, uses in models.used(models.personal, test):
            _, stats = evaluate_rows_by_models(task, uses, test, ids, models.vectorize)
            parts.append(stats["ece"])
            others -= set(ids.tolist())
    if others:
        index, _ = test.index_of(torch.tensor(sorted(others)))
        _, stats = evaluate_rows(task, models.message["w"], test, index)
        parts.append(stats["ece"])
    samples = torch.cat(parts)  # (N, 2), a confidence and whether the prediction is right
    everyone = torch.tensor([0, len(samples)])
    count, confidence, right = calibration.bins(samples, everyone)[0].unbind(-1)
    return torch.stack([count, confidence / count, right / count], 1)


# The plane through three models


@dataclass(frozen=True, eq=False)
class Landscape:
    """The loss on a plane through three models. Distances are those of the models."""

    x: Tensor  # (g,)
    y: Tensor  # (g,)
    losses: Tensor  # (g, g), one row per y
    corners: Tensor  # (3, 2) the positions of the models


def landscape(
    task: Task, rows: Rows, models: Tensor, side: int = 15, margin: float = 0.3
) -> Landscape:
    """The mean loss on a grid of models around three (3, d). (Garipov et al., NeurIPS 2018)

    side: models along each axis; margin: how far the grid extends beyond the models, relatively
    """
    origin = models[0]
    u, v = _axes(models)
    corners = torch.stack([(models - origin) @ u, (models - origin) @ v], 1)
    low = corners.amin(0)
    high = corners.amax(0)
    edge = margin * (high - low)
    start = (low - edge).tolist()
    end = (high + edge).tolist()
    x = torch.linspace(start[0], end[0], side)
    y = torch.linspace(start[1], end[1], side)
    losses = torch.empty(side, side, dtype=torch.float64)
    for j, up in enumerate(y):
        for i, right in enumerate(x):
            values, _ = evaluate_rows(task, origin + right * u + up * v, rows)
            losses[j, i] = values.double().mean()
    return Landscape(x, y, losses, corners)


def _axes(models: Tensor) -> tuple[Tensor, Tensor]:
    """Two orthogonal unit vectors (d,) that span the plane of three models."""
    a, b, c = models
    u = b - a
    v = (c - a) - ((c - a) @ u) / (u @ u) * u
    if not (u.norm() > 0 and v.norm() > 0):
        raise ConfigError("the three models lie on a line: a landscape needs three that do not")
    return u / u.norm(), v / v.norm()


def loss_landscape(job: Job, state: State) -> tuple[tuple[str, ...], Landscape]:
    """The test loss on the plane of the global and two clients' models, with their names.

    The clients are the first and the last whose personal model differs from the global one. Where
    clients have no personal models: those that the first and the last client make of the global
    model in a round, as for the thesis' Figure 2.4.
    """
    models = EndModels(job, state)
    if not job.algorithm.personalizes:
        return _landscape_of_updates(models)
    ids = sorted(models.engine.states)
    first = _first_personal(models, ids)
    last = _first_personal(models, ids[::-1])
    if first is None or last is None or first == last:
        raise ConfigError(
            "a landscape needs two clients with personal models: choose a personal client method, "
            "such as ditto, and run it"
        )
    names = models.federation.names
    corners = [models.message["w"], _personal(models, first), _personal(models, last)]
    titles = ("global model", f"{names[first]}'s model", f"{names[last]}'s model")
    return titles, landscape(job.task, models.federation.test, torch.stack(corners))


def _first_personal(models: EndModels, order: Sequence[int]) -> int | None:
    """The first client whose personal model differs from the global one."""
    method = models.job.algorithm.client
    if method is None or not method.personalizes:
        return None
    for client in order:
        if not torch.equal(_personal(models, client), models.message["w"]):
            return client
    return None


def _personal(models: EndModels, client: int) -> Tensor:
    method = models.job.algorithm.client
    assert method is not None
    state = models.engine.states[client].method
    return method.endpoints(models.job.task, models.message, state)[1]


def _landscape_of_updates(models: EndModels) -> tuple[tuple[str, ...], Landscape]:
    """The plane of the global model and those after a round at the first and last client."""
    federation, job = models.federation, models.job
    chosen = job.algorithm
    if not isinstance(chosen, Averaging) or federation.clients < 2:
        raise ConfigError(
            "a landscape needs two clients that train the global model: run an experiment with "
            "the algorithm 'averaging' and two clients or more"
        )
    plain = Averaging(chosen.task, chosen.rule, chosen.client, chosen.server)
    ends = torch.tensor([0, federation.clients - 1])
    replies = job.engine.collect(plain, Request(ends, models.message))
    updates = plain.decode(replies).values["update"]
    w = models.message["w"]
    first, last = federation.names[0], federation.names[-1]
    titles = ("global model", f"{first}'s after a round", f"{last}'s after a round")
    return titles, landscape(job.task, federation.test, torch.cat([w[None], w - updates]))
