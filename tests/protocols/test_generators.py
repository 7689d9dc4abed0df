"""FedCGAN and FedCVAE: each part of the vector has its own loss's gradient, and runs average it."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, softplus

from cases import cases
from commonweal.base.errors import ConfigError, DataError
from commonweal.config import catalog
from commonweal.data.federation import Federation
from commonweal.engines.simulator import Simulator
from commonweal.jobs.job import Job, job_from_parts
from commonweal.jobs.rounds import run
from commonweal.protocols.algorithm import Request
from commonweal.protocols.servers import SGD
from commonweal.protocols.synthetic import FedCGAN, FedCVAE
from commonweal.protocols.synthetic.fedcvae import _gaussian
from commonweal.protocols.synthetic.fitting import fit_model
from commonweal.protocols.synthetic.generating import Generating
from commonweal.rules import Rule
from commonweal.rules.fedavg import FedAvg
from commonweal.task.task import Batch, Task
from synthetic_helpers import SMALL, built, digits, population, task

every = cases("name", ["fedcgan", "fedcvae"])


def batch(rows: int = 6) -> Batch:
    own = digits().train
    return Batch(own.x[:rows], own.y[:rows], torch.full((rows,), 1 / rows))


def uniforms(rows: int, latent: int = 6) -> Tensor:
    return torch.rand(rows, latent, generator=torch.Generator().manual_seed(0))


def test_generator_and_discriminator_each_follow_their_own_loss() -> None:
    gan = built("fedcgan").client_task
    b = batch()
    u = uniforms(6)
    w = gan.initial.clone().requires_grad_()
    (grad,) = torch.autograd.grad(gan.generator_loss(w, b, u), w)
    generator = gan.module.get_submodule("generator")
    discriminator = gan.module.get_submodule("discriminator")
    fake = generator(torch.cat([2 * u - 1, torch.eye(10)[b.y]], 1))
    real = discriminator(b.x)
    detached = discriminator(fake.detach())
    judged = discriminator(fake)
    of_discriminator = softplus(-real[:, 0]).mean() + softplus(detached[:, 0]).mean()
    of_discriminator = of_discriminator + cross_entropy(real[:, 1:], b.y)
    of_discriminator = of_discriminator + cross_entropy(detached[:, 1:], b.y)
    of_generator = softplus(-judged[:, 0]).mean() + cross_entropy(judged[:, 1:], b.y)
    expected = {
        "generator": torch.autograd.grad(
            of_generator, list(generator.parameters()), retain_graph=True
        ),
        "discriminator": torch.autograd.grad(of_discriminator, list(discriminator.parameters())),
    }
    pieces = gan.tensors(grad)
    for part, grads in expected.items():
        own = [piece for path, piece in pieces.items() if path.startswith(part)]
        for got, want in zip(own, grads, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)


@cases("pixels", ["sum", "mean"])
def test_the_evidence_lower_bound_by_hand(pixels: str) -> None:
    vae = built("fedcvae", pixels=pixels).client_task
    b = batch()
    u = uniforms(6)
    encoder = vae.module.get_submodule("encoder")
    decoder = vae.module.get_submodule("decoder")
    epsilon = torch.from_numpy(norm.ppf(u.double().numpy())).float()
    normal = torch.distributions.Normal
    with torch.no_grad():
        mean, raw = encoder(b.x).chunk(2, 1)
        spread = softplus(raw) + 1e-8
        decoded = decoder(torch.cat([mean + spread * epsilon, torch.eye(10)[b.y]], 1))
        posterior = normal(mean, spread)
        prior = normal(0.0, 1.0)
        kl = torch.distributions.kl_divergence(posterior, prior).sum(1)
        errors = (decoded - b.x).square().flatten(1)
        reconstruction = errors.sum(1) if pixels == "sum" else errors.mean(1)
        loss = vae.generator_loss(vae.initial, b, u)
        torch.testing.assert_close(loss, (reconstruction + kl).mean())


def test_uniform_numbers_become_normal_ones() -> None:
    u = torch.tensor([0.0, 0.025, 0.5, 0.9])
    expected = norm.ppf([5e-7, 0.025, 0.5, 0.9])
    np.testing.assert_allclose(_gaussian(u).numpy(), expected, rtol=0.01, atol=1e-6)


@every
@cases("shape", [(1, 8, 8), (3, 9, 6), (1, 28, 28)])
def test_rows_have_the_datas_shape_and_are_in_the_unit_interval(
    name: str, shape: tuple[int, ...]
) -> None:
    p = population(shape)
    a = built(name, p, spc=3)
    state = a.init(p)
    x, y = a.samples(state)
    assert x.shape == (30, *shape) and y.bincount().tolist() == [3] * 10
    assert 0 <= float(x.min()) <= float(x.max()) <= 1
    assert torch.equal(x, a.samples(state)[0])
    assert not torch.equal(state["w"], built(name, p, seed=4).init(p)["w"])


@every
def test_clients_train_by_the_authors_adam(name: str) -> None:
    client = built(name, lr=0.01).client
    assert (client.optimizer, client.lr, client.beta1, client.beta2) == ("adam", 0.01, 0.5, 0.999)
    assert client.weight_decay == 1e-4


def job(model: Task, f: Federation, **parts: Any) -> Job:
    return job_from_parts(model, f, rounds=1, **parts)


def test_clients_are_grouped_by_the_generators_size_not_the_classifiers() -> None:
    small = Task(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    f = digits()
    simulator = Simulator(f)
    mode, why = simulator.decision(job(small, f, algorithm=SMALL["fedcvae"]).algorithm)
    assert mode == "loop" and "convolutions" in why
    assert simulator.decision(job(small, f).algorithm)[0] == "chunked"


@cases("size", [16, 19])
def test_a_classifier_with_batchnorm_skips_a_remainder_of_one_row(size: int) -> None:
    layers = [nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10)]
    model = Task(nn.Sequential(*layers))
    x = torch.rand(20, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    y = torch.arange(10).repeat(2)
    w = fit_model(model, x, y, 3, size, 1e-2, np.random.default_rng(0))
    assert w.isfinite().all()
    assert not torch.equal(w, model.initial)
    n = model.num_trainable
    assert not torch.equal(w[n:], model.initial[n:])  # the buffers of BatchNorm


def test_a_classifier_with_dropout_depends_on_its_stream_only() -> None:
    model = Task(nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(64, 10)))
    x = torch.rand(20, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    y = torch.arange(10).repeat(2)
    before = torch.random.get_rng_state()
    first = fit_model(model, x, y, 2, 8, 1e-2, np.random.default_rng(0))
    assert torch.equal(before, torch.random.get_rng_state())
    torch.rand(1)
    assert torch.equal(first, fit_model(model, x, y, 2, 8, 1e-2, np.random.default_rng(0)))


@every
def test_a_cohort_at_once_gives_the_numbers_of_one_after_the_other(name: str) -> None:
    f = digits()
    a = built(name)
    request = Request(torch.arange(3), a.averaging.ask(a.init(f.population)))
    loop = Simulator(f, vectorize="loop").collect(a, request).values
    vmap = Simulator(f, vectorize="vmap").collect(a, request).values
    assert loop.keys() == vmap.keys()
    for key in loop:
        torch.testing.assert_close(loop[key], vmap[key], rtol=1e-3, atol=2e-4)


@every
def test_training_lowers_the_loss_that_the_clients_report(name: str) -> None:
    algorithm = SMALL[name] | {"steps": 6, "lr": 4e-3}
    rounds = run(task(), digits(), algorithm=algorithm, rounds=5, evaluate_every=5)
    losses = [float(np.mean(done.losses)) for done in rounds]
    assert losses[-1] < 0.95 * losses[0]


@every
def test_any_rule_weighs_the_generators(name: str) -> None:
    f = digits(alpha=0.5)
    by_size = f.train.sizes / f.train.sizes.sum()
    for rule, expected in (("fedavg", by_size), ("uniform", torch.full((3,), 1 / 3))):
        (done,) = run(task(), f, algorithm=SMALL[name], rule=rule, rounds=1)
        assert list(done.weights.values()) == pytest.approx(expected.tolist())
    qfedavg = {"name": "qfedavg", "q": 0.1}
    (done,) = run(task(), f, algorithm=SMALL[name], rule=qfedavg, rounds=1)
    assert all(w > 0 for w in done.weights.values())


def test_a_rule_learns_the_generators_learning_rate() -> None:
    """q-FedAvg takes its Lipschitz constant from the lr of the clients that train."""
    rule: Rule = catalog.build("rules", {"name": "qfedavg", "scaled": True})
    algorithm = SMALL["fedcvae"] | {"lr": 0.004}
    state = job(task(), digits(), rule=rule, algorithm=algorithm).initial_state()
    assert float(state["rule"]["lipschitz"]) == pytest.approx(250)


@cases("kind", [FedCGAN, FedCVAE])
def test_what_cannot_be_generated_is_refused(kind: type[Generating]) -> None:
    name = kind.__name__.lower()
    words = rf"{name} makes images \(channels, height, width\).*rows are \(10,\)"
    with pytest.raises(ConfigError, match=words):
        kind(task(), population((10,)), FedAvg(), SGD())
    with pytest.raises(ConfigError, match=f"{name} needs classes"):
        kind(task().replace(loss="binary"), population(), FedAvg(), SGD())
    with pytest.raises(ConfigError, match=f"{name} latent = 0: it must be at least 1"):
        kind(task(), population(), FedAvg(), SGD(), latent=0)
    x = 3 * np.random.default_rng(0).random((40, 1, 8, 8))
    f = Federation.from_arrays(x, np.arange(40) % 10, ["a", "b"] * 20)
    with pytest.raises(DataError, match=r"are in \[0, 1\]"):
        list(run(task(), f, algorithm=SMALL[name], rounds=1))
