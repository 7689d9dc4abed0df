"""FedCGAN and FedCVAE: each part of the vector has its own loss's gradient, and averaging is averaging."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import nn
from torch.nn.functional import cross_entropy, softplus

from commonweal import catalog
from commonweal.algorithm import Setting
from commonweal.engines.simulator import Simulator
from commonweal.errors import ConfigError, DataError
from commonweal.federation import Federation
from commonweal.rules.fedavg import FedAvg
from commonweal.run import given, run
from commonweal.server import SGD
from commonweal.synthetic._fit import fit
from commonweal.synthetic._generating import Generating
from commonweal.synthetic.fedcgan import FedCGAN
from commonweal.synthetic.fedcvae import FedCVAE, _gaussian
from commonweal.task import Batch, Task
from made import SETTING, SMALL, digits, task

every = pytest.mark.parametrize("name", ["fedcgan", "fedcvae"])


def built(name: str, setting: Setting = SETTING, **values: Any) -> Generating:
    whole = SMALL[name] | values
    algorithm: Generating = catalog.build("algorithms", whole, rule=FedAvg(), step=SGD(), setting=setting)
    return algorithm


def batch(rows: int = 6) -> Batch:
    own = digits().train
    return Batch(own.x[:rows], own.y[:rows], torch.full((rows,), 1 / rows))


def uniforms(rows: int, latent: int = 6) -> torch.Tensor:
    return torch.rand(rows, latent, generator=torch.Generator().manual_seed(0))


def test_generator_and_discriminator_each_follow_their_own_loss() -> None:
    game, b, u = built("fedcgan").task, batch(), uniforms(6)
    w = game.initial.clone().requires_grad_()
    (slope,) = torch.autograd.grad(game.loss_with(w, b, u), w)
    module = game.module
    noise = torch.cat([2 * u - 1, torch.eye(10)[b.y]], 1)
    fake = module.generator(noise)
    real, caught, passed = (module.discriminator(x) for x in (b.x, fake.detach(), fake))
    judge = softplus(-real[:, 0]).mean() + softplus(caught[:, 0]).mean()
    judge = judge + cross_entropy(real[:, 1:], b.y) + cross_entropy(caught[:, 1:], b.y)
    forge = softplus(-passed[:, 0]).mean() + cross_entropy(passed[:, 1:], b.y)
    slopes = {
        "generator": torch.autograd.grad(forge, list(module.generator.parameters()), retain_graph=True),
        "discriminator": torch.autograd.grad(judge, list(module.discriminator.parameters())),
    }
    pieces = game.tensors(slope)
    for part, expected in slopes.items():
        own = [p for n, p in pieces.items() if n.startswith(part)]
        for a, b_ in zip(own, expected, strict=True):
            torch.testing.assert_close(a, b_, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("pixels", ["sum", "mean"])
def test_the_evidence_bound_by_hand(pixels: str) -> None:
    bound, b, u = built("fedcvae", pixels=pixels).task, batch(), uniforms(6)
    module, epsilon = bound.module, torch.from_numpy(norm.ppf(u.double().numpy())).float()
    with torch.no_grad():
        mean, raw = module.encoder(b.x).chunk(2, 1)
        spread = torch.nn.functional.softplus(raw) + 1e-8
        made = module.decoder(torch.cat([mean + spread * epsilon, torch.eye(10)[b.y]], 1))
        normal = torch.distributions.Normal
        kl = torch.distributions.kl_divergence(normal(mean, spread), normal(0.0, 1.0)).sum(1)
        error = (made - b.x).square().flatten(1)
        expected = ((error.sum(1) if pixels == "sum" else error.mean(1)) + kl).mean()
        torch.testing.assert_close(bound.loss_with(bound.initial, b, u), expected)


def test_uniform_numbers_become_normal_ones() -> None:
    u = torch.tensor([0.0, 0.025, 0.5, 0.9])
    expected = norm.ppf([5e-7, 0.025, 0.5, 0.9])
    np.testing.assert_allclose(_gaussian(u).numpy(), expected, rtol=0.01, atol=1e-6)


@every
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 9, 6), (1, 28, 28)])
def test_rows_have_the_datas_shape_and_lie_in_the_unit_interval(name: str, shape: tuple[int, ...]) -> None:
    how = built(name, replace(SETTING, shape=shape), spc=3)
    server = how.init(task(), 2)
    x, y = how.samples(server)
    assert x.shape == (30, *shape) and y.bincount().tolist() == [3] * 10
    assert 0 <= float(x.min()) <= float(x.max()) <= 1
    assert torch.equal(x, how.samples(server)[0])
    assert not torch.equal(server["w"], built(name, replace(SETTING, shape=shape, seed=4)).init(task(), 2)["w"])


def test_clients_are_grouped_by_the_generators_size_not_the_classifiers() -> None:
    small = Task(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    job = given(small, digits(), algorithm=SMALL["fedcvae"], rounds=1)
    assert job.simulator.decision[0] == "loop" and "convolutions" in job.simulator.decision[1]
    assert given(small, digits(), rounds=1).simulator.decision[0] == "chunked"


@pytest.mark.parametrize("batch", [16, 19])
def test_a_classifier_with_batchnorm_learns_whatever_is_left_of_a_pass(batch: int) -> None:
    model = Task(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10)))
    x, y = torch.rand(20, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(10).repeat(2)
    w = fit(model, x, y, 3, batch, 1e-2, np.random.default_rng(0))
    assert w.isfinite().all() and not torch.equal(w, model.initial)


@every
def test_a_cohort_at_once_gives_the_numbers_of_one_after_the_other(name: str) -> None:
    f, model, how = digits(), task(), built(name)
    seen = how.ask(how.init(model, 3))
    one, all_ = (Simulator(model, f, mode).collect(how, seen, torch.arange(3), 0) for mode in ("loop", "vmap"))
    for key in one:
        torch.testing.assert_close(one[key], all_[key], rtol=1e-3, atol=2e-4)


@every
def test_training_lowers_the_loss_that_the_clients_report(name: str) -> None:
    how = SMALL[name] | {"steps": 6, "lr": 4e-3}
    losses = [float(r.losses.mean()) for r in run(task(), digits(), algorithm=how, rounds=3, evaluate_every=3)]
    assert losses[-1] < 0.95 * losses[0]


@every
def test_any_rule_weighs_the_generators(name: str) -> None:
    f = digits(alpha=0.5)
    for rule, expected in (("fedavg", f.train.sizes / f.train.sizes.sum()), ("uniform", torch.full((3,), 1 / 3))):
        (done,) = run(task(), f, algorithm=SMALL[name], rule=rule, rounds=1)
        assert list(done.weights.values()) == pytest.approx(expected.tolist())
    (done,) = run(task(), f, algorithm=SMALL[name], rule={"name": "qfedavg", "q": 0.1}, rounds=1)
    assert all(w > 0 for w in done.weights.values())


def test_a_rule_learns_the_generators_learning_rate() -> None:
    """q-FedAvg takes its Lipschitz constant from the rate of those who train, not of the client that is not asked."""
    from commonweal.run import given

    job = given(task(), digits(), "qfedavg", algorithm=SMALL["fedcvae"] | {"lr": 0.004}, rounds=1)
    assert job.algorithm.rule.lipschitz == pytest.approx(250)  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", [FedCGAN, FedCVAE])
def test_what_cannot_be_made_is_refused(kind: type[Generating]) -> None:
    name = kind.__name__.lower()
    with pytest.raises(ConfigError, match=rf"{name} makes images \(channels, height, width\).*rows are \(10,\)"):
        kind(FedAvg(), SGD(), replace(SETTING, shape=(10,)))
    with pytest.raises(ConfigError, match=f"{name} needs classes"):
        kind(FedAvg(), SGD(), replace(SETTING, loss="binary"))
    with pytest.raises(ConfigError, match=f"{name} latent = 0: it must be at least 1"):
        kind(FedAvg(), SGD(), SETTING, latent=0)
    f = Federation.from_arrays(3 * np.random.default_rng(0).random((40, 1, 8, 8)), np.arange(40) % 10, ["a", "b"] * 20)
    with pytest.raises(DataError, match=r"live in \[0, 1\]"):
        list(run(task(), f, algorithm=SMALL[name], rounds=1))
