"""No client exceeds its bound, and the noise hides exactly that bound."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from commonweal.base import randomness
from commonweal.protocols.privacy.entropy import coins, secure_normal, source
from commonweal.protocols.privacy.release import Sensitivity, adapted_clip, contribute, release
from commonweal.rules import CVaR, FedAvg, Rule, SemiVRed, Uniform
from commonweal.rules.aaggff_d import AAggFFD
from commonweal.rules.private_form import Federated, PrivateForm
from commonweal.rules.term import TERM

RULES: list[Rule] = [FedAvg(), Uniform(), CVaR(0.8), TERM(2.0), SemiVRed(1.0), AAggFFD(scale=0.3)]
ODD = st.sampled_from([0.0, 1e-9, 0.3, 2.3, 1e30, math.nan, math.inf, -math.inf, -1.0])
LENGTH = st.sampled_from([0.0, 1e-20, 0.5, 1.0, 1e6, math.nan, math.inf])


def form_of(rule: Rule) -> PrivateForm:
    form = rule.private
    assert form is not None
    return form


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(RULES),
    st.lists(ODD, min_size=3, max_size=3),
    st.lists(LENGTH, min_size=3, max_size=3),
    st.lists(st.floats(-3, 3), min_size=3, max_size=3),
    st.floats(1e-3, 10),
)
def test_one_client_changes_its_own_term_only(
    rule: Rule, losses: list[float], lengths: list[float], means: list[float], clip: float
) -> None:
    """Lemma 1, after a round whose noised means are anything."""
    form = form_of(rule)
    public = form.learn(form.init(Federated(100, 0.1, 2.3)), torch.tensor(means[: form.statistics]))
    updates = torch.tensor(lengths)[:, None] * torch.tensor([[0.6, 0.8]])
    loss = torch.tensor(losses, dtype=torch.float64).clamp(0, form.bound)
    most = form.most(public)

    def terms(which: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        memory = {n: v.expand(len(which)) for n, v in form.init_client().items()}
        weighed = form.weigh(loss[which], memory, public)
        sent = contribute(updates[which], weighed.weights, weighed.statistics, clip, most)
        assert bool((sent.weights[sent.weights > 0] <= most).all())
        return sent.updates, sent.statistics

    update, statistics = terms([0, 1, 2])
    others, their_statistics = terms([0, 1])
    torch.testing.assert_close(update[:2], others, rtol=0, atol=0)
    torch.testing.assert_close(statistics[:2], their_statistics, rtol=0, atol=0)
    assert torch.isfinite(update).all() and torch.isfinite(statistics).all()
    assert float(update.norm(dim=1).max()) <= most * clip * (1 + 1e-6)
    assert float(statistics.abs().max() if statistics.numel() else 0) <= 0.5


def test_whatever_a_form_returns_is_clamped() -> None:
    updates = torch.full((4, 9), 100.0)
    weights = torch.tensor([-3.0, 50.0, math.nan, 1.0])
    statistics = torch.tensor([[9.0], [-9.0], [0.1], [math.inf]])
    sent = contribute(updates, weights, statistics, clip=2.0, most=4.0)
    torch.testing.assert_close(sent.updates.norm(dim=1), torch.tensor([0.0, 8.0, 0.0, 0.0]))
    assert sent.statistics[:, 0].tolist() == [0.5, -0.5, 0.0, 0.0]
    assert sent.weights.tolist() == [0.0, 4.0, 0.0, 0.0]
    assert sent.usable.tolist() == [True, True, False, False]


def test_the_noise_of_each_part() -> None:
    """z / sqrt(1 - share) H C on the update, z / sqrt(share) sqrt(k) / 2 on statistics."""
    sensitivity = Sensitivity(update=6.0, statistics=3, noise=2.0, share=0.05)
    zeros = torch.zeros(200_000)
    noise, _ = release(zeros, torch.zeros(3), sensitivity, source("seed", 1, 1, randomness.RELEASE))
    assert float(noise.std()) == pytest.approx(2 / math.sqrt(0.95) * 6, rel=0.01)
    assert sensitivity.statistics_deviation == pytest.approx(2 / math.sqrt(0.05) * math.sqrt(3) / 2)
    parts = (6 / sensitivity.update_deviation) ** 2 + 3 / 4 / sensitivity.statistics_deviation**2
    assert math.sqrt(1 / parts) == pytest.approx(2.0)  # together they are one mechanism of noise z
    alone = Sensitivity(update=6.0, statistics=0, noise=2.0, share=0.05)
    assert alone.update_deviation == 12.0


def test_normal_numbers_and_coins() -> None:
    draw = source("seed", 3, 1, randomness.RELEASE)
    numbers = secure_normal(200_000, draw)
    for power, moment in ((1, 0), (2, 1), (3, 0), (4, 3)):
        assert np.mean(numbers**power) == pytest.approx(moment, abs=0.05)
    assert np.mean(np.abs(numbers) > 3) == pytest.approx(0.0027, abs=5e-4)
    assert coins(0.3, 100_000, draw).mean() == pytest.approx(0.3, abs=0.006)
    assert coins(1.0, 10, draw).all()


def test_the_system_never_repeats_itself_and_a_seed_does() -> None:
    one, two = (secure_normal(4, source("system", 0, 1, 1)).tolist() for _ in range(2))
    assert one != two
    one, two = (secure_normal(4, source("seed", 0, 1, 1)).tolist() for _ in range(2))
    assert one == two
    assert secure_normal(4, source("seed", 0, 2, 1)).tolist() != one


def test_the_clip_bound_follows_its_quantile_and_has_a_floor() -> None:
    assert adapted_clip(1.0, 1.0, 1.0, 0.9) == pytest.approx(math.exp(-0.02))
    assert adapted_clip(1.0, 1.0, -70.0, 0.9) == pytest.approx(math.exp(0.18))
    clip = 1.0
    for _ in range(1000):
        clip = adapted_clip(clip, 1.0, 1.0, 0.5)
    assert clip == 0.1
