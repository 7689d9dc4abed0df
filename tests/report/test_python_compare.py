"""`commonweal.compare` with one's own task and data: what seeds vary, and where runs are."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import commonweal
from commonweal.base.errors import ConfigError
from commonweal.data.federation import Federation
from commonweal.record.record import Record
from commonweal.study.comparison import Comparison
from commonweal.study.own import NOTHING, resplit
from commonweal.study.samples import scores
from commonweal.task.task import Task


def federation(seed: int = 0) -> Federation:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(90, 3))
    y = (x[:, 0] + 0.3 * rng.normal(size=90) > 0).astype(int)
    return Federation.from_arrays(x, y, list("abc") * 30, test=0.4)


def rows(x: Tensor) -> list[tuple[float, ...]]:
    return sorted(tuple(row) for row in x.tolist())


def test_a_new_split_has_the_same_samples_and_sizes() -> None:
    before = federation()
    after = resplit(before, seed=5)
    for client in range(3):
        old, new = before.train.client(client), after.train.client(client)
        old_test, new_test = before.test.client(client), after.test.client(client)
        assert len(old.y) == len(new.y)
        assert rows(torch.cat([old.x, old_test.x])) == rows(torch.cat([new.x, new_test.x]))
        assert rows(old.x) != rows(new.x)
    assert not torch.equal(resplit(before, seed=6).test.x, after.test.x)
    assert torch.equal(resplit(before, seed=5).test.x, after.test.x)


@pytest.mark.parametrize("validation", [0.0, 0.2])
def test_five_seeds_test_every_sample_once(tmp_path: Path, validation: float) -> None:
    rng = np.random.default_rng(1)
    owner = np.repeat(list("abcd"), [12, 33, 7, 51])  # sizes that five does not divide
    x = np.arange(len(owner), dtype=np.float32)[:, None] / len(owner)  # each sample has its own
    y = rng.integers(0, 2, len(owner))
    data = Federation.from_arrays(x, y, owner)
    tested = torch.cat([resplit(data, seed).test.x for seed in range(5)])
    assert rows(tested) == rows(torch.from_numpy(x))
    for seed in range(5):
        split = resplit(data, seed)
        assert rows(torch.cat([split.train.x, split.test.x])) == rows(torch.from_numpy(x))
    commonweal.compare(
        Task(nn.Linear(1, 2)),
        data,
        rules=["fedavg"],
        seeds=5,
        rounds=1,
        out=tmp_path,
        validation=validation,
    )
    for method in ("fedavg", "alone", "pooled"):
        runs = [Record.read(tmp_path / method / f"seed-{seed}") for seed in range(5)]
        by_client = scores(runs)
        assert {name: len(own) for name, own in by_client.items()} == {
            "a": 12,
            "b": 33,
            "c": 7,
            "d": 51,
        }
        sizes = [run.test_scores().offsets[-1] for run in runs]  # type: ignore[union-attr]
        assert sum(sizes) == len(owner)  # so that none was tested twice


def test_the_share_of_samples_that_were_given_as_test_samples_stays() -> None:
    is_test = np.arange(90) % 10 == 0
    before = Federation.from_arrays(np.zeros((90, 1)), np.arange(90) % 2, list("abc") * 30, is_test)
    assert before.test_share is None
    assert [len(resplit(before, seed).test.y) for seed in range(3)] == [9, 9, 9]


def test_seeds_vary_split_and_initial_weights_unless_they_are_fixed() -> None:
    task = Task(nn.Linear(3, 2))
    before = task.initial.clone()

    def compared(fixed: bool) -> Comparison:
        client = "sgd(batch=100)"  # full batches: nothing else could differ
        return commonweal.compare(
            task,
            federation(),
            rules=["fedavg"],
            seeds=2,
            baselines=False,
            fixed=fixed,
            rounds=2,
            client=client,
        )

    free = compared(fixed=False)
    assert free.varied == "seeds vary split, initial weights and batches"
    assert free.varied in repr(free)
    assert not np.array_equal(*free.results[0].scores)
    assert torch.equal(task.initial, before)
    fixed = compared(fixed=True)
    assert fixed.varied == NOTHING
    assert np.array_equal(*fixed.results[0].scores)


def test_functions_of_the_seed_are_called_with_each_seed() -> None:
    asked: list[tuple[str, int]] = []

    def task(seed: int) -> Task:
        asked.append(("task", seed))
        return Task(nn.Linear(3, 2))

    def data(seed: int) -> Federation:
        asked.append(("data", seed))
        return federation(seed)

    commonweal.compare(task, data, rules=["fedavg"], seeds=[3, 5], baselines=False, rounds=1)
    assert asked == [("data", 3), ("task", 3), ("data", 5), ("task", 5)]


class Bare(nn.Module):
    """Parameters that no part draws."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, 2))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


def test_weights_that_cannot_be_drawn_again_are_not_claimed() -> None:
    result = commonweal.compare(
        Task(Bare()), federation(), rules=["fedavg"], seeds=1, baselines=False, rounds=1
    )
    assert result.varied == "seeds vary split and batches"


def test_rules_can_be_added_and_reordered_in_a_saved_comparison(tmp_path: Path) -> None:
    task = Task(nn.Linear(3, 2))

    def compared(*rules: str | commonweal.Rule) -> Comparison:
        return commonweal.compare(
            task, federation(), rules=rules, seeds=2, rounds=1, out=tmp_path, baselines=False
        )

    first = compared("fedavg", commonweal.rule("afl", lr=0.5))
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("rounds.jsonl")}
    again = compared("term", "afl(lr=0.5)", "fedavg")
    assert [result.label for result in again.results] == ["term", "afl(lr=0.5)", "fedavg"]
    assert all(path.stat().st_mtime_ns == before for path, before in written.items())
    assert np.array_equal(first.results[0].scores, again.results[2].scores)
    assert (tmp_path / "afl_lr=0.5_" / "seed-1" / "run.json").exists()
    with pytest.raises(ConfigError, match="the same rule twice"):
        compared("fedavg", "fedavg")


def test_a_comparison_shows_itself(tmp_path: Path) -> None:
    rules: dict[str, str | commonweal.Rule] = {"Plain": "fedavg"}
    rules["Ours"] = commonweal.rule("afl", lr=0.5)
    module = nn.Linear(3, 2)
    found = commonweal.compare(
        Task(module), federation(), rules=rules, seeds=[2, 4], rounds=2, baselines=False
    )
    assert [result.label for result in found.results] == ["Plain", "Ours"]
    assert sorted(set(found.frame()["seed"])) == [2, 4]
    means = [result.metric("mean") for result in found.results]
    difference = found.differences["Ours"]["mean"]
    assert difference.difference == pytest.approx(means[1] - means[0])
    assert "Ours" in found.table() and r"\toprule" in found.table("latex")
    assert "<table" in found._repr_html_() and "Ours" in found._repr_html_()
    found.plot("rounds", tmp_path / "rounds.png")
    found.plot(path=tmp_path / "clients.svg")
    wrong: list[tuple[Callable[..., object], str, Any]] = [
        (found.table, "columns", 2),
        (found.table, "decimals", "x"),
        (found.plot, "what", {}),
        (found.plot, "path", [1]),
        (found.records["Ours"][0].clients, "round", "x"),
        (found.records["Ours"][0].history, "client", 3),
        (found.records["Ours"][0].read, "folder", 3),
    ]
    for function, name, value in wrong:
        with pytest.raises(ConfigError, match=rf"^{name} = "):
            function(**{name: value})
    assert (tmp_path / "rounds.png").read_bytes().startswith(b"\x89PNG")
    assert "Ours" in (tmp_path / "clients.svg").read_text(encoding="utf-8")
    with pytest.raises(ConfigError, match="did you mean 'rounds'"):
        found.plot("round")
