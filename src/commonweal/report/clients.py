"""Every client's score under each method and with local training: what the client plot shows."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from commonweal.analysis.compare import OWN, Result
from commonweal.analysis.gains import ClientGain, Gains, gains
from commonweal.analysis.plan import ALONE, POOLED
from commonweal.base.text import shown
from commonweal.record.record import Record
from commonweal.report.formats import decimals_of, points, scale, show_score, sign_of, unit

Array: TypeAlias = NDArray[np.float64]

NAMES = {ALONE: "local training", POOLED: "pooled data"}  # of labels, for people

RING = "○"
DOTS = "●■▲◆▼✚✖"
NAME = 24  # characters of a client's name in the plot of a terminal


@dataclass(frozen=True)
class ClientLine:
    """One client's line. Scores are in their own unit; NaN where there is none."""

    client: str
    samples: str  # test samples, as text; empty where unknown
    local: float
    scores: tuple[float, ...]  # by method
    gain: ClientGain | None  # of the method whose gains are shown


@dataclass(frozen=True, eq=False)
class ClientLines:
    """Clients by their score with local training, or under the first method, the best first."""

    score: str
    labels: tuple[str, ...]
    has_local: bool
    base: str  # what the gains are over
    compared: str  # the method whose gains are shown; empty: none
    lines: list[ClientLine]

    def scores_by_label(self) -> dict[str, Array]:
        """The scores of all clients by method, those of local training last."""
        names = [*self.labels, NAMES[ALONE]] if self.has_local else self.labels
        table = np.array([(*line.scores, line.local) for line in self.lines])
        return dict(zip(names, table.T, strict=False))

    def bar(self, line: ClientLine) -> tuple[float, float]:
        """Where the bar of a client's gain begins and ends."""
        start = line.local if self.has_local else line.scores[0]
        return start, line.scores[self.labels.index(self.compared)]

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Header and rows: every client's scores, and its gain with interval."""
        header = ["client", "test samples"]
        if self.has_local:
            header.append("local training")
        header += self.labels
        if self.compared:
            header.append(f"gain of {self.compared} over {self.base}")
        rows = []
        for line in self.lines:
            cells = [line.client, line.samples]
            if self.has_local:
                cells.append(show_score(line.local, self.score))
            for value in line.scores:
                cells.append(show_score(value, self.score))
            if self.compared:
                cells.append("-" if line.gain is None else gain_cell(line.gain, self.score))
            rows.append(tuple(cells))
        return tuple(header), rows


def gain_cell(gain: ClientGain, score: str) -> str:
    """A gain with its interval, where there is one: "+1.2 [+0.1, +2.3]"."""
    text = points(gain.gain, score)
    if math.isnan(gain.low):
        return text
    return f"{text} [{points(gain.low, score)}, {points(gain.high, score)}]"


def used_results(results: Sequence[Result]) -> list[Result]:
    """One result per method: that of personal models, where clients use those."""
    used = {}
    for result in results:  # personal models stand after the global one
        label = result.label.removesuffix(OWN)
        used[label] = replace(result, label=label, personal=False)
    return list(used.values())


def samples_of(record: Record) -> dict[str, int]:
    """The test samples of every client of a run."""
    table = record.clients()
    return dict(zip(table.names, table.evaluation.sizes.int().tolist(), strict=True))


def local_of(baselines: Sequence[Result]) -> Result | None:
    """Local training among the baselines, where it was run."""
    return next((result for result in baselines if result.label == ALONE), None)


def mean_of(result: Result, metric: str) -> float:
    """A metric's mean over seeds."""
    return float(np.mean([by_metric[metric] for by_metric in result.metrics]))


def best_method(compared: Sequence[Gains]) -> Gains:
    """The method with the most clients better off less those worse off; then by the mean gain."""
    return max(compared, key=lambda g: (len(g.better) - len(g.worse), g.mean.difference))


def client_lines(
    results: Sequence[Result],
    baselines: Sequence[Result],
    score: str,
    samples: Mapping[str, int] | None = None,
) -> ClientLines:
    """Arrange results client by client.

    Gains are those of the best method over local training; where that was not run, those of the
    last result over the first.
    """
    local = local_of(baselines)
    means = [_means(result) for result in results]
    first = means[0] if local is None else _means(local)
    compared: Gains | None = None
    if local is not None:
        compared = best_method([gains(local, result) for result in results])
    elif len(results) > 1:
        compared = gains(results[0], results[-1])
    gain_of = {} if compared is None else {gain.client: gain for gain in compared.clients}
    names = dict.fromkeys(first)
    for values in means:
        names |= dict.fromkeys(values)
    sign = sign_of(score)
    lines = []
    for name in sorted(names, key=lambda name: -sign * first.get(name, -sign * math.inf)):
        size = str((samples or {}).get(name, ""))
        alone = math.nan if local is None else first.get(name, math.nan)
        scored = tuple(values.get(name, math.nan) for values in means)
        lines.append(ClientLine(name, size, alone, scored, gain_of.get(name)))
    base = "" if compared is None else compared.base
    return ClientLines(
        score=score,
        labels=tuple(result.label for result in results),
        has_local=local is not None,
        base=base if local is None else NAMES[ALONE],
        compared="" if compared is None else compared.label,
        lines=lines,
    )


def _means(result: Result) -> dict[str, float]:
    return dict(zip(result.clients, result.scores.mean(0).tolist(), strict=True))


def text(plot: ClientLines, width: int = 79) -> list[str]:
    """The client plot as lines of text for a terminal."""
    labels = [shown(line.client[:NAME])[:NAME] for line in plot.lines]
    names = max(map(len, labels), default=0)
    columns = max(20, width - names - 2)
    values = np.array(list(plot.scores_by_label().values()))
    finite = values[np.isfinite(values)]
    low, high = float(finite.min()), float(finite.max())
    step = (high - low) / (columns - 1) or 1.0
    rows = []
    for name, line in zip(labels, plot.lines, strict=True):
        cells = [" "] * columns
        if line.gain is not None:
            a, b = sorted(round((value - low) / step) for value in plot.bar(line))
            cells[a : b + 1] = ("━" if line.gain.significant else "┄") * (b + 1 - a)
        marks = [*zip(DOTS * len(plot.labels), line.scores, strict=False), (RING, line.local)]
        for mark, value in marks:
            if math.isfinite(value):
                cells[round((value - low) / step)] = mark
        rows.append(f"{name:>{names}}  {''.join(cells)}".rstrip())
    digits = decimals_of(plot.score, high)
    left = f"{scale(plot.score) * low:.{digits}f}{unit(plot.score)}"
    right = f"{scale(plot.score) * high:.{digits}f}{unit(plot.score)}"
    axis = f"{' ' * (names + 2)}{left}{right:>{columns - len(left)}}"
    return [*_legend(plot), *rows, axis]


def _legend(plot: ClientLines) -> list[str]:
    marks = [f"{RING} {NAMES[ALONE]}"] if plot.has_local else []
    for i, label in enumerate(plot.labels):
        marks.append(f"{DOTS[i % len(DOTS)]} {shown(label)}")
    if not plot.compared:
        return ["  ".join(marks)]
    bar = f"━ gain of {shown(plot.compared)} over {plot.base} (┄ not significant)"
    return ["  ".join(marks), bar]


def partner_weights(record: Record) -> dict[str, float]:
    """How much models other than the local ones count, by client; empty where none are mixed."""
    if not record.evaluated:
        return {}
    table = record.clients()
    personal = table.evaluation.personal
    if personal is None or personal.partners is None:
        return {}
    pairs = zip(table.names, personal.partners.tolist(), strict=True)
    return {name: weight for name, weight in pairs if not math.isnan(weight)}
