"""What synthetic rows are worth: to a classifier, beside real rows, and to those whose rows they might copy."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from commonweal import metrics
from commonweal.errors import ConfigError, DataError
from commonweal.federation import Federation
from commonweal.local import measure
from commonweal.randomness import JUDGE, stream
from commonweal.synthetic._fit import fit, scaled, unit
from commonweal.task import Task

__all__ = ["Judgement", "frechet", "judge", "nearest"]

Features = Callable[[Tensor], Tensor]  # rows (N, ...) in [0, 1] -> (N, p)
AT_ONCE = 1024  # rows in a pass


@dataclass(frozen=True, eq=False)
class Judgement:
    """How good synthetic rows are. Distances of rows are Euclidean, over pixels in [0, 1]."""

    scores: Tensor  # (K,) of the server's classifier on each client's test rows
    metrics: dict[str, float]  # of the scores, over clients
    extractor: str  # what the features of the Frechet distance are
    frechet: float  # between the synthetic rows and all real test rows
    frechet_real: float  # the same for as many real training rows: what a perfect generator would get
    recognised: float  # share of rows that a classifier of real rows gives their own label
    coverage: float  # share of classes with a row so recognised
    nearest: float  # median distance to the nearest real training row
    nearest_held: float  # the same for real test rows, which cannot be copies
    near: float  # share of rows nearer to a training row than 95 % of the real test rows are; 0.05 is as real ones


def judge(
    task: Task,
    federation: Federation,
    w: Tensor,
    x: Tensor,
    y: Tensor,
    *,
    held: Tensor | None = None,
    features: Features | None = None,
    extractor: str = "",
    dimensions: int = 32,
    epochs: int = 3,
    lr: float = 1e-3,
    seed: int = 0,
) -> Judgement:
    """Judge labelled synthetic rows (x in [0, 1]) and the classifier `w` that the server trained on them.

    held: real rows to compare with, the whole test set; by default the test rows of all clients
    features: rows to features, named by `extractor`. By default those that the task's own model feeds its last layer,
    after `epochs` passes over all real training rows. Inception is not built in, as torchvision is no dependency:
    whoever has its weights gives a function here.
    Both sides are scaled alike, and projected on the `dimensions` leading principal axes of the real test rows'
    features: a covariance of M rows has rank M - 1 at most, so M must be larger than that.
    """
    if features is not None and not extractor:
        raise ConfigError(
            f"features = {features!r} have no name: say in `extractor` what they are; a distance means nothing else"
        )
    train, test, rng = federation.train, federation.test, stream(seed, 0, 0, JUDGE)
    real, held = (scaled(unit(rows)) for rows in (train.x, test.x if held is None else held))
    teacher = fit(task, real, train.y, epochs, 64, lr, rng)
    if features is None:
        extractor = f"last hidden layer of {type(task.module).__name__}, {task.size} parameters, {epochs} real epochs"
        features = _hidden(task, teacher)
    some = torch.from_numpy(rng.permutation(len(real))[: len(x)])
    parts = [_project(features, held, rows, dimensions) for rows in (x, real[some])]
    guess = torch.cat([task.outputs(teacher, part).argmax(1) for part in torch.split(x, AT_ONCE)])
    right = guess == y
    own, other = nearest(x, real), nearest(held, real)
    scores = measure(task, w, test)[1]
    scored = federation.scored
    return Judgement(
        scores,
        metrics.summary(scores[scored], test.sizes[scored], [federation.names[k] for k in scored.tolist()]),
        f"{extractor}, first {dimensions} principal axes of the test rows",
        frechet(*parts[0]),
        frechet(*parts[1]),
        float(right.double().mean()),
        len(set(y[right].tolist())) / federation.outputs,
        float(own.median()),
        float(other.median()),
        float((own < other.quantile(0.05)).double().mean()),
    )


def frechet(a: Tensor, b: Tensor) -> float:
    """|mean a - mean b|^2 + tr(A + B - 2 (A B)^(1/2)) for features (N, p), (M, p) with covariances A and B."""
    for rows in (a, b):
        if len(rows) <= a.shape[1]:
            raise DataError(
                f"{len(rows)} rows have no covariance of full rank in {a.shape[1]} dimensions: "
                "give more rows, or ask for fewer dimensions"
            )
    a, b = a.double(), b.double()
    A, B = torch.cov(a.T).reshape(a.shape[1], -1), torch.cov(b.T).reshape(a.shape[1], -1)
    values, vectors = torch.linalg.eigh(A)
    root = vectors * values.clamp(min=0).sqrt() @ vectors.T
    cross = torch.linalg.eigvalsh(root @ B @ root).clamp(min=0).sqrt().sum()
    return float((a.mean(0) - b.mean(0)).square().sum() + A.trace() + B.trace() - 2 * cross)


def nearest(x: Tensor, real: Tensor) -> Tensor:
    """Each row's distance (N,) to the nearest of the real ones."""
    pool = real.flatten(1)
    return torch.cat([torch.cdist(part, pool).amin(1) for part in torch.split(x.flatten(1), AT_ONCE // 4)])


def _project(features: Features, real: Tensor, made: Tensor, dimensions: int) -> tuple[Tensor, Tensor]:
    """The features of both in the coordinates in which the real ones spread most."""
    with torch.no_grad():
        a, b = (torch.cat([features(p) for p in torch.split(rows, AT_ONCE)]).double() for rows in (real, made))
    axes = torch.linalg.eigh(torch.cov(a.T))[1][:, -dimensions:]
    return a @ axes, b @ axes


def _hidden(task: Task, w: Tensor) -> Features:
    """What the module's last linear layer is fed."""
    linear = [m for m in task._judging.modules() if isinstance(m, nn.Linear)]
    if not linear:
        raise ConfigError(f"{type(task.module).__name__} has no linear layer to take features from: give `features`")

    def features(x: Tensor) -> Tensor:
        seen: list[Tensor] = []
        hook = linear[-1].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        try:
            task.outputs(w, x)
        finally:
            hook.remove()
        return seen[0].flatten(1)

    return features
