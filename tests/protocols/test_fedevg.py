"""FedEvg as a protocol: what is sent, what a round does with it, and what it refuses."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cases import cases
from commonweal.base import randomness
from commonweal.base.errors import ConfigError, DataError
from commonweal.base.tensors import State, Tensors
from commonweal.config.experiment import Experiment
from commonweal.data.federation import Federation
from commonweal.engines.simulator import Simulator
from commonweal.jobs.job import job_from_experiment
from commonweal.jobs.rounds import run
from commonweal.protocols.algorithm import Replies, Request
from commonweal.protocols.synthetic import FedEvg
from commonweal.protocols.synthetic.energy import exponentials, mixture_gradient
from commonweal.protocols.synthetic.fedevg import Preset
from commonweal.record.record import Record
from commonweal.rules import AFL, TERM, FedMGDA
from commonweal.rules.rule import Reports
from commonweal.task.task import Task
from commonweal.training.client_state import ClientState, stack_states
from helpers import group_of
from run_helpers import Lossy, job, states_of
from synthetic_helpers import ROUNDS, SEED, SMALL, built, digits, population, task


def stream(seed: int) -> np.random.Generator:
    return randomness.stream(seed, 1, 1, randomness.TRAIN)


def evg(model: Task | None = None, **values: Any) -> FedEvg:
    given = {"rounds": ROUNDS, "seed": SEED} | values
    return FedEvg(model or task(), population(), **given)


def request_of(algorithm: FedEvg, state: State | None = None) -> Request:
    """A round's request to three clients."""
    state = algorithm.init(algorithm.population) if state is None else state
    return Request(torch.arange(3), algorithm.message(state))


def test_the_thesis_values_are_the_defaults() -> None:
    chain = (evg().chain_steps, evg().chain_step, evg().chain_noise)
    assert (evg().spc, evg().lam, *chain) == (10, 0.1, 1, 1.0, 0.01)
    assert evg().chosen == Preset(
        last=0.01, noise=0.01, schedule="cosine", anchor="chain", classifier_epochs=100
    )
    assert (evg().step(1), evg().step(5)) == pytest.approx((10.0, 0.01))


def test_the_reference_preset_has_the_authors_values() -> None:
    a = evg(preset="reference")
    training = (a.spc, a.batch, a.epochs, a.lr, a.decay, a.decay_every)
    assert training == (10, 64, 1, 1e-3, 0.9, 50)
    chain = (a.lam, a.clip, a.chain_steps, a.chain_step, a.chain_noise)
    assert chain == (0.1, 3.0, 1, 1.0, 0.01)
    assert a.restart and a.first == 10.0
    assert a.chosen == Preset(
        last=1.0, noise=1e-4, schedule="betas", anchor="received", classifier_epochs=1
    )


def test_parameters_that_are_set_override_the_preset() -> None:
    chosen = evg(preset="reference", noise=0.01, classifier_epochs=7).chosen
    assert (chosen.noise, chosen.classifier_epochs, chosen.last) == (0.01, 7, 1.0)
    assert evg(noise=0.0).chosen.noise == 0.0


def test_the_server_begins_with_noise_for_every_class() -> None:
    state = evg(spc=50).init(population())
    assert state["y"].bincount().tolist() == [50] * 10
    assert state["x"].shape == (500, 1, 8, 8)
    assert float(state["x"].mean()) == pytest.approx(0, abs=0.03)
    assert float(state["x"].std()) == pytest.approx(1, abs=0.03)
    other = evg(spc=50, seed=4).init(population())
    assert not torch.equal(state["x"], other["x"])
    assert set(evg().message(state)) == {"round", "x", "y"}  # the classifier is not sent


def replies(
    clients: list[int], boltzmann: list[list[float]], grads: list[list[float]], sizes: list[int]
) -> Replies:
    """Of rows with one number."""
    values = {
        "boltzmann": torch.tensor(boltzmann, dtype=torch.float32),
        "gradient": torch.tensor(grads, dtype=torch.float32)[..., None],
        "size": torch.tensor(sizes),
        "loss": torch.ones(len(sizes)),
        "score": torch.ones(len(sizes)),
    }
    return Replies(torch.tensor(clients), values)


def two_rows(**values: Any) -> tuple[FedEvg, State]:
    model = Task(nn.Linear(1, 2))
    steps = {"spc": 1, "noise": 0.0, "first": 0.1, "last": 0.1}
    a = FedEvg(model, population((1,), 2), rounds=5, seed=0, **(steps | values))
    x = torch.tensor([[0.5], [0.6]])
    return a, {"round": torch.tensor(2), "x": x, "y": torch.arange(2), "rule": a.rule.init(10)}


def test_a_servers_step_by_hand() -> None:
    a, state = two_rows()
    some = replies([4, 7], [[math.e, 1], [1, 1]], [[1, 2], [-1, 0]], [30, 10])
    outcome = a.tell(state, some, 10)
    first = (0.75 * math.e * 1 + 0.25 * 1 * -1) / (0.75 * math.e + 0.25)
    expected = torch.tensor([[0.5 - 0.1 * first], [0.6 - 0.1 * (0.75 * 2)]])
    torch.testing.assert_close(outcome.state["x"], expected)
    assert int(outcome.state["round"]) == 3 and int(state["round"]) == 2
    assert outcome.clients.tolist() == [4, 7]
    weight = (0.75 * math.e / (0.75 * math.e + 0.25) + 0.75) / 2
    assert outcome.weights.tolist() == pytest.approx([weight, 1 - weight])


def test_the_servers_noise_has_its_scale_and_depends_on_seed_and_round_only() -> None:
    a = evg(spc=100, noise=0.1)
    state = a.init(population()) | {"x": torch.full((1000, 1, 8, 8), 0.5)}
    still = replies([0], [[1.0] * 1000], [[0.0] * 1000], [5])
    still.values["gradient"] = torch.zeros(1, 1000, 1, 8, 8)
    moved = a.tell(state, still, 10).state["x"]
    assert float((moved - 0.5).std()) == pytest.approx(0.1, rel=0.02)
    assert torch.equal(moved, a.tell(state, still, 10).state["x"])
    later = a.tell(state | {"round": torch.tensor(2)}, still, 10).state["x"]
    assert not torch.equal(moved, later)


def test_a_client_that_diverged_does_not_count() -> None:
    a, state = two_rows()
    some = replies([4, 7], [[1, 1], [1, 1]], [[1, 1], [math.nan, 0]], [10, 10])
    outcome = a.tell(state, some, 10)
    assert outcome.dropped == {7: "its gradient is not finite: local training diverged"}
    assert outcome.clients.tolist() == [4] and outcome.weights.tolist() == [1.0]
    torch.testing.assert_close(outcome.state["x"], state["x"] - 0.1)
    none = a.tell(state, replies([7], [[1, 1]], [[math.inf, 0]], [10]), 10)
    assert torch.equal(none.state["x"], state["x"])
    assert int(none.state["round"]) == 3 and len(none.clients) == 0


def test_replies_that_never_come_are_left_out() -> None:
    a, state = two_rows()
    late = replies([4], [[1, 1]], [[1, 1]], [10])._replace(failed={7: "timeout"})
    outcome = a.tell(state, late, 10)
    assert outcome.dropped == {7: "timeout"} and outcome.clients.tolist() == [4]
    torch.testing.assert_close(outcome.state["x"], state["x"] - 0.1)
    nobody = a.tell(state, Replies(torch.empty(0, dtype=torch.int64), {}, {7: "timeout"}), 10)
    assert nobody.dropped == {7: "timeout"} and len(nobody.weights) == 0
    assert torch.equal(nobody.state["x"], state["x"])


@cases("name", SMALL)
def test_a_run_records_why_replies_never_came(name: str) -> None:
    engine = Lossy(digits(), lambda request: {1: "timeout"})
    (done,) = run(job(task(), digits(), engine, algorithm=SMALL[name], rounds=1))
    assert done.dropped == {"client 1": "timeout"}
    assert set(done.weights) == {"client 0", "client 2"}


def test_energies_are_sent_by_their_sign_only() -> None:
    f = digits()
    model = task()
    a = built("fedevg", f.population, model)
    values = Simulator(f).collect(a, request_of(a)).values
    allowed = torch.tensor([math.exp(-1), 1.0, math.e])
    assert torch.isclose(values["boltzmann"][..., None], allowed).any(-1).all()
    assert values["gradient"].shape == (3, 20, 1, 8, 8)
    assert float(values["gradient"].abs().amax()) <= a.clip


@cases("name", ["fedevg", "fedevg-kept"])
def test_an_answer_needs_nothing_but_the_clients_own_rows(name: str) -> None:
    f = digits()
    model = task()
    a = built(name, f.population, model)
    request = request_of(a)
    whole = Simulator(f, seed=5).collect(a, request).values
    for k, client in enumerate(f.names):
        key = randomness.key(client)
        init = randomness.stream(5, 0, key, randomness.INIT_CLIENT)
        state = a.init_client(int(init.integers(1 << 62)))
        group = group_of(f.train.client(k), client, states=stack_states([state]), seed=5)
        own, _ = a.answer(request, group)
        assert all(torch.equal(own[n][0], whole[n][k]) for n in whole)


@cases("anchor", ["chain", "received"])
@cases("noise", [0.0, 0.05])
def test_local_training_by_plain_torch(anchor: Any, noise: float) -> None:
    """Algorithm 4.2 with a module, torch's Adam and the same draws, on batches of 3, 2, 3 and 2."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.SiLU(), nn.Linear(5, 3))
    model = Task(net)
    rows = torch.rand(5, 1, 2, 2)
    f = Federation.from_arrays(rows, [0, 1, 2, 1, 0], ["one"] * 5, test=0.0)
    own = f.train  # in the federation's order
    a = FedEvg(
        model,
        population((1, 2, 2), 3),
        rounds=9,
        seed=3,
        spc=2,
        lam=0.7,
        clip=0.3,
        epochs=2,
        batch=3,
        lr=0.05,
        restart=False,
        chain_steps=2,
        chain_step=0.4,
        chain_noise=noise,
        anchor=anchor,
        decay_every=3,
    )
    x = torch.randn(6, 1, 2, 2)
    y = torch.arange(3).repeat_interleave(2)
    message = {"round": torch.tensor(5), "x": x, "y": y}
    group = group_of(own, "one", states=ClientState({"w": model.initial[None]}), round=5, seed=8)
    values, states = a.answer(Request(group.ids, message), group)

    (rng,) = group.streams.begin()
    chains = x.clone()
    adam = torch.optim.Adam(net.parameters(), lr=0.05 * 0.9, betas=(0.5, 0.999), weight_decay=1e-4)

    def logits(at: Tensor, labels: Tensor) -> Tensor:
        result: Tensor = net(at)[torch.arange(len(at)), labels]
        return result

    def energy_gradient(at: Tensor, labels: Tensor) -> Tensor:
        at = at.clone().requires_grad_()
        energy = -logits(at, labels).sum()
        return torch.autograd.grad(energy, at)[0].clamp(-0.3, 0.3)

    for _ in range(2):
        order = rng.permutation(5)
        for index in (order[:3], order[3:]):
            pick = torch.from_numpy(rng.choice(6, len(index), replace=False))
            anchored = (chains if anchor == "chain" else x)[pick].clone()
            for _ in range(2):
                moved = chains[pick] - 0.4 * energy_gradient(chains[pick], y[pick])
                epsilon = torch.from_numpy(rng.standard_normal(moved.shape, dtype=np.float32))
                chains[pick] = (moved + noise * epsilon).clamp(0, 1)
            labels = own.y[index]
            contrast = logits(chains[pick], y[pick]).mean() - logits(own.x[index], labels).mean()
            loss = nn.functional.cross_entropy(net(own.x[index]), labels) + contrast
            loss = loss + 0.7 * nn.functional.cross_entropy(net(anchored), y[pick])
            adam.zero_grad()
            torch.autograd.backward([loss])
            adam.step()
    w = torch.cat([p.detach().flatten() for p in net.parameters()])
    torch.testing.assert_close(states.method["w"][0], w, rtol=1e-4, atol=1e-5)
    # The reply is about the rows as received, although some are outside [0, 1].
    expected = energy_gradient(x, y)
    torch.testing.assert_close(values["gradient"][0], expected, rtol=1e-3, atol=1e-4)
    signs = torch.exp(torch.sign(logits(x, y))).detach()
    torch.testing.assert_close(values["boltzmann"][0], signs)


def test_a_kept_classifier_that_diverged_is_forgotten() -> None:
    f = digits()
    model = task()
    a = built("fedevg-kept", f.population, model, lr=1e13)
    simulator = Simulator(f)
    state = a.init(f.population)
    outcome = a.tell(state, simulator.collect(a, request_of(a, state)), 10)
    assert sorted(outcome.dropped) == [0, 1, 2] and "finite" in outcome.dropped[0]
    states = states_of(simulator)
    assert all(states[i]["w"].isfinite().all() for i in range(3))


def test_clients_restart_or_keep_their_classifier() -> None:
    f = digits()
    model = task()
    for name, keeps in (("fedevg", False), ("fedevg-kept", True)):
        a = built(name, f.population, model)
        simulator = Simulator(f)
        assert bool(a.init_client(1)) is keeps
        state = a.init(f.population)
        simulator.collect(a, request_of(a, state))
        first = {n: v.clone() for n, v in states_of(simulator).get(0, {}).items()}
        assert bool(first) is keeps
        if keeps:
            simulator.collect(a, request_of(a, state | {"round": torch.tensor(2)}))
            assert not torch.equal(states_of(simulator)[0]["w"], first["w"])


def test_synthetic_rows_come_to_teach_a_classifier() -> None:
    """From noise to rows that a classifier learns from, though no client sent a row or a weight."""
    values = {"restart": False, "steps": 6, "batch": 32, "lr": 4e-3, "classifier_epochs": 20}
    algorithm = {"name": "fedevg", **values}
    rounds = run(task(8), digits(rows=600), algorithm=algorithm, rounds=8, evaluate_every=8)
    assert list(rounds)[-1].metrics["mean"] > 0.3  # chance is 0.1


@cases(
    ("values", "message"),
    [
        ({"spc": 0}, "fedevg spc = 0: it must be at least 1"),
        ({"lr": 0.0}, "fedevg lr = 0.0: it must be above 0"),
        ({"last": -1.0}, "fedevg last = -1.0: it must be above 0"),
        ({"noise": -0.1}, "fedevg noise = -0.1: it must be at least 0"),
        ({"noise": math.nan}, "fedevg noise = nan: it must be at least 0"),
        ({"preset": "thesys"}, "fedevg preset = 'thesys': did you mean 'thesis'?"),
        ({"steps": 0}, "fedevg steps = 0: it must be above 0"),
        ({"classifier_epochs": 0}, "fedevg classifier_epochs = 0: it must be at least 1"),
    ],
)
def test_parameters_that_cannot_be_right(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        evg(**values)
    assert str(caught.value) == message


def test_data_and_models_it_cannot_use_are_refused() -> None:
    with pytest.raises(ConfigError, match="fedevg needs classes, but the loss is 'squared'"):
        FedEvg(task().replace(loss="squared"), population())
    for layer in (nn.BatchNorm1d(64), nn.Dropout()):
        model = Task(nn.Sequential(nn.Flatten(), layer, nn.Linear(64, 10)))
        with pytest.raises(ConfigError, match="without BatchNorm and dropout"):
            FedEvg(model, population())


def test_images_as_bytes_give_the_replies_of_the_same_images_as_numbers() -> None:
    f = digits()
    model = task()
    whole = (f.train.x * 255).round()
    a = built("fedevg", f.population, model)
    values: list[Tensors] = []
    for x in (whole.to(torch.uint8), whole / 255):
        same = replace(
            f, train=replace(f.train, inputs=x), test=replace(f.test, inputs=f.test.x.to(x.dtype))
        )
        values.append(Simulator(same).collect(a, request_of(a)).values)
    assert all(torch.equal(values[0][n], values[1][n]) for n in values[0])


def test_rows_outside_the_unit_interval_are_refused() -> None:
    x = 4 * np.random.default_rng(0).random((40, 1, 8, 8))
    f = Federation.from_arrays(x, np.arange(40) % 10, ["a", "b"] * 20)
    with pytest.raises(DataError, match=r"synthetic rows are in \[0, 1\]"):
        list(run(task(), f, algorithm=SMALL["fedevg"], rounds=1))


def test_a_part_that_it_does_not_take_is_refused() -> None:
    for rule in ("adafed", "vred", {"name": "qfedavg", "scaled": True}):
        with pytest.raises(ConfigError, match="fedevg mixes densities by weights of sum 1, which"):
            run(task(), digits(), algorithm="fedevg", rule=rule)
    with pytest.raises(ConfigError, match="'fedcgan' does not take a client"):
        run(task(), digits(), algorithm="fedcgan", client={"name": "sgd", "lr": 0.5})
    with pytest.raises(ConfigError, match="does not take a server"):
        job_from_experiment(Experiment(dataset="vowel", algorithm="fedevg", server="adam"))


def test_an_experiment_names_it_and_can_be_read_back() -> None:
    part = {"name": "fedevg", "preset": "reference", "spc": 3}
    e = Experiment(dataset="vowel", algorithm=part, rounds=2, seed=1)
    assert e.algorithm["preset"] == "reference" and e.title == "fedevg"
    assert '[algorithm]\nname = "fedevg"\npreset = "reference"\nspc = 3' in e.toml()
    a = job_from_experiment(e).algorithm
    assert isinstance(a, FedEvg) and (a.rounds, a.seed) == (2, 1)
    assert (a.population.shape, a.population.outputs) == ((10,), 11)
    assert Experiment(dataset="vowel", algorithm="fedcvae", rule="term").title == "fedcvae-term"
    with pytest.raises(ConfigError, match="did you mean 'preset'"):
        Experiment(dataset="vowel", algorithm={"name": "fedevg", "presets": "reference"})


# Rules, exact energies, tables, clients' own classifiers, and rows for other runs


def test_a_rule_gives_the_weights_of_the_mixture() -> None:
    """Eq. 4.13 with AFL's and TERM's w_i in the place of n_i / n."""
    some = replies([4, 7], [[math.e, 1], [1, 1]], [[1, 2], [-1, 0]], [30, 10])
    some.values["loss"] = torch.tensor([0.2, 1.0])
    a, state = two_rows(rule=TERM(t=1.5, relative=False, prior="uniform"))
    outcome = a.tell(state, some, 10)
    w = math.exp(1.5 * 0.2) / (math.exp(1.5 * 0.2) + math.exp(1.5))
    first = (w * math.e - (1 - w)) / (w * math.e + 1 - w)
    expected = torch.tensor([[0.5 - 0.1 * first], [0.6 - 0.1 * 2 * w]])
    torch.testing.assert_close(outcome.state["x"], expected)
    rule = AFL(lr=0.1)
    a, state = two_rows(rule=rule)
    values = some.values
    reports = Reports(
        ids=some.clients,
        sizes=values["size"],
        losses=values["loss"],
        scores=values["score"],
        updates=values["gradient"].flatten(1),
        clients=10,
    )
    decided = rule(reports, rule.init(10))
    outcome = a.tell(state, some, 10)
    assert torch.equal(outcome.state["rule"]["lam"], decided.state["lam"])
    moved = state["x"][1, 0] - 0.1 * 2 * float(decided.weights[0])
    assert float(outcome.state["x"][1, 0]) == pytest.approx(float(moved), abs=1e-6)


def test_a_rule_of_directions_takes_energy_gradients() -> None:
    """Opposed gradients of two clients have a minimum norm of 0: nothing moves."""
    a, state = two_rows(rule=FedMGDA())
    some = replies([4, 7], [[1, 1], [1, 1]], [[1, 1], [-3, -3]], [10, 10])
    torch.testing.assert_close(a.tell(state, some, 10).state["x"], state["x"], atol=1e-6, rtol=0)


def test_exact_energies_by_autograd_of_the_mixture() -> None:
    """-grad log sum_i w_i exp(-E_i(x)) (eqs. 4.11, 4.13), energies of hundreds included."""
    shift = torch.tensor([[300.0], [301.0]], dtype=torch.float64)

    def energies(x: Tensor) -> Tensor:  # (2 clients, 2 rows)
        return torch.stack([(x[:, 0] - 0.2) ** 2, 3 * (x[:, 0] - 0.9) ** 2]) - shift

    a, state = two_rows(energies="exact")
    x = state["x"].double().requires_grad_()
    weights = torch.tensor([0.75, 0.25], dtype=torch.float64).log()[:, None]
    log_density = torch.logsumexp(weights - energies(x), 0).sum()
    expected = -torch.autograd.grad(log_density, x)[0]
    each = [torch.autograd.grad(energies(x)[k].sum(), x)[0] for k in range(2)]
    at = -energies(x).detach()
    some = replies([4, 7], at.tolist(), [each[0][:, 0].tolist(), each[1][:, 0].tolist()], [30, 10])
    moved = a.tell(state, some, 10).state["x"]
    torch.testing.assert_close(moved, state["x"] - 0.1 * expected.float(), atol=1e-5, rtol=1e-5)


def test_exact_energies_are_sent_as_they_are() -> None:
    f, model = digits(), task()
    signed, exact = (built("fedevg", f.population, model, energies=e) for e in ("signed", "exact"))
    values = [Simulator(f).collect(a, request_of(a)).values for a in (signed, exact)]
    assert torch.equal(torch.sign(values[1]["boltzmann"]).exp(), values[0]["boltzmann"])
    assert torch.equal(values[0]["gradient"], values[1]["gradient"])


def test_a_client_of_weight_0_changes_nothing_with_exact_energies() -> None:
    negative = torch.tensor([[1000.0, 1.0], [0.0, 2.0]])
    weights = torch.tensor([0.0, 1.0])
    boltzmann = exponentials(negative, weights)
    grad, posterior = mixture_gradient(weights, boltzmann, torch.tensor([[5.0, 5.0], [1.0, 2.0]]))
    assert grad.tolist() == [1, 2] and posterior.tolist() == [[0, 0], [1, 1]]


@cases("rule", ["fedavg", "afl", "aaggff-d"])
@cases("name", ["fedevg", "fedevg-kept"])
def test_rows_of_a_table(name: str, rule: str) -> None:
    """Standardised rows: synthetic ones stay within the bound, and some are below 0."""
    rng = np.random.default_rng(0)
    y = np.arange(90) % 3
    x = (2 * np.eye(3)[y] - 1 + 0.3 * rng.normal(size=(90, 3))).astype(np.float32)
    f = Federation.from_arrays(x, y, np.repeat(["a", "b", "c"], 30))
    torch.manual_seed(0)
    model = Task(nn.Sequential(nn.Linear(3, 16), nn.SiLU(), nn.Linear(16, 3)))
    part = SMALL[name] | {"bound": 2.5, "spc": 8, "classifier_epochs": 30, "batch": 8, "steps": 8}
    *_, last = run(model, f, algorithm=part, rule=rule, rounds=15)
    drawn = last.state["x"]
    assert float(drawn.abs().max()) <= 2.5 and float(drawn.min()) < 0
    assert last.metrics["mean"] > 0.6 or name == "fedevg-kept"  # which needs more rounds


def test_clients_own_classifiers_are_scored_on_test_rows() -> None:
    f, model = digits(), task()
    engine = Simulator(f)
    part = SMALL["fedevg"] | {"keep": True, "steps": 30}
    *_, last = run(job(model, f, engine, algorithm=part, rounds=2))
    assert last.evaluation is not None and last.evaluation.personal is not None
    for k, state in states_of(engine).items():
        rows = f.test.client(k)
        right = (model.outputs(state["w"], rows.x).argmax(1) == rows.y).double().mean()
        assert float(last.evaluation.personal.score[k]) == pytest.approx(float(right))
    assert last.personal["mean"] > last.metrics["mean"]  # two rounds teach the server nothing yet


def test_keeping_the_classifiers_changes_no_synthetic_row() -> None:
    runs = [SMALL["fedevg"], SMALL["fedevg"] | {"keep": True}]
    ends = [list(run(task(), digits(), algorithm=part, rounds=2))[-1] for part in runs]
    assert torch.equal(ends[0].state["x"], ends[1].state["x"])


def test_synthetic_rows_are_given_to_every_client_of_another_run(tmp_path: Path) -> None:
    f = digits()
    list(run(task(), f, algorithm=SMALL["fedevg"], rounds=1, out=tmp_path / "rows"))
    x, y = Record.read(tmp_path / "rows").samples() or (None, None)
    assert x is not None and y is not None
    more = f.augmented(x, y)
    for k in range(f.clients):
        own, both = f.train.client(k), more.train.client(k)
        assert torch.equal(both.x, torch.cat([own.x, x])) and torch.equal(both.y[-len(y) :], y)
    assert torch.equal(more.test.x, f.test.x)
    given = list(run(task(), f, rounds=2, synthetic_from=str(tmp_path / "rows")))[-1]
    by_hand = list(run(task(), more, rounds=2))[-1]
    assert torch.equal(given.state["w"], by_hand.state["w"])
    plain = tmp_path / "plain"
    list(run(task(), f, rounds=1, out=plain))
    with pytest.raises(ConfigError, match="has no synthetic rows: give the folder of a run of"):
        run(task(), f, rounds=1, synthetic_from=str(plain))
    with pytest.raises(DataError, match=r"shape \(5,\) cannot be added to clients' rows"):
        f.augmented(torch.zeros(2, 5), torch.zeros(2))


def test_bytes_stay_bytes_when_rows_are_added() -> None:
    x = np.arange(40, dtype=np.uint8).reshape(40, 1, 1)
    f = Federation.from_arrays(x, np.arange(40) % 2, ["a", "b"] * 20)
    more = f.augmented(torch.tensor([[[0.5]], [[1.0]]]), torch.tensor([0, 1]))
    assert more.train.x.dtype == torch.uint8 and more.train.client(1).x[-2:].flatten().tolist() == [
        128,
        255,
    ]
