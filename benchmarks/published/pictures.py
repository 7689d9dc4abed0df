"""The papers' figures from our runs: what `python -m benchmarks.published picture` draws."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from commonweal.base.errors import ConfigError, RunError, did_you_mean
from commonweal.jobs.reopening import reopen
from commonweal.record.record import Record
from commonweal.report.figures import save
from commonweal.study import interpolation

from . import trained_models
from .reproduction import Measured, Planned
from .table import PublishedTable

__all__ = ["KINDS", "draw"]

COLUMNS = 4  # of panels
MIXED = ("apfl", "superfed-mm", "superfed-lm")  # methods that mix two models
FAR = 10  # points below the best mean from which a method is not drawn
BINS = [5.0 * step for step in range(21)]  # per cent


def draw(
    table: PublishedTable,
    measured: Measured | None,
    planned: Sequence[Planned],
    kind: str,
    path: Path,
) -> Path:
    """Draw a table's runs.

    Args:
        table: A published table.
        measured: Its recorded figures, for `tradeoff`.
        planned: Its runs, for the other kinds; those of the first seed that are finished are drawn.
        kind: One of KINDS.
        path: The file.
    """
    if kind == "tradeoff":
        figure = _tradeoff(table, measured)
    elif kind in PANELS:
        records = _records(planned)
        if kind == "curves":
            records = {name: record for name, record in records.items() if _has_line(record)}
        figure = _panels(records, PANELS[kind])
    else:
        raise ConfigError(f"there is no picture {kind!r}: {did_you_mean(kind, KINDS)}")
    save(figure, path)
    return path


def _records(planned: Sequence[Planned]) -> dict[str, Record]:
    """The finished runs of the first seed, by row."""
    records = {}
    for run in planned:
        if run.seed == planned[0].seed and run.cell.finished:
            records[run.row.name] = Record.read(run.cell.folder)
    if not records:
        raise RunError("no run of this table is finished: run it first, without --picture")
    return records


def _has_line(record: Record) -> bool:
    return record.experiment["client"]["name"] in MIXED


def _tradeoff(table: PublishedTable, measured: Measured | None) -> Figure:
    """Mean by worst 10 and 20 % of clients, a point per method (Semi-VRed, Figures 1 and 2)."""
    worst = [number for number, name in enumerate(table.columns) if name.startswith("worst ")]
    if measured is None or not worst:
        raise RunError(f"{table.name} has no recorded means and worst clients to draw")
    measured_rows = [row.name for row in table.rows if measured.of(row.name, 0)]
    means = {name: np.mean(measured.of(name, 0)) for name in measured_rows}
    best = max(means.values())
    shown = [name for name, mean in means.items() if mean > best - FAR]
    left_out = [name for name, mean in means.items() if mean <= best - FAR]
    figure = Figure(figsize=(4.5 * len(worst), 4), layout="constrained")
    for panel, column in enumerate(worst, 1):
        axes = figure.add_subplot(1, len(worst), panel)
        for name in shown:
            x = measured.of(name, column)
            y = measured.of(name, 0)
            axes.errorbar(
                np.mean(x),
                np.mean(y),
                xerr=np.std(x) / np.sqrt(len(x)),
                yerr=np.std(y) / np.sqrt(len(y)),
                fmt="o",
                elinewidth=0.6,
                label=name,
            )
        axes.set_xlabel(f"{table.columns[column]}, {table.unit}")
        axes.set_ylabel(f"{table.columns[0]}, {table.unit}")
        axes.grid(alpha=0.3)
    if left_out:
        figure.suptitle(f"not shown, more than {FAR} points below: {', '.join(left_out)}", size=9)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right upper")
    return figure


def _panels(records: Mapping[str, Record], fill: Callable[[Axes, Record], None]) -> Figure:
    """A panel per method."""
    if not records:
        raise RunError("no finished run of this table has what the picture shows")
    columns = min(COLUMNS, len(records))
    rows = -(-len(records) // columns)
    figure = Figure(figsize=(3.4 * columns, 2.6 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flatten()
    for panel, (name, record) in zip(axes, records.items(), strict=False):
        fill(panel, record)
        panel.set_title(name)
        panel.tick_params(labelbottom=True, labelleft=True)
    for panel in axes[len(records) :]:
        panel.set_visible(False)
    return figure


def _histogram(axes: Axes, record: Record) -> None:
    """How many clients have which score (AdaFed, Figure 7)."""
    scores = 100 * np.asarray(record.clients().evaluation.score)
    axes.hist(scores[np.isfinite(scores)], BINS)
    axes.set_xlabel("score in %")
    axes.set_ylabel("clients")


def _losses(axes: Axes, record: Record) -> None:
    """The losses of two clients by round: those that report most often (AdaFed, Figure 3)."""
    reported: dict[str, list[tuple[int, float]]] = {}
    for number, each in enumerate(record.rounds, 1):
        for client, loss in zip(each.clients, each.losses, strict=True):
            reported.setdefault(client, []).append((number, loss))
    often = sorted(reported, key=lambda client: -len(reported[client]))[:2]
    for client in often:
        axes.plot(*zip(*reported[client], strict=True), label=f"client {client}", linewidth=1)
    axes.set_xlabel("round")
    axes.set_ylabel("training loss")
    axes.legend()


def _plain(value: float, position: float) -> str:
    return f"{value:g}"


def _lengths(axes: Axes, record: Record) -> None:
    """The length of the server's direction by round (AdaFed, Figure 4)."""
    lengths = [(number, each.length) for number, each in enumerate(record.rounds, 1)]
    known = [(number, length) for number, length in lengths if length is not None]
    if known:
        axes.semilogy(*zip(*known, strict=True), linewidth=1)
    axes.yaxis.set_major_formatter(_plain)
    axes.yaxis.set_minor_formatter(_plain)
    axes.set_xlabel("round")
    axes.set_ylabel("length of the direction")


def _curves(axes: Axes, record: Record) -> None:
    """Scores between global and personal models (thesis, Figures 2.3 and 2.5)."""
    scores = 100 * np.asarray(interpolation.curve(*reopen(record.folder, trust=True)).scores)
    mean = scores.mean(0)
    best = int(mean.argmax())
    axes.errorbar(interpolation.POINTS, mean, yerr=scores.std(0), capsize=2)
    axes.annotate(f"{mean[best]:.2f}", (interpolation.POINTS[best], mean[best]), va="bottom")
    axes.set_xlabel("m: 0 global, 1 personal model")
    axes.set_ylabel("score in %")


def _landscape(axes: Axes, record: Record) -> None:
    """The loss around the global and two clients' models (thesis, Figure 2.4)."""
    titles, plane = trained_models.loss_landscape(*reopen(record.folder, trust=True))
    axes.contourf(plane.x.numpy(), plane.y.numpy(), plane.losses.numpy(), levels=20)
    for (x, y), title in zip(plane.corners.tolist(), titles, strict=True):
        axes.plot(x, y, "o", color="white", markeredgecolor="black")
        axes.annotate(title, (x, y), (0, 8), textcoords="offset points", color="white", ha="center")
    axes.set_xlabel("distance")
    axes.set_ylabel("distance")


def _reliability(axes: Axes, record: Record) -> None:
    """Accuracy against confidence: a calibrated model is on the diagonal."""
    axes.plot([0, 1], [0, 1], color="grey", linewidth=1)
    for title, bins in trained_models.reliability(*reopen(record.folder, trust=True)).items():
        has_samples = bins[:, 0] > 0
        _, confidence, accuracy = bins[has_samples].unbind(1)
        axes.plot(confidence.numpy(), accuracy.numpy(), "o-", label=title)
    axes.set_xlabel("confidence")
    axes.set_ylabel("accuracy")
    axes.legend()


PANELS = {
    "curves": _curves,
    "histogram": _histogram,
    "landscape": _landscape,
    "lengths": _lengths,
    "losses": _losses,
    "reliability": _reliability,
}
KINDS = ("tradeoff", *PANELS)
