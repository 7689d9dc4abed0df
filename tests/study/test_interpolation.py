"""Personal models evaluated one by one in plain loops, and the line between models."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from cases import cases
from commonweal.base.errors import CommonwealError, ConfigError, RunError
from commonweal.cli import app
from commonweal.config.experiment import Experiment
from commonweal.data.federation import Federation
from commonweal.data.population import Population
from commonweal.data.rows import Rows
from commonweal.engines.engine import Engine
from commonweal.jobs.job import Job, job_from_parts
from commonweal.jobs.reopening import reopen
from commonweal.jobs.rounds import Round, run
from commonweal.record.record import Record
from commonweal.study import interpolation
from commonweal.study.interpolation import POINTS
from commonweal.task.task import Task
from commonweal.training.client import Client
from commonweal.training.evaluation import Evaluation, evaluate_rows
from personal_helpers import client, federation, task
from run_helpers import states_of


def done(name: str, f: Federation | None = None, **how: Any) -> tuple[Job, Round]:
    """A job with a client method, and its last round."""
    settings = {"rounds": 3, "cohort": 2, "seed": 1} | how
    job = job_from_parts(task(), f or federation(), client=client(name), **settings)
    return job, list(run(job))[-1]


def rows_of(job: Job) -> Federation:
    assert job.local is not None
    return job.local.federation


def method_of(job: Job) -> Client:
    assert job.algorithm.client is not None
    return job.algorithm.client


def evaluations(last: Round) -> tuple[Evaluation, Evaluation]:
    """Of the server's model, and of the clients' own."""
    assert last.evaluation is not None
    assert last.evaluation.personal is not None
    return last.evaluation, last.evaluation.personal


def accuracy(job: Job, w: torch.Tensor, k: int) -> float:
    rows = rows_of(job).test.client(k)
    return float((job.task.outputs(w, rows.x).argmax(-1) == rows.y).double().mean())


def mean_loss(job: Job, w: torch.Tensor, rows: Rows) -> float:
    return float(evaluate_rows(job.task, w, rows)[0].mean())


PERSONAL = ["fedper", "fedrep", "lg-fedavg", "ditto", "apfl", "pfedme", "superfed-mm"]


@cases("name", PERSONAL)
def test_clients_are_evaluated_by_their_own_model_and_newcomers_by_the_servers(name: str) -> None:
    job, last = done(name)
    states = states_of(job.engine)
    message = job.algorithm.message(last.state)
    shared, personal = evaluations(last)
    assert 2 <= len(states) < 5
    for k in range(5):
        w = last.state["w"]
        own = w
        if k in states:
            own = method_of(job).uses(job.task, message, states[k]).models[0]
        assert float(personal.score[k]) == pytest.approx(accuracy(job, own, k))
        assert float(shared.score[k]) == pytest.approx(accuracy(job, w, k))
        rows = rows_of(job).test.client(k)
        assert float(personal.losses[k]) == pytest.approx(mean_loss(job, own, rows), rel=1e-5)
    assert last.personal["mean"] == pytest.approx(float(personal.score.mean()))
    assert last.line()["personal"] == last.personal


@cases("name", ["sgd", "fedprox", "scaffold"])
def test_plain_methods_have_no_second_score(name: str) -> None:
    _, last = done(name)
    assert last.evaluation is not None
    assert last.evaluation.personal is None
    assert last.personal == {}
    assert "personal" not in last.line()


def test_a_client_without_test_rows_has_no_personal_score() -> None:
    sizes = {"a": 12, "b": 1, "c": 30}
    _, last = done("ditto", federation(sizes), cohort="all")
    _, personal = evaluations(last)
    assert personal.score.isnan().tolist() == [False, True, False]


def test_clients_of_very_different_size_are_evaluated_alike() -> None:
    f = federation({"a": 4, "b": 400, "c": 37, "d": 8, "e": 90})
    losses = []
    for mode in ("vmap", "loop"):
        _, last = done("ditto", f, cohort="all", vectorize=mode)
        losses.append(evaluations(last)[1].losses)
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-3, atol=1e-5)


# The line


def test_the_curve_by_hand() -> None:
    job, last = done("superfed-lm", rounds=4)
    curve = interpolation.curve(job, last.state)
    assert curve.scores.shape == curve.losses.shape == (5, 11)
    assert curve.names == ("a", "b", "c", "d", "e")
    states = states_of(job.engine)
    w = last.state["w"]
    for k in range(5):
        own = states[k]["own"] if k in states and states[k]["joined"] > 0 else w
        by_hand = [accuracy(job, (1 - m / 10) * w + m / 10 * own, k) for m in range(11)]
        assert curve.scores[k].tolist() == pytest.approx(by_hand)
    chosen = curve.chosen()
    best = max(range(11), key=lambda k: float(curve.scores[:, k].mean()))
    common = f"best common m = {best / 10:g}"
    named = ["m = 0", "m = 0.5", "m = 1", common, "m by validation", "m by oracle"]
    assert list(chosen) == named and curve.common == best / 10
    assert torch.equal(chosen[common], curve.scores[:, best])
    shared, personal = evaluations(last)
    torch.testing.assert_close(chosen["m = 0"], shared.score)
    torch.testing.assert_close(chosen["m = 0.5"], personal.score)
    others = torch.stack([chosen[m] for m in list(chosen)[:5]]).amax(0)
    assert (chosen["m by oracle"] >= others - 1e-12).all()


@cases("mode", ["vmap", "loop"])
def test_every_personal_method_has_a_line_to_its_own_model(mode: str) -> None:
    job, last = done("ditto", cohort="all", vectorize=mode)
    curve = interpolation.curve(job, last.state)
    shared, personal = evaluations(last)
    torch.testing.assert_close(curve.scores[:, 0], shared.score)
    torch.testing.assert_close(curve.scores[:, -1], personal.score)


def best_point(right: Sequence[torch.Tensor], losses: Sequence[torch.Tensor], half: int) -> int:
    """The point of the highest accuracy on a half of the rows, by loss among equals."""
    if len(right[0]) <= half:
        return 5

    def key(m: int) -> tuple[float, float]:
        return -float(right[m][half::2].mean()), float(losses[m][half::2].mean())

    return min(range(11), key=key)


def test_validation_never_sees_the_rows_it_is_scored_on() -> None:
    job, last = done("superfed-mm", rounds=4, cohort="all")
    curve = interpolation.curve(job, last.state)
    w = last.state["w"]
    total = []
    for k in range(5):
        own = states_of(job.engine)[k]["own"]
        rows = rows_of(job).test.client(k)
        right, losses = [], []
        for m in POINTS:
            outputs = job.task.outputs((1 - m) * w + m * own, rows.x)
            loss = torch.nn.functional.cross_entropy(outputs, rows.y, reduction="none")
            right.append((outputs.argmax(-1) == rows.y).double())
            losses.append(loss.double())
        hits = 0.0
        for choose, score in ((0, 1), (1, 0)):
            hits += float(right[best_point(right, losses, choose)][score::2].sum())
        total.append(hits / len(rows.y))
    assert curve.validated.tolist() == pytest.approx(total)


def test_a_single_test_row_is_scored_in_the_middle() -> None:
    job, last = done("superfed-mm", federation({"a": 3, "b": 30}), rounds=3, cohort="all")
    assert rows_of(job).test.sizes[0] == 1
    curve = interpolation.curve(job, last.state)
    assert curve.validated[0] == curve.scores[0, 5]


def test_halves_without_a_score_leave_the_choice_to_the_loss() -> None:
    scores = torch.tensor([[torch.nan] * 11, [0.5] * 11, [torch.nan] * 11], dtype=torch.float64)
    losses = torch.ones(3, 11, dtype=torch.float64)
    losses[0, 3] = 0.1
    losses[1, 8] = 0.2
    losses[2] = torch.nan  # no rows at all
    assert interpolation._best(interpolation._Along(scores, losses)).tolist() == [3, 8, 5]


def test_validation_where_a_half_has_one_class_only() -> None:
    """AUROC: only the half of client a with both classes is scored; b has two such halves."""
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    x[:, 0] = torch.arange(40)
    y = [0] * 12 + [1, 0] * 14
    owner = ["a"] * 20 + ["b"] * 20
    f = Federation.from_arrays(x, y, owner, test=0.5, loss="binary", score="auroc", outputs=1)
    labels = torch.tensor([0, 0, 1, 0, 0, 1, 1, 0])
    f = replace(f, test=Rows(torch.zeros(8, 3), labels, torch.tensor([0, 4, 8])))
    t = Task(torch.nn.Linear(3, 1), "binary", "auroc")
    job = job_from_parts(t, f, client=client("apfl"), rounds=2)
    curve = interpolation.curve(job, list(run(job))[-1].state)
    assert curve.validated.tolist() == [0.5, 0.5]  # rows alike: every defined half scores a half


@cases("name", ["sgd", "scaffold"])
def test_a_method_without_personal_models_is_an_error(name: str) -> None:
    job, last = done(name)
    with pytest.raises(ConfigError, match=r"no personal models.*superfed-mm, apfl or ditto"):
        interpolation.curve(job, last.state)


class Remote(Engine):
    """An engine whose clients' rows are elsewhere."""

    def __init__(self, population: Population) -> None:
        self.population = population


def test_rows_that_are_elsewhere_are_errors() -> None:
    job, last = done("ditto")
    remote = replace(job, engine=Remote(job.population))
    with pytest.raises(ConfigError, match="Remote has no rows of clients in this process"):
        interpolation.curve(remote, last.state)


def test_the_barrier_by_hand() -> None:
    m = torch.arange(11) / 10
    flat, hill, slope = 1 + 0 * m, 1 + 4 * m * (1 - m), 2 - m
    valley = 3 + m - 4 * m * (1 - m)
    losses = torch.stack([flat, hill, slope, valley]).double()
    curve = interpolation.Curve(("a", "b", "c", "d"), losses, losses, losses[:, 0])
    assert curve.barriers().tolist() == pytest.approx([0, 1, 0, 0], abs=1e-6)


@cases("name", ["superfed-mm", "superfed-lm"])
def test_the_line_of_models_with_batchnorm(name: str) -> None:
    """Statistics of mixtures are those of the client's training rows."""
    job = job_from_parts(task(norm=True), federation(), client=client(name), rounds=4, seed=1)
    last = list(run(job))[-1]
    curve = interpolation.curve(job, last.state)
    w, n = last.state["w"], job.task.num_trainable
    for k, state in states_of(job.engine).items():
        rows = rows_of(job).train.client(k).x
        for point in (3, 10):
            at = ((1 - point / 10) * w + point / 10 * state["own"])[:n]
            weight, bias = at[:24].view(6, 4), at[24:30]
            hidden = rows @ weight.T + bias
            model = torch.cat([at, hidden.mean(0), hidden.var(0), torch.ones(1)])
            assert float(curve.scores[k, point]) == pytest.approx(accuracy(job, model, k))


# Calibration


@cases("score", ["ece", "mce"])
def test_calibration_of_values_is_refused(score: str) -> None:
    with pytest.raises(ConfigError, match=f"score = '{score}' does not fit .* 'squared'"):
        Task(torch.nn.Linear(3, 1), "squared", score)


def test_calibration_of_own_models_is_each_clients() -> None:
    job, last = done("ditto", cohort="all")
    ece = interpolation.evaluate_score(job, last.state, "ece", own=True).score
    for k in range(5):
        rows = rows_of(job).test.client(k)
        own = states_of(job.engine)[k]["own"]
        p, guess = job.task.outputs(own, rows.x).double().softmax(-1).max(-1)
        excess = (guess == rows.y).double() - p
        bins = torch.ceil(p * 20)
        gaps = [abs(float(excess[bins == b].sum())) for b in set(bins.tolist())]
        assert float(ece[k]) == pytest.approx(sum(gaps) / len(rows.y))


def test_calibration_is_that_of_the_point_whose_accuracy_is_best() -> None:
    job, last = done("superfed-mm", cohort="all")
    curve = interpolation.curve(job, last.state)
    ece = interpolation.scores_at_best(job, last.state, "ece")
    points = set()
    for k in range(5):
        ordered = sorted(range(11), key=lambda m: (-curve.scores[k, m], curve.losses[k, m]))
        points.add(ordered[0])
        rows = rows_of(job).test.client(k)
        own = states_of(job.engine)[k]["own"]
        model = last.state["w"].lerp(own, ordered[0] / 10)
        p, guess = job.task.outputs(model, rows.x).double().softmax(-1).max(-1)
        excess = (guess == rows.y).double() - p
        bins = torch.ceil(p * 20)
        gaps = [abs(float(excess[bins == b].sum())) for b in set(bins.tolist())]
        assert float(ece[k]) == pytest.approx(sum(gaps) / len(rows.y), abs=1e-6)
    assert len(points) > 1


def test_another_score_of_the_servers_model() -> None:
    job, last = done("ditto")
    shared, personal = evaluations(last)
    for own, expected in ((False, shared), (True, personal)):
        got = interpolation.evaluate_score(job, last.state, "accuracy", own)
        torch.testing.assert_close(got.score, expected.score)
        torch.testing.assert_close(got.losses, expected.losses)


# Folders and the command


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "superfed"
    own = {"name": "superfed-lm", "begin": 1.0, "batch": 10, "lr": 0.2}
    model = {"name": "mlp", "hidden": [8]}
    list(run(Experiment(dataset="vowel", model=model, client=own, rounds=3, cohort=4), out=path))
    return path


def scores_in(folder: Path) -> tuple[list[float], list[float]]:
    """The recorded scores of the server's model and of the clients' own."""
    evaluation = Record.read(folder).clients().evaluation
    assert evaluation.personal is not None
    return evaluation.score.tolist(), evaluation.personal.score.tolist()


def test_a_record_has_both_scores_for_all_clients(folder: Path) -> None:
    shared, own = scores_in(folder)
    assert len(shared) == len(own) == len(Record.read(folder).clients().names) == 15
    assert Record.read(folder).evaluated[-1].personal["mean"] == pytest.approx(np.mean(own))
    assert sum(a != b for a, b in zip(shared, own, strict=True)) >= 4


def test_a_run_is_reopened_as_it_was_left(folder: Path) -> None:
    job, state = reopen(folder)
    personal = job.engine.evaluate(job.algorithm, state).personal
    assert personal is not None
    assert personal.score.tolist() == scores_in(folder)[1]
    assert len(states_of(job.engine)) > 4


def test_the_command_shows_and_draws(folder: Path, tmp_path: Path) -> None:
    curve = tmp_path / "curve.svg"
    result = CliRunner().invoke(app, ["show", str(folder), "--curve", str(curve)])
    assert result.exit_code == 0, result.output
    for words in ("global model", "personal model", "best common m", "m by oracle", "loss barrier"):
        assert words in result.output
    assert b"<svg" in curve.read_bytes()
    shown = json.loads(CliRunner().invoke(app, ["show", str(folder), "--json"]).stdout)
    own = [c["personal_score"] for c in shown["clients"]]
    assert shown["personal"]["mean"] == pytest.approx(np.mean(own))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["DIR", "--curve", "x.foo"],
            "'x.foo' is not the name of a figure: end it with .png, .svg, .pdf",
        ),
        (["DIR", "--curve", "."], "'.' is not the name of a figure"),
        (["DIR", "--curve", "/dev/null/x.png"], "cannot write '/dev/null/x.png'"),
        (["sgd", "--curve", "x.png"], "'sgd' is not a run's folder: figures are drawn of runs"),
    ],
)
def test_a_figure_that_cannot_be_drawn_is_an_error(
    folder: Path, arguments: list[str], words: str
) -> None:
    options = [a.replace("DIR", str(folder)) for a in arguments]
    result = CliRunner().invoke(app, ["show", *options])
    assert isinstance(result.exception, CommonwealError)
    assert words in str(result.exception)


def test_a_plain_run_has_no_personal_columns(tmp_path: Path) -> None:
    list(run(Experiment(dataset="vowel", rounds=1), out=tmp_path / "run"))
    result = CliRunner().invoke(app, ["show", str(tmp_path / "run"), "--json"])
    assert set(json.loads(result.stdout)["clients"][0]) == {"client", "score", "loss"}
    assert Record.read(tmp_path / "run").clients().evaluation.personal is None
    head = (tmp_path / "run" / "clients.csv").read_text().splitlines()[0]
    assert head == "client,rows,score,loss"


def test_a_run_of_ones_own_task_is_reopened_with_it(tmp_path: Path) -> None:
    parts: dict[str, Any] = {"client": client("ditto"), "rounds": 2}
    f = federation()
    job = job_from_parts(task(), f, **parts)
    last = list(run(job))[-1]
    list(run(task(), f, **parts, out=tmp_path / "own"))
    again, state = reopen(tmp_path / "own", task(), f)
    expected = interpolation.curve(job, last.state)
    assert torch.equal(interpolation.curve(again, state).scores, expected.scores)
    with pytest.raises(RunError, match="cannot be built again"):
        reopen(tmp_path / "own")
