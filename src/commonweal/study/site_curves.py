"""Curves of clients from their predictions: calibration, decisions, ROC, and survival by risk."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from commonweal.base.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow

Array = NDArray[np.float64]
Line = tuple[Array, Array]  # x and y
BINS = 5  # of equal size, of a client's calibration curve
LEAST = 20  # samples of a client that has curves of its own
THRESHOLDS = np.linspace(0.01, 0.99, 99)
GROUPS = 3  # of predicted risk


@dataclass(frozen=True, eq=False)
class SiteCurves:
    """Curves by client, and of all samples together under the name ""."""

    positive: str  # the class whose probability it is; empty: survival
    calibration: dict[str, Line]  # mean probability, share
    decision: dict[str, Line]  # threshold, net benefit
    treat_all: dict[str, Line]  # net benefit of a positive decision for everybody
    roc: dict[str, Line]  # false positives, true positives
    survival: dict[str, list[Line]]  # by client, of the groups from low to high risk


def site_curves(table: "pyarrow.Table") -> SiteCurves:
    """The curves of a table of `predictions`: of two classes, or of survival."""
    clients = np.array(table["client"].to_pylist())
    names = [name for name in dict.fromkeys(clients.tolist()) if (clients == name).sum() >= LEAST]
    parts = {"": np.ones(len(clients), dtype=bool)} | {name: clients == name for name in names}
    if "event" in table.column_names:
        time, event, risk = (table[key].to_numpy() for key in ("label", "event", "prediction"))
        survival = {
            name: _by_risk(time[own], event[own] > 0, risk[own]) for name, own in parts.items()
        }
        return SiteCurves("", {}, {}, {}, {}, survival)
    columns = [name for name in table.column_names if name.startswith("probability of ")]
    if len(columns) != 2:
        raise ConfigError("there are pictures of two classes and of survival, not of these labels")
    positive = columns[1].removeprefix("probability of ")
    p = table[columns[1]].to_numpy()
    y = np.array(table["label"].to_pylist()) == positive
    both = {name: own for name, own in parts.items() if 0 < y[own].sum() < own.sum()}
    return SiteCurves(
        positive,
        {
            name: calibration_curve(p[own], y[own], 10 if name == "" else BINS)
            for name, own in both.items()
        },
        {name: decision_curve(p[own], y[own]) for name, own in both.items()},
        {name: decision_curve(np.ones(own.sum()), y[own]) for name, own in both.items()},
        {name: roc_line(p[own], y[own]) for name, own in both.items()},
        {},
    )


def calibration_curve(p: Array, y: NDArray[np.bool_], bins: int) -> Line:
    """Mean probability and share of positives of bins with about as many samples each."""
    order = np.argsort(p, kind="stable")
    parts = [part for part in np.array_split(order, bins) if len(part)]
    return np.array([p[part].mean() for part in parts]), np.array(
        [y[part].mean() for part in parts]
    )


def decision_curve(p: Array, y: NDArray[np.bool_]) -> Line:
    """The net benefit per sample at each threshold."""
    treated = p >= THRESHOLDS[:, None]
    odds = THRESHOLDS / (1 - THRESHOLDS)
    benefit = (treated & y).mean(1) - odds * (treated & ~y).mean(1)
    return THRESHOLDS, benefit


def roc_line(p: Array, y: NDArray[np.bool_]) -> Line:
    """Shares of false and true positives, from none to all."""
    from sklearn.metrics import roc_curve  # slow to import

    false, true, _ = roc_curve(y, p)
    return false, true


def kaplan_meier(time: Array, event: NDArray[np.bool_]) -> Line:
    """The times of events and the share that survives them, from (0, 1) on."""
    times, index = np.unique(time, return_inverse=True)
    events = np.bincount(index, event, len(times))
    leaving = np.bincount(index, minlength=len(times))
    at_risk = len(time) - np.concatenate([[0], leaving.cumsum()[:-1]])
    share = np.cumprod(1 - events / at_risk)
    return np.concatenate([[0.0], times]), np.concatenate([[1.0], share])


def _by_risk(time: Array, event: NDArray[np.bool_], risk: Array) -> list[Line]:
    """Kaplan-Meier curves of thirds of the predicted risk."""
    parts = np.array_split(np.argsort(risk, kind="stable"), GROUPS)
    return [kaplan_meier(time[part], event[part]) for part in parts if len(part)]
