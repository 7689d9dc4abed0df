"""Figures as files: PNG, SVG or PDF, by the suffix of the path."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from commonweal.analysis.compare import Result, align
from commonweal.analysis.interpolation import POINTS, Curve, Landscape
from commonweal.analysis.regret import Regret
from commonweal.base.errors import ConfigError, RunError
from commonweal.base.text import shown
from commonweal.data.federation import Federation
from commonweal.report.tables import scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "check_suffix",
    "draw_curve",
    "draw_federation",
    "draw_landscape",
    "draw_regret",
    "draw_reliability",
    "draw_scores",
]

Array: TypeAlias = NDArray[np.float64]

SUFFIXES = (".png", ".svg", ".pdf")
MOST_CLIENTS = 200  # that a figure of a federation shows one by one
MOST_NAMES = 30  # clients whose names are shown in it
MOST_SCORES = 60  # clients whose names are shown in a figure of scores


def check_suffix(*paths: Path | None) -> None:
    """Raise ConfigError for a path that is not a figure's, before the work that leads to it."""
    for path in paths:
        if path is not None and path.suffix.lower() not in SUFFIXES:
            raise ConfigError(
                f"{str(path)!r} is not the name of a figure: end it with {', '.join(SUFFIXES)}"
            )


@contextmanager
def figure(path: Path, width: float, height: float) -> Iterator["Axes"]:
    """Axes that are saved to a file at the end. Sizes are in inches."""
    import matplotlib  # slow to import

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    check_suffix(path)
    with matplotlib.rc_context({"text.parse_math": False}):  # a client may be called $x$
        whole, axes = plt.subplots(layout="constrained", figsize=(width, height))
        try:
            yield axes
            path.parent.mkdir(parents=True, exist_ok=True)
            whole.savefig(path, dpi=150)
        except OSError as error:
            raise RunError(f"cannot write {str(path)!r}: {error.strerror}") from None
        finally:
            plt.close(whole)


def _name_ticks(axes: "Axes", names: Sequence[str], rotation: int) -> None:
    ticks = [shown(name) for name in names]
    axes.set_xticks(np.arange(len(names)), ticks, rotation=rotation, ha="right")


def _score_label(score: str) -> str:
    return f"{score} (%)" if scale(score) == 100 else score


# Comparisons


def draw_scores(path: Path, results: Sequence[Result], score: str) -> None:
    """Every client's score under each rule, in the order of the first. Bars span the seeds."""
    first = results[0]
    order = np.argsort(first.scores.mean(0), kind="stable")
    names = [first.clients[k] for k in order]
    with figure(path, max(6.0, 0.45 * min(len(names), MOST_SCORES)), 4) as axes:
        for i, each in enumerate(results):
            offset = 0.5 / len(results) * (i - (len(results) - 1) / 2)
            _draw_result(axes, first, each, names, offset, f"C{i}", scale(score))
        if len(names) <= MOST_SCORES:
            axes.set_xticks(
                np.arange(len(names)), [shown(name) for name in names], rotation=45, ha="right"
            )
        axes.set_ylabel(_score_label(score))
        axes.set_title("Scores of the clients: mean and range over seeds\n(dotted: a seed's worst)")
        axes.legend()


def _draw_result(
    axes: "Axes",
    first: Result,
    each: Result,
    names: Sequence[str],
    offset: float,
    color: str,
    factor: float,
) -> None:
    """Draw the clients that a result has in common with the first."""
    common, _, scores = align(first, each)
    if not common:
        return
    position = {name: k for k, name in enumerate(names)}
    x = np.array([position[name] for name in common]) + offset
    scores = factor * scores
    mean = scores.mean(0)
    span = np.stack([mean - scores.min(0), scores.max(0) - mean]).clip(min=0)  # rounding
    # The worst of each seed, and its mean, as in the table: the worst of the means is milder.
    worst = float(np.mean((scores.max if each.lower_is_better else scores.min)(1)))
    label = f"{shown(each.label)}: worst {worst:.3g}, mean {mean.mean():.3g}"
    axes.errorbar(x, mean, yerr=span, fmt="o", capsize=2, color=color, label=label)
    axes.axhline(worst, color=color, linestyle=":", linewidth=1)


# Models of a run


def draw_curve(path: Path, curve: Curve, score: str) -> None:
    """The score on the line from the global to the clients' own models."""
    scores = scale(score) * curve.scores.numpy()
    low, high = np.quantile(scores, (0.25, 0.75), axis=0)
    with figure(path, 6, 4) as axes:
        axes.fill_between(POINTS, low, high, alpha=0.2, label="middle half of the clients")
        axes.plot(POINTS, scores.mean(0), "o-", label="mean over clients")
        for style, (label, values) in zip(("--", ":"), curve.adaptive().items(), strict=True):
            mean = scale(score) * float(values.mean())
            axes.axhline(mean, linestyle=style, color="C1", label=label)
        axes.set_xlabel("m: 0 is the global model, 1 the client's own")
        axes.set_ylabel(_score_label(score))
        axes.legend()


def draw_landscape(path: Path, plane: Landscape, labels: Sequence[str]) -> None:
    """The loss on a plane through three models."""
    from matplotlib import pyplot as plt

    with figure(path, 6, 5) as axes:
        contours = axes.contourf(plane.x.numpy(), plane.y.numpy(), plane.losses.numpy(), levels=20)
        plt.colorbar(contours, ax=axes, label="loss")
        for (x, y), label in zip(plane.corners.tolist(), labels, strict=True):
            axes.plot(x, y, "o", color="white", markeredgecolor="black")
            axes.annotate(
                shown(label), (x, y), (0, 8), textcoords="offset points", color="white", ha="center"
            )
        axes.set_xlabel("distance")
        axes.set_ylabel("distance")


def draw_reliability(path: Path, tables: Mapping[str, Tensor]) -> None:
    """Accuracy against confidence. A calibrated model is on the diagonal."""
    with figure(path, 5, 5) as axes:
        axes.plot([0, 1], [0, 1], color="grey", linewidth=1)
        for label, table in tables.items():
            has_rows = table[:, 0] > 0
            _, confidence, accuracy = table[has_rows].unbind(1)
            axes.plot(confidence.numpy(), accuracy.numpy(), "o-", label=label)
        axes.set_xlabel("confidence")
        axes.set_ylabel("accuracy")
        axes.legend()


def draw_regret(path: Path, curve: Regret, title: str) -> None:
    """The regret and its bound over rounds."""
    with figure(path, 6, 4) as axes:
        axes.plot(curve.rounds, curve.regret, marker=".", label="regret")
        if curve.bound is not None:
            axes.plot(curve.rounds, curve.bound, linestyle="--", label="the theorem's bound")
        axes.set_xlabel("round")
        axes.set_title(shown(title, lines=True))
        axes.legend()


# Data


def draw_federation(path: Path, federation: Federation, title: str) -> None:
    """Rows by client and class, or by client where rows have no classes."""
    names = federation.names
    with figure(path, 8, 5) as axes:
        if federation.classes is None:
            _draw_sizes(axes, federation)
        else:
            _draw_classes(axes, federation)
        if len(names) <= MOST_NAMES:
            axes.set_xticks(
                np.arange(len(names)), [shown(name) for name in names], rotation=60, ha="right"
            )
        if len(names) <= MOST_CLIENTS:
            axes.set_xlabel("client")
        else:
            axes.set_xlabel(f"{len(names)} clients in {MOST_CLIENTS} groups (means)")
        axes.set_title(shown(title, lines=True))


def _draw_sizes(axes: "Axes", federation: Federation) -> None:
    sizes = (federation.train.sizes + federation.test.sizes).double().numpy()
    shown = _averaged(sizes[:, None])[:, 0]
    axes.bar(np.arange(len(shown)), shown, width=1.0)
    axes.set_ylabel("rows")


def _draw_classes(axes: "Axes", federation: Federation) -> None:
    from matplotlib import pyplot as plt

    counts = _averaged(federation.counts.double().numpy())
    image = axes.imshow(
        np.log1p(counts).T,
        aspect="auto",
        cmap="Blues",
        interpolation="nearest",
        origin="lower",
    )
    ticks = np.unique(np.geomspace(1, max(counts.max(), 2), 4).astype(int))
    bar = plt.colorbar(image, ax=axes, ticks=np.log1p(ticks), label="rows")
    bar.ax.set_yticklabels([str(tick) for tick in ticks])
    axes.set_ylabel("class")


def _averaged(counts: Array) -> Array:
    """At most MOST_CLIENTS lines: neighbouring clients are averaged."""
    if len(counts) <= MOST_CLIENTS:
        return counts
    starts = np.linspace(0, len(counts), MOST_CLIENTS + 1).astype(int)[:-1]
    sizes = np.diff(np.append(starts, len(counts)))
    means: Array = np.add.reduceat(counts, starts) / sizes[:, None]
    return means
