"""Runs as tables, sentences and pictures for a person."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from rich.table import Table

from commonweal import metrics
from commonweal.store import Record

__all__ = ["draw", "result", "side_by_side", "verdict"]

# Scores are shares: shown in per cent, as the papers print them.
COLUMNS = {"mean": "mean", "worst": "worst", "best": "best", "std": "std", "gini": "Gini", "gap": "gap"}


def percent(metric: str, value: float) -> float:
    return value if metric in ("gini", "angle", "kl") else 100 * value


def result(record: Record) -> Table:
    """A run's last evaluation, and the clients it serves worst and best."""
    last = record.evaluated[-1]
    rule = record.experiment.get("rule", {})
    algorithm = record.experiment.get("algorithm", {})
    own = isinstance(algorithm, dict) and algorithm.get("name", "averaging") != "averaging"
    name = algorithm["name"] if own else rule["name"] if rule else "own parts"
    table = Table(title=f"{name}: round {last['round']} of {record.experiment['rounds']}, {record.facts['score']}")
    table.add_column("over clients")
    table.add_column("value", justify="right")
    for key, value in last["metrics"].items():
        table.add_row(key.replace("_", " "), "-" if value is None else f"{percent(key, value):.2f}")
    table.add_section()
    ranked = sorted((c for c in record.clients() if not np.isnan(c[1])), key=lambda c: c[1])
    shown = ranked if len(ranked) <= 6 else [*ranked[:3], *ranked[-3:]]
    for client, score, _ in shown:
        table.add_row(client, f"{100 * score:.2f}")
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


def draw(path: Path, names: Sequence[str], scores: Mapping[str, np.ndarray], score: str) -> None:
    """Every client's score under each rule, sorted by the first; bars span the seeds. The suffix names the format."""
    import matplotlib  # slow to import, and only pictures need it

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    first = next(iter(scores.values()))
    order = np.argsort(first.mean(0), kind="stable")
    figure, axes = plt.subplots(figsize=(max(6.0, 0.45 * min(len(names), 60)), 4), layout="constrained")
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
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
