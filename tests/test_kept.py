"""What clients keep: in memory, on disk, through checkpoints and kills, always the same rows."""

from pathlib import Path
from typing import Any

import pytest
import torch

from commonweal.engines.kept import Kept
from commonweal.errors import RunError
from commonweal.local import Tensors
from commonweal.run import given, run
from personal_helpers import client, contents, federation, task


def row(value: float) -> Tensors:
    return {"own": torch.full((100,), float(value)), "a": torch.tensor([float(value)])}  # 404 bytes


def same(a: Tensors, b: Tensors) -> bool:
    return set(a) == set(b) and all(torch.equal(a[n], b[n]) for n in a)


@pytest.mark.parametrize("memory", [0, 404, 1000, 1 << 20])
def test_rows_come_back_whatever_the_budget(memory: int, tmp_path: Path) -> None:
    kept = Kept(10, memory)
    for round, clients in enumerate(([3, 1, 7], [7, 2], [1, 3, 7]), 1):
        for i in clients:
            kept.put(i, row(10 * i + round), round)
    assert list(kept) == [1, 2, 3, 7] and len(kept) == 4 and 5 not in kept
    for i, last in {1: 3, 2: 2, 3: 3, 7: 3}.items():
        assert same(kept[i], row(10 * i + last))
    kept.put(1, row(14), 4)  # another round begins: the last one's rows find their places
    files = list(kept.folder.glob("*")) if kept.folder else []
    assert len(files) == 4 - min(4, memory // 404)


def test_a_temporary_folder_goes_with_its_store() -> None:
    kept = Kept(2, memory=0)
    kept.put(0, row(1), 1)
    kept.checkpoint(1)
    folder = kept.folder
    assert folder is not None and folder.exists()
    del kept
    assert not folder.exists()


@pytest.mark.parametrize("memory", [0, 500, 1 << 20])
def test_a_large_store_saves_only_what_changed_and_survives_a_kill(memory: int, tmp_path: Path) -> None:
    kept = Kept(10, memory, inside=0)
    kept.restore({}, tmp_path)
    for i in range(4):
        kept.put(i, row(i), 1)
    first = kept.checkpoint(1)
    kept.confirm()
    written = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*")}
    assert len(written) == 4
    kept.put(2, row(20), 2)
    kept.put(5, row(50), 2)
    second = kept.checkpoint(2)  # and now the process is killed, before the checkpoint is written
    assert set(tmp_path.glob("*")) - set(written) == {
        tmp_path / "000002-000002.safetensors",
        tmp_path / "000005-000002.safetensors",
    }
    assert all(path.stat().st_mtime_ns == then for path, then in written.items())
    again = Kept(10, memory, inside=0)
    again.restore(first, tmp_path)
    assert list(again) == [0, 1, 2, 3] and all(same(again[i], row(i)) for i in range(4))
    kept.confirm()  # had it been written instead
    later = Kept(10, memory, inside=0)
    later.restore(second, tmp_path)
    assert same(later[2], row(20)) and same(later[5], row(50)) and same(later[0], row(0))
    assert not (tmp_path / "000002-000001.safetensors").exists()


def test_what_a_checkpoint_does_not_name_is_tidied_away(tmp_path: Path) -> None:
    kept = Kept(10, 0, inside=0)
    kept.restore({}, tmp_path)
    kept.put(0, row(0), 1)
    saved = kept.checkpoint(1)
    (tmp_path / "000000-000002.safetensors").write_bytes(b"half a row")
    again = Kept(10, 0, inside=0)
    again.restore(saved, tmp_path)
    again.tidy()
    assert [path.name for path in tmp_path.glob("*")] == ["000000-000001.safetensors"]


def test_a_missing_file_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"000003-000002\.safetensors' is missing"):
        Kept(10).restore({"kept_rounds": torch.tensor([[3, 2]])}, tmp_path)


def test_a_failed_write_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("in the way")
    kept = Kept(10, 0)
    kept.restore({}, tmp_path / "kept")
    kept.put(0, row(0), 1)
    with pytest.raises(RunError, match="cannot write"):
        kept.checkpoint(1)


def test_a_round_after_the_checkpoints_is_forgotten() -> None:
    kept = Kept(10)
    kept.put(0, row(1), 1)
    kept.put(0, row(2), 2)
    assert same(kept[0], row(2))
    saved = kept.checkpoint(1)["kept"]
    assert same(saved["0"], row(1)) and same(kept[0], row(1))


@pytest.mark.parametrize(("memory", "inside"), [(0, 1 << 26), (0, 0), (500, 0), (1 << 30, 0)])
def test_a_run_ends_the_same_wherever_rows_are(memory: int, inside: int, tmp_path: Path) -> None:
    def job() -> Any:
        j = given(task(), federation(), "fedavg", client("superfed-mm"), "sgd", rounds=5, cohort=2)
        j.simulator.kept.memory, j.simulator.kept.inside = memory, inside
        return j

    plain = given(task(), federation(), "fedavg", client("superfed-mm"), "sgd", rounds=5, cohort=2)
    last = list(run(plain))[-1]
    (*_, whole) = run(job(), out=tmp_path / "whole")
    assert torch.equal(whole.server["w"], last.server["w"])
    assert last.personal is not None and whole.personal is not None
    assert torch.equal(whole.personal[0], last.personal[0])
    for _ in range(3):
        rounds = run(job(), out=tmp_path / "part", resume=True)
        next(rounds)
        rounds.close()  # type: ignore[attr-defined]
    list(run(job(), out=tmp_path / "part", resume=True))
    assert contents(tmp_path / "part") == contents(tmp_path / "whole")
    assert (tmp_path / "whole" / "kept").exists() == (inside == 0 or memory == 0)
