"""Runs that make rows: a classifier per evaluation, the same bytes again, and what they leave."""

import io
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib import image
from torch import Tensor
from typer.testing import CliRunner

from commonweal import cli
from commonweal.base.tensors import flatten
from commonweal.config.experiment import read
from commonweal.data.federation import Federation
from commonweal.engines.simulator import Simulator
from commonweal.jobs.job import Job, job_from_experiment, job_from_parts
from commonweal.jobs.reopening import reopen
from commonweal.jobs.rounds import Round, run
from commonweal.protocols.algorithm import Algorithm, Outcome, Request, Sample
from commonweal.protocols.samplers import Uniform
from commonweal.protocols.synthetic import fitting
from commonweal.record.record import Record
from commonweal.report.pictures import picture
from run_helpers import Lossy, contents, job, stop_after, without
from synthetic_helpers import SEED, SMALL, built, digits, population, task

every = pytest.mark.parametrize("name", SMALL)


def small_job(name: str, rounds: int = 5) -> Job:
    """A run that is evaluated after rounds 2, 4 and 5."""
    settings: dict[str, Any] = {"rounds": rounds, "seed": SEED, "evaluate_every": 2}
    return job_from_parts(task(), digits(), algorithm=SMALL[name], **settings)


@dataclass
class Counter:
    """Counts calls of a function."""

    function: Callable[..., Tensor]
    results: list[Tensor] = field(default_factory=list)

    def __call__(self, *arguments: Any) -> Tensor:
        self.results.append(self.function(*arguments))
        return self.results[-1]


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The classifiers that the server has trained."""
    counter = Counter(fitting.fit_model)
    monkeypatch.setattr(fitting, "fit_model", counter)
    return counter.results


# The server's classifier


@every
def test_the_model_is_an_accessor_that_trains_nothing(name: str, trained: list[Tensor]) -> None:
    algorithm = built(name)
    state = algorithm.init(population())
    assert torch.equal(algorithm.model(state), algorithm.task.initial)
    evaluated = algorithm.before_evaluation(state)
    assert len(trained) == 1
    assert algorithm.model(evaluated) is trained[0]
    assert algorithm.model(evaluated) is evaluated["classifier"]
    assert torch.equal(algorithm.model(state), algorithm.task.initial)  # state is a value
    assert len(trained) == 1


@every
def test_a_run_trains_a_classifier_per_evaluation_and_leaves_rows_scores_and_a_model(
    name: str, trained: list[Tensor], tmp_path: Path
) -> None:
    parts = small_job(name)
    at_round = {}
    for done in run(parts, out=tmp_path):
        at_round[done.number] = len(trained)
        done.module()
        if trained:
            assert torch.equal(parts.algorithm.model(done.state), trained[-1])
    assert at_round == {1: 0, 2: 1, 3: 1, 4: 2, 5: 3}
    record = Record.read(tmp_path)
    assert torch.equal(parts.task.vector(record.state_dict()), trained[-1])
    again, state = reopen(tmp_path, task(), digits())
    assert torch.equal(again.algorithm.model(state), trained[-1])
    assert len(trained) == 3
    assert record.facts.engine == "simulator"
    assert record.facts.vectorize == "loop"
    assert record.finished
    assert [each.number for each in record.evaluated] == [2, 4, 5]
    assert {"mean", "worst", "gini"} <= set(record.evaluated[-1].metrics)
    assert len(record.clients().names) == 3
    assert set(record.state_dict()) == {name for name, _ in task().module.named_parameters()}
    with np.load(tmp_path / "synthetic.npz") as data:
        assert data["images"].shape == (20, 1, 8, 8)
        assert data["labels"].tolist() == sorted([*range(10)] * 2)
        assert data["images"].min() >= 0
        assert data["images"].max() <= 1


@every
def test_a_resumed_run_ends_with_the_same_bytes(name: str, tmp_path: Path) -> None:
    """Also where it stops between two evaluations, with the classifier of the first."""
    for _ in run(small_job(name), out=tmp_path / "whole"):
        pass
    for stop in (1, 2, 3):
        folder = tmp_path / str(stop)
        stop_after(stop, run(small_job(name), out=folder))
        resumed = run(small_job(name), out=folder, resume=True)
        assert [done.number for done in resumed] == list(range(stop + 1, 6))
        assert contents(tmp_path / "whole") == contents(folder)


# Replies that never come


def lose(request: Request) -> dict[int, str]:
    """Client 1 is lost in round 1, all are in round 2."""
    lost: dict[int, dict[int, str]] = {
        1: {1: "timed out"},
        2: {0: "offline", 1: "offline", 2: "offline"},
    }
    return lost.get(int(request.message["round"]), {})


def rows_after(done: Round) -> Tensor:
    samples = done.job.algorithm.samples(done.state)
    assert samples is not None
    return samples[0]


@every
def test_a_run_goes_on_with_the_clients_that_reply(name: str) -> None:
    f = digits()
    one, lost, another = f.names
    engine = Lossy(f, lose, seed=SEED)
    first, second, third = run(job(task(), f, engine, algorithm=SMALL[name], rounds=3, seed=SEED))
    assert first.dropped == {lost: "timed out"}
    assert first.weights.keys() == {one, another}
    assert sum(first.weights.values()) == pytest.approx(1)
    assert math.isnan(first.losses[1])
    assert not math.isnan(first.losses[0])
    assert second.dropped == dict.fromkeys(f.names, "offline")
    assert second.weights == {}
    assert torch.equal(rows_after(first), rows_after(second))
    assert third.dropped == {}
    assert third.weights.keys() == set(f.names)
    assert not torch.equal(rows_after(second), rows_after(third))
    assert third.metrics


def first_round(
    algorithm: Algorithm, f: Federation, clients: Tensor, lost: dict[int, str]
) -> Outcome:
    """The outcome of a round that asks these clients and loses some replies."""
    rng = np.random.default_rng(0)
    sample = Sample(f.population, f.clients, round=1, sampler=Uniform(), rng=rng)
    conversation = algorithm.round(algorithm.init(f.population), sample)
    request = next(conversation)._replace(clients=clients)
    replies = Simulator(f, seed=SEED).collect(algorithm, request)
    with pytest.raises(StopIteration) as stopped:
        conversation.send(without(replies, lost))
    outcome: Outcome = stopped.value.value
    return outcome


@every
def test_a_lost_reply_gives_the_round_of_the_others(name: str) -> None:
    """The state is that of a server that asked the others only."""
    f = digits()
    algorithm = built(name, f.population)
    replied = first_round(algorithm, f, torch.arange(3), {1: "timed out"})
    asked = first_round(algorithm, f, torch.tensor([0, 2]), {})
    assert replied.dropped == {1: "timed out"}
    assert asked.dropped == {}
    assert replied.weights.tolist() == asked.weights.tolist()
    state = flatten(replied.state)
    expected = flatten(asked.state)
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[key], expected[key]) for key in state)


# What a run leaves


def test_the_record_counts_what_is_sent_against_the_weights(tmp_path: Path) -> None:
    for _ in run(small_job("fedevg", rounds=1), out=tmp_path):
        pass
    line = json.loads((tmp_path / "rounds.jsonl").read_text())
    rows = 20
    width = 64
    scalars = 8 * 3
    down = rows * (4 * width + 8) + 8
    up = rows * (4 * width + 4) + scalars
    assert line["bytes"] == {"down": 3 * down, "up": 3 * up, "weights": 2 * 3 * 4 * task().size}


def test_averaging_sends_what_weights_cost() -> None:
    (done,) = run(task(), digits(), rounds=1)
    size = 4 * task().size
    assert done.bytes["weights"] == 2 * 3 * size
    assert done.bytes["down"] == 3 * (size + 8 * 2)  # with the round and the number of rounds
    assert done.bytes["up"] == 3 * (size + 8 + 4)  # with loss, score and size


# Pictures

TEXT = """
dataset = "digits"
rounds = 5
evaluate_every = 2
cohort = 3

[model]
name = "energy-cnn"
width = 4

[algorithm]
name = "fedevg"
spc = 2
steps = 2
classifier_epochs = 2
"""


def command(*arguments: object) -> None:
    result = CliRunner().invoke(cli.app, ["run", *map(str, arguments), "--quiet"])
    assert result.exit_code == 0, result.output


def test_the_command_leaves_a_picture_per_evaluation(tmp_path: Path) -> None:
    file = tmp_path / "e.toml"
    file.write_text(TEXT)
    whole = tmp_path / "whole"
    command(file, "--out", whole)
    pictures = sorted((whole / "pictures").iterdir())
    assert [path.name for path in pictures] == ["000002.png", "000004.png", "000005.png"]
    samples = Record.read(whole).samples()
    assert samples is not None
    assert pictures[-1].read_bytes() == picture(*samples)


def test_a_resumed_command_leaves_the_same_pictures(tmp_path: Path) -> None:
    file = tmp_path / "e.toml"
    file.write_text(TEXT)
    command(file, "--out", tmp_path / "whole")
    stopped = tmp_path / "stopped"
    stop_after(3, run(job_from_experiment(read(file)), out=stopped))
    (stopped / "pictures").mkdir()
    (stopped / "pictures" / "000004.png").write_bytes(b"of a round that was not saved")
    command(file, "--out", stopped, "--resume")
    assert contents(tmp_path / "whole") == contents(stopped)


def test_a_picture_has_a_row_per_class_and_a_column_per_sample() -> None:
    x = torch.zeros(5, 1, 4, 3)
    x[1] = 1.0
    y = torch.tensor([7, 2, 7, 2, 7])
    sheet = image.imread(io.BytesIO(picture(x, y)))[..., 0]
    assert sheet.shape[0] % (2 * 5) == 0
    assert sheet.shape[1] % (3 * 4) == 0
    zoom = sheet.shape[0] // 10
    small = sheet[zoom // 2 :: zoom, zoom // 2 :: zoom]  # (2 rows of 1 + 4, 3 columns of 1 + 3)
    assert small.shape == (10, 12)
    assert (small[1:5, 1:4] == 1).all()  # the first of class 2
    assert (small[1:5, 5:8] == 0).all()
    assert (small[6:, 1:4] == 0).all()
    grey = pytest.approx(0.5, abs=0.01)
    assert small[0, 0] == grey  # between images
    assert small[2, 10] == grey  # class 2 has no third image


def test_rows_that_are_not_images_have_no_picture() -> None:
    assert picture(torch.rand(4, 7), torch.arange(4)) == b""
    assert picture(torch.rand(4, 3, 5, 5), torch.arange(4)).startswith(b"\x89PNG")
