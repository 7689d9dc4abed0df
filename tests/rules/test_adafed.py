"""AdaFed against Gram-Schmidt in several orders, the rates of Theorem 4.1, the descent of 5.1."""

from itertools import permutations
from pathlib import Path
from statistics import fmean

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import commonweal
from commonweal.app.ui.views import run_view
from commonweal.base.errors import ConfigError
from commonweal.clients import Client
from commonweal.engines.simulator import Simulator
from commonweal.protocols.algorithm import Request
from commonweal.protocols.averaging import Averaging
from commonweal.protocols.servers import SGD
from commonweal.record.record import Record
from commonweal.report.run_table import run_summary
from commonweal.rules import AdaFed, Directions, FedAvg, FedMGDA
from commonweal.study.comparison import Comparison
from commonweal.study.curves import improved_by_round
from commonweal.task.task import Task
from helpers import close, federation, loaded, module, torch_loss
from rule_helpers import (
    build,
    decide,
    normals,
    reports,
    uniforms,
    updates_of,
    vowel,
    vowel_experiment,
    warnings,
    weigh,
)


def gram_schmidt(U: Tensor, losses: Tensor, gamma: float, order: tuple[int, ...]) -> Tensor:
    """The direction by eqs. 5, 6 and 14, one client after the other."""
    kept: list[Tensor] = []
    for k in order:
        g = U[k].clone()
        scale = losses[k] ** gamma
        for other in kept:
            share = (U[k] @ other) / (other @ other)
            g = g - share * other
            scale = scale - share
        kept.append(g / scale)
    inverse = torch.stack([1 / (g @ g) for g in kept])
    return (inverse / inverse.sum()) @ torch.stack(kept)


@pytest.mark.parametrize("gamma", [0.0, 0.1, 1.0, 2.5, 5.0])
@pytest.mark.parametrize("seed", range(3))
def test_it_is_the_papers_gram_schmidt_in_every_order(gamma: float, seed: int) -> None:
    U = normals(seed, 4, 10) + 0.3
    losses = 0.3 + 2 * uniforms(seed, 4)
    got = weigh(AdaFed(gamma, scale="none"), reports(losses, updates=U)) @ U
    for order in permutations(range(4)):
        torch.testing.assert_close(
            got, gram_schmidt(U, losses, gamma, order), rtol=1e-7, atol=1e-9 * float(got.norm())
        )


def test_by_hand() -> None:
    """Orthogonal updates of length 1 and 2 with f = (1, 2): v = (1, 1/2), <f, v> = 2."""
    told = reports([1.0, 2.0], updates=[[1.0, 0.0], [0.0, 2.0]])
    assert weigh(AdaFed(1.0, scale="none"), told).tolist() == pytest.approx(
        [1 / 2, 1 / 4], rel=1e-14
    )


@pytest.mark.parametrize("scale", ["largest", "theorem", "mean", "none"])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 5.0])
def test_rates_are_proportional_to_a_power_of_the_loss(scale: str, gamma: float) -> None:
    """Theorem 4.1, both conditions: everyone descends, and by f^gamma."""
    U = normals(0, 6, 20)
    losses = 0.2 + 2 * uniforms(9, 6)
    rates = U @ (weigh(build("adafed", gamma=gamma, scale=scale), reports(losses, updates=U)) @ U)
    assert (rates > 0).all()
    torch.testing.assert_close(rates / rates[0], (losses / losses[0]) ** gamma, rtol=1e-9, atol=0)


@pytest.mark.parametrize("seed", range(3))
def test_gamma_zero_is_the_shortest_point_of_the_affine_hull(seed: int) -> None:
    U = normals(seed, 4, 9)
    got = weigh(AdaFed(0.0, scale="none"), reports([0.3, 1.0, 2.0, 0.1], updates=U))
    assert got.sum().item() == pytest.approx(1, rel=1e-12)
    # From the first update along the differences: an ordinary least-squares problem.
    differences = (U[1:] - U[0]).T
    along = torch.linalg.lstsq(differences, -U[0][:, None]).solution
    torch.testing.assert_close(got @ U, U[0] + (differences @ along)[:, 0], rtol=1e-9, atol=1e-12)


def test_weights_may_be_negative() -> None:
    told = reports([1.0, 1.0], updates=[[1.0, 0.0], [3.0, 1.0]])
    assert weigh(AdaFed(1.0, "mean"), told)[1] < 0


@pytest.mark.parametrize("gamma", [0.5, 1.0, 3.0])
def test_scales_differ_by_a_number_only(gamma: float) -> None:
    U = normals(2, 4, 7)
    losses = 0.2 + uniforms(2, 4)
    none, theorem, mean, largest = (
        weigh(build("adafed", gamma=gamma, scale=scale), reports(losses, updates=U))
        for scale in ("none", "theorem", "mean", "largest")
    )
    torch.testing.assert_close(largest, none * losses.max() ** gamma, rtol=1e-12, atol=0)
    torch.testing.assert_close(theorem, none * losses.min() ** gamma, rtol=1e-12, atol=0)
    torch.testing.assert_close((mean @ U).norm(), U.mean(0).norm(), rtol=1e-10, atol=0)
    torch.testing.assert_close(mean / mean[0], none / none[0], rtol=1e-10, atol=0)


@pytest.mark.parametrize("scale", ["largest", "theorem", "mean", "bounded"])
def test_these_scales_do_not_depend_on_the_losses_unit(scale: str) -> None:
    U = normals(3, 4, 7)
    losses = 0.2 + uniforms(3, 4)
    rule = build("adafed", gamma=5.0, scale=scale)
    once = weigh(rule, reports(losses, updates=U))
    for unit in (0.1, 1e-37, 1e37):
        other = weigh(rule, reports(unit * losses, updates=U))
        torch.testing.assert_close(once, other, rtol=1e-9, atol=0)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0])
def test_no_loss_rises_with_the_theorems_step(seed: int, gamma: float) -> None:
    """Theorem 5.1: losses of curvature L, gradients as updates, a step of 2 min f^gamma / L."""
    L = 3.0
    centres = normals(seed, 5, 8)
    w = normals(seed + 70, 8)

    def losses(at: Tensor) -> Tensor:
        return 0.1 + L / 2 * (at - centres).square().sum(1)

    U = L * (w - centres)
    step = 1.999 / L * weigh(AdaFed(gamma, "theorem"), reports(losses(w), updates=U)) @ U
    assert (losses(w - step) < losses(w)).all()


@pytest.mark.parametrize("scale", ["largest", "theorem", "mean", "none"])
def test_losses_of_zero_take_the_mean_step(scale: str) -> None:
    told = reports([0.0, 0.0], updates=[[1.0, 0.0], [0.0, 3.0]])
    assert weigh(build("adafed", scale=scale), told).tolist() == pytest.approx([0.5, 0.5])


def test_one_loss_of_zero_is_not_moved() -> None:
    U = normals(4, 3, 6)
    told = reports([0.0, 1.0, 0.5], updates=U)
    weights = weigh(AdaFed(1.0, "mean"), told)
    rates = U @ (weights @ U)
    assert rates[0].item() == pytest.approx(0, abs=1e-12)
    assert rates[1].item() == pytest.approx(2 * rates[2].item(), rel=1e-9)
    assert rates[2] > 0  # the smallest loss above 0 sets the step, so that not all stand still


@pytest.mark.parametrize("gamma", [0.0, 1.0])
def test_zero_updates_move_nothing_and_give_a_warning(gamma: float) -> None:
    rule = AdaFed(gamma, "mean")
    told = reports([1.0, 2.0], updates=torch.zeros(2, 3))
    assert torch.isfinite(weigh(rule, told)).all()
    assert len(warnings(rule, told)) == 1


def test_one_zero_update_leaves_the_others_their_rates() -> None:
    U = normals(5, 4, 6)
    U[2] = 0
    rule = AdaFed(1.0, "mean")
    losses = torch.tensor([0.5, 1.0, 3.0, 2.0]).double()
    told = reports(losses, updates=U)
    weights = weigh(rule, told)
    rates = U @ (weights @ U)
    others = torch.tensor([0, 1, 3])
    torch.testing.assert_close(
        rates[others] / rates[0], losses[others] / losses[0], rtol=1e-9, atol=0
    )
    assert weights[2] == 0
    assert "singular" in warnings(rule, told)[0]


def test_equal_updates_with_unequal_losses_share_what_they_ask() -> None:
    """<u, D> cannot be both 1 and 3: least squares makes it proportional to their mean, 2."""
    u = torch.tensor([1.0, 0.0, 0.0]).double()
    v = torch.tensor([0.0, 1.0, 0.0]).double()
    rule = AdaFed(1.0, "mean")
    told = reports([1.0, 3.0, 1.0], updates=torch.stack([u, u, v]))
    weights = weigh(rule, told)
    assert weights[0].item() == pytest.approx(weights[1].item(), rel=1e-9)
    D = weights @ updates_of(told)
    assert (u @ D).item() == pytest.approx(2 * (v @ D).item(), rel=1e-9)
    assert "singular" in warnings(rule, told)[0]


def test_more_clients_than_parameters_is_least_squares() -> None:
    U = normals(6, 7, 3) + 1
    losses = 0.5 + uniforms(6, 7)
    rule = AdaFed(1.0, scale="none")
    told = reports(losses, updates=U)
    weights = weigh(rule, told)
    assert torch.isfinite(weights).all()
    assert "singular" in warnings(rule, told)[0]
    # Rates are fitted in units of each update's own length.
    units = U / U.norm(dim=1, keepdim=True)
    fitted = torch.linalg.lstsq(units, (losses / U.norm(dim=1))[:, None]).solution[:, 0]
    D = weights @ U
    torch.testing.assert_close(D / D.norm(), fitted / fitted.norm(), rtol=1e-8, atol=1e-10)


def test_ordinary_updates_give_no_warning() -> None:
    rule = AdaFed(1.0, "mean")
    told = reports([1.0, 2.0, 3.0], updates=normals(7, 3, 5))
    assert warnings(rule, told) == ()


def test_a_nearly_converged_client_is_not_singular() -> None:
    U = normals(8, 3, 5) * torch.tensor([[1.0], [1e-8], [1.0]])
    rule = AdaFed(1.0, "mean")
    losses = torch.tensor([1.0, 0.01, 2.0]).double()
    told = reports(losses, updates=U)
    weights = weigh(rule, told)
    rates = U @ (weights @ U)
    torch.testing.assert_close(rates / rates[0], losses / losses[0], rtol=1e-6, atol=0)
    assert warnings(rule, told) == ()


def test_the_warning_is_about_this_round_and_nothing_is_remembered() -> None:
    rule = AdaFed(1.0, "mean")
    assert rule.init(2) == {}
    bad = rule(reports([1.0, 2.0], updates=torch.ones(2, 3)), {})
    assert bad.warnings != ()
    assert bad.state == {}
    assert rule(reports([1.0, 2.0], updates=normals(9, 2, 3)), bad.state).warnings == ()


def test_after_uses_the_loss_after() -> None:
    U = normals(10, 3, 6)
    told = reports([1.0, 1.0, 1.0], updates=U, after=[0.5, 1.0, 2.0])
    rates = U @ (weigh(AdaFed(1.0, "mean", "after"), told) @ U)
    assert (rates / rates[0]).tolist() == pytest.approx([1, 2, 4], rel=1e-9)
    assert torch.equal(
        weigh(AdaFed(1.0, "mean"), told),
        weigh(AdaFed(1.0, "mean"), reports([1.0, 1.0, 1.0], updates=U)),
    )


def test_after_without_it_is_an_error() -> None:
    with pytest.raises(ConfigError, match="after"):
        weigh(AdaFed(1.0, "mean", "after"), reports([1.0], updates=[[1.0]]))


def test_only_after_asks_for_it() -> None:
    assert "loss_after" in AdaFed(1.0, "mean", "after").needs
    assert "loss_after" not in AdaFed(1.0, "mean").needs
    assert "update" in AdaFed(1.0, "mean").needs


@pytest.mark.parametrize("kind", ["logistic", "mlp", "norm"])
@pytest.mark.parametrize("mode", ["loop", "vmap", "chunked"])
def test_after_is_the_trained_models_loss_on_its_own_rows(kind: str, mode: str) -> None:
    task = Task(module(kind))
    f = federation({"a": 23, "b": 9, "c": 23})
    rule = AdaFed(1.0, "mean", "after")
    algorithm = Averaging(task, rule, Client(epochs=2, batch=8), SGD())
    state = algorithm.init(f.population)
    request = Request(torch.tensor([2, 0, 1]), algorithm.ask(state))
    replies = Simulator(f, vectorize=mode).collect(algorithm, request).values
    for k, client in enumerate([2, 0, 1]):
        trained = loaded(task, state["w"] - replies["update"][k]).eval()
        rows = f.train.client(client)
        with torch.no_grad():
            close(
                replies["loss_after"][k],
                torch_loss("cross-entropy", trained(rows.x), rows.y).double(),
            )
    assert (replies["loss_after"] < replies["loss"]).all()


def test_replies_hold_no_after_where_no_one_asked() -> None:
    task = Task(module("logistic"))
    f = federation({"a": 9, "b": 9})
    algorithm = Averaging(task, AdaFed(1.0, "mean"), Client(), SGD())
    request = Request(torch.arange(2), algorithm.ask(algorithm.init(f.population)))
    assert "loss_after" not in Simulator(f).collect(algorithm, request).values


@pytest.mark.parametrize("loss", ["before", "after"])
def test_an_experiment_runs(loss: str) -> None:
    rounds = vowel({"name": "adafed", "loss": loss}, cohort=5, rounds=4)
    assert all(done.warnings == () for done in rounds)
    assert fmean(rounds[-1].losses) < fmean(rounds[0].losses)


def test_an_experiment_warns_of_a_singular_round_once() -> None:
    """Three clients, of whom two have the same rows and take the same batches: all of them."""
    x = [[0.0], [1.0], [2.0], [3.0]] * 3
    y = [0, 1, 1, 0] * 3
    f = commonweal.Federation.from_arrays(x, y, [*"aaaabbbbcccc"], test=0.0)
    f = commonweal.Federation(f.train, f.train, f.names, f.outputs)
    sgd = {"name": "sgd", "batch": 0}
    task = Task(torch.nn.Linear(1, 2))
    rule = AdaFed(scale="mean")
    done = next(commonweal.run(task, f, rule=rule, client=sgd, rounds=1))
    assert len(done.warnings) == 1
    assert "singular" in done.warnings[0]


def domains(seed: int) -> commonweal.Federation:
    """Two domains that want different models of the same rows."""
    x = normals(seed, 40, 3)
    wanted = normals(seed + 50, 2, 3)
    y = torch.cat([(x @ w + normals(seed + k, 40) > 0).long() for k, w in enumerate(wanted)])
    names = ["one"] * 40 + ["other"] * 40
    rows = torch.cat([x, x]).float().numpy()
    f = commonweal.Federation.from_arrays(rows, y.numpy(), names, test=0.0)
    return commonweal.Federation(f.train, f.train, f.names, f.outputs)


def losses_of(rule: AdaFed, seed: int, rounds: int) -> Tensor:
    """The losses (T, 2) of gradient descent on both domains with lr 1."""
    torch.manual_seed(0)
    task = Task(torch.nn.Linear(3, 2))
    gd = {"name": "sgd", "batch": 0, "lr": 1.0}
    run = commonweal.run(task, domains(seed), rule=rule, client=gd, rounds=rounds)
    return torch.tensor([done.losses for done in run]).double()


@pytest.mark.parametrize("gamma", [0.0, 1.0, 5.0])
def test_gradient_descent_ends_at_a_pareto_stationary_point_and_stays(gamma: float) -> None:
    """There the linear system is singular because the answer is 0, and no loss rises again."""
    for seed in range(3):
        losses = losses_of(AdaFed(gamma, "theorem"), seed, 150)
        assert losses.diff(dim=0).max() < 1e-5
        assert losses.diff(dim=0)[-20:].abs().max() < 1e-4


def test_longer_steps_stay_near_the_stationary_point() -> None:
    losses = losses_of(AdaFed(1.0, "largest"), 0, 150)
    best = losses_of(AdaFed(1.0, "theorem"), 0, 150)[-1]
    assert (losses[-20:] - best).abs().max() < 0.05


def test_opposite_updates_move_nothing() -> None:
    """Lengths 1 and 3, of opposite sign: their unit vectors cancel."""
    told = reports([1.0, 2.0], updates=[[1.0, 0.0], [-3.0, 0.0]])
    weights = weigh(AdaFed(1.0, "mean"), told)
    assert (weights > 0).all()
    assert (weights @ updates_of(told)).abs().max() < 1e-9


def test_nearly_cancelling_updates_do_not_cause_a_long_step() -> None:
    """The formula's own direction has the length 1e-6: the rank cut would take one of 0.7."""
    U = torch.tensor([[1.0, 1e-6], [-1.0, 1e-6]]).double()
    for scale in ("largest", "theorem", "mean", "none"):
        rule = build("adafed", scale=scale)
        direction = weigh(rule, reports([1.0, 2.0], updates=U)) @ U
        assert direction.norm() < 1e-4
        assert (U @ direction >= 0).all()


def test_gamma_below_zero_is_an_error() -> None:
    with pytest.raises(ConfigError, match="gamma = -1"):
        AdaFed(gamma=-1.0)


# The default: a ridge, and a bounded length


def ridge_regression(U: Tensor, losses: Tensor, gamma: float, ridge: float) -> Tensor:
    """The D of argmin |units D - f^gamma / lengths|^2 + ridge |D|^2, by least squares."""
    lengths = U.norm(dim=1, keepdim=True)
    zeros = torch.zeros(U.shape[1], 1, dtype=torch.float64)
    rows = torch.cat([U / lengths, ridge**0.5 * torch.eye(U.shape[1], dtype=torch.float64)])
    wanted = torch.cat([losses[:, None] ** gamma / lengths, zeros])
    solution: Tensor = torch.linalg.lstsq(rows, wanted).solution
    return solution[:, 0]


@pytest.mark.parametrize("gamma", [0.0, 1.0, 5.0])
@pytest.mark.parametrize("seed", range(3))
def test_the_default_is_ridge_regression_with_the_mean_updates_length(
    gamma: float, seed: int
) -> None:
    U = normals(seed, 6, 20) + 0.3
    losses = 0.3 + uniforms(seed, 6)
    direction = weigh(AdaFed(gamma), reports(losses, updates=U)) @ U
    expected = ridge_regression(U, losses, gamma, 1.0)
    expected = expected / expected.norm() * U.mean(0).norm()
    torch.testing.assert_close(direction, expected, rtol=1e-8, atol=1e-10)


def test_a_ridge_of_zero_gives_exact_rates() -> None:
    U = normals(1, 5, 30)
    losses = 0.5 + uniforms(1, 5)
    rates = U @ (weigh(AdaFed(2.0, ridge=0.0), reports(losses, updates=U)) @ U)
    torch.testing.assert_close(rates / rates[0], (losses / losses[0]) ** 2, rtol=1e-9, atol=0)


def test_conflicting_updates_get_bounded_weights() -> None:
    """Ten clients whose updates nearly cancel: exact rates need weights that sum to hundreds."""
    U = normals(3, 10, 40)
    U = U - U.mean(0) + 0.01 * normals(4, 40)
    told = reports(0.5 + uniforms(3, 10), updates=U)
    assert weigh(AdaFed(scale="theorem"), told).abs().sum() > 0
    bounded = weigh(AdaFed(), told)
    assert bounded.abs().sum() <= 3 + 1e-9
    assert (bounded @ U).norm() <= U.mean(0).norm() * (1 + 1e-9)


def test_gradient_descent_with_the_default_ends_near_the_pareto_set() -> None:
    """The larger loss is no more than a little above that of the published direction."""
    losses = losses_of(AdaFed(), 0, 100)
    best = losses_of(AdaFed(5.0, "theorem"), 0, 150)[-1]
    assert (losses[-20:].max(1).values - best.max()).max() < 0.05


def test_a_ridge_below_zero_is_an_error() -> None:
    with pytest.raises(ConfigError, match="ridge = -1"):
        AdaFed(ridge=-1.0)


@st.composite
def federations(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    """Quadratic losses (w - c_k)' A_k (w - c_k) / 2 with A_k <= 1, and where training begins.

    Curvatures may be equal or of low rank, and there may be more clients than parameters: the
    gradients then depend on each other, with all signs.
    """
    clients = draw(st.integers(2, 5))
    width = draw(st.integers(1, 6))
    seed = draw(st.integers(0, 10**6))
    factors = normals(seed, clients, width, draw(st.integers(1, width)))
    if draw(st.booleans()):
        factors = factors[:1].expand_as(factors)
    curvatures = factors @ factors.mT
    largest = float(torch.linalg.eigvalsh(curvatures).max())
    return curvatures / largest, 3 * normals(seed + 1, clients, width), normals(seed + 2, width)


@pytest.mark.parametrize("gamma", [0.0, 1.0, 5.0])
@pytest.mark.parametrize("scale", ["theorem", "none"])
@settings(max_examples=40, deadline=None)
@given(federations())
def test_no_loss_rises_with_full_gradients(
    scale: str, gamma: float, federation: tuple[Tensor, Tensor, Tensor]
) -> None:
    """Theorem 5.1, with L = 1 and step 1, whatever the dependence among updates."""
    curvatures, centres, w = federation
    lowest = 1.0 if scale == "none" else 0.05  # as printed, the step is short enough above 1/2
    rule = build("adafed", gamma=gamma, scale=scale)

    def losses(w: Tensor) -> Tensor:
        away = w - centres
        return lowest + torch.einsum("ki,kij,kj->k", away, curvatures, away) / 2

    for _ in range(25):
        updates = torch.einsum("kij,kj->ki", curvatures, w - centres)
        before = losses(w)
        w = w - weigh(rule, reports(before, updates=updates)) @ updates
        # One that is at its optimum is left out, so that the others can descend.
        moving = updates.norm(dim=1) > 1e-9 * updates.norm(dim=1).max()
        assert (losses(w) <= before * (1 + 1e-8))[moving].all()


@pytest.mark.parametrize("gamma", [0.0, 1.0, 2.5])
def test_with_q_ffl_the_rates_are_those_of_its_objectives(gamma: float) -> None:
    """f^(q+1) falls at the rate f^q <u, D>, proportional to its own power gamma."""
    U = normals(3, 4, 10) + 0.3
    losses = 0.3 + 2 * uniforms(3, 4)
    decision = decide(AdaFed(gamma, scale="none", q=2.0), reports(losses, updates=U))
    rates = losses**2 * (U @ (decision.weights @ U))
    expected = losses ** (3 * gamma)
    torch.testing.assert_close(rates / rates[0], expected / expected[0], rtol=1e-8, atol=0)


def test_the_descent_is_that_of_the_direction() -> None:
    U = normals(4, 5, 8)
    for rule in (AdaFed(), FedMGDA(), Directions()):
        decision = decide(rule, reports(0.5 + uniforms(4, 5), updates=U))
        direction = decision.weights @ U
        assert decision.descent is not None
        assert decision.descent.length == pytest.approx(float(direction.norm()))
        torch.testing.assert_close(decision.descent.rates, U @ direction)
    assert decide(FedAvg(), reports([1.0, 2.0])).descent is None


def test_a_run_records_its_descent(tmp_path: Path) -> None:
    """Length and rates are read back; rho counts the losses of the next round by hand."""
    rounds = list(commonweal.run(vowel_experiment("adafed", rounds=4), out=tmp_path / "run"))
    record = Record.read(tmp_path / "run")
    for done, stored in zip(rounds, record.rounds, strict=True):
        assert stored.length == done.length
        assert stored.length is not None
        assert stored.length > 0
        assert stored.rates == done.rates
        assert list(stored.rates) == list(stored.weights)
    pairs = zip(rounds[1].losses, rounds[2].losses, strict=True)
    fell = [after <= before for before, after in pairs]
    assert improved_by_round(record.rounds)[2] == fmean(fell)
    name = record.rounds[0].clients[3]
    assert record.history(name)["rate"] == [done.rates[name] for done in rounds]
    shown = run_summary(record)["descent"]
    assert isinstance(shown, dict)
    assert shown["length"] == rounds[-1].length
    assert run_view(record, "finished")["rates"] == rounds[-1].rates
    compared = Comparison.of({"adafed": [record]}).with_curves(["improved", "length"])
    assert compared.results[0].metrics[0]["length"] == rounds[-1].length


def test_weights_are_finite_whatever_the_unit_of_the_losses() -> None:
    updates = torch.tensor([[1.0, 0.0], [0.3, 1.0]])
    for gamma in (0.0, 1.0, 5.0, 10.0):
        for unit in (1e-37, 1e-10, 1.0, 1e10, 1e37):
            for scale in ("none", "largest", "theorem", "mean", "bounded"):
                rule = commonweal.rule("adafed", gamma=gamma, scale=scale)
                reports = commonweal.Reports(
                    ids=torch.arange(2),
                    sizes=torch.ones(2),
                    losses=torch.tensor([unit, unit / 2]),
                    updates=updates,
                    clients=2,
                )
                weights = rule(reports, rule.init(2)).weights
                assert weights.isfinite().all(), (gamma, unit, scale)


def test_two_opposite_updates_leave_the_model_where_it_is() -> None:
    U = torch.tensor([[1.0, 2.0], [-3.0, -6.0]])
    direction = weigh(AdaFed(), reports([1.0, 2.0], updates=U)) @ U.double()
    close(direction, torch.zeros(2))
