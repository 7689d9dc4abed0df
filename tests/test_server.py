"""Server steps against Reddi et al.'s Algorithm 2 in plain Python, and what they leave alone."""

import math
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

import commonweal
from commonweal import catalog
from commonweal.engines.simulator import Simulator
from commonweal.errors import ConfigError
from commonweal.local import Local
from commonweal.rules.fedavg import FedAvg
from commonweal.rules.vred import VRed
from commonweal.run import prepare
from commonweal.server import SGD, Adagrad, Adam, AMSGrad, Polyak, Yogi
from commonweal.store import flatten, unflatten
from commonweal.task import Task
from helpers import averaging, federation, module
from reporting import normals

DIRECTIONS = normals(0, 20, 4) * torch.tensor([1.0, 0.01, 5.0, 1e-4])
START = [0.5, -1.0, 2.0, 0.0]
STEPS: dict[str, Any] = {
    "sgd": SGD(0.7, momentum=0.9),
    "adam": Adam(),
    "yogi": Yogi(),
    "adagrad": Adagrad(),
    "amsgrad": AMSGrad(),
}
every = pytest.mark.parametrize("name", STEPS)


def taken(step: Any, directions: Tensor = DIRECTIONS) -> list[Tensor]:
    w = torch.tensor(START, dtype=torch.float64)
    state, path = step.init(w), []
    for direction in directions:
        w, state = step(w, direction, state)
        path.append(w)
    return path


def reddi(kind: str, lr: float, b1: float, b2: float, tau: float) -> list[list[float]]:
    """FedAdagrad, FedYogi, FedAdam of Algorithm 2, one number at a time; a direction is minus their Delta."""
    w, m, v = list(START), [0.0] * 4, [tau**2] * 4
    most, path = list(v), []
    for row in DIRECTIONS.tolist():
        for i, d in enumerate(row):
            m[i] = b1 * m[i] + (1 - b1) * d
            if kind == "adagrad":
                v[i] = v[i] + d * d
            elif kind == "yogi":
                sign = 0.0 if v[i] == d * d else math.copysign(1.0, v[i] - d * d)
                v[i] = v[i] - (1 - b2) * d * d * sign
            else:
                v[i] = b2 * v[i] + (1 - b2) * d * d
            most[i] = max(most[i], v[i])
            scale = most[i] if kind == "amsgrad" else v[i]
            w[i] = w[i] - lr * m[i] / (math.sqrt(scale) + tau)
        path.append(list(w))
    return path


@pytest.mark.parametrize("kind", [Adam, Yogi, Adagrad, AMSGrad])
@pytest.mark.parametrize(("lr", "b1", "b2", "tau"), [(0.01, 0.9, 0.99, 1e-3), (0.3, 0.0, 0.5, 0.1), (1.0, 0.5, 0.0, 1)])
def test_adaptive_steps_are_algorithm_2(kind: type, lr: float, b1: float, b2: float, tau: float) -> None:
    expected = reddi(kind.__name__.lower(), lr, b1, b2, tau)
    for got, row in zip(taken(kind(lr, b1, b2, tau)), expected, strict=True):
        assert got.tolist() == pytest.approx(row, rel=1e-11, abs=1e-13)


def test_defaults_are_the_papers() -> None:
    for kind in (Adam, Yogi, AMSGrad):
        assert (kind().b1, kind().b2, kind().tau) == (0.9, 0.99, 1e-3)
    assert Adagrad().b1 == 0


def test_v_starts_at_tau_squared() -> None:
    state = Adam(tau=0.5).init(torch.zeros(3))
    assert state["v"].tolist() == [0.25] * 3
    assert state["m"].tolist() == [0.0] * 3


def test_there_is_no_bias_correction() -> None:
    """One step along 1 from 0 with tau tiny: (1 - b1) / sqrt(1 - b2) = 1, not Adam's corrected lr."""
    w, _ = Adam(lr=1.0, b1=0.5, b2=0.75, tau=1e-9)(
        torch.zeros(1).double(), torch.ones(1).double(), Adam(tau=1e-9).init(torch.zeros(1).double())
    )
    assert w.item() == pytest.approx(-1.0, rel=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_is_torch_sgd(momentum: float) -> None:
    w = torch.tensor(START, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.SGD([w], lr=0.3, momentum=momentum)
    for got, direction in zip(taken(SGD(0.3, momentum)), DIRECTIONS, strict=True):
        w.grad = direction.clone()
        optimiser.step()
        torch.testing.assert_close(got, w.detach(), rtol=1e-13, atol=1e-14)


def test_sgd_with_lr_one_takes_the_direction_whole() -> None:
    w, direction = torch.tensor([1.0, 2.0]), torch.tensor([0.5, -0.25])
    assert SGD()(w, direction, SGD().init(w))[0].tolist() == [0.5, 2.25]


@pytest.mark.parametrize(("growth", "every_rounds"), [(2.0, 1), (1.5, 3), (0.5, 4)])
def test_growth_multiplies_the_lr_every_so_many_rounds(growth: float, every_rounds: int) -> None:
    path = [torch.tensor(START, dtype=torch.float64), *taken(SGD(0.1, growth=growth, growth_every=every_rounds))]
    lr = 0.1
    for t, direction in enumerate(DIRECTIONS, start=1):
        torch.testing.assert_close(path[t], path[t - 1] - lr * direction, rtol=1e-9, atol=1e-12)
        if t % every_rounds == 0:
            lr *= growth


def test_growth_undoes_the_clients_decay() -> None:
    """As the AAggFF authors' code has it: the product of both rates stays."""
    local, step = Local(lr=0.1, decay=0.8, decay_every=5), SGD(growth=1 / 0.8, growth_every=5)
    ones = torch.ones(20, 4, dtype=torch.float64)
    path = torch.stack([torch.tensor(START, dtype=torch.float64), *taken(step, ones)])
    moved = -(path.diff(dim=0)[:, 0])
    products = [local.rate(t) * float(moved[t - 1]) for t in range(1, 21)]
    assert products == pytest.approx([0.1] * 20, rel=1e-12)


@every
def test_polyak_gives_away_the_mean_of_all_models(name: str) -> None:
    """Not the start, as in Fig. 3 of AFL; and the path itself is that of the step inside."""
    step = Polyak(STEPS[name])
    w = torch.tensor(START, dtype=torch.float64)
    state, path = step.init(w), []
    for direction, inside in zip(DIRECTIONS, taken(STEPS[name]), strict=True):
        w, state = step(w, direction, state)
        path.append(w)
        assert torch.equal(w, inside)
        torch.testing.assert_close(step.output(w, state), torch.stack(path).mean(0), rtol=1e-12, atol=1e-13)


def test_polyak_of_polyak_keeps_two_means() -> None:
    step = Polyak(Polyak(SGD(momentum=0.5)))
    path = taken(step)
    assert torch.equal(path[-1], taken(SGD(momentum=0.5))[-1])


@pytest.mark.parametrize("name", [*STEPS, "polyak"])
def test_state_survives_a_file(name: str) -> None:
    step = STEPS.get(name, Polyak(Adam()))
    w = torch.tensor(START)
    state = step.init(w)
    for direction in DIRECTIONS[:7].float():
        w, state = step(w, direction, state)
    back = unflatten(safetensors.torch.load(safetensors.torch.save(flatten({"step": state}))))["step"]
    assert back.keys() == state.keys()
    v = w
    for direction in DIRECTIONS[7:].float():
        (w, state), (v, back) = step(w, direction, state), step(v, direction, back)
        assert torch.equal(w, v)


@pytest.mark.parametrize("name", [*STEPS, "polyak"])
def test_neither_model_nor_state_is_changed(name: str) -> None:
    step = STEPS.get(name, Polyak(Adam()))
    w = torch.tensor(START)
    _, state = step(w, DIRECTIONS[0].float(), step.init(w))
    before, direction = {n: v.clone() for n, v in state.items()}, DIRECTIONS[1].float()
    step(w, direction, state)
    assert w.tolist() == START
    assert torch.equal(direction, DIRECTIONS[1].float())
    assert all(torch.equal(state[n], before[n]) for n in state)


@every
def test_no_direction_moves_nothing_at_the_start(name: str) -> None:
    w = torch.tensor(START)
    assert STEPS[name](w, torch.zeros(4), STEPS[name].init(w))[0].tolist() == START


@every
def test_float32_stays_float32(name: str) -> None:
    w = torch.tensor(START)
    moved, state = STEPS[name](w, DIRECTIONS[0].float(), STEPS[name].init(w))
    assert moved.dtype == torch.float32
    assert all(v.dtype == torch.float32 for n, v in state.items() if n != "t")


@pytest.mark.parametrize("kind", [Adam, Yogi, Adagrad, AMSGrad])
def test_adaptive_steps_do_not_care_for_the_directions_unit(kind: type) -> None:
    """With tau tiny: what a rule's scale is matters little."""
    small, large = (taken(kind(tau=1e-12), scale * DIRECTIONS)[0] for scale in (1.0, 1000.0))
    torch.testing.assert_close(small, large, rtol=1e-4, atol=1e-6)


RULES = [name for name in catalog.entries("rules") if name not in ("grouped", "guarded")]


@pytest.mark.parametrize("rule", [*RULES, "grouped", "guarded"])
def test_fedadam_with_any_rule_from_a_file(rule: str, tmp_path: Path) -> None:
    lines = {"grouped": 'rule = { name = "afl" }\ndomains = 3', "guarded": 'rule = { name = "fedavg" }'}
    text = f'dataset = "vowel"\nrounds = 2\n[rule]\nname = "{rule}"\n{lines.get(rule, "")}\n[server]\nname = "adam"\n'
    if rule == "grouped":  # every speaker says every vowel as often: labels do not tell them apart
        text = text.replace("domains = 3", f"domains = {[k % 3 for k in range(15)]}")
    (tmp_path / "e.toml").write_text(text)
    rounds = list(commonweal.run(commonweal.read(tmp_path / "e.toml")))
    assert len(rounds) == 2
    assert all(torch.isfinite(done.server["w"]).all() for done in rounds)
    assert not torch.equal(rounds[0].server["w"], rounds[1].server["w"])
    assert set(rounds[-1].server["step"]) == {"m", "v"}


@pytest.mark.parametrize("server", ["adam", "yogi", "adagrad", "amsgrad", "sgd"])
def test_any_step_from_an_experiment_is_the_step_on_the_weighted_updates(server: str) -> None:
    job = prepare(commonweal.Experiment(dataset="vowel", server=server, cohort=4))
    start = job.algorithm.init(job.task, 15)
    ids = job.cohort_of(1)
    told = job.simulator.collect(job.algorithm, job.algorithm.ask(start), ids, 0)
    done = job.algorithm.tell(job.task, start, ids, told, 15)
    step = commonweal.server(server)
    expected, _ = step(start["w"], told["update"].mean(0), step.init(start["w"]))  # speakers have as many rows each
    torch.testing.assert_close(done.server["w"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("inside", ["sgd", "adam"])
def test_polyak_in_a_run_gives_away_and_judges_the_mean(inside: str, tmp_path: Path) -> None:
    experiment = commonweal.Experiment(
        dataset="vowel", rounds=4, server={"name": "polyak", "step": {"name": inside}}, rule="afl"
    )
    rounds = list(commonweal.run(experiment, out=tmp_path / "run"))
    mean = torch.stack([done.server["w"] for done in rounds]).mean(0)
    record = commonweal.Record.read(tmp_path / "run").model()
    given = torch.cat([tensor.flatten() for tensor in record.values()])
    assert sorted(given.tolist()) == pytest.approx(sorted(mean.tolist()), rel=1e-5, abs=1e-6)


def test_a_run_with_adam_goes_on_from_its_file(tmp_path: Path) -> None:
    experiment = commonweal.Experiment(dataset="vowel", rounds=6, server="adam")
    whole = list(commonweal.run(experiment))
    some = commonweal.run(experiment, out=tmp_path / "run")
    for _ in range(3):
        next(some)
    some.close()  # type: ignore[attr-defined]
    rest = list(commonweal.run(experiment, out=tmp_path / "run", resume=True))
    assert torch.equal(rest[-1].server["w"], whole[-1].server["w"])


def replies(task: Task, f: commonweal.Federation) -> tuple[Any, dict[str, Tensor]]:
    algorithm = averaging()
    server = algorithm.init(task, f.clients)
    return server, Simulator(task, f).collect(algorithm, algorithm.ask(server), torch.arange(f.clients), 0)


@pytest.mark.parametrize("server", ["adam", "yogi", "adagrad", "amsgrad", "polyak"])
def test_statistics_are_averaged_whatever_the_step(server: str) -> None:
    """BatchNorm's means and variances are no gradients: Adam would move each by its lr."""
    task, f = Task(module("norm")), federation({"a": 20, "b": 12, "c": 28})
    start, told = replies(task, f)
    step = Polyak(Adam()) if server == "polyak" else commonweal.server(server)
    algorithm = averaging(rule=FedAvg(), step=step)
    after = algorithm.tell(task, algorithm.init(task, 3), torch.arange(3), told, 3).server["w"]
    share = torch.tensor([20.0, 12.0, 28.0]) / 60
    models = start["w"] - told["update"]
    torch.testing.assert_close(after[task.trained :], (share @ models)[task.trained :], rtol=1e-5, atol=1e-6)
    assert not torch.allclose(after[: task.trained], (share @ models)[: task.trained], atol=1e-3)


def test_statistics_do_not_follow_the_scale_of_weights() -> None:
    """q-FedAvg's weights sum to less than 1: a shorter step, but statistics stay an average."""
    task, f = Task(module("norm")), federation({"a": 20, "b": 20})
    start, told = replies(task, f)
    algorithm = averaging(rule=commonweal.rule("qfedavg", lipschitz=10.0))
    done = algorithm.tell(task, algorithm.init(task, 2), torch.arange(2), told, 2)
    assert done.weights.sum() < 0.99
    share = (done.weights / done.weights.sum()).float()
    models = start["w"] - told["update"]
    torch.testing.assert_close(done.server["w"][task.trained :], (share @ models)[task.trained :])


def test_a_variance_stays_positive_under_negative_weights() -> None:
    task, f = Task(module("norm")), federation({"a": 20, "b": 20})
    start, told = replies(task, f)
    at = slice(task.size - 8, task.size)
    assert task.names[-1] == "1.running_var"
    update = told["update"].clone()
    update[:, at] = start["w"][at] - torch.tensor([[3.0], [0.1]])  # variances of 3 and 0.1 after training
    told = told | {"update": update, "loss": torch.tensor([0.1, 2.0])}
    algorithm = averaging(rule=VRed(beta=2.0))
    done = algorithm.tell(task, algorithm.init(task, 2), torch.arange(2), told, 2)
    assert done.weights.min() < 0
    assert (done.server["w"][at] > 0).all()


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (SGD, {"lr": 0.0}),
        (SGD, {"momentum": 1.0}),
        (SGD, {"momentum": -0.1}),
        (SGD, {"growth": 0.0}),
        (SGD, {"growth_every": 0}),
        (Adam, {"lr": -1.0}),
        (Adam, {"b1": 1.0}),
        (Yogi, {"b2": 1.0}),
        (Adagrad, {"tau": 0.0}),
        (AMSGrad, {"tau": -1.0}),
    ],
)
def test_parameters_out_of_range_are_errors(kind: type, wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="must be"):
        kind(**wrong)


def test_every_step_is_found_by_name() -> None:
    assert set(catalog.entries("servers")) == {*STEPS, "polyak"}
