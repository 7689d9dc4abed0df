"""Each computation against an independent, slower one, and against optimality conditions."""

from itertools import product
from math import fsum

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import fmin_slsqp, nnls
from torch import Tensor

from commonweal.base.errors import CommonwealError, ConfigError, DataError
from commonweal.rules import simplex

Array = npt.NDArray[np.float64]

seeds = st.integers(0, 10_000)
repeatable = settings(derandomize=True, deadline=None, max_examples=40)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def uniform(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, dtype=torch.float64, generator=generator)


def zeros(k: int) -> Tensor:
    return torch.zeros(k, dtype=torch.float64)


def gram(seed: int, k: int, d: int) -> Tensor:
    u = normal(seed, k, d) + 0.3
    return u @ u.T


def objective(a: Tensor, b: Tensor, p: Tensor) -> float:
    return float(p @ a @ p / 2 + b @ p)


def bisected(v: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The projection onto the simplex within a box, by bisection on the shift."""
    below = float((v - high).min())
    above = float((v - low).max())
    for _ in range(90):
        shift = (below + above) / 2
        more = float((v - shift).clamp(low, high).sum()) > 1
        below, above = (shift, above) if more else (below, shift)
    return (v - shift).clamp(low, high)


def enumerated(a: Tensor, b: Tensor, low: Tensor, high: Tensor) -> float:
    """The least objective over all guesses of which weights are at a bound."""
    k = len(b)
    best = float("inf")
    for state in product("lfh", repeat=k):
        free = [i for i in range(k) if state[i] == "f"]
        p = torch.tensor(
            [float(high[i] if state[i] == "h" else low[i]) for i in range(k)], dtype=torch.float64
        )
        if free:
            p[free] = 0
            n = len(free)
            system = torch.ones(n + 1, n + 1, dtype=torch.float64)
            system[:n, :n] = a[free][:, free]
            system[n, n] = 0
            side = torch.cat([-(a @ p + b)[free], 1 - p.sum()[None]])
            p[free] = (torch.linalg.pinv(system) @ side)[:n]
        if abs(p.sum() - 1) < 1e-9 and (p > low - 1e-9).all() and (p < high + 1e-9).all():
            best = min(best, objective(a, b, p))
    return best


def descended(a: Tensor, b: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Accelerated projected gradient, long enough."""
    step = 1 / float(torch.linalg.matrix_norm(a, 2))
    p = ahead = bisected(zeros(len(b)), low, high)
    for t in range(1, 700):
        following = bisected(ahead - step * (a @ ahead + b), low, high)
        ahead = following + (t - 1) / (t + 2) * (following - p)
        p = following
    return p


@repeatable
@given(
    seeds,
    st.integers(1, 40),
    st.sampled_from([1e-9, 0.1, 1.0, 1e3, 1e9]),
    st.sampled_from([0.0, -1e9, 1e9]),
)
def test_project_is_the_thresholding_that_bisection_finds(
    seed: int, k: int, scale: float, shift: float
) -> None:
    v = scale * normal(seed, k) + shift
    p = simplex.project(v)
    assert (p >= 0).all() and abs(fsum(p.tolist()) - 1) < 1e-12
    torch.testing.assert_close(p, bisected(v - v.max(), zeros(k), zeros(k) + 2), rtol=0, atol=1e-9)


def test_project_keeps_the_simplex_and_sums_to_one_for_a_million() -> None:
    p = torch.softmax(normal(0, 50), 0)
    torch.testing.assert_close(simplex.project(p), p, rtol=0, atol=1e-15)
    for scale in (1e-6, 1.0, 1e9):
        assert abs(fsum(simplex.project(scale * normal(1, 10**6)).tolist()) - 1) < 1e-12


@repeatable
@given(seeds, st.integers(1, 5), st.integers(1, 6), st.booleans(), st.booleans())
def test_quadratic_is_the_best_active_set(
    seed: int, k: int, d: int, boxed: bool, linear: bool
) -> None:
    a = gram(seed, k, d)
    b = normal(seed + 1, k) if linear else zeros(k)
    centre = torch.softmax(normal(seed + 2, k), 0)
    low, high = (
        ((centre - 0.1).clamp(min=0), (centre + 0.1).clamp(max=1))
        if boxed
        else (zeros(k), zeros(k) + 1)
    )
    p = simplex.quadratic(a, b, low, high)
    assert abs(p.sum() - 1) < 1e-12 and (p >= low - 1e-11).all() and (p <= high + 1e-11).all()
    size = float(a.abs().max() + b.abs().max())
    assert objective(a, b, p) <= enumerated(a, b, low, high) + 1e-9 * size


@pytest.mark.parametrize("d", [10, 60])
@pytest.mark.parametrize("width", [0.01, 1.0])
def test_quadratic_is_no_worse_than_projected_gradient(d: int, width: float) -> None:
    a = gram(3, 40, d)
    b = normal(4, 40)
    low = zeros(40) + max(0.0, 1 / 40 - width)
    high = zeros(40) + min(1.0, 1 / 40 + width)
    p = simplex.quadratic(a, b, low, high)
    assert objective(a, b, p) <= objective(a, b, descended(a, b, low, high)) + 1e-9 * float(
        a.abs().max()
    )


@pytest.mark.parametrize("k", [200, 1000])
def test_quadratic_meets_the_optimality_conditions(k: int) -> None:
    a = gram(5, k, 2 * k)
    b = 10 * normal(6, k)
    p = simplex.quadratic(a, b)
    size = a.abs().max()
    gradient = (a @ p + b) / size
    assert (gradient >= gradient @ p - 1e-9).all()  # nothing to gain anywhere
    assert gradient[p > 1e-6].max() - gradient[p > 1e-6].min() < 1e-7  # and all in use are equal
    assert 1 < (p > 1e-6).sum() < k


@repeatable
@given(seeds, st.sampled_from([1e-12, 1e-3, 1e12]))
def test_quadratic_does_not_depend_on_the_units(seed: int, scale: float) -> None:
    a = gram(seed, 7, 20)
    b = normal(seed, 7)
    torch.testing.assert_close(
        simplex.quadratic(scale * a, scale * b), simplex.quadratic(a, b), rtol=0, atol=1e-7
    )
    torch.testing.assert_close(
        simplex.quadratic(a, b + 1e6), simplex.quadratic(a, b), rtol=0, atol=1e-6
    )


@repeatable
@given(seeds, st.integers(2, 30), st.sampled_from([0, 4, 8]))
def test_quadratic_copes_with_updates_of_very_different_sizes(
    seed: int, k: int, decades: int
) -> None:
    sizes = 10 ** (-decades * uniform(seed, k, 1))
    u = sizes * normal(seed, k, 12)
    a = u @ u.T / (u @ u.T).abs().max()
    p = simplex.quadratic(a, zeros(k))
    assert p @ a @ p - (a @ p).min() <= 1e-9


def shortest(u: Tensor) -> float:
    """The least norm in the hull of the rows, by non-negative least squares on unit rows.

    |V' x|^2 + (1 - sum x)^2 over x >= 0 is least at a multiple of the minimum-norm weights.
    """
    norms = u.norm(dim=1, keepdim=True)
    relative = norms / norms.min()
    system = torch.cat([(u / norms).T, 1 / relative.T])
    side = torch.cat([zeros(len(system) - 1), torch.ones(1)])
    x = torch.from_numpy(nnls(system.numpy(), side.numpy())[0])[:, None] / relative
    return float((x / x.sum() * u).sum(0).norm())


@pytest.mark.parametrize("others", [[4], [1, 4, 7]])
def test_the_minimum_norm_is_right_beside_an_update_of_any_scale(others: list[int]) -> None:
    for exponent in range(-8, 19):
        u = normal(exponent + 8, 10, 50) + 0.3
        u[others] *= 10.0**exponent
        p = simplex.quadratic(u @ u.T, zeros(10))
        assert float((p @ u).norm()) == pytest.approx(shortest(u), rel=1e-6), exponent


@repeatable
@given(seeds, st.integers(2, 30))
def test_the_minimum_norm_is_right_for_updates_of_all_scales(seed: int, k: int) -> None:
    u = 10 ** (26 * uniform(seed, k, 1) - 8) * normal(seed, k, 2 * k)
    p = simplex.quadratic(u @ u.T, zeros(k))
    assert float((p @ u).norm()) == pytest.approx(shortest(u), rel=1e-6)


@pytest.mark.parametrize("exponent", [-8, 3, 8, 18])
@pytest.mark.parametrize("epsilon", [0.05, 0.1, 0.5])
def test_bounds_hold_beside_an_update_of_any_scale(exponent: int, epsilon: float) -> None:
    u = normal(1, 10, 50) + 0.3
    u[4] *= 10.0**exponent
    a = u @ u.T
    low = (zeros(10) + 0.1 - epsilon).clamp(min=0)
    high = zeros(10) + 0.1 + epsilon
    p = simplex.quadratic(a, zeros(10), low, high)
    assert (p >= low - 1e-12).all() and (p <= high + 1e-12).all()
    # The best corner of the box for the gradient: the cheapest clients filled first.
    gradient = a @ p
    corner = low.clone()
    for i in gradient.argsort().tolist():
        corner[i] += min(float(high[i] - low[i]), 1 - float(corner.sum()))
    assert gradient @ (p - corner) <= 1e-7 * p @ a @ p


@repeatable
@given(seeds, st.integers(5, 30), st.integers(1, 40))
def test_equal_clients_get_equal_weights_in_any_order(seed: int, k: int, d: int) -> None:
    u = normal(seed, k, d)
    u[1] = u[0]
    u[3:5] = 0
    p = simplex.quadratic(u @ u.T, zeros(k))
    assert abs(p[0] - p[1]) < 1e-6 and abs(p[3] - p[4]) < 1e-6
    assert (
        p @ (u @ u.T) @ p < 1e-9 * (u @ u.T).max()
    )  # two clients did not move: the hull holds zero


@repeatable
@given(seeds, st.integers(2, 30))
def test_the_order_of_clients_does_not_matter(seed: int, k: int) -> None:
    order = torch.randperm(k, generator=torch.Generator().manual_seed(seed))
    u = normal(seed, k, 2 * k)
    b = normal(seed + 1, k)
    u[1] = u[0]
    b[1] = b[0]
    a = u @ u.T
    there = u[order] @ u[order].T
    torch.testing.assert_close(
        simplex.quadratic(there, b[order]), simplex.quadratic(a, b)[order], rtol=1e-6, atol=1e-6
    )
    torch.testing.assert_close(
        simplex.solve(there, b[order])[0], simplex.solve(a, b)[0][order], rtol=1e-6, atol=1e-6
    )
    torch.testing.assert_close(
        simplex.project(b[order]), simplex.project(b)[order], rtol=0, atol=1e-15
    )


def test_quadratic_at_the_edges() -> None:
    one = torch.ones(1, dtype=torch.float64)
    assert simplex.quadratic(one[:, None], one).tolist() == [1.0]
    assert simplex.quadratic(0 * one[:, None], one).tolist() == [1.0]
    torch.testing.assert_close(simplex.quadratic(torch.zeros(4, 4), zeros(4)), zeros(4) + 0.25)
    prior = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    torch.testing.assert_close(simplex.quadratic(gram(0, 3, 5), zeros(3), prior, prior), prior)
    held = simplex.quadratic(
        gram(0, 3, 5), zeros(3), torch.tensor([0.2, 0.0, 0.0]), torch.tensor([0.2, 1.0, 1.0])
    )
    assert abs(float(held[0]) - 0.2) < 1e-7  # one weight fixed, the others free


def test_quadratic_names_the_wrong_argument() -> None:
    a = gram(0, 3, 5)
    b = zeros(3)
    with pytest.raises(ConfigError, match=r"lower ones sum to 1.2"):
        simplex.quadratic(a, b, lower=b + 0.4)
    with pytest.raises(ConfigError, match=r"upper ones to 0.6"):
        simplex.quadratic(a, b, upper=b + 0.2)
    with pytest.raises(ConfigError, match="1 of 3 are crossed"):
        simplex.quadratic(a, b, lower=torch.tensor([0.5, 0, 0]), upper=torch.tensor([0.1, 1, 1]))
    for bad in (float("nan"), float("inf")):
        with pytest.raises(DataError, match="not finite"):
            simplex.quadratic(a * bad, b)
        with pytest.raises(DataError, match="not finite"):
            simplex.quadratic(a, b + torch.tensor([0, bad, 0]))


def test_quadratic_does_not_hide_a_failure() -> None:
    concave = -torch.eye(3, dtype=torch.float64)  # no minimum inside, so no multipliers to find
    with pytest.raises(CommonwealError, match="was not solved"):
        simplex.quadratic(concave, zeros(3))


@repeatable
@given(seeds, st.integers(1, 20), st.sampled_from([1e-12, 1.0, 1e12]))
def test_solve_gives_each_client_its_rate(seed: int, k: int, scale: float) -> None:
    u = scale * 10 ** normal(seed + 2, k, 1).clamp(-4, 4) * normal(seed, k, 3 * k)
    rate = uniform(seed, k) + 0.1
    v, singular = simplex.solve(u @ u.T, rate)
    assert not singular
    torch.testing.assert_close(u @ (v @ u), rate, rtol=1e-8, atol=0)


@repeatable
@given(seeds, st.integers(6, 20), st.integers(1, 5))
def test_solve_is_least_squares_when_there_are_more_clients_than_dimensions(
    seed: int, k: int, d: int
) -> None:
    u = torch.nn.functional.normalize(normal(seed, k, d))
    rate = normal(seed + 1, k)
    v, singular = simplex.solve(u @ u.T, rate)
    assert singular
    direction = torch.linalg.pinv(u, rtol=1e-5) @ rate
    torch.testing.assert_close(v @ u, direction, rtol=1e-4, atol=1e-4 * float(direction.norm()))


def test_solve_with_equal_and_zero_updates() -> None:
    u = normal(0, 5, 30)
    u[1] = u[0]
    u[4] = 0
    rate = torch.tensor([1.0, 3.0, 1.0, 1.0, 1.0], dtype=torch.float64)
    v, singular = simplex.solve(u @ u.T, rate)
    assert singular and v[4] == 0 and abs(v[0] - v[1]) < 1e-9
    torch.testing.assert_close((u @ (v @ u))[:4], torch.tensor([2.0, 2, 1, 1], dtype=torch.float64))
    v, singular = simplex.solve(torch.zeros(3, 3), torch.ones(3))
    assert singular and v.tolist() == [0, 0, 0]


@repeatable
@given(seeds, st.integers(1, 12), st.integers(1, 6), st.sampled_from([0.1, 1.0, 30.0]))
def test_best_fixed_is_what_slsqp_finds(seed: int, rounds: int, k: int, scale: float) -> None:
    r = scale * uniform(seed, rounds, k)
    p, value = simplex.best_fixed(r)

    def loss(q: npt.NDArray[np.float64]) -> float:
        return -float(np.log1p(r.numpy() @ q).sum())

    def total(q: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return np.array([q.sum() - 1])

    start = np.full(k, 1 / k)
    found = -loss(
        fmin_slsqp(loss, start, f_eqcons=total, bounds=[(0, 1)] * k, acc=1e-13, iter=500, iprint=0)
    )
    assert (p >= 0).all() and abs(p.sum() - 1) < 1e-12
    assert value == pytest.approx(float((r @ p).log1p().sum()), abs=1e-9)
    assert value == pytest.approx(found, abs=1e-6) and value >= found - 1e-7


@pytest.mark.parametrize(
    ("rounds", "k", "scale"), [(300, 200, 1.0), (300, 200, 1 / 200), (40, 400, 1.0), (400, 10, 9.0)]
)
def test_best_fixed_carries_its_certificate(rounds: int, k: int, scale: float) -> None:
    r = scale * uniform(7, rounds, k)
    p, value = simplex.best_fixed(r)
    gradient = (r / (1 + r @ p)[:, None]).sum(0)
    assert gradient.max() - gradient @ p <= 1e-7
    assert value >= float(r.log1p().sum(0).max()) - 1e-8  # no single client would have been better


def test_best_fixed_at_the_edges() -> None:
    p, value = simplex.best_fixed(torch.zeros(0, 4))
    assert p.tolist() == [0.25] * 4 and value == 0
    p, value = simplex.best_fixed(torch.zeros(3, 2))
    assert p.tolist() == [0.5, 0.5] and value == 0
    p, _ = simplex.best_fixed(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    torch.testing.assert_close(p, zeros(2) + 0.5)
    with pytest.raises(DataError, match="above -1"):
        simplex.best_fixed(torch.tensor([[0.5, -2.0]]))


def test_arguments_are_left_alone() -> None:
    a = gram(0, 6, 3)
    b = normal(1, 6)
    low = zeros(6)
    high = zeros(6) + 0.5
    r = b.abs().repeat(3, 1)
    before = [x.clone() for x in (a, b, low, high, r)]
    p = simplex.quadratic(a, b, low, high)
    simplex.project(b)
    simplex.solve(a, b)
    simplex.best_fixed(r)
    simplex.quadratic(a, b, p, p).mul_(2)  # what comes back is the caller's own
    assert abs(p.sum() - 1) < 1e-12
    assert all(torch.equal(x, y) for x, y in zip((a, b, low, high, r), before, strict=True))


def test_public_names() -> None:
    projections = {"project", "project_ball", "project_hull", "project_inside"}
    assert set(simplex.__all__) == projections | {"best_fixed", "minimize", "quadratic", "solve"}


@pytest.mark.parametrize(("k", "pull"), [(2, 0.1), (5, 0.01), (40, 1e-4), (3, 10.0)])
def test_project_inside_is_optimal(k: int, pull: float) -> None:
    v = torch.randn(k, generator=torch.Generator().manual_seed(k), dtype=torch.float64)
    p = simplex.project_inside(v, pull)
    gradient = p - v - pull / p  # equal for all entries at the minimiser: none is on the boundary
    assert p.min() > 0 and p.sum().item() == pytest.approx(1, abs=1e-12)
    assert (gradient - gradient.mean()).abs().max() < 1e-6 * max(1.0, gradient.abs().max().item())


def slsqp(v: Tensor, centre: Tensor, radius: float) -> Tensor:
    """The nearest point of the simplex in the chi-square ball, by a general solver."""
    c = centre.numpy()
    target = v.numpy()

    def inside(p: Array) -> Array:
        return np.array([radius - 1 - ((p - c) ** 2 / c).sum()])

    def distance(p: Array) -> float:
        return float(0.5 * ((p - target) ** 2).sum())

    def total(p: Array) -> Array:
        return np.array([p.sum() - 1])

    bounds = [(0.0, 1.0)] * len(c)
    found = fmin_slsqp(
        distance,
        c,
        bounds=bounds,
        f_eqcons=total,
        f_ieqcons=inside,
        iter=500,
        acc=1e-14,
        iprint=0,
    )
    return torch.as_tensor(np.asarray(found))


@pytest.mark.parametrize("radius", [1.001, 1.1, 2.0, 51.0])
@pytest.mark.parametrize("k", [2, 5, 12])
def test_project_ball_is_what_a_general_solver_finds(k: int, radius: float) -> None:
    v = 2 * normal(k, k)
    centre = uniform(7 * k, k) + 0.1
    centre = centre / centre.sum()
    p = simplex.project_ball(v, centre, radius)
    assert float(p.sum()) == pytest.approx(1, abs=1e-12)
    assert float(p.min()) >= 0
    assert float(1 + ((p - centre) ** 2 / centre).sum()) <= radius + 1e-9
    torch.testing.assert_close(p, slsqp(v, centre, radius), rtol=0, atol=2e-5)


def test_project_ball_of_a_wide_ball_is_the_projection_on_the_simplex() -> None:
    v = normal(3, 9)
    centre = torch.full((9,), 1 / 9, dtype=torch.float64)
    torch.testing.assert_close(simplex.project_ball(v, centre, 9.0), simplex.project(v))
    assert float((simplex.project_ball(v, centre, 1 + 1e-12) - centre).abs().max()) < 1e-6


def test_project_hull_keeps_points_inside_and_finds_corners() -> None:
    points = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    v = normal(5, 3)
    nearest = simplex.project_hull(v, points)
    torch.testing.assert_close(nearest, simplex.project(v), rtol=0, atol=1e-8)
    inside = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    torch.testing.assert_close(simplex.project_hull(inside, points), inside, rtol=0, atol=1e-7)


def test_a_coordinate_at_the_threshold_without_a_pull_is_zero() -> None:
    corner = torch.tensor([1.0, 0.0], dtype=torch.float64)
    assert simplex.project_inside(corner, torch.zeros(2, dtype=torch.float64)).tolist() == [
        1.0,
        0.0,
    ]


@pytest.mark.parametrize("radius", [1.01, 1.2, 1.6, 9.0])
def test_a_ball_and_a_hull_together_are_what_a_general_solver_finds(radius: float) -> None:
    points = np.array([[1.0, 0.0, 0.0, 0.0], [0.0, 0.5, 0.5, 0.0], [0.1, 0.2, 0.3, 0.4]])
    c, v = np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.9, -0.2, 0.8, 0.1])

    def inside(a: Array) -> Array:
        return np.array([radius - ((a @ points) ** 2 / c).sum()])

    def distance(a: Array) -> float:
        return float(((a @ points - v) ** 2).sum())

    def total(a: Array) -> Array:
        return np.array([a.sum() - 1])

    best = fmin_slsqp(
        distance,
        np.array([0.05, 0.05, 0.9]),
        bounds=[(0.0, 1.0)] * 3,
        f_eqcons=total,
        f_ieqcons=inside,
        iter=500,
        acc=1e-14,
        iprint=0,
    )
    tensors = [torch.from_numpy(array) for array in (v, c, points)]
    found = simplex.project_ball(tensors[0], tensors[1], radius, tensors[2]).numpy()
    assert (found**2 / c).sum() <= radius + 1e-9
    np.testing.assert_allclose(found, np.asarray(best) @ points, atol=2e-6)


def test_a_hull_outside_of_the_ball_is_an_error() -> None:
    c = torch.tensor([0.1, 0.2, 0.3, 0.4]).double()
    points = torch.tensor([[0.0, 0.5, 0.5, 0.0], [0.0, 0.0, 1.0, 0.0]])
    with pytest.raises(ConfigError, match=r"give at least 2$"):
        simplex.project_ball(c, c, 1.2, points)
