"""A user's own losses, scores and outputs: what they give is what torch gives."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import commonweal
from commonweal import Federation, Task
from commonweal.base.errors import ConfigError, ResumeWarning, RunError
from commonweal.jobs.rounds import Round
from commonweal.task.task import Batch
from commonweal.training.evaluation import Evaluation

X = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
CLASSES = np.random.default_rng(1).integers(0, 3, 60)
VALUES = X @ np.array([1.0, -2.0, 0.5, 0.0], dtype=np.float32)
CLIENT = np.arange(60) % 3


def evaluated(done: Round) -> Evaluation:
    assert done.evaluation is not None
    return done.evaluation


def mean_of_squares(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs[:, 0] - y).square().mean()


def hinge(outputs: Tensor, y: Tensor) -> Tensor:
    right = outputs.gather(-1, y[:, None])
    return (1 + outputs - right).clamp(min=0).sum(-1)


def cost(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs.argmax(-1) != y).float()


def recall(outputs: Tensor, y: Tensor) -> float:
    predicted = outputs.argmax(-1)
    return float((predicted[y == 1] == 1).float().mean())


@pytest.mark.parametrize(
    ("loss", "reference"),
    [
        (F.cross_entropy, F.cross_entropy),
        (nn.CrossEntropyLoss(), F.cross_entropy),
        (nn.CrossEntropyLoss(label_smoothing=0.2), nn.CrossEntropyLoss(label_smoothing=0.2)),
        (partial(F.cross_entropy, label_smoothing=0.2), nn.CrossEntropyLoss(label_smoothing=0.2)),
        (hinge, lambda outputs, y: hinge(outputs, y).mean()),
    ],
)
def test_the_loss_of_a_batch_is_torchs(loss: Any, reference: Any) -> None:
    torch.manual_seed(0)
    module = nn.Linear(4, 3)
    task = Task(module, loss=loss)
    x, y = torch.from_numpy(X), torch.from_numpy(CLASSES)
    batch = Batch(x, y, torch.full((60,), 1 / 60))
    got, _ = task.batch_loss(task.initial, batch)
    with torch.no_grad():
        expected = float(reference(module(x), y))
    assert float(got) == pytest.approx(expected, rel=1e-5)


def test_torchs_own_cross_entropy_is_the_fast_one() -> None:
    assert Task(nn.Linear(4, 3), loss=F.cross_entropy).loss == "cross-entropy"
    assert Task(nn.Linear(4, 3), loss=nn.CrossEntropyLoss()).own_loss is None
    weighted = nn.CrossEntropyLoss(weight=torch.ones(3))
    assert Task(nn.Linear(4, 3), loss=weighted).own_loss is not None


def test_a_run_with_an_own_loss_minimises_it_and_leaves_the_target_alone() -> None:
    torch.manual_seed(0)
    task = Task(nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)), loss=F.huber_loss)
    federation = Federation.from_arrays(X, 100 + VALUES, CLIENT)
    *_, last = commonweal.run(task, federation, rounds=60, client={"name": "sgd", "lr": 1.0})
    assert last.job.task.target is None
    assert last.job.task.score == "lower:loss"
    assert last.metrics["mean"] == pytest.approx(float(evaluated(last).losses.mean()), rel=1e-6)
    assert last.metrics["mean"] < 60  # it begins at about 100


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (mean_of_squares, "one loss per sample"),
        (lambda outputs, y: 3, "one loss per sample"),
        (lambda outputs, y: outputs[:, :1] - y, "one loss per sample.*squeeze"),
        (lambda outputs, y: outputs[:, 0].detach(), "has no gradient"),
        (lambda outputs, y: outputs["x"], "cannot take outputs of shape"),
        (F.binary_cross_entropy_with_logits, r"outputs of shape \(2, 3\) and labels of shape"),
    ],
)
def test_losses_that_cannot_be_used_are_refused_with_the_remedy(loss: Any, message: str) -> None:
    task = Task(nn.Linear(4, 3), loss=loss)
    federation = Federation.from_arrays(X, CLASSES, CLIENT)
    with pytest.raises(ConfigError, match=message):
        next(iter(commonweal.run(task, federation, rounds=1)))


@pytest.mark.parametrize(
    ("loss", "y"),
    [
        (nn.MSELoss(), VALUES),
        (F.smooth_l1_loss, VALUES),
        (nn.HuberLoss(delta=0.5), VALUES),
        (nn.BCEWithLogitsLoss(pos_weight=torch.tensor([2.0])), CLASSES > 0),
    ],
)
def test_a_torch_loss_takes_one_output_with_one_label(loss: Any, y: np.ndarray) -> None:
    """(N, 1) and (N,) were broadcast to (N, N): every sample was trained on all labels."""
    torch.manual_seed(0)
    module = nn.Linear(4, 1)
    with torch.no_grad():
        outputs = module(torch.from_numpy(X))[:, 0]
        want = float(loss(outputs, torch.from_numpy(y).float()))
    federation = Federation.from_arrays(X, y, np.zeros(60, int), test=0.0)
    task = Task(module, loss=loss)
    batch = Batch(federation.train.inputs, federation.train.y, torch.full((60,), 1 / 60))
    got, _ = task.batch_loss(task.initial, batch)
    assert float(got) == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize(
    ("score", "message"),
    [
        (lambda outputs, y: "good", "is no number"),
        (lambda outputs, y: 1 / 0, "ZeroDivisionError"),
        (lambda outputs, y: outputs, "a number, or one per sample"),
    ],
)
def test_scores_that_cannot_be_used_are_refused(score: Any, message: str) -> None:
    federation = Federation.from_arrays(X, CLASSES, CLIENT)
    with pytest.raises(ConfigError, match=message):
        next(iter(commonweal.run(Task(nn.Linear(4, 3), score=score), federation, rounds=1)))


@pytest.mark.parametrize(
    ("module", "given", "message"),
    [
        (nn.Linear(4, 3), {"loss": nn.CrossEntropyLoss}, r"loss = .* is a class: give Cross"),
        (nn.LazyLinear(3), {}, "weight of LazyLinear has no values yet"),
        (nn.Linear(4, 3, device="meta"), {}, "weight of Linear has no values yet"),
    ],
)
def test_wrong_tasks_are_refused(module: nn.Module, given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Task(module, **given)


def test_a_run_notices_other_functions_and_frozen_weights(tmp_path: Path) -> None:
    federation = Federation.from_arrays(X, CLASSES, CLIENT)

    def task(weight: float = 1.0, frozen: float = 1.0) -> Task:
        module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
        for p in module.parameters():
            nn.init.constant_(p, 0.5)
        nn.init.constant_(module.get_parameter("0.weight"), frozen).requires_grad_(False)
        loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 1.0, weight]))
        return Task(module, loss=loss, score=lambda outputs, y: outputs.argmax(-1) == y)

    run = commonweal.run(task(), federation, rounds=2, out=tmp_path / "run")
    next(run)
    run.close()
    for other in (task(weight=2.0), task(frozen=2.0)):
        with pytest.raises(RunError, match="another"):
            commonweal.run(other, federation, rounds=2, out=tmp_path / "run", resume=True).result()
    with pytest.warns(ResumeWarning, match="score = .*<lambda>, which cannot be imported again"):
        commonweal.reopen(tmp_path / "run", task(), federation)
    with pytest.warns(ResumeWarning, match="cannot be imported again"):
        commonweal.run(task(), federation, rounds=2, out=tmp_path / "run", resume=True).result()


def test_own_scores_per_sample_and_per_client() -> None:
    torch.manual_seed(0)
    module = nn.Linear(4, 3)
    federation = Federation.from_arrays(X, CLASSES, CLIENT)
    expected = {}
    for function, lower in ((cost, True), (recall, False)):
        task = Task(module, score=function, lower_is_better=lower)
        (done,) = commonweal.run(task, federation, rounds=1)
        model = done.module()
        scores = []
        for k in range(3):
            rows = federation.test.client(k)
            scores.append(float(torch.as_tensor(function(model(rows.x), rows.y)).mean()))
        assert evaluated(done).score.tolist() == pytest.approx(scores)
        worst = max(scores) if lower else min(scores)
        assert done.metrics["worst"] == pytest.approx(worst)
        expected[task.score] = lower
    assert expected == {"lower:cost": True, "higher:recall": False}


def test_a_named_score_replaces_ones_own() -> None:
    """Any other score of such a task was computed by the user's function."""
    federation = Federation.from_arrays(X, CLASSES, CLIENT)
    task = Task(nn.Linear(4, 3), score=lambda outputs, y: 7.0)
    (done,) = commonweal.run(task, federation, rounds=1, score="accuracy")
    assert evaluated(done).score.max() <= 1
    (done,) = commonweal.run(task, federation, rounds=1, score=[task.score, "accuracy"])
    assert evaluated(done).score.tolist() == [7.0] * 3
    assert evaluated(done).scores["accuracy"].max() <= 1


class Wrapped(nn.Module):
    """Returns a dict, a tuple or an object, as models of other libraries do."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.kind = kind

    def forward(self, x: Tensor) -> object:
        logits = self.linear(x)
        if self.kind == "dict":
            return {"logits": logits, "loss": logits.sum()}
        return (logits.sum(), logits)


def test_outputs_are_picked_from_what_a_module_returns() -> None:
    federation = Federation.from_arrays(X, CLASSES, CLIENT)
    accuracies = []
    for module, output in (
        (Wrapped("dict"), None),
        (Wrapped("tuple"), lambda result: result[1]),
    ):
        torch.manual_seed(0)
        nn.init.ones_(module.linear.weight)
        nn.init.zeros_(module.linear.bias)
        task = Task(module, output=output)
        *_, last = commonweal.run(task, federation, rounds=3)
        accuracies.append(evaluated(last).losses.tolist())
    assert accuracies[0] == accuracies[1]
    with pytest.raises(ConfigError, match="returned a tuple, not a tensor"):
        next(iter(commonweal.run(Task(Wrapped("tuple")), federation, rounds=1)))


@pytest.mark.parametrize("kind", [torch.float64, torch.float16, torch.bfloat16])
def test_modules_of_other_precisions_are_refused_with_the_remedy(kind: torch.dtype) -> None:
    with pytest.raises(ConfigError, match=rf"weight of Linear is {kind}.*module\.float\(\)"):
        Task(nn.Linear(4, 3).to(kind))


def test_float_labels_of_a_binary_task_are_classes() -> None:
    """B1: they were standardised, and the loss became negative."""
    torch.manual_seed(0)
    module = nn.Linear(4, 1)
    results = []
    for y in ((CLASSES > 0).astype(int), (CLASSES > 0).astype(float), CLASSES > 0):
        federation = Federation.from_arrays(X, y, CLIENT)
        *_, last = commonweal.run(Task(module, loss="binary"), federation, rounds=5)
        assert last.job.task.target is None
        results.append(evaluated(last).losses.tolist())
    assert results[0] == results[1] == results[2] and min(results[0]) > 0


def test_labels_suggest_the_loss_only_where_the_task_has_none() -> None:
    federation = Federation.from_arrays(X, VALUES, CLIENT)
    (done,) = commonweal.run(Task(nn.Linear(4, 1)), federation, rounds=1)
    assert (done.job.task.loss, done.job.task.score) == ("squared", "r2-pooled")
    (done,) = commonweal.run(Task(nn.Linear(4, 1), score="mae"), federation, rounds=1)
    assert (done.job.task.loss, done.job.task.score) == ("squared", "mae")


def test_several_labels_per_sample_with_a_loss_for_them() -> None:
    labels = np.stack([k == CLASSES for k in range(3)], 1)
    for y in (labels.astype(np.float32), labels.astype(int)):
        federation = Federation.from_arrays(X, y, CLIENT)
        loss = nn.BCEWithLogitsLoss() if y.dtype == np.float32 else _as_float
        *_, last = commonweal.run(Task(nn.Linear(4, 3), loss=loss), federation, rounds=2)
        assert 0 < last.metrics["mean"] < 2


def _as_float(outputs: Tensor, y: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(outputs, y.float(), reduction="none").mean(-1)


class Odd(nn.Module):
    """Parts that are frozen or shared, and buffers that are not saved, of which one changes."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.last = nn.Linear(4, 1)
        self.register_buffer("mean", torch.zeros(4), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean.mul_(0.5).add_(0.5 * x.mean(0))
        hidden = self.second(self.first(self.frozen(x) - self.mean))
        out: Tensor = self.last(hidden)
        return out


def test_a_record_fills_a_module_of_ones_own(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Odd()
    federation = Federation.from_arrays(X, 100 + 10 * VALUES, CLIENT)
    run = commonweal.run(Task(module), federation, rounds=9, out=tmp_path / "run")
    record = run.result()
    x = torch.from_numpy(X)
    with torch.no_grad():
        got = record.module(module)(x)
        assert torch.equal(got, run.module()(x))
        assert float((got[:, 0] - torch.from_numpy(100 + 10 * VALUES)).abs().mean()) < 30
    assert module.mean.eq(0).all()
    assert record.module(module).get_buffer("module.mean").ne(0).all()
    with pytest.raises(RunError, match="the tensors of another model"):
        record.module(nn.Linear(4, 1))
    with pytest.raises(RunError, match=r"give it, record.module\(own\)"):
        record.module()


@pytest.mark.parametrize("score", ["f1", "accuracy", "auroc"])
def test_scores_of_classes_need_classes(score: str) -> None:
    """An own loss does not tell whether labels are classes."""

    def distance(outputs: Tensor, y: Tensor) -> Tensor:
        return (outputs[:, 0] - y).abs()

    x = torch.linspace(-1, 1, 40)[:, None]
    task = Task(nn.Linear(1, 1), loss=distance)
    values = Federation.from_arrays(x, x[:, 0] / 3, ["a", "b"] * 20)
    with pytest.raises(ConfigError, match=f"score = '{score}' compares classes, but a label is"):
        commonweal.run(task, values, rounds=1, score=score)


def test_a_round_names_its_score_with_its_direction() -> None:
    """The score of a custom loss is the loss: a lower one is better, unlike an accuracy."""
    federation = Federation.from_arrays(X, CLASSES, CLIENT)
    smoothed = nn.CrossEntropyLoss(label_smoothing=0.1)
    for task, score, lower in (
        (Task(nn.Linear(4, 3)), "accuracy", False),
        (Task(nn.Linear(4, 3), loss=smoothed), "loss (lower is better)", True),
        (Task(nn.Linear(4, 3), score=recall), "recall (higher is better)", False),
    ):
        (done,) = commonweal.run(task, federation, rounds=1)
        assert (done.score, done.lower_is_better) == (score, lower)
        assert f"clients, {score} {{'mean'" in repr(done)
        best = max if lower else min
        assert done.metrics["worst"] == best(evaluated(done).score.tolist())
