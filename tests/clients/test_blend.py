"""blend: which samples its models see, how the weights are learned, and what a client predicts."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from typer.testing import CliRunner

from cases import cases
from commonweal.app.export import card
from commonweal.app.ui.views import run_view
from commonweal.base.errors import ConfigError
from commonweal.cli import app
from commonweal.data.federation import Federation
from commonweal.data.rows import Rows
from commonweal.jobs.rounds import Round, run
from commonweal.models.tree_ensemble import unflattened
from commonweal.record.record import Record
from commonweal.report import document
from commonweal.study.comparison import Comparison
from commonweal.task.task import Task
from helpers import close
from run_helpers import states_of

SIZES = {"a": 40, "b": 25, "c": 60, "d": 12}
SETTINGS: dict[str, Any] = {"batch": 5, "lr": 0.1}


def arrays(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Three classes; clients b and d name them in another way, so that partners mislead them."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(list(SIZES), list(SIZES.values()))
    x = rng.normal(size=(len(owner), 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(int) + (x[:, 1] > 0.2)
    return x, np.where(np.isin(owner, ["b", "d"]), 2 - y, y), owner


def federation(seed: int = 0) -> Federation:
    return Federation.from_arrays(*arrays(seed), test=0.3)


def task(**settings: Any) -> Task:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        outputs = 1 if settings.get("loss") in ("squared", "cox", "binary") else 3
        return Task(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, outputs)), **settings)


def last(what: Task, f: Federation, name: str = "blend", **settings: Any) -> Round:
    """The last round of a run."""
    method = SETTINGS | {"name": name} | settings.pop("client", {})
    options = {"rounds": 6, "validation": 0.25, "seed": 3} | settings
    *_, done = run(what, f, client=method, **options)
    return done


def states(done: Round) -> dict[int, dict[str, Tensor]]:
    found: dict[int, Any] = states_of(done.job.engine)
    return {client: getattr(state, "method", state) for client, state in found.items()}


def probabilities(t: Task, w: Tensor, x: Tensor) -> np.ndarray:
    return t.outputs(w, x).softmax(-1).double().numpy()


LOCAL = ("best", "best_loss", "best_round", "stop", "linear", "forest", "other_weights")


def same_local_models(blended: dict[str, Tensor], local: dict[str, Tensor]) -> None:
    for name in LOCAL:
        close(blended[name], local[name])
    if not float(blended["stop"]):
        close(blended["local"], local["private"])


def test_local_models_are_those_of_alone_on_all_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commonweal.clients.local_model.FEW", 0)
    f, t = federation(), task()
    blended = states(last(t, f, validation=0.2, rounds=45))
    local = states(last(t, f, "alone", validation=0.0, rounds=45))
    for client in range(f.clients):
        same_local_models(blended[client], local[client])
    assert {float(state["stop"]) > 0 for state in blended.values()} == {True, False}


def test_the_samples_before_the_split_are_put_together_again() -> None:
    f = federation()
    divided = f.with_validation(0.25, seed=3)
    assert divided.undivided is not None and f.undivided is None
    assert torch.equal(divided.undivided.x, f.train.x)
    assert torch.equal(divided.undivided.y, f.train.y)
    assert torch.equal(divided.undivided.offsets, f.train.offsets)


def test_weights_are_the_bounded_posterior_mean_of_losses_on_validation_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Against numpy. Steps on all samples at once do not depend on random batches."""
    monkeypatch.setattr("commonweal.task.linear.TOLERANCE", 1e-7)
    monkeypatch.setattr("commonweal.clients.local_model.FEW", 0)  # the oracle has one split
    f, t = federation(seed=4), task()  # all clients train on all classes
    whole = {"batch": 0, "prior": 7.0, "learn_at": 0.5, "tune_epochs": 5, "trees": False}
    done = last(t, f, client=whole)
    divided = f.with_validation(0.25, seed=3)
    assert divided.validation is not None
    start = last(t, f, "sgd", rounds=3, client={"batch": 0})  # on the training samples alone
    w = start.job.algorithm.model(start.state)
    grid = np.linspace(0, 1, 11)
    sums = np.empty((f.clients, 11))
    for client in range(f.clients):
        rows, train = divided.validation.client(client), divided.train.client(client)
        local = LocalOracle(t, train, rows, steps=3)
        p_global = probabilities(t, w, rows.x)
        p_tuned = probabilities(t, descended(w, train, steps=5), rows.x)
        for k, m in enumerate(grid):
            p = (1 - m) * local.p + m * (p_global + p_tuned) / 2
            sums[client, k] = nll(p, rows)
        state = states(done)[client]
        assert float(state["best_round"]) == local.round
        stops = local.round < 3
        assert float(state["stop"]) == stops  # a fourth of one or two rounds is one
        network = local.network if stops else descended(t.initial, train, 3)
        if stops:
            close(state["best"], descended(network, f.train.client(client), 1), atol=1e-5)
        else:
            close(state["local"], descended(network, f.train.client(client), 3), atol=1e-5)
        assert float(state["other_weights"]) == pytest.approx(local.weight, abs=1e-3)
    everyone = sums.sum(0) / len(divided.validation.y)
    posterior = np.exp(-(sums + 7.0 * everyone))
    expected = (posterior / posterior.sum(1, keepdims=True)) @ grid
    for client, state in states(done).items():
        np.testing.assert_allclose(state["losses"].numpy(), sums[client], rtol=1e-3)
        assert float(state["m"]) == pytest.approx(min(expected[client], 2 / 3), abs=1e-3)


def nll(p: np.ndarray, rows: Rows) -> float:
    return float(-np.log(p[np.arange(len(rows.y)), rows.y.numpy()]).sum())


class LocalOracle:
    """Local training by torch and scikit-learn: when to stop, and the weight of a linear model."""

    def __init__(self, t: Task, train: Rows, held: Rows, steps: int) -> None:
        networks = [descended(t.initial, train, k) for k in range(1, steps + 1)]
        losses = [nll(probabilities(t, w, held.x), held) for w in networks]
        self.round = 1 + int(np.argmin(losses))
        self.network = networks[self.round - 1]
        p_network = probabilities(t, self.network, held.x)
        fitted = []
        for c in (0.01, 0.1, 1.0, 10.0, 100.0):
            model = LogisticRegression(C=c, tol=1e-7)
            p = np.zeros((len(held.y), 3))
            p[:, np.unique(train.y)] = model.fit(train.x, train.y).predict_proba(held.x)
            fitted.append(p)
        losses = [nll(p, held) for p in fitted]
        least = 0  # the first before the loss grows
        while least + 1 < len(losses) and losses[least + 1] < losses[least]:
            least += 1
        p_linear = fitted[least]
        grid = np.linspace(0, 1, 11)
        mixed = [nll((1 - a) * p_network + a * p_linear, held) for a in grid]
        posterior = np.exp(-np.array(mixed))
        self.weight = float(posterior @ grid / posterior.sum())
        self.p = (1 - self.weight) * p_network + self.weight * p_linear


def descended(w: Tensor, rows: Rows, steps: int) -> Tensor:
    """Gradient descent on all samples of a client, in plain torch."""
    m = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    nn.utils.vector_to_parameters(w.clone(), m.parameters())
    optimizer = torch.optim.SGD(m.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(m(rows.x), rows.y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return nn.utils.parameters_to_vector(m.parameters()).detach()


def test_a_client_that_partners_mislead_gives_them_less_weight() -> None:
    rng = np.random.default_rng(5)
    owner = np.repeat(list("abcd"), 150)
    x = rng.normal(size=(600, 4)).astype(np.float32)
    y = (x[:, 0] + rng.normal(size=600) > 0).astype(int)
    f = Federation.from_arrays(x, np.where(owner == "b", 1 - y, y), owner, test=0.3, outputs=3)
    done = last(task(), f, rounds=20, client={"partner": "global"})
    weights = {f.names[k]: float(s["m"]) for k, s in states(done).items()}
    assert weights.pop("b") < 0.2 < min(weights.values())


@cases("partner", ["both", "global", "tuned"])
def test_a_client_is_scored_by_the_mixture_of_predictions(partner: str) -> None:
    f, t = federation(), task()
    done = last(t, f, client={"partner": partner})
    w = done.job.algorithm.model(done.state)
    assert done.evaluation is not None and done.evaluation.personal is not None
    for client, state in states(done).items():
        rows = f.test.client(client)
        m = float(state["m"])
        assert 0 < m <= (2 / 3 if partner == "both" else 1 / 2) + 1e-6
        network = state["best"] if float(state["stop"]) else state["local"]
        matrix = state["linear"].view(3, 5).double()
        p_linear = (rows.x.double() @ matrix[:, :4].T + matrix[:, 4]).softmax(1).numpy()
        p_forest = unflattened(state["forest"])(rows.x).softmax(1).detach().double().numpy()
        a, b = state["other_weights"].tolist()
        assert 0 < a < 1 - b < 1
        p_local = (1 - a - b) * probabilities(t, network, rows.x) + a * p_linear + b * p_forest
        p_global = probabilities(t, w, rows.x)
        p_tuned = probabilities(t, state["tuned"], rows.x)
        others = {"both": (p_global + p_tuned) / 2, "global": p_global, "tuned": p_tuned}
        mixed = (1 - m) * p_local + m * others[partner]
        correct = (mixed.argmax(1) == rows.y.numpy()).mean()
        assert float(done.evaluation.personal.score[client]) == pytest.approx(correct)
        loss = -np.log(mixed[np.arange(len(rows.y)), rows.y.numpy()]).mean()
        assert float(done.evaluation.personal.losses[client]) == pytest.approx(loss, rel=1e-4)


def test_clients_that_are_drawn_rarely_train_their_local_models_at_home() -> None:
    f, t = federation(), task()
    done = last(t, f, cohort=1)
    for state in states(done).values():
        stops = float(state["stop"])
        assert float(state["local_rounds"]) == (4.0 if stops else 6.0)
        assert float(state["further_rounds"]) == stops
    start = t.initial
    assert all(not torch.equal(state["local"], start) for state in states(done).values())
    assert len(states(done)) == f.clients


def test_validation_samples_can_stay_out_of_training() -> None:
    """As `choose` needs it: then the models are those of a federation without these samples."""
    f, t = federation(), task()
    kept = states(last(t, f, client={"rejoin": False}))
    local = states(last(t, f, "alone"))
    for client in range(f.clients):
        same_local_models(kept[client], local[client])
    assert len({round(float(state["m"]), 6) for state in kept.values()}) > 1  # it was learned


def test_the_labels_of_test_samples_change_nothing() -> None:
    f, t = federation(), task()
    clean = states(last(t, f))
    f.test.y.copy_((f.test.y + 1) % 3)
    for client, state in states(last(t, f)).items():
        for name, value in state.items():
            assert torch.equal(value, clean[client][name])


def test_without_validation_samples_weights_are_fixed_with_a_warning() -> None:
    f, t = federation(), task()
    *_, done = rounds = list(run(t, f, client={"name": "blend"} | SETTINGS, rounds=5, seed=3))
    assert {float(state["m"]) for state in states(done).values()} == {0.5}
    warned = [r.number for r in rounds if any("validation = 0.2" in w for w in r.warnings)]
    assert warned == [3]


def test_regression_needs_validation_samples() -> None:
    x, y, owner = arrays()
    f = Federation.from_arrays(x, x[:, 0] + y.astype(np.float32), owner, test=0.3)
    with pytest.raises(ConfigError, match="set validation"):
        last(task(loss="squared"), f, validation=0.0)
    done = last(task(loss="squared"), f)
    weights = [float(state["m"]) for state in states(done).values()]
    assert all(0 <= m <= 2 / 3 + 1e-6 for m in weights)


def test_regression_clients_far_from_the_others_keep_to_their_local_models() -> None:
    """Targets of b and d are 50 away: a partner would be worth nothing to them."""
    x, _, owner = arrays()
    far = np.isin(owner, ["b", "d"])
    y = (x[:, 0] + 50 * far).astype(np.float32)
    f = Federation.from_arrays(x, y, owner, test=0.3)
    done = last(task(loss="squared"), f, rounds=30, client={"lr": 0.05})
    assert done.evaluation is not None and done.evaluation.personal is not None
    local = last(task(loss="squared"), f, "alone", rounds=30, validation=0.0, client={"lr": 0.05})
    assert local.evaluation is not None and local.evaluation.personal is not None
    worse = done.evaluation.personal.losses / local.evaluation.personal.losses
    assert float(worse.max()) < 1.5


def test_other_kinds_of_models_and_losses() -> None:
    f = federation()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        norm = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    x, y, owner = arrays()
    survival = np.stack([np.exp(x[:, 0]) + 0.1, (y > 0).astype(float)], 1).astype(np.float32)
    cox = Federation.from_arrays(x, survival, owner, test=0.3, loss="cox", score="concordance")
    binary = Federation.from_arrays(x, (y > 0).astype(int), owner, test=0.3)
    cases = [
        (Task(norm), f),
        (task(loss="cox", score="concordance"), cox),
        (task(loss="binary"), binary),
    ]
    for what, data in cases:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            done = last(what, data, rounds=3)
        assert done.evaluation is not None and done.evaluation.personal is not None
        assert torch.isfinite(done.evaluation.personal.losses).all()


@cases(
    ("parameter", "value"),
    [("limit", 0.0), ("learn_at", 1.5), ("weight", -1.0), ("tune_epochs", 0)],
)
def test_bad_parameters_are_refused(parameter: str, value: float) -> None:
    with pytest.raises(ConfigError, match=parameter):
        last(task(), federation(), client={parameter: value})


def test_the_weight_of_the_partners_is_in_the_record_and_the_tables(tmp_path: Path) -> None:
    f, t = federation(), task()
    done = last(t, f, out=tmp_path / "r")
    record = Record.read(tmp_path / "r")
    personal = record.clients().evaluation.personal
    assert personal is not None and personal.partners is not None
    learned = [float(states(done)[k]["m"]) for k in range(f.clients)]
    assert personal.partners.tolist() == pytest.approx(learned)
    lines = (tmp_path / "r" / "clients.csv").read_text().splitlines()
    assert "personal_partners" in lines[0].split(",")
    for text in (CliRunner().invoke(app, ["show", str(tmp_path / "r")]).output, card(record)):
        assert "weight of" in text
        assert all(f"{weight:.2f}" in text for weight in learned)
    page = document.render(Comparison.in_folders([tmp_path]), "Report")
    assert "Weight of partners" in page
    assert all(f"<td>{weight:.2f}</td>" in page for weight in learned)
    partners = run_view(record, "finished")["partners"]
    assert isinstance(partners, dict)
    assert list(partners.values()) == pytest.approx(learned)


def test_two_phase_warns_too() -> None:
    f, t = federation(), task()
    method = {"name": "blend"} | SETTINGS
    rounds = run(t, f, client=method, algorithm="two-phase", rounds=5, seed=3)
    assert [r.number for r in rounds if any("validation = 0.2" in w for w in r.warnings)] == [3]
