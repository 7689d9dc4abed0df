"""The loop over rounds: cohorts, evaluation, own models and rows, clients that fail, and disks that are full."""

import errno
import importlib
import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from commonweal import store
from commonweal.algorithm import Averaging
from commonweal.errors import CommonwealError, ConfigError, DataError, RunError
from commonweal.experiment import Experiment
from commonweal.federation import Federation, Rows
from commonweal.local import Local
from commonweal.rule import Reports
from commonweal.rules.aaggff_s import AAggFFS
from commonweal.rules.fedavg import FedAvg
from commonweal.run import Round, prepare, run
from commonweal.server import SGD
from commonweal.store import Record
from commonweal.task import Task

VOWEL: dict[str, Any] = {"dataset": "vowel", "rounds": 4}


def federation(
    clients: int = 4, rows: int = 20, test: float = 0.25, scale: dict[int, float] | None = None
) -> Federation:
    """Three classes in a plane; `scale` multiplies a client's rows."""
    rng = np.random.default_rng(5)
    x, owner = rng.normal(size=(clients * rows, 2)), np.repeat(np.arange(clients), rows)
    y = (x[:, 0] > 0).astype(int) + (x[:, 1] > 0.3)
    for client, factor in (scale or {}).items():
        x[owner == client] *= factor
    return Federation.from_arrays(x.astype(np.float32), y, np.array([f"c{k}" for k in owner]), test=test)


def task(outputs: int = 3) -> Task:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        return Task(nn.Linear(2, outputs))


def rounds(*what: Any, **parts: Any) -> list[Round]:
    return list(run(*what, **parts))


def contents(folder: Path) -> dict[str, bytes]:
    files = (f for f in sorted(folder.rglob("*")) if f.is_file() and f.name != "timings.jsonl")
    return {f.relative_to(folder).as_posix(): f.read_bytes() for f in files}


def test_rounds_are_numbered_and_complete() -> None:
    done = rounds(task(), federation(), rounds=3)
    assert [r.number for r in done] == [1, 2, 3]
    for r in done:
        assert r.clients == ("c0", "c1", "c2", "c3")
        assert r.losses.shape == r.scores.shape == (4,)
        assert set(r.seconds) == {"train", "decide", "evaluate"}
        assert r.dropped == {}
        assert r.evaluation is not None
        assert r.evaluation[0].shape == r.evaluation[1].shape == (4,)


def test_nothing_happens_before_the_first_next() -> None:
    generator = run(task(), federation(), rounds=10**9)
    assert next(iter(generator)).number == 1


def test_the_first_losses_are_those_of_the_start() -> None:
    t, f = task(), federation()
    (first,) = rounds(t, f, rounds=1)
    for k in range(4):
        own = f.train.of(k)
        expected = nn.functional.cross_entropy(t.module(own.x), own.y).item()
        assert first.losses[k].item() == pytest.approx(expected, rel=1e-5)


def test_each_round_goes_on_from_the_last() -> None:
    """A round's losses are of the model that the round before left."""
    t, f = task(), federation()
    before, after = rounds(t, f, rounds=2)
    own = f.train.of(0)
    outputs = t.outputs(before.server["w"], own.x)
    assert after.losses[0].item() == pytest.approx(nn.functional.cross_entropy(outputs, own.y).item(), rel=1e-5)


def test_training_lowers_the_loss() -> None:
    done = rounds(task(), federation(), rounds=20)
    assert done[-1].losses.mean() < 0.8 * done[0].losses.mean()


def test_same_seed_same_run_other_seed_other_run() -> None:
    first, again, other = (rounds(task(), federation(), rounds=3, seed=s)[-1].server["w"] for s in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_runs_do_not_touch_the_global_generators() -> None:
    torch.manual_seed(4)
    np.random.seed(4)
    states = torch.get_rng_state(), np.random.get_state()[1].tolist()  # type: ignore[index]
    rounds(Experiment(**VOWEL, model={"name": "mlp", "hidden": [4]}))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.random.get_state()[1].tolist() == states[1]  # type: ignore[index]


def test_the_users_module_is_left_as_it_was() -> None:
    t = task()
    before = [p.clone() for p in t.module.parameters()]
    rounds(t, federation(), rounds=2)
    assert all(torch.equal(a, b) for a, b in zip(before, t.module.parameters(), strict=True))


@pytest.mark.parametrize(
    "parts",
    [
        {"rule": "aaggff-s", "client": "sgd", "server": "sgd"},
        {"rule": {"name": "aaggff-s"}, "client": {"name": "sgd", "lr": 0.1}, "server": {"name": "sgd"}},
        {"rule": AAggFFS(), "client": Local(), "server": SGD()},
        {"rule": "aaggff-s", "client": Local(lr=0.1), "server": {"name": "sgd", "lr": 1.0}},
    ],
)
def test_parts_may_be_names_tables_or_things(parts: dict[str, Any]) -> None:
    expected = rounds(task(), federation(), rule="aaggff-s", rounds=3)[-1]
    got = rounds(task(), federation(), rounds=3, **parts)[-1]
    assert torch.equal(got.server["w"], expected.server["w"])
    assert got.weights == expected.weights


def test_parts_have_defaults() -> None:
    plain = rounds(task(), federation(), rounds=2)[-1]
    spelt = rounds(task(), federation(), rounds=2, rule=FedAvg(), client=Local(), server=SGD())[-1]
    assert torch.equal(plain.server["w"], spelt.server["w"])


def test_a_job_can_be_run() -> None:
    job = prepare(Experiment(**VOWEL))
    assert isinstance(job.algorithm, Averaging)
    assert [r.number for r in run(job)] == [1, 2, 3, 4]


def test_a_task_of_ones_own_writes_a_folder_that_resumes(tmp_path: Path) -> None:
    whole = rounds(task(), federation(), rule="aaggff-s", rounds=5, out=tmp_path / "whole")
    generator = run(task(), federation(), rule="aaggff-s", rounds=5, out=tmp_path / "part")
    next(iter(generator))
    generator.close()  # type: ignore[attr-defined]
    rest = rounds(task(), federation(), rule="aaggff-s", rounds=5, out=tmp_path / "part", resume=True)
    assert [r.number for r in rest] == [2, 3, 4, 5]
    assert torch.equal(rest[-1].server["w"], whole[-1].server["w"])
    assert contents(tmp_path / "part") == contents(tmp_path / "whole")


def test_the_folder_of_ones_own_task_reads_back(tmp_path: Path) -> None:
    rounds(task(), federation(), rounds=2, cohort=0.5, out=tmp_path / "own")
    record = Record.read(tmp_path / "own")
    assert record.experiment["rounds"] == 2
    assert record.experiment["cohort"] == 0.5
    assert "FedAvg" in record.experiment["algorithm"]
    assert set(record.model()) == {"weight", "bias"}


def test_the_folder_says_how_many_rounds_also_where_none_were_given(tmp_path: Path) -> None:
    generator = run(task(), federation(), out=tmp_path / "own")
    next(iter(generator))
    generator.close()  # type: ignore[attr-defined]
    assert Record.read(tmp_path / "own").experiment["rounds"] == 100


def other(what: str) -> tuple[Task, Federation]:
    """Another task or federation, each of which makes another run."""
    t, f = task(), federation()
    others = {
        "nothing": lambda: (t, f),
        "rows": lambda: (t, federation(scale={0: 2.0})),
        "names": lambda: (t, Federation(f.train, f.test, ("w", "x", "y", "z"), f.outputs)),
        "split": lambda: (t, federation(test=0.5)),
        "score": lambda: (Task(t.module, score="top-5"), f),
        "start": lambda: (Task(nn.Linear(2, 3)), f),
    }
    return others[what]()


@pytest.mark.parametrize("what", ["rows", "names", "split", "score", "start"])
def test_another_task_or_federation_is_another_run(tmp_path: Path, what: str) -> None:
    rounds(*other("nothing"), rounds=2, out=tmp_path / "own")
    assert rounds(*other("nothing"), rounds=2, out=tmp_path / "own", resume=True) == []
    with pytest.raises(RunError, match="holds another experiment"):
        rounds(*other(what), rounds=2, out=tmp_path / "own", resume=True)


def test_another_rule_is_another_run(tmp_path: Path) -> None:
    rounds(task(), federation(), rounds=2, out=tmp_path / "own")
    with pytest.raises(RunError, match="holds another experiment"):
        rounds(task(), federation(), rounds=2, rule="aaggff-s", out=tmp_path / "own", resume=True)


class Uniform:
    """A rule as a newcomer writes it: a class, nothing more."""

    def init(self, clients: int) -> dict[str, torch.Tensor]:
        return {}

    def __call__(
        self, reports: Reports, state: dict[str, torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return torch.full((len(reports.ids),), 1 / len(reports.ids)), state


def test_a_plain_class_is_a_rule() -> None:
    (done,) = rounds(task(), federation(), rule=Uniform(), rounds=1)
    assert set(done.weights.values()) == {0.25}


def test_a_run_with_a_plain_rule_can_be_resumed(tmp_path: Path) -> None:
    """Its repr holds an address, which is another one in the process that resumes."""
    generator = run(task(), federation(), rule=Uniform(), rounds=3, out=tmp_path / "own")
    next(iter(generator))
    generator.close()  # type: ignore[attr-defined]
    taken = [Uniform() for _ in range(3)]  # so that the next one cannot get the same address
    rest = rounds(task(), federation(), rule=Uniform(), rounds=3, out=tmp_path / "own", resume=True)
    assert [r.number for r in rest] == [2, 3]
    assert len(taken) == 3


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"rouns": 3}, "rouns.*did you mean 'rounds'"),
        ({"rule": "fedagv"}, "did you mean 'fedavg'"),
        ({"rule": {"name": "aaggff-s", "cfd": "normal"}}, "did you mean 'cdf'"),
        ({"engine": "vmapp"}, "did you mean 'vmap'"),
        ({"cohort": 5}, "cohort = 5 is 5 clients, but there are 4"),
        ({"cohort": 0}, "cohort = 0"),
        ({"cohort": 1.5}, r"cohort = 1\.5"),
        ({"cohort": -0.5}, r"cohort = -0\.5"),
        ({"cohort": "some"}, "cohort = 'some'"),
        ({"rounds": 0}, "rounds = 0"),
        ({"rounds": "ten"}, "rounds = 'ten'"),
        ({"rounds": 2.5}, r"rounds = 2\.5"),
        ({"evaluate_every": 0}, "evaluate_every = 0"),
        ({"seed": "x"}, "seed = 'x'"),
        ({"rule": 3}, "3"),
    ],
)
def test_wrong_parts_are_a_sentence(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        rounds(task(), federation(), **({"rounds": 2} | parts))


def test_run_says_what_it_takes() -> None:
    with pytest.raises(ConfigError, match="needs a Federation"):
        run(task())
    with pytest.raises(ConfigError, match="takes no other parts"):
        run(Experiment(**VOWEL), rounds=3)
    with pytest.raises(ConfigError, match="takes no other parts"):
        run(Experiment(**VOWEL), federation())


def test_run_of_something_else_is_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"vowel\.toml"):
        list(run("vowel.toml"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cohort", "size"), [("all", 15), (1, 1), (4, 4), (15, 15), (0.2, 3), (0.5, 8), (0.01, 1), (1.0, 15)]
)
def test_cohort_sizes(cohort: Any, size: int) -> None:
    job = prepare(Experiment(**VOWEL, cohort=cohort))
    assert job.size == size
    for number in (1, 2, 3):
        ids = job.cohort_of(number)
        assert len(set(ids.tolist())) == size
        assert ids.tolist() == sorted(ids.tolist())
        assert int(ids.max()) < 15


def test_a_cohort_larger_than_the_federation_is_a_sentence() -> None:
    with pytest.raises(ConfigError, match="cohort = 16 is 16 clients, but there are 15"):
        prepare(Experiment(**VOWEL, cohort=16))


def test_cohorts_depend_on_seed_and_round_only() -> None:
    job, again, other = (prepare(Experiment(**VOWEL, cohort=5, seed=s)) for s in (0, 0, 1))
    assert job.cohort_of(7).equal(again.cohort_of(7))
    drawn = [job.cohort_of(n).tolist() for n in range(1, 40)]
    assert len({tuple(c) for c in drawn}) > 30
    assert drawn != [other.cohort_of(n).tolist() for n in range(1, 40)]
    assert {k for cohort in drawn for k in cohort} == set(range(15))


def test_only_the_cohort_reports() -> None:
    for r in run(Experiment(**VOWEL, cohort=4, rule="aaggff-s")):
        assert len(r.clients) == len(r.weights) == len(r.losses) == 4
        assert tuple(r.weights) == r.clients
        assert r.evaluation is not None
        assert r.evaluation[1].shape == (15,)


@pytest.mark.parametrize(("every", "expected"), [(1, [1, 2, 3, 4]), (2, [2, 4]), (3, [3, 4]), (9, [4])])
def test_evaluation_comes_every_few_rounds_and_at_the_end(every: int, expected: list[int]) -> None:
    done = rounds(Experiment(**VOWEL, evaluate_every=every))
    assert [r.number for r in done if r.evaluation is not None] == expected
    assert [r.number for r in done if r.metrics] == expected


def test_evaluation_does_not_change_training() -> None:
    often, seldom = (rounds(Experiment(**VOWEL, evaluate_every=e))[-1].server["w"] for e in (1, 4))
    assert torch.equal(often, seldom)


@pytest.mark.parametrize("engine", ["vmap", "chunked", "loop"])
def test_engines_agree(engine: str) -> None:
    expected = rounds(Experiment(**VOWEL))[-1].server["w"]
    torch.testing.assert_close(
        rounds(Experiment(**VOWEL, engine=engine))[-1].server["w"], expected, rtol=1e-4, atol=1e-5
    )


def test_a_server_lr_scales_the_step() -> None:
    t, f = task(), federation()
    one, half = (rounds(t, f, rounds=1, server={"name": "sgd", "lr": lr})[-1].server["w"] for lr in (1.0, 0.5))
    torch.testing.assert_close(half - t.initial, 0.5 * (one - t.initial), rtol=1e-4, atol=1e-6)


def test_clients_whose_training_diverges_are_dropped_by_name_and_the_run_goes_on(tmp_path: Path) -> None:
    wild = federation(scale={2: 1e30})
    small = {"name": "sgd", "batch": 5}  # several steps: what the first makes huge, the second makes overflow
    done = rounds(task(), wild, rounds=4, rule="aaggff-s", client=small, out=tmp_path / "wild")
    assert all(list(r.dropped) == ["c2"] for r in done)
    assert all("not" in why and "finite" in why for r in done for why in r.dropped.values())
    assert all(set(r.weights) == {"c0", "c1", "c3"} for r in done)
    assert all(sum(r.weights.values()) == pytest.approx(1, abs=1e-9) for r in done)
    assert all(torch.isfinite(r.server["w"]).all() for r in done)
    lines = Record.read(tmp_path / "wild").rounds
    assert [list(line["dropped"]) for line in lines] == [["c2"]] * 4
    assert all(len(line["clients"]) == 4 for line in lines)


@dataclass(frozen=True)
class Broken(Local):
    """Clients that report what cannot be used."""

    def reply(self, task: Task, v: Any, seen: Any, kept: Any, steps: torch.Tensor) -> Any:
        return {"update": (seen["w"] - v["w"]) * float("nan")}, kept


def test_when_nobody_can_be_used_nothing_moves(tmp_path: Path) -> None:
    t = task()
    done = rounds(t, federation(), rounds=3, client=Broken(), out=tmp_path / "none")
    for r in done:
        assert r.weights == {}
        assert r.dropped == {f"c{k}": "its update is not finite: local training diverged" for k in range(4)}
        assert torch.equal(r.server["w"], t.initial)
    assert Record.read(tmp_path / "none").finished


def test_a_loss_that_is_not_a_number_is_dropped_and_null_in_the_record(tmp_path: Path) -> None:
    t, f = task(), federation()
    algorithm = Averaging(AAggFFS(), Local(), SGD())
    ids = torch.arange(4)
    update = torch.ones(4, t.size)
    loss = torch.tensor([1.0, math.nan, 2.0, math.inf])
    replies = {"update": update, "loss": loss, "score": torch.ones(4), "size": f.train.sizes}
    told = algorithm.tell(t, algorithm.init(t, 4), ids, replies, 4)
    assert told.ids.tolist() == [0, 2]
    assert told.dropped == {1: "its loss is not a finite number", 3: "its loss is not a finite number"}
    (done,) = rounds(t, f, rounds=1)
    store.Store(tmp_path).append("rounds.jsonl", replace(done, losses=loss).line())
    line = json.loads((tmp_path / "rounds.jsonl").read_text())
    assert line["losses"] == [1.0, None, 2.0, None]


def test_dropping_a_client_is_as_if_it_had_not_been_in_the_cohort() -> None:
    t = task()
    algorithm = Averaging(AAggFFS(), Local(), SGD(momentum=0.5))
    g = torch.Generator().manual_seed(0)
    replies = {
        "update": torch.randn(3, t.size, generator=g),
        "loss": torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64),
        "score": torch.ones(3),
        "size": torch.tensor([5, 6, 7]),
    }
    bad = {name: value.clone() for name, value in replies.items()}
    bad["update"][1, 3] = math.inf
    server = algorithm.init(t, 4)
    dropped = algorithm.tell(t, server, torch.tensor([0, 2, 3]), bad, 4)
    absent = algorithm.tell(t, server, torch.tensor([0, 3]), {n: v[[0, 2]] for n, v in replies.items()}, 4)
    assert torch.equal(dropped.weights, absent.weights)
    assert torch.equal(dropped.server["w"], absent.server["w"])
    assert list(dropped.dropped) == [2]


def test_updates_so_large_that_their_sum_overflows_are_still_finite() -> None:
    t = task()
    algorithm = Averaging(FedAvg(), Local(), SGD())
    replies = {
        "update": torch.full((2, t.size), 2e38),
        "loss": torch.ones(2),
        "score": torch.ones(2),
        "size": torch.ones(2),
    }
    assert algorithm.tell(t, algorithm.init(t, 2), torch.arange(2), replies, 2).dropped == {}


def lonely() -> Federation:
    """Two clients of ten rows, and one of a single row, which has none to be judged by."""
    x = np.random.default_rng(1).normal(size=(21, 2))
    return Federation.from_arrays(x, (x[:, 0] > 0).astype(int), ["a"] * 10 + ["b"] * 10 + ["tiny"])


def test_clients_without_test_rows_train_but_are_not_scored(tmp_path: Path) -> None:
    (done,) = rounds(task(2), lonely(), rounds=1, out=tmp_path / "run")
    assert "tiny" in done.weights
    assert done.evaluation is not None
    assert done.evaluation[1].isnan().tolist() == [False, False, True]
    assert done.metrics["mean"] == pytest.approx(done.evaluation[1][:2].mean().item())
    record = Record.read(tmp_path / "run")
    assert record.facts["unscored"] == ["tiny"]
    table = (tmp_path / "run" / "clients" / "000001.csv").read_text().splitlines()
    assert table[3] == "tiny,,"
    assert math.isnan(record.clients()[2][1])


def test_without_any_test_rows_there_is_nothing_to_say() -> None:
    with pytest.raises(DataError, match="no client has test rows"):
        rounds(task(), federation(test=0.0), rounds=1)


def test_without_any_test_rows_a_run_does_not_begin(tmp_path: Path) -> None:
    """Not after the first fifty rounds."""
    with pytest.raises(DataError, match="no client has test rows"):
        next(iter(run(task(), federation(test=0.0), rounds=60, evaluate_every=50, out=tmp_path / "run")))
    assert not (tmp_path / "run").exists()


def one_class() -> Federation:
    """The second client has only healthy patients to be judged by."""
    x = torch.zeros(8, 2)
    train = Rows(x, torch.tensor([0, 1, 0, 1, 0, 1, 0, 1]), torch.tensor([0, 4, 8]))
    test = Rows(x, torch.tensor([0, 1, 0, 1, 0, 0, 0, 0]), torch.tensor([0, 4, 8]))
    return Federation(train, test, ("both", "healthy"), outputs=1, loss="binary", score="auroc")


def test_an_auroc_of_one_class_is_refused_before_training(tmp_path: Path) -> None:
    f = one_class()
    with pytest.raises(DataError, match=r"the auroc of 'healthy' is undefined: .* one label only"):
        run(Task(nn.Linear(2, 1), "binary", "auroc"), f, rounds=1, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert len(rounds(Task(nn.Linear(2, 1), "binary", "accuracy"), f, rounds=1)) == 1


def test_values_are_scored_by_r2_and_a_bad_one_has_no_gini(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    f = Federation.from_arrays(x, x @ [1.0, -2.0] + 5, np.repeat(["a", "b", "c"], 20))
    (done,) = rounds(Task(nn.Linear(2, 1), f.loss, f.score), f, rounds=1, client={"name": "sgd", "lr": 1e-4},
                     out=tmp_path / "run")  # fmt: skip
    assert done.metrics["worst"] < 0
    assert math.isnan(done.metrics["gini"])
    line = json.loads((tmp_path / "run" / "rounds.jsonl").read_text())
    assert line["metrics"]["gini"] is None


def test_a_client_whose_values_overflow_does_not_end_the_run() -> None:
    """Its R^2 is minus infinity: the client is dropped, and the others go on."""
    x = np.random.default_rng(0).normal(size=(60, 2))
    y = x @ [1.0, -2.0]
    x[40:] *= 1e30
    f = Federation.from_arrays(x.astype(np.float32), y, np.repeat(["a", "b", "c"], 20))
    done = rounds(Task(nn.Linear(2, 1), f.loss, f.score), f, rounds=3, client={"name": "sgd", "lr": 0.01})
    assert [list(r.dropped) for r in done] == [["c"]] * 3
    assert torch.isfinite(done[-1].server["w"]).all()


def test_one_client_alone_is_a_federation() -> None:
    f = Federation.from_arrays(np.random.default_rng(0).normal(size=(20, 2)), [0, 1] * 10, ["only"] * 20)
    for rule in ("fedavg", "aaggff-s"):
        done = rounds(task(2), f, rule=rule, rounds=2)
        assert done[-1].weights == {"only": 1.0}


@pytest.mark.parametrize("seconds", [-1.0, 1e9], ids=["a checkpoint every round", "one at the end"])
@pytest.mark.parametrize(
    ("name", "allowed"), [("rounds.jsonl", 2), ("timings.jsonl", 2), ("000003.csv", 0), ("checkpoint.safetensors", 0)]
)
def test_a_full_disk_is_a_sentence_and_resume_ends_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, allowed: int, seconds: float
) -> None:
    """From some write on, this file cannot be written any more."""
    parts: dict[str, Any] = {"rule": "aaggff-s", "server": {"name": "sgd", "momentum": 0.5}, "rounds": 5}
    rounds(task(), federation(), out=tmp_path / "whole", **parts)
    monkeypatch.setattr(importlib.import_module("commonweal.run"), "SAVE_EVERY", seconds)
    really_open, count = open, 0

    def failing(path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        nonlocal count
        if Path(path).name.removesuffix(".part") == name and mode in ("ab", "wb"):
            count += 1
            if count > allowed:
                raise OSError(errno.ENOSPC, "No space left on device")
        return really_open(path, mode, *args, **kwargs)

    with monkeypatch.context() as full:
        full.setattr("builtins.open", failing)
        with pytest.raises(
            RunError, match=rf"cannot write '.*{name}': No space left on device; .* go on with --resume"
        ):
            rounds(task(), federation(), out=tmp_path / "part", **parts)
    rounds(task(), federation(), out=tmp_path / "part", resume=True, **parts)
    assert contents(tmp_path / "part") == contents(tmp_path / "whole")


LIMITED = """
import resource, sys
from pathlib import Path
import commonweal
from commonweal.errors import RunError
from commonweal.experiment import Experiment
from commonweal.run import run

folder, limit = Path(sys.argv[1]), int(sys.argv[2])
e = Experiment(dataset="vowel", rule="aaggff-s", server={"name": "sgd", "momentum": 0.5}, rounds=12)
for _ in run(e, out=folder / "whole"):
    pass
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
try:
    for _ in run(e, out=folder / "part"):
        pass
except RunError as error:
    print(error)
size = (folder / "part" / "rounds.jsonl").stat().st_size
assert size <= limit, size
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print([r.number for r in run(e, out=folder / "part", resume=True)])
"""


def test_a_write_that_the_system_cuts_short_is_a_sentence_and_resume_ends_the_same(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path), "12000"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    sentence, rest = done.stdout.splitlines()
    assert sentence.startswith("cannot write '")
    assert "rounds.jsonl': " in sentence
    assert sentence.endswith("go on with --resume")
    assert json.loads(rest) == list(range(json.loads(rest)[0], 13))
    assert 1 < json.loads(rest)[0] < 12
    assert contents(tmp_path / "part") == contents(tmp_path / "whole")


def test_an_error_in_the_callers_loop_saves_every_whole_round(tmp_path: Path) -> None:
    def fail_at(number: int) -> None:
        for done in run(task(), federation(), rounds=5, out=tmp_path / "run"):
            if done.number == number:
                raise KeyError(number)

    with pytest.raises(KeyError):
        fail_at(3)
    rest = rounds(task(), federation(), rounds=5, out=tmp_path / "run", resume=True)
    assert [r.number for r in rest] == [4, 5]


def test_every_error_of_a_run_is_a_commonweal_error() -> None:
    makers: list[Callable[[], Any]] = [
        lambda: run(task()),
        lambda: run(task(), federation(), rule="nothing"),
        lambda: run(task(), federation(), cohort=99),
    ]
    for make in makers:
        with pytest.raises(CommonwealError):
            make()
