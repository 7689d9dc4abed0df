"""boosting: scikit-learn's trees on pooled rows where clients count by size, else by the rule."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.tree import DecisionTreeRegressor
from torch import Tensor, nn

from cases import cases
from commonweal.base.errors import ConfigError, DataError
from commonweal.config.experiment import Experiment
from commonweal.data.federation import Federation
from commonweal.engines.simulator import Simulator
from commonweal.jobs.job import build_dataset
from commonweal.jobs.rounds import Round, Run, run
from commonweal.models.tree_ensemble import TreeEnsemble
from commonweal.models.trees import trees
from commonweal.protocols.algorithm import Algorithm, Replies, Request
from commonweal.protocols.boosting import Boosting
from commonweal.rules.afl import AFL
from commonweal.rules.fedavg import FedAvg
from commonweal.rules.rule import Reports, Stateless
from commonweal.rules.term import TERM
from commonweal.task.task import Task
from helpers import data
from run_helpers import contents, job, states_of, stop_after

FEATURES = 4


def federation(
    kind: str = "binary", rows: int = 600, clients: int = 5, seed: int = 0, **what: Any
) -> Federation:
    """Rows with interactions, of clients that differ in size and in what they have."""
    rng = np.random.default_rng(seed)
    part = rng.dirichlet(np.ones(clients) * 2)
    owner = np.sort(rng.choice(clients, rows, p=part))
    owner[:clients] = np.arange(clients)
    x = np.column_stack(
        [
            rng.normal(size=rows).round(1) + 0.3 * (owner == 0),
            rng.integers(0, 2, rows),
            rng.integers(0, 50, rows),
            rng.exponential(size=rows).round(1),
        ]
    ).astype(np.float32)
    z = x[:, 0] + x[:, 1] * (x[:, 2] > 25) - 0.4 * x[:, 3] + rng.normal(size=rows) * 0.5
    z = z + 0.8 * (owner == 1)
    labels: dict[str, Any] = {
        "binary": (z > 0.2).astype(np.int64),
        "classes": np.digitize(z, [-0.5, 0.3, 1.0]),
        "counts": rng.poisson(np.exp(z / 2)).astype(np.float32),
        "survival": np.stack([np.exp(-z).round(1), rng.integers(0, 2, rows)], 1),
    }
    y = labels.get(kind, (3 * z + 7).astype(np.float32))
    names = [f"c{k}" for k in range(clients)]
    loss = "cox" if kind == "survival" else None
    return Federation.from_arrays(
        x, y, owner, names=names, test=0.2, loss=loss, notes=[kind], **what
    )


LOSS = {
    "binary": "cross-entropy",
    "classes": "cross-entropy",
    "values": "squared",
    "absolute": "absolute",
    "huber": "huber",
    "counts": "poisson",
    "survival": "cox",
}


def loss_of(f: Federation) -> str:
    """The loss for the kind of labels, which is one of the notes."""
    return next((LOSS[note] for note in f.notes if note in LOSS), "cross-entropy")


def task(f: Federation, rounds: int, leaves: int = 15, depth: int = 6, **what: Any) -> Task:
    shape = tuple(f.train.x.shape[1:])
    return Task(trees(shape, f.outputs, rounds, leaves, depth), loss=loss_of(f), **what)


def boost(f: Federation, rounds: int = 10, leaves: int = 15, depth: int = 6, **parts: Any) -> Run:
    algorithm = {"name": "boosting"} | parts.pop("algorithm", {})
    settings = {"evaluate_every": rounds, "rounds": rounds} | parts
    return run(task(f, rounds, leaves, depth), f, algorithm=algorithm, **settings)


def last(rounds: Run) -> Round:
    *_, done = rounds
    return done


def sklearn(f: Federation, x: np.ndarray, rounds: int, **limits: Any) -> Any:
    """scikit-learn's boosting on all training rows."""
    options = {"max_iter": rounds, "early_stopping": False} | limits
    if loss_of(f) == "cross-entropy":
        model = HistGradientBoostingClassifier(**options)
    else:
        loss = {"squared": "squared_error", "poisson": "poisson"}[loss_of(f)]
        model = HistGradientBoostingRegressor(loss=loss, **options)
    model.fit(x, f.train.y.numpy())
    return model


def predicted(done: Round, x: Tensor) -> np.ndarray:
    outputs = done.module()(x).double().detach()
    if done.job.task.loss == "cross-entropy":
        return np.asarray(outputs.softmax(-1))
    return np.asarray(outputs[:, 0])


def expected(model: Any, x: np.ndarray) -> np.ndarray:
    predict = getattr(model, "predict_proba", model.predict)
    return np.asarray(predict(x))


# Equality with pooled rows


@cases("kind", ["binary", "classes", "values", "counts"])
@cases(("leaves", "depth"), [(15, 6), (31, 30), (64, 3)])
def test_by_size_it_is_boosting_on_pooled_rows(kind: str, leaves: int, depth: int) -> None:
    f = federation(kind)
    done = last(boost(f, 8, leaves, depth))
    limits = {"max_leaf_nodes": leaves, "max_depth": depth}
    model = sklearn(f, f.train.x.numpy(), 8, **limits)
    x = f.test.x
    np.testing.assert_allclose(predicted(done, x), expected(model, x.numpy()), rtol=2e-6, atol=2e-6)


@cases("seed", [1, 2, 3])
@cases("kind", ["binary", "classes", "values", "counts"])
def test_by_size_it_is_boosting_on_pooled_rows_of_many_values(kind: str, seed: int) -> None:
    """More values than bins: on the training rows, as thresholds between two values differ."""
    f = federation(kind, rows=1200, clients=(1, 30, 300)[seed - 1], seed=seed)
    rng = np.random.default_rng(seed)
    many = torch.from_numpy(rng.normal(size=(len(f.train.y), FEATURES)).astype(np.float32))
    x = torch.cat([f.train.x + many, torch.full_like(many[:, :1], 3.0)], 1)
    tested = torch.cat([f.test.x, f.test.x[:, :1]], 1)
    f = replace(f, train=replace(f.train, inputs=x), test=replace(f.test, inputs=tested))
    done = last(boost(f, 4, 8, 5))
    model = sklearn(f, x.numpy(), 4, max_leaf_nodes=8, max_depth=5)
    np.testing.assert_allclose(predicted(done, x), expected(model, x.numpy()), rtol=3e-6, atol=3e-6)


def test_with_other_parameters() -> None:
    f = federation("binary")
    done = last(boost(f, 8, algorithm={"lr": 0.3, "l2": 2.0, "min_rows": 5}))
    limits = {"max_leaf_nodes": 15, "max_depth": 6, "min_samples_leaf": 5}
    options = {"learning_rate": 0.3, "l2_regularization": 2.0}
    model = sklearn(f, f.train.x.numpy(), 8, **limits, **options)
    np.testing.assert_allclose(
        predicted(done, f.test.x), expected(model, f.test.x.numpy()), atol=2e-6
    )


def test_as_good_as_boosting_on_the_pooled_rows_of_students() -> None:
    data("students")
    f = build_dataset(Experiment(dataset="students"))
    done = last(boost(f, 30))
    model = sklearn(f, f.train.x.numpy(), 30, max_leaf_nodes=15, max_depth=6)
    right = predicted(done, f.test.x).argmax(1) == f.test.y.numpy()
    assert abs(right.mean() - model.score(f.test.x.numpy(), f.test.y.numpy())) < 0.005


def test_500_clients_of_few_rows() -> None:
    f = federation("binary", rows=1500, clients=500)
    assert int(f.train.sizes.min()) == 1
    done = last(boost(f, 5))
    model = sklearn(f, f.train.x.numpy(), 5, max_leaf_nodes=15, max_depth=6)
    np.testing.assert_allclose(
        predicted(done, f.test.x), expected(model, f.test.x.numpy()), atol=2e-6
    )


def test_trees_that_ask_who_the_client_is() -> None:
    """They are those of rows with a column for each client, which only the client needs."""
    f = federation("values", clients=6)
    done = last(boost(f, 10, algorithm={"personal": "client"}))

    def named(x: Tensor, sizes: Tensor) -> np.ndarray:
        owner = torch.arange(6).repeat_interleave(sizes)
        return torch.cat([x, nn.functional.one_hot(owner, 6).to(x.dtype)], 1).numpy()

    model = sklearn(f, named(f.train.x, f.train.sizes), 10, max_leaf_nodes=15, max_depth=6)
    algorithm, engine = done.job.algorithm, done.job.engine
    assert isinstance(algorithm, Boosting) and isinstance(engine, Simulator)
    raw = done.state["w"]
    outputs = []
    for client in range(6):
        own = f.test.client(client)
        uses = algorithm.uses(algorithm.message(done.state), engine.states[client])
        assert not torch.equal(uses.models[0], raw)
        outputs.append(done.job.task.outputs(uses.models[0], own.x)[:, 0])
    wanted = model.predict(named(f.test.x, f.test.sizes))
    np.testing.assert_allclose(torch.cat(outputs).detach(), wanted, rtol=1e-5, atol=1e-5)
    personal = done.evaluation.personal if done.evaluation is not None else None
    assert personal is not None
    error = (torch.cat(outputs) - f.test.y).square()
    ratio = torch.segment_reduce(error, "mean", lengths=f.test.sizes)
    variance = f.train.y.double().var(correction=0)
    torch.testing.assert_close(personal.score, 1 - ratio.double() / variance, rtol=1e-4, atol=1e-5)
    # The global model is that of a client that no tree knows.
    nobody = np.column_stack([f.test.x.numpy(), np.zeros((len(f.test.y), 6))])
    np.testing.assert_allclose(predicted(done, f.test.x), model.predict(nobody), rtol=1e-5)
    assert float(done.state["gain"][FEATURES]) > 0


def test_absolute_errors_have_medians_in_their_leaves() -> None:
    """As in scikit-learn, where thresholds between tied medians differ: errors are compared."""
    f = federation("absolute", rows=2000)
    done = last(boost(f, 30))
    model = HistGradientBoostingRegressor(
        loss="absolute_error", max_iter=30, max_leaf_nodes=15, max_depth=6, early_stopping=False
    ).fit(f.train.x.numpy(), f.train.y.numpy())
    y = f.test.y.numpy()
    error = np.abs(predicted(done, f.test.x) - y).mean()
    assert error == pytest.approx(np.abs(model.predict(f.test.x.numpy()) - y).mean(), rel=0.02)
    one = last(boost(f, 1, 2, 1, algorithm={"lr": 1.0}))
    values = predicted(one, f.train.x)
    for value in np.unique(values):  # both leaves
        own = f.train.y.numpy()[values == value]
        share = (own < value - 1e-4).mean()
        assert share <= 0.5 <= share + (np.abs(own - value) <= 1e-4).mean()


# Weights by rules


def client_losses(f: Federation, errors: np.ndarray) -> np.ndarray:
    parts = np.split(errors**2, f.train.offsets[1:-1].numpy())
    return np.array([part.mean() for part in parts])


def projected(lam: np.ndarray) -> np.ndarray:
    """The closest mixture, by bisection for what is subtracted."""
    low, high = lam.min() - 1, lam.max()
    for _ in range(100):
        middle = (low + high) / 2
        total = np.maximum(lam - middle, 0).sum()
        low, high = (middle, high) if total > 1 else (low, middle)
    return np.asarray(np.maximum(lam - low, 0))


@cases("name", ["term", "afl"])
def test_a_rule_weighs_the_clients(name: str) -> None:
    """The oracle: trees of scikit-learn for weighted squared errors, the weights in numpy."""
    f = federation("values", rows=400, clients=4)
    rule = TERM(t=2.0) if name == "term" else AFL(lr=0.5)
    options = {"min_rows": 10, "lr": 0.2}
    rounds = list(boost(f, 6, 1000, 3, rule=rule, algorithm=options))
    x, y = f.train.x.numpy(), f.train.y.double().numpy()
    sizes = f.train.sizes.numpy()
    deviation = y.std()
    scaled = (y - y.mean()) / deviation
    sums = np.zeros(len(y))
    lam = np.full(4, 0.25)
    for done in rounds:
        losses = client_losses(f, sums - scaled)
        np.testing.assert_allclose(done.losses, losses, rtol=1e-5)
        if name == "term":
            p = sizes * np.exp(2.0 * losses / losses.mean())
        else:
            lam = projected(lam + 0.5 * losses)
            p = lam
        p = p / p.sum()
        np.testing.assert_allclose([done.weights[n] for n in f.names], p, rtol=1e-5)
        tree = DecisionTreeRegressor(max_depth=3, min_samples_leaf=10)
        tree.fit(x, scaled - sums, sample_weight=np.repeat(p / sizes * len(y), sizes))
        sums += 0.2 * tree.predict(x)
    found = predicted(rounds[-1], f.train.x)
    np.testing.assert_allclose(found, sums * deviation + y.mean(), rtol=1e-5, atol=1e-5)


@dataclass(frozen=True)
class Only(Stateless):
    """All weight for one client: a rule of a user's own."""

    client: int = 0

    def weigh(self, reports: Reports) -> Tensor:
        return (reports.ids == self.client).double()


def test_a_rule_of_ones_own_and_clients_of_weight_0() -> None:
    f = federation("binary", clients=3)
    done = last(boost(f, 6, rule=Only(1)))
    own = f.train.client(1)
    assert done.weights == {"c1": 1.0}
    model = HistGradientBoostingClassifier(
        max_iter=6, max_leaf_nodes=15, max_depth=6, early_stopping=False
    ).fit(own.x.numpy(), own.y.numpy())
    # Bins and the outputs without trees are of all rows; the labels' part is corrected for.
    margin = np.diff(np.log(predicted(done, own.x)), axis=1)
    whole = np.bincount(f.train.y.numpy())
    start = np.log(whole[1] / whole[0]) - model._baseline_prediction[0, 0]
    assert np.corrcoef(margin[:, 0] - start, model.decision_function(own.x.numpy()))[0, 1] > 0.99


@cases("rule", ["uniform", "afl", "term", "aaggff-d", "qfedavg", "propfair", "cvar", "semi-vred"])
def test_rules_of_losses(rule: str) -> None:
    f = federation("binary", clients=4)
    done = last(boost(f, 6, rule=rule))
    first = boost(f, 1, rule=rule).__next__()
    assert sum(done.weights.values()) == pytest.approx(1)
    assert sum(done.losses) < sum(first.losses)


def test_groups_and_local_losses_as_rules() -> None:
    f = federation("binary", clients=4, groups=["a", "a", "b", "b"])
    done = last(boost(f, 4, rule={"name": "grouped", "rule": "afl"}))
    sizes = dict(zip(f.names, f.train.sizes.tolist(), strict=True))
    share = done.weights["c0"] / done.weights["c1"]
    assert share == pytest.approx(sizes["c0"] / sizes["c1"])
    local = {"name": "excess", "rule": "afl", "alone": (0.1, 0.2, 0.3, 0.4)}
    assert len(last(boost(f, 4, rule=local)).weights) > 0


# What does not matter


def test_it_does_not_matter_how_clients_are_grouped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums are exact: not a bit differs between all clients at once and one after another."""
    f = federation("classes", clients=9)
    options = {"sample_rows": 0.8, "sample_columns": 0.6, "personal": "client"}
    at_once = last(boost(f, 4, rule="afl", cohort=5, algorithm=options))
    monkeypatch.setattr(Boosting, "together", False)
    one_by_one = last(boost(f, 4, rule="afl", cohort=5, algorithm=options))
    assert torch.equal(at_once.state["w"], one_by_one.state["w"])
    assert at_once.losses == pytest.approx(one_by_one.losses)


def test_the_order_of_clients_does_not_matter() -> None:
    f = federation("binary", clients=4)
    order = torch.tensor([2, 0, 3, 1])
    index, offsets = f.train.index_of(order)
    tests, test_offsets = f.test.index_of(order)
    names = tuple(f.names[k] for k in order.tolist())
    turned = Federation(
        f.train.take(index, offsets), f.test.take(tests, test_offsets), names, f.outputs
    )
    one = last(boost(f, 5, algorithm={"sample_rows": 0.7}))
    other = last(boost(turned, 5, algorithm={"sample_rows": 0.7}))
    assert torch.equal(one.state["w"], other.state["w"])


@cases(
    "parts",
    [
        {},
        {"rule": "aaggff-s", "cohort": 3, "algorithm": {"sample_rows": 0.5}},
        {"rule": "afl", "algorithm": {"personal": "client", "sample_columns": 0.5}, "cohort": 2},
        {"validation": 0.2, "patience": 3},
    ],
)
def test_a_resumed_run_ends_with_the_same_bytes(
    parts: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    f = federation("classes", clients=5)
    tmp = tmp_path_factory.mktemp("runs")
    settings: dict[str, Any] = {"evaluate_every": 2} | parts

    def start(name: str, resume: bool = False) -> Run:
        options = dict(settings)
        algorithm = {"name": "boosting"} | options.pop("algorithm", {})
        folder = tmp / name
        t = task(f, 8, 8, 4)
        return run(t, f, algorithm=algorithm, rounds=8, out=folder, resume=resume, **options)

    last(start("whole"))
    for number in (1, 3):
        stop_after(number, start(f"killed-{number}"))
        last(start(f"killed-{number}", resume=True))
        assert contents(tmp / f"killed-{number}") == contents(tmp / "whole")


class Losing(Simulator):
    """Clients that do not answer some requests, and are not in the sums then."""

    def __init__(self, f: Federation, lost: Sequence[tuple[int, str, int]]) -> None:
        super().__init__(f)
        self.lost = lost  # round, purpose, client
        self.level = 0

    def collect(self, algorithm: Algorithm, request: Request) -> Replies:
        now = int(request.message["round"]), request.purpose
        gone = [client for *when, client in self.lost if tuple(when) == now]
        if request.purpose == "histogram" and int(request.message["level"]) < 2:
            gone = []  # in the midst of a tree
        stays = ~torch.isin(request.clients, torch.tensor(gone, dtype=torch.int64))
        each = {name: value[stays] for name, value in request.each.items()}
        replies = super().collect(
            algorithm, request._replace(clients=request.clients[stays], each=each)
        )
        return replies._replace(failed=dict.fromkeys(gone, "it is gone"))


def test_a_client_that_is_lost_in_the_midst_of_a_tree() -> None:
    """The tree is the one that the others grow."""
    f = federation("binary", clients=4)
    parts: dict[str, Any] = {"algorithm": "boosting", "rounds": 3, "evaluate_every": 3}

    def run_of(lost: Sequence[tuple[int, str, int]]) -> Round:
        return last(Run(job(task(f, 3), f, Losing(f, lost), **parts)))

    midst = run_of([(2, "histogram", 1)])
    before = run_of([(2, "loss", 1)])
    assert torch.equal(midst.state["w"], before.state["w"])
    assert not torch.equal(midst.state["w"], run_of([]).state["w"])


def test_a_round_in_which_nobody_answers_adds_nothing() -> None:
    f = federation("binary", clients=2)
    parts: dict[str, Any] = {"algorithm": "boosting", "rounds": 2}
    everyone = [(2, "histogram", 0), (2, "histogram", 1)]
    first, second = Run(job(task(f, 2), f, Losing(f, everyone), **parts))
    assert torch.equal(first.state["w"], second.state["w"])
    assert set(second.dropped) == {"c0", "c1"} and second.weights == {}


# Clients that are hard


@cases("rule", ["fedavg", "afl", "aaggff-d"])
@cases("personal", ["none", "client"])
def test_clients_with_one_class_one_row_and_a_missing_column(rule: str, personal: str) -> None:
    rng = np.random.default_rng(0)
    owner = np.array([0] * 150 + [1] * 60 + [2] + [3] * 80)
    x = rng.normal(size=(len(owner), 3)).astype(np.float32)
    x[owner == 3, 2] = 0.0  # missing throughout: filled, and named by a column
    x = np.column_stack([x, owner == 3]).astype(np.float32)
    y = (x[:, 0] + x[:, 1] * (x[:, 2] > 0) > 0).astype(np.int64)
    y[owner == 1] = 1
    f = Federation.from_arrays(x, y, owner, test=0.25)
    done = last(boost(f, 25, rule=rule, algorithm={"personal": personal}))
    assert done.evaluation is not None
    evaluation = done.evaluation.personal or done.evaluation
    assert len(evaluation.scored) == 3
    least = 0.8 if personal == "client" else 0.5  # nothing else tells who has one class
    assert float(evaluation.score[evaluation.scored].min()) > least


@cases("kind", ["absolute", "huber", "survival"])
def test_other_losses_learn(kind: str) -> None:
    f = federation(kind, rows=900)
    first, *_, done = boost(f, 40, evaluate_every=1)
    assert done.evaluation is not None and first.evaluation is not None
    assert bool((done.evaluation.losses < first.evaluation.losses).all())
    least = {"survival": 0.6}.get(kind, 0.5)
    assert float(done.evaluation.score.mean()) > least


def test_all_labels_the_same() -> None:
    x = np.random.default_rng(0).normal(size=(60, 2)).astype(np.float32)
    f = Federation.from_arrays(x, np.zeros(60, int), np.arange(60) % 3, outputs=2)
    assert last(boost(f, 3)).metrics["mean"] == 1.0


def test_rare_values_share_a_bin() -> None:
    """A value that fewer rows have is not asked for, and no threshold is next to it."""
    f = federation("values", rows=900)
    plain = last(boost(f, 20, algorithm={"min_rows": 1}))
    merged = last(boost(f, 20, algorithm={"min_rows": 1, "min_rows_per_bin": 40}))

    def asked(done: Round) -> list[int]:
        trees = done.job.task.module
        tensors = done.job.task.tensors(done.state["w"])
        assert isinstance(trees, TreeEnsemble)
        inner = tensors["left"] != tensors["right"]
        splits = zip(tensors["feature"][inner], tensors["threshold"][inner], strict=True)
        return [int((f.train.x[:, int(feature)] <= cut).sum()) for feature, cut in splits]

    rows = len(f.train.y)
    assert min(asked(merged)) >= 40 and max(asked(merged)) <= rows - 40
    assert min(asked(plain)) < 40


def test_class_weights_move_the_trees() -> None:
    f = federation("binary")
    plain = predicted(last(boost(f, 10)), f.test.x)[:, 1].mean()
    heavy = predicted(last(boost(f, 10, class_weight=[1.0, 5.0])), f.test.x)[:, 1].mean()
    assert heavy > plain + 0.1


def test_bytes_are_of_messages_and_of_histograms_of_smaller_children() -> None:
    f = federation("binary", clients=3)
    done = last(boost(f, 2, 4, 2))
    cells = int(done.state["lengths"].sum()) + FEATURES
    per_client = 2 * cells * (2 * 8 + 4)  # the root, and one of its children
    others = 8 + 8 + 4  # a loss, a score, a size
    assert done.bytes["up"] <= 3 * (per_client + 3 * others)
    assert done.bytes["up"] >= 3 * per_client


# What is refused


def test_refused() -> None:
    f = federation("binary")
    with pytest.raises(ConfigError, match=r"needs \['update'\]: take a rule of losses, .*afl"):
        boost(f, 2, rule="fedmgda")
    with pytest.raises(ConfigError, match=r"Guarded needs \['update'\]: .*grouped or excess"):
        boost(f, 2, rule={"name": "guarded", "rule": "afl"})
    with pytest.raises(ConfigError, match="grows trees, but the model is a Linear"):
        run(Task(nn.Linear(FEATURES, 2)), f, algorithm="boosting", rounds=2)
    with pytest.raises(ConfigError, match=r"no gradients .*: use the algorithm 'boosting'"):
        run(task(f, 2), f, rounds=2)
    with pytest.raises(ConfigError, match="room for 2 trees, but there are 5 rounds"):
        run(task(f, 2), f, algorithm="boosting", rounds=5)
    with pytest.raises(ConfigError, match="does not take a client such as"):
        boost(f, 2, client="ditto")
    with pytest.raises(ConfigError, match=r"sample_rows = 1\.5"):
        boost(f, 2, algorithm={"sample_rows": 1.5})
    own = Task(trees((FEATURES,), 2, 2), loss=nn.CrossEntropyLoss(label_smoothing=0.1))
    with pytest.raises(ConfigError, match="no derivatives"):
        run(own, f, algorithm="boosting", rounds=2)


def test_the_states_of_clients_hold_no_samples(tmp_path: Path) -> None:
    f = federation("binary", clients=3)
    done = last(boost(f, 2, algorithm={"personal": "client"}, out=tmp_path / "run"))
    engine = done.job.engine
    assert isinstance(engine, Simulator)
    protocol = [state.protocol for _, state in engine.states.items()]
    assert [one["client"].tolist() for one in protocol] == [[0], [1], [2]]
    assert states_of(engine) == {0: {}, 1: {}, 2: {}}
    plain = Boosting(task(f, 2), f.population, FedAvg(), rounds=2)
    assert not plain.init_client(0)


def test_a_transform_is_refused_as_trees_have_no_batches() -> None:
    f = federation()
    transformed = replace(f, train=replace(f.train, transform=lambda x, generator: x))
    with pytest.raises(DataError, match="needs no transform"):
        last(boost(transformed, rounds=1))
