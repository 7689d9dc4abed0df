"""The quality of synthetic rows: for a classifier, next to real rows, and as copies of them."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from commonweal import metrics
from commonweal.base.errors import ConfigError, DataError
from commonweal.base.randomness import JUDGE, stream
from commonweal.data.federation import Federation
from commonweal.protocols.synthetic.fitting import check_unit, fit_model, scaled
from commonweal.task.task import Task
from commonweal.training.evaluation import evaluate

Features = Callable[[Tensor], Tensor]  # rows (N, ...) in [0, 1] -> (N, p)
AT_ONCE = 1024  # rows per forward pass
BATCH = 64  # rows per step of the classifier of real rows


@dataclass(frozen=True, eq=False)
class Quality:
    """The quality of synthetic rows. Distances of rows are Euclidean, over pixels in [0, 1]."""

    scores: Tensor  # (K,) of the server's classifier on each client's test rows
    metrics: dict[str, float]  # of the scores, over clients
    extractor: str  # what the features of the Frechet distance are
    frechet: float  # between the synthetic rows and all real test rows
    frechet_real: float  # the same for as many real training rows: a perfect generator's
    recognised: float  # fraction of rows whose label a classifier of real rows predicts
    coverage: float  # fraction of classes with such a row
    nearest: float  # median distance to the nearest real training row
    nearest_held: float  # the same for real test rows, which cannot be copies
    near: float  # fraction nearer to a training row than 95 % of test rows; real rows: 0.05


def assess(
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
) -> Quality:
    """Assess labelled synthetic rows (x in [0, 1]) and the server's classifier `w`.

    held: real rows to compare with; by default the test rows of all clients
    features: a function from rows to features, named by `extractor`. By default the inputs of the
    last layer of the task's own model, after `epochs` epochs on all real training rows. Inception
    is not built in, as torchvision is not a dependency: pass it here.
    dimensions: leading principal axes of the real test rows' features on which both sides are
    projected. A covariance of M rows has at most rank M - 1, so M must be larger than that.
    """
    if features is not None and not extractor:
        raise ConfigError(
            f"features = {features!r} have no name: say in `extractor` what they are, "
            "as distances are comparable for the same features only"
        )
    rng = stream(seed, 0, 0, JUDGE)
    real = scaled(check_unit(federation.train.x))
    held = scaled(check_unit(federation.test.x if held is None else held))
    teacher = fit_model(task, real, federation.train.y, epochs, BATCH, lr, rng)
    if features is None:
        features = _last_hidden(task, teacher)
        model = f"{type(task.module).__name__}, {task.size} parameters"
        extractor = f"last hidden layer of {model}, {epochs} real epochs"
    axes = _principal_axes(features, held, dimensions)
    real_features = axes(held)
    subset = torch.from_numpy(rng.permutation(len(real))[: len(x)])
    parts = torch.split(x, AT_ONCE)
    predicted = torch.cat([task.outputs(teacher, part).argmax(1) for part in parts])
    recognised = predicted == y
    distances = nearest(x, real)
    held_distances = nearest(held, real)
    scores = evaluate(task, w, federation.test).score
    scored = federation.scored  # the clients that have test samples
    names = [federation.names[client] for client in scored.tolist()]
    return Quality(
        scores=scores,
        metrics=metrics.summary(scores[scored], federation.test.sizes[scored], names),
        extractor=f"{extractor}, first {dimensions} principal axes of the test rows",
        frechet=frechet(real_features, axes(x)),
        frechet_real=frechet(real_features, axes(real[subset])),
        recognised=_fraction(recognised),
        coverage=len(set(y[recognised].tolist())) / federation.outputs,
        nearest=float(distances.median()),
        nearest_held=float(held_distances.median()),
        near=_fraction(distances < held_distances.quantile(0.05)),
    )


def _fraction(mask: Tensor) -> float:
    return float(mask.double().mean())


def frechet(a: Tensor, b: Tensor) -> float:
    """|mean a - mean b|^2 + tr(A + B - 2 (A B)^(1/2)) for features (N, p), (M, p).

    A and B are their covariances.
    """
    A, B = _covariance(a), _covariance(b)
    values, vectors = torch.linalg.eigh(A)
    root = vectors * values.clamp(min=0).sqrt() @ vectors.T
    # The eigenvalues of A B are those of the symmetric A^(1/2) B A^(1/2).
    cross = torch.linalg.eigvalsh(root @ B @ root).clamp(min=0)
    gap = a.double().mean(0) - b.double().mean(0)
    apart = gap.square().sum() + A.trace() + B.trace()
    return float(apart - 2 * cross.sqrt().sum())


def _covariance(features: Tensor) -> Tensor:
    """The covariance (p, p) of features (N, p), in float64."""
    rows, dimensions = features.shape
    if rows <= dimensions:
        raise DataError(
            f"{rows} rows have no covariance of full rank in {dimensions} dimensions: "
            "give more rows, or ask for fewer dimensions"
        )
    return torch.cov(features.double().T).reshape(dimensions, dimensions)


def nearest(x: Tensor, real: Tensor) -> Tensor:
    """Each row's distance (N,) to the nearest real row."""
    parts = torch.split(x.flatten(1), AT_ONCE // 4)
    return torch.cat([torch.cdist(part, real.flatten(1)).amin(1) for part in parts])


def _principal_axes(features: Features, real: Tensor, dimensions: int) -> Features:
    """Features in the coordinates in which those of the real rows vary most."""

    def all_features(rows: Tensor) -> Tensor:
        with torch.no_grad():
            parts = [features(part) for part in torch.split(rows, AT_ONCE)]
        return torch.cat(parts).double()

    seen = all_features(real)
    if seen.shape[1] > len(seen):  # a covariance would be larger than the features
        _, _, axes = torch.linalg.svd(seen - seen.mean(0), full_matrices=False)
        leading = axes[:dimensions].T
    else:
        _, axes = torch.linalg.eigh(torch.cov(seen.T))  # by rising variance
        leading = axes[:, -dimensions:]
    return lambda rows: all_features(rows) @ leading


def _last_hidden(task: Task, w: Tensor) -> Features:
    """The inputs of the model's last linear layer."""
    module = task.module_of(w)
    linear = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    if not linear:
        raise ConfigError(
            f"{type(module).__name__} has no linear layer to take features from: give `features`"
        )

    def features(x: Tensor) -> Tensor:
        inputs: list[Tensor] = []
        hook = linear[-1].register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
        try:
            module(x)
        finally:
            hook.remove()
        return inputs[0].flatten(1)

    return features
