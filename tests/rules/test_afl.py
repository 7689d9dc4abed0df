"""AFL against projection by bisection, its regularised fixed points, the two-domain example."""

import math

import pytest
import torch
from torch import Tensor

from commonweal.base.errors import ConfigError
from commonweal.base.tensors import State
from commonweal.data.population import Setting
from commonweal.protocols.servers import SGD, Optimistic, Polyak, ServerOptimizer
from commonweal.rules import AFL, FedAvg, Rule
from rule_helpers import build, play, reports, uniforms, updates_of, vowel, weigh


def bisected(v: Tensor) -> Tensor:
    """The nearest point of the simplex: max(v - s, 0) with the s for which it sums to 1."""
    low = float(v.min()) - 1
    high = float(v.max())
    for _ in range(200):
        s = (low + high) / 2
        low, high = (s, high) if (v - s).clamp(min=0).sum() > 1 else (low, s)
    return (v - s).clamp(min=0)


def lam(*values: float) -> State:
    """The state of clients 0..K-1 that have all reported before."""
    p = torch.tensor(values, dtype=torch.float64)
    return {"lam": p, "t": torch.tensor(0), "mean": 0 * p}


@pytest.mark.parametrize("clients", [2, 5, 40])
@pytest.mark.parametrize("lr", [0.01, 0.3, 100.0])
def test_lam_is_projected_ascent(clients: int, lr: float) -> None:
    rule = AFL(lr=lr)
    state = rule.init(clients)
    expected = torch.full((clients,), 1 / clients, dtype=torch.float64)
    for t in range(30):
        losses = 3 * uniforms(t, clients)
        weights, state = play(rule, reports(losses), state)
        expected = bisected(expected + lr * losses)
        torch.testing.assert_close(state["lam"], expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(weights, expected, rtol=1e-12, atol=1e-12)


def test_by_hand() -> None:
    """(1/2, 1/2) + 0.1 (1, 3) = (0.6, 0.8), less 0.2 each."""
    assert weigh(AFL(), reports([1.0, 3.0])).tolist() == pytest.approx([0.4, 0.6], rel=1e-14)


def test_it_starts_uniform() -> None:
    assert AFL().init(4)["lam"].tolist() == [0.25] * 4


def test_a_large_step_goes_to_the_worst_client() -> None:
    assert weigh(AFL(lr=1e6), reports([1.0, 3.0, 2.0])).tolist() == [0.0, 1.0, 0.0]


def test_the_long_run_finds_the_worst_client() -> None:
    rule = AFL(lr=0.05)
    state = rule.init(4)
    for _ in range(200):
        weights, state = play(rule, reports([0.5, 0.9, 1.0, 0.2]), state)
    assert weights.tolist() == [0.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize(("absent", "gain"), [("zero", 0.0), ("mean", 0.15)])
def test_absent_clients_count_with_an_imputed_loss(absent: str, gain: float) -> None:
    """Losses of 2 and 1: their mean of 1.5 times the step of 0.1."""
    told = reports([2.0, 1.0], ids=[3, 1], clients=4)
    weights, state = play(build("afl", absent=absent), told, lam(0.25, 0.25, 0.25, 0.25))
    other = 0.25 + gain
    expected = bisected(torch.tensor([other, 0.35, other, 0.45], dtype=torch.float64))
    torch.testing.assert_close(state["lam"], expected, rtol=1e-12, atol=0)
    both = expected[torch.tensor([3, 1])]
    torch.testing.assert_close(weights, both / both.sum(), rtol=1e-12, atol=0)


def test_a_cohort_without_any_weight_gets_equal_weights() -> None:
    told = reports([0.0, 0.0], ids=[0, 1], clients=3)
    weights, state = play(AFL(), told, lam(0.0, 0.0, 1.0))
    assert weights.tolist() == [0.5, 0.5]
    assert state["lam"].tolist() == [0.0, 0.0, 1.0]


def test_absent_clients_count_with_what_they_last_reported() -> None:
    """Client 0 had twice its cohort's mean, client 1 none: both times the mean of 3 to come."""
    rule = AFL(absent="last")
    _, state = play(rule, reports([4.0, 0.0], ids=[0, 1], clients=4), rule.init(4))
    before = state["lam"]
    _, state = play(rule, reports([2.0, 4.0], ids=[2, 3], clients=4), state)
    gains = torch.tensor([0.6, 0.0, 0.2, 0.4], dtype=torch.float64)
    torch.testing.assert_close(state["lam"], bisected(before + gains), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("absent", "kept"), [("mean", True), ("last", True), ("zero", False)])
def test_sampled_cohorts_do_not_forget_the_worst_client(absent: str, kept: bool) -> None:
    """100 clients, ten per round, client 0 the worst off. Imputed losses of 0 forget it."""
    rule = build("afl", absent=absent)
    state = rule.init(100)
    generator = torch.Generator().manual_seed(0)
    losses = 0.5 + 0.5 * uniforms(3, 100)
    losses[0] = 1.5
    held = []
    for _ in range(400):
        ids = torch.randperm(100, generator=generator)[:10]
        _, state = play(rule, reports(losses[ids], ids=ids.tolist(), clients=100), state)
        held.append(state["lam"][0].item())
    average = sum(held[200:]) / 200
    assert average > 0.5 if kept else average < 0.2


@pytest.mark.parametrize("centre", ["sizes", "uniform"])
def test_a_radius_keeps_lam_in_the_chi_square_ball(centre: str) -> None:
    """Its end is the maximiser of <lam, f> over the ball: c + a multiple of c (f - <c, f>)."""
    f = torch.tensor([0.5, 1.0, 1.2, 0.9], dtype=torch.float64)
    sizes = torch.tensor([40, 10, 20, 30])
    c = sizes / sizes.sum() if centre == "sizes" else torch.full((4,), 0.25)
    rule = build("afl", radius=1.04, centre=centre)
    state = rule.init(4)
    for _ in range(400):
        _, state = play(rule, reports(f, sizes=sizes.tolist()), state)
    step = c.double() * (f - c.double() @ f)
    expected = c + step * (0.04 / (step.square() / c).sum()).sqrt()
    torch.testing.assert_close(state["lam"], expected.double(), rtol=1e-6, atol=0)


def test_the_radius_of_two_domains_is_the_papers() -> None:
    """Section 5.1 on Adult: doctorates have 1.2 % of the rows."""
    share = 594 / 48842
    setting = Setting(clients=2, sizes=torch.tensor([594, 48248]))
    for r in (1.01, 1.5, 6.0):
        rule = AFL(radius=r, lr=10.0)
        _, state = play(rule, reports([5.0, 1.0], sizes=[594, 48248]), rule.init(setting))
        largest = share + math.sqrt((r - 1) * share * (1 - share))
        assert float(state["lam"][0]) == pytest.approx(largest, rel=1e-9)


def test_a_radius_beyond_the_simplex_is_none() -> None:
    told = reports([1.0, 3.0, 2.0])
    torch.testing.assert_close(weigh(AFL(radius=100.0), told), weigh(AFL(), told))


def test_a_prior_for_every_client_converges_where_it_balances_the_losses() -> None:
    """The maximiser of <lam, f> + sum (a_k - 1) log lam_k: lam_k = (a_k - 1) / (s - f_k)."""
    f = torch.tensor([0.5, 1.0, 1.2], dtype=torch.float64)
    a = torch.tensor([3.0, 1.5, 1.2], dtype=torch.float64)
    rule = AFL(lr=0.03, concentration=(3.0, 1.5, 1.2))
    state = rule.init(3)
    for _ in range(1500):
        _, state = play(rule, reports(f), state)
    s = f + (a - 1) / state["lam"]
    torch.testing.assert_close(s, s[:1].expand(3), rtol=1e-7, atol=0)


def test_a_prior_for_other_clients_is_an_error() -> None:
    with pytest.raises(ConfigError, match="2 concentrations for 3 clients"):
        AFL(concentration=(1.0, 2.0)).init(3)


def test_a_radius_and_a_prior_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="give a concentration, or radius"):
        AFL(radius=1.1, concentration=2.0)


def test_lagged_weighs_with_the_lam_before() -> None:
    rule = AFL(lagged=True)
    before = lam(0.2, 0.3, 0.5)
    weights, after = play(rule, reports([1.0, 3.0, 2.0]), before)
    assert torch.equal(weights, before["lam"])
    expected = AFL()(reports([1.0, 3.0, 2.0]), before).state["lam"]
    torch.testing.assert_close(after["lam"], expected, rtol=0, atol=0)
    some = weigh(rule, reports([1.0, 3.0], ids=[2, 0], clients=3), before)
    assert some.tolist() == pytest.approx([5 / 7, 2 / 7], rel=1e-14)


def test_optimistic_steps_along_twice_this_gradient_less_the_last() -> None:
    rule = AFL(lr=0.05, optimistic=True)
    _, state = play(rule, reports(uniforms(0, 5)), rule.init(5))
    expected = state["lam"]
    last = uniforms(0, 5)
    for t in range(1, 20):
        losses = uniforms(t, 5)
        _, state = play(rule, reports(losses), state)
        expected = bisected(expected + 0.05 * (2 * losses - last))
        last = losses
        torch.testing.assert_close(state["lam"], expected, rtol=1e-11, atol=1e-12)


def test_optimistic_first_step_is_a_plain_one() -> None:
    told = reports([1.0, 3.0])
    torch.testing.assert_close(weigh(AFL(optimistic=True), told), weigh(AFL(), told))


def test_mu_is_the_gradient_of_the_skewness_term() -> None:
    """sec. 5: -2 mu lam_k / mbar_k is added, mbar_k = n_k / sum n."""
    told = reports([1.0, 2.0], sizes=[1, 3])
    before = lam(0.4, 0.6)
    expected = bisected(
        torch.tensor([0.4 + 0.1 * (1 - 2 * 0.4 / 0.25), 0.6 + 0.1 * (2 - 2 * 0.6 / 0.75)]).double()
    )
    after = AFL(mu=1.0)(told, before).state["lam"]
    torch.testing.assert_close(after, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("mu", [1.0, 5.0, 100.0])
def test_mu_converges_between_the_losses_and_the_sizes(mu: float) -> None:
    """<lam, f> - mu sum lam^2 / mbar is largest at mbar (1 + (f - <mbar, f>) / (2 mu)), if > 0."""
    f = torch.tensor([0.5, 1.0, 1.2]).double()
    sizes = torch.tensor([1.0, 2.0, 5.0]).double()
    rule = AFL(lr=0.05 / mu, mu=mu)
    state = rule.init(3)
    for _ in range(500):
        _, state = play(rule, reports(f, sizes=sizes), state)
    share = sizes / 8
    torch.testing.assert_close(
        state["lam"], share * (1 + (f - share @ f) / (2 * mu)), rtol=1e-9, atol=0
    )


def dirichlet_optimum(f: Tensor, a: float) -> Tensor:
    """The maximiser of <lam, f> + (a - 1) sum log lam: lam_k = (a - 1) / (s - f_k)."""
    low = float(f.max()) + 1e-12
    high = float(f.max()) + len(f) * a + 10
    for _ in range(200):
        s = (low + high) / 2
        low, high = (s, high) if ((a - 1) / (s - f)).sum() > 1 else (low, s)
    return (a - 1) / (s - f)


@pytest.mark.parametrize("concentration", [1.1, 1.5, 3.0])
def test_concentration_converges_where_the_prior_balances_the_losses(concentration: float) -> None:
    f = torch.tensor([0.5, 1.0, 1.2], dtype=torch.float64)
    rule = AFL(lr=0.03, concentration=concentration)
    state = rule.init(3)
    for _ in range(1500):
        _, state = play(rule, reports(f), state)
    torch.testing.assert_close(state["lam"], dirichlet_optimum(f, concentration), rtol=1e-7, atol=0)


@pytest.mark.parametrize("clients", [5, 10, 100])
def test_concentration_converges_for_more_clients_at_the_default_lr(clients: int) -> None:
    f = torch.linspace(0.5, 1.5, clients, dtype=torch.float64)
    rule = AFL(concentration=2.0)
    state = rule.init(clients)
    for _ in range(300):
        _, state = play(rule, reports(f), state)
    torch.testing.assert_close(state["lam"], dirichlet_optimum(f, 2.0), rtol=1e-4, atol=0)


def test_concentration_one_is_no_prior() -> None:
    told = reports([1.0, 3.0])
    assert torch.equal(weigh(AFL(concentration=1.0), told), weigh(AFL(), told))


def domain_losses(logit: float) -> tuple[list[float], list[list[float]]]:
    """Proposition 1: one point x, of class 1 in domain 1 and of either in domain 2.

    Returns the losses and their gradients in the logit.
    """
    p = 1 / (1 + math.exp(-logit))
    losses = [-math.log(p), -(math.log(p) + math.log(1 - p)) / 2]
    return losses, [[p - 1], [p - 0.5]]


def played(rule: Rule, rounds: int, lr: float) -> tuple[float, Tensor, Tensor]:
    """The averaged logit, the averaged lam, and the last weights."""
    step = Polyak(SGD(lr=lr))
    w = torch.tensor([1.5], dtype=torch.float64)
    state = rule.init(2)
    moved = step.init(w)
    total = torch.zeros(2, dtype=torch.float64)
    for _ in range(rounds):
        losses, gradients = domain_losses(float(w))
        told = reports(losses, updates=gradients)
        weights, state = play(rule, told, state)
        total = total + weights
        w, moved = step(w, weights @ updates_of(told), moved)
    return float(step.output(w, moved)), total / rounds, weights


@pytest.mark.parametrize("rule", [AFL(), AFL(lagged=True), AFL(optimistic=True)])
def test_proposition_1_the_game_ends_at_log_2(rule: AFL) -> None:
    """The worst domain's best loss is log 2, at p = 1/2, where domain 2 has gradient 0."""
    logit, average, last = played(rule, 1500, 0.5)
    assert max(domain_losses(logit)[0]) == pytest.approx(math.log(2), abs=5e-3)
    assert average.tolist() == pytest.approx([0.0, 1.0], abs=0.02)
    assert last.tolist() == pytest.approx([0.0, 1.0], abs=1e-3)


def test_proposition_1_averaging_ends_at_log_4_over_root_3() -> None:
    logit, _, _ = played(FedAvg(), 1500, 0.5)
    worst = max(domain_losses(logit)[0])
    assert worst == pytest.approx(math.log(4 / math.sqrt(3)), abs=5e-3)
    assert worst - math.log(2) == pytest.approx(math.log(2 / math.sqrt(3)), abs=1e-2)


@pytest.mark.parametrize("optimistic", [True, False])
def test_optimistic_players_meet_where_plain_ones_go_in_circles(optimistic: bool) -> None:
    """f = 1 + w and 1 - w: the game's value is at w = 0, lam = (1/2, 1/2)."""
    step: ServerOptimizer = Optimistic(SGD(lr=0.1)) if optimistic else SGD(lr=0.1)
    rule = AFL(lr=0.1, optimistic=optimistic)
    w = torch.tensor([0.3], dtype=torch.float64)
    moved = step.init(w)
    state = rule.init(2)
    distances = []
    for _ in range(2000):
        x = float(w)
        told = reports([1 + x, 1 - x], updates=[[1.0], [-1.0]])
        # Both players step from what they knew before this round.
        weights = state["lam"]
        _, state = play(rule, told, state)
        w, moved = step(w, weights @ updates_of(told), moved)
        distances.append(abs(float(w)) + abs(float(state["lam"][0]) - 0.5))
    assert (max(distances[-100:]) < 0.01) == optimistic


def test_an_inner_equilibrium_is_found_by_the_averages() -> None:
    """f = w^2 / 2 and (w - 1)^2: equal at w = 2 - sqrt 2, where lam w + (1 - lam) 2 (w - 1) = 0."""
    step = Polyak(SGD(lr=0.1))
    w = torch.tensor([1.0], dtype=torch.float64)
    rule = AFL(lr=0.1)
    state = rule.init(2)
    moved = step.init(w)
    total = torch.zeros(2, dtype=torch.float64)
    for _ in range(3000):
        x = float(w)
        told = reports([x * x / 2, (x - 1) ** 2], updates=[[x], [2 * (x - 1)]])
        weights, state = play(rule, told, state)
        total = total + weights
        w, moved = step(w, weights @ updates_of(told), moved)
    best = 2 - math.sqrt(2)
    first = 2 * (1 - best) / (2 - best)
    assert float(step.output(w, moved)) == pytest.approx(best, abs=5e-3)
    assert (total / 3000).tolist() == pytest.approx([first, 1 - first], abs=5e-3)


def million() -> tuple[Tensor, Tensor, Tensor]:
    """A round of three among a million: the weights, lam, and lam as it should be."""
    ids = [7, 999_999, 123_456]
    clients = 10**6
    told = reports([1.0, 2.0, 1.0], ids=ids, clients=clients)
    rule = AFL(absent="zero")
    weights, state = play(rule, told, rule.init(clients))
    # The 0.4 that three have gained is taken from all equally, and no one is at 0 then.
    expected = torch.full((clients,), 6e-7, dtype=torch.float64)
    expected[ids] += torch.tensor([0.1, 0.2, 0.1], dtype=torch.float64)
    return weights, state["lam"], expected


def test_a_million_clients() -> None:
    weights, lam, expected = million()
    assert lam.sum().item() == pytest.approx(1, abs=1e-9)
    torch.testing.assert_close(lam, expected, rtol=1e-5, atol=0)
    assert weights.tolist() == pytest.approx([0.25, 0.5, 0.25], abs=1e-5)


def test_a_million_clients_to_rounding() -> None:
    _, lam, expected = million()
    torch.testing.assert_close(lam, expected, rtol=1e-9, atol=0)


def test_an_experiment_runs_with_every_option() -> None:
    rule = {
        "name": "afl",
        "mu": 0.1,
        "concentration": 1.05,
        "absent": "last",
        "optimistic": True,
        "lagged": True,
        "lr": 0.01,
    }
    for done in vowel(rule, cohort=6, server={"name": "polyak", "step": {"name": "sgd"}}):
        assert sum(done.weights.values()) == pytest.approx(1, abs=1e-9)


def test_no_concentration_is_an_error() -> None:
    with pytest.raises(ConfigError, match="concentration"):
        build("afl", concentration=())


@pytest.mark.parametrize("wrong", [{"lr": 0.0}, {"mu": -1.0}, {"concentration": 0.0}])
def test_parameters_out_of_range_are_errors(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))} = {next(iter(wrong.values()))}"):
        build("afl", **wrong)


def nearest_in_hull(v: Tensor, points: Tensor) -> Tensor:
    """By Frank-Wolfe steps towards the best corner, with the exact step length."""
    p = points[0]
    for _ in range(20_000):
        corner = points[int((points @ (p - v)).argmin())]
        step = corner - p
        length = float(step @ step)
        if length == 0:
            break
        p = p + min(1.0, max(0.0, float(step @ (v - p)) / length)) * step
    return p


def test_lam_stays_in_the_hull_of_given_mixtures() -> None:
    mixtures = ((0.5, 0.5, 0.0, 0.0), (0.0, 0.2, 0.8, 0.0), (0.1, 0.1, 0.1, 0.7))
    points = torch.tensor(mixtures, dtype=torch.float64)
    rule = AFL(lr=0.2, mixtures=mixtures)
    state = rule.init(4)
    expected = points.mean(0)
    torch.testing.assert_close(state["lam"], expected)
    for t in range(6):
        losses = 3 * uniforms(t, 4)
        _, state = play(rule, reports(losses), state)
        expected = nearest_in_hull(expected + 0.2 * losses, points)
        torch.testing.assert_close(state["lam"], expected, rtol=0, atol=2e-4)


def test_the_worst_given_mixture_is_found_not_the_worst_client() -> None:
    """Client 2 is worst, but only in a mixture whose mean loss, 1.9, is not the largest."""
    rule = AFL(mixtures=((0.0, 1.0, 0.0), (0.7, 0.0, 0.3)))
    state = rule.init(3)
    for _ in range(300):
        weights, state = play(rule, reports([1.0, 2.0, 4.0]), state)
    torch.testing.assert_close(weights, torch.tensor([0.0, 1.0, 0.0]).double(), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("mixtures", "match"),
    [
        (((0.5, 0.4),), "sums to 0.9"),
        (((0.5, 0.5), (1.0,)), "is not a mixture of 2 clients"),
        (((1.5, -0.5),), "is not a mixture of 2 clients"),
        (((0.5, math.nan),), "sums to nan"),
        ((), "give at least one"),
    ],
)
def test_mixtures_that_are_none(mixtures: tuple[tuple[float, ...], ...], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        AFL(mixtures=mixtures)


def test_mixtures_are_of_all_clients() -> None:
    with pytest.raises(ConfigError, match="mixtures of 2 clients, but there are 3"):
        AFL(mixtures=((0.5, 0.5),)).init(3)
    with pytest.raises(ConfigError, match="at least 1"):
        AFL(mixtures=((0.5, 0.5),), radius=0.1)


@pytest.mark.parametrize("lagged", [False, True])
def test_the_averaged_mixture_is_the_mean_of_all_rounds(lagged: bool) -> None:
    rule = AFL(lagged=lagged)
    state = rule.init(5)
    assert rule.averaged(state, 5) is None
    seen = []
    for t in range(7):
        weights, state = play(rule, reports(uniforms(t, 5)), state)
        seen.append(weights)
    averaged = rule.averaged(state, 5)
    assert averaged is not None
    torch.testing.assert_close(averaged, torch.stack(seen).mean(0))


def test_a_cohort_of_one_that_moves_nothing_is_warned_of() -> None:
    alone = reports([2.0], ids=[1], clients=3)
    for absent in ("mean", "last"):
        rule = build("afl", absent=absent)
        decision = rule(alone, rule.init(3))
        torch.testing.assert_close(decision.state["lam"], rule.init(3)["lam"])
        assert "a single reporter says nothing" in decision.warnings[0]
    assert AFL()(reports([2.0, 1.0], ids=[1, 2], clients=3), AFL().init(3)).warnings == ()
    assert AFL()(reports([2.0]), AFL().init(1)).warnings == ()


def test_a_client_that_joins_late_has_no_prior() -> None:
    late, known = AFL(concentration=(3.0, 3.0)), AFL(concentration=(3.0, 3.0, 1.0))
    told = reports([1.0, 2.0, 4.0])
    weights, _ = play(late, told, late.init(2))
    expected, _ = play(known, told, late.init(2))
    torch.testing.assert_close(weights, expected, rtol=1e-12, atol=0)
