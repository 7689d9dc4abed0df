"""pooled: as good as scikit-learn's logistic regression on the same samples."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from commonweal.data.federation import Federation
from commonweal.jobs.reopening import reopen
from commonweal.jobs.rounds import Round, run
from commonweal.task.task import Task
from commonweal.training.client_state import ClientState
from run_helpers import states_of

NOISE = 0.02  # two standard errors of an accuracy on 2,500 samples


def noisy(samples: int = 5000, clients: int = 36) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Four classes that a linear model explains in half of the cases, as in a table of 36 users."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(samples, 20)).astype(np.float32)
    logits = x @ rng.normal(size=(20, 4)) * 0.25
    y = (logits + rng.gumbel(size=logits.shape)).argmax(1)
    return x, y, np.arange(samples) % clients


def pooled(f: Federation, **settings: Any) -> Round:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 4))
    client = {"name": "sgd", "lr": 0.1, "batch": 10}
    *_, done = run(Task(network), f, algorithm="pooled", client=client, **settings)
    return done


def test_it_is_as_good_as_logistic_regression() -> None:
    """Plain SGD of the same network loses 3.9 points in 20 epochs."""
    f = Federation.from_arrays(*noisy(), test=0.5)
    done = pooled(f, rounds=20, evaluate_every=20)
    assert done.evaluation is not None and done.evaluation.personal is not None
    sizes = done.evaluation.sizes
    score = float((done.evaluation.personal.score * sizes).sum() / sizes.sum())
    model = LogisticRegression().fit(f.train.x.numpy(), f.train.y.numpy())
    assert score > model.score(f.test.x.numpy(), f.test.y.numpy()) - NOISE


def test_all_clients_use_the_same_models_and_the_labels_of_test_samples_change_nothing() -> None:
    f = Federation.from_arrays(*noisy(600, 4), test=0.5)
    first = pooled(f, rounds=3)
    f.test.y.copy_((f.test.y + 1) % 4)
    again = pooled(f, rounds=3)
    for done in (first, again):
        engine, algorithm = done.job.engine, done.job.algorithm
        message = algorithm.message(done.state)
        uses = [algorithm.uses(message, ClientState(states_of(engine)[k])) for k in range(4)]
        for other in uses:
            assert torch.equal(uses[0].models, other.models)
            assert torch.equal(uses[0].weights, other.weights)
            assert set(uses[0].others) == set(other.others) == {"linear", "boosting"}
            assert all(torch.equal(vector, other.others[k]) for k, vector in uses[0].others.items())
        assert 0 < float(uses[0].weights[1]) <= 1
    assert torch.equal(first.state["w"], again.state["w"])


def test_a_run_is_resumed_and_reopened_with_the_same_models(tmp_path: Path) -> None:
    f = Federation.from_arrays(*noisy(300, 3), test=0.5)
    torch.manual_seed(0)
    task = Task(nn.Linear(20, 4))
    whole = run(task, f, algorithm="pooled", rounds=4, out=tmp_path / "whole")
    record = whole.result()
    begun = run(task, f, algorithm="pooled", rounds=4, out=tmp_path / "part")
    next(begun)
    begun.close()
    again = run(task, f, algorithm="pooled", rounds=4, out=tmp_path / "part", resume=True)
    assert torch.equal(again.result().state_dict()["weight"], record.state_dict()["weight"])
    job, state = reopen(tmp_path / "part", task, f)
    assert whole.last is not None and whole.last.evaluation is not None
    scores = [
        e.personal for e in (whole.last.evaluation, job.engine.evaluate(job.algorithm, state))
    ]
    assert scores[0] is not None and scores[1] is not None
    assert torch.equal(scores[0].losses, scores[1].losses)
