"""Models after a run: on the line from global to personal ones, around them, and their calibration.

Functions take a job and the server's state, as `reopen(folder)` gives them. They need all
clients' samples in this process.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from commonweal.algorithms.algorithm import Request
from commonweal.algorithms.averaging import Averaging
from commonweal.base.errors import ConfigError
from commonweal.base.tensors import State, Tensors
from commonweal.data.federation import Federation, Rows
from commonweal.engines import LocalEngine
from commonweal.jobs.job import Job
from commonweal.training import calibration
from commonweal.training.client import Client
from commonweal.training.client_state import ClientState
from commonweal.training.evaluation import (
    Evaluation,
    evaluate,
    evaluate_models,
    evaluate_rows,
    evaluate_rows_by_models,
)
from commonweal.training.local import Vectorize, single, vmap_clients
from commonweal.training.scores import find
from commonweal.training.task import Task
from commonweal.training.uses import Uses, one_model

__all__ = [
    "POINTS",
    "Curve",
    "Landscape",
    "confidence_bins",
    "curve",
    "evaluate_score",
    "landscape",
    "loss_landscape",
    "reliability",
]

POINTS = tuple(k / 10 for k in range(11))  # m = 0 (global model), 0.1, ..., 1 (the client's own)
MIDDLE = POINTS.index(0.5)
LAST = len(POINTS) - 1

OwnModels = Callable[[ClientState], Uses]  # a client's state -> what it predicts with


# The line between two models


@dataclass(frozen=True, eq=False)
class Curve:
    """Test scores and losses of K' scored clients between the global and the personal model."""

    names: tuple[str, ...]
    scores: Tensor  # (K', 11)
    losses: Tensor  # (K', 11)
    validated: Tensor  # (K',) at the best m of validation samples, or of the other test half
    lower_is_better: bool = False

    def chosen(self) -> dict[str, Tensor]:
        """The clients' scores (K',) by how m is chosen. An oracle uses its test samples."""
        fixed = {f"m = {POINTS[k]:g}": self.scores[:, k] for k in (0, MIDDLE, LAST)}
        return (
            fixed
            | {f"best common m = {self.common:g}": self.scores[:, self._best]}
            | self.adaptive()
        )

    @property
    def common(self) -> float:
        """The one m for all with the best mean test score: an oracle, too."""
        return POINTS[self._best]

    @property
    def _best(self) -> int:
        sign = -1 if self.lower_is_better else 1
        return int((sign * self.scores.mean(0)).argmax())

    def barriers(self) -> Tensor:
        """How high the loss rises above the straight line between its ends, by client (K',).

        0 where the path is flat or falls: the models are connected (the thesis' Definition 1).
        """
        m = torch.tensor(POINTS, dtype=self.losses.dtype)
        straight = (1 - m) * self.losses[:, :1] + m * self.losses[:, -1:]
        return (self.losses - straight).amax(1)

    def adaptive(self) -> dict[str, Tensor]:
        """The same, where m is chosen for each client."""
        oracle = self.scores.amin(1) if self.lower_is_better else self.scores.amax(1)
        return {"m by validation": self.validated, "m by oracle": oracle}

    def oracle_losses(self) -> Tensor:
        """The losses (K',) at each client's best point; of points with equal scores, the lowest."""
        is_best = self.scores == self.adaptive()["m by oracle"][:, None]
        return torch.where(is_best, self.losses, torch.inf).amin(1)


class _Along(NamedTuple):
    """Every client's scores and losses at every point, (K, 11)."""

    scores: Tensor
    losses: Tensor

    def score_at(self, point: Tensor) -> Tensor:
        return self.scores.gather(1, point[:, None])[:, 0]


def curve(job: Job, state: State) -> Curve:
    """Evaluate the line. A client that never took part has the global model at every point."""
    federation = _federation(job)
    client = _personal_client(job)
    test = federation.test
    ids = federation.scored
    whole = _along(job, client, state, test)
    lower = find(job.task.score).lower_is_better
    if federation.validation is not None:
        point = _best(_along(job, client, state, federation.validation), lower)
        validated = whole.score_at(point)
    else:
        validated = _by_halves(job, client, state, test, lower)
    names = tuple(federation.names[i] for i in ids.tolist())
    return Curve(names, whole.scores[ids], whole.losses[ids], validated[ids], lower)


def _by_halves(job: Job, client: Client, state: State, test: Rows, lower: bool) -> Tensor:
    """Scores (K,) of one half of the test samples at the best m of the other, both ways."""
    halves = [_half(test, k) for k in (0, 1)]
    first, second = (_along(job, client, state, half) for half in halves)
    picked = [first.score_at(_best(second, lower)), second.score_at(_best(first, lower))]
    return _mean_of_halves(torch.stack(picked), torch.stack([h.sizes for h in halves]))


def _along(job: Job, client: Client, state: State, rows: Rows) -> _Along:
    message = job.algorithm.message(state)
    shared = evaluate(job.task, message["w"], rows)
    evaluations = []
    for m in POINTS:
        mixture = _mixture(job.task, client, message, m)
        evaluations.append(_evaluate_own(job, job.task, mixture, rows, shared, mixed=m > 0))
    scores = torch.stack([evaluation.score for evaluation in evaluations], 1)
    losses = torch.stack([evaluation.losses for evaluation in evaluations], 1)
    return _Along(scores, losses)


def _mixture(task: Task, client: Client, message: Tensors, m: float) -> OwnModels:
    def mixture(client_state: ClientState) -> Uses:
        a, b = client.endpoints(task, message, client_state.method)
        return one_model((1 - m) * a + m * b)

    return mixture


def _half(rows: Rows, which: int) -> Rows:
    """Every other row of each client."""
    clients = len(rows.sizes)
    owner = torch.repeat_interleave(torch.arange(clients), rows.sizes)
    position = torch.arange(len(owner)) - rows.offsets[owner]
    chosen = position % 2 == which
    sizes = torch.bincount(owner[chosen], minlength=clients)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    return Rows(rows.x[chosen], rows.y[chosen], offsets)


def _best(along: _Along, lower_is_better: bool = False) -> Tensor:
    """Each client's point (K,) of the best score.

    The loss decides between equal scores and where there is no score. Without samples: the middle.
    """
    sign = -1 if lower_is_better else 1
    scores = (sign * along.scores).nan_to_num(-torch.inf)
    is_highest = scores == scores.amax(1, keepdim=True)
    point = torch.where(is_highest, along.losses, torch.inf).argmin(1)
    return torch.where(along.losses.isnan().all(1), MIDDLE, point)


def _mean_of_halves(scores: Tensor, sizes: Tensor) -> Tensor:
    """The mean (K,) of two halves' scores (2, K), by samples. A half may have no score (AUROC)."""
    weight = sizes.double() * scores.isfinite()
    return (weight * scores.nan_to_num()).sum(0) / weight.sum(0)


# Other scores, and calibration


def evaluate_score(
    job: Job, state: State, score: str, own: bool, rows: Rows | None = None
) -> Evaluation:
    """Evaluate the global model, or the clients' own, by another score (`ece`, for example).

    rows: one client after the other; by default the test rows
    """
    rows = rows or _federation(job).test
    task = replace(job.task, score=score, also=())
    message = job.algorithm.message(state)
    shared = evaluate(task, message["w"], rows)
    if not (own and job.algorithm.personalizes):
        return shared
    return _evaluate_own(job, task, _personal(job, message), rows, shared)


def reliability(job: Job, state: State) -> dict[str, Tensor]:
    """The bins by confidence of the global model and, if there are any, of the clients' own."""
    tables = {"server's model": confidence_bins(job, state, own=False)}
    if job.algorithm.personalizes:
        tables["own models"] = confidence_bins(job, state, own=True)
    return tables


def confidence_bins(job: Job, state: State, own: bool) -> Tensor:
    """All clients' test samples in 20 bins by confidence, (20, 3).

    The columns are the number of samples, their mean confidence and accuracy; NaN without samples.
    """
    test = _federation(job).test
    task = replace(job.task, score="ece", also=())
    message = job.algorithm.message(state)
    others = set(_federation(job).scored.tolist())
    parts = []
    if own and job.algorithm.personalizes:
        vectorize = _vectorize(job)
        for ids, uses in _models(job, _personal(job, message), test):
            _, stats = evaluate_rows_by_models(task, uses, test, ids, vectorize)
            parts.append(stats["ece"])
            others -= set(ids.tolist())
    if others:
        index, _ = test.index_of(torch.tensor(sorted(others)))
        _, stats = evaluate_rows(task, message["w"], test, index)
        parts.append(stats["ece"])
    return _mean_by_bin(torch.cat(parts))


def _mean_by_bin(stats: Tensor) -> Tensor:
    """The bins (20, 3) of samples with a confidence and whether they are right, (N, 2)."""
    everyone = torch.tensor([0, len(stats)])
    count, confidence, right = calibration.bins(stats, everyone)[0].unbind(-1)
    return torch.stack([count, confidence / count, right / count], 1)


def _personal(job: Job, message: Tensors) -> OwnModels:
    return lambda client_state: job.algorithm.uses(message, client_state)


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
    losses = [[_mean_loss(task, origin + i * u + j * v, rows) for i in x] for j in y]
    return Landscape(x, y, torch.tensor(losses), corners)


def _axes(models: Tensor) -> tuple[Tensor, Tensor]:
    """Two orthogonal unit vectors (d,) that span the plane of three models."""
    a, b, c = models
    u = b - a
    v = (c - a) - ((c - a) @ u) / (u @ u) * u
    if not (u.norm() > 0 and v.norm() > 0):
        raise ConfigError("the three models lie on a line: a landscape needs three that do not")
    return u / u.norm(), v / v.norm()


def _mean_loss(task: Task, w: Tensor, rows: Rows) -> Tensor:
    losses, _ = evaluate_rows(task, w, rows)
    return losses.double().mean()


def loss_landscape(job: Job, state: State) -> tuple[tuple[str, ...], Landscape]:
    """The test loss on the plane of the global model and two clients' own, with their names.

    The clients are the first and the last whose personal model differs from the global one. Where
    clients have no personal models: those that the first and the last client make of the global
    model in a round, as for the thesis' Figure 2.4.
    """
    federation = _federation(job)
    message = job.algorithm.message(state)
    if not job.algorithm.personalizes:
        return _landscape_of_updates(job, message)
    ids = sorted(_local(job).states)
    first = _first_own_model(job, message, ids)
    last = _first_own_model(job, message, ids[::-1])
    if first is None or last is None or first.client == last.client:
        raise ConfigError(
            "a landscape needs two clients with models of their own: choose a personal client "
            "method, such as ditto, and run it"
        )
    own = (first, last)
    names = ("server's model", *(f"{federation.names[model.client]}'s own" for model in own))
    models = torch.stack([message["w"], first.model, last.model])
    return names, landscape(job.task, federation.test, models)


def _landscape_of_updates(job: Job, message: Tensors) -> tuple[tuple[str, ...], Landscape]:
    """The plane of the global model and those after a round at the first and last client."""
    federation = _federation(job)
    chosen = job.algorithm
    if not isinstance(chosen, Averaging) or federation.clients < 2:
        raise ConfigError(
            "a landscape needs two clients that train the server's model: run an experiment with "
            "the algorithm 'averaging' and two clients or more"
        )
    plain = Averaging(chosen.task, chosen.rule, chosen.client, chosen.server)
    ends = (0, federation.clients - 1)
    replies = job.engine.collect(plain, Request(torch.tensor(ends), message))
    updates = plain.decode(replies).values["update"]
    names = ("server's model", *(f"{federation.names[i]}'s after a round" for i in ends))
    models = torch.stack([message["w"], *(message["w"] - update for update in updates)])
    return names, landscape(job.task, federation.test, models)


class _Own(NamedTuple):
    client: int
    model: Tensor


def _first_own_model(job: Job, message: Tensors, order: Sequence[int]) -> _Own | None:
    """The first client whose personal model differs from the global one."""
    client = job.algorithm.client
    if client is None or not client.personalizes:
        return None
    states = _local(job).states
    for i in order:
        _, own = client.endpoints(job.task, message, states[i].method)
        if not torch.equal(own, message["w"]):
            return _Own(i, own)
    return None


# What the engine has


def _federation(job: Job) -> Federation:
    return _local(job).federation


def _local(job: Job) -> LocalEngine:
    if job.local is None:
        raise ConfigError(
            f"{type(job.engine).__name__} has no rows of clients in this process, which this "
            "analysis needs: reopen the run with the simulator"
        )
    return job.local


def _personal_client(job: Job) -> Client:
    client = job.algorithm.client
    if client is None or not client.personalizes:
        raise ConfigError(
            f"{type(client or job.algorithm).__name__} has no personal models, so there is no line "
            "to them: choose a personal client method, such as superfed-mm, apfl or ditto"
        )
    return client


def _vectorize(job: Job) -> Vectorize:
    """How the engine evaluates personal models: one by one, unless it runs clients together."""
    mode = job.engine.facts(job.algorithm).vectorize
    return vmap_clients if mode in ("vmap", "chunked") else single


def _models(job: Job, own: OwnModels, rows: Rows) -> Iterator[tuple[Tensor, Uses]]:
    """Yield (ids, what they use) for the clients that have taken part and have samples."""
    for ids, uses in _local(job).models(job.algorithm, own):
        has_rows = rows.sizes[ids] > 0
        if has_rows.any():
            yield ids[has_rows], Uses(*(value[has_rows] for value in uses))


def _evaluate_own(
    job: Job, task: Task, own: OwnModels, rows: Rows, shared: Evaluation, mixed: bool = False
) -> Evaluation:
    """An evaluation of the global model, updated for the clients that have their own.

    mixed: points of a line, whose BatchNorm statistics are estimated on the training samples
    """
    vectorize = _vectorize(job)
    evaluation = shared
    for ids, uses in _models(job, own, rows):
        if mixed and task.has_batchnorm:
            models = _with_statistics(task, uses.models[:, 0], _federation(job).train, ids)
            uses = one_model(models)
        evaluation = evaluation.updated(ids, evaluate_models(task, uses, rows, ids, vectorize))
    return evaluation


def _with_statistics(task: Task, models: Tensor, train: Rows, ids: Tensor) -> Tensor:
    """Each client's model (S, d) with the statistics of its training samples."""
    pairs = zip(models, ids.tolist(), strict=True)
    return torch.stack([task.with_statistics(w, train.client(i).x) for w, i in pairs])
