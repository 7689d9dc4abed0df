"""Runs as tables, sentences and pictures for a person."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from torch import Tensor

from commonweal import metrics
from commonweal.personal import POINTS, Curve, Landscape
from commonweal.store import Record

__all__ = ["choices", "draw", "draw_curve", "draw_landscape", "draw_reliability", "result", "side_by_side", "verdict"]

# Scores are shares: shown in per cent, as the papers print them.
COLUMNS = {"mean": "mean", "worst": "worst", "best": "best", "std": "std", "gini": "Gini", "gap": "gap"}


def percent(metric: str, value: float) -> float:
    return value if metric in ("gini", "angle", "kl") else 100 * value


def result(record: Record) -> Table:
    """A run's last evaluation, and the clients it serves worst and best."""
    last = record.evaluated[-1]
    rule = record.experiment.get("rule", {})
    name = rule["name"] if rule else "own parts"
    table = Table(title=f"{name}: round {last['round']} of {record.experiment['rounds']}, {record.facts['score']}")
    table.add_column("over clients")
    columns = [last["metrics"]] + ([last["personal"]] if last.get("personal") else [])
    for title in ("value",) if len(columns) == 1 else ("server's model", "own model"):
        table.add_column(title, justify="right")
    for key in last["metrics"]:
        cells = [column[key] for column in columns]
        table.add_row(key.replace("_", " "), *["-" if v is None else f"{percent(key, v):.2f}" for v in cells])
    table.add_section()
    own = {client: [f"{100 * score:.2f}"] for client, score, _ in record.personal()}
    ranked = sorted((c for c in record.clients() if not np.isnan(c[1])), key=lambda c: c[1])
    shown = ranked if len(ranked) <= 6 else [*ranked[:3], *ranked[-3:]]
    for client, score, _ in shown:
        table.add_row(client, f"{100 * score:.2f}", *own.get(client, []))
    return table


def side_by_side(runs: Mapping[str, Sequence[Mapping[str, float]]], score: str) -> Table:
    """One row a rule, one column a metric: the mean over seeds with their population spread."""
    seeds = max(len(each) for each in runs.values())
    table = Table(title=f"{score} over clients in %, mean (spread) over {seeds} seeds")
    table.add_column("rule")
    for title in COLUMNS.values():
        table.add_column(title, justify="right")
    for rule, each in runs.items():
        cells = [metrics.spread([percent(key, m[key]) for m in each]) for key in COLUMNS]
        table.add_row(rule, *[f"{mean:.1f} ({spread:.1f})" for mean, spread in cells])
    return table


def verdict(base: str, fair: str, before: np.ndarray, after: np.ndarray, names: Sequence[str]) -> str:
    """Who was helped and at what cost, in a sentence. `before` and `after` are (seeds, K) scores in per cent."""
    change = (after - before).mean(0)
    worst = int(before.mean(0).argmin())
    helped, harmed = int((change > 0).sum()), int((change < 0).sum())
    cost = after.mean() - before.mean()
    paired = metrics.paired(after.min(1), before.min(1))
    sure = "more than the seeds' spread" if paired.distinguishable else "not distinguishable from the seeds' spread"
    return (
        f"{fair} moved {names[worst]}, whom {base} serves worst, by {change[worst]:+.1f} points; "
        f"{helped} clients gained, {harmed} lost, the mean changed by {cost:+.1f}; "
        f"the worst client of each seed by {paired.difference:+.1f} ({sure})."
    )


@contextmanager
def _figure(path: Path, **size: Any) -> Iterator[Any]:
    """Axes that are saved when they are done; the path's suffix names the format."""
    import matplotlib  # slow to import, and only pictures need it

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(layout="constrained", **size)
    yield axes
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def draw_curve(path: Path, curve: Curve, score: str) -> None:
    """The score along the line from the shared model to the clients' own: mean, and the middle half of the clients."""
    scores = 100 * curve.scores.numpy()
    with _figure(path, figsize=(6, 4)) as axes:
        low, high = np.quantile(scores, (0.25, 0.75), axis=0)
        axes.fill_between(POINTS, low, high, alpha=0.2, label="middle half of the clients")
        axes.plot(POINTS, scores.mean(0), "o-", label="mean over clients")
        for style, (label, value) in zip(("--", ":"), list(curve.chosen().items())[3:], strict=True):
            axes.axhline(100 * float(value.mean()), linestyle=style, color="C1", label=label)
        axes.set_xlabel("m: 0 the shared model, 1 the client's own")
        axes.set_ylabel(f"{score} (%)")
        axes.legend()


def choices(curve: Curve, score: str) -> Table:
    """What each way to choose the point between the two models gives the clients."""
    table = Table(title=f"{score} over {len(curve.names)} clients in %")
    for title in ("the point between shared (0) and own (1) model", "mean", "worst"):
        table.add_column(title, justify="left" if title.startswith("the") else "right")
    for label, scores in curve.chosen().items():
        table.add_row(label, f"{100 * float(scores.mean()):.2f}", f"{100 * float(scores.min()):.2f}")
    table.caption = "validation: on one half of a client's test rows for the other; oracle: on the rows that are scored"
    return table


def draw_landscape(path: Path, plane: Landscape, labels: Sequence[str]) -> None:
    """The loss over a plane through three models."""
    with _figure(path, figsize=(6, 5)) as axes:
        contours = axes.contourf(plane.x.numpy(), plane.y.numpy(), plane.losses.numpy(), levels=20)
        axes.figure.colorbar(contours, label="loss")
        for (x, y), label in zip(plane.corners.tolist(), labels, strict=True):
            axes.plot(x, y, "o", color="white", markeredgecolor="black")
            axes.annotate(label, (x, y), xytext=(0, 8), textcoords="offset points", color="white", ha="center")
        axes.set_xlabel("distance")
        axes.set_ylabel("distance")


def draw_reliability(path: Path, tables: Mapping[str, Tensor]) -> None:
    """How often a model is right against how sure it was; on the diagonal its confidence can be believed."""
    with _figure(path, figsize=(5, 5)) as axes:
        axes.plot([0, 1], [0, 1], color="grey", linewidth=1)
        for label, table in tables.items():
            _, confidence, right = table[table[:, 0] > 0].unbind(1)
            axes.plot(confidence.numpy(), right.numpy(), "o-", label=label)
        axes.set_xlabel("confidence")
        axes.set_ylabel("share that is right")
        axes.legend()


def draw(path: Path, names: Sequence[str], scores: Mapping[str, np.ndarray], score: str) -> None:
    """Every client's score under each rule, sorted by the first; bars span the seeds. The suffix names the format."""
    first = next(iter(scores.values()))
    order = np.argsort(first.mean(0), kind="stable")
    with _figure(path, figsize=(max(6.0, 0.45 * min(len(names), 60)), 4)) as axes:
        for i, (rule, each) in enumerate(scores.items()):
            mean = each.mean(0)[order]
            reach = [mean - each.min(0)[order], each.max(0)[order] - mean]
            x = np.arange(len(names)) + 0.25 * (i - (len(scores) - 1) / 2)
            axes.errorbar(x, mean, yerr=reach, fmt="o", capsize=2, label=f"{rule}: worst {each.mean(0).min():.1f}")
            axes.axhline(each.mean(0).min(), color=f"C{i}", linestyle=":", linewidth=1)
        if len(names) <= 60:
            axes.set_xticks(np.arange(len(names)), [names[k] for k in order], rotation=45, ha="right")
        axes.set_ylabel(f"{score} (%)")
        axes.set_title("How well each client is served (mean and range over seeds)")
        axes.legend()
