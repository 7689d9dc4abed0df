"""The thesis' figures of models: the loss on the plane through three of them, and calibration."""

from typing import Any

import pytest
import torch

from commonweal.base.errors import ConfigError
from commonweal.data.federation import Federation
from commonweal.jobs.job import Job, job_from_parts
from commonweal.jobs.rounds import Round, run
from commonweal.training.evaluation import evaluate_rows
from personal_helpers import client, federation, task, trained
from published import trained_models
from run_helpers import states_of


def done(name: str, **how: Any) -> tuple[Job, Round]:
    """A job with a client method, and its last round."""
    settings = {"rounds": 3, "cohort": 2, "seed": 1} | how
    job = job_from_parts(task(), federation(), client=client(name), **settings)
    return job, list(run(job))[-1]


def rows_of(job: Job) -> Federation:
    assert job.local is not None
    return job.local.federation


def test_a_landscape_passes_through_its_models() -> None:
    job, _ = done("sgd")
    test = rows_of(job).test
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, job.task.size, generator=generator)
    c = (a + b) / 2 + torch.randn(job.task.size, generator=generator)
    corners = torch.stack([a, b, c])
    plane = trained_models.landscape(job.task, test, corners, side=5, margin=0.0)
    assert plane.losses.shape == (5, 5)
    distances = torch.cdist(plane.corners, plane.corners)
    torch.testing.assert_close(distances, torch.cdist(corners, corners), rtol=1e-3, atol=1e-3)
    for column, w in ((0, a), (4, b), (2, (a + b) / 2)):
        got = float(plane.losses[0, column])
        assert got == pytest.approx(float(evaluate_rows(job.task, w, test)[0].mean()), rel=1e-4)


def test_models_on_a_line_have_no_plane() -> None:
    job, _ = done("sgd")
    w = job.task.initial
    with pytest.raises(ConfigError, match="on a line"):
        trained_models.landscape(job.task, rows_of(job).test, torch.stack([w, w + 1, w + 1]))


def test_the_landscape_takes_clients_whose_own_model_has_joined() -> None:
    f = federation(dict.fromkeys("abcdef", 20))
    method = client("superfed-mm", begin=2.0)
    drawn = 0
    for seed in range(6):
        job = job_from_parts(task(), f, client=method, rounds=4, cohort=2, seed=seed)
        last = list(run(job))[-1]
        states = states_of(job.engine)
        joined = {i for i, state in states.items() if float(state["joined"])}
        if len(joined) < 2:
            with pytest.raises(ConfigError, match="two clients with personal models"):
                trained_models.loss_landscape(job, last.state)
            continue
        names, plane = trained_models.loss_landscape(job, last.state)
        own = [f"{f.names[i]}'s model" for i in (min(joined), max(joined))]
        assert list(names[1:]) == own
        assert plane.losses.isfinite().all()
        drawn += 1
    assert drawn > 0


def test_the_landscape_of_a_plain_method_is_of_its_clients_next_round() -> None:
    """The thesis' Figure 2.4 has FedAvg too."""
    job, last = done("sgd")
    names, plane = trained_models.loss_landscape(job, last.state)
    assert names == ("global model", "a's after a round", "e's after a round")
    message = job.algorithm.message(last.state)
    assert job.algorithm.client is not None
    for corner, k in zip(plane.corners[1:], (0, 4), strict=True):
        reply, *_ = trained(job.algorithm.client, job.task, rows_of(job), message, who=k, seed=1)
        assert float(corner.norm()) == pytest.approx(float(reply["update"].norm()), rel=1e-4)
    assert plane.losses.isfinite().all()


def test_one_client_has_no_landscape() -> None:
    job = job_from_parts(task(), federation({"a": 20}), rounds=1)
    last = list(run(job))[-1]
    with pytest.raises(ConfigError, match="needs two clients that train the global model"):
        trained_models.loss_landscape(job, last.state)


def test_reliability_counts_every_row_once() -> None:
    job, last = done("ditto")
    test = rows_of(job).test
    tables = trained_models.reliability(job, last.state)
    assert list(tables) == ["global model", "personal models"]
    assert last.evaluation is not None
    assert last.evaluation.personal is not None
    evaluations = (last.evaluation, last.evaluation.personal)
    for table, evaluation in zip(tables.values(), evaluations, strict=True):
        assert int(table[:, 0].sum()) == len(test.y)
        right = (table[:, 0] * table[:, 2].nan_to_num()).sum() / len(test.y)
        weights = test.sizes.double()
        expected = (evaluation.score * weights).sum() / weights.sum()
        assert float(right) == pytest.approx(float(expected))


def test_reliability_of_a_plain_method_is_the_servers() -> None:
    job, last = done("sgd")
    assert list(trained_models.reliability(job, last.state)) == ["global model"]
