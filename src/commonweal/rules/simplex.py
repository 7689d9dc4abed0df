"""Exact computations on the probability simplex: projection, quadratic programs, linear systems.

A library for authors of rules. All are pure functions of float64 tensors. A result is optimal to
the stated tolerance; otherwise an error says how close the computation came. The common descent
direction of two updates, for example, is their shortest mixture:

>>> updates = torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
>>> quadratic(updates @ updates.T, torch.zeros(2))
tensor([0.8000, 0.2000], dtype=torch.float64)
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from commonweal.base.errors import CommonwealError, ConfigError, DataError

__all__ = ["best_fixed", "minimize", "project", "project_ball", "project_hull", "project_inside"]
__all__ += ["quadratic", "solve"]

Array = npt.NDArray[np.float64]

GAP = 1e-9  # distance to the optimum that ends the search, in units of the largest entry
ROUNDING = 1e-5  # accepted after all tries: inner products of float32 updates are no more exact
SPREAD = 100.0  # norms of updates that differ by more are brought to one scale
RANK = 1e-10  # eigenvalues below this fraction of the largest one are rounding errors
TWINS = 1e-13  # relative squared distance of two updates that are equal up to rounding
# PIQP's tolerance, step length and iterations: shorter steps each time, since updates of very
# different sizes can stall the first ones.
TRIES = ((1e-12, 0.99, 50), (1e-11, 0.9, 50), (1e-9, 0.5, 500))
NEWTON_STEPS = 100
ROUNDS_OFF = 4e-16  # a multiplier is known up to this part of it


def project(v: Tensor) -> Tensor:
    """Return the point of the simplex nearest to v (K,), by sorting and thresholding.

    >>> project(torch.tensor([0.9, 0.7, -3.0], dtype=torch.float64))
    tensor([0.6000, 0.4000, 0.0000], dtype=torch.float64)
    """
    # The threshold is at least max(v) - 1, so lower entries are zero however low they are: clamping
    # keeps the sums small and exact.
    shifted = (v.double() - v.max()).clamp(min=-1.0)
    descending = shifted.sort(descending=True).values
    ranks = torch.arange(1, len(v) + 1, dtype=torch.float64)
    thresholds = (descending.cumsum(0) - 1) / ranks
    support = int((descending > thresholds).sum())
    # Summed again, because a long cumulative sum loses digits.
    threshold = (descending[:support].sum() - 1) / support
    p = (shifted - threshold).clamp(min=0)
    return p / p.sum()


def project_inside(v: Tensor, pull: float | Tensor) -> Tensor:
    """Minimise 1/2 |p - v|^2 - sum pull_k log p_k over the simplex: near v, off the boundary.

    Args:
        v: the point (K,) to be near.
        pull: how strongly each entry, or all of them, is kept away from 0.

    >>> project_inside(torch.tensor([5.0, 0.0], dtype=torch.float64), 1e9)
    tensor([0.5000, 0.5000], dtype=torch.float64)
    """
    x = v.double() - v.max()
    pulls = torch.as_tensor(pull, dtype=torch.float64).expand(len(v))
    # The sum of the entries is convex and falls with the threshold. At -1 the largest entry is
    # above 1, so Newton's steps approach the threshold from below.
    threshold = -1.0
    p = _inside(x, threshold, pulls)
    for _ in range(NEWTON_STEPS):
        excess = float(p.sum()) - 1
        fall = (p.square() / (p.square() + pulls)).nan_to_num(nan=0.0).sum()
        following = threshold + excess / float(fall)
        if not following > threshold:
            break
        threshold = following
        p = _inside(x, threshold, pulls)
    return p / p.sum()


def _inside(x: Tensor, threshold: float, pull: Tensor) -> Tensor:
    """Return the positive roots p of p - pull / p = x - threshold."""
    y = x - threshold
    root = (y.square() + 4 * pull).sqrt()
    # The two forms are equal; each is used where it does not cancel.
    other = torch.where(pull > 0, 2 * pull / (root - y), 0.0)
    return torch.where(y > 0, (y + root) / 2, other)


def project_ball(v: Tensor, centre: Tensor, radius: float, points: Tensor | None = None) -> Tensor:
    """Return the point of the simplex nearest to v (K,) in the chi-square ball around `centre` > 0.

    The ball is 1 + sum (p_k - centre_k)^2 / centre_k <= radius, as in AFL, Section 5.1.

    Args:
        v: a point (K,).
        centre: the ball's centre (K,), a point of the simplex.
        radius: at least 1, at which the centre is the only point.
        points: (P, K); the result is also in the convex hull of these rows.

    Raises:
        ConfigError: no point of the hull is in the ball.

    >>> project_ball(torch.tensor([5.0, 0.0]).double(), torch.tensor([0.5, 0.5]).double(), 1.04)
    tensor([0.6000, 0.4000], dtype=torch.float64)
    """
    if points is None:
        p, pulled, nearest = project(v), partial(_pulled, v, centre), centre
    else:
        points = points.double()
        p, pulled = project_hull(v, points), partial(_pulled_hull, v, centre, points=points)
        nearest = quadratic(points / centre @ points.T, torch.zeros(len(points))) @ points

    def excess(p: Tensor) -> float:
        return float((p.square() / centre).sum()) - radius

    if excess(p) <= 0:
        return p
    if excess(nearest) > -GAP:
        if excess(nearest) > GAP:
            raise ConfigError(
                f"no mixture of the given ones is within radius {radius:g} of the centre: give at "
                f"least {radius + excess(nearest):.4g}"
            )
        return nearest
    # A multiplier nu of the ball pulls p towards the centre.
    low, high = 0.0, 1.0
    while excess(pulled(high)) > 0:
        low = high
        high *= 2
    while high - low > ROUNDS_OFF * high:
        middle = (low + high) / 2
        if excess(pulled(middle)) > 0:
            low = middle
        else:
            high = middle
    return pulled(high)


def _pulled_hull(v: Tensor, centre: Tensor, nu: float, points: Tensor) -> Tensor:
    """Minimise the same as `_pulled` over the convex hull of points."""
    curvature = 1 + nu / centre
    return quadratic(points * curvature @ points.T, -points @ v.double()) @ points


def _pulled(v: Tensor, centre: Tensor, nu: float) -> Tensor:
    """Minimise |p - v|^2 / 2 + nu / 2 * sum p^2 / centre over the simplex, by its threshold."""
    slope = 1 / (1 + nu / centre)
    # The support is those above the threshold: found by sorting, as in `project`.
    order = v.argsort(descending=True)
    sums = (slope * v)[order].cumsum(0)
    slopes = slope[order].cumsum(0)
    thresholds = (sums - 1) / slopes
    support = int((v[order] > thresholds).sum())
    p = (slope * (v - thresholds[support - 1])).clamp(min=0)
    return p / p.sum()


def project_hull(v: Tensor, points: Tensor) -> Tensor:
    """Return the point nearest to v (K,) in the convex hull of the rows of `points` (P, K).

    >>> project_hull(torch.tensor([2.0, 0.0]), torch.tensor([[0.5, 0.5], [0.25, 0.75]]))
    tensor([0.5000, 0.5000], dtype=torch.float64)
    """
    points = points.double()
    return quadratic(points @ points.T, -points @ v.double()) @ points


def quadratic(
    A: Tensor, b: Tensor, lower: Tensor | None = None, upper: Tensor | None = None
) -> Tensor:
    """Minimise 1/2 p^T A p + b^T p over the simplex with lower <= p <= upper.

    Entries are brought to one scale, the problem is solved by an interior-point method, the result
    is accepted by its distance to the optimum, and clients with equal updates get equal weights.

    Args:
        A: symmetric (K, K), may be singular.
        b: (K,).
        lower: the least weights (K,), by default 0.
        upper: the largest weights (K,), by default 1.

    Raises:
        ConfigError: no weights that sum to 1 lie within the bounds.
        DataError: A or b has entries that are not finite.

    >>> quadratic(torch.diag(torch.tensor([1.0, 3.0])), torch.zeros(2))
    tensor([0.7500, 0.2500], dtype=torch.float64)
    """
    low, high = _box(len(b), lower, upper)
    for corner in (low, high):  # only one feasible point (FedMGDA with epsilon = 0, or K = 1)
        if abs(corner.sum() - 1) < 1e-12:
            return torch.from_numpy(corner / corner.sum())
    a = _array(A)
    c = _array(b)
    if not (np.isfinite(a).all() and np.isfinite(c).all()):
        raise DataError(
            f"a quadratic over {len(c)} clients has entries that are not finite: check the updates"
        )
    a = (a + a.T) / 2
    c = c - c.mean()  # a constant in b is a constant in the objective
    units = _units(a, low, high)
    # Entries of order one, for weights in these units.
    size = max(np.abs(a / units[:, None] / units).max(), np.abs(c / units).max()) or 1.0
    a /= size
    c /= size
    p = _interior_point(a, c, low, high, units)
    return torch.from_numpy(_equalize_twins(p, a, c, low, high))


def _array(values: Tensor) -> Array:
    array: Array = values.detach().double().numpy()
    return array


def _box(k: int, lower: Tensor | None, upper: Tensor | None) -> tuple[Array, Array]:
    """Return the bounds within [0, 1]. Raises if no point of the simplex lies between them."""
    low = np.zeros(k) if lower is None else _array(lower).clip(0, None)
    high = np.ones(k) if upper is None else _array(upper).clip(None, 1)
    crossed = int((low > high).sum())
    if crossed or low.sum() > 1 + 1e-12 or high.sum() < 1 - 1e-12:
        raise ConfigError(
            "no weights that sum to 1 lie within the bounds: the lower ones sum to "
            f"{low.sum():.6g}, the upper ones to {high.sum():.6g}, and {crossed} of {k} are "
            "crossed; widen them"
        )
    return low, high


def _units(a: Array, low: Array, high: Array) -> Array:
    """Return the factor (K,) by which each weight is counted: 1 unless updates differ by far.

    Next to an update 1e18 times the others every tolerance would be in units of that one. Its
    weight, about 1e-18, is counted in units of 1e-18 instead.
    """
    norms = np.sqrt(a.diagonal().clip(0, None))
    positive = norms[norms > 0]
    if len(positive) == 0 or positive.max() <= SPREAD * positive.min():
        return np.ones(len(a))
    order, spent = _cheapest(norms, low, high)
    reachable = norms @ low + norms[order] @ spent  # a point of the box is at least as short
    units: Array = np.maximum(norms / max(reachable, positive.min()), 1.0)
    return units


def _interior_point(a: Array, c: Array, low: Array, high: Array, units: Array) -> Array:
    """Minimise by PIQP, for the reasons that benchmarks/solvers.py prints."""
    import piqp  # imported here, so that rules without a quadratic do not load it

    scaled = np.asfortranarray(a / units[:, None] / units)
    # A bound far above anything short is never met, and would spoil the solver's scaling.
    upper = np.where((units > 1) & (high * units > SPREAD), np.inf, high * units)
    best: tuple[float, Array] = (float("inf"), low)
    for tolerance, step, iterations in TRIES:
        solver = piqp.DenseSolver()
        settings = solver.settings
        settings.eps_abs = settings.eps_rel = tolerance
        settings.eps_duality_gap_abs = settings.eps_duality_gap_rel = tolerance
        settings.tau = step
        settings.max_iter = iterations
        settings.preconditioner_scale_cost = True
        solver.setup(
            scaled,
            c / units,
            np.asfortranarray(1 / units[None]),
            np.ones(1),
            x_l=low * units,
            x_u=upper if iterations == 50 else high * units,
        )
        status = solver.solve()
        p: Array = (solver.result.x / units).clip(low, high)
        with np.errstate(invalid="ignore"):  # all zero after a breakdown: NaN, which fails the test
            p = p / p.sum()
        if status == piqp.PIQP_SOLVED:
            return p
        # Rounding can keep the solver from its own tolerance although the solution is good.
        gap = _gap(a @ p + c, p, low, high)
        if gap <= GAP:
            return p
        if gap < best[0]:
            best = (gap, p)
    if best[0] <= ROUNDING:
        return best[1]
    raise CommonwealError(
        f"the quadratic program over {len(c)} clients was not solved: PIQP stopped with "
        f"{status.name} at a relative gap of {best[0]:.1e} (required: {ROUNDING:.0e}); look for "
        "updates of very different sizes"
    )


def _equalize_twins(p: Array, a: Array, c: Array, low: Array, high: Array) -> Array:
    """Give equal weights to clients with equal updates, which the objective does not distinguish.

    A ridge cannot do it: one that leaves the objective alone is below the solver's resolution.
    """
    squares = a.diagonal()[:, None] + a.diagonal()
    twins = squares - 2 * a <= TWINS * squares  # |u_i - u_j|^2 against |u_i|^2 + |u_j|^2
    np.fill_diagonal(twins, True)  # also where rounding leaves a square below 0
    if np.count_nonzero(twins) == len(p):
        return p
    for x in (c, low, high):
        twins &= x[:, None] == x
    even = twins @ p / twins.sum(1)
    even /= even.sum()
    # Updates that are only nearly equal may differ in the objective; optimality comes first.
    return even if _gap(a @ even + c, even, low, high) <= GAP else p


def _gap(gradient: Array, p: Array, low: Array, high: Array) -> float:
    """Bound the distance to the optimum by <gradient, p - q> for the best corner q of the box."""
    order, spent = _cheapest(gradient, low, high)
    return float(gradient @ (p - low) - gradient[order] @ spent)


def _cheapest(cost: Array, low: Array, high: Array) -> tuple[npt.NDArray[np.intp], Array]:
    """Return the clients by cost, and what each gets above `low` if the cheapest come first."""
    order = np.argsort(cost)
    room = np.cumsum((high - low)[order])
    return order, np.diff(np.minimum(room, 1 - low.sum()), prepend=0.0)


def solve(G: Tensor, rate: Tensor) -> tuple[Tensor, bool]:
    """Solve G v = rate for a Gram matrix G (K, K).

    Returns:
        v, and whether G was singular. If it was, v is the least-squares solution of smallest norm.

    >>> solve(torch.diag(torch.tensor([4.0, 0.0])), torch.ones(2))
    (tensor([0.2500, 0.0000], dtype=torch.float64), True)
    """
    G = G.double()
    norms = G.diagonal().clamp(min=0).sqrt()
    # In units of each client's own norm, a nearly converged client does not look dependent.
    units = torch.where(norms > 0, 1 / norms, 0.0)
    cosines = units[:, None] * (G + G.T) / 2 * units
    scaled = units * rate.double()
    factor, failed = torch.linalg.cholesky_ex(cosines)
    # Norms decide, not pivots: they do not depend on the order of clients.
    if not failed:
        norm = torch.linalg.matrix_norm(cosines, 1)
        if norm * torch.linalg.matrix_norm(torch.cholesky_inverse(factor), 1) < 1 / RANK:
            return units * torch.cholesky_solve(scaled[:, None], factor)[:, 0], False
    # A cutoff, not G + ridge: with a ridge, equal updates with unequal rates would get weights of
    # opposite sign and size 1/ridge.
    return units * (torch.linalg.pinv(cosines, rtol=RANK, hermitian=True) @ scaled), True


def minimize(objective: Callable[[Tensor], Tensor], clients: int) -> Tensor:
    """Minimise a convex function of p (K,) over the simplex, by Newton's method.

    Args:
        objective: twice differentiable by torch for p > 0; the result may be on the boundary.
        clients: K.

    >>> minimize(lambda p: (p * p.log()).sum() - p[1], 2)
    tensor([0.2689, 0.7311], dtype=torch.float64)
    """
    p = torch.full((clients,), 1 / clients, dtype=torch.float64)
    for _ in range(NEWTON_STEPS):
        gradient, value = torch.func.grad_and_value(objective)(p)
        if not (gradient.isfinite().all() and value.isfinite()):
            raise DataError(f"the objective has the value {float(value)} at {p[:9].tolist()}")
        gap = float((gradient @ p - gradient.min()) / gradient.abs().max().clamp(min=1e-300))
        if gap <= GAP / 10:
            return p
        hessian = torch.func.jacrev(torch.func.grad(objective))(p)
        change = quadratic(hessian, gradient - hessian @ p) - p
        length = 0.99  # short of the boundary, where a gradient may be infinite
        while objective(p + length * change) >= value and length > 1e-6:
            length /= 2
        if length <= 1e-6:  # rounding leaves nothing to gain
            break
        p = p + length * change
    if gap <= ROUNDING:
        return p
    raise CommonwealError(
        f"the objective over {clients} clients is not minimised: Newton's method stopped at a "
        f"relative gap of {gap:.1e} (required: {ROUNDING:.0e}); is it convex?"
    )


def best_fixed(responses: Tensor) -> tuple[Tensor, float]:
    """Maximise sum_t log(1 + <p, r_t>) over p (K,): the best fixed decision in hindsight.

    Returns:
        p and the maximum, to 1e-8.

    >>> best_fixed(torch.tensor([[0.0, 1.0], [0.5, 1.0]]))[0]
    tensor([0., 1.], dtype=torch.float64)
    """
    wealth = 1 + responses.double()  # (T, K): 1 + <p, r_t> = <p, 1 + r_t> on the simplex
    if not (wealth > 0).all() or not wealth.isfinite().all():
        raise DataError(
            f"responses must be finite and above -1, got {float(responses.min())} at least"
        )
    rounds, k = wealth.shape
    p = torch.full((k,), 1 / k, dtype=torch.float64)
    gap = 0.0
    for _ in range(NEWTON_STEPS):
        relative = wealth / (wealth @ p)[:, None]  # rows: negative gradients of each round's loss
        gradient = relative.sum(0)
        if rounds > 0:
            # <p, gradient> = T for every p, so this bounds the distance to the optimum.
            gap = float(gradient.max()) - rounds
        if gap <= 1e-8:
            return p, float((wealth @ p).log().sum())
        p = _newton_step(p, relative, gradient)
    raise CommonwealError(
        f"the best fixed decision over {k} clients is known only to {gap:.1e} after "
        f"{NEWTON_STEPS} Newton steps"
    )


def _newton_step(p: Tensor, relative: Tensor, gradient: Tensor) -> Tensor:
    # The second-order model of log at p, as a quadratic in the target: its linear term is
    # -H p - gradient = -2 gradient.
    target = quadratic(relative.T @ relative, -2 * gradient)
    change = relative @ (target - p)
    # Self-concordance: a step of 1 / (1 + decrement) always increases the objective. The full step
    # is taken once it increases it more.
    length = 1 / (1 + float(change.norm()))
    full = (1 + change).clamp(min=0).log().sum()
    damped = (length * change).log1p().sum()
    if full > damped:
        length = 1.0
    p = p + length * (target - p)
    return p / p.sum()
