"""Coefficients of a run of `glm` with their intervals, and how much clients differ in them."""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc, ndtr, ndtri, stdtr, stdtrit

from commonweal.base.errors import RunError
from commonweal.base.text import quoted
from commonweal.data.tables.plain_table import column_names
from commonweal.data.tables.preprocessing import Preprocessing
from commonweal.record.checkpoint import read_checkpoint
from commonweal.record.record import Record

Array = NDArray[np.float64]
RANK = 1e-6  # of a client's information, relative to the largest direction
CONVERGED = 1e-6  # the largest last step, in standard errors
RATIOS = {"binary": "odds ratio", "cross-entropy": "odds ratio", "poisson": "rate ratio"}
RATIOS |= {"cox": "hazard ratio"}


@dataclass(frozen=True, eq=False)
class Site:
    """The coefficient of one client's own rows, by one step from the common one."""

    client: str
    value: float
    error: float


@dataclass(frozen=True, eq=False)
class Estimate:
    """A coefficient, in units of the file. Of the reference, value and error are NaN."""

    name: str
    value: float
    error: float  # standard error
    low: float
    high: float
    p: float  # of the hypothesis that it is 0
    q: float  # Cochran's Q over the clients that have an estimate
    heterogeneity: float  # the p-value of Q; NaN with fewer than two such clients
    i2: float  # the share of the variance between clients that chance does not explain
    sites: tuple[Site, ...]


@dataclass(frozen=True, eq=False)
class Estimates:
    """The coefficients of a run. `ratio` names exp(value), where that has a name."""

    terms: tuple[Estimate, ...]
    ratio: str
    rows: int
    clients: int

    def csv(self) -> bytes:
        """A line per coefficient."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        keys = ("value", "error", "low", "high", "p", "q", "heterogeneity", "i2")
        writer.writerow(["name", *keys])
        for term in self.terms:
            values = [vars(term)[key] for key in keys]
            cells = ["" if math.isnan(value) else repr(float(value)) for value in values]
            writer.writerow([quoted(term.name), *cells])
        return text.getvalue().encode()


def estimates(folder: str | Path, level: float = 0.95) -> Estimates:
    """The coefficients of a finished run of the algorithm `glm`.

    Args:
        folder: Of the run.
        level: Of the intervals.

    Raises:
        RunError: It is another algorithm's, or its steps have not come to rest.
    """
    record = Record.read(folder)
    if record.part("algorithm") != "glm":
        raise RunError(f"{str(folder)!r} is no run of algorithm = 'glm', which has estimates")
    checkpoint = read_checkpoint(record.folder)
    if checkpoint is None:
        raise RunError(f"{str(folder)!r} has no checkpoint: run it again")
    state = {key: value.numpy() for key, value in checkpoint.state["server"].items() if key != "w"}
    used = np.flatnonzero(state["used"])
    rows, squared = int(state["sizes"].sum()), record.loss == "squared"
    covariance = np.linalg.pinv(state["informations"].sum(0)[np.ix_(used, used)])
    freedom = rows - len(used) if squared else math.inf
    dispersion = -2 * float(state["values"].sum()) / freedom if squared else 1.0
    step = np.abs(state["step"][used]) / np.sqrt(dispersion * np.diag(covariance))
    if not np.all(step < CONVERGED):
        raise RunError(
            f"{str(folder)!r} has not converged: the last step is {step.max():.2g} standard "
            "errors. Give it more rounds; where classes are separated by a column, there is no "
            "estimate: drop the column"
        )
    names, units = _units(record.preprocessing(), len(state["beta"]) - 1)
    change = units[np.ix_(used, used)]
    beta = change @ state["beta"][used]
    covariance = dispersion * change @ covariance @ change.T
    clients = record.clients().names
    sites = _sites(state, used, change, dispersion)
    terms = []
    place = {column: k for k, column in enumerate(used.tolist())}
    for column, name in enumerate(names):
        if column == 0 and column not in place:  # Cox's model has no intercept
            continue
        k = place.get(column)
        own = []
        if k is not None:
            own = [Site(clients[c], b[k], e[k]) for c, b, e in sites if not np.isnan(e[k])]
        value = math.nan if k is None else float(beta[k])
        error = math.nan if k is None else float(np.sqrt(covariance[k, k]))
        terms.append(_term(name, value, error, own, freedom, level))
    return Estimates(
        tuple(terms), RATIOS.get(record.loss, ""), rows, int((state["sizes"] > 0).sum())
    )


def _units(preprocessing: Preprocessing | None, features: int) -> tuple[list[str], Array]:
    """The coefficients' names, and the matrix that gives them in units of the file."""
    change = np.eye(features + 1)
    if preprocessing is None:
        return ["intercept", *(f"feature {k}" for k in range(features))], change
    names = ["intercept"]
    for column in preprocessing.used:
        if column.becomes in ("number", "date"):
            place = len(names)
            change[place, place] = 1 / column.deviation
            change[0, place] = -column.mean / column.deviation
        names += column_names(column)
    return names, change


def _sites(
    state: dict[str, Array], used: NDArray[np.int64], change: Array, dispersion: float
) -> list[tuple[int, Array, Array]]:
    """Clients with their own coefficients and standard errors; NaN: their rows do not say them."""
    found = []
    beta = state["beta"][used]
    scale = np.sqrt(np.diag(state["informations"].sum(0))[used])
    for client in np.flatnonzero(state["sizes"]).tolist():
        information = state["informations"][client][np.ix_(used, used)] / np.outer(scale, scale)
        inverse = np.linalg.pinv(information, rcond=RANK, hermitian=True)
        rows = change / scale
        known = np.abs(rows @ inverse @ information - rows).max(1) < RANK * np.abs(rows).max(1)
        own = change @ beta + rows @ inverse @ (state["gradients"][client][used] / scale)
        variances = dispersion * np.einsum("ij,jk,ik->i", rows, inverse, rows)
        known &= variances > 0
        errors = np.sqrt(np.where(known, variances, np.nan))
        found.append((client, np.where(known, own, np.nan), errors))
    return found


def _term(
    name: str, value: float, error: float, sites: Sequence[Site], freedom: float, level: float
) -> Estimate:
    if math.isinf(freedom):
        half = float(ndtri((1 + level) / 2)) * error
        p = 2 * float(ndtr(-abs(value / error))) if error > 0 else math.nan
    else:
        half = float(stdtrit(freedom, (1 + level) / 2)) * error
        p = 2 * float(stdtr(freedom, -abs(value / error))) if error > 0 else math.nan
    q = heterogeneity = i2 = math.nan
    if len(sites) > 1:
        values = np.array([site.value for site in sites])
        weights = np.array([site.error for site in sites]) ** -2.0
        q = float((weights * (values - np.average(values, weights=weights)) ** 2).sum())
        heterogeneity = float(chdtrc(len(sites) - 1, q))
        i2 = max(0.0, 1 - (len(sites) - 1) / q) if q > 0 else 0.0
    bounds = value - half, value + half
    return Estimate(name, value, error, *bounds, p, q, heterogeneity, i2, tuple(sites))
