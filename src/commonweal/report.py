"""Runs as tables, sentences and pictures for a person."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from rich import box
from rich.console import Group
from rich.table import Table
from torch import Tensor

from commonweal import catalog, metrics
from commonweal.compare import OWN, Result
from commonweal.drawing import figure
from commonweal.personal import POINTS, Curve, Landscape
from commonweal.regret import Regret
from commonweal.store import Record

__all__ = [
    "Grid",
    "choices",
    "comparison",
    "draw",
    "draw_curve",
    "draw_landscape",
    "draw_regret",
    "draw_reliability",
    "render",
    "result",
    "rules_table",
    "verdict",
]

Format = Literal["terminal", "markdown", "latex", "csv"]
FIGURES = 7  # columns of a comparison before its differences: the rule and six metrics
MANY = 20  # clients from which tails, not single clients, are compared


def percent(metric: str, value: float) -> float:
    """Scores are shares: shown in per cent, as the papers print them."""
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


class Grid(NamedTuple):
    """A table before it has a format. `marks` are 1 for the best and 2 for the second best of a column, else 0."""

    title: str
    header: list[str]
    rows: list[list[str]]
    marks: list[list[int]]
    notes: list[str]


def comparison(results: Sequence[Result], score: str) -> Grid:
    """The kind of table that papers print, with what can and cannot be told apart."""
    clients, seeds = len(results[0].clients), len(results[0].metrics)
    tail = "_10" if clients >= MANY else ""
    keys = ["mean", f"worst{tail}", f"best{tail}", "std", "gini", f"gap{tail}"]
    values = np.array([[[percent(k, m[k]) for m in r.metrics] for k in keys] for r in results])  # (rules, keys, seeds)
    rows = [
        [r.label, *[f"{v.mean():.1f}±{v.std():.1f}" for v in each]] for r, each in zip(results, values, strict=True)
    ]
    marks = [[0] * (len(keys) + 1) for _ in results]
    for column, key in enumerate(keys):
        ranked = np.argsort(values[:, column].mean(1) * (1 if key[:3] in ("std", "gin", "gap") else -1), kind="stable")
        for place, row in enumerate(ranked[:2], start=1):
            marks[row][column + 1] = place if len(results) > 1 else 0
    header = ["rule", *[k.replace("_10", " 10 %").replace("gini", "Gini") for k in keys]]
    for column in (0, 1):
        header.append(f"{header[column + 1]} against {results[0].label}")
        for i, row in enumerate(rows):
            row.append("" if i == 0 else _paired(values[i, column], values[0, column]))
            marks[i].append(0)
    base = next((r for r in results if r.label == "fedavg"), None)
    if base is not None and len(results) > 1:
        header += ["suffering improved", "thriving degraded"]
        for i, (row, r) in enumerate(zip(rows, results, strict=True)):
            row += ["", ""] if r is base else _against(base, r)
            marks[i] += [0, 0]
    title = f"{score} over {clients} clients in %, mean±std over {seeds} seed{'s' * (seeds > 1)}"
    notes = ["best, second best marked; differences are paired by seed with 95 % intervals"]
    if base is not None and len(results) > 1:
        notes.append(
            "suffering and thriving: clients below and above FedAvg's mean, share of them and mean change in points"
        )
    if any(r.label.endswith(OWN) for r in results):
        notes.append("own models: what the clients of that method are served with; the line before is the shared model")
    return Grid(title, header, rows, marks, notes)


def _paired(a: np.ndarray, b: np.ndarray) -> str:
    p = metrics.paired(a, b)
    if not p.distinguishable:
        return f"{p.difference:+.1f} (not distinguishable)"
    return f"{p.difference:+.1f} [{p.low:+.1f}, {p.high:+.1f}]"


def _against(base: Result, other: Result) -> list[str]:
    each = [metrics.against(b, s) for b, s in zip(base.scores, other.scores, strict=True)]
    up, change, down, loss = (100 * np.mean([getattr(a, name) for a in each]) for name in each[0]._fields)
    return [f"{up:.0f} % ({change:+.1f})", f"{down:.0f} % ({loss:+.1f})"]


MARKS: dict[str, tuple[str, str, str]] = {
    "markdown": ("{}", "**{}**", "<u>{}</u>"),
    "latex": ("{}", r"\textbf{{{}}}", r"\underline{{{}}}"),
    "csv": ("{}", "{}", "{}"),
    "terminal": ("{}", "[bold green]{}[/]", "[underline]{}[/]"),
}


def render(grid: Grid, form: Format) -> str | Group:
    """The table as Markdown, LaTeX, CSV, or for a terminal."""
    marked = MARKS[form]
    rows = [
        [marked[mark].format(cell) for cell, mark in zip(row, marks, strict=True)]
        for row, marks in zip(grid.rows, grid.marks, strict=True)
    ]
    if form == "terminal":
        return _for_terminal(grid, rows)
    if form == "csv":
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([grid.header, *rows])
        return text.getvalue()
    if form == "latex":
        lines = [" & ".join(row).replace("%", r"\%").replace("_", r"\_") + r" \\" for row in [grid.header, *rows]]
        top, bottom = r"\begin{tabular}{l" + "r" * (len(grid.header) - 1) + "}", r"\end{tabular}"
        return "\n".join([f"% {grid.title}", top, r"\hline", lines[0], r"\hline", *lines[1:], r"\hline", bottom, ""])
    lines = ["| " + " | ".join(row) + " |" for row in [grid.header, ["---"] + ["--:"] * (len(grid.header) - 1), *rows]]
    return "\n".join([grid.title + ":", "", *lines, "", *[f"({note})" for note in grid.notes], ""])


def _for_terminal(grid: Grid, rows: list[list[str]]) -> Group:
    """Two tables, because one would be too wide for a screen: the figures, and the differences."""
    tables = []
    for title, columns in ((grid.title, slice(1, FIGURES)), ("", slice(FIGURES, None))):
        if grid.header[columns] and len(rows) > (not title):
            table = Table(title=title or None, box=box.SIMPLE_HEAD)
            for i, name in enumerate([grid.header[0], *grid.header[columns]]):
                least, most = (16, None) if " against " in name else (None, 12 if not title and i else None)
                table.add_column(name, justify="left" if i == 0 else "right", min_width=least, max_width=most)
            for row in rows if title else rows[1:]:
                table.add_row(row[0], *row[columns])
            tables.append(table)
    return Group(*tables, *[f"[dim]{note}[/dim]" for note in grid.notes])


def verdict(base: Result, fair: Result) -> str:
    """Who was helped and at what cost, in a sentence."""
    change = 100 * (fair.scores - base.scores).mean(0)
    worst = int(base.scores.mean(0).argmin())
    helped, harmed = int((change > 0).sum()), int((change < 0).sum())
    lowest = metrics.paired(100 * fair.scores.min(1), 100 * base.scores.min(1))
    sure = "not distinguishable from the spread of seeds"
    if lowest.distinguishable:
        sure = f"between {lowest.low:+.1f} and {lowest.high:+.1f} with 95 % confidence"
    return (
        f"{fair.label} moves {base.clients[worst]}, whom {base.label} serves worst, by {change[worst]:+.1f} points: "
        f"{helped} clients gain, {harmed} lose, the mean changes by {change.mean():+.1f}; a seed's worst client by "
        f"{lowest.difference:+.1f} ({sure})."
    )


def draw_curve(path: Path, curve: Curve, score: str) -> None:
    """The score along the line from the shared model to the clients' own: mean, and the middle half of the clients."""
    scores = 100 * curve.scores.numpy()
    with figure(path, figsize=(6, 4)) as axes:
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
    with figure(path, figsize=(6, 5)) as axes:
        contours = axes.contourf(plane.x.numpy(), plane.y.numpy(), plane.losses.numpy(), levels=20)
        axes.figure.colorbar(contours, label="loss")
        for (x, y), label in zip(plane.corners.tolist(), labels, strict=True):
            axes.plot(x, y, "o", color="white", markeredgecolor="black")
            axes.annotate(label, (x, y), xytext=(0, 8), textcoords="offset points", color="white", ha="center")
        axes.set_xlabel("distance")
        axes.set_ylabel("distance")


def draw_reliability(path: Path, tables: Mapping[str, Tensor]) -> None:
    """How often a model is right against how sure it was; on the diagonal its confidence can be believed."""
    with figure(path, figsize=(5, 5)) as axes:
        axes.plot([0, 1], [0, 1], color="grey", linewidth=1)
        for label, table in tables.items():
            _, confidence, right = table[table[:, 0] > 0].unbind(1)
            axes.plot(confidence.numpy(), right.numpy(), "o-", label=label)
        axes.set_xlabel("confidence")
        axes.set_ylabel("share that is right")
        axes.legend()


def draw_regret(path: Path, curve: Regret, title: str) -> None:
    """The regret and its bound over rounds."""
    with figure(path, figsize=(6, 4)) as axes:
        axes.plot(curve.rounds, curve.regret, marker=".", label="regret")
        if curve.bound is not None:
            axes.plot(curve.rounds, curve.bound, linestyle="--", label="the theorem's bound")
        axes.set_xlabel("round")
        axes.set_title(title)
        axes.legend()


def draw(path: Path, results: Sequence[Result], score: str) -> None:
    """Every client's score under each rule, sorted by the first; bars span the seeds. The suffix names the format."""
    names = results[0].clients
    order = np.argsort(results[0].scores.mean(0), kind="stable")
    with figure(path, figsize=(max(6.0, 0.45 * min(len(names), 60)), 4)) as axes:
        for i, each in enumerate(results):
            scores = 100 * each.scores[:, order]
            mean = scores.mean(0)
            x = np.arange(len(names)) + 0.5 / len(results) * (i - (len(results) - 1) / 2)
            label = f"{each.label}: worst {mean.min():.1f}, mean {mean.mean():.1f}"
            axes.errorbar(x, mean, yerr=[mean - scores.min(0), scores.max(0) - mean], fmt="o", capsize=2, label=label)
            axes.axhline(mean.min(), color=f"C{i}", linestyle=":", linewidth=1)
        if len(names) <= 60:
            axes.set_xticks(np.arange(len(names)), [names[k] for k in order], rotation=45, ha="right")
        axes.set_ylabel(f"{score} (%)")
        axes.set_title("How well each client is served (mean and range over seeds)")
        axes.legend()


def families() -> Mapping[str, list[catalog.Entry]]:
    """The rules by family, in the order of the idea: from no memory to combinators."""
    order = ("mixture", "online", "direction", "reweighting", "combinator")
    found: dict[str, list[catalog.Entry]] = {name: [] for name in order}
    for entry in catalog.entries("rules").values():
        found[entry.module.KIND.family].append(entry)
    return found


def rules_table() -> str:
    """The one table of all rules (response, leader, weights), made from the code."""
    lines = ["| rule | family | response | leader | weights |", "|---|---|---|---|---|"]
    for family, found in families().items():
        for entry in found:
            kind = entry.module.KIND
            cells = [entry.name, family, kind.response, kind.leader, entry.details.split("\n")[0]]
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print docs/rules.md."""
    print(RULES_PAGE.format(table=rules_table()), end="")


RULES_PAGE = """# Rules

A rule says how much each report of a cohort counts: `direction = weights @ updates`. f are the losses of the received
model on each client's training rows before local training, n the sizes, p = n / sum n, u the updates, G their inner
products, S the cohort's size, K the number of clients. `commonweal show NAME` tells more of each.

{table}
*Response* is what a loss means to a rule, *leader* how a decision follows from it: the unification of Hahn et al., ICML
2024 (Table 1), carried on to rules that it does not cover. A *mixture* forgets each round; an *online* rule remembers;
a *direction* looks at the updates' geometry; a *reweighting* prices differences between clients; a *combinator* wraps a
rule.

This page is made from the code: `python -m commonweal.report > docs/rules.md`.
"""

if __name__ == "__main__":
    main()
