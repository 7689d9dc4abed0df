"""Looking at personal models after a run: the line between two models, the plane through three, trust in confidence."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from commonweal import calibration
from commonweal.algorithm import Server
from commonweal.errors import ConfigError, RunError
from commonweal.experiment import read
from commonweal.federation import Rows
from commonweal.local import judge, judge_each, measure
from commonweal.run import Job, prepare, restored
from commonweal.store import Store
from commonweal.task import Task

__all__ = ["Curve", "Landscape", "around", "curve", "landscape", "reliability", "reopen", "scored", "trust"]

POINTS = tuple(k / 10 for k in range(11))  # m = 0 (the shared model), 0.1, ..., 1 (the client's own)
MIDDLE = POINTS.index(0.5)


def reopen(folder: str | Path) -> tuple[Job, Server]:
    """The job of a run in a folder, with the server and the clients of its last checkpoint."""
    folder = Path(folder)
    try:
        job = prepare(read(folder / "experiment.toml"))
    except ConfigError as error:
        raise RunError(f"{str(folder)!r} cannot be built again from its experiment.toml: {error}") from None
    saved = Store(folder).saved()
    if saved is None:
        raise RunError(f"{str(folder)!r} has no checkpoint yet")
    return job, restored(job, saved, folder)


@dataclass(frozen=True, eq=False)
class Curve:
    """Every judged client's test scores and losses along the line from the shared model to its own, (K', 11)."""

    names: tuple[str, ...]
    scores: Tensor
    losses: Tensor
    validated: Tensor  # (K',) at an m chosen on one half of the client's test rows, on the other: the mean of both ways

    def chosen(self) -> dict[str, Tensor]:
        """Every client's score (K',) by how m is chosen. The oracle's m is chosen on the very rows that are scored."""
        fixed = {f"m = {POINTS[k]:g}": self.scores[:, k] for k in (0, MIDDLE, 10)}
        return fixed | {"m by validation": self.validated, "m by oracle": self.scores.amax(1)}


def curve(job: Job, server: Server) -> Curve:
    """The scores along the line; a client that never took part has the shared model all along."""
    test, ids = job.federation.test, job.federation.scored
    halves = [_half(test, k) for k in (0, 1)]
    (scores, losses), first, second = (_along(job, server, rows) for rows in (test, *halves))
    n = torch.stack([half.sizes for half in halves]).double()  # (2, K)
    picked = torch.stack([_at(first[0], _best(*second)), _at(second[0], _best(*first))])
    n = n * picked.isfinite()  # a half may have no score, as AUROC of a single class
    validated = (n * picked.nan_to_num()).sum(0) / n.sum(0)
    names = tuple(job.federation.names[i] for i in ids.tolist())
    return Curve(names, scores[ids], losses[ids], validated[ids])


def _along(job: Job, server: Server, rows: Rows) -> tuple[Tensor, Tensor]:
    """Every client's score and loss at every point, (K, 11)."""
    ends = getattr(getattr(job.algorithm, "local", None), "ends", None)
    if ends is None:
        raise ConfigError("this client method has no line between two models: take superfed-mm, superfed-lm or apfl")
    task, seen = job.task, job.simulator.seen(job.algorithm, server)
    shared = measure(task, seen["w"], rows)

    def at(m: float) -> Any:
        def own(kept: dict[str, Tensor]) -> Tensor:
            a, b = ends(task, seen, kept)
            mixed: Tensor = (1 - m) * a + m * b
            return mixed

        return job.simulator.judge(own, shared, rows=rows)

    losses, scores = zip(*map(at, POINTS), strict=True)
    return torch.stack(scores, 1), torch.stack(losses, 1)


def _half(rows: Rows, which: int) -> Rows:
    """Every other row of each client."""
    owner = torch.repeat_interleave(torch.arange(len(rows.sizes)), rows.sizes)
    mine = (torch.arange(len(owner)) - rows.offsets[owner]) % 2 == which
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), torch.bincount(owner[mine], minlength=len(rows.sizes))])
    return Rows(rows.x[mine], rows.y[mine], offsets.cumsum(0))


def _best(scores: Tensor, losses: Tensor) -> Tensor:
    """The point (K,) of the highest score, the least loss among equals or without a score; the middle without rows."""
    scores = scores.nan_to_num(-torch.inf)
    point = torch.where(scores == scores.amax(1, keepdim=True), losses, torch.inf).argmin(1)
    return torch.where(losses.isnan().all(1), MIDDLE, point)


def _at(scores: Tensor, point: Tensor) -> Tensor:
    return scores.gather(1, point[:, None])[:, 0]


def scored(job: Job, server: Server, score: str, own: bool, rows: Rows | None = None) -> tuple[Tensor, Tensor]:
    """Every client's loss and another score (`ece`, say) of the server's model, or of the client's own.

    rows: on which, one client after the other; the test rows by default
    """
    task, seen = replace(job.task, score=score), job.simulator.seen(job.algorithm, server)
    rows = rows or job.federation.test
    shared = measure(task, seen["w"], rows)
    personal = getattr(job.algorithm, "personal", None)
    if not own or personal is None:
        return shared
    return job.simulator.judge(lambda kept: personal(job.task, seen, kept), shared, task, rows)


def reliability(job: Job, server: Server, own: bool) -> Tensor:
    """All clients' test rows by confidence, (20, 3): rows, mean confidence, share that is right; NaN without rows."""
    task, seen, test = replace(job.task, score="ece"), job.simulator.seen(job.algorithm, server), job.federation.test
    personal = getattr(job.algorithm, "personal", None)
    parts, others = [], set(job.federation.scored.tolist())
    if own and personal is not None:
        for ids, models in job.simulator.models(lambda kept: personal(job.task, seen, kept), test):
            parts.append(judge_each(task, models, test, ids, job.simulator.lift)[1])
            others -= set(ids.tolist())
    if others:
        parts.append(judge(task, seen["w"], test, test.where(torch.tensor(sorted(others)))[0])[1])
    rows = torch.cat(parts)
    count, confidence, right = calibration.bins(rows, torch.tensor([0, len(rows)]))[0].unbind(-1)
    return torch.stack([count, confidence / count, right / count], 1)


def trust(job: Job, server: Server) -> dict[str, Tensor]:
    """The reliability of the server's model and, where there are any, of the clients' own."""
    own = {"own models": True} if getattr(job.algorithm, "personal", None) else {}
    return {label: reliability(job, server, which) for label, which in ({"server's model": False} | own).items()}


@dataclass(frozen=True, eq=False)
class Landscape:
    """The loss over the plane through three models; distances are those of the models."""

    x: Tensor  # (g,)
    y: Tensor  # (g,)
    losses: Tensor  # (g, g), a row for each y
    corners: Tensor  # (3, 2) where the models lie


def landscape(task: Task, rows: Rows, models: Tensor, side: int = 15, margin: float = 0.3) -> Landscape:
    """The mean loss on a grid of side x side models around three (3, d). (Garipov et al., NeurIPS 2018)"""
    a, b, c = models
    u = b - a
    v = (c - a) - ((c - a) @ u) / (u @ u) * u
    if not (u.norm() > 0 and v.norm() > 0):
        raise ConfigError("the three models lie on a line: a landscape needs three that do not")
    u, v = u / u.norm(), v / v.norm()
    corners = torch.stack([torch.stack([(m - a) @ u, (m - a) @ v]) for m in models])
    low, high = corners.amin(0), corners.amax(0)
    edge = margin * (high - low)
    x, y = (torch.linspace(float(p), float(q), side) for p, q in zip(low - edge, high + edge, strict=True))
    losses = [[judge(task, a + i * u + j * v, rows)[0].double().mean() for i in x] for j in y]
    return Landscape(x, y, torch.tensor(losses), corners)


def around(job: Job, server: Server) -> tuple[tuple[str, ...], Landscape]:
    """The test loss in the plane of the server's model and two clients' own, the first and the last there are."""
    seen, local = job.simulator.seen(job.algorithm, server), getattr(job.algorithm, "local", None)
    ends, personal = getattr(local, "ends", None), getattr(local, "personal", None)

    def first(order: list[int]) -> tuple[int, Tensor] | None:
        """The first client whose own model is another than the server's: some never took part while it was trained."""
        for i in order:
            row = job.simulator.kept[i]
            own = ends(job.task, seen, row)[1] if ends else personal and personal(job.task, seen, row)
            if own is not None and not torch.equal(own, seen["w"]):
                return i, own
        return None

    kept = list(job.simulator.kept)
    found = [client for client in (first(kept), first(kept[::-1])) if client is not None]
    if len({i for i, _ in found}) < 2:
        raise ConfigError("a landscape needs two clients with models of their own: take a personal method, and run it")
    names = ("server's model", *(f"{job.federation.names[i]}'s own" for i, _ in found))
    return names, landscape(job.task, job.federation.test, torch.stack([seen["w"], *(own for _, own in found)]))
