"""Each method against a few lines of plain torch on the same batches, and the reductions that the papers state."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from commonweal import randomness
from commonweal.clients.superfed_mm import SuPerFedMM
from commonweal.engines.simulator import Simulator
from commonweal.errors import ConfigError
from commonweal.local import alone
from commonweal.rules.fedavg import FedAvg
from commonweal.rules.guarded import Guarded
from commonweal.run import given, run
from commonweal.task import Batch, Task
from personal_helpers import METHODS, averaging, client, federation, planned, sent, task, visited

F, T = federation(), task()
D, HEAD = 51, slice(30, 51)  # 4 x 6 + 6 of the body, then 6 x 3 + 3 of the head


def f(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The module's loss from its flat vector, written out."""
    hidden = (x @ w[:24].view(6, 4).T + w[24:30]).relu()
    return torch.nn.functional.cross_entropy(hidden @ w[30:48].view(3, 6).T + w[48:], y)


def grad(g: Callable[..., Tensor], *at: Tensor) -> tuple[Tensor, ...]:
    leaves = [a.detach().requires_grad_() for a in at]
    return torch.autograd.grad(g(*leaves), leaves)


def slope(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return grad(lambda a: f(a, x, y), w)[0]


def batches(local: Any, round: int = 1, who: int = 2) -> list[tuple[Tensor, Tensor, Tensor]]:
    p = planned(local, T, F, [who], round)
    taken = [p.at(t, 1) for t in range(int(p.steps[0]))]
    return [(F.train.x[rows[0][s[0] > 0]], F.train.y[rows[0][s[0] > 0]], u[0]) for rows, s, u in taken]


def own_vector(seed: int = 9) -> Tensor:
    return 0.5 * torch.randn(D, generator=torch.Generator().manual_seed(seed))


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


class Heavy:
    """SGD with momentum 0.5 and lr 0.1, one velocity a vector."""

    def __init__(self) -> None:
        self.velocity: Tensor | float = 0.0

    def __call__(self, w: Tensor, g: Tensor, lr: float = 0.1) -> Tensor:
        self.velocity = 0.5 * self.velocity + g
        return w - lr * self.velocity


# Oracles


def test_fedprox() -> None:
    local, w, move = client("fedprox", mu=0.7), T.initial, Heavy()
    for x, y, _ in batches(local):
        w = move(w, slope(w, x, y) + 0.7 * (w - T.initial))
    close(visited(local, T, F, sent(T))[0]["update"], T.initial - w)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_scaffold(momentum: float) -> None:
    local, c, ci = client("scaffold", momentum=momentum), own_vector(1) / 10, own_vector(2) / 10
    w, velocity, gradients = T.initial, torch.zeros(D), []
    for x, y, _ in batches(local):
        g = slope(w, x, y) + c - ci
        velocity = momentum * velocity + g
        w, gradients = w - 0.1 * velocity, [*gradients, g]
    n = len(gradients)
    reply, kept = visited(local, T, F, sent(T, c=c), {"c": ci})
    close(reply["update"], T.initial - w)
    # Without momentum the new variate is the mean of the plain gradients; with it, their weighted mean.
    share = torch.tensor([1 - momentum ** (n - k) for k in range(n)])
    mean = (torch.stack(gradients) * share[:, None]).sum(0) / share.sum() - c + ci
    close(kept["c"], mean)
    close(reply["change"], kept["c"] - ci)


def test_scaffolds_server_moves_by_the_share_of_the_mean_change() -> None:
    local, change = client("scaffold"), torch.stack([own_vector(k) for k in range(3)])
    c = local.absorb({"c": own_vector(8)}, {"change": change}, 12)["c"]
    close(c, own_vector(8) + 3 / 12 * change.mean(0))


def test_scaffolds_variates_over_two_rounds() -> None:
    """c_i <- c_i - c + u / (steps lr) and c <- c + the mean change times the cohort's share, from the replies alone."""
    local, lr = client("scaffold", momentum=0.0), 0.1
    job = given(T, F, "fedavg", local, "sgd", rounds=2, cohort=2, seed=3)
    c, mine, w = torch.zeros(D), {}, T.initial
    for number, done in enumerate(run(job), start=1):
        ids = job.cohort_of(number).tolist()
        change = []
        for i in ids:
            reply, _ = visited(local, T, F, sent(T, number, c=c) | {"w": w}, {"c": mine.get(i, torch.zeros(D))}, i, 3)
            steps = 2 * -(-int(F.train.sizes[i]) // 5)
            change.append(reply["update"] / (steps * lr) - c)
            mine[i] = mine.get(i, torch.zeros(D)) + change[-1]
        c, w = c + torch.stack(change).sum(0) / 5, done.server["w"]
        close(done.server["shared"]["c"], c)
    assert len(mine) > 2  # someone took part in the second round only


@pytest.mark.parametrize("spoil", [float("nan"), 1e6])
def test_scaffolds_server_does_not_hear_reports_that_are_not_believed(spoil: float) -> None:
    algorithm = averaging(client("scaffold"), Guarded(FedAvg()))
    server, ids = algorithm.init(T, 5), torch.arange(5)
    replies = Simulator(T, F).collect(algorithm, algorithm.ask(server), ids, 0)
    replies["change"][3] *= spoil
    if spoil == 1e6:
        replies["update"][3] *= spoil
    told = algorithm.tell(T, server, ids, replies, 5)
    assert list(told.dropped) == [3]
    close(told.server["shared"]["c"], replies["change"][[0, 1, 2, 4]].sum(0) / 5)


@pytest.mark.parametrize("name", ["fedper", "lg-fedavg"])
def test_a_part_of_ones_own(name: str) -> None:
    local, w, move = client(name), T.initial.clone(), Heavy()
    mine = torch.zeros(D, dtype=torch.bool)
    mine[HEAD] = True
    mine = mine if name == "fedper" else ~mine
    part = own_vector()[mine]
    w[mine] = part
    begun = w
    for x, y, _ in batches(local):
        w = move(w, slope(w, x, y))
    reply, kept = visited(local, T, F, sent(T), {"part": part})
    close(reply["update"], (begun - w)[~mine])
    close(kept["part"], w[mine])
    whole = local.personal(T, sent(T), kept)
    assert torch.equal(whole[~mine], T.initial[~mine]) and torch.equal(whole[mine], kept["part"])


def test_fedrep_in_turns() -> None:
    local, w = client("fedrep", weight_decay=0.1), T.initial
    steps = batches(local)
    assert len(steps) == 4 * 5  # 24 rows by 5 are five a pass; two for the head, two for the body
    for turn, part in ((steps[:10], HEAD), (steps[10:], slice(0, 30))):
        move = Heavy()
        for x, y, _ in turn:
            g, w = slope(w, x, y) + 0.1 * w, w.clone()
            w[part] = move(w[part], g[part])
    reply, kept = visited(local, T, F, sent(T))
    close(reply["update"], (T.initial - w)[:30])
    close(kept["part"], w[HEAD])


def test_fedrep_takes_turns_client_by_client() -> None:
    """Clients of different size change turns at different steps."""
    local = client("fedrep")
    replies = Simulator(T, F, "vmap").collect(averaging(local), sent(T), torch.arange(5), 0)
    for k in range(5):
        close(replies["update"][k], visited(local, T, F, sent(T), who=k)[0]["update"])


def test_ditto() -> None:
    local, w, v = client("ditto", lam=0.8), T.initial, own_vector()
    move, move_own = Heavy(), Heavy()
    for x, y, _ in batches(local):
        v = move_own(v, slope(v, x, y) + 0.8 * (v - T.initial))
        w = move(w, slope(w, x, y))
    reply, kept = visited(local, T, F, sent(T), {"own": own_vector()})
    close(reply["update"], T.initial - w)
    close(kept["own"], v)
    assert torch.equal(local.personal(T, sent(T), kept), kept["own"])


def test_apfl() -> None:
    local, w, v, a = client("apfl"), T.initial, own_vector(), torch.tensor([0.3])
    move, move_own = Heavy(), Heavy()
    for k, (x, y, _) in enumerate(batches(local)):
        of_v, of_a = grad(lambda own, share, w=w, x=x, y=y: f(share * own + (1 - share) * w, x, y), v, a)
        of_w = slope(w, x, y)
        v, w = move_own(v, of_v), move(w, of_w)
        a = (a - 0.1 * of_a).clamp(0, 1) if k == 0 else a
    reply, kept = visited(local, T, F, sent(T), {"own": own_vector(), "a": torch.tensor([0.3])})
    close(reply["update"], T.initial - w)
    close(kept["own"], v)
    close(kept["a"], a)
    assert float(kept["a"]) != pytest.approx(0.3, abs=1e-6)
    close(local.personal(T, sent(T), kept), a * v + (1 - a) * T.initial)


def test_pfedme() -> None:
    local, w, theta, move = client("pfedme", lam=2.0), T.initial, own_vector(), Heavy()
    for x, y, _ in batches(local):
        for _ in range(2):
            theta = move(theta, slope(theta, x, y) + 2.0 * (theta - w), 0.05)
        w = w - 0.1 * 2.0 * (w - theta)
    reply, kept = visited(local, T, F, sent(T), {"own": own_vector()})
    close(reply["update"], T.initial - w)
    close(kept["own"], theta)


@pytest.mark.parametrize("name", ["superfed-mm", "superfed-lm"])
def test_superfed(name: str) -> None:
    local, w, v = client(name, mu=0.3, nu=1.5), T.initial, own_vector()
    move, move_own = Heavy(), Heavy()
    points = []
    for x, y, u in batches(local, round=2):
        m = u[0] if name == "superfed-mm" else torch.cat([u[0].expand(30), u[1].expand(21)])
        points += u.tolist()
        at = (1 - m) * w + m * v
        g = slope(at, x, y)
        cos = (w @ v) / (w.norm() * v.norm())
        # The gradient of cos^2 by hand.
        of_w = 2 * cos * (v / (w.norm() * v.norm()) - cos * w / w.norm() ** 2)
        of_v = 2 * cos * (w / (w.norm() * v.norm()) - cos * v / v.norm() ** 2)
        w, v = move(w, (1 - m) * g + 0.3 * (w - T.initial) + 1.5 * of_w), move_own(v, m * g + 1.5 * of_v)
    reply, kept = visited(local, T, F, sent(T, 2), {"own": own_vector(), "joined": torch.zeros(1)})
    close(reply["update"], T.initial - w)
    close(kept["own"], v)
    assert len(set(points)) == len(points) == 10 * (1 if name == "superfed-mm" else 2)
    close(local.personal(T, sent(T), kept), (T.initial + v) / 2)


def test_superfeds_own_models_start_apart_from_the_shared_one_and_each_other() -> None:
    local = client("superfed-mm")
    a, b, again = (local.keep(T, seed)["own"] for seed in (11, 12, 11))
    assert torch.equal(a, again) and not torch.equal(a, b) and not torch.equal(a, T.initial)
    # By the architecture's own start: no bias or weight beyond 1 / sqrt(inputs) of its layer.
    assert float(a[:30].abs().max()) <= 4**-0.5 and float(a[30:].abs().max()) <= 6**-0.5


def test_superfed_needs_models_that_can_start_anew_and_be_mixed() -> None:
    class Bare(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(4, 3))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight

    with pytest.raises(ConfigError, match="another start for every client, but no layer of Bare has reset_parameters"):
        client("superfed-mm").keep(Task(Bare()), 0)
    with pytest.raises(ConfigError, match="cannot mix models with BatchNorm"):
        client("superfed-lm").keep(task(norm=True), 0)


@pytest.mark.parametrize("name", ["superfed-mm", "superfed-lm"])
def test_superfed_starts_from_a_model_of_zeros(name: str) -> None:
    zeros = Task(torch.nn.Linear(4, 3))
    for p in zeros.module.parameters():
        torch.nn.init.zeros_(p)
    job = given(zeros, F, "fedavg", client(name, begin=0.0, epochs=4), "sgd", rounds=6)
    *_, last = run(job)
    assert not last.dropped and last.personal_metrics["mean"] > 0.5


def test_before_it_joins_the_own_model_stays_and_is_not_served() -> None:
    local = client("superfed-lm", begin=1.0, weight_decay=0.1)
    kept = local.keep(T, 4)
    _, after = visited(local, T, F, sent(T, 1), kept)
    assert all(torch.equal(kept[n], after[n]) for n in kept)
    assert torch.equal(local.personal(T, sent(T), after), T.initial)
    _, joined = visited(local, T, F, sent(T, 2), after)
    assert not torch.equal(joined["own"], after["own"])


def test_the_start_is_a_share_of_the_rounds() -> None:
    assert SuPerFedMM(begin=0.4).bind(11).begin == 4.0
    assert SuPerFedMM(begin=7.0).bind(11).begin == 7.0
    with pytest.raises(ConfigError, match=r"begin = 0\.4 is a share"):
        SuPerFedMM(begin=0.4).start(T, sent(T), {})


# Reductions: equal bytes where the arithmetic is the same


def update(local: Any, round: int = 1, **kept: Tensor) -> Tensor:
    more = {"c": torch.zeros(D)} if "c" in kept else {}
    return visited(local, T, F, sent(T, round, **more), kept or None)[0]["update"]


@pytest.mark.parametrize(
    ("local", "kept"),
    [
        (client("fedprox", mu=0.0), {}),
        (client("scaffold"), {"c": torch.zeros(D)}),
        (client("apfl", alpha=0.0, adaptive=False), {}),
        (client("apfl"), {}),  # w is trained as if there were no v
        (client("ditto"), {}),
        (client("superfed-mm", mu=0.0), {}),  # before the own model joins
        (client("superfed-lm", mu=0.0), {}),
    ],
)
def test_it_is_sgd(local: Any, kept: dict[str, Tensor]) -> None:
    assert torch.equal(update(local, **kept), update(client("sgd")))


@pytest.mark.parametrize("mu", [0.0, 0.4])
def test_superfed_at_m_0_without_nu_is_fedprox_or_fedavg(mu: float) -> None:
    @dataclasses.dataclass(frozen=True)
    class AtShared(SuPerFedMM):
        def mix(self, task: Task, u: Tensor) -> Tensor:
            return 0 * u[0]

    common = {"epochs": 2, "batch": 5, "lr": 0.1, "momentum": 0.5}
    local = AtShared(**common, mu=mu, nu=0.0, begin=0.0)

    # Other random numbers are drawn (superfed needs some), so that the batches must be taken from the same plan.
    @dataclasses.dataclass(frozen=True)
    class Drawing(type(client("fedprox"))):  # type: ignore[misc]
        def draws(self, task: Task) -> int:
            return 1

    prox = Drawing(**common, mu=mu)
    reply, kept = visited(local, T, F, sent(T), {"own": own_vector(), "joined": torch.zeros(1)})
    assert torch.equal(reply["update"], visited(prox, T, F, sent(T), {})[0]["update"])
    assert torch.equal(kept["own"], own_vector())
    if mu == 0:
        assert torch.equal(reply["update"], update(client("sgd")))


def test_ditto_without_a_leash_is_training_alone() -> None:
    _, kept = visited(client("ditto", lam=0.0), T, F, sent(T), {"own": own_vector()})
    reply, _ = visited(client("sgd"), T, F, sent(T) | {"w": own_vector()}, {})
    assert torch.equal(own_vector() - kept["own"], reply["update"])


@pytest.mark.parametrize(
    ("name", "parameters", "kept"),
    [
        ("ditto", {"lam": 0.0}, {}),
        ("apfl", {"adaptive": False}, {"a": torch.ones(1)}),
        ("pfedme", {"lam": 1e-9, "inner": 1, "inner_lr": 0.1}, {}),
    ],
)
def test_statistics_go_with_the_model_they_are_of(
    name: str, parameters: dict[str, Any], kept: dict[str, Tensor]
) -> None:
    """Where nothing ties the two models, BatchNorm's statistics of each are those of sgd from its own start."""
    t = task(norm=True)
    other = t.fresh(4)
    other[t.trained :] += torch.rand(12, generator=torch.Generator().manual_seed(2))
    reply, after = visited(client(name, **parameters), t, F, sent(t), {"own": other} | kept)
    alone_, _ = visited(client("sgd"), t, F, sent(t) | {"w": other}, {})
    close(after["own"], other - alone_["update"])
    if name != "pfedme":  # its shared model takes the statistics along towards theta
        close(reply["update"], visited(client("sgd"), t, F, sent(t), {})[0]["update"])


def test_apfl_at_0_serves_the_shared_model() -> None:
    local = client("apfl", alpha=0.0, adaptive=False)
    assert torch.equal(local.personal(T, sent(T), local.keep(T, 0) | {"own": own_vector()}), T.initial)
    assert torch.equal(local.personal(T, sent(T), {"own": own_vector(), "a": torch.ones(1)}), own_vector())


def test_pfedme_whose_step_reaches_theta_is_at_theta() -> None:
    local = client("pfedme", lam=10.0, inner_lr=0.01)  # lr lam = 1
    reply, kept = visited(local, T, F, sent(T))
    close(T.initial - reply["update"], kept["own"])


# Joint losses


@pytest.mark.parametrize("name", METHODS)
def test_gradients_against_finite_differences(name: str) -> None:
    local, generator = client(name), torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64) / 2

    seen = {"w": random(D), "round": torch.tensor(3), "c": random(D)}
    kept = {
        n: random(*v.shape).abs() if n in ("a", "joined") else random(*v.shape) for n, v in local.keep(T, 3).items()
    }
    batch = Batch(random(4, 4), torch.tensor([0, 1, 2, 1]), torch.tensor([0.4, 0.3, 0.2, 0.1]))
    u = torch.rand(max(1, local.draws(T)), generator=generator, dtype=torch.float64)
    v = local.start(T, seen, kept)
    v = {n: value + 0.1 * random(*value.shape) for n, value in v.items()}

    def loss(at: dict[str, Tensor]) -> Tensor:
        result: Tensor = local.loss(T, at, batch, seen, kept, u)[0]
        return result

    leaves = {n: value.clone().requires_grad_() for n, value in v.items()}
    slopes = dict(zip(leaves, torch.autograd.grad(loss(leaves), list(leaves.values())), strict=True))
    for n, value in v.items():
        for k in range(0, len(value), 7):
            step = torch.zeros_like(value)
            step[k] = 1e-5
            rise = loss(v | {n: value + step}) - loss(v | {n: value - step})
            if name == "apfl" and n == "w":  # w learns nothing from the mixture
                rise = T.loss(value + step, batch)[0] - T.loss(value - step, batch)[0]
            assert float(slopes[n][k]) == pytest.approx(float(rise) / 2e-5, rel=1e-5, abs=1e-7)


# What travels


@pytest.mark.parametrize("name", ["fedper", "fedrep", "lg-fedavg"])
def test_the_private_part_never_travels(name: str) -> None:
    local = client(name)
    algorithm = averaging(local)
    private = local.private(T)
    simulator, server = Simulator(T, F), algorithm.init(T, 5)
    for _ in range(3):
        replies = simulator.collect(algorithm, algorithm.ask(server), torch.arange(5), 0)
        assert set(replies) == {"update", "loss", "score", "size"}
        assert replies["update"].shape == (5, D - int(private.sum()))
        server = algorithm.tell(T, server, torch.arange(5), replies, 5).server
    assert torch.equal(server["w"][private], T.initial[private])
    assert not (server["w"][~private] == T.initial[~private]).all()
    assert len({tuple(row["part"].tolist()) for row in simulator.kept.values()}) == 5


def test_the_body_moves_as_the_weights_say() -> None:
    algorithm = averaging(client("fedper"))
    server = algorithm.init(T, 5)
    replies = Simulator(T, F).collect(algorithm, algorithm.ask(server), torch.arange(5), 0)
    told = algorithm.tell(T, server, torch.arange(5), replies, 5)
    moved = told.weights.float() @ replies["update"]
    close(told.server["w"][:30], T.initial[:30] - moved)


def test_rules_that_ask_for_the_loss_after_training_get_the_clients_whole_model() -> None:
    local = client("fedper")

    class After:
        needs_after = True

    algorithm = dataclasses.replace(averaging(local), rule=After())
    seen = sent(T)
    kept = {n: v[None] for n, v in local.keep(T, 0).items()}
    stream = randomness.stream(0, 1, randomness.key("c"), randomness.TRAIN)
    replies, after = algorithm.work(T, seen, kept, F.train, torch.tensor([2]), [stream], alone)
    w = T.initial.clone()
    w[HEAD] = after["part"][0]
    w[:30] -= replies["update"][0]
    rows = F.train.of(2)
    assert float(replies["after"][0]) == pytest.approx(float(f(w, rows.x, rows.y)), rel=1e-5)


@pytest.mark.parametrize(
    ("name", "parameters", "words"),
    [
        ("fedper", {"head": ["7"]}, r"head = '7' is no layer of the model: its layers are '0', '2'"),
        ("lg-fedavg", {"lower": ["2", "x"]}, r"lower = 'x' is no layer"),
        ("fedrep", {"head": ["0", "2"]}, r"is the whole model"),
        ("fedrep", {"steps": 3}, r"steps = 3.*passes over the rows"),
        ("apfl", {"alpha": 1.5}, r"alpha = 1\.5"),
        ("pfedme", {"inner": 0}, r"inner = 0"),
        ("superfed-mm", {"m": 2.0}, r"m = 2\.0"),
        ("superfed-mm", {"begin": 4.0}, r"begin = 4 of 4 rounds: the clients' own models never join"),
        ("superfed-mm", {"nu": -3.0}, r"nu = -3\.0: it must be at least 0"),
        ("superfed-lm", {"mu": -0.1}, r"mu = -0\.1: it must be at least 0"),
        ("ditto", {"lam": -1.0}, r"lam = -1\.0: it must be at least 0"),
        ("fedprox", {"mu": -5.0}, r"mu = -5\.0: it must be at least 0"),
        ("scaffold", {"momentum": 1.0}, r"momentum = 1\.0: it must be below 1"),
    ],
)
def test_a_wrong_parameter_is_a_sentence(name: str, parameters: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        client(name, **parameters).private(T)


def test_a_model_that_is_all_head_has_nothing_to_share() -> None:
    whole = Task(torch.nn.Sequential(torch.nn.Linear(4, 3)))
    with pytest.raises(ConfigError, match="the whole model"):
        client("fedper").keep(whole, 0)


def test_a_named_head_is_taken_with_all_below_it() -> None:
    body, head = (
        torch.nn.Linear(4, 6),
        torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(6, 6), torch.nn.Linear(6, 3)),
    )
    t = Task(torch.nn.Sequential(body, head))
    assert int(client("fedper", head=["1"]).private(t).sum()) == 6 * 6 + 6 + 21
    assert int(client("fedper").private(t).sum()) == 21


# Whole runs


def test_dittos_shared_model_is_fedavgs() -> None:
    ways = [list(run(given(T, F, "fedavg", client(n), "sgd", rounds=3)))[-1].server["w"] for n in ("ditto", "sgd")]
    close(*ways)


def test_a_personal_method_serves_clients_who_disagree_better() -> None:
    """Here every client names the classes in its own way, so that one model cannot serve all."""
    for name in ("ditto", "fedrep", "superfed-mm"):
        last = list(run(given(T, F, "fedavg", client(name, epochs=4), "sgd", rounds=12, evaluate_every=12)))[-1]
        assert last.personal_metrics["mean"] > last.metrics["mean"] + 0.1, name
