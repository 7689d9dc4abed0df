"""Personal models judged one by one in plain loops, the line and the plane between models, and their pictures."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from commonweal import personal, report
from commonweal.cli import app
from commonweal.errors import CommonwealError, ConfigError, RunError
from commonweal.experiment import Experiment
from commonweal.federation import Federation, Rows
from commonweal.local import judge
from commonweal.run import given, run
from commonweal.store import Record
from commonweal.task import Task
from personal_helpers import client, federation, task


def done(name: str, f: Federation | None = None, **how: Any) -> tuple[Any, Any]:
    plain = {"rounds": 3, "cohort": 2, "seed": 1} | how
    job = given(task(), f or federation(), "fedavg", client(name), "sgd", **plain)
    return job, list(run(job))[-1]


def accuracy(job: Any, w: torch.Tensor, k: int) -> float:
    rows = job.federation.test.of(k)
    return float((job.task.outputs(w, rows.x).argmax(-1) == rows.y).double().mean())


@pytest.mark.parametrize("name", ["fedper", "fedrep", "lg-fedavg", "ditto", "apfl", "pfedme", "superfed-mm"])
def test_every_client_is_judged_by_its_own_model_and_newcomers_by_the_servers(name: str) -> None:
    job, last = done(name)
    kept, local = job.simulator.kept, job.algorithm.local
    assert 2 <= len(kept) < 5
    for k in range(5):
        w = last.server["w"]
        own = local.personal(job.task, job.algorithm.ask(last.server), kept[k]) if k in kept else w
        assert float(last.personal[1][k]) == pytest.approx(accuracy(job, own, k))
        assert float(last.evaluation[1][k]) == pytest.approx(accuracy(job, w, k))
        rows = job.federation.test.of(k)
        assert float(last.personal[0][k]) == pytest.approx(float(judge(job.task, own, rows)[0].mean()), rel=1e-5)
    assert last.personal_metrics["mean"] == pytest.approx(float(last.personal[1].mean()))
    assert last.line()["personal"] == last.personal_metrics


@pytest.mark.parametrize("name", ["sgd", "fedprox", "scaffold"])
def test_plain_methods_have_no_second_score(name: str) -> None:
    _, last = done(name)
    assert last.personal is None and last.personal_metrics == {} and "personal" not in last.line()


def test_a_client_without_test_rows_has_no_personal_score() -> None:
    sizes = {"a": 12, "b": 1, "c": 30}
    _, last = done("ditto", federation(sizes), cohort="all")
    assert last.personal[1].isnan().tolist() == [False, True, False]


def test_clients_of_very_different_size_are_judged_alike() -> None:
    f = federation({"a": 4, "b": 400, "c": 37, "d": 8, "e": 90})
    ways = [done("ditto", f, cohort="all", engine=mode)[1].personal for mode in ("vmap", "loop")]
    torch.testing.assert_close(ways[0][0], ways[1][0], rtol=1e-3, atol=1e-5)


# The line


def test_the_curve_by_hand() -> None:
    job, last = done("superfed-lm", rounds=4)
    curve = personal.curve(job, last.server)
    assert curve.scores.shape == curve.losses.shape == (5, 11) and curve.names == ("a", "b", "c", "d", "e")
    kept, w = job.simulator.kept, last.server["w"]
    for k in range(5):
        own = kept[k]["own"] if k in kept and kept[k]["joined"] > 0 else w
        by_hand = [accuracy(job, (1 - m / 10) * w + m / 10 * own, k) for m in range(11)]
        assert curve.scores[k].tolist() == pytest.approx(by_hand)
    chosen = curve.chosen()
    assert list(chosen) == ["m = 0", "m = 0.5", "m = 1", "m by validation", "m by oracle"]
    torch.testing.assert_close(chosen["m = 0"], last.evaluation[1])
    torch.testing.assert_close(chosen["m = 0.5"], last.personal[1])
    assert (chosen["m by oracle"] >= torch.stack([chosen[m] for m in list(chosen)[:4]]).amax(0) - 1e-12).all()


def test_validation_never_sees_the_rows_it_is_scored_on() -> None:
    job, last = done("superfed-mm", rounds=4, cohort="all")
    curve = personal.curve(job, last.server)
    w, total = last.server["w"], []
    for k in range(5):
        own, rows = job.simulator.kept[k]["own"], job.federation.test.of(k)
        right, losses = [], []
        for m in personal.POINTS:
            outputs = job.task.outputs((1 - m) * w + m * own, rows.x)
            right.append((outputs.argmax(-1) == rows.y).double())
            losses.append(torch.nn.functional.cross_entropy(outputs, rows.y, reduction="none").double())
        hits = 0.0
        for choose, score in ((0, 1), (1, 0)):
            key = [
                (-float(r[choose::2].mean()), float(v[choose::2].mean())) for r, v in zip(right, losses, strict=True)
            ]
            m = min(range(11), key=key.__getitem__) if len(rows.y) > choose else 5
            hits += float(right[m][score::2].sum())
        total.append(hits / len(rows.y))
    assert curve.validated.tolist() == pytest.approx(total)


def test_a_single_test_row_is_scored_in_the_middle() -> None:
    job, last = done("superfed-mm", federation({"a": 3, "b": 30}), rounds=3, cohort="all")
    assert job.federation.test.sizes[0] == 1
    curve = personal.curve(job, last.server)
    assert curve.validated[0] == curve.scores[0, 5]


def test_halves_without_a_score_leave_the_choice_to_the_loss() -> None:
    scores = torch.tensor([[torch.nan] * 11, [0.5] * 11, [torch.nan] * 11], dtype=torch.float64)
    losses = torch.ones(3, 11, dtype=torch.float64)
    losses[0, 3], losses[1, 8], losses[2] = 0.1, 0.2, torch.nan  # the last has no rows at all
    assert personal._best(scores, losses).tolist() == [3, 8, 5]


def test_validation_where_a_half_has_one_class_only() -> None:
    """AUROC: the half of client a that has both classes is scored, the other not; b has both halves."""
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    x[:, 0] = torch.arange(40)
    y = [0] * 12 + [1, 0] * 14
    f = Federation.from_arrays(x, y, ["a"] * 20 + ["b"] * 20, test=0.5, loss="binary", score="auroc", outputs=1)
    test = Rows(torch.zeros(8, 3), torch.tensor([0, 0, 1, 0, 0, 1, 1, 0]), torch.tensor([0, 4, 8]))
    f = replace(f, test=test)
    t = Task(torch.nn.Linear(3, 1), "binary", "auroc")
    job = given(t, f, "fedavg", client("apfl"), "sgd", rounds=2)
    curve = personal.curve(job, list(run(job))[-1].server)
    assert curve.validated.tolist() == [0.5, 0.5]  # rows alike: every defined half scores a half


def test_a_method_without_a_line_is_a_sentence() -> None:
    job, last = done("ditto")
    with pytest.raises(ConfigError, match="superfed-mm, superfed-lm or apfl"):
        personal.curve(job, last.server)


# The plane


def test_a_landscape_passes_through_its_models() -> None:
    job, _ = done("sgd")
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, job.task.size, generator=generator)
    c = (a + b) / 2 + torch.randn(job.task.size, generator=generator)
    plane = personal.landscape(job.task, job.federation.test, torch.stack([a, b, c]), side=5, margin=0.0)
    assert plane.losses.shape == (5, 5)
    distances = torch.cdist(plane.corners, plane.corners)
    torch.testing.assert_close(
        distances, torch.cdist(torch.stack([a, b, c]), torch.stack([a, b, c])), rtol=1e-3, atol=1e-3
    )
    for got, w in ((plane.losses[0, 0], a), (plane.losses[0, 4], b), (plane.losses[0, 2], (a + b) / 2)):
        assert float(got) == pytest.approx(float(judge(job.task, w, job.federation.test)[0].mean()), rel=1e-4)


def test_models_on_a_line_have_no_plane() -> None:
    job, _ = done("sgd")
    w = job.task.initial
    with pytest.raises(ConfigError, match="on a line"):
        personal.landscape(job.task, job.federation.test, torch.stack([w, w + 1, w + 1]))


def test_the_landscape_takes_clients_whose_own_model_has_joined() -> None:
    sizes = dict.fromkeys("abcdef", 20)
    job = given(task(), federation(sizes), "fedavg", client("superfed-mm", begin=2.0), "sgd", rounds=4, cohort=2)
    for seed in range(6):
        again = replace(job, seed=seed)
        last = list(run(again))[-1]
        joined = {i for i in again.simulator.kept if float(again.simulator.kept[i]["joined"])}
        if len(joined) < 2:
            with pytest.raises(ConfigError, match="two clients with models of their own"):
                personal.around(again, last.server)
            continue
        names, plane = personal.around(again, last.server)
        assert list(names[1:]) == [f"{again.federation.names[i]}'s own" for i in (min(joined), max(joined))]
        assert plane.losses.isfinite().all()


@pytest.mark.parametrize("score", ["ece", "mce"])
def test_calibration_of_values_is_refused(score: str) -> None:
    with pytest.raises(
        ConfigError, match=f"{score} needs probabilities of classes, which a model of 'squared' has not"
    ):
        Task(torch.nn.Linear(3, 1), "squared", score)


# Calibration


def test_reliability_counts_every_row_once() -> None:
    job, last = done("ditto")
    for own in (False, True):
        table = personal.reliability(job, last.server, own)
        assert int(table[:, 0].sum()) == len(job.federation.test.y)
        right = (table[:, 0] * table[:, 2].nan_to_num()).sum() / len(job.federation.test.y)
        weights = job.federation.test.sizes.double()
        evaluation = last.personal if own else last.evaluation
        assert float(right) == pytest.approx(float((evaluation[1] * weights).sum() / weights.sum()))


def test_calibration_of_own_models_is_each_clients() -> None:
    job, last = done("ditto", cohort="all")
    _, ece = personal.scored(job, last.server, "ece", own=True)
    for k in range(5):
        rows = job.federation.test.of(k)
        p, guess = job.task.outputs(job.simulator.kept[k]["own"], rows.x).double().softmax(-1).max(-1)
        bins = np.ceil(p.numpy() * 20)
        gaps = [
            abs(float(((guess == rows.y).double() - p)[torch.from_numpy(bins == b)].sum())) for b in set(bins.tolist())
        ]
        assert float(ece[k]) == pytest.approx(sum(gaps) / len(rows.y))


# Folders and the command


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "superfed"
    own = {"name": "superfed-lm", "begin": 1.0, "batch": 10, "lr": 0.2}
    model = {"name": "mlp", "hidden": [8]}
    list(run(Experiment(dataset="vowel", model=model, client=own, rounds=3, cohort=4), out=path))
    return path


def test_a_record_has_both_scores_for_all_clients(folder: Path) -> None:
    record = Record.read(folder)
    shared, own = record.clients(), record.personal()
    assert len(shared) == len(own) == 15 and [c[0] for c in shared] == [c[0] for c in own]
    assert record.evaluated[-1]["personal"]["mean"] == pytest.approx(np.mean([c[1] for c in own]))
    assert sum(a != b for a, b in zip(shared, own, strict=True)) >= 4


def test_a_run_is_reopened_as_it_was_left(folder: Path) -> None:
    job, server = personal.reopen(folder)
    _, scores = job.simulator.personal(job.algorithm, server)  # type: ignore[misc]
    assert scores.tolist() == [c[1] for c in Record.read(folder).personal()]
    assert len(job.simulator.kept) > 4


def test_the_command_shows_and_draws(folder: Path, tmp_path: Path) -> None:
    files = {kind: tmp_path / f"{kind}.svg" for kind in ("curve", "landscape", "reliability")}
    options = [text for kind, path in files.items() for text in (f"--{kind}", str(path))]
    result = CliRunner().invoke(app, ["show", str(folder), *options])
    assert result.exit_code == 0, result.output
    for words in ("server's model", "own model", "m by validation", "m by oracle"):
        assert words in result.output
    assert all(b"<svg" in path.read_bytes() for path in files.values())
    shown = json.loads(CliRunner().invoke(app, ["show", str(folder), "--json"]).stdout)
    assert shown["personal"]["mean"] == pytest.approx(np.mean([c["personal_score"] for c in shown["clients"]]))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["DIR", "--curve", "x.foo"], "'x.foo' is no name of a picture: end it with .png, .svg, .pdf"),
        (["DIR", "--landscape", "."], "'.' is no name of a picture"),
        (["DIR", "--reliability", "/dev/null/x.png"], "cannot write '/dev/null/x.png'"),
        (["sgd", "--curve", "x.png"], "'sgd' is an algorithm's name: pictures are drawn of a run's folder"),
    ],
)
def test_a_picture_that_cannot_be_drawn_is_a_sentence(folder: Path, arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(app, ["show", *(a.replace("DIR", str(folder)) for a in arguments)])
    assert isinstance(result.exception, CommonwealError) and words in str(result.exception)


def test_a_plain_run_is_shown_as_before(tmp_path: Path) -> None:
    list(run(Experiment(dataset="vowel", rounds=1), out=tmp_path / "run"))
    result = CliRunner().invoke(app, ["show", str(tmp_path / "run"), "--json"])
    assert set(json.loads(result.stdout)["clients"][0]) == {"client", "score", "loss"}
    assert Record.read(tmp_path / "run").personal() == []
    head = (tmp_path / "run" / "clients" / "000001.csv").read_text().splitlines()[0]
    assert head == "client,score,loss"


def test_what_cannot_be_reopened_is_a_sentence(tmp_path: Path) -> None:
    list(run(task(), federation(), client=client("ditto"), rounds=1, out=tmp_path / "own"))
    with pytest.raises(RunError, match="cannot be built again"):
        personal.reopen(tmp_path / "own")


def test_pictures_show_the_bins_that_have_rows(tmp_path: Path) -> None:
    table = torch.full((20, 3), torch.nan, dtype=torch.float64)
    table[:, 0] = 0
    table[19] = torch.tensor([4.0, 0.97, 0.75])
    report.draw_reliability(tmp_path / "r.png", {"one": table})
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
