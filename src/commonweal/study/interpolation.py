"""Models after a run: on the line from global to personal ones, and by other scores.

Functions take a job and the server's state, as `reopen(folder)` gives them. They need all
clients' samples in this process.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from commonweal.base.errors import ConfigError
from commonweal.base.tensors import State
from commonweal.data.federation import Federation
from commonweal.data.rows import Rows
from commonweal.engines import LocalEngine
from commonweal.jobs.job import Job
from commonweal.task.scores import find_score
from commonweal.task.task import Task
from commonweal.task.uses import Uses, one_model
from commonweal.task.vectorize import Vectorize, single, vmap_clients
from commonweal.training.client import Client
from commonweal.training.client_state import ClientState
from commonweal.training.evaluation import Evaluation, evaluate, evaluate_models

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
        """Return the height of the loss above the straight line between its ends, by client (K',).

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
    models = EndModels(job, state)
    federation = models.federation
    whole = models.along(federation.test)
    lower = find_score(job.task.score).lower_is_better
    if federation.validation is not None:
        validated = whole.score_at(_best(models.along(federation.validation), lower))
    else:
        validated = _by_halves(models, lower)
    ids = federation.scored
    names = tuple(federation.names[i] for i in ids.tolist())
    return Curve(names, whole.scores[ids], whole.losses[ids], validated[ids], lower)


def _by_halves(models: "EndModels", lower: bool) -> Tensor:
    """Scores (K,) of one half of the test samples at the best m of the other, both ways."""
    test = models.federation.test
    halves = _half(test, 0), _half(test, 1)
    first, second = models.along(halves[0]), models.along(halves[1])
    scores = torch.stack(
        [first.score_at(_best(second, lower)), second.score_at(_best(first, lower))]
    )
    # The mean by samples. A half may have no score (AUROC).
    weight = torch.stack([half.sizes for half in halves]).double() * scores.isfinite()
    return (weight * scores.nan_to_num()).sum(0) / weight.sum(0)


def _half(rows: Rows, which: int) -> Rows:
    """Every other row of each client."""
    clients = len(rows.sizes)
    owner = torch.repeat_interleave(torch.arange(clients), rows.sizes)
    position = torch.arange(len(owner)) - rows.offsets[owner]
    chosen = position % 2 == which
    sizes = torch.bincount(owner[chosen], minlength=clients)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    return rows.take(chosen.nonzero().flatten(), offsets)


def _best(along: _Along, lower_is_better: bool = False) -> Tensor:
    """Each client's point (K,) of the best score.

    The loss decides between equal scores and where there is no score. Without samples: the middle.
    """
    sign = -1 if lower_is_better else 1
    scores = (sign * along.scores).nan_to_num(-torch.inf)
    is_highest = scores == scores.amax(1, keepdim=True)
    point = torch.where(is_highest, along.losses, torch.inf).argmin(1)
    return torch.where(along.losses.isnan().all(1), MIDDLE, point)


# Other scores


def evaluate_score(
    job: Job, state: State, score: str, own: bool, rows: Rows | None = None
) -> Evaluation:
    """Evaluate the global model, or the clients' own, by another score (`ece`, for example).

    rows: one client after the other; by default the test rows
    """
    models = EndModels(job, state)
    rows = rows or models.federation.test
    task = job.task.replace(score=score, also=())
    shared = evaluate(task, models.message["w"], rows)
    if not (own and job.algorithm.personalizes):
        return shared
    return models.evaluated(task, models.personal, rows, shared)


def scores_at_best(job: Job, state: State, score: str) -> Tensor:
    """Return another score of the K' scored clients at the best point of each one's line.

    The best point is an oracle's: it has the best main score on the client's test samples.
    """
    models = EndModels(job, state)
    test = models.federation.test
    best = _best(models.along(test), find_score(job.task.score).lower_is_better)
    other = models.along(test, job.task.replace(score=score, also=()))
    return other.score_at(best)[models.federation.scored]


# The models of a run


class EndModels:
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
        """Return the models and weights that a client predicts with."""
        return self.job.algorithm.uses(self.message, state)

    def used(self, own: OwnModels, rows: Rows) -> Iterator[tuple[Tensor, Uses]]:
        """Yield (ids, what they use) for the clients that have taken part and have samples."""
        for ids, uses in self.engine.models(self.job.algorithm, own):
            has_rows = rows.sizes[ids] > 0
            if has_rows.any():
                yield ids[has_rows], _only(uses, has_rows)

    def evaluated(
        self, task: Task, own: OwnModels, rows: Rows, shared: Evaluation, mixed: bool = False
    ) -> Evaluation:
        """The evaluation of the global model, updated for the clients that have their own.

        mixed: for points of a line, whose BatchNorm statistics are estimated on training samples
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

    def along(self, rows: Rows, task: Task | None = None) -> _Along:
        """Evaluate every point between the global model and the clients' own."""
        task = task or self.job.task
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


def _personal_client(job: Job) -> Client:
    client = job.algorithm.client
    if client is None or not client.personalizes:
        raise ConfigError(
            f"{type(client or job.algorithm).__name__} has no personal models, so there is no line "
            "to them: choose a personal client method, such as superfed-mm, apfl or ditto"
        )
    return client


def _only(uses: Uses, which: Tensor) -> Uses:
    """What some clients use."""
    return uses.map(lambda value: value[which])
