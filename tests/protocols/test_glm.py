"""glm is the pooled regression: against autograd on pooled rows, statsmodels, and other engines."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import expit

from command_helpers import Command, command  # noqa: F401
from commonweal.base.errors import ConfigError, RunError
from commonweal.config.experiment import Experiment
from commonweal.jobs.rounds import run
from commonweal.record.record import Record
from commonweal.study.inference import Estimates, estimates
from commonweal.study.predictions import predictions

SITES = ("Ulm", "Bonn", "Cham")
Table = dict[str, np.ndarray]


def table_of(family: str, rows: int = 300, differ: float = 0.0) -> Table:
    """Columns a and b, a category c of three levels, and labels. `differ`: of a, by site."""
    rng = np.random.default_rng(4)
    site = rng.integers(0, 3, rows)
    a, b = np.round(rng.normal(3, 2, rows), 2), np.round(rng.normal(size=rows), 2)
    c = rng.integers(0, 3, rows)
    eta = (0.4 + differ * (site - 1)) * (a - 3) - 0.7 * b + np.array([0.5, -0.5, 0.0])[c] - 0.2
    table = {"site": site, "a": a, "b": b, "c": c}
    if family == "squared":
        return table | {"y": np.round(eta + rng.normal(size=rows), 3) + 20}
    if family == "poisson":
        return table | {"y": rng.poisson(np.exp(eta / 2))}
    if family == "cox":
        time = np.round(rng.exponential(np.exp(-eta - 0.5 * site)), 1) + 0.1  # with ties
        return table | {"y": time, "event": (rng.random(rows) < 0.7).astype(int)}
    return table | {"y": (rng.random(rows) < expit(eta)).astype(int)}


def write(path: Path, table: Table) -> None:
    """The rows for training, and three more of each site to be tested."""
    lines = [",".join([*table, "part"])]
    chosen = [np.flatnonzero(table["site"] == site)[:3] for site in range(3)]
    count = len(table["y"])
    for place, k in enumerate([*range(count), *np.concatenate(chosen).tolist()]):
        cells = {name: str(values[k]) for name, values in table.items()}
        cells["site"], cells["c"] = SITES[table["site"][k]], "xyz"[table["c"][k]]
        if "event" not in table and set(np.unique(table["y"])) <= {0, 1}:
            cells["y"] = ("no", "yes")[table["y"][k]]
        cells["part"] = "train" if place < count else "test"
        lines.append(",".join(cells.values()))
    path.write_text("\n".join(lines))


def experiment(path: Path, family: str, **more: object) -> Experiment:
    label = "y,event=1" if family == "cox" else "y"
    dataset = {
        "name": "table",
        "path": str(path),
        "label": label,
        "client": "site",
        "split": "part",
    }
    dataset["task"] = "values" if family in ("squared", "poisson") else "auto"
    loss = {"loss": family} if family in ("squared", "poisson") else {}
    settings = {"algorithm": "glm", "rounds": 12, "evaluate_every": 12} | loss | more
    return Experiment(dataset=dataset, **settings)


def fitted(folder: Path, family: str, **table: float) -> tuple[Table, Estimates]:
    columns = table_of(family, **table)  # type: ignore[arg-type]
    write(folder / f"{family}.csv", columns)
    out = folder / family
    run(experiment(folder / f"{family}.csv", family), out=out).result()
    return columns, estimates(out)


def design(table: Table) -> torch.Tensor:
    """Intercept, a, b, c = x, c = y: the level z is the reference."""
    c = table["c"]
    columns = [np.ones(len(c)), table["a"], table["b"], c == 0, c == 1]
    return torch.tensor(np.stack(columns, 1).astype(float))


def likelihood(family: str, table: Table, beta: torch.Tensor) -> torch.Tensor:
    """The pooled log-likelihood, without any trick."""
    eta, y = design(table) @ beta, torch.tensor(table["y"]).double()
    if family == "squared":
        return -((y - eta) ** 2).sum() / 2
    if family == "poisson":
        return (y * eta - eta.exp()).sum()
    if family == "binary":
        return (y * eta - torch.log1p(eta.exp())).sum()
    total = torch.zeros(())
    for k in np.flatnonzero(table["event"]):
        at_risk = (table["site"] == table["site"][k]) & (table["y"] >= table["y"][k])
        total = total + eta[k] - eta[torch.tensor(at_risk)].logsumexp(0)
    return total


@pytest.mark.parametrize("family", ["binary", "squared", "poisson", "cox"])
def test_estimates_are_those_of_the_pooled_rows(family: str, tmp_path: Path) -> None:
    table, found = fitted(tmp_path, family)
    beta = torch.zeros(5, dtype=torch.float64)
    free = slice(1, 5) if family == "cox" else slice(0, 5)

    def value(beta: torch.Tensor) -> torch.Tensor:
        return likelihood(family, table, beta)

    for _ in range(15):  # Newton's method on the pooled rows
        gradient = torch.func.grad(value)(beta)
        hessian = torch.func.jacrev(torch.func.grad(value))(beta)
        step = torch.zeros(5, dtype=torch.float64)
        step[free] = torch.linalg.solve(-hessian[free, free], gradient[free])
        beta = beta + step
    covariance = torch.linalg.inv(-hessian[free, free])
    if family == "squared":
        covariance = covariance * -2 * likelihood(family, table, beta) / (len(table["y"]) - 5)
    errors = covariance.diagonal().sqrt()
    terms = {term.name: term for term in found.terms}
    names = ["intercept", "a", "b", "c = x", "c = y"][free]
    assert np.isnan(terms["c = z"].value) and found.rows == len(table["y"])
    for name, own, error in zip(names, beta[free].tolist(), errors.tolist(), strict=True):
        assert terms[name].value == pytest.approx(own, abs=1e-6)
        assert terms[name].error == pytest.approx(error, rel=1e-6)
        assert terms[name].low < own < terms[name].high
    assert ("intercept" in terms) == (family != "cox")


@pytest.mark.parametrize("family", ["binary", "squared", "poisson", "cox"])
def test_estimates_are_those_of_statsmodels(family: str, tmp_path: Path) -> None:
    sm = pytest.importorskip("statsmodels.api", reason="statsmodels is not installed")
    table, found = fitted(tmp_path, family)
    x = design(table).numpy()
    if family == "cox":
        model = sm.PHReg(table["y"], x[:, 1:], status=table["event"], strata=table["site"])
        theirs = model.fit(tol=1e-12)
    elif family == "squared":
        theirs = sm.OLS(table["y"], x).fit()
    else:
        kind = {"binary": sm.families.Binomial, "poisson": sm.families.Poisson}[family]
        theirs = sm.GLM(table["y"], x, family=kind()).fit(tol=1e-14)
    ours = [term for term in found.terms if not np.isnan(term.value)]
    for key, values in (("value", theirs.params), ("error", theirs.bse), ("p", theirs.pvalues)):
        np.testing.assert_allclose([vars(term)[key] for term in ours], values, atol=1e-6)
    bounds = [(term.low, term.high) for term in ours]
    np.testing.assert_allclose(bounds, theirs.conf_int(), atol=1e-6)


@pytest.mark.parametrize("family", ["binary", "squared", "poisson"])
def test_the_model_predicts_with_the_coefficients(family: str, tmp_path: Path) -> None:
    table, found = fitted(tmp_path, family)
    beta = np.array([0 if np.isnan(t.value) else t.value for t in found.terms])
    eta = design(table).numpy() @ beta[:5]
    expected = {"binary": expit(eta), "squared": eta, "poisson": np.exp(eta)}[family]
    lines = predictions([tmp_path / family], split="train")
    name = "probability of yes" if family == "binary" else "prediction"
    rows = lines["row"].to_numpy()
    np.testing.assert_allclose(lines[name].to_numpy(), expected[rows], rtol=1e-4)


def test_clients_that_differ_are_found(tmp_path: Path) -> None:
    same, _ = tmp_path / "same", tmp_path
    same.mkdir()
    _, alike = fitted(same, "squared", rows=900)
    table, found = fitted(tmp_path, "squared", rows=900, differ=0.3)
    terms = {term.name: term for term in found.terms}
    assert terms["a"].heterogeneity < 1e-6 and terms["a"].i2 > 0.8
    assert {term.name: term for term in alike.terms}["a"].heterogeneity > 0.01
    # Of a linear regression a site's step from the common coefficients leads to its own.
    assert [site.client for site in terms["a"].sites] == sorted(SITES)
    for site in terms["a"].sites:
        own = table["site"] == SITES.index(site.client)
        x, y = design(table).numpy()[own], table["y"][own]
        assert site.value == pytest.approx(np.linalg.lstsq(x, y)[0][1], abs=1e-6)


def test_separated_classes_have_no_estimate(tmp_path: Path) -> None:
    table = table_of("binary")
    write(tmp_path / "t.csv", table | {"y": (table["a"] > 3).astype(int)})
    run(experiment(tmp_path / "t.csv", "binary"), out=tmp_path / "run").result()
    with pytest.raises(RunError, match="not converged"):
        estimates(tmp_path / "run")


def test_other_runs_models_and_classes_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "t.csv", table_of("binary"))
    settings = experiment(tmp_path / "t.csv", "binary", algorithm="averaging", model="logistic")
    run(settings, out=tmp_path / "run").result()
    with pytest.raises(RunError, match="glm"):
        estimates(tmp_path / "run")
    with pytest.raises(ConfigError, match="logistic"):
        run(experiment(tmp_path / "t.csv", "binary", model="mlp"), out=tmp_path / "mlp").result()


def test_the_command_prints_and_draws(command: Command) -> None:  # noqa: F811
    fitted(Path(), "binary")
    done = command("estimates", "binary", "-o", "e.csv", "--draw", "f.svg", "--term", "a", width=80)
    assert done.code == 0 and "odds ratio" in done.out and "reference" in done.out
    assert max(map(len, done.out.splitlines())) <= 80
    lines = Path("e.csv").read_text().splitlines()
    assert len(lines) == 7 and lines[0].startswith("name,value,error")
    assert "all rows together" in Path("f.svg").read_text() or Path("f.svg").stat().st_size > 5000
    assert command("estimates", "binary", "--draw", "f.svg", "--term", "q").code == 2


def test_rounds_of_a_stopped_run_continue_to_the_same_numbers(tmp_path: Path) -> None:
    write(tmp_path / "t.csv", table_of("binary"))
    whole = run(experiment(tmp_path / "t.csv", "binary"), out=tmp_path / "whole")
    whole.result()
    part = run(experiment(tmp_path / "t.csv", "binary"), out=tmp_path / "part")
    for done in part:
        if done.number == 3:
            break
    del part
    run(experiment(tmp_path / "t.csv", "binary"), out=tmp_path / "part", resume=True).result()
    first, second = estimates(tmp_path / "whole"), estimates(tmp_path / "part")
    assert [t.value for t in first.terms[:5]] == [t.value for t in second.terms[:5]]
    assert Record.read(tmp_path / "part").finished
