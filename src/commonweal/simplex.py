"""The few exact computations on the probability simplex that the rules need: project, minimise, solve, look back.

All are pure functions of float64 tensors. A result is optimal to the stated tolerance, or an error says how far it got.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from commonweal.errors import CommonwealError, ConfigError, DataError

__all__ = ["best_fixed", "project", "project_inside", "quadratic", "solve"]

Array = npt.NDArray[np.float64]

_GAP = 1e-9  # the objective's distance to the optimum that is still an answer, in units of the largest entry
_RANK = 1e-10  # eigenvalues below this part of the largest one are rounding, not directions


def project(v: Tensor) -> Tensor:
    """The point of the simplex nearest to v (K,), by sorting and thresholding.

    >>> project(torch.tensor([0.9, 0.7, -3.0], dtype=torch.float64))
    tensor([0.6000, 0.4000, 0.0000], dtype=torch.float64)
    """
    # The threshold is at least max(v) - 1, so whatever lies lower is zero wherever it lies: sums stay small and exact.
    shifted = (v.double() - v.max()).clamp(min=-1.0)
    descending = shifted.sort(descending=True).values
    ranks = torch.arange(1, len(v) + 1, dtype=torch.float64)
    thresholds = (descending.cumsum(0) - 1) / ranks
    support = int((descending > thresholds).sum())
    threshold = (descending[:support].sum() - 1) / support  # summed anew: a long cumulative sum has lost digits
    p = (shifted - threshold).clamp(min=0)
    return p / p.sum()


def project_inside(v: Tensor, pull: float) -> Tensor:
    """The minimiser of 1/2 |p - v|^2 - pull * sum log p over the simplex: near v, but never at its border.

    >>> project_inside(torch.tensor([5.0, 0.0], dtype=torch.float64), 1e9)
    tensor([0.5000, 0.5000], dtype=torch.float64)
    """
    x = v.double() - v.max()
    low, high = -1.0, pull * len(v)  # x - p + pull / p of the largest entry, which lies between 1/K and 1

    def inside(threshold: float) -> Tensor:
        y = x - threshold
        root = (y.square() + 4 * pull).sqrt()
        return torch.where(y > 0, (y + root) / 2, 2 * pull / (root - y))  # two forms, so that nothing cancels

    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if inside(middle).sum() > 1 else (low, middle)
    p = inside((low + high) / 2)
    return p / p.sum()


def quadratic(A: Tensor, b: Tensor, lower: Tensor | None = None, upper: Tensor | None = None) -> Tensor:
    """The minimiser of 1/2 p^T A p + b^T p over the simplex, within lower <= p <= upper; A (K, K) may be singular.

    >>> quadratic(torch.diag(torch.tensor([1.0, 3.0])), torch.zeros(2))
    tensor([0.7500, 0.2500], dtype=torch.float64)
    """
    low, high = _box(len(b), lower, upper)
    for corner in (low, high):  # the box touches the simplex in one point (FedMGDA at epsilon 0, or K = 1)
        if abs(corner.sum() - 1) < 1e-12:
            return torch.from_numpy(corner / corner.sum())
    a, c = A.detach().double().numpy(), b.detach().double().numpy()
    if not (np.isfinite(a).all() and np.isfinite(c).all()):
        raise DataError(f"a quadratic over {len(b)} clients has entries that are not finite: look at their updates")
    c = c - c.mean()  # a constant in b is a constant in the objective
    size = max(float(np.abs(a).max()), float(np.abs(c).max())) or 1.0
    a, c = (a + a.T) / (2 * size), c / size
    return torch.from_numpy(_even(_interior_point(a, c, low, high), a, c, low, high))


def _box(k: int, lower: Tensor | None, upper: Tensor | None) -> tuple[Array, Array]:
    """The bounds as arrays within [0, 1], or an error if no point of the simplex is between them."""
    low = np.zeros(k) if lower is None else lower.detach().double().numpy().clip(0, None)
    high = np.ones(k) if upper is None else upper.detach().double().numpy().clip(None, 1)
    if not (low.sum() <= 1 + 1e-12 and high.sum() >= 1 - 1e-12 and (low <= high).all()):
        raise ConfigError(
            f"no weights that sum to 1 lie within the bounds: the lower ones sum to {low.sum():.6g}, the upper ones to "
            f"{high.sum():.6g}, and {int((low > high).sum())} of {k} are crossed; widen them"
        )
    return low, high


def _interior_point(a: Array, c: Array, low: Array, high: Array) -> Array:
    """The minimiser for entries of order one; PIQP, for the reasons that benchmarks/solvers.py prints."""
    import piqp  # here, so that rules without a quadratic never load it

    gap = float("inf")
    # The second try takes shorter steps: updates of very different sizes can stall the first.
    for tolerance, step in ((1e-12, 0.99), (1e-11, 0.9)):
        solver = piqp.DenseSolver()
        s = solver.settings
        s.eps_abs = s.eps_rel = s.eps_duality_gap_abs = s.eps_duality_gap_rel = tolerance
        s.tau, s.max_iter, s.preconditioner_scale_cost = step, 50, True
        solver.setup(np.asfortranarray(a), c, np.ones((1, len(c)), order="F"), np.ones(1), x_l=low, x_u=high)
        status = solver.solve()
        p: Array = solver.result.x.clip(low, high)
        with np.errstate(invalid="ignore"):  # all zero after a breakdown: not a number, which no gap accepts
            p = p / p.sum()
        # Rounding can keep the solver from its own tolerance on an answer that is good: then the gap decides.
        if status == piqp.PIQP_SOLVED or (gap := _gap(a @ p + c, p, low, high)) <= _GAP:
            return p
    raise CommonwealError(
        f"the quadratic program over {len(c)} clients was not solved: PIQP stopped with {status.name} at a relative "
        f"gap of {gap:.1e} (wanted {_GAP:.0e}); look for updates of very different sizes"
    )


def _even(p: Array, a: Array, c: Array, low: Array, high: Array) -> Array:
    """p with equal weights for equal clients, among whom the objective does not choose."""
    # Symmetry, not a ridge: one small enough to leave the objective alone is below what the solver can resolve.
    squares = a.diagonal()[:, None] + a.diagonal()
    twins = squares - 2 * a <= 1e-13 * squares  # |u_i - u_j|^2 is rounding of |u_i|^2 + |u_j|^2
    if np.count_nonzero(twins) == len(p):
        return p
    for x in (c, low, high):
        twins &= x[:, None] == x
    even = twins @ p / twins.sum(1)
    even /= even.sum()
    # Updates equal only to the root of rounding may differ in the objective; then the optimum goes before the symmetry.
    return even if _gap(a @ even + c, even, low, high) <= _GAP else p


def _gap(gradient: Array, p: Array, low: Array, high: Array) -> float:
    """How far p can be from the optimum of a convex function: <gradient, p - q> for the best corner q of the box."""
    order = np.argsort(gradient)
    room = np.cumsum((high - low)[order])
    spent = np.diff(np.minimum(room, 1 - low.sum()), prepend=0.0)
    return float(gradient @ (p - low) - gradient[order] @ spent)


def solve(G: Tensor, rate: Tensor) -> tuple[Tensor, bool]:
    """v = G^-1 rate for a Gram matrix G (K, K), and whether G was singular: then the least-squares v of smallest norm.

    >>> solve(torch.diag(torch.tensor([4.0, 0.0])), torch.ones(2))
    (tensor([0.2500, 0.0000], dtype=torch.float64), True)
    """
    G, rate = G.double(), rate.double()
    lengths = G.diagonal().clamp(min=0).sqrt()
    # In units of each client's own length a nearly converged client is not mistaken for a dependent one.
    units = torch.where(lengths > 0, 1 / lengths, 0.0)
    cosines = units[:, None] * (G + G.T) / 2 * units
    factor, failed = torch.linalg.cholesky_ex(cosines)
    if not failed:
        inverse = torch.cholesky_inverse(factor)
        # Norms, not pivots, decide: they are the same in whatever order the clients come.
        if torch.linalg.matrix_norm(cosines, 1) * torch.linalg.matrix_norm(inverse, 1) < 1 / _RANK:
            return units * torch.cholesky_solve((units * rate)[:, None], factor)[:, 0], False
    # A cut, not G + ridge: equal updates with unequal rates would get weights of opposite sign and size 1/ridge.
    return units * (torch.linalg.pinv(cosines, rtol=_RANK, hermitian=True) @ (units * rate)), True


def best_fixed(responses: Tensor) -> tuple[Tensor, float]:
    """The best fixed decision in hindsight: the maximiser p (K,) of sum_t log(1 + <p, r_t>), and that sum, to 1e-8.

    >>> best_fixed(torch.tensor([[0.0, 1.0], [0.5, 1.0]]))[0]
    tensor([0., 1.], dtype=torch.float64)
    """
    wealth = 1 + responses.double()  # (T, K): 1 + <p, r_t> = <p, 1 + r_t> on the simplex
    if not (wealth > 0).all() or not wealth.isfinite().all():
        raise DataError(f"responses must be finite and above -1, got {float(responses.min())} at least")
    rounds, k = wealth.shape
    p = torch.full((k,), 1 / k, dtype=torch.float64)
    gap = 0.0
    for _ in range(100):
        relative = wealth / (wealth @ p)[:, None]  # rows are minus the gradients of each round's loss
        gradient = relative.sum(0)
        # <p, gradient> = T for every p, so this bounds the distance to the optimum.
        if rounds == 0 or (gap := float(gradient.max()) - rounds) <= 1e-8:
            return p, float((wealth @ p).log().sum())
        # Newton: log's second-order model at p is a quadratic in the target; -H p - gradient = -2 gradient.
        target = quadratic(relative.T @ relative, -2 * gradient)
        change = relative @ (target - p)
        # Self-concordance: 1 / (1 + decrement) always climbs, the full step is taken as soon as it climbs more.
        damped = 1 / (1 + float(change.norm()))
        full = (1 + change).clamp(min=0).log().sum() > (damped * change).log1p().sum()
        p = p + (1.0 if full else damped) * (target - p)
        p = p / p.sum()
    raise CommonwealError(f"the best fixed decision over {k} clients is known only to {gap:.1e} after 100 Newton steps")
