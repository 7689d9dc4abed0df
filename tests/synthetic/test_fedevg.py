"""FedEvg as a protocol: what travels, what a round does with it, and what it refuses."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from commonweal import catalog, randomness
from commonweal.algorithm import Setting
from commonweal.engines.simulator import Simulator
from commonweal.errors import ConfigError, DataError
from commonweal.experiment import Experiment
from commonweal.federation import Federation
from commonweal.local import alone
from commonweal.run import prepare, run
from commonweal.synthetic.fedevg import FedEvg
from commonweal.task import Task
from made import SETTING, SMALL, digits, task


def stream(seed: int) -> np.random.Generator:
    return randomness.stream(seed, 1, 1, randomness.TRAIN)


def test_the_thesis_values_are_the_defaults() -> None:
    how = FedEvg(SETTING)
    assert (how.spc, how.lam, how.chain_steps, how.chain_step, how.chain_noise) == (10, 0.1, 1, 1.0, 0.01)
    assert how.chosen == {
        "last": 0.01,
        "noise": 0.01,
        "schedule": "cosine",
        "anchor": "chain",
        "classifier_epochs": 100,
    }
    assert (how.step(1), how.step(5)) == pytest.approx((10.0, 0.01))


def test_the_reference_preset_has_the_authors_values() -> None:
    how = FedEvg(SETTING, preset="reference")
    assert (how.spc, how.batch, how.epochs, how.lr, how.decay, how.decay_every) == (10, 64, 1, 1e-3, 0.9, 50)
    assert (how.lam, how.clip, how.chain_steps, how.chain_step, how.chain_noise) == (0.1, 3.0, 1, 1.0, 0.01)
    assert how.restart and how.first == 10.0
    assert how.chosen == {
        "last": 1.0,
        "noise": 1e-4,
        "schedule": "betas",
        "anchor": "received",
        "classifier_epochs": 1,
    }


def test_what_is_given_goes_before_the_preset() -> None:
    how = FedEvg(SETTING, preset="reference", noise=0.01, classifier_epochs=7)
    assert (how.chosen["noise"], how.chosen["classifier_epochs"], how.chosen["last"]) == (0.01, 7, 1.0)
    assert FedEvg(SETTING, noise=0.0).chosen["noise"] == 0.0


def test_the_server_begins_with_noise_for_every_class() -> None:
    server = FedEvg(SETTING, spc=50).init(task(), 3)
    assert server["y"].bincount().tolist() == [50] * 10
    assert server["x"].shape == (500, 1, 8, 8)
    assert float(server["x"].mean()) == pytest.approx(0, abs=0.03)
    assert float(server["x"].std()) == pytest.approx(1, abs=0.03)
    other = FedEvg(replace(SETTING, seed=4), spc=50).init(task(), 3)
    assert not torch.equal(server["x"], other["x"])


def replies(boltzmann: list[list[float]], slopes: list[list[float]], sizes: list[int]) -> dict[str, torch.Tensor]:
    """Of rows with one number."""
    return {
        "boltzmann": torch.tensor(boltzmann, dtype=torch.float32),
        "slope": torch.tensor(slopes, dtype=torch.float32)[..., None],
        "size": torch.tensor(sizes),
        "loss": torch.ones(len(sizes)),
        "score": torch.ones(len(sizes)),
    }


def two_rows(**values: Any) -> tuple[FedEvg, Task, dict[str, torch.Tensor]]:
    how = FedEvg(Setting((1,), 2, "cross-entropy", rounds=5, seed=0), spc=1, noise=0.0, first=0.1, last=0.1, **values)
    return (
        how,
        Task(nn.Linear(1, 2)),
        {"round": torch.tensor(2), "x": torch.tensor([[0.5], [0.6]]), "y": torch.arange(2)},
    )


def test_a_servers_step_by_hand() -> None:
    how, model, server = two_rows()
    told = how.tell(model, server, torch.tensor([4, 7]), replies([[math.e, 1], [1, 1]], [[1, 2], [-1, 0]], [30, 10]), 9)
    first = (0.75 * math.e * 1 + 0.25 * 1 * -1) / (0.75 * math.e + 0.25)
    expected = torch.tensor([[0.5 - 0.1 * first], [0.6 - 0.1 * (0.75 * 2)]])
    torch.testing.assert_close(told.server["x"], expected)
    assert int(told.server["round"]) == 3 and int(server["round"]) == 2
    assert told.ids.tolist() == [4, 7]
    share = (0.75 * math.e / (0.75 * math.e + 0.25) + 0.75) / 2
    assert told.weights.tolist() == pytest.approx([share, 1 - share])


def test_the_servers_noise_has_its_scale_and_depends_on_seed_and_round_only() -> None:
    how = FedEvg(SETTING, spc=100, noise=0.1)
    server = how.init(task(), 1) | {"x": torch.full((1000, 1, 8, 8), 0.5)}
    still = replies([[1.0] * 1000], [[0.0] * 1000], [5])
    still["slope"] = torch.zeros(1, 1000, 1, 8, 8)
    moved = how.tell(task(), server, torch.tensor([0]), still, 1).server["x"]
    assert float((moved - 0.5).std()) == pytest.approx(0.1, rel=0.02)
    assert torch.equal(moved, how.tell(task(), server, torch.tensor([0]), still, 1).server["x"])
    later = how.tell(task(), server | {"round": torch.tensor(2)}, torch.tensor([0]), still, 1).server["x"]
    assert not torch.equal(moved, later)


def test_a_client_that_diverged_does_not_count() -> None:
    how, model, server = two_rows()
    some = replies([[1, 1], [1, 1]], [[1, 1], [math.nan, 0]], [10, 10])
    told = how.tell(model, server, torch.tensor([4, 7]), some, 9)
    assert told.dropped == {7: "its energies are not finite: local training diverged"}
    assert told.ids.tolist() == [4] and told.weights.tolist() == [1.0]
    torch.testing.assert_close(told.server["x"], server["x"] - 0.1)
    none = how.tell(model, server, torch.tensor([7]), replies([[1, 1]], [[math.inf, 0]], [10]), 9)
    assert torch.equal(none.server["x"], server["x"]) and int(none.server["round"]) == 3 and len(none.ids) == 0


def test_energies_travel_by_their_sign_only() -> None:
    f, model = digits(), task()
    how: FedEvg = catalog.build("algorithms", SMALL["fedevg"], setting=SETTING)
    told = Simulator(model, f).collect(how, how.ask(how.init(model, 3)), torch.arange(3), 0)
    allowed = torch.tensor([math.exp(-1), 1.0, math.e])
    assert torch.isclose(told["boltzmann"][..., None], allowed).any(-1).all()
    assert told["slope"].shape == (3, 20, 1, 8, 8) and float(told["slope"].abs().amax()) <= how.clip


@pytest.mark.parametrize("name", ["fedevg", "fedevg-kept"])
def test_work_needs_nothing_but_a_clients_own_rows(name: str) -> None:
    f, model = digits(), task()
    how: FedEvg = catalog.build("algorithms", SMALL[name], setting=SETTING)
    seen = how.ask(how.init(model, 3))
    whole = Simulator(model, f).collect(how, seen, torch.arange(3), 5)
    for k, client in enumerate(f.names):
        who = randomness.key(client)
        kept = how.keep(model, int(randomness.stream(5, 0, who, randomness.KEEP).integers(1 << 62)))
        rng = randomness.stream(5, 1, who, randomness.TRAIN)
        one = {n: v[None] for n, v in kept.items()}
        own, _ = how.work(model, seen, one, f.train.of(k), torch.tensor([0]), [rng], alone)
        assert all(torch.equal(own[n][0], whole[n][k]) for n in whole)


@pytest.mark.parametrize("anchor", ["chain", "received"])
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_a_visit_by_plain_torch(anchor: Any, noise: float) -> None:
    """Algorithm 4.2 written anew with a module, torch's Adam and the same draws, on four batches of 3, 2, 3 and 2."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.SiLU(), nn.Linear(5, 3))
    model, rows = Task(net), torch.rand(5, 1, 2, 2)
    f = Federation.from_arrays(rows, [0, 1, 2, 1, 0], ["one"] * 5, test=0.0)
    own = f.train  # in the federation's order
    how = FedEvg(
        Setting((1, 2, 2), 3, "cross-entropy", rounds=9, seed=3),
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
    x, y = torch.randn(6, 1, 2, 2), torch.arange(3).repeat_interleave(2)
    seen = {"round": torch.tensor(5), "x": x, "y": y}
    got, kept = how.work(model, seen, {"w": model.initial[None]}, own, torch.tensor([0]), [stream(8)], alone)

    rng, chains = stream(8), x.clone()
    adam = torch.optim.Adam(net.parameters(), lr=0.05 * 0.9, betas=(0.5, 0.999), weight_decay=1e-4)

    def energy_slope(at: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        at = at.clone().requires_grad_()
        energy = -net(at)[torch.arange(len(at)), labels].sum()
        return torch.autograd.grad(energy, at)[0].clamp(-0.3, 0.3)

    for _ in range(2):
        order = rng.permutation(5)
        for index in (order[:3], order[3:]):
            pick = torch.from_numpy(rng.choice(6, len(index), replace=False))
            anchored = (chains if anchor == "chain" else x)[pick].clone()
            for _ in range(2):
                moved = chains[pick] - 0.4 * energy_slope(chains[pick], y[pick])
                epsilon = torch.from_numpy(rng.standard_normal(moved.shape, dtype=np.float32))
                chains[pick] = (moved + noise * epsilon).clamp(0, 1)
            real, labels = net(own.x[index]), own.y[index]
            contrast = (
                net(chains[pick])[torch.arange(len(pick)), y[pick]].mean() - real.gather(1, labels[:, None]).mean()
            )
            loss = nn.functional.cross_entropy(real, labels) + contrast
            loss = loss + 0.7 * nn.functional.cross_entropy(net(anchored), y[pick])
            adam.zero_grad()
            loss.backward()
            adam.step()
    w = torch.cat([p.detach().flatten() for p in net.parameters()])
    torch.testing.assert_close(kept["w"][0], w, rtol=1e-4, atol=1e-5)
    # What is told is of the rows as they were received, outside [0, 1] though some of them lie.
    torch.testing.assert_close(got["slope"][0], energy_slope(x, y), rtol=1e-3, atol=1e-4)
    logits = net(x)[torch.arange(6), y]
    torch.testing.assert_close(got["boltzmann"][0], torch.exp(torch.sign(logits)).detach())


def test_a_kept_classifier_that_diverged_is_forgotten() -> None:
    f, model = digits(), task()
    how: FedEvg = catalog.build("algorithms", SMALL["fedevg-kept"] | {"lr": 1e13}, setting=SETTING)
    simulator = Simulator(model, f)
    told = how.tell(model, how.init(model, 3), torch.arange(3), _collected(simulator, how), 3)
    assert sorted(told.dropped) == [0, 1, 2] and "diverged" in told.dropped[0]
    assert all(simulator.kept[i]["w"].isfinite().all() for i in range(3))


def _collected(simulator: Simulator, how: FedEvg) -> dict[str, torch.Tensor]:
    return simulator.collect(how, how.ask(how.init(simulator.task, 3)), torch.arange(3), 0)


def test_clients_begin_anew_or_keep_their_classifier() -> None:
    f, model = digits(), task()
    for name, holds in (("fedevg", False), ("fedevg-kept", True)):
        how: FedEvg = catalog.build("algorithms", SMALL[name], setting=SETTING)
        simulator = Simulator(model, f)
        start = how.keep(model, 1)
        assert bool(start) is holds
        simulator.collect(how, how.ask(how.init(model, 3)), torch.arange(3), 0)
        first = {n: v.clone() for n, v in simulator.kept[0].items()} if 0 in simulator.kept else {}
        assert bool(first) is holds
        if holds:
            simulator.collect(how, how.ask(how.init(model, 3)) | {"round": torch.tensor(2)}, torch.arange(3), 0)
            assert not torch.equal(simulator.kept[0]["w"], first["w"])


def test_the_synthetic_rows_come_to_teach_a_classifier() -> None:
    """From noise to rows that a classifier learns from, though no client sent a row or a weight."""
    f = digits(rows=600)
    how = {"name": "fedevg", "restart": False, "steps": 6, "batch": 32, "lr": 4e-3, "classifier_epochs": 20}
    scores = [r.metrics["mean"] for r in run(task(8), f, algorithm=how, rounds=8, evaluate_every=8) if r.metrics]
    assert scores[-1] > 0.3  # chance is 0.1


@pytest.mark.parametrize(
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
        FedEvg(SETTING, **values)
    assert str(caught.value) == message


def test_values_and_models_it_cannot_use_are_refused() -> None:
    with pytest.raises(ConfigError, match="fedevg needs classes, but the data's loss is 'squared'"):
        FedEvg(replace(SETTING, loss="squared"))
    normed = Task(nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10)))
    with pytest.raises(ConfigError, match="without BatchNorm and dropout"):
        FedEvg(SETTING).init(normed, 3)


def test_images_as_bytes_give_the_replies_of_the_same_images_as_numbers() -> None:
    f, model = digits(), task()
    whole = (f.train.x * 255).round()
    how: FedEvg = catalog.build("algorithms", SMALL["fedevg"], setting=SETTING)
    seen, told = how.ask(how.init(model, 3)), []
    for x in (whole.to(torch.uint8), whole / 255):
        same = replace(f, train=replace(f.train, x=x))
        told.append(Simulator(model, same).collect(how, seen, torch.arange(3), 0))
    assert all(torch.equal(told[0][n], told[1][n]) for n in told[0])


def test_rows_outside_the_unit_interval_are_refused() -> None:
    rng = np.random.default_rng(0)
    f = Federation.from_arrays(4 * rng.random((40, 1, 8, 8)), np.arange(40) % 10, ["a", "b"] * 20)
    with pytest.raises(DataError, match=r"synthetic rows live in \[0, 1\]"):
        list(run(task(), f, algorithm=SMALL["fedevg"], rounds=1))


def test_a_part_that_it_has_no_use_for_is_refused() -> None:
    with pytest.raises(ConfigError, match="algorithm 'fedevg' has no use for a rule, but got 'term'"):
        run(task(), digits(), algorithm="fedevg", rule="term")
    with pytest.raises(ConfigError, match="'fedcgan' has no use for a client"):
        run(task(), digits(), algorithm="fedcgan", client={"name": "sgd", "lr": 0.5})
    with pytest.raises(ConfigError, match="has no use for a server"):
        prepare(Experiment(dataset="vowel", algorithm="fedevg", server="adam"))


def test_an_experiment_names_it_and_can_be_read_back() -> None:
    e = Experiment(dataset="vowel", algorithm={"name": "fedevg", "preset": "reference", "spc": 3}, rounds=2)
    assert e.algorithm["preset"] == "reference" and e.title == "fedevg"
    assert '[algorithm]\nname = "fedevg"\npreset = "reference"\nspc = 3' in e.toml()
    job = prepare(e)
    assert isinstance(job.algorithm, FedEvg) and job.algorithm.setting == Setting((10,), 11, "cross-entropy", 2, 0)
    assert Experiment(dataset="vowel", algorithm="fedcvae", rule="term").title == "fedcvae-term"
    with pytest.raises(ConfigError, match="did you mean 'preset'"):
        Experiment(dataset="vowel", algorithm={"name": "fedevg", "presets": "reference"})
