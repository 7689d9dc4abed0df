"""Each method against plain torch on the same batches, and the reductions that papers state."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cases import cases
from commonweal.base.errors import ConfigError
from commonweal.base.tensors import Tensors
from commonweal.clients import APFL, Client, FedProx, Scaffold, SuPerFedMM
from commonweal.data.federation import Federation
from commonweal.engines.simulator import Simulator
from commonweal.jobs.job import Job, job_from_parts
from commonweal.jobs.rounds import Round, run
from commonweal.protocols.algorithm import Replies, Request
from commonweal.rules.fedavg import FedAvg
from commonweal.rules.guard.guarded import Guarded
from commonweal.task.masks import head_layer, layer_mask
from commonweal.task.task import Batch, Task
from commonweal.training.client_state import ClientState
from commonweal.training.objective import (
    At,
    Between,
    Custom,
    Objective,
    Proximal,
    objective_value,
)
from helpers import averaging, group_of, planned
from personal_helpers import METHODS, ROUNDS, SIZES, client, federation, sent, task, trained
from run_helpers import states_of

F, T = federation(), task()
D, HEAD = 51, slice(30, 51)  # 4 x 6 + 6 of the body, then 6 x 3 + 3 of the head
BODY = slice(0, 30)


def f(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The module's loss from its flat vector, written out."""
    hidden = (x @ w[:24].view(6, 4).T + w[24:30]).relu()
    return nn.functional.cross_entropy(hidden @ w[30:48].view(3, 6).T + w[48:], y)


def grads(g: Callable[..., Tensor], *at: Tensor) -> tuple[Tensor, ...]:
    leaves = [a.detach().requires_grad_() for a in at]
    return torch.autograd.grad(g(*leaves), leaves)


def gradient(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return grads(lambda a: f(a, x, y), w)[0]


def batches(method: Client, round: int = 1, who: int = 2) -> list[tuple[Tensor, Tensor, Tensor]]:
    """The rows, labels and noise of every step."""
    plan = planned(method, T, F, [who], round=round)
    taken = []
    for step in range(int(plan.steps[0])):
        rows, weight, noise = plan.at(step, 1)
        real = rows[0][weight[0] > 0]
        taken.append((F.train.x[real], F.train.y[real], noise[0]))
    return taken


def own_vector(seed: int = 9) -> Tensor:
    return 0.5 * torch.randn(D, generator=torch.Generator().manual_seed(seed))


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def job(method: Client, t: Task = T, **settings: Any) -> Job:
    return job_from_parts(t, F, rule="fedavg", client=method, server="sgd", **settings)


LARGER = federation({name: 4 * size for name, size in SIZES.items()})  # with steadier scores


def last_round(method: Client, t: Task = T, data: Federation = F, **settings: Any) -> Round:
    job = job_from_parts(t, data, rule="fedavg", client=method, server="sgd", **settings)
    return list(run(job))[-1]


class Heavy:
    """SGD with momentum 0.5 and lr 0.1."""

    def __init__(self) -> None:
        self.velocity: Tensor | float = 0.0

    def __call__(self, w: Tensor, g: Tensor, lr: float = 0.1) -> Tensor:
        self.velocity = 0.5 * self.velocity + g
        return w - lr * self.velocity


class TorchAdam:
    """torch.optim.Adam on one vector."""

    def __init__(self, lr: float) -> None:
        self.lr = lr
        self.optimizer: torch.optim.Adam | None = None

    def __call__(self, w: Tensor, g: Tensor) -> Tensor:
        if self.optimizer is None:
            self.leaf = w.clone()
            self.optimizer = torch.optim.Adam([self.leaf], lr=self.lr)
        self.leaf.copy_(w)
        self.leaf.grad = g
        self.optimizer.step()
        return self.leaf.clone()


# Oracles


def test_fedprox() -> None:
    method, w, move = client("fedprox", mu=0.7), T.initial, Heavy()
    for x, y, _ in batches(method):
        w = move(w, gradient(w, x, y) + 0.7 * (w - T.initial))
    close(trained(method, T, F, sent(T))[0]["update"], T.initial - w)


@cases("momentum", [0.0, 0.5])
def test_scaffold(momentum: float) -> None:
    method = client("scaffold", momentum=momentum)
    c, own = own_vector(1) / 10, own_vector(2) / 10
    w, velocity, corrected = T.initial, torch.zeros(D), []
    for x, y, _ in batches(method):
        g = gradient(w, x, y) + c - own
        velocity = momentum * velocity + g
        w = w - 0.1 * velocity
        corrected.append(g)
    n = len(corrected)
    reply, state = trained(method, T, F, sent(T, c=c), {"c": own})
    close(reply["update"], T.initial - w)
    # Without momentum the new variate is the mean of the gradients; with it, a weighted mean.
    weight = torch.tensor([1 - momentum ** (n - k) for k in range(n)])
    mean = (torch.stack(corrected) * weight[:, None]).sum(0) / weight.sum() - c + own
    close(state["c"], mean)
    close(reply["change"], state["c"] - own)


def test_scaffolds_server_moves_by_the_mean_change_times_the_cohorts_share() -> None:
    change = torch.stack([own_vector(k) for k in range(3)])
    shared = Scaffold().update_shared({"c": own_vector(8)}, {"change": change}, 12)
    close(shared["c"], own_vector(8) + 3 / 12 * change.mean(0))


def test_scaffolds_variates_over_two_rounds() -> None:
    """c_i <- c_i - c + u / (steps lr), and c by the cohort's share of the mean change."""
    method, lr = client("scaffold", momentum=0.0), 0.1
    c, w = torch.zeros(D), T.initial
    own: dict[int, Tensor] = {}
    for done in run(job(method, rounds=2, cohort=2, seed=3)):
        changes = []
        for name in done.clients:
            i = F.names.index(name)
            mine = own.get(i, torch.zeros(D))
            message = sent(T, done.number, c=c) | {"w": w}
            reply, _ = trained(method, T, F, message, {"c": mine}, i, 3)
            steps = 2 * -(-int(F.train.sizes[i]) // 5)
            changes.append(reply["update"] / (steps * lr) - c)
            own[i] = mine + changes[-1]
        c = c + torch.stack(changes).sum(0) / 5
        w = done.state["w"]
        close(done.state["shared"]["c"], c)
    assert len(own) > 2  # someone took part in the second round only


def test_scaffold_needs_sgd() -> None:
    with pytest.raises(ConfigError, match="scaffold optimizer = 'adam'"):
        client("scaffold", optimizer="adam")


@cases("factor", [float("nan"), 1e6])
def test_scaffolds_server_does_not_hear_replies_that_are_dropped(factor: float) -> None:
    algorithm = averaging(T, client("scaffold"), Guarded(FedAvg()))
    state = algorithm.init(F.population)
    request = Request(torch.arange(5), algorithm.ask(state))
    replies = Simulator(F).collect(algorithm, request)
    replies.values["change"][3] *= factor
    if factor == 1e6:
        replies.values["update"][3] *= factor
    outcome = algorithm.tell(state, replies, 5)
    assert list(outcome.dropped) == [3]
    heard = replies.values["change"][[0, 1, 2, 4]]
    close(outcome.state["shared"]["c"], heard.sum(0) / 5)


@cases("name", ["fedper", "lg-fedavg"])
def test_private_layers(name: str) -> None:
    method, w, move = client(name), T.initial.clone(), Heavy()
    mine = torch.zeros(D, dtype=torch.bool)
    mine[HEAD] = True
    mine = mine if name == "fedper" else ~mine
    private = own_vector()[mine]
    w[mine] = private
    for x, y, _ in batches(method):
        w = move(w, gradient(w, x, y))
    reply, state = trained(method, T, F, sent(T), {"private": private})
    close(reply["update"], T.initial - w)
    close(state["private"], w[mine])
    whole = method.uses(T, sent(T), state).models[0]
    assert torch.equal(whole[~mine], T.initial[~mine])
    assert torch.equal(whole[mine], state["private"])


def test_fedrep_in_turns() -> None:
    method, w = client("fedrep", weight_decay=0.1), T.initial
    steps = batches(method)
    assert len(steps) == 4 * 5  # 24 rows by 5 are five per epoch; two epochs for each part
    for turn, part in ((steps[:10], HEAD), (steps[10:], BODY)):
        move = Heavy()
        for x, y, _ in turn:
            g, w = gradient(w, x, y) + 0.1 * w, w.clone()
            w[part] = move(w[part], g[part])
    reply, state = trained(method, T, F, sent(T))
    close(reply["update"], T.initial - w)
    close(state["private"], w[HEAD])


def test_fedrep_in_turns_by_adam() -> None:
    """The body's turn starts with an Adam of its own, and none moves the other part."""
    method, w = client("fedrep", optimizer="adam", lr=0.01), T.initial
    steps = batches(method)
    for turn, part in ((steps[:10], HEAD), (steps[10:], BODY)):
        move = TorchAdam(0.01)
        for x, y, _ in turn:
            g, w = gradient(w, x, y), w.clone()
            w[part] = move(w[part], g[part])
    reply, state = trained(method, T, F, sent(T))
    close(reply["update"], T.initial - w)
    close(state["private"], w[HEAD])


def test_fedrep_takes_turns_client_by_client() -> None:
    """Clients of different size change turns at different steps."""
    method = client("fedrep")
    algorithm = averaging(T, method)
    request = Request(torch.arange(5), sent(T))
    replies = algorithm.decode(Simulator(F, vectorize="vmap").collect(algorithm, request))
    for k in range(5):
        one = trained(method, T, F, sent(T), who=k)[0]["update"]
        close(replies.values["update"][k][BODY], one[BODY])


def test_ditto() -> None:
    method, w, v = client("ditto", lam=0.8), T.initial, own_vector()
    move, move_own = Heavy(), Heavy()
    for x, y, _ in batches(method):
        v = move_own(v, gradient(v, x, y) + 0.8 * (v - T.initial))
        w = move(w, gradient(w, x, y))
    reply, state = trained(method, T, F, sent(T), {"own": own_vector()})
    close(reply["update"], T.initial - w)
    close(state["own"], v)
    assert torch.equal(method.uses(T, sent(T), state).models[0], state["own"])


@cases("optimizer", ["sgd", "adam"])
def test_apfl(optimizer: str) -> None:
    lr = 0.1 if optimizer == "sgd" else 0.01
    method = client("apfl", optimizer=optimizer, lr=lr)
    w, v, a = T.initial, own_vector(), torch.tensor([0.3])
    moves = [Heavy() if optimizer == "sgd" else TorchAdam(lr) for _ in range(2)]
    for k, (x, y, _) in enumerate(batches(method)):

        def mixed(own: Tensor, a: Tensor, w: Tensor = w, x: Tensor = x, y: Tensor = y) -> Tensor:
            return f(a * own + (1 - a) * w, x, y)

        of_v, of_a = grads(mixed, v, a)
        of_w = gradient(w, x, y)
        v, w = moves[0](v, of_v), moves[1](w, of_w)
        a = (a - lr * of_a).clamp(0, 1) if k == 0 else a
    start = {"own": own_vector(), "a": torch.tensor([0.3])}
    reply, state = trained(method, T, F, sent(T), start)
    close(reply["update"], T.initial - w)
    close(state["own"], v)
    close(state["a"], a)
    assert float(state["a"]) != pytest.approx(0.3, abs=1e-6)
    close(method.uses(T, sent(T), state).models[0], a * v + (1 - a) * T.initial)


def test_pfedme() -> None:
    method = client("pfedme", lam=2.0)
    w, theta, move = T.initial, T.initial, Heavy()  # theta starts at the received model
    for x, y, _ in batches(method):
        for _ in range(2):
            theta = move(theta, gradient(theta, x, y) + 2.0 * (theta - w), 0.05)
        w = w - 0.1 * 2.0 * (w - theta)
    reply, state = trained(method, T, F, sent(T), {"own": own_vector()})
    close(reply["update"], T.initial - w)
    close(state["own"], theta)


@cases("name", ["superfed-mm", "superfed-lm"])
def test_superfed(name: str) -> None:
    method, w, v = client(name, mu=0.3, nu=1.5), T.initial, own_vector()
    move, move_own = Heavy(), Heavy()
    points: list[float] = []
    for x, y, u in batches(method, round=2):
        m = u[0] if name == "superfed-mm" else torch.cat([u[0].expand(30), u[1].expand(21)])
        points += u.tolist()
        at = (1 - m) * w + m * v
        g = gradient(at, x, y)
        lengths = w.norm() * v.norm()
        cos = (w @ v) / lengths
        # The gradient of cos^2 by hand.
        of_w = 2 * cos * (v / lengths - cos * w / w.norm() ** 2)
        of_v = 2 * cos * (w / lengths - cos * v / v.norm() ** 2)
        grad_w = (1 - m) * g + 0.3 * (w - T.initial) + 1.5 * of_w
        w, v = move(w, grad_w), move_own(v, m * g + 1.5 * of_v)
    start = {"own": own_vector(), "joined": torch.zeros(1)}
    reply, state = trained(method, T, F, sent(T, 2), start)
    close(reply["update"], T.initial - w)
    close(state["own"], v)
    assert len(set(points)) == len(points) == 10 * (1 if name == "superfed-mm" else 2)
    close(method.uses(T, sent(T), state).models[0], (T.initial + v) / 2)


def test_superfeds_own_models_differ_from_the_shared_one_and_each_other() -> None:
    method = client("superfed-mm")
    a, b, again = (method.init_client(T, seed)["own"] for seed in (11, 12, 11))
    assert torch.equal(a, again) and not torch.equal(a, b) and not torch.equal(a, T.initial)
    # By the architecture's initialisation: nothing is beyond 1 / sqrt(inputs) of its layer.
    assert float(a[BODY].abs().max()) <= 4**-0.5 and float(a[HEAD].abs().max()) <= 6**-0.5


def test_superfed_needs_models_that_can_be_initialised_and_mixed() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(4, 3))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight

    with pytest.raises(ConfigError, match="but no layer of Bare has reset_parameters"):
        client("superfed-mm").check(Task(Bare()), ROUNDS)
    client("superfed-lm").check(T, ROUNDS)
    client("superfed-lm").check(task(norm=True), ROUNDS)


def test_superfeds_batchnorm_follows_the_models_that_are_used() -> None:
    """By torch: statistics of w and of the mixture at m, while random points are trained."""
    t, method = task(norm=True), client("superfed-mm", mu=0.0, nu=0.0, m=0.3, momentum=0.0)
    n, own = t.num_trainable, t.reinitialised(3).initial
    w, v, at_w, at_m = t.initial[:n], own[:n], t.initial[n:], own[n:]

    def pieces(vector: Tensor, statistics: Tensor) -> nn.Module:
        return t.module_of(torch.cat([vector, statistics])).train()

    for x, y, u in batches(method, round=2):
        at_w = buffers_after(pieces(w, at_w), x)
        at_m = buffers_after(pieces(0.7 * w + 0.3 * v, at_m), x)
        module = pieces((1 - u[0]) * w + u[0] * v, at_w)
        loss = nn.functional.cross_entropy(module(x), y)
        g = torch.cat([p.flatten() for p in torch.autograd.grad(loss, list(module.parameters()))])
        w, v = w - 0.1 * (1 - u[0]) * g, v - 0.1 * u[0] * g
    start = {"own": own, "joined": torch.zeros(1)}
    message = sent(t, 2)
    reply, state = trained(method, t, F, message, start)
    close(message["w"] - reply["update"], torch.cat([w, at_w]))
    close(state["own"], torch.cat([v, at_m]))
    used = method.uses(t, message, state).models[0]
    close(used, torch.cat([0.7 * t.initial[:n] + 0.3 * v, at_m]))


def buffers_after(module: nn.Module, x: Tensor) -> Tensor:
    module(x)
    return torch.cat([b.flatten() for b in module.buffers()])


def test_nu_before_the_own_models_begin_is_a_choice() -> None:
    """Algorithm 2.4 read literally: lambda = 0, and the angle moves both models."""
    method, w, v = client("superfed-mm", mu=0.0, nu=1.5, early=True), T.initial, own_vector()
    move, move_own = Heavy(), Heavy()
    for x, y, _ in batches(method, round=1):

        def cos2(a: Tensor, b: Tensor) -> Tensor:
            return nn.functional.cosine_similarity(a, b, dim=0).square()

        of_w, of_v = grads(cos2, w, v)
        w, v = move(w, gradient(w, x, y) + 1.5 * of_w), move_own(v, 1.5 * of_v)
    start = {"own": own_vector(), "joined": torch.zeros(1)}
    reply, state = trained(method, T, F, sent(T, 1), start)
    close(reply["update"], T.initial - w)
    close(state["own"], v)
    assert float(state["joined"]) == 0  # and is not used yet
    close(method.uses(T, sent(T), state).models[0], T.initial)


@cases("name", ["superfed-mm", "superfed-lm"])
def test_superfed_starts_from_a_model_of_zeros(name: str) -> None:
    zeros = Task(nn.Linear(4, 3))
    for p in zeros.module.parameters():
        nn.init.zeros_(p)
    last = last_round(client(name, begin=0.0, epochs=4), zeros, LARGER, rounds=12)
    assert not last.dropped and last.personal["mean"] > 0.5


def test_before_it_joins_the_own_model_is_neither_trained_nor_used() -> None:
    method = client("superfed-lm", begin=1.0, weight_decay=0.1)
    state = method.init_client(T, 4)
    _, after = trained(method, T, F, sent(T, 1), state)
    assert all(torch.equal(state[n], after[n]) for n in state)
    assert torch.equal(method.uses(T, sent(T), after).models[0], T.initial)
    _, joined = trained(method, T, F, sent(T, 2), after)
    assert not torch.equal(joined["own"], after["own"])


@cases(("begin", "first"), [(0.0, 1), (0.4, 5), (0.95, 11), (1.0, 2), (7.0, 8), (2.5, 3)])
def test_own_models_join_after_a_fraction_or_a_number_of_rounds(begin: float, first: int) -> None:
    """A fraction of 11 rounds is rounded down."""
    method = SuPerFedMM(begin=begin)
    state = method.init_client(T, 0)
    rounds = {"rounds": torch.tensor(11)}
    joined = [r for r in range(1, 12) if "own" in method.start(T, sent(T, r) | rounds, state)]
    assert joined == list(range(first, 12))


# Reductions: equal bytes where the arithmetic is the same


def update(method: Client) -> Tensor:
    message = sent(T) | method.init_shared(T)
    return trained(method, T, F, message)[0]["update"]


@cases(
    "method",
    [
        client("fedprox", mu=0.0),
        client("scaffold"),  # whose control variates are 0 at first
        client("apfl", alpha=0.0, adaptive=False),
        client("apfl"),  # w is trained as if there were no v
        client("ditto"),
        client("superfed-mm", mu=0.0),  # before the own model joins
        client("superfed-lm", mu=0.0),
    ],
)
def test_it_is_sgd(method: Client) -> None:
    assert torch.equal(update(method), update(client("sgd")))


@dataclasses.dataclass(frozen=True)
class AtShared(SuPerFedMM):
    def objective(self, task: Task, message: Tensors) -> Objective:
        (line,) = super().objective(task, message).at
        assert isinstance(line, Between)
        return super().objective(task, message)._replace(at=(line._replace(m=0.0),))


@dataclasses.dataclass(frozen=True)
class Drawing(FedProx):
    """Draws as many random numbers as SuPerFed, so that both take the same batches."""

    def draws(self, task: Task) -> int:
        return 1


@cases("mu", [0.0, 0.4])
def test_superfed_at_m_0_without_nu_is_fedprox_or_fedavg(mu: float) -> None:
    common: dict[str, Any] = {"epochs": 2, "batch": 5, "lr": 0.1, "momentum": 0.5, "mu": mu}
    method = AtShared(**common, nu=0.0, begin=0.0)
    start = {"own": own_vector(), "joined": torch.zeros(1)}
    reply, state = trained(method, T, F, sent(T), start)
    prox, _ = trained(Drawing(**common), T, F, sent(T), {})
    assert torch.equal(reply["update"], prox["update"])
    assert torch.equal(state["own"], own_vector())
    if mu == 0:
        assert torch.equal(reply["update"], update(client("sgd")))


def test_ditto_without_a_penalty_is_training_alone() -> None:
    _, state = trained(client("ditto", lam=0.0), T, F, sent(T), {"own": own_vector()})
    reply, _ = trained(client("sgd"), T, F, sent(T) | {"w": own_vector()}, {})
    assert torch.equal(own_vector() - state["own"], reply["update"])


@cases(
    ("name", "parameters", "state"),
    [
        ("ditto", {"lam": 0.0}, {}),
        ("apfl", {"adaptive": False}, {"a": torch.ones(1)}),
    ],
)
def test_buffers_belong_to_their_model(
    name: str, parameters: dict[str, Any], state: Tensors
) -> None:
    """Where nothing ties the two models, the BatchNorm buffers of each are those of plain SGD."""
    t = task(norm=True)
    other = t.reinitialised(4).initial
    other[t.num_trainable : -1] += torch.rand(12, generator=torch.Generator().manual_seed(2))
    method = client(name, **parameters)
    reply, after = trained(method, t, F, sent(t), {"own": other} | state)
    alone, _ = trained(client("sgd"), t, F, sent(t) | {"w": other}, {})
    close(after["own"], other - alone["update"])
    plain, _ = trained(client("sgd"), t, F, sent(t), {})
    close(reply["update"], plain["update"])


def test_pfedmes_buffers_are_those_of_theta() -> None:
    t = task(norm=True)
    method = client("pfedme", lam=1e-9, inner=1, inner_lr=0.1)  # theta is trained as by sgd
    _, after = trained(method, t, F, sent(t), {"own": t.reinitialised(4).initial})
    plain, _ = trained(client("sgd"), t, F, sent(t), {})
    close(after["own"], t.initial - plain["update"])


def test_apfl_at_0_uses_the_shared_model() -> None:
    method = APFL(alpha=0.0, adaptive=False)
    at_zero = method.init_client(T, 0) | {"own": own_vector()}
    assert torch.equal(method.uses(T, sent(T), at_zero).models[0], T.initial)
    at_one = {"own": own_vector(), "a": torch.ones(1)}
    assert torch.equal(method.uses(T, sent(T), at_one).models[0], own_vector())


def test_pfedme_whose_step_reaches_theta_is_at_theta() -> None:
    method = client("pfedme", lam=10.0, inner_lr=0.01)  # lr lam = 1
    reply, state = trained(method, T, F, sent(T))
    close(T.initial - reply["update"], state["own"])


# Joint losses


@cases("name", METHODS)
def test_gradients_against_finite_differences(name: str) -> None:
    method, generator = client(name), torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64) / 2

    message = sent(T, 3) | {"w": random(D), "c": random(D), "mean": torch.tensor(0.7)}
    state = {}
    for key, value in method.init_client(T, 3).items():
        drawn = random(*value.shape)
        state[key] = drawn.abs() if key in ("a", "joined") else drawn
    batch = Batch(random(4, 4), torch.tensor([0, 1, 2, 1]), torch.tensor([0.4, 0.3, 0.2, 0.1]))
    u = torch.rand(max(1, method.draws(T)), generator=generator, dtype=torch.float64)
    start = method.start(T, message, state)
    params = {key: value + 0.1 * random(*value.shape) for key, value in start.items()}

    def loss(at: Tensors) -> Tensor:
        given = {"received": message["w"], "noise": u}
        return objective_value(T, method.objective(T, message), at | given, batch)[0]

    leaves = {key: value.clone().requires_grad_() for key, value in params.items()}
    exact = torch.autograd.grad(loss(leaves), list(leaves.values()), allow_unused=True)
    moving = {*method.objective(T, message).trained, *method.objective(T, message).learned}
    for (key, value), grad in zip(params.items(), exact, strict=True):
        if key not in moving:  # such as the correction of scaffold, a constant
            continue
        assert grad is not None
        for k in range(0, len(value), 7):
            step = torch.zeros_like(value)
            step[k] = 1e-5
            up, down = value + step, value - step
            rise = loss(params | {key: up}) - loss(params | {key: down})
            if name == "apfl" and key == "w":  # w learns nothing from the mixture
                rise = T.batch_loss(up, batch)[0] - T.batch_loss(down, batch)[0]
            assert float(grad[k]) == pytest.approx(float(rise) / 2e-5, rel=1e-5, abs=1e-7)


# What is sent


@cases("name", ["fedper", "fedrep", "lg-fedavg"])
def test_private_coordinates_are_never_sent(name: str) -> None:
    method = client(name)
    algorithm = averaging(T, method)
    private = method.private(T)
    assert private is not None
    simulator, state = Simulator(F), algorithm.init(F.population)
    for _ in range(3):
        request = Request(torch.arange(5), algorithm.ask(state))
        replies = simulator.collect(algorithm, request)
        assert set(replies.values) == {"update", "loss", "score", "size"}
        assert replies.values["update"].shape == (5, D - int(private.sum()))
        state = algorithm.tell(state, replies, 5).state
    assert torch.equal(state["w"][private], T.initial[private])
    assert not (state["w"][~private] == T.initial[~private]).all()
    heads = {tuple(own["private"].tolist()) for own in states_of(simulator).values()}
    assert len(heads) == 5


def test_the_body_moves_by_the_weights() -> None:
    algorithm = averaging(T, client("fedper"))
    state = algorithm.init(F.population)
    request = Request(torch.arange(5), algorithm.ask(state))
    replies: Replies = Simulator(F).collect(algorithm, request)
    outcome = algorithm.tell(state, replies, 5)
    moved = outcome.weights.float() @ replies.values["update"]
    close(outcome.state["w"][BODY], T.initial[BODY] - moved)


class After(FedAvg):
    needs = frozenset({"size", "loss_after"})


def test_the_loss_after_training_is_that_of_the_clients_whole_model() -> None:
    method = client("fedper")
    algorithm = averaging(T, method, After())
    states = {n: v[None] for n, v in method.init_client(T, 0).items()}
    group = group_of(F.train, "c", 2, ClientState(states))
    replies, after = algorithm.answer(Request(group.ids, sent(T)), group)
    w = T.initial.clone()
    w[HEAD] = after.method["private"][0]
    w[BODY] -= replies["update"][0]
    rows = F.train.client(2)
    assert float(replies["loss_after"][0]) == pytest.approx(float(f(w, rows.x, rows.y)), rel=1e-5)


@cases(
    ("name", "parameters", "words"),
    [
        ("fedper", {"head": ["7"]}, r"head = '7' is not a layer of the model.* '0', '2'"),
        ("lg-fedavg", {"lower": ["2", "x"]}, r"lower = 'x' is not a layer"),
        ("fedrep", {"head": ["0", "2"]}, r"is the whole model"),
        ("fedrep", {"steps": 3}, r"steps = 3.*counts in epochs"),
        ("apfl", {"alpha": 1.5}, r"alpha = 1\.5"),
        ("pfedme", {"inner": 0}, r"inner = 0"),
        ("superfed-mm", {"m": 2.0}, r"m = 2\.0"),
        ("superfed-mm", {"begin": 4.0}, r"begin = 4 of 4 rounds: the clients' own models"),
        ("superfed-mm", {"nu": -3.0}, r"nu = -3\.0: it must be at least 0"),
        ("superfed-lm", {"mu": -0.1}, r"mu = -0\.1: it must be at least 0"),
        ("ditto", {"lam": -1.0}, r"lam = -1\.0: it must be at least 0"),
        ("fedprox", {"mu": -5.0}, r"mu = -5\.0: it must be at least 0"),
        ("scaffold", {"momentum": 1.0}, r"momentum = 1\.0: it must be below 1"),
    ],
)
def test_a_wrong_parameter_is_an_error(name: str, parameters: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        averaging(T, client(name, **parameters), rounds=ROUNDS).init_client(0)


def test_a_model_that_is_all_head_has_nothing_to_share() -> None:
    whole = Task(nn.Sequential(nn.Linear(4, 3)))
    with pytest.raises(ConfigError, match="the whole model"):
        client("fedper").init_client(whole, 0)
    with pytest.raises(ConfigError, match="has no linear layer inside"):
        client("fedper").init_client(Task(nn.Sequential(nn.Conv1d(1, 2, 1))), 0)


def test_a_named_head_has_all_layers_inside_it() -> None:
    head = nn.Sequential(nn.ReLU(), nn.Linear(6, 6), nn.Linear(6, 3))
    t = Task(nn.Sequential(nn.Linear(4, 6), head))

    def size(method: Client) -> int:
        mask = method.private(t)
        assert mask is not None
        return int(mask.sum())

    assert size(client("fedper", head=["1"])) == 6 * 6 + 6 + 21
    assert size(client("fedper")) == 21
    assert size(client("lg-fedavg")) == t.size - 21


def test_masks_are_computed_once_per_task_also_inside_vmap() -> None:
    t, method = task(), client("fedrep")
    layer_mask.cache_clear()
    algorithm = averaging(t, method)
    request = Request(torch.arange(5), sent(t))
    Simulator(F, vectorize="vmap").collect(algorithm, request)
    assert layer_mask.cache_info().misses == 1
    mask = layer_mask(t, head_layer(t), "head")
    assert not torch._C._functorch.is_batchedtensor(mask) and int(mask.sum()) == 21


# Whole runs


def test_dittos_shared_model_is_fedavgs() -> None:
    ditto, sgd = (last_round(client(name), rounds=3).state["w"] for name in ("ditto", "sgd"))
    close(ditto, sgd)


def test_personal_models_serve_clients_who_disagree_better() -> None:
    """Here every client names the classes in its own way, so that one model cannot serve all."""
    for name in ("ditto", "fedrep", "superfed-mm"):
        last = last_round(client(name, epochs=4), data=LARGER, rounds=12, evaluate_every=12)
        assert last.personal["mean"] > last.metrics["mean"] + 0.1, name


def test_patterns_name_parameters() -> None:
    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    t = Task(module)
    for head, names in (
        (("*bias",), {"0.bias", "2.bias"}),
        (("2.*",), {"2.weight", "2.bias"}),
        (("0.b?as", "2"), {"0.bias", "2.weight", "2.bias"}),
    ):
        mask = t.tensors(_private(t, head))
        assert {name for name, part in mask.items() if part.all()} == names
        assert all(part.all() or not part.any() for part in mask.values())
    with pytest.raises(ConfigError, match="nor a pattern"):
        client("fedper", head=("*lora*",)).private(t)


@cases(
    "objective",
    [
        Objective(proximal=(Proximal("w", 1.0, anchor="recieved"),)),
        Objective((At("recieved"),)),
        Objective((Between("w", "recieved", 0.5),)),
        Objective(custom=Custom(lambda task, vectors, batch: vectors["recieved"].sum())),
    ],
)
@cases("module", [nn.Linear(4, 3), nn.Sequential(nn.Linear(4, 3), nn.Tanh())])
def test_a_misspelt_vector_is_an_error_with_its_name(
    module: nn.Module, objective: Objective
) -> None:
    @dataclasses.dataclass(frozen=True)
    class Misspelt(Client):
        def objective(self, task: Task, message: Tensors) -> Objective:
            return objective

    with pytest.raises(
        ConfigError, match="'recieved' that does not exist: did you mean 'received'"
    ):
        next(iter(run(Task(module), F, rounds=1, client=Misspelt())))


def _private(task: Task, head: tuple[str, ...]) -> Tensor:
    mask = client("fedper", head=head).private(task)
    assert mask is not None
    return mask.float()
