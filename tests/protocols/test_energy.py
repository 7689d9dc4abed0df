"""Energies, Langevin steps and mixtures against hand computations, autograd and known densities."""

import math
from itertools import chain

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from commonweal.base.errors import DataError
from commonweal.protocols.synthetic import energy
from commonweal.protocols.synthetic.energy import (
    SCHEDULES,
    contrast,
    energy_gradient,
    langevin,
    logit,
    mixture_gradient,
)
from commonweal.protocols.synthetic.fedevg import FedEvg
from commonweal.protocols.synthetic.fitting import (
    BETAS,
    WEIGHT_DECAY,
    adam,
    batches,
    check_unit,
    scaled,
)
from commonweal.task.task import Task
from synthetic_helpers import digits, population, task


def test_the_mixtures_gradient_is_autograds_of_the_explicit_mixture() -> None:
    """Eq. 4.13 is the derivative of eq. 4.11, whatever the energies are."""
    g = torch.Generator().manual_seed(0)
    A = torch.randn(3, 4, 4, generator=g, dtype=torch.float64)
    weights = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    x = torch.randn(6, 4, generator=g, dtype=torch.float64, requires_grad=True)
    energies = torch.stack([(x @ a).tanh().sum(1) + 0.3 * x.square().sum(1) for a in A])  # (3, 6)
    whole = -(weights[:, None] * torch.exp(-energies)).sum(0).log()
    (expected,) = torch.autograd.grad(whole.sum(), x, retain_graph=True)
    grads = torch.stack([torch.autograd.grad(e.sum(), x, retain_graph=True)[0] for e in energies])
    grad, posterior = mixture_gradient(weights, torch.exp(-energies.detach()), grads)
    torch.testing.assert_close(grad, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(posterior.sum(0), torch.ones(6, dtype=torch.float64))


def test_weights_need_not_be_normalised_and_a_single_client_is_the_mixture() -> None:
    grads = torch.tensor([[[1.0, -2.0]], [[3.0, 4.0]]])  # (2, 1, 2)
    boltzmann = torch.tensor([[math.e], [1 / math.e]])
    one, _ = mixture_gradient(torch.tensor([2.0]), boltzmann[:1], grads[:1])
    assert torch.equal(one, grads[0])
    weights = torch.tensor([1.0, 3.0])
    small, _ = mixture_gradient(weights, boltzmann, grads)
    large, _ = mixture_gradient(50 * weights, boltzmann, grads)
    torch.testing.assert_close(small, large)
    a = math.e
    b = 3 / math.e
    by_hand = torch.tensor([[(a * 1 + b * 3) / (a + b), (a * -2 + b * 4) / (a + b)]])
    torch.testing.assert_close(small, by_hand)


def test_a_langevin_step_by_hand() -> None:
    x = torch.tensor([[0.2, 0.5, 0.9]])
    grad = torch.tensor([[1.0, -2.0, -3.0]])
    moved = langevin(x, grad, 0.1, 0.01, torch.tensor([[1.0, -1.0, 0.0]]))
    expected = torch.tensor([[0.2 - 0.1 + 0.01, 0.5 + 0.2 - 0.01, 1.0]])  # 1.2 is clipped
    torch.testing.assert_close(moved, expected)
    assert float(langevin(x, grad, 10.0, 0.0, torch.zeros_like(x)).amin()) == 0.0


def test_energies_and_gradients_of_a_linear_model_by_hand() -> None:
    linear = nn.Linear(2, 3)
    model = Task(linear)
    x = torch.tensor([[0.5, 1.0], [0.0, 0.25]])
    y = torch.tensor([2, 0])
    energy, grad = energy_gradient(model, model.initial, x, y, clip=10.0)
    W = linear.weight.detach()
    b = linear.bias.detach()
    torch.testing.assert_close(energy, -torch.stack([W[2] @ x[0] + b[2], W[0] @ x[1] + b[0]]))
    torch.testing.assert_close(grad, -W[[2, 0]])
    clipped = energy_gradient(model, model.initial, x, y, clip=0.05)[1]
    torch.testing.assert_close(clipped, (-W[[2, 0]]).clamp(-0.05, 0.05))


def test_many_rows_are_taken_in_parts_and_stay_in_order() -> None:
    model = task()
    x = torch.rand(600, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    y = torch.arange(600) % 10
    energy, grad = energy_gradient(model, model.initial, x, y, 3.0)
    some = torch.tensor([3, 255, 256, 599])
    few_energies, few_grads = energy_gradient(model, model.initial, x[some], y[some], 3.0)
    torch.testing.assert_close(energy[some], few_energies)
    torch.testing.assert_close(grad[some], few_grads)


def test_langevin_steps_recover_the_modes_of_a_known_density() -> None:
    """Two clients hold a Gaussian each; steps on their mixture find both, with their widths."""
    centres = torch.tensor([[0.25, 0.3], [0.75, 0.6]])
    width = 0.05
    rng = np.random.default_rng(0)
    step = width**2 / 20
    x = torch.from_numpy(rng.random((800, 2), dtype=np.float32))
    for _ in range(400):
        away = (x - centres[:, None]) / width**2  # (2, 800, 2), the gradients
        energies = ((x - centres[:, None]) / width).square().sum(-1) / 2
        # The mixture's gradient does not depend on a common factor.
        boltzmann = torch.exp(energies.amin(0) - energies)
        grad, _ = mixture_gradient(torch.tensor([1.0, 1.0]), boltzmann, away)
        epsilon = torch.from_numpy(rng.standard_normal(x.shape, np.float32))
        x = langevin(x, grad, step, math.sqrt(2 * step), epsilon)
    nearer = (x[:, None] - centres).norm(dim=-1).argmin(1)
    for k in (0, 1):
        mode = x[nearer == k]
        assert 300 < len(mode) < 500
        torch.testing.assert_close(mode.mean(0), centres[k], rtol=0, atol=0.012)
        torch.testing.assert_close(mode.std(0), torch.full((2,), width), rtol=0.15, atol=0)


Labelled = tuple[Tensor, Tensor]


def mean_energy(model: Task, w: Tensor, rows: Labelled) -> float:
    with torch.no_grad():
        return -float(logit(model.outputs(w, rows[0]), rows[1]).mean())


def gap(model: Task, w: Tensor, real: Labelled, synthetic: Labelled) -> float:
    """The mean energy of real rows minus that of synthetic ones."""
    return mean_energy(model, w, real) - mean_energy(model, w, synthetic)


def test_the_contrast_has_the_gradient_of_the_log_likelihood() -> None:
    """Eq. 4.4 on an energy with known normaliser: E = (x - m)^2 / 2, so d log p / dm = x - m."""
    m = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    real = torch.tensor([0.9, 1.1], dtype=torch.float64)
    deviations = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    sampled = m.detach() + deviations  # a sample of N(m, 1) with its mean
    loss = contrast(-(real - m).square() / 2, -(sampled - m).square() / 2)
    (grad,) = torch.autograd.grad(loss, m)
    score = (real - m.detach()).mean()
    assert float(grad) == pytest.approx(-float(score))  # descent raises the likelihood


@pytest.mark.parametrize("printed", [False, True])
def test_training_lowers_the_energy_of_real_rows_against_sampled_ones(
    printed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And with the sign that Algorithm 4.2 prints it would raise it."""
    if printed:
        monkeypatch.setattr(energy, "contrast", lambda real, negative: -contrast(real, negative))
    model = task()
    own = digits(clients=1).train
    evg = FedEvg(model, population(clients=1), seed=3, steps=60, batch=32, lr=3e-3)
    message = evg.message(evg.init(evg.population))
    message["x"] = message["x"].clamp(0, 1)
    real = (own.x, own.y)
    synthetic = (message["x"], message["y"])
    rng = np.random.default_rng(0)
    w, _ = evg.train(model.initial, message, own.x, own.y, rng)
    before = gap(model, model.initial, real, synthetic)
    after = gap(model, w, real, synthetic)
    assert after > before + 0.1 if printed else after < before - 0.1


def test_training_reports_the_loss_and_the_score_of_its_batches() -> None:
    """With a single batch they are those of the classifier before training."""
    model = task()
    own = digits(clients=1).train
    evg = FedEvg(model, population(clients=1), seed=3, steps=1, batch=1000)
    message = evg.message(evg.init(evg.population))
    rng = np.random.default_rng(0)
    _, report = evg.train(model.initial, message, own.x, own.y, rng)
    outputs = model.outputs(model.initial, own.x)
    loss = nn.functional.cross_entropy(outputs, own.y)
    assert float(report["loss"]) == pytest.approx(float(loss), rel=1e-5)
    correct = outputs.argmax(1) == own.y
    assert float(report["score"]) == pytest.approx(float(correct.double().mean()))


def test_the_cosine_goes_from_first_to_last() -> None:
    cosine = SCHEDULES["cosine"]
    assert cosine(1, 500) == 0
    assert cosine(500, 500) == pytest.approx(1)
    assert cosine(251, 501) == pytest.approx(0.5)
    assert cosine(1, 1) == 0


def test_the_authors_schedule_stays_near_its_start() -> None:
    """Step sizes that their code takes, found by running it (facts/reference.md 4.1)."""
    evg = FedEvg(task(), population(), rounds=500, preset="reference")
    steps = {t: round(evg.step(t), 2) for t in (250, 450, 490, 499, 500)}
    assert steps == pytest.approx({250: 9.94, 450: 9.65, 490: 8.4, 499: 3.2, 500: 1.0}, abs=0.051)


def test_adam_is_torchs() -> None:
    g = torch.Generator().manual_seed(1)
    w = torch.randn(7, generator=g)
    grads = torch.randn(5, 7, generator=g)
    leaf = w.clone().requires_grad_()
    ours = adam(0.01)
    memory = ours.memory(w)
    optimizer = torch.optim.Adam([leaf], lr=0.01, betas=BETAS, weight_decay=WEIGHT_DECAY)
    for grad in grads:
        leaf.grad = grad.clone()
        optimizer.step()
        ours.step(w, grad, memory)
    torch.testing.assert_close(w, leaf.detach())


def test_an_epoch_takes_all_rows() -> None:
    taken = [b.tolist() for b in batches(10, 4, 2, None, np.random.default_rng(0))]
    assert [len(b) for b in taken] == [4, 4, 2, 4, 4, 2]
    assert sorted(chain(*taken[:3])) == sorted(chain(*taken[3:])) == list(range(10))
    assert taken[:3] != taken[3:]
    assert [len(b) for b in batches(10, 4, 1, 4, np.random.default_rng(0))] == [4, 4, 2, 4]


def test_rows_must_lie_in_the_unit_interval() -> None:
    assert scaled(check_unit(torch.tensor([[0, 255]], dtype=torch.uint8))).tolist() == [[0.0, 1.0]]
    assert scaled(check_unit(torch.tensor([[0.0, 0.7]]))).tolist() == [[0.0, pytest.approx(0.7)]]
    with pytest.raises(DataError, match=r"from -1 to 0\.5: scale them"):
        check_unit(torch.tensor([[-1.0, 0.5]]))
    with pytest.raises(DataError, match="int64"):
        check_unit(torch.tensor([[0, 1]]))
