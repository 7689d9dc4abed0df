"""Uniform: equal weights, and the plain mean of the clients' models."""

import pytest
import torch

from commonweal.jobs.job import job_from_experiment
from commonweal.jobs.rounds import converse
from commonweal.rules import FedAvg, Uniform
from rule_helpers import reports, uniforms, vowel_experiment, weigh


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_every_reporter_counts_one_part_in_s(size: int) -> None:
    told = reports(
        uniforms(size, size), sizes=1 + 1000 * uniforms(size + 1, size), clients=size + 5
    )
    assert weigh(Uniform(), told).tolist() == pytest.approx([1 / size] * size, rel=1e-15)


@pytest.mark.parametrize("losses", [[0.0, 0.0], [1e-30, 1e4], [5.0, 0.0]])
def test_losses_do_not_matter(losses: list[float]) -> None:
    assert weigh(Uniform(), reports(losses, sizes=[1, 10**9])).tolist() == [0.5, 0.5]


def test_it_is_fedavg_where_all_have_as_many_rows() -> None:
    told = reports(uniforms(0, 5), sizes=[12] * 5)
    torch.testing.assert_close(weigh(Uniform(), told), weigh(FedAvg(), told), rtol=1e-15, atol=0)


def test_response_is_zero() -> None:
    assert Uniform().response(torch.tensor([1.0, 2.0])).tolist() == [0.0, 0.0]


def test_the_server_takes_the_plain_mean_of_the_clients_models() -> None:
    job = job_from_experiment(vowel_experiment("uniform", rounds=1, cohort=4))
    state = job.initial_state()
    outcome, exchanges = converse(job.algorithm, job.engine, state, job.sample(1))
    (_, replies) = exchanges[0]
    models = state["w"] - replies.values["update"]
    assert len(models) == 4
    torch.testing.assert_close(outcome.state["w"], models.mean(0), rtol=1e-5, atol=1e-6)
