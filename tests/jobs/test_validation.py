"""Validation rows, the best round, early stop, and clients that are never seen."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from commonweal import metrics
from commonweal.base.errors import ConfigError, DataError
from commonweal.data.federation import Federation
from commonweal.jobs.rounds import Round, run
from commonweal.record.record import Record
from commonweal.report.run_table import unseen_sentence
from commonweal.task.task import Task


def federation(clients: int = 10) -> Federation:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30 * clients, 3)).astype(np.float32)
    y = (x[:, 0] + 0.5 * rng.normal(size=len(x)) > 0).astype(int)
    return Federation.from_arrays(x, y, np.arange(len(x)) % clients, outputs=2)


def task() -> Task:
    torch.manual_seed(0)
    return Task(nn.Linear(3, 2))


def rounds(folder: Path, **settings: Any) -> list[Round]:
    given = {"rounds": 12, "client": {"name": "sgd", "lr": 2.0}, **settings}
    return list(run(task(), federation(), out=folder, resume=True, **given))


def test_validation_rows_are_taken_from_training_rows_by_name_and_class() -> None:
    whole = federation()
    split = whole.with_validation(0.25, seed=3)
    assert split.validation is not None
    assert torch.equal(split.test.x, whole.test.x)
    assert (split.train.sizes + split.validation.sizes == whole.train.sizes).all()
    assert split.validation.sizes.tolist() == [6] * 10
    for k in range(10):
        parts = torch.cat([split.train.client(k).x, split.validation.client(k).x])
        assert sorted(parts.tolist()) == sorted(whole.train.client(k).x.tolist())
        share = float(split.validation.client(k).y.double().mean())
        assert abs(share - float(whole.train.client(k).y.double().mean())) < 1 / 6
    assert not torch.equal(whole.with_validation(0.25, 4).train.x, split.train.x)


def test_the_best_round_is_chosen_on_validation_rows_and_its_model_is_kept(tmp_path: Path) -> None:
    done = rounds(tmp_path / "r", validation=0.3, monitor="worst")
    values = [each.validation["worst"] for each in done]
    first = values.index(max(values)) + 1
    record = Record.read(tmp_path / "r")
    assert record.best is not None and record.best.number == first
    best = task().tensors(done[first - 1].state["w"])
    kept = safetensors.torch.load_file(tmp_path / "r" / "best.safetensors")
    assert all(torch.equal(kept[name], value) for name, value in best.items())


def test_a_run_stops_when_validation_gets_no_better_and_stays_finished(tmp_path: Path) -> None:
    done = rounds(tmp_path / "r", validation=0.3, patience=2, rounds=60)
    values = [each.validation["mean"] for each in done]
    best = values.index(max(values)) + 1
    assert done[-1].number == best + 2 < 60
    assert Record.read(tmp_path / "r").finished
    assert rounds(tmp_path / "r", validation=0.3, patience=2, rounds=60) == []
    assert Record.read(tmp_path / "r").finished


def test_patience_without_validation_rows_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs validation rows"):
        list(run(task(), federation(), patience=3))


def test_held_out_clients_never_train_and_are_scored(tmp_path: Path) -> None:
    done = rounds(tmp_path / "r", holdout_clients=0.3)
    held = federation().hold_out(0.3).held_out
    assert held is not None and len(held.names) == 3
    assert held.rows.sizes.tolist() == [30, 30, 30]
    seen = {name for each in done for name in each.clients}
    assert not seen & set(held.names) and len(seen) == 7
    table = Record.read(tmp_path / "r").unseen()
    assert table is not None and table.names == held.names
    module = done[-1].module()
    with torch.no_grad():
        right = (module(held.rows.x).argmax(1) == held.rows.y).double().view(3, 30).mean(1)
    assert table.evaluation.score.tolist() == pytest.approx(right.tolist())


def test_everybody_cannot_be_held_out() -> None:
    with pytest.raises(DataError, match="none would train"):
        federation(2).hold_out(0.9)


def test_the_band_for_new_clients_holds_at_its_level() -> None:
    """For uniform scores the true share above s is 1 - s: the floor fails in at most 5 %."""
    rng = np.random.default_rng(0)
    failures = 0
    for _ in range(2000):
        share, floor = metrics.dkw_floor(rng.random(60))
        assert share == 0.8
        failures += 1 - floor < share
    assert failures <= 0.05 * 2000
    share, floor = metrics.dkw_floor([0.5, 0.7, 0.9])
    assert share == pytest.approx(1 - math.sqrt(math.log(20) / 6))
    assert floor == 0.5
    errors = metrics.dkw_floor(np.arange(100.0), lower_is_better=True)
    assert errors == (0.8, 92.0)  # 0.8 + sqrt(log(20) / 200) = 0.922 of the clients are better


def test_the_lowest_score_of_new_clients_is_shown(tmp_path: Path) -> None:
    rounds(tmp_path / "r", holdout_clients=0.3)
    table = Record.read(tmp_path / "r").unseen()
    assert table is not None
    sentence = unseen_sentence(table.evaluation, "accuracy")
    assert sentence.startswith("3 clients never seen in training: mean ")
    assert "with 95 % confidence at least 29 % of new clients get at least" in sentence
