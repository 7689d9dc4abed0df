"""blend and choice with trees grown together, which they mix with each client's local models."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cases import cases
from commonweal.base.errors import ConfigError
from commonweal.data.federation import Federation
from commonweal.jobs.rounds import Round, Run, run
from commonweal.models.tree_ensemble import unflattened
from commonweal.models.trees import trees
from commonweal.record.record import Record
from commonweal.report.run_table import run_summary, weights_note
from commonweal.task.linear import linear_outputs
from commonweal.task.task import Task
from commonweal.task.uses import mixed_module
from commonweal.training.client_state import ClientState
from commonweal.training.evaluation import Evaluation
from run_helpers import contents, states_of, stop_after

METHODS = ["blend", "choice"]
CLIENTS = 6


def federation(
    kind: str = "classes", flipped: int = 0, sizes: tuple[int, ...] = (60,) * CLIENTS
) -> Federation:
    """Clients whose labels depend on a product; for the first few it has another sign."""
    rng = np.random.default_rng(5)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    x = rng.normal(size=(len(owner), 4)).astype(np.float32)
    z = np.sign(x[:, 0] * x[:, 1]) * np.where(owner < flipped, -1, 1)
    if kind == "values":
        y = (z + 0.3 * x[:, 2]).astype(np.float32)
    else:
        y = (z > 0).astype(np.int64) + (x[:, 2] > 0.7)
    return Federation.from_arrays(x, y, owner, test=0.4)


def start(f: Federation, client: Any = "blend", rounds: int = 10, **parts: Any) -> Run:
    task = Task(trees(tuple(f.train.x.shape[1:]), f.outputs, rounds))
    options = {"algorithm": "boosting", "client": client, "rounds": rounds, "validation": 0.25}
    return run(task, f, **options | {"evaluate_every": rounds} | parts)


def last(rounds: Run) -> Round:
    *_, done = rounds
    return done


def personal(done: Round) -> Evaluation:
    """The evaluation of what clients use."""
    assert done.evaluation is not None and done.evaluation.personal is not None
    return done.evaluation.personal


def states(done: Round) -> dict[int, dict[str, Tensor]]:
    return states_of(done.job.engine)


@cases("kind", ["classes", "values"])
def test_a_client_predicts_with_its_models_and_the_trees(kind: str) -> None:
    """By its state, in numpy: m of the trees, and the rest of the local models."""
    f = federation(kind)
    done = last(start(f))
    task, algorithm = done.job.task, done.job.algorithm
    for client, state in states(done).items():
        x, y = f.test.client(client).x, f.test.client(client).y
        together = task.raw_outputs(done.state["w"], x)  # of a regression, for scaled labels
        linear, forest = linear_outputs(state["linear"], x), unflattened(state["forest"])(x)
        m, own = float(state["m"]), state["other_weights"].tolist()
        assert 0 < m <= 0.5 and sum(own) == pytest.approx(1)
        parts = [(m, together)]
        parts += [((1 - m) * w, part) for w, part in zip(own, (linear, forest), strict=True)]
        module = mixed_module(
            task, task.module, algorithm.uses(algorithm.message(done.state), ClientState(state))
        )
        if kind == "values":
            value = sum(w * part.detach() for w, part in parts)
            torch.testing.assert_close(module(x).detach(), value, atol=1e-5, rtol=0)
            continue
        each = [w * part.softmax(1).detach().double().numpy() for w, part in parts]
        p = np.sum(each, 0)
        np.testing.assert_allclose(module(x).softmax(1).detach(), p, atol=1e-5)
        right = float((p.argmax(1) == y.numpy()).mean())
        assert float(personal(done).score[client]) == pytest.approx(right)


def test_validation_samples_join_after_the_weights_are_learned() -> None:
    f = federation()
    plain = last(start(f, "sgd")).state["w"]
    assert torch.equal(last(start(f, {"name": "blend", "learn_at": 1.0})).state["w"], plain)
    early = last(start(f, {"name": "blend", "learn_at": 0.5})).state["w"]
    tables = [Task(trees((4,), 3, 10)).tensors(w)["value"] for w in (plain, early)]
    columns = 3
    same = [torch.equal(*(t[k * columns : (k + 1) * columns] for t in tables)) for k in range(10)]
    assert same == [True] * 5 + [False] * 5


def test_those_for_whom_the_trees_are_wrong_keep_to_their_own() -> None:
    f = federation(flipped=2, sizes=(200, 200, *(60,) * 10))
    done = last(start(f, rounds=30))
    m = [float(state["m"]) for _, state in sorted(states(done).items())]
    assert max(m[:2]) < 0.25 and np.mean(m[2:]) > 0.4
    alone = last(start(f, {"name": "blend", "limit": 1e-9}, rounds=30))
    gains = personal(done).score - personal(alone).score
    assert gains[:2].min() > -0.03 and gains[2:].mean() > 0.02


def test_a_choice_takes_the_trees_where_they_are_better() -> None:
    f = federation(flipped=2, sizes=(200, 200, *(60,) * 10))
    done = last(start(f, {"name": "choice", "how": "likely"}, rounds=30))
    taken = torch.stack([state["taken"] for _, state in sorted(states(done).items())])
    assert taken[:2, 0].tolist() == [1, 1]
    assert taken[2:, 1].sum() >= 7
    assert taken[:, 2].sum() == 0
    uses = {
        k: done.job.algorithm.uses(done.job.algorithm.message(done.state), ClientState(s))
        for k, s in states(done).items()
    }
    for k, own in uses.items():
        assert float(own.weights[0]) == float(taken[k, 1])
        assert float(own.weights.sum()) == pytest.approx(1)


@cases("name", METHODS)
def test_a_resumed_run_ends_with_the_same_bytes(name: str, tmp_path: Path) -> None:
    f = federation()
    last(start(f, name, 5, out=tmp_path / name / "whole", evaluate_every=1))
    for number in (2, 3, 4):
        folder = tmp_path / name / str(number)
        stop_after(number, start(f, name, 5, out=folder, evaluate_every=1))
        last(start(f, name, 5, out=folder, evaluate_every=1, resume=True))
        assert contents(folder) == contents(tmp_path / name / "whole")


def test_a_run_says_what_each_client_predicts_with(tmp_path: Path) -> None:
    done = last(start(federation(), out=tmp_path / "run"))
    record = Record.read(tmp_path / "run")
    known = run_summary(record)["weights"]
    assert isinstance(known, dict)
    assert list(known) == ["together", "linear", "forest"]
    for client, state in states(done).items():
        name = done.job.population.names[client]
        assert known["together"][name] == pytest.approx(float(state["m"]))
        assert sum(own[name] for own in known.values()) == pytest.approx(1)
    assert "trees grown together" in weights_note([record])
    partners = personal(done).partners
    assert partners is not None and partners.tolist() == pytest.approx(
        [float(s["m"]) for _, s in sorted(states(done).items())]
    )


@cases("name", METHODS)
@cases("kind", ["classes", "values"])
def test_clients_with_one_row_or_one_class(name: str, kind: str) -> None:
    f = federation(kind, sizes=(1, 2, 3, 20, 100))
    if kind == "classes":
        f.train.client(3).y.fill_(1)
    done = last(start(f, name, evaluate_every=1))
    message = done.job.algorithm.message(done.state)
    assert len(states(done)) == 5
    for state in states(done).values():
        uses = done.job.algorithm.uses(message, ClientState(state))
        module = mixed_module(done.job.task, done.job.task.module, uses)
        assert module(f.train.x).isfinite().all()


def test_refused() -> None:
    f = federation()
    with pytest.raises(ConfigError, match="take one of the two"):
        start(f, algorithm={"name": "boosting", "personal": "client"})
    with pytest.raises(ConfigError, match="leave partner out"):
        start(f, {"name": "blend", "partner": "tuned"})
    with pytest.raises(ConfigError, match=r"does not take a client such as.*lr.*: leave it out"):
        start(f, {"name": "sgd", "lr": 0.2})
    with pytest.raises(ConfigError, match="take one of blend, choice"):
        start(f, "alone")
    with pytest.raises(ConfigError, match=r"set validation = 0\.2"):
        last(start(f, validation=0))
    counts = federation("values")
    y = counts.train.y.abs().round()
    counts = Federation.from_arrays(
        counts.train.x,
        y,
        np.repeat(np.arange(CLIENTS), counts.train.sizes),
        test=0.4,
    )
    with pytest.raises(ConfigError, match="no local models for the loss 'poisson'"):
        start(counts, loss="poisson")
