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
from commonweal.base.tensors import State
from commonweal.data.federation import Federation
from commonweal.data.rows import Rows
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
from commonweal.training.scores import find
from commonweal.training.task import Task
from commonweal.training.uses import Uses, one_model
from commonweal.training.vectorize import Vectorize, single, vmap_clients

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
        columns = {f"m = {POINTS[k]:g}": self.scores[:, k] for k in (0, MIDDLE, LAST)}
        columns[f"best common m = {self.common:g}"] = self.scores[:, self._best]
        return columns | self.adaptive()

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
    models = _Models(job, state)
    _personal_client(job)
    federation = models.federation
    whole = models.along(federation.test)
    lower = find(job.task.score).lower_is_better
    if federation.validation is not None:
        validated = whole.score_at(_best(models.along(federation.validation), lower))
    else:
        validated = _by_halves(models, lower)
    ids = federation.scored
    names = tuple(federation.names[i] for i in ids.tolist())
    return Curve(names, whole.scores[ids], whole.losses[ids], validated[ids], lower)


def _by_halves(models: "_Models", lower: bool) -> Tensor:
    """Scores (K,) of one half of the test samples at the best m of the other, both ways."""
    test = models.federation.test
    halves = _half(test, 0), _half(test, 1)
    first, second = models.along(halves[0]), models.along(halves[1])
    chosen = [first.score_at(_best(second, lower)), second.score_at(_best(first, lower))]
    return _mean_of_halves(torch.stack(chosen), torch.stack([half.sizes for half in halves]))


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
    models = _Models(job, state)
    rows = rows or models.federation.test
    task = replace(job.task, score=score, also=())
    shared = evaluate(task, models.message["w"], rows)
    if not (own and job.algorithm.personalizes):
        return shared
    return models.evaluated(task, models.personal, rows, shared)


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
    models = _Models(job, state)
    test = models.federation.test
    task = replace(job.task, score="ece", also=())
    others = set(models.federation.scored.tolist())
    parts = []
    if own and job.algorithm.personalizes:
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
    """The test loss on the plane of the global model and two clients' own, with their names.

    The clients are the first and the last whose personal model differs from the global one. Where
    clients have no personal models: those that the first and the last client make of the global
    model in a round, as for the thesis' Figure 2.4.
    """
    models = _Models(job, state)
    if not job.algorithm.personalizes:
        return _landscape_of_updates(models)
    ids = sorted(models.engine.states)
    first = models.first_own(ids)
    last = models.first_own(ids[::-1])
    if first is None or last is None or first == last:
        raise ConfigError(
            "a landscape needs two clients with models of their own: choose a personal client "
            "method, such as ditto, and run it"
        )
    names = models.federation.names
    corners = torch.stack([models.message["w"], models.own(first), models.own(last)])
    titles = ("server's model", f"{names[first]}'s own", f"{names[last]}'s own")
    return titles, landscape(job.task, models.federation.test, corners)


def _landscape_of_updates(models: "_Models") -> tuple[tuple[str, ...], Landscape]:
    """The plane of the global model and those after a round at the first and last client."""
    federation, job = models.federation, models.job
    chosen = job.algorithm
    if not isinstance(chosen, Averaging) or federation.clients < 2:
        raise ConfigError(
            "a landscape needs two clients that train the server's model: run an experiment with "
            "the algorithm 'averaging' and two clients or more"
        )
    plain = Averaging(chosen.task, chosen.rule, chosen.client, chosen.server)
    ends = torch.tensor([0, federation.clients - 1])
    replies = job.engine.collect(plain, Request(ends, models.message))
    updates = plain.decode(replies).values["update"]
    w = models.message["w"]
    first, last = federation.names[0], federation.names[-1]
    titles = ("server's model", f"{first}'s after a round", f"{last}'s after a round")
    return titles, landscape(job.task, federation.test, torch.cat([w[None], w - updates]))


# The models of a run


class _Models:
    """The global model and the clients' own, where all clients' samples are in this process."""

    def __init__(self, job: Job, state: State) -> None:
        if job.local is None:
            raise ConfigError(
                f"{type(job.engine).__name__} has no rows of clients in this process, which this "
                "analysis needs: reopen the run with the simulator"
            )
        self.job = job
        self.engine: LocalEngine = job.local
        self.federation: Federation = job.local.federation
        self.message = job.algorithm.message(state)
        # One by one, unless the engine runs clients together.
        mode = job.engine.facts(job.algorithm).vectorize
        self.vectorize: Vectorize = vmap_clients if mode in ("vmap", "chunked") else single

    def personal(self, state: ClientState) -> Uses:
        """What a client predicts with."""
        return self.job.algorithm.uses(self.message, state)

    def used(self, own: OwnModels, rows: Rows) -> Iterator[tuple[Tensor, Uses]]:
        """Yield (ids, what they use) for the clients that have taken part and have samples."""
        for ids, uses in self.engine.models(self.job.algorithm, own):
            has_rows = rows.sizes[ids] > 0
            if has_rows.any():
                yield ids[has_rows], Uses(*(value[has_rows] for value in uses))

    def evaluated(
        self, task: Task, own: OwnModels, rows: Rows, shared: Evaluation, mixed: bool = False
    ) -> Evaluation:
        """An evaluation of the global model, updated for the clients that have their own.

        Args:
            task: With the score.
            own: A client's models.
            rows: The samples.
            shared: The evaluation of the global model.
            mixed: Points of a line, whose BatchNorm statistics are estimated on training samples.
        """
        evaluation = shared
        for ids, uses in self.used(own, rows):
            if mixed and task.has_batchnorm:
                models = []
                for w, i in zip(uses.models[:, 0], ids.tolist(), strict=True):
                    models.append(task.with_statistics(w, self.federation.train.client(i).x))
                uses = one_model(torch.stack(models))
            new = evaluate_models(task, uses, rows, ids, self.vectorize)
            evaluation = evaluation.updated(ids, new)
        return evaluation

    def along(self, rows: Rows) -> _Along:
        """Evaluate every point between the global model and the clients' own."""
        task = self.job.task
        client = _personal_client(self.job)
        shared = evaluate(task, self.message["w"], rows)
        scores, losses = [], []
        for m in POINTS:

            def mixture(state: ClientState, m: float = m) -> Uses:
                a, b = client.endpoints(task, self.message, state.method)
                return one_model((1 - m) * a + m * b)

            evaluation = self.evaluated(task, mixture, rows, shared, mixed=m > 0)
            scores.append(evaluation.score)
            losses.append(evaluation.losses)
        return _Along(torch.stack(scores, 1), torch.stack(losses, 1))

    def own(self, client: int) -> Tensor:
        """A client's end of the line."""
        method = _personal_client(self.job)
        state = self.engine.states[client].method
        return method.endpoints(self.job.task, self.message, state)[1]

    def first_own(self, order: Sequence[int]) -> int | None:
        """The first client whose personal model differs from the global one."""
        method = self.job.algorithm.client
        if method is None or not method.personalizes:
            return None
        for client in order:
            if not torch.equal(self.own(client), self.message["w"]):
                return client
        return None


def _personal_client(job: Job) -> Client:
    client = job.algorithm.client
    if client is None or not client.personalizes:
        raise ConfigError(
            f"{type(client or job.algorithm).__name__} has no personal models, so there is no line "
            "to them: choose a personal client method, such as superfed-mm, apfl or ditto"
        )
    return client
