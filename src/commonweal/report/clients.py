"""Every client's score under each method and with local training: what the client plot shows."""

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from commonweal.base.text import shown
from commonweal.record.record import Record
from commonweal.report.formats import ReportColumn, ReportTable, gain_with_interval
from commonweal.study.comparison import Comparison
from commonweal.study.given import GIVEN
from commonweal.study.judging import ClientGain
from commonweal.study.plan import ALONE, POOLED
from commonweal.study.units import decimals_of, scale, sign_of, unit

Array: TypeAlias = NDArray[np.float64]

NAMES = {
    ALONE: "local training",
    POOLED: "pooled data",
    GIVEN: "what clients are given",
}  # of labels, for people

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
    compared: str  # the method whose gains over local training are shown; empty: none
    lines: list[ClientLine]

    def scores_by_label(self) -> dict[str, Array]:
        """The scores of all clients by method, those of local training last."""
        names = [*self.labels, NAMES[ALONE]] if self.has_local else self.labels
        table = np.array([(*line.scores, line.local) for line in self.lines])
        return dict(zip(names, table.T, strict=False))

    def bar(self, line: ClientLine) -> tuple[float, float]:
        """Return the ends of the bar of a client's gain."""
        return line.local, line.scores[self.labels.index(self.compared)]

    def table(self) -> ReportTable:
        """Every client's scores, and its gain with interval."""
        columns = [ReportColumn("test samples", [line.samples for line in self.lines])]
        scores = {NAMES[ALONE]: [line.local for line in self.lines]} if self.has_local else {}
        for k, label in enumerate(self.labels):
            scores[label] = [line.scores[k] for line in self.lines]
        for label, values in scores.items():
            digits = decimals_of(self.score, np.array(values))
            columns.append(
                ReportColumn(label, [_cell(value, self.score, digits) for value in values])
            )
        if self.compared:
            title = f"gain of {self.compared} over {NAMES[ALONE]}"
            columns.append(
                ReportColumn(title, [gain_cell(line.gain, self.score) for line in self.lines])
            )
        title = f"Clients: {self.score}{' in %' if unit(self.score) else ''}"
        return ReportTable(title, "client", [line.client for line in self.lines], columns)


def _cell(value: float, score: str, digits: int) -> str:
    return "-" if math.isnan(value) else f"{scale(score) * value:.{digits}f}"


def gain_cell(gain: ClientGain | None, score: str) -> str:
    """A gain with its interval, where there is one: "+1.2 [+0.1, +2.3]"."""
    return "-" if gain is None else gain_with_interval(*gain[:3], score)


def client_lines(comparison: Comparison) -> ClientLines:
    """Arrange a comparison client by client, with the gains of the headline's method."""
    local = comparison.local
    first = (local or comparison.results[0]).by_client
    compared = "" if comparison.judgement is None else comparison.headline
    names = dict.fromkeys(first)
    for result in comparison.results:
        names |= dict.fromkeys(result.clients)
    sign = sign_of(comparison.score)
    lines = []
    for name in sorted(names, key=lambda name: -sign * first.get(name, -sign * math.inf)):
        alone = math.nan if local is None else first.get(name, math.nan)
        scores = tuple(result.by_client.get(name, math.nan) for result in comparison.results)
        gain = comparison.gain(compared, name)
        lines.append(ClientLine(name, str(comparison.samples.get(name, "")), alone, scores, gain))
    return ClientLines(
        score=comparison.score,
        labels=tuple(result.label for result in comparison.results),
        has_local=local is not None,
        compared=compared,
        lines=lines,
    )


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
    bar = f"━ gain of {shown(plot.compared)} over {NAMES[ALONE]} (┄ not significant)"
    return ["  ".join(marks), bar]


def partner_weights(record: Record) -> dict[str, float]:
    """Return the weights of other than local models, by client; empty where none are mixed."""
    if not record.evaluated:
        return {}
    table = record.clients()
    personal = table.evaluation.personal
    if personal is None or personal.partners is None:
        return {}
    pairs = zip(table.names, personal.partners.tolist(), strict=True)
    return {name: weight for name, weight in pairs if not math.isnan(weight)}
