"""Forests at home: candidates of local training for tables, weighted on validation samples."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from torch import Tensor, nn

from cases import cases
from commonweal.clients.local_model import FEW, _folds
from commonweal.data.federation import Federation
from commonweal.data.rows import Rows
from commonweal.jobs.rounds import Round, Run, run
from commonweal.models.tree_ensemble import flattened, from_sklearn, unflattened
from commonweal.record.record import Record
from commonweal.report.run_table import run_summary, weights_note
from commonweal.task.members import fit_trees, has_trees, member_module, member_outputs
from commonweal.task.task import Task
from commonweal.task.uses import mixed_module
from commonweal.training.client_state import ClientState
from run_helpers import contents, states_of, stop_after

METHODS = ["alone", "blend", "choice"]
OUTPUTS = {"cross-entropy": 3, "binary": 1, "squared": 1}


def arrays(loss: str = "cross-entropy", rows: int = 1600) -> tuple[np.ndarray, np.ndarray]:
    """Labels that depend on a product, which a forest learns and a linear model does not."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(rows, 5)).astype(np.float32)
    z = np.sign(x[:, 0]) * np.sign(x[:, 1])
    if loss == "squared":
        return x, (z + 0.1 * x[:, 2]).astype(np.float32)
    if loss == "binary":
        return x, (z > 0).astype(np.int64)
    return x, (z > 0).astype(np.int64) + (x[:, 2] > 0.5)


def federation(loss: str = "cross-entropy", **what: Any) -> Federation:
    x, y = arrays(loss)
    owner = np.repeat(list("abcd"), 400)
    return Federation.from_arrays(x, y, owner, test=0.3, loss=loss, outputs=OUTPUTS[loss], **what)


def task(loss: str = "cross-entropy", inputs: int = 5) -> Task:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        module = nn.Sequential(
            nn.Flatten(), nn.Linear(inputs, 4), nn.ReLU(), nn.Linear(4, OUTPUTS[loss])
        )
        return Task(module, loss=loss)


def start(name: str, loss: str = "cross-entropy", f: Federation | None = None, **parts: Any) -> Run:
    client = {"name": name, "lr": 0.1, "batch": 10} | parts.pop("client", {})
    options = {"rounds": 5, "seed": 3, "validation": 0.25, "evaluate_every": 5} | parts
    return run(task(loss), f or federation(loss), client=client, **options)


def last(rounds: Run) -> Round:
    *_, done = rounds
    return done


def states(done: Round) -> dict[int, dict[str, Tensor]]:
    found: dict[int, Any] = states_of(done.job.engine)
    return {client: getattr(state, "method", state) for client, state in found.items()}


@cases("loss", list(OUTPUTS))
@cases("kind", ["forest", "boosting"])
def test_a_vector_predicts_as_scikit_learns_model(kind: str, loss: str) -> None:
    x, _ = arrays(loss)
    t = task(loss)
    rows = federation(loss).train
    vector = fit_trees(t, rows, kind, np.random.default_rng(7))
    seed = int(np.random.default_rng(7).integers(1 << 31))
    again = fit_trees(t, rows, kind, np.random.default_rng(7))
    assert torch.equal(vector, again)
    outputs = member_outputs(kind, vector, torch.from_numpy(x))
    assert outputs.shape == (len(x), OUTPUTS[loss])
    torch.testing.assert_close(member_module(kind, vector)(torch.from_numpy(x)), outputs)
    if kind == "boosting":
        return
    options = {"max_leaf_nodes": 32, "max_depth": 8, "random_state": seed}
    if loss == "squared":
        forest = RandomForestRegressor(50, **options).fit(rows.x, t.scaled(rows.y).double())
        expected = forest.predict(x)[:, None]
        np.testing.assert_allclose(outputs.numpy(), expected, atol=1e-5)
        return
    p = RandomForestClassifier(50, **options).fit(rows.x, rows.y.long()).predict_proba(x)
    if loss == "binary":
        np.testing.assert_allclose(outputs.sigmoid().numpy(), p[:, 1:], atol=1e-5)
    else:
        np.testing.assert_allclose(outputs.softmax(1).numpy(), p, atol=1e-5)


def test_vectors_have_one_length() -> None:
    """Also of clients with one class, one row or none."""
    t, rows = task(), federation().train
    first = rows.take(torch.tensor([0]), torch.tensor([0, 1]))
    nothing = rows.take(torch.tensor([], dtype=torch.int64), torch.tensor([0, 0]))
    which = (rows.y == 1).nonzero().flatten()
    one_class = rows.take(which, torch.tensor([0, len(which)]))
    for kind in ("forest", "boosting"):
        draws = np.random.default_rng(0)
        lengths = set()
        for some in (rows, first, nothing, one_class):
            vector = fit_trees(t, some, kind, draws)
            lengths.add(len(vector))
            assert member_outputs(kind, vector, rows.x).isfinite().all()
        assert len(lengths) == 1
        outputs = member_outputs(kind, fit_trees(t, one_class, kind, draws), rows.x)
        assert (outputs.argmax(1) == 1).all()


def test_images_and_other_losses_have_none() -> None:
    x, y = arrays()
    owner = np.repeat(list("ab"), 800)
    image = Federation.from_arrays(x.reshape(-1, 1, 1, 5), y, owner, test=0.3)
    wide = Federation.from_arrays(np.tile(x, 103), y, owner, test=0.3)
    assert has_trees(task(), federation().train)
    assert not has_trees(task(), image.train)
    assert not has_trees(task(), wide.train)
    assert not has_trees(task("squared").replace(loss="poisson"), federation("squared").train)


@cases("loss", list(OUTPUTS))
@cases("name", METHODS)
def test_a_forest_helps_where_it_learns_what_others_do_not(name: str, loss: str) -> None:
    done = last(start(name, loss))
    plain = last(start(name, loss, client={"trees": False}))
    assert done.personal["mean"] > plain.personal["mean"] + 0.1
    weights = [float(state["other_weights"][-1]) for state in states(done).values()]
    assert min(weights) > 0.7
    for state in states(plain).values():
        assert len(state["forest"]) == 0
        assert len(state["other_weights"]) == 1


def test_where_a_forest_is_bad_it_gets_little_weight() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(800, 40)).astype(np.float32)
    y = (x @ rng.normal(size=40) > 0).astype(np.int64)  # linear in many features
    f = Federation.from_arrays(x, y, np.repeat(list("ab"), 400), test=0.3, outputs=3)
    module = nn.Sequential(nn.Flatten(), nn.Linear(40, 3))
    parts: dict[str, Any] = {"client": "alone", "rounds": 5, "seed": 3}
    *_, done = run(Task(module), f, **parts)
    assert max(float(state["other_weights"][-1]) for state in states(done).values()) < 0.3


@cases("name", METHODS)
def test_the_exported_model_predicts_as_it_was_scored(name: str, tmp_path: Path) -> None:
    done = last(start(name, out=tmp_path / name))
    f, algorithm = federation(), done.job.algorithm
    message = algorithm.message(done.state)
    assert done.evaluation is not None and done.evaluation.personal is not None
    for client, state in states(done).items():
        uses = algorithm.uses(message, ClientState(state))
        assert set(uses.others) == {"linear", "forest"}
        assert float(uses.weights.sum()) == pytest.approx(1, abs=1e-6)
        module = mixed_module(done.job.task, done.job.task.module, uses)
        rows: Rows = f.test.client(client)
        right = (module(rows.x).argmax(1) == rows.y).double().mean()
        assert float(done.evaluation.personal.score[client]) == pytest.approx(float(right))


@cases("name", METHODS)
def test_a_resumed_run_ends_with_the_same_bytes(name: str, tmp_path: Path) -> None:
    last(start(name, out=tmp_path / name / "whole", evaluate_every=1))
    for number in (2, 3, 4):
        folder = tmp_path / name / str(number)
        stop_after(number, start(name, out=folder, evaluate_every=1))
        last(start(name, out=folder, evaluate_every=1, resume=True))
        assert contents(folder) == contents(tmp_path / name / "whole")


def test_how_clients_are_computed_does_not_matter() -> None:
    one, other = (last(start("blend", vectorize=mode)) for mode in ("loop", "vmap"))
    for client, state in states(one).items():
        assert torch.equal(state["forest"], states(other)[client]["forest"])
    assert one.personal["mean"] == pytest.approx(other.personal["mean"], abs=0.02)


def test_a_vector_has_room_for_smaller_ensembles() -> None:
    x, y = arrays()
    model = RandomForestClassifier(3, max_depth=2, random_state=0).fit(x, y)
    ensemble = from_sklearn(model, 3)
    vector = flattened(ensemble, count=7, nodes=31)
    inputs = torch.from_numpy(x)
    torch.testing.assert_close(unflattened(vector)(inputs), ensemble(inputs))


@cases("name", ["alone", "blend"])
def test_a_run_says_what_each_client_predicts_with(name: str, tmp_path: Path) -> None:
    done = last(start(name, out=tmp_path / name))
    record = Record.read(tmp_path / name)
    known = run_summary(record)["weights"]
    assert isinstance(known, dict)
    partners = ["partners"] if name == "blend" else []
    assert list(known) == ["network", *partners, "linear", "forest"]
    algorithm = done.job.algorithm
    message = algorithm.message(done.state)
    for client, state in states(done).items():
        uses = algorithm.uses(message, ClientState(state))
        own = {kind: values[done.job.population.names[client]] for kind, values in known.items()}
        assert own["forest"] == pytest.approx(float(uses.weights[-1]))
        assert sum(own.values()) == pytest.approx(1, abs=1e-5)
    mean = 100 * float(np.mean(list(known["forest"].values())))
    assert f"forest {mean:.0f} %" in weights_note([record])
    last(start(name, out=tmp_path / f"{name}-plain", client={"trees": False}))
    summary = run_summary(Record.read(tmp_path / f"{name}-plain"))
    assert isinstance(summary["weights"], dict) and "forest" not in summary["weights"]


def test_methods_without_other_kinds_list_no_weights(tmp_path: Path) -> None:
    last(start("ditto", out=tmp_path / "run"))
    record = Record.read(tmp_path / "run")
    assert "weights" not in run_summary(record)
    assert weights_note([record]) == ""


@cases("name", METHODS)
@cases("loss", list(OUTPUTS))
def test_clients_with_one_row_one_class_or_a_constant_column(name: str, loss: str) -> None:
    x, y = arrays(loss, rows=120)
    x[:, 3] = 0
    owner = np.repeat(list("abcd"), [1, 2, 17, 100])
    y[3:20] = y[3]  # client c has one class
    f = Federation.from_arrays(x, y, owner, test=0.3, loss=loss, outputs=OUTPUTS[loss])
    done = last(start(name, loss, f, evaluate_every=1))
    algorithm = done.job.algorithm
    message = algorithm.message(done.state)
    assert len(states(done)) == 4
    for state in states(done).values():
        uses = algorithm.uses(message, ClientState(state))
        assert uses.weights.isfinite().all() and (uses.weights >= 0).all()
        module = mixed_module(done.job.task, done.job.task.module, uses)
        assert module(f.train.x).isfinite().all()


def some(count: int, begin: int = 0) -> Rows:
    """Rows of one client, numbered."""
    numbers = torch.arange(begin, begin + count)
    offsets = torch.tensor([0, count])
    return Rows(numbers[:, None].float(), numbers % 3, offsets, numbers=numbers)


@cases(("first", "held"), [(10, 2), (1, 1), (1, 0), (3, 0), (79, 20), (80, 20), (400, 100)])
def test_every_one_of_few_samples_is_tested_once(first: int, held: int) -> None:
    """By models that were fitted to all the others. Of many samples only the held ones are."""
    folds = _folds(some(first), some(held, begin=first))
    every = set(range(first + held))
    tested: list[int] = []
    for fold in folds:
        own = {int(number) for number in fold.tested.x.flatten()}
        assert {int(number) for number in fold.rows.x.flatten()} | own <= every
        assert not {int(number) for number in fold.rows.x.flatten()} & own
        if first + held < FEW and first > 1:
            assert {int(number) for number in fold.rows.x.flatten()} == every - own
        tested += own
    assert tested[:held] == list(range(first, first + held))  # the held ones come first
    assert len(tested) == len(set(tested))
    is_few = first > 1 and first + held < FEW
    assert set(tested) == (every if is_few else set(range(first, first + held)))


def test_with_few_samples_of_many_classes_local_training_is_as_good_as_a_forest() -> None:
    """It was far worse: two held samples stopped the network after a few rounds."""
    digits = load_digits()
    x = (digits.data.astype(np.float32) - 8) / 6
    order = np.random.default_rng(0).permutation(len(x))[:960]
    owner = np.repeat(np.arange(40), 24)
    f = Federation.from_arrays(x[order], digits.target[order], owner, test=0.5)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        t = Task(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)))
    done = last(run(t, f, client={"name": "alone", "lr": 0.1, "batch": 10}, rounds=30))
    assert {float(state["stop"]) for state in states(done).values()} == {0.0}
    right = []
    for client in range(f.clients):
        train, test = f.train.client(client), f.test.client(client)
        forest = RandomForestClassifier(50, random_state=0).fit(train.x, train.y)
        right.append(forest.score(test.x, test.y))
    assert done.personal["mean"] > np.mean(right) + 0.03
