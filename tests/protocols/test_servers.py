"""Server optimizers against Reddi et al.'s Algorithm 2 in plain Python, and their states."""

import math
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

import commonweal
from cases import cases
from commonweal.base.errors import ConfigError
from commonweal.base.tensors import State, Tensors, flatten, unflatten
from commonweal.clients import Client
from commonweal.config import catalog
from commonweal.config.experiment import Experiment, read
from commonweal.data.federation import Federation
from commonweal.engines.simulator import Simulator
from commonweal.jobs.job import job_from_experiment
from commonweal.jobs.rounds import run
from commonweal.protocols.algorithm import Replies, Request
from commonweal.protocols.servers import SGD, Adagrad, Adam, AMSGrad, Polyak, ServerOptimizer, Yogi
from commonweal.record.record import Record
from commonweal.rules.fedavg import FedAvg
from commonweal.rules.vred import VRed
from commonweal.task.task import Task
from commonweal.training.client import learning_rate
from helpers import averaging, federation, module
from rule_helpers import normals
from run_helpers import stop_after

DIRECTIONS = normals(0, 20, 4) * torch.tensor([1.0, 0.01, 5.0, 1e-4])
START = [0.5, -1.0, 2.0, 0.0]
OPTIMIZERS: dict[str, ServerOptimizer] = {
    "sgd": SGD(0.7, momentum=0.9),
    "adam": Adam(),
    "yogi": Yogi(),
    "adagrad": Adagrad(),
    "amsgrad": AMSGrad(),
}
every = cases("name", OPTIMIZERS)


def path_of(optimizer: ServerOptimizer, directions: Tensor = DIRECTIONS) -> list[Tensor]:
    w = torch.tensor(START, dtype=torch.float64)
    state, path = optimizer.init(w), []
    for direction in directions:
        w, state = optimizer(w, direction, state)
        path.append(w)
    return path


def reddi(kind: str, lr: float, b1: float, b2: float, tau: float) -> list[list[float]]:
    """Algorithm 2, one number at a time; a direction is minus their Delta."""
    w, m, v = list(START), [0.0] * 4, [tau**2] * 4
    vmax, path = list(v), []
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
            vmax[i] = max(vmax[i], v[i])
            scale = vmax[i] if kind == "amsgrad" else v[i]
            w[i] = w[i] - lr * m[i] / (math.sqrt(scale) + tau)
        path.append(list(w))
    return path


ADAPTIVE: list[Any] = [Adam, Yogi, Adagrad, AMSGrad]
VALUES = [(0.01, 0.9, 0.99, 1e-3), (0.3, 0.0, 0.5, 0.1), (1.0, 0.5, 0.0, 1)]


@cases("kind", ADAPTIVE)
@cases(("lr", "b1", "b2", "tau"), VALUES)
def test_adaptive_steps_are_algorithm_2(
    kind: Any, lr: float, b1: float, b2: float, tau: float
) -> None:
    expected = reddi(kind.__name__.lower(), lr, b1, b2, tau)
    second = {} if kind is Adagrad else {"b2": b2}
    path = path_of(kind(lr=lr, b1=b1, tau=tau, **second))
    for got, row in zip(path, expected, strict=True):
        assert got.tolist() == pytest.approx(row, rel=1e-11, abs=1e-13)


def test_adagrad_has_no_decay_rate_that_it_does_not_use() -> None:
    assert set(catalog.find_entry("servers", "adagrad").parameters) == {
        "lr",
        "b1",
        "tau",
        "schedule",
    }


def test_defaults_are_the_papers() -> None:
    for optimizer in (Adam(), Yogi(), AMSGrad()):
        assert (optimizer.b1, optimizer.b2, optimizer.tau) == (0.9, 0.99, 1e-3)
    assert Adagrad().b1 == 0


def test_v_starts_at_tau_squared() -> None:
    state = Adam(tau=0.5).init(torch.zeros(3))
    assert state["v"].tolist() == [0.25] * 3
    assert state["m"].tolist() == [0.0] * 3


def test_there_is_no_bias_correction() -> None:
    """A step along 1 from 0 with tau tiny: (1 - b1) / sqrt(1 - b2) = 1, not Adam's corrected lr."""
    adam = Adam(lr=1.0, b1=0.5, b2=0.75, tau=1e-9)
    start = torch.zeros(1).double()
    w, _ = adam(start, torch.ones(1).double(), adam.init(start))
    assert w.item() == pytest.approx(-1.0, rel=1e-6)


@cases("momentum", [0.0, 0.9])
def test_sgd_is_torch_sgd(momentum: float) -> None:
    w = torch.tensor(START, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.SGD([w], lr=0.3, momentum=momentum)
    for got, direction in zip(path_of(SGD(0.3, momentum)), DIRECTIONS, strict=True):
        w.grad = direction.clone()
        optimiser.step()
        torch.testing.assert_close(got, w.detach(), rtol=1e-13, atol=1e-14)


def test_sgd_with_lr_one_takes_the_direction_whole() -> None:
    w, direction = torch.tensor([1.0, 2.0]), torch.tensor([0.5, -0.25])
    assert SGD()(w, direction, SGD().init(w))[0].tolist() == [0.5, 2.25]


@cases(("growth", "every_rounds"), [(2.0, 1), (1.5, 3), (0.5, 4)])
def test_growth_multiplies_the_lr_every_so_many_rounds(growth: float, every_rounds: int) -> None:
    optimizer = SGD(0.1, growth=growth, growth_every=every_rounds)
    path = [torch.tensor(START, dtype=torch.float64), *path_of(optimizer)]
    lr = 0.1
    for t, direction in enumerate(DIRECTIONS, start=1):
        torch.testing.assert_close(path[t], path[t - 1] - lr * direction, rtol=1e-9, atol=1e-12)
        if t % every_rounds == 0:
            lr *= growth


def test_growth_undoes_the_clients_decay() -> None:
    """As the AAggFF authors' code has it: the product of both rates stays."""
    client = Client(lr=0.1, decay=0.8, decay_every=5)
    optimizer = SGD(growth=1 / 0.8, growth_every=5)
    ones = torch.ones(20, 4, dtype=torch.float64)
    path = torch.stack([torch.tensor(START, dtype=torch.float64), *path_of(optimizer, ones)])
    moved = -(path.diff(dim=0)[:, 0])
    products = [learning_rate(client, t) * float(moved[t - 1]) for t in range(1, 21)]
    assert products == pytest.approx([0.1] * 20, rel=1e-12)


@every
def test_polyak_publishes_the_mean_of_all_models(name: str) -> None:
    """Without the start, as in Fig. 3 of AFL; the path itself is that of the inner optimizer."""
    polyak = Polyak(OPTIMIZERS[name])
    w = torch.tensor(START, dtype=torch.float64)
    state, path = polyak.init(w), []
    for direction, inner in zip(DIRECTIONS, path_of(OPTIMIZERS[name]), strict=True):
        w, state = polyak(w, direction, state)
        path.append(w)
        assert torch.equal(w, inner)
        mean = torch.stack(path).mean(0)
        torch.testing.assert_close(polyak.output(w, state), mean, rtol=1e-12, atol=1e-13)


@every
def test_the_others_publish_the_last_model(name: str) -> None:
    w = torch.tensor(START)
    assert OPTIMIZERS[name].output(w, OPTIMIZERS[name].init(w)) is w


def test_polyak_of_polyak_keeps_two_means() -> None:
    polyak = Polyak(Polyak(SGD(momentum=0.5)))
    assert torch.equal(path_of(polyak)[-1], path_of(SGD(momentum=0.5))[-1])
    state = polyak.init(torch.tensor(START))
    assert set(state) == set(state["inner"]) == {"n", "mean", "inner"}


class Fixed(ServerOptimizer):
    """Keeps no state."""

    def __call__(self, w: Tensor, direction: Tensor, state: State) -> tuple[Tensor, State]:
        return w - direction, state


def test_polyak_of_an_optimizer_without_state_survives_a_file() -> None:
    polyak, w = Polyak(Fixed()), torch.tensor(START)
    w, state = polyak(w, DIRECTIONS[0].float(), unflatten(flatten(polyak.init(w))))
    assert torch.equal(polyak.output(w, state), w)


def optimizer_of(name: str) -> ServerOptimizer:
    return Polyak(Adam()) if name == "polyak" else OPTIMIZERS[name]


@cases("name", [*OPTIMIZERS, "polyak"])
def test_state_survives_a_file(name: str) -> None:
    optimizer = optimizer_of(name)
    w = torch.tensor(START)
    state = optimizer.init(w)
    for direction in DIRECTIONS[:7].float():
        w, state = optimizer(w, direction, state)
    saved = safetensors.torch.save(flatten({"server": state}))
    back = unflatten(safetensors.torch.load(saved))["server"]
    assert flatten(back).keys() == flatten(state).keys()
    v = w
    for direction in DIRECTIONS[7:].float():
        w, state = optimizer(w, direction, state)
        v, back = optimizer(v, direction, back)
        assert torch.equal(w, v)


@cases("name", [*OPTIMIZERS, "polyak"])
def test_neither_model_nor_state_is_changed(name: str) -> None:
    optimizer = optimizer_of(name)
    w = torch.tensor(START)
    _, state = optimizer(w, DIRECTIONS[0].float(), optimizer.init(w))
    before = {n: v.clone() for n, v in flatten(state).items()}
    direction = DIRECTIONS[1].float()
    optimizer(w, direction, state)
    assert w.tolist() == START
    assert torch.equal(direction, DIRECTIONS[1].float())
    assert all(torch.equal(value, before[n]) for n, value in flatten(state).items())


@every
def test_no_direction_moves_nothing_at_the_start(name: str) -> None:
    w = torch.tensor(START)
    moved, _ = OPTIMIZERS[name](w, torch.zeros(4), OPTIMIZERS[name].init(w))
    assert moved.tolist() == START


@every
def test_float32_stays_float32(name: str) -> None:
    w = torch.tensor(START)
    moved, state = OPTIMIZERS[name](w, DIRECTIONS[0].float(), OPTIMIZERS[name].init(w))
    assert moved.dtype == torch.float32
    assert all(v.dtype == torch.float32 for n, v in state.items() if n != "t")


@cases("kind", ADAPTIVE)
def test_adaptive_steps_do_not_depend_on_the_directions_unit(kind: Any) -> None:
    """With tau tiny, a rule's scale matters little."""
    small, large = (path_of(kind(tau=1e-12), scale * DIRECTIONS)[0] for scale in (1.0, 1000.0))
    torch.testing.assert_close(small, large, rtol=1e-4, atol=1e-6)


# In runs

COMBINATORS = {
    # Every speaker says every vowel as often: labels do not tell them apart.
    "grouped": f'rule = {{ name = "afl" }}\ndomains = {[k % 3 for k in range(15)]}',
    "guarded": 'rule = { name = "fedavg" }',
    "excess": 'rule = { name = "afl" }',
}


@pytest.mark.parametrize("rule", catalog.entries("rules"))
def test_fedadam_with_any_rule_from_a_file(rule: str, tmp_path: Path) -> None:
    parameters = COMBINATORS.get(rule, "")
    text = f'dataset = "vowel"\nrounds = 2\n[rule]\nname = "{rule}"\n{parameters}\n'
    (tmp_path / "e.toml").write_text(text + '[server]\nname = "adam"\n')
    rounds = list(run(read(tmp_path / "e.toml")))
    assert len(rounds) == 2
    assert all(torch.isfinite(done.state["w"]).all() for done in rounds)
    assert not torch.equal(rounds[0].state["w"], rounds[1].state["w"])
    assert set(rounds[-1].state["server"]) == {"m", "v"}


@cases("server", ["adam", "yogi", "adagrad", "amsgrad", "sgd"])
def test_an_experiments_optimizer_steps_along_the_weighted_updates(server: str) -> None:
    job = job_from_experiment(Experiment(dataset="vowel", server=server, cohort=4))
    start = job.initial_state()
    conversation = job.algorithm.round(start, job.sample(1))
    replies = job.engine.collect(job.algorithm, next(conversation))
    with pytest.raises(StopIteration) as stopped:
        conversation.send(replies)
    optimizer: ServerOptimizer = commonweal.server(server)
    mean = replies.values["update"].mean(0)  # speakers have as many rows each
    expected, _ = optimizer(start["w"], mean, optimizer.init(start["w"]))
    torch.testing.assert_close(stopped.value.value.state["w"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("inner", ["sgd", "adam"])
def test_polyak_in_a_run_publishes_the_mean(inner: str, tmp_path: Path) -> None:
    server = {"name": "polyak", "step": {"name": inner}}
    experiment = Experiment(dataset="vowel", rounds=4, server=server, rule="afl")
    rounds = list(run(experiment, out=tmp_path / "run"))
    mean = torch.stack([done.state["w"] for done in rounds]).mean(0)
    model = Record.read(tmp_path / "run").state_dict()
    published = torch.cat([tensor.flatten() for tensor in model.values()])
    assert sorted(published.tolist()) == pytest.approx(sorted(mean.tolist()), rel=1e-5, abs=1e-6)


def test_a_run_with_adam_continues_from_its_file(tmp_path: Path) -> None:
    experiment = Experiment(dataset="vowel", rounds=6, server="adam")
    whole = list(run(experiment))
    stop_after(3, run(experiment, out=tmp_path / "run"))
    rest = list(run(experiment, out=tmp_path / "run", resume=True))
    assert torch.equal(rest[-1].state["w"], whole[-1].state["w"])


def replies_of(task: Task, f: Federation) -> Replies:
    algorithm = averaging(task)
    request = Request(torch.arange(f.clients), algorithm.ask(algorithm.init(f.population)))
    return Simulator(f).collect(algorithm, request)


@cases("server", ["adam", "yogi", "adagrad", "amsgrad", "polyak"])
def test_buffers_are_averaged_by_any_optimizer(server: str) -> None:
    """BatchNorm's means and variances are not gradients: Adam would move each by its lr."""
    task, f = Task(module("norm")), federation({"a": 20, "b": 12, "c": 28})
    n = task.num_trainable
    replies = replies_of(task, f)
    algorithm = averaging(task, rule=FedAvg(), server=optimizer_of(server))
    after = algorithm.tell(algorithm.init(f.population), replies, 3).state["w"]
    models = task.initial - replies.values["update"]
    mean = torch.tensor([20.0, 12.0, 28.0]) / 60 @ models
    torch.testing.assert_close(after[n:], mean[n:], rtol=1e-5, atol=1e-6)
    assert not torch.allclose(after[:n], mean[:n], atol=1e-3)


def test_buffers_do_not_follow_the_scale_of_weights() -> None:
    """q-FedAvg's weights sum to less than 1: a shorter step, but buffers stay an average."""
    task, f = Task(module("norm")), federation({"a": 20, "b": 20})
    n = task.num_trainable
    replies = replies_of(task, f)
    algorithm = averaging(task, rule=commonweal.rule("qfedavg", scaled=True, lipschitz=10.0))
    outcome = algorithm.tell(algorithm.init(f.population), replies, 2)
    assert outcome.weights.sum() < 0.99
    weights = (outcome.weights / outcome.weights.sum()).float()
    models = task.initial - replies.values["update"]
    torch.testing.assert_close(outcome.state["w"][n:], (weights @ models)[n:])


def test_a_variance_stays_positive_under_negative_weights() -> None:
    task, f = Task(module("norm")), federation({"a": 20, "b": 20})
    replies = replies_of(task, f)
    variances = slice(task.size - 9, task.size - 1)
    assert task.names[-2] == "1.running_var"
    update = replies.values["update"].clone()
    # Variances of 3 and 0.1 after training.
    update[:, variances] = task.initial[variances] - torch.tensor([[3.0], [0.1]])
    values: Tensors = replies.values | {"update": update, "loss": torch.tensor([0.1, 2.0])}
    algorithm = averaging(task, rule=VRed(beta=2.0))
    state = algorithm.init(f.population)
    outcome = algorithm.tell(state, replies._replace(values=values), 2)
    assert outcome.weights.min() < 0
    assert (outcome.state["w"][variances] > 0).all()


@cases(
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
        (Adagrad, {"b1": 1.0}),
        (AMSGrad, {"tau": -1.0}),
    ],
)
def test_parameters_out_of_range_are_errors(kind: Any, wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="must be"):
        kind(**wrong)


def test_every_optimizer_is_found_by_name() -> None:
    assert set(catalog.entries("servers")) == {*OPTIMIZERS, "ball", "optimistic", "polyak"}
    for name in OPTIMIZERS:
        assert type(commonweal.server(name)) is type(OPTIMIZERS[name])
