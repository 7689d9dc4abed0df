"""A federation as numbers, sentences and a picture: who holds how much of what."""

from pathlib import Path
from typing import Any

import numpy as np

from commonweal.drawing import figure
from commonweal.federation import Federation

__all__ = ["draw", "facts", "remarks"]

MOST = 200  # clients that a picture shows one by one


def facts(federation: Federation) -> dict[str, Any]:
    """Clients, rows, classes and how unequal they are."""
    sizes = (federation.train.sizes + federation.test.sizes).numpy()
    known: dict[str, Any] = {
        "clients": federation.clients,
        "training rows": len(federation.train.y),
        "test rows": len(federation.test.y),
        "row": "x".join(map(str, federation.train.x.shape[1:])) or "1",
        "rows a client": f"{sizes.min()} to {sizes.max()}, mean {sizes.mean():.2f}, std {sizes.std():.2f}",
        "score": federation.score,
    }
    if federation.loss not in ("cross-entropy", "binary"):
        return known
    counts = federation.counts.numpy()
    total = counts.sum(0)
    share = counts / counts.sum(1, keepdims=True)
    skew = 0.5 * np.abs(share - total / total.sum()).sum(1)  # total variation from the whole's mix, 0 to 1
    return known | {
        "classes": f"{len(total)}, of {total.min()} to {total.max()} rows",
        "classes a client": f"{(counts > 0).sum(1).min()} to {(counts > 0).sum(1).max()}",
        "label skew": f"{skew.mean():.3f} on average, {skew.max():.3f} at most (0: all alike, 1: nothing shared)",
    }


def remarks(federation: Federation) -> list[str]:
    """What a person should know before training."""
    said = list(federation.notes)
    if few := federation.unscored:
        some = ", ".join(few[:5]) + (" ..." if len(few) > 5 else "")
        said.append(f"{len(few)} clients have too few rows for a test set; they train but are not scored: {some}")
    if federation.unseen:
        some = ", ".join(map(str, federation.unseen[:5]))
        said.append(f"{len(federation.unseen)} classes occur in test rows only, so no model can learn them: {some}")
    return said


def draw(path: Path, federation: Federation, title: str) -> None:
    """Clients by classes, the darker the more rows (or each client's rows, where there are no classes)."""
    with figure(path, figsize=(8, 5)) as axes:
        if federation.loss in ("cross-entropy", "binary"):
            counts = _binned(federation.counts.numpy())
            shown = axes.imshow(
                np.log1p(counts).T, aspect="auto", cmap="Blues", interpolation="nearest", origin="lower"
            )
            ticks = np.unique(np.geomspace(1, max(counts.max(), 2), 4).astype(int))
            bar = axes.figure.colorbar(shown, ax=axes, ticks=np.log1p(ticks))
            bar.ax.set_yticklabels([str(t) for t in ticks])
            bar.set_label("rows")
            axes.set_ylabel("class")
        else:
            sizes = (federation.train.sizes + federation.test.sizes).numpy()
            axes.bar(np.arange(min(len(sizes), MOST)), _binned(sizes[:, None])[:, 0], width=1.0)
            axes.set_ylabel("rows")
        names = federation.names
        if len(names) <= 30:
            axes.set_xticks(np.arange(len(names)), names, rotation=60, ha="right")
        axes.set_xlabel("client" if len(names) <= MOST else f"{len(names)} clients in {MOST} groups (means)")
        axes.set_title(title)


def _binned(counts: np.ndarray) -> np.ndarray:
    """At most so many clients that one can see them: neighbours are averaged."""
    if len(counts) <= MOST:
        return counts
    edges = np.linspace(0, len(counts), MOST + 1).astype(int)[:-1]
    sums: np.ndarray = np.add.reduceat(counts, edges) / np.diff(np.append(edges, len(counts)))[:, None]
    return sums
