"""recalibrate: the lines of clients against plain formulas, and what they change in a run."""

from pathlib import Path

import numpy as np
import pytest
import torch

from commonweal.app.export.prediction import ClientModels
from commonweal.base.errors import ConfigError
from commonweal.clients import Recalibrate
from commonweal.clients.recalibrate import INTERCEPTS, SLOPES, line_losses, mean_line
from commonweal.config.experiment import Experiment
from commonweal.data.rows import Rows
from commonweal.jobs.reopening import reopen
from commonweal.jobs.rounds import run
from commonweal.record.record import Record
from commonweal.study.interpolation import EndModels
from commonweal.study.predictions import outputs_of
from commonweal.task import calibration
from commonweal.task.task import Task


def labelled(margin: torch.Tensor, y: torch.Tensor) -> Rows:
    return Rows(margin[:, None], y, torch.tensor([0, len(y)]))


def test_losses_are_those_of_each_line_and_the_mean_is_near_the_best_one() -> None:
    rng = np.random.default_rng(0)
    margin = torch.tensor(rng.normal(size=4000) * 1.5).float()
    y = torch.tensor(rng.random(4000) < 1 / (1 + np.exp(-(0.7 + 0.6 * margin.numpy())))).long()
    for outputs in (margin[:, None], torch.stack([-margin / 2, margin / 2], 1)):
        task = Task(torch.nn.Linear(1, outputs.shape[1]), "binary" if outputs.shape[1] == 1 else "")
        losses = line_losses(task, outputs, labelled(margin, y))
        a, b = 30, 5
        logits = INTERCEPTS[a] + SLOPES[b] * margin
        plain = torch.nn.functional.binary_cross_entropy_with_logits(
            logits, y.float(), reduction="sum"
        )
        assert float(losses[a, b]) == pytest.approx(float(plain), rel=1e-5)
        line = mean_line(losses)
        fitted = calibration.line_fit(torch.stack([margin, y], 1).double(), torch.tensor([0, 4000]))
        assert float(line["intercept"]) == pytest.approx(float(fitted.intercepts), abs=0.05)
        assert float(line["slope"]) == pytest.approx(float(fitted.slopes), rel=0.08)


def write_table(path: Path, classes: int = 2) -> None:
    """Sites whose labels are shifted against each other by what no column says."""
    rng = np.random.default_rng(1)
    lines = ["site,x,z,label"]
    for site, shift in zip("abcd", (-1.5, -0.5, 0.5, 1.5), strict=True):
        for _ in range(250):
            x, z = rng.normal(size=2)
            level = x + shift + rng.logistic()
            label = int(level > 0) if classes == 2 else int(np.clip(level + 1, 0, 2))
            lines.append(f"{site},{x:.3f},{z:.3f},c{label}")
    path.write_text("\n".join(lines))


def finished(folder: Path, client: object, classes: int = 2) -> Record:
    path = folder / f"table{classes}.csv"
    write_table(path, classes)
    score = ["auroc", "calibration-intercept", "log-loss"] if classes == 2 else ["log-loss"]
    experiment = Experiment(
        dataset={"name": "table", "path": str(path), "label": "label", "client": "site"},
        model="logistic",
        client=client,
        score=score,
        rounds=5,
        validation=0.4,
    )
    return run(experiment, out=folder / f"{client}-{classes}").result()


def test_probabilities_are_corrected_and_the_ranking_stays(tmp_path: Path) -> None:
    before = finished(tmp_path, "sgd").clients().evaluation
    record = finished(tmp_path, "recalibrate")
    evaluation = record.clients().evaluation
    after = evaluation.personal
    assert after is not None
    assert torch.equal(evaluation.scores["log-loss"], before.scores["log-loss"])
    torch.testing.assert_close(after.scores["auroc"], before.scores["auroc"], atol=1e-9, rtol=0)
    error = {
        k: v.scores["calibration-intercept"].abs().median()
        for k, v in (("b", before), ("a", after))
    }
    assert error["a"] < error["b"] / 2
    assert after.scores["log-loss"].mean() < before.scores["log-loss"].mean() - 0.05
    # The model that is exported and predicts new rows is the one that was evaluated.
    job, state = reopen(record.folder)
    models = EndModels(job, state)
    test = models.federation.test
    outputs = outputs_of(models, job.algorithm.model(state), test)
    module = ClientModels(record).of("c")
    own = test.client(models.federation.names.index("c"))
    begin = int(test.offsets[models.federation.names.index("c")])
    expected = outputs[begin : begin + len(own.y)].softmax(1).float()
    torch.testing.assert_close(module(own.x), expected, atol=1e-6, rtol=1e-5)


def test_more_classes_have_a_slope_only(tmp_path: Path) -> None:
    record = finished(tmp_path, "recalibrate", classes=3)
    evaluation = record.clients().evaluation
    assert evaluation.personal is not None
    assert not torch.equal(evaluation.personal.losses, evaluation.losses)


def test_without_validation_samples_there_is_a_warning_and_the_global_model(tmp_path: Path) -> None:
    write_table(tmp_path / "t.csv")
    table = {"name": "table", "path": str(tmp_path / "t.csv"), "label": "label", "client": "site"}
    experiment = Experiment(dataset=table, model="logistic", client="recalibrate", rounds=2)
    record = run(experiment, out=tmp_path / "run").result()
    assert ["validation = 0.2" in text for text in record.rounds[-1].warnings] == [True]
    evaluation = record.clients().evaluation
    assert evaluation.personal is not None
    assert torch.equal(evaluation.personal.losses, evaluation.losses)


def test_values_have_no_probabilities() -> None:
    with pytest.raises(ConfigError, match="squared"):
        Recalibrate().check(Task(torch.nn.Linear(1, 1), "squared"), 3)
