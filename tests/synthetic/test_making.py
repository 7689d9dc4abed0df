"""Runs that make rows: the same bytes again, after a stop too, and what their folder holds."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib import image

from commonweal.run import given, run
from commonweal.store import Record
from commonweal.synthetic import picture
from made import SMALL, digits, files, task

every = pytest.mark.parametrize("name", SMALL)


def made(name: str, folder: Path, rounds: int = 5, stop: int | None = None, resume: bool = False) -> None:
    job = given(task(), digits(), algorithm=SMALL[name], rounds=rounds, seed=3, evaluate_every=2)
    for done in run(job, out=folder, resume=resume):
        if done.number == stop:
            break


@every
def test_the_same_run_writes_the_same_bytes_also_after_a_stop(name: str, tmp_path: Path) -> None:
    made(name, tmp_path / "a")
    made(name, tmp_path / "b", stop=3)
    (tmp_path / "b" / "pictures" / "000004.png").write_bytes(b"of a round that was not saved")
    made(name, tmp_path / "b", resume=True)
    assert files(tmp_path / "a") == files(tmp_path / "b")


@every
def test_a_run_leaves_its_rows_pictures_scores_and_a_model(name: str, tmp_path: Path) -> None:
    made(name, tmp_path / "a")
    record = Record.read(tmp_path / "a")
    assert record.facts["engine"] == "loop"
    assert record.finished and [r["round"] for r in record.evaluated] == [2, 4, 5]
    assert {"mean", "worst", "gini"} <= set(record.evaluated[-1]["metrics"])
    assert len(record.clients()) == 3
    assert set(record.model()) == {n for n, _ in task().module.named_parameters()}
    with np.load(tmp_path / "a" / "synthetic.npz") as data:
        assert data["images"].shape == (20, 1, 8, 8) and data["labels"].tolist() == sorted([*range(10)] * 2)
        assert data["images"].min() >= 0 and data["images"].max() <= 1
    assert sorted(p.name for p in (tmp_path / "a" / "pictures").iterdir()) == [f"00000{r}.png" for r in (2, 4, 5)]


def test_the_record_counts_what_travels_against_the_weights(tmp_path: Path) -> None:
    made("fedevg", tmp_path / "a", rounds=1)
    line = json.loads((tmp_path / "a" / "rounds.jsonl").read_text())
    rows, width, scalars = 20, 64, 8 * 3
    down, up = rows * (4 * width + 8) + 8, rows * (4 * width + 4) + scalars
    assert line["bytes"] == {"down": 3 * down, "up": 3 * up, "weights": 2 * 3 * 4 * task().size}


def test_averaging_sends_what_weights_cost() -> None:
    (done,) = run(task(), digits(), rounds=1)
    size = 4 * task().size
    assert done.bytes["weights"] == 2 * 3 * size
    assert done.bytes["down"] == 3 * (size + 8) and done.bytes["up"] == 3 * (size + 8 * 3)


def test_a_picture_has_a_class_a_line_and_a_sample_a_column() -> None:
    x = torch.zeros(5, 1, 4, 3)
    x[1] = 1.0
    y = torch.tensor([7, 2, 7, 2, 7])
    sheet = image.imread(io.BytesIO(picture(x, y)))[..., 0]
    assert sheet.shape[0] % (2 * 5) == 0 and sheet.shape[1] % (3 * 4) == 0
    zoom = sheet.shape[0] // 10
    small = sheet[zoom // 2 :: zoom, zoom // 2 :: zoom]  # (2 lines of 1 + 4, 3 columns of 1 + 3)
    assert small.shape == (10, 12)
    assert (small[1:5, 1:4] == 1).all()  # the first of class 2
    assert (small[1:5, 5:8] == 0).all() and (small[6:, 1:4] == 0).all()
    assert small[0, 0] == pytest.approx(0.5, abs=0.01) == small[2, 10]  # lines between, and no third row of class 2


def test_rows_that_are_no_images_have_no_picture() -> None:
    assert picture(torch.rand(4, 7), torch.arange(4)) == b""
    assert picture(torch.rand(4, 3, 5, 5), torch.arange(4)).startswith(b"\x89PNG")
