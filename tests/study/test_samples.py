"""Samples are paired by client and row, over seeds that test other ones."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import commonweal
from cases import cases
from commonweal.base.errors import RunError
from commonweal.data.federation import Federation
from commonweal.record.record import Record
from commonweal.record.test_scores import TestScores
from commonweal.study.judging import judge
from commonweal.study.samples import aligned, differences, inflation, scores
from commonweal.task.task import Task

OFFSETS = torch.tensor([0, 2, 3])


def fake(
    seed: int,
    values: list[float],
    rows: list[int] | None = None,
    names: tuple[str, ...] = ("a", "b"),
    score: str = "accuracy",
    offsets: torch.Tensor = OFFSETS,
    personal: list[float] | None = None,
    data: str = "",
) -> Any:
    known = TestScores(
        names,
        offsets,
        torch.tensor(values),
        None if personal is None else torch.tensor(personal),
        None if rows is None else torch.tensor(rows),
    )
    facts = SimpleNamespace(score=score, data=data or f"seed {seed}")
    experiment = {"seed": seed}
    return SimpleNamespace(
        facts=facts,
        experiment=experiment,
        folder=Path(f"{seed}"),
        lower_is_better=score == "mae",
        test_scores=lambda: known,
    )


def as_lists(table: Any) -> Any:
    return {
        method: {name: np.round(values, 6).tolist() for name, values in own.items()}
        for method, own in table.items()
    }


def test_samples_of_all_seeds_are_paired_by_row() -> None:
    local = [fake(0, [0, 1, 0], [4, 5, 9]), fake(1, [1, 1, 1], [6, 4, 8])]
    other = [fake(0, [1, 1, 1], [4, 5, 9]), fake(1, [1, 0, 1], [6, 4, 8])]
    # Row 4 of a: local 0 and 1, the other 1 and 0.
    expected = {"fedavg": {"a": [0, 0, 0], "b": [0, 1]}}
    assert as_lists(differences(local, {"fedavg": other})) == expected
    assert scores(local) == {"a": {4: 0.5, 5: 1, 6: 1}, "b": {8: 1, 9: 0}}


def test_the_order_of_seeds_and_clients_changes_nothing() -> None:
    local = [fake(0, [0, 1, 0], [4, 5, 9]), fake(1, [1, 1, 1], [6, 4, 8])]
    other = [fake(0, [1, 1, 1], [4, 5, 9]), fake(1, [1, 0, 1], [6, 4, 8])]
    first = differences(local, {"fedavg": other})
    assert as_lists(differences(local[::-1], {"fedavg": other})) == as_lists(first)
    turned = fake(0, [1, 1, 0], [9, 5, 4], ("b", "a"), offsets=torch.tensor([0, 1, 3]))
    assert as_lists(differences(local[:1], {"m": [turned]})) == {"m": {"a": [0, 0], "b": [1]}}


def test_a_seed_that_a_method_lacks_leaves_its_samples_out() -> None:
    local = [fake(0, [0, 1, 0], [4, 5, 9]), fake(1, [1, 1, 1], [6, 7, 8])]
    other = [fake(1, [0.5, 1, 0], [6, 7, 8])]
    assert as_lists(differences(local, {"m": other})) == {"m": {"a": [-0.5, 0], "b": [-1]}}


def test_without_row_numbers_positions_count_within_a_seed() -> None:
    local = [fake(0, [0, 1, 0]), fake(1, [1, 1, 1])]
    other = [fake(0, [1, 1, 0]), fake(1, [0, 1, 1])]
    expected = {"m": {"a": [1, 0, -1, 0], "b": [0, 0]}}
    assert as_lists(differences(local, {"m": other})) == expected


def test_without_row_numbers_positions_of_the_same_data_are_the_same_samples() -> None:
    local = [fake(seed, [0, 1, 0], data="same") for seed in (0, 1)]
    other = [fake(0, [1, 1, 0], data="same"), fake(1, [0, 1, 1], data="same")]
    assert as_lists(differences(local, {"m": other})) == {"m": {"a": [0.5, 0], "b": [0.5]}}


def test_errors_count_the_other_way_round() -> None:
    local, other = fake(0, [3, 1, 2], [1, 2, 3], score="mae"), fake(0, [1, 1, 3], [1, 2, 3])
    other.facts.score = "mae"
    assert as_lists(differences([local], {"m": [other]})) == {"m": {"a": [2, 0], "b": [-1]}}


def test_undefined_samples_are_left_out() -> None:
    nan = float("nan")
    local = [fake(0, [nan, 1, nan], [1, 2, 3]), fake(1, [0, 1, nan], [1, 2, 3])]
    other = [fake(0, [nan, 0, nan], [1, 2, 3]), fake(1, [1, 0, nan], [1, 2, 3])]
    assert as_lists(differences(local, {"m": other})) == {"m": {"a": [1, -1]}}
    assert scores(local) == {"a": {1: 0, 2: 1}}


def test_what_clients_use_or_the_global_model() -> None:
    local = [fake(0, [0, 0, 0], [1, 2, 3], personal=[1, 1, 1])]
    other = [fake(0, [0, 1, 1], [1, 2, 3], personal=[1, 0, 1])]
    assert as_lists(differences(local, {"m": other})) == {"m": {"a": [0, -1], "b": [0]}}
    shared = differences(local, {"m": other}, of_global=["m"])
    assert as_lists(shared) == {"m": {"a": [-1, 0], "b": [0]}}
    assert scores(other, of_global=True) == {"a": {1: 0, 2: 1}, "b": {3: 1}}


def test_runs_without_scores_of_samples_give_none() -> None:
    old = fake(0, [0, 0, 0])
    old.test_scores = lambda: None
    other = fake(0, [0, 0, 0])
    assert differences([old], {"m": [other]}) == {"m": {}}
    assert differences([other], {"m": [old]}) == {"m": {}}
    assert scores([old]) == {}


def test_aligned_scores_are_of_the_samples_that_all_methods_have() -> None:
    nan = float("nan")
    first = [fake(0, [1, 2, 3], [4, 5, 9]), fake(1, [4, 5, 6], [6, 4, 8])]
    second = [fake(1, [7, 8, nan], [6, 4, 8]), fake(2, [9, 9, 9], [7, 5, 7])]
    old = [fake(0, [1, 2, 3])]
    old[0].test_scores = lambda: None
    table = aligned({"one": first, "two": second, "old": old})
    assert as_lists(table) == {"one": {"a": [3, 2, 4]}, "two": {"a": [8, 9, 7]}}
    assert aligned({"old": old}) == aligned({}) == {}


def test_different_scores_are_refused() -> None:
    with pytest.raises(RunError, match="different scores"):
        differences([fake(0, [0, 0, 0])], {"m": [fake(0, [0, 0, 0], score="mae")]})


def test_a_million_samples_take_less_than_seconds() -> None:
    clients, size, seeds = 100, 10_000, 5
    rng = np.random.default_rng(0)
    names = tuple(f"c{k}" for k in range(clients))
    each = clients * size // seeds
    offsets = torch.arange(clients + 1) * (size // seeds)
    rows = torch.tensor(rng.permuted(np.tile(np.arange(size), (clients, 1)), axis=1))
    runs = []
    for _ in range(11):
        parts = []
        for seed in range(seeds):
            part = rows[:, seed * size // seeds : (seed + 1) * size // seeds].reshape(-1)
            known = TestScores(names, offsets, torch.rand(each), None, part)
            run = fake(seed, [0, 0, 0])
            run.test_scores = lambda known=known: known
            parts.append(run)
        runs.append(parts)
    begin = time.process_time()
    table = differences(runs[0], {str(k): runs[k] for k in range(1, 11)})
    assert time.process_time() - begin < 4  # 0.6 s where nothing else runs
    assert table["1"]["c7"].shape == (size,)


def with_luck(
    luck: float, clients: int = 12, size: int = 40, same: bool = False
) -> tuple[list[Any], list[Any]]:
    """Runs on five folds, whose models are better or worse on all samples of a client.

    same: All runs are tested on the same samples.
    """
    rng = np.random.default_rng(3)
    effect = 3 * rng.normal(size=(clients, size)) if same else 0.0
    names = tuple(f"c{k}" for k in range(clients))
    offsets = torch.arange(clients + 1) * size
    local: list[Any] = []
    other: list[Any] = []
    for seed in range(5):
        rows = torch.arange(clients * size) + (0 if same else seed) * clients * size
        own = effect + rng.normal(size=(clients, size)) + luck * rng.normal(size=(clients, 1))
        for runs, values in ((local, np.zeros_like(own)), (other, own)):
            known = TestScores(names, offsets, torch.tensor(values.reshape(-1)), None, rows)
            run = fake(seed, [0, 0, 0])
            run.test_scores = lambda known=known: known
            runs.append(run)
    return local, other


def test_samples_that_share_a_models_luck_count_less() -> None:
    local, other = with_luck(luck=1.0)
    factors = inflation(local, {"m": other})["m"]
    assert len(factors) == 12 and 10 < min(factors.values()) < 60
    before = judge(differences(local, {"m": other}))
    after = judge(differences(local, {"m": other}), inflation={"m": factors})
    assert any(before.better.values()) or any(before.worse.values())
    assert not any(after.better.values()) and not any(after.worse.values())
    assert after.gain == before.gain and after.high - after.low > 3 * (before.high - before.low)


@cases("same", [False, True])
def test_independent_samples_are_not_inflated(same: bool) -> None:
    local, other = with_luck(0.0, same=same)
    assert inflation(local, {"m": other}) == {"m": {}}
    assert inflation(local[:1], {"m": other[:1]}) == {"m": {}}
    assert inflation(local, {"m": []}) == {"m": {}}


def test_luck_is_found_where_all_runs_test_the_same_samples() -> None:
    """The variance of a client's mean is 9.2 / 40 by its samples, and 1 / 5 by five models."""
    local, other = with_luck(1.0, same=True, clients=60)
    factors = inflation(local, {"m": other})["m"]
    assert 1.6 < min(factors.values()) < 2.2


# Real runs


@pytest.fixture(scope="module")
def federations() -> list[Federation]:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(90, 3))
    y = (x[:, 0] + 0.3 * rng.normal(size=90) > 0).astype(int)
    client = np.repeat(["a", "b", "c"], [50, 37, 3])
    return [Federation.from_arrays(x, y, client, seed=seed) for seed in range(5)]


def ran(folder: Path, federations: list[Federation], **parts: Any) -> list[Record]:
    records = []
    for seed, federation in enumerate(federations):
        torch.manual_seed(0)
        task = Task(nn.Linear(3, 2))
        out = folder / f"seed-{seed}"
        records.append(
            commonweal.run(task, federation, rounds=3, seed=seed, out=out, **parts).result()
        )
    return records


def test_every_sample_of_a_comparison_is_there_once(
    federations: list[Federation], tmp_path: Path
) -> None:
    local = ran(tmp_path / "local", federations, client="alone")
    fedavg = ran(tmp_path / "fedavg", federations)
    table = differences(local, {"fedavg": fedavg})
    sizes = {name: len(values) for name, values in table["fedavg"].items()}
    assert sizes == {"a": 50, "b": 37, "c": 3}
    own = scores(local)
    assert sorted(own["b"]) == list(range(50, 87))
    # The mean over a client's samples of a run is its score.
    for record in local:
        known = record.test_scores()
        assert known is not None and known.personal is not None
        scored = record.clients().evaluation.personal
        assert scored is not None
        parts = torch.split(known.used, known.offsets.diff().tolist())
        means = torch.stack([part.mean() for part in parts])
        torch.testing.assert_close(means.double(), scored.score.double(), equal_nan=True)
    expected = np.mean([own["a"][row] for row in own["a"]])
    after = scores(fedavg)
    change = np.mean([after["a"][row] for row in after["a"]]) - expected
    assert table["fedavg"]["a"].mean() == pytest.approx(change)
