"""DRFA: two exchanges per round, its own samplers, an oracle, and the theorem's setting."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from commonweal.base import randomness
from commonweal.base.errors import ConfigError, RunError
from commonweal.clients import Client, Ditto
from commonweal.config import catalog
from commonweal.data.federation import Federation
from commonweal.engines.simulator import Simulator
from commonweal.jobs.rounds import converse, run
from commonweal.protocols.algorithm import Algorithm, Replies, Request, Sample
from commonweal.protocols.drfa import DRFA
from commonweal.protocols.samplers import Uniform
from commonweal.protocols.servers import SGD
from commonweal.task.task import Task
from helpers import batches_of, close, federation, module, planned, torch_training

CLIENT = Client(steps=4, batch=5, lr=0.1)


def drfa(task: Task, client: Client = CLIENT, ascent: float = 0.05, seed: int = 3) -> DRFA:
    return DRFA(task, client, SGD(), rounds=10, seed=seed, ascent=ascent)


def sample(f: Federation, size: int, round: int = 1, seed: int = 3) -> Sample:
    rng = randomness.stream(seed, round, 0, randomness.COHORT)
    return Sample(f.population, size, round, Uniform(), rng)


def test_a_round_has_two_exchanges() -> None:
    f = federation({"a": 12, "b": 12, "c": 12, "d": 12})
    algorithm = drfa(Task(module("logistic")))
    engine = Simulator(f, seed=3)
    _, exchanges = converse(algorithm, engine, algorithm.init(f.population), sample(f, 2))
    assert [request.purpose for request, _ in exchanges] == ["train", "loss"]
    assert "update" not in exchanges[1][1].values


def simplex(v: Tensor) -> Tensor:
    """The projection on the simplex by bisection on the shift."""
    low, high = float(v.min()) - 1, float(v.max())
    for _ in range(200):
        middle = (low + high) / 2
        if float((v - middle).clamp(min=0).sum()) > 1:
            low = middle
        else:
            high = middle
    return (v - high).clamp(min=0)


def test_a_round_equals_the_algorithm_written_out_with_torch() -> None:
    f = federation({"a": 12, "b": 9, "c": 15})
    task = Task(module("mlp"))
    algorithm = drfa(task)
    engine = Simulator(f, seed=3)
    outcome, exchanges = converse(algorithm, engine, algorithm.init(f.population), sample(f, 3))

    rng = randomness.stream(3, 1, 0, randomness.COHORT)
    drawn = np.sort(rng.choice(3, 3, replace=True, p=np.full(3, 1 / 3)))
    tau = 4
    snapshot = int(randomness.stream(3, 1, 0, randomness.SNAPSHOT).integers(1, tau + 1))
    last, middle = torch.zeros(task.size), torch.zeros(task.size)
    for client in drawn.tolist():
        batches = batches_of(planned(CLIENT, task, f, [client], seed=3))
        last += torch_training(task, CLIENT, task.initial, f.train, batches) / 3
        middle += torch_training(task, CLIENT, task.initial, f.train, batches[:snapshot]) / 3
    close(outcome.state["w"], last)
    close(exchanges[1][0].message["w"], middle)

    losses = []
    for k in range(3):
        rows = f.train.client(k)
        outputs = task.module_of(middle)(rows.x)
        losses.append(nn.functional.cross_entropy(outputs, rows.y).detach())
    lam = torch.full((3,), 1 / 3, dtype=torch.float64) + tau * 0.05 * torch.stack(losses).double()
    close(outcome.state["lam"], simplex(lam))


def test_a_client_that_is_drawn_twice_counts_twice() -> None:
    f = federation({"a": 12, "b": 12})
    algorithm = drfa(Task(module("logistic")))
    state = algorithm.init(f.population)
    engine = Simulator(f, seed=3)
    for number in range(1, 9):
        draw = replace(sample(f, 3, number), size=3)
        outcome, _ = converse(algorithm, engine, state, draw)
        thirds = (outcome.weights * 3).tolist()
        assert thirds == pytest.approx([round(t) for t in thirds])
        assert float(outcome.weights.sum()) == pytest.approx(1)


def test_sampling_follows_lam() -> None:
    f = federation({"a": 12, "b": 12, "c": 12})
    algorithm = drfa(Task(module("logistic")))
    state = algorithm.init(f.population) | {"lam": torch.tensor([0.0, 1.0, 0.0]).double()}
    conversation = algorithm.round(state, sample(f, 2))
    request = next(conversation)
    assert request.clients.tolist() == [1]


def test_replies_that_never_come_are_named_and_the_others_are_averaged() -> None:
    f = federation({"a": 12, "b": 12, "c": 12})
    algorithm = drfa(Task(module("logistic")))
    engine = Simulator(f, seed=3)

    class Lossy(Simulator):
        def collect(self, algorithm: Algorithm, request: Request) -> Replies:
            replies = engine.collect(algorithm, request)
            kept = replies.clients != 1
            values = {name: value[kept] for name, value in replies.values.items()}
            return Replies(replies.clients[kept], values, {1: "it did not answer"})

    outcome, _ = converse(algorithm, Lossy(f), algorithm.init(f.population), sample(f, 3))
    assert outcome.dropped == {1: "it did not answer"}
    assert 1 not in outcome.clients.tolist()
    assert float(outcome.weights.sum()) == pytest.approx(1)


def test_a_client_that_joins_late_begins_with_an_equal_share() -> None:
    f = federation({"a": 12, "b": 12})
    larger = federation({"a": 12, "b": 12, "c": 12})
    algorithm = drfa(Task(module("logistic")))
    state = algorithm.init(f.population) | {"lam": torch.tensor([0.2, 0.8]).double()}
    outcome, _ = converse(algorithm, Simulator(larger, seed=3), state, sample(larger, 3))
    assert len(outcome.state["lam"]) == 3
    assert float(outcome.state["lam"].sum()) == pytest.approx(1)


def quadratic(center: float, n: int = 20) -> tuple[Tensor, Tensor]:
    """Rows whose mean squared error is (w - center)^2: the outputs are w, the labels `center`."""
    return torch.ones(n, 1), torch.full((n,), center)


def test_on_a_convex_problem_of_two_clients_the_duality_gap_falls() -> None:
    # f_a = (w - 0)^2, f_b = (w - 4)^2 + 0: the minimax point is w = 2 with lam = (1/2, 1/2).
    parts = {"a": quadratic(0.0), "b": quadratic(4.0)}
    x = torch.cat([x for x, _ in parts.values()])
    y = torch.cat([y for _, y in parts.values()])
    owner = ["a"] * 20 + ["b"] * 20
    f = Federation.from_arrays(x, y, owner, test=0.2)
    line = nn.Linear(1, 1, bias=False)
    nn.init.constant_(line.weight, 3.5)
    task = Task(line, "squared", "neg-mae", target=(0.0, 1.0))  # not scaled

    def gap(w: float, lam: Tensor) -> float:
        """max over lam minus min over w of the mixture's loss, at the averaged iterates."""
        worst = max(w**2, (w - 4) ** 2)
        best = 4 * float(lam[1])
        least = float(lam[0]) * best**2 + float(lam[1]) * (best - 4) ** 2
        return worst - least

    client = Client(steps=2, batch=0, lr=0.02)
    gaps = []
    w_sum, lam_sum = 0.0, torch.zeros(2, dtype=torch.float64)
    algorithm = {"name": "drfa", "ascent": 0.002}
    for done in run(
        task, f, rounds=600, evaluate_every=600, algorithm=algorithm, client=client, cohort=2
    ):
        w_sum += float(done.state["w"])
        lam_sum += done.state["lam"]
        if done.number in (20, 100, 600):
            gaps.append(gap(w_sum / done.number, lam_sum / done.number))
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < 0.25 * gaps[0]


def test_it_trains_by_plain_sgd_only() -> None:
    with pytest.raises(ConfigError, match="plain local SGD"):
        drfa(Task(module("logistic")), Ditto())
    with pytest.raises(ConfigError, match="ascent"):
        drfa(Task(module("logistic")), ascent=0.0)


def test_what_cannot_be_given_is_not_described() -> None:
    """An experiment.toml with it could not be built again."""
    described = catalog.named_part(drfa(Task(module("mlp"))))
    assert not {"rule", "channels", "loss"} & set(described)


def test_momentum_and_unequal_clients_agree_between_modes() -> None:
    f = federation({"a": 23, "b": 9, "c": 15})
    client = Client(steps=5, batch=4, lr=0.05, momentum=0.9)
    algorithm = drfa(Task(module("mlp")), client)
    states = []
    for mode in ("vmap", "loop"):
        engine = Simulator(f, seed=3, vectorize=mode)
        outcome, _ = converse(algorithm, engine, algorithm.init(f.population), sample(f, 3))
        states.append(outcome.state)
    close(states[0]["w"], states[1]["w"])
    close(states[0]["lam"], states[1]["lam"])


def test_fewer_clients_than_the_mixture_has_is_an_error() -> None:
    f = federation({"a": 12, "b": 12, "c": 12})
    algorithm = drfa(Task(module("logistic")))
    state = algorithm.init(f.population)
    fewer = federation({"a": 12, "b": 12})
    with pytest.raises(RunError, match="a mixture of 3 clients, but there are only 2 now"):
        converse(algorithm, Simulator(fewer, seed=3), state, sample(fewer, 2))


def test_the_mixture_that_is_reported_is_the_mean_of_those_that_drew() -> None:
    f = federation({"a": 12, "b": 9, "c": 15})
    drew = [torch.full((3,), 1 / 3, dtype=torch.float64)]
    for done in run(
        Task(module("logistic")), f, rounds=4, algorithm={"name": "drfa", "ascent": 0.05}, cohort=2
    ):
        reported = torch.tensor(list(done.mixture.values()), dtype=torch.float64)
        torch.testing.assert_close(reported, torch.stack(drew).mean(0))
        assert list(done.mixture) == ["a", "b", "c"]
        drew.append(done.state["lam"])
