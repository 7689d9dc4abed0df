"""Quadratic-program solvers for `commonweal.rules.simplex`: time, accuracy and failures of each.

    python benchmarks/solvers.py [--repeats 5] [--sizes 4 15 100 1000]

Each solver gets the same problems, scaled to entries of order one: minimise 1/2 p^T A p + b^T p
over the simplex (and a box). A is a Gram matrix that is regular, singular (fewer dimensions than
clients), has equal rows, has zero rows, has rows of sizes from 1 to 1e-6, is boxed as in FedMGDA,
or is the quadratic of AAggFF-S. The gap is the objective above the best that any solver found,
after clipping and renormalising. A failure is an exception, a status other than "solved", a point
outside the box or a gap above 1e-9. Solvers that are not installed are skipped. quadprog is GPL: it
is for comparison only.
"""

import argparse
import importlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from commonweal.base.errors import CommonwealError
from commonweal.rules import simplex

Array = np.ndarray
Problem = tuple[Array, Array, Array, Array]  # A (K, K), b (K,), lower (K,), upper (K,)


def problems(k: int, seed: int = 0) -> dict[str, Problem]:
    """The seven families at one K."""
    rng = np.random.default_rng(seed)
    drift = rng.normal(size=2 * k)
    regular = 0.3 * drift + rng.normal(size=(k, 2 * k)) * rng.uniform(0.2, 2, size=(k, 1))
    thin = rng.normal(size=(k, max(1, k // 4))) + 0.5
    equal = regular[rng.integers(0, max(1, k // 2), size=k)]
    zeros = regular * (rng.random((k, 1)) > 0.2)
    uneven = regular * 10.0 ** rng.uniform(-6, 0, size=(k, 1))
    zero = np.zeros(k)
    one = np.ones(k)
    answers = -rng.uniform(0, 1 / k, size=(50, k))
    updates = {
        "regular": regular,
        "singular": thin,
        "equal": equal,
        "zeros": zeros,
        "uneven": uneven,
    }
    found = {name: (u @ u.T, zero, zero, one) for name, u in updates.items()}
    found["boxed"] = (thin @ thin.T, zero, np.maximum(1 / k - 0.3 / k, 0) * one, 1.3 / k * one)
    found["aaggff-s"] = (4 * np.eye(k) + k / 4 * answers.T @ answers, answers.sum(0), zero, one)
    return {name: scaled(problem) for name, problem in found.items()}


def scaled(problem: Problem) -> Problem:
    """The same problem with entries of order one."""
    a, b, lower, upper = problem
    size = max(np.abs(a).max(), np.abs(b).max())
    return a / size, b / size, lower, upper


def ours(m: Any, a: Array, b: Array, lower: Array, upper: Array) -> Array:
    """What the library itself returns, conversions and checks included."""
    return np.asarray(simplex.quadratic(*(torch.from_numpy(x) for x in (a, b, lower, upper))))


def piqp(m: Any, a: Array, b: Array, lower: Array, upper: Array) -> Array:
    """Proximal interior point, dense."""
    solver = m.DenseSolver()
    solver.settings.eps_abs = solver.settings.eps_rel = 1e-12
    solver.settings.eps_duality_gap_abs = solver.settings.eps_duality_gap_rel = 1e-12
    solver.settings.preconditioner_scale_cost = True
    rows = np.ones((1, len(b)), order="F")
    solver.setup(np.asfortranarray(a), b, rows, np.ones(1), x_l=lower, x_u=upper)
    return checked(solver.solve() == m.PIQP_SOLVED, solver.result.x)


def daqp(m: Any, a: Array, b: Array, lower: Array, upper: Array) -> Array:
    """Dual active set."""
    sense = np.zeros(len(b) + 1, dtype=np.int32)
    sense[-1] = 5
    rows = np.ones((1, len(b)))
    most = np.append(upper, 1.0)
    least = np.append(lower, 1.0)
    x, _, flag, _ = m.solve(a, b, rows, most, least, sense, primal_tol=1e-10)
    return checked(flag == 1, x)


def clarabel(m: Any, a: Array, b: Array, lower: Array, upper: Array) -> Array:
    """Interior point, sparse."""
    from scipy import sparse

    k = len(b)
    rows = sparse.csc_matrix(np.vstack([np.ones((1, k)), -np.eye(k), np.eye(k)]))
    settings = m.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-11
    sides = np.concatenate([[1.0], -lower, upper])
    cones = [m.ZeroConeT(1), m.NonnegativeConeT(2 * k)]
    upper_half = sparse.triu(sparse.csc_matrix(a), format="csc")
    solution = m.DefaultSolver(upper_half, b, rows, sides, cones, settings).solve()
    return checked(solution.status == m.SolverStatus.Solved, solution.x)


def osqp(m: Any, a: Array, b: Array, lower: Array, upper: Array) -> Array:
    """Operator splitting, sparse, with polishing."""
    from scipy import sparse

    k = len(b)
    solver = m.OSQP()
    rows = sparse.csc_matrix(np.vstack([np.ones((1, k)), np.eye(k)]))
    low = np.append(1.0, lower)
    high = np.append(1.0, upper)
    solver.setup(
        sparse.triu(sparse.csc_matrix(a), format="csc"),
        b,
        rows,
        low,
        high,
        verbose=False,
        eps_abs=1e-9,
        eps_rel=1e-9,
        max_iter=20_000,
        polishing=True,
    )
    result = solver.solve(raise_error=False)
    return checked(result.info.status == "solved", result.x)


def proxsuite(m: Any, a: Array, b: Array, lower: Array, upper: Array) -> Array:
    """Proximal augmented Lagrangian, dense."""
    k = len(b)
    qp = m.proxqp.dense.QP(k, 1, 0, True)
    qp.settings.eps_abs = 1e-11
    qp.settings.eps_rel = 0.0
    qp.init(a, b, np.ones((1, k)), np.ones(1), None, None, None, lower, upper)
    qp.solve()
    return checked(qp.results.info.status == m.proxqp.QPSolverOutput.PROXQP_SOLVED, qp.results.x)


def quadprog(m: Any, a: Array, b: Array, lower: Array, upper: Array) -> Array:
    """Goldfarb and Idnani's dual active set."""
    k = len(b)
    rows = np.hstack([np.ones((k, 1)), np.eye(k), -np.eye(k)])
    a = a + 1e-12 * np.eye(k)  # it needs a Cholesky factor
    return checked(True, m.solve_qp(a, -b, rows, np.concatenate([[1.0], lower, -upper]), 1)[0])


def checked(solved: bool, x: Any) -> Array:
    """The point, clipped and renormalised as the library does, or an error."""
    if not solved:
        raise RuntimeError("not solved")
    p = np.maximum(np.asarray(x, dtype=float), 0)
    return np.asarray(p / p.sum())


SOLVERS: dict[str, Callable[..., Array]] = {
    "ours": ours,
    "piqp": piqp,
    "daqp": daqp,
    "clarabel": clarabel,
    "osqp": osqp,
    "proxsuite": proxsuite,
    "quadprog": quadprog,
}


def objective(p: Array, problem: Problem) -> float:
    """The objective at a point; infinite outside the box, which is as wrong as missing it."""
    a, b, lower, upper = problem
    inside = (p > lower - 1e-9).all() and (p < upper + 1e-9).all()
    return float(p @ a @ p / 2 + b @ p) if inside else np.inf


def timed(name: str, module: Any, problem: Problem, repeats: int) -> tuple[float, float]:
    """Median milliseconds and the objective reached (infinite after an exception)."""
    seconds = []
    value = np.inf
    for _ in range(repeats):
        start = time.perf_counter()
        try:
            p = SOLVERS[name](module, *problem)
        except (CommonwealError, RuntimeError, ValueError):  # what is being counted
            value = np.inf
        else:
            value = objective(p, problem)
        seconds.append(time.perf_counter() - start)
    return 1e3 * float(np.median(seconds)), value


def measure(k: int, modules: dict[str, Any], repeats: int) -> list[str]:
    """One line per solver at one K."""
    families = problems(k)
    times: dict[str, list[float]] = {}
    values: dict[str, Array] = {}
    for name, module in modules.items():
        each = [timed(name, module, problem, repeats) for problem in families.values()]
        times[name] = [milliseconds for milliseconds, _ in each]
        values[name] = np.array([value for _, value in each])
    best = np.min(list(values.values()), axis=0)
    return [line(name, k, times[name], values[name] - best, list(families)) for name in modules]


def line(name: str, k: int, times: list[float], gaps: Array, families: list[str]) -> str:
    failed = [family for family, gap in zip(families, gaps, strict=True) if not gap <= 1e-9]
    finite = gaps[np.isfinite(gaps)]
    worst = f"{finite.max():9.1e}" if len(finite) else "        -"
    middle = np.median(times)
    slowest = max(times)
    return f"{name:10} {k:5d} {middle:10.3f} {slowest:10.3f} {worst}  {', '.join(failed) or '-'}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="+", default=[4, 15, 100, 1000])
    args = parser.parse_args()
    modules: dict[str, Any] = {"ours": None}
    for name in list(SOLVERS)[1:]:
        try:
            modules[name] = importlib.import_module(name)
        except ImportError:
            print(f"{name} is not installed: skipped")
    print("solver         K  median ms   worst ms  worst gap  failures")
    for k in args.sizes:
        print("\n".join(measure(k, modules, args.repeats if k < 1000 else 1)), flush=True)


if __name__ == "__main__":
    main()
