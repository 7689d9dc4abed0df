"""Energies, Langevin steps and mixtures against hand computations, autograd and known densities."""

import math
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from commonweal.errors import DataError
from commonweal.synthetic import _energy
from commonweal.synthetic._energy import SCHEDULES, ascent, contrast, langevin, logit, mixture, train
from commonweal.synthetic._fit import BETAS, WEIGHT_DECAY, adam, batches, scaled, unit
from commonweal.synthetic.fedevg import FedEvg
from commonweal.task import Task
from made import SETTING, digits, task


def test_the_mixtures_gradient_is_autograds_of_the_explicit_mixture() -> None:
    """Eq. 4.13 is the derivative of eq. 4.11, whatever the energies are."""
    g = torch.Generator().manual_seed(0)
    A = torch.randn(3, 4, 4, generator=g, dtype=torch.float64)
    weights = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    x = torch.randn(6, 4, generator=g, dtype=torch.float64, requires_grad=True)
    energies = torch.stack([(x @ a).tanh().sum(1) + 0.3 * x.square().sum(1) for a in A])  # (3, 6)
    whole = -(weights[:, None] * torch.exp(-energies)).sum(0).log()
    (expected,) = torch.autograd.grad(whole.sum(), x, retain_graph=True)
    slopes = torch.stack([torch.autograd.grad(e.sum(), x, retain_graph=True)[0] for e in energies])
    slope, share = mixture(weights, torch.exp(-energies.detach()), slopes)
    torch.testing.assert_close(slope, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(share.sum(0), torch.ones(6, dtype=torch.float64))


def test_weights_need_not_be_normalised_and_a_lone_client_is_the_mixture() -> None:
    slopes = torch.tensor([[[1.0, -2.0]], [[3.0, 4.0]]])  # (2, 1, 2)
    boltzmann = torch.tensor([[math.e], [1 / math.e]])
    assert torch.equal(mixture(torch.tensor([2.0]), boltzmann[:1], slopes[:1])[0], slopes[0])
    small, large = (mixture(torch.tensor([1.0, 3.0]) * c, boltzmann, slopes)[0] for c in (1, 50))
    torch.testing.assert_close(small, large)
    a, b = math.e, 3 / math.e
    by_hand = torch.tensor([[(a * 1 + b * 3) / (a + b), (a * -2 + b * 4) / (a + b)]])
    torch.testing.assert_close(small, by_hand)


def test_a_langevin_step_by_hand() -> None:
    x, slope = torch.tensor([[0.2, 0.5, 0.9]]), torch.tensor([[1.0, -2.0, -3.0]])
    moved = langevin(x, slope, 0.1, 0.01, torch.tensor([[1.0, -1.0, 0.0]]))
    torch.testing.assert_close(moved, torch.tensor([[0.2 - 0.1 + 0.01, 0.5 + 0.2 - 0.01, 1.0]]))  # 1.2 is clipped
    assert float(langevin(x, slope, 10.0, 0.0, torch.zeros_like(x)).amin()) == 0.0


def test_energies_and_slopes_of_a_linear_model_by_hand() -> None:
    linear = nn.Linear(2, 3)
    model = Task(linear)
    x, y = torch.tensor([[0.5, 1.0], [0.0, 0.25]]), torch.tensor([2, 0])
    energy, slope = ascent(model, model.initial, x, y, clip=10.0)
    W, b = linear.weight.detach(), linear.bias.detach()
    torch.testing.assert_close(energy, -torch.stack([W[2] @ x[0] + b[2], W[0] @ x[1] + b[0]]))
    torch.testing.assert_close(slope, -W[[2, 0]])
    clipped = ascent(model, model.initial, x, y, clip=0.05)[1]
    torch.testing.assert_close(clipped, (-W[[2, 0]]).clamp(-0.05, 0.05))


def test_many_rows_are_taken_in_parts_and_stay_in_order() -> None:
    model, x = task(), torch.rand(600, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    y = torch.arange(600) % 10
    energy, slope = ascent(model, model.initial, x, y, 3.0)
    some = torch.tensor([3, 255, 256, 599])
    alone = ascent(model, model.initial, x[some], y[some], 3.0)
    torch.testing.assert_close(energy[some], alone[0])
    torch.testing.assert_close(slope[some], alone[1])


def test_the_sampler_recovers_the_modes_of_a_known_density() -> None:
    """Two clients hold a Gaussian of the unit square each; steps on their mixture find both, as wide as they are."""
    centres, width, rng = torch.tensor([[0.25, 0.3], [0.75, 0.6]]), 0.05, np.random.default_rng(0)
    step = width**2 / 20
    x = torch.from_numpy(rng.random((800, 2), dtype=np.float32))
    for _ in range(400):
        away = (x - centres[:, None]) / width**2  # (2, 800, 2), the slopes
        energies = ((x - centres[:, None]) / width).square().sum(-1) / 2
        boltzmann = torch.exp(energies.amin(0) - energies)  # the mixture's gradient does not feel a common factor
        slope, _ = mixture(torch.tensor([1.0, 1.0]), boltzmann, away)
        x = langevin(x, slope, step, math.sqrt(2 * step), torch.from_numpy(rng.standard_normal(x.shape, np.float32)))
    nearer = (x[:, None] - centres).norm(dim=-1).argmin(1)
    for k in (0, 1):
        mode = x[nearer == k]
        assert 300 < len(mode) < 500
        torch.testing.assert_close(mode.mean(0), centres[k], rtol=0, atol=0.012)
        torch.testing.assert_close(mode.std(0), torch.full((2,), width), rtol=0.15, atol=0)


def gap(model: Task, w: Tensor, real: tuple[Tensor, Tensor], made: tuple[Tensor, Tensor]) -> float:
    """The mean energy of real rows less that of sampled ones."""
    with torch.no_grad():
        return float(
            logit(model.outputs(w, made[0]), made[1]).mean() - logit(model.outputs(w, real[0]), real[1]).mean()
        )


def test_the_contrast_has_the_gradient_of_the_log_likelihood() -> None:
    """Eq. 4.4 on an energy whose normaliser is known: E = (x - m)^2 / 2, so d log p / dm = x - m."""
    m = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    real = torch.tensor([0.9, 1.1], dtype=torch.float64)
    sampled = m.detach() + torch.tensor([-1.0, 1.0], dtype=torch.float64)  # a sample of N(m, 1) with its mean
    loss = contrast(-(real - m).square() / 2, -(sampled - m).square() / 2)
    (slope,) = torch.autograd.grad(loss, m)
    assert float(slope) == pytest.approx(-(real - m.detach()).mean().item())  # descent raises the likelihood


@pytest.mark.parametrize("printed", [False, True])
def test_training_lowers_the_energy_of_real_rows_against_sampled_ones(
    printed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And with the sign that Algorithm 4.2 prints it would raise it."""
    if printed:
        monkeypatch.setattr(_energy, "contrast", lambda real, negative: -contrast(real, negative))
    how = replace(FedEvg(SETTING), steps=60, batch=32, lr=3e-3)
    model, own = task(), digits(clients=1).train
    server = how.init(model, 1)
    seen = server | {"x": server["x"].clamp(0, 1)}
    real, made = (own.x, own.y), (seen["x"], seen["y"])
    w, _ = train(how, model, model.initial, seen, own.x, own.y, np.random.default_rng(0))
    before, after = gap(model, model.initial, real, made), gap(model, w, real, made)
    assert after > before + 0.1 if printed else after < before - 0.1


def test_the_cosine_goes_from_first_to_last() -> None:
    way = SCHEDULES["cosine"]
    assert way(1, 500) == 0 and way(500, 500) == pytest.approx(1)
    assert way(251, 501) == pytest.approx(0.5)
    assert way(1, 1) == 0


def test_the_authors_schedule_stays_near_its_start() -> None:
    """Step sizes that their code takes, found by running it (facts/reference.md 4.1)."""
    how = FedEvg(replace(SETTING, rounds=500), preset="reference")
    steps = {t: round(how.step(t), 2) for t in (250, 450, 490, 499, 500)}
    assert steps == pytest.approx({250: 9.94, 450: 9.65, 490: 8.4, 499: 3.2, 500: 1.0}, abs=0.051)


def test_adam_is_torchs() -> None:
    g = torch.Generator().manual_seed(1)
    w, slopes = torch.randn(7, generator=g), torch.randn(5, 7, generator=g)
    leaf, memory = w.clone().requires_grad_(), {}
    optimiser = torch.optim.Adam([leaf], lr=0.01, betas=BETAS, weight_decay=WEIGHT_DECAY)
    for slope in slopes:
        leaf.grad = slope.clone()
        optimiser.step()
        w, memory = adam(w, slope, memory, 0.01)
    torch.testing.assert_close(w, leaf.detach())


def test_batches_pass_over_all_rows() -> None:
    taken = [b.tolist() for b in batches(10, 4, 2, None, np.random.default_rng(0))]
    assert [len(b) for b in taken] == [4, 4, 2, 4, 4, 2]
    assert sorted(chain(*taken[:3])) == sorted(chain(*taken[3:])) == list(range(10))
    assert [len(b) for b in batches(10, 4, 1, 4, np.random.default_rng(0))] == [4, 4, 2, 4]


def test_rows_must_lie_in_the_unit_interval() -> None:
    assert scaled(unit(torch.tensor([[0, 255]], dtype=torch.uint8))).tolist() == [[0.0, 1.0]]
    assert scaled(unit(torch.tensor([[0.0, 0.7]]))).tolist() == [[0.0, pytest.approx(0.7)]]
    with pytest.raises(DataError, match=r"from -1 to 0\.5: scale them"):
        unit(torch.tensor([[-1.0, 0.5]]))
    with pytest.raises(DataError, match="int64"):
        unit(torch.tensor([[0, 1]]))
