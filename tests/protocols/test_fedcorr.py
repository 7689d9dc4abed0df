"""FedCorr step by step: dimensions, noisy clients, relabelling, stages; then noise it undoes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from commonweal.base.errors import ConfigError
from commonweal.clients import Client, FedProx
from commonweal.config import catalog
from commonweal.config.experiment import Experiment
from commonweal.data.federation import Federation
from commonweal.data.rows import Rows
from commonweal.datasets.noise import Uneven
from commonweal.engines.simulator import Simulator
from commonweal.jobs.job import Job, build_dataset
from commonweal.jobs.rounds import Round, run
from commonweal.protocols import FedCorr, Replies, Request
from commonweal.protocols.algorithm import Algorithm
from commonweal.protocols.noisy_labels import intrinsic_dimension, upper_component
from commonweal.protocols.servers import SGD
from commonweal.rules import FedAvg
from commonweal.task.task import Task
from helpers import averaging, close
from run_helpers import contents, stop_after
from run_helpers import job as job_with

CLIENTS, CLASSES = 10, 10
NOISY = (1, 4, 8)


def clean_federation() -> Federation:
    """Scikit-learn's digits, divided among ten clients."""
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    x = (data.data / 16).astype(np.float32)[order]
    names = np.array([f"c{k}" for k in np.arange(len(x)) % CLIENTS])
    return Federation.from_arrays(x, data.target[order], names)


def noisy_federation() -> Federation:
    """Three clients have 70 % random labels for training."""
    f = clean_federation()
    rng = np.random.default_rng(1)
    y = f.train.y.clone()
    for k in NOISY:
        a, b = f.train.offsets[k : k + 2].tolist()
        chosen = a + rng.permutation(b - a)[: int(0.7 * (b - a))]
        y[chosen] = torch.from_numpy(rng.integers(0, CLASSES, len(chosen)))
    rows = Rows(f.train.x, y, f.train.offsets)
    return Federation(rows, f.test, f.names, outputs=CLASSES)


def task() -> Task:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Task(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, CLASSES)))


PART: dict[str, Any] = {"name": "fedcorr", "iterations": 2, "tuning": 0.4}
LOCAL = Client(epochs=10, batch=10, lr=0.1)


def job(engine: Simulator | None = None, **more: Any) -> Job:
    parts = {"algorithm": PART, "client": LOCAL}
    settings = {"rounds": 10, "cohort": 5, "evaluate_every": 10} | parts | more
    return job_with(task(), noisy_federation(), engine, **settings)


def corr(**values: Any) -> FedCorr:
    return FedCorr(task(), FedAvg(), LOCAL, SGD(), rounds=20, **values)


# Dimensions and mixtures


def test_the_dimension_by_brute_force() -> None:
    points = np.random.default_rng(0).normal(size=(40, 3))
    got = intrinsic_dimension(torch.from_numpy(points), 7)
    for i in range(40):
        r = np.sort(np.linalg.norm(points - points[i], axis=1))[1:8]
        assert float(got[i]) == pytest.approx(-1 / np.mean(np.log(r / r[-1])))


@pytest.mark.parametrize("dimension", [1, 2, 5])
def test_the_dimension_of_a_cube_is_about_its_own(dimension: int) -> None:
    """The estimator is consistent: Amsaleg et al., KDD 2015."""
    cube = torch.rand(3000, dimension, generator=torch.Generator().manual_seed(0))
    inside = torch.nn.functional.pad(cube, (0, 4))  # in a space of more dimensions
    assert float(intrinsic_dimension(inside, 30).mean()) == pytest.approx(dimension, rel=0.2)


def test_points_that_coincide_and_few_points_have_dimension_0() -> None:
    assert intrinsic_dimension(torch.ones(9, 3)).tolist() == [0] * 9
    assert intrinsic_dimension(torch.rand(2, 3)).tolist() == [0, 0]
    assert intrinsic_dimension(torch.tensor([[0.0], [1.0], [3.0], [1.0]])).isfinite().all()


def test_the_upper_of_two_groups() -> None:
    rng = np.random.default_rng(0)
    values = torch.from_numpy(np.r_[rng.normal(1, 0.1, 30), rng.normal(3, 0.3, 12)])
    order = torch.from_numpy(rng.permutation(42))
    assert torch.equal(upper_component(values[order]), order >= 30)
    assert not upper_component(torch.ones(5)).any() and len(upper_component(torch.ones(1))) == 1


# What a client does


def test_the_penalty_of_a_noisy_client_is_fedprox() -> None:
    """beta level |w_i - w|^2 is mu = 2 beta level; clients without noise train by SGD."""
    f, a = noisy_federation(), corr(beta=2.0)
    state = a.init(f.population)
    each = {"level": torch.tensor([0.0, 0.25])}
    request = Request(torch.tensor([0, 1]), a.ask(state), "train", each)
    values = Simulator(f).collect(a, request).values
    prox = FedProx(epochs=10, batch=10, lr=0.1, mu=2 * 2.0 * 0.25)
    for k, method in enumerate((LOCAL, prox)):
        plain = averaging(a.task, method)
        alone = Simulator(f).collect(plain, Request(torch.tensor([k]), plain.ask(state))).values
        close(values["update"][k], alone["update"][0])
        w = a.task.initial - alone["update"][0]
        predictions = a.task.outputs(w, f.train.client(k).x).softmax(1)
        expected = intrinsic_dimension(predictions).mean()
        assert float(values["dimension"][k]) == pytest.approx(float(expected), rel=1e-3)


def test_relabelling_by_hand() -> None:
    """Of ten rows four have a high loss; half of these are candidates, if the model is sure."""
    a = corr(relabel=0.5, confidence=0.6)
    sure = torch.tensor([0.9, 0.5] + [0.9] * 8)
    predicted = torch.arange(10) % 4

    class Known(FedCorr):
        def probabilities(self, w: Tensor, rows: Rows) -> Tensor:
            rest = (1 - sure[:, None]).expand(10, CLASSES) / (CLASSES - 1)
            return rest.scatter(1, predicted[:, None], sure[:, None])

    known = Known(a.task, FedAvg(), LOCAL, SGD(), relabel=0.5, confidence=0.6)
    y = torch.full((10,), 3)
    rows = Rows(torch.zeros(10, 64), y, torch.tensor([0, 10]))
    losses = torch.tensor([5.0, 5.2, 4.9, 4.8, 0.1, 0.12, 0.11, 0.09, 0.1, 0.13])
    level, labels = known.corrected(a.task.initial, rows, losses)
    assert float(level) == pytest.approx(0.4)
    assert labels.tolist() == [0] + [3] * 9  # rows 1 and 0 are the highest, and 1 is not sure
    everywhere = known.relabelled(a.task.initial, rows, torch.ones(10).bool())
    assert everywhere.tolist() == [0, 3, 2, 3, 0, 1, 2, 3, 0, 1]


# Stages


class Recording(Simulator):
    """Notes who is asked what."""

    def collect(self, algorithm: Algorithm, request: Request) -> Replies:
        replies = super().collect(algorithm, request)
        self.asked.append(
            (int(request.message["round"]), request.purpose, request.clients.tolist())
        )
        return replies

    @property
    def asked(self) -> list[tuple[int, str, list[int]]]:
        return self.__dict__.setdefault("_asked", [])  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def done() -> tuple[Recording, Round]:
    """A run with averaging by rows."""
    engine = Recording(noisy_federation())
    *_, last = run(job(engine))
    return engine, last


def test_the_stages(done: tuple[Recording, Round]) -> None:
    engine, last = done
    trained = [(number, who) for number, purpose, who in engine.asked if purpose == "train"]
    assert [number for number, _ in trained] == list(range(1, 11))
    for first, second in ((0, 1), (2, 3)):  # two visits of all, in halves
        assert sorted(trained[first][1] + trained[second][1]) == list(range(CLIENTS))
    assert trained[0][1] != trained[2][1]
    others = [(number, purpose) for number, purpose, _ in engine.asked if purpose != "train"]
    assert others == [(2, "relabel"), (4, "relabel"), (6, "correct")]  # 4 + 0.4 x 6 = 6
    for number, purpose, who in engine.asked:
        if 4 < number <= 6 and purpose == "train":
            assert not set(who) & set(NOISY)
    assert {who for _, purpose, ids in engine.asked if purpose == "correct" for who in ids} == set(
        NOISY
    )
    assert torch.equal(last.state["noisy"].nonzero().flatten(), torch.tensor(NOISY))
    assert (last.state["level"][list(NOISY)] > 0.1).all()


def wrong_labels(engine: Simulator, truth: Tensor) -> float:
    """The share of wrong labels that clients train on in the end."""
    labels = truth.clone()
    f = engine.federation
    for k in range(f.clients):
        a, b = f.train.offsets[k : k + 2].tolist()
        labels[a:b] = engine.states[k].protocol["labels"]
    return float((labels != truth).double().mean())


def test_wrong_labels_are_corrected(done: tuple[Recording, Round]) -> None:
    engine, last = done
    truth = clean_federation().train.y
    before = float((engine.federation.train.y != truth).double().mean())
    assert before > 0.15 and wrong_labels(engine, truth) < 0.2 * before
    assert last.metrics["mean"] > 0.9


def test_with_adafed_the_first_stage_is_the_same(done: tuple[Recording, Round]) -> None:
    """Noisy clients are found before the rule has a say."""
    rule = {"name": "adafed", "gamma": 1.0, "scale": "theorem"}
    state = list(run(job(rounds=5, rule=rule)))[-1].state
    for name in ("noisy", "level", "dimension"):
        assert torch.equal(state[name], done[1].state[name])


def test_it_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    quick: dict[str, Any] = {"client": Client(batch=50), "rounds": 6}
    list(run(job(**quick), out=tmp_path / "whole"))
    for stop in (2, 4):
        stop_after(stop, run(job(**quick), out=tmp_path / "part", resume=True))
    list(run(job(**quick), out=tmp_path / "part", resume=True))
    assert contents(tmp_path / "part") == contents(tmp_path / "whole")


def test_what_it_cannot_do_is_an_error() -> None:
    with pytest.raises(ConfigError, match="plain local SGD, not by FedProx"):
        FedCorr(task(), FedAvg(), FedProx(), SGD())
    with pytest.raises(ConfigError, match="corrects classes, but the loss is 'squared'"):
        FedCorr(Task(nn.Linear(2, 1), "squared"), FedAvg(), LOCAL, SGD())
    with pytest.raises(ConfigError, match=r"beta = 20\.0, client lr = 0\.1: steps on the penalty"):
        corr(beta=20.0)
    with pytest.raises(ConfigError, match="relabel = 2: it must be from 0 to 1"):
        corr(relabel=2)
    with pytest.raises(ConfigError, match="which takes 4 of 3 rounds: give more rounds"):
        list(run(job(rounds=3)))


# Uneven noise


def test_uneven_noise() -> None:
    sizes = np.full(200, 100)
    labels = np.zeros(20_000, dtype=np.int64)
    noisy = Uneven(share=0.4, least=0.5).by_client(labels, sizes, 10, 0).reshape(200, 100)
    wrong = (noisy != 0).mean(1)
    some = wrong > 0
    assert some.mean() == pytest.approx(0.4, abs=0.1)
    assert 0.3 < wrong[some].min() < 0.55 and wrong[some].max() > 0.8  # 0.9 of U(0.5, 1)
    assert wrong[some].mean() == pytest.approx(0.9 * 0.75, abs=0.04)


def test_uneven_noise_in_an_experiment() -> None:
    part = {"name": "uneven", "share": 0.5, "least": 0.8}
    f = build_dataset(Experiment(dataset="vowel", label_noise=part))
    clean = build_dataset(Experiment(dataset="vowel"))
    wrong = f.train.y != clean.train.y
    by_client = [float(part.double().mean()) for part in torch.split(wrong, f.train.sizes.tolist())]
    assert 0 < sum(share > 0 for share in by_client) < 15
    assert all(share == 0 or share > 0.5 for share in by_client)
    assert catalog.find_entry("noises", "uneven").parameters.keys() == {"share", "least"}
