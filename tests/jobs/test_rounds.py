"""The loop over rounds: cohorts, evaluation, own models and rows, clients that fail, full disks."""

import errno
import json
import math
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cases import cases
from commonweal.base.errors import CommonwealError, ConfigError, DataError, RunError
from commonweal.base.tensors import State, Tensors
from commonweal.config import catalog
from commonweal.config.experiment import Experiment
from commonweal.data.federation import Federation
from commonweal.data.rows import Rows
from commonweal.jobs import rounds as rounds_module
from commonweal.jobs.job import job_from_experiment, job_from_parts
from commonweal.jobs.reopening import reopen
from commonweal.jobs.rounds import Round, converse, run
from commonweal.protocols import Averaging, Replies, Request
from commonweal.protocols.servers.sgd import SGD
from commonweal.record.record import Record
from commonweal.record.store import Store
from commonweal.record.verify import problems
from commonweal.rules import AAggFFS, Decision, FedAvg, Reports, Rule
from commonweal.task.task import Task
from commonweal.training.client import Client
from run_helpers import Growing, Lossy, as_documented, contents, federation, job, stop, task

VOWEL: dict[str, Any] = {"dataset": "vowel", "rounds": 4}


def rounds(*what: Any, **parts: Any) -> list[Round]:
    return list(run(*what, **parts))


def test_rounds_are_numbered_and_complete() -> None:
    done = rounds(task(), federation(), rounds=3)
    assert [r.number for r in done] == [1, 2, 3]
    for r in done:
        assert r.clients == ("c0", "c1", "c2", "c3")
        assert len(r.losses) == len(r.scores) == 4
        assert set(r.seconds) == {"train", "evaluate"}
        assert r.dropped == r.capped == {} and r.warnings == ()
        assert r.evaluation is not None
        assert r.evaluation.losses.shape == r.evaluation.score.shape == (4,)
        assert repr(r).startswith(f"<Round {r.number}: 4 clients, accuracy {{'mean': ")


def test_nothing_happens_before_the_first_next() -> None:
    assert next(run(task(), federation(), rounds=10**9)).number == 1


def test_the_first_losses_are_those_of_the_start() -> None:
    t, f = task(), federation()
    (first,) = rounds(t, f, rounds=1)
    for k in range(4):
        own = f.train.client(k)
        expected = nn.functional.cross_entropy(t.module(own.x), own.y).item()
        assert first.losses[k] == pytest.approx(expected, rel=1e-5)


def test_each_round_starts_from_the_last() -> None:
    """A round's losses are those of the model that the round before left."""
    t, f = task(), federation()
    before, after = rounds(t, f, rounds=2)
    own = f.train.client(0)
    outputs = before.module()(own.x)
    expected = nn.functional.cross_entropy(outputs, own.y).item()
    assert after.losses[0] == pytest.approx(expected, rel=1e-5)
    assert torch.equal(outputs, t.outputs(before.state["w"], own.x))


def test_training_lowers_the_loss() -> None:
    done = rounds(task(), federation(), rounds=20)
    assert sum(done[-1].losses) < 0.8 * sum(done[0].losses)


def final(*what: Any, **parts: Any) -> Tensor:
    """The server's model after the last round."""
    w: Tensor = rounds(*what, **parts)[-1].state["w"]
    return w


def test_same_seed_same_run_other_seed_other_run() -> None:
    first, again, other = (final(task(), federation(), rounds=3, seed=s) for s in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_runs_do_not_touch_the_global_generators() -> None:
    torch.manual_seed(4)
    np.random.seed(4)
    before = torch.get_rng_state()
    keys = np.random.get_state(legacy=False)["state"]["key"].tolist()
    rounds(Experiment(**VOWEL, model={"name": "mlp", "hidden": [4]}))
    assert torch.equal(torch.get_rng_state(), before)
    assert np.random.get_state(legacy=False)["state"]["key"].tolist() == keys


def test_the_users_module_is_left_as_it_was() -> None:
    t = task()
    before = [p.clone() for p in t.module.parameters()]
    rounds(t, federation(), rounds=2)
    assert all(torch.equal(a, b) for a, b in zip(before, t.module.parameters(), strict=True))


@cases(
    "parts",
    [
        {"rule": "aaggff-s", "client": "sgd", "server": "sgd"},
        {"rule": {"name": "aaggff-s"}, "client": {"name": "sgd", "lr": 0.1}},
        {"rule": AAggFFS(), "client": Client(), "server": SGD(), "sampler": "uniform"},
        {"rule": "aaggff-s", "client": Client(lr=0.1), "server": {"name": "sgd", "lr": 1.0}},
        {"rule": "aaggff-s()", "algorithm": {"name": "averaging"}, "channels": []},
    ],
)
def test_parts_may_be_names_tables_or_things(parts: dict[str, Any]) -> None:
    expected = rounds(task(), federation(), rule="aaggff-s", rounds=3)[-1]
    got = rounds(task(), federation(), rounds=3, **parts)[-1]
    assert torch.equal(got.state["w"], expected.state["w"])
    assert got.weights == expected.weights


def test_an_algorithm_may_be_given_as_a_thing_with_its_own_parts() -> None:
    t, f = task(), federation()
    own = Averaging(t, AAggFFS(), Client(), SGD())
    expected = final(t, f, rule="aaggff-s", rounds=3)
    assert torch.equal(final(t, f, algorithm=own, rounds=3), expected)


@cases(
    "parts",
    [{"rule": "afl"}, {"client": Client(lr=0.3)}, {"channels": ["clip"]}, {"server": SGD(0.5)}],
)
def test_parts_beside_an_algorithm_that_has_its_own_are_refused(parts: dict[str, Any]) -> None:
    t = task()
    own = Averaging(t, AAggFFS(), Client(), SGD())
    with pytest.raises(ConfigError, match="with an algorithm that has its own parts"):
        rounds(t, federation(), algorithm=own, rounds=1, **parts)


@cases("parts", [{}, {"score": "top-5"}])
def test_an_algorithm_with_another_task_is_refused(parts: dict[str, Any]) -> None:
    t = task()
    own = Averaging(t if parts else task(), AAggFFS(), Client(), SGD())
    with pytest.raises(ConfigError, match=r"the algorithm has another task .* than the run"):
        rounds(t, federation(), algorithm=own, rounds=1, **parts)


def test_parts_have_defaults() -> None:
    plain = rounds(task(), federation(), rounds=2)[-1]
    spelt = rounds(task(), federation(), rounds=2, rule=FedAvg(), client=Client(), server=SGD())[-1]
    assert torch.equal(plain.state["w"], spelt.state["w"])


def test_a_job_can_be_run() -> None:
    built = job_from_experiment(Experiment(**VOWEL))
    assert isinstance(built.algorithm, Averaging)
    assert [r.number for r in run(built)] == [1, 2, 3, 4]


def test_a_task_of_ones_own_writes_a_folder_that_resumes(tmp_path: Path) -> None:
    parts: dict[str, Any] = {"rule": "aaggff-s", "rounds": 5}
    whole = rounds(task(), federation(), out=tmp_path / "whole", **parts)
    begun = run(task(), federation(), out=tmp_path / "part", **parts)
    next(begun)
    stop(begun)
    rest = rounds(task(), federation(), out=tmp_path / "part", resume=True, **parts)
    assert [r.number for r in rest] == [2, 3, 4, 5]
    assert torch.equal(rest[-1].state["w"], whole[-1].state["w"])
    assert contents(tmp_path / "part") == contents(tmp_path / "whole")


def test_the_folder_of_ones_own_task_reads_back(tmp_path: Path) -> None:
    client = Client(lr=0.3)
    parts: dict[str, Any] = {"rule": "aaggff-s(cdf=gumbel)", "client": client, "cohort": 0.5}
    rounds(task(), federation(), rounds=2, channels=["clip"], out=tmp_path / "own", **parts)
    record = Record.read(tmp_path / "own")
    e = record.experiment
    assert (e["rounds"], e["cohort"]) == (2, 0.5)
    constants = {"low": 0.0, "scale": 1.0}
    assert e["rule"] == {"name": "aaggff-s", "cdf": "gumbel", "variant": "paper", **constants}
    assert (e["client"]["name"], e["client"]["lr"]) == ("sgd", 0.3)
    assert e["server"]["name"] == "sgd"
    assert e["algorithm"] == {"name": "averaging", "loss": "full"}
    assert e["sampler"] == {"name": "uniform"}
    assert e["channels"] == [{"name": "clip", "norm": 1.0}]
    assert e["dataset"]["name"] == e["model"]["name"] == "given"
    assert record.title == "aaggff-s"
    assert set(record.state_dict()) == {"weight", "bias"}


def test_the_folder_has_the_number_of_rounds_also_where_none_was_given(tmp_path: Path) -> None:
    begun = run(task(), federation(), out=tmp_path / "own")
    next(begun)
    stop(begun)
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
        "layers": lambda: (Task(nn.Sequential(t.module, nn.Softplus())), f),
    }
    return others[what]()


OTHERS = ["rows", "names", "split", "score", "start", "layers"]
OF_OTHERS = {
    "rows": "is a run of other data .samples with other values: 'c0'",
    "names": "is a run of other data .clients gone: 'c0'.* new clients: 'w'",
}


@pytest.mark.parametrize("what", OTHERS)
def test_another_task_or_federation_is_another_run(tmp_path: Path, what: str) -> None:
    rounds(*other("nothing"), rounds=2, out=tmp_path / "own")
    assert rounds(*other("nothing"), rounds=2, out=tmp_path / "own", resume=True) == []
    with pytest.raises(RunError, match=OF_OTHERS.get(what, "holds another experiment")):
        rounds(*other(what), rounds=2, out=tmp_path / "own", resume=True)


def test_another_rule_is_another_run(tmp_path: Path) -> None:
    rounds(task(), federation(), rounds=2, out=tmp_path / "own")
    with pytest.raises(RunError, match="holds another experiment"):
        rounds(task(), federation(), rounds=2, rule="aaggff-s", out=tmp_path / "own", resume=True)


CONTINUES = {
    "rule": ("aaggff-s", "afl", "qfedavg"),
    "client": ("ditto", "scaffold"),
    "algorithm": ("two-phase",),
}
PLANS = {"rule": ("feddg-ga",), "client": ("fine-tune", "superfed-mm")}


@pytest.mark.parametrize(
    ("kind", "name"), [(k, n) for k, names in CONTINUES.items() for n in names]
)
def test_more_rounds_give_the_longer_run(tmp_path: Path, kind: str, name: str) -> None:
    def files(folder: Path) -> dict[str, bytes]:
        names = ("model.safetensors", "clients.csv", "experiment.toml", "rounds.jsonl")
        return {name: (folder / name).read_bytes() for name in names}

    whole, parts = tmp_path / "whole", tmp_path / "parts"
    rounds(task(), federation(), rounds=5, out=whole, **{kind: name})
    rounds(task(), federation(), rounds=2, out=parts, **{kind: name})
    assert len(rounds(task(), federation(), rounds=5, out=parts, resume=True, **{kind: name})) == 3
    assert files(parts) == files(whole)
    assert not problems(parts)
    with pytest.raises(RunError, match="holds another experiment"):  # fewer are not more
        rounds(task(), federation(), rounds=4, out=parts, resume=True, **{kind: name})


@pytest.mark.parametrize(("kind", "name"), [(k, n) for k, names in PLANS.items() for n in names])
def test_a_method_that_plans_its_rounds_takes_no_more(tmp_path: Path, kind: str, name: str) -> None:
    rounds(task(), federation(), rounds=2, out=tmp_path / "r", **{kind: name})
    with pytest.raises(RunError, match="was planned for 2 rounds"):
        rounds(task(), federation(), rounds=5, out=tmp_path / "r", resume=True, **{kind: name})


# Runs of one's own task and federation can be reopened

REOPENED: list[dict[str, Any]] = [
    {"rule": "aaggff-s"},
    {"rule": {"name": "grouped", "rule": "afl", "domains": 2}},
    {"rule": AAggFFS(cdf="gumbel"), "client": "ditto", "cohort": 2, "seed": 3},
    {"client": {"name": "scaffold", "steps": 3}, "server": "sgd(momentum=0.5)"},
    {"algorithm": "two-phase", "rule": "term", "channels": ["clip(norm=0.5)"]},
    {"algorithm": "drfa(ascent=0.1)", "cohort": 2},
    {"sampler": "poisson", "cohort": 0.5, "score": ["accuracy", "top-5"], "vectorize": "loop"},
]


@pytest.mark.parametrize("parts", REOPENED, ids=lambda parts: "-".join(parts))
def test_a_run_of_ones_own_task_can_be_reopened(tmp_path: Path, parts: dict[str, Any]) -> None:
    *_, last = run(task(), federation(), rounds=3, out=tmp_path / "own", **parts)
    before = contents(tmp_path / "own")
    again, state = reopen(tmp_path / "own", task(), federation())
    assert torch.equal(again.algorithm.model(state), last.job.algorithm.model(last.state))
    assert again.text == last.job.text
    assert again.rounds == 3 and again.cohort == last.job.cohort
    evaluation = again.engine.evaluate(again.algorithm, state)
    assert last.evaluation is not None
    assert list(evaluation.scores) == list(last.evaluation.scores)
    assert torch.equal(evaluation.score, last.evaluation.score)
    if last.evaluation.personal is not None:
        assert evaluation.personal is not None
        assert torch.equal(evaluation.personal.score, last.evaluation.personal.score)
    assert contents(tmp_path / "own") == before


@pytest.mark.parametrize("what", OTHERS)
def test_a_run_is_not_reopened_with_another_task_or_federation(tmp_path: Path, what: str) -> None:
    rounds(*other("nothing"), rounds=2, out=tmp_path / "own")
    message = OF_OTHERS.get(what, "is a run of another task or federation")
    with pytest.raises(RunError, match=message):
        reopen(tmp_path / "own", *other(what))


def test_a_run_of_ones_own_task_asks_for_it_when_it_is_reopened(tmp_path: Path) -> None:
    rounds(task(), federation(), rounds=1, out=tmp_path / "own")
    with pytest.raises(RunError, match=r"reopen\(folder, task, federation\)"):
        reopen(tmp_path / "own")


def test_a_run_of_an_experiment_is_reopened_by_its_folder(tmp_path: Path) -> None:
    *_, last = run(Experiment(**VOWEL, rule="aaggff-s", client="ditto"), out=tmp_path / "run")
    again, state = reopen(tmp_path / "run")
    assert torch.equal(state["w"], last.state["w"])
    evaluation = again.engine.evaluate(again.algorithm, state)
    assert last.evaluation is not None and last.evaluation.personal is not None
    assert evaluation.personal is not None
    assert torch.equal(evaluation.personal.score, last.evaluation.personal.score)


@pytest.mark.parametrize("missing", ["folder", "checkpoint"])
def test_what_cannot_be_reopened_is_an_error(tmp_path: Path, missing: str) -> None:
    if missing == "checkpoint":
        rounds(Experiment(**VOWEL), out=tmp_path / "run")
        (tmp_path / "run" / "checkpoint.safetensors").unlink()
    with pytest.raises(RunError, match=missing if missing == "checkpoint" else "cannot be built"):
        reopen(tmp_path / "run")


def test_a_given_run_is_written_as_toml_that_names_all_parts(tmp_path: Path) -> None:
    """Whatever the parts are: their names, not the text of a Python object."""
    rounds(task(), federation(), rounds=1, rule=Equal(), client=Broken(), out=tmp_path / "own")
    text = (tmp_path / "own" / "experiment.toml").read_text()
    tables = tomllib.loads(text)
    assert tables["rule"] == {"name": "test_rounds:Equal"}
    assert tables["client"]["name"] == "test_rounds:Broken"
    assert "0x" not in text and "object at" not in text


# Rules of one's own


class Equal(Rule):
    """A rule as a newcomer writes it: one method."""

    def __call__(self, reports: Reports, state: State) -> Decision:
        return Decision(torch.full((len(reports.ids),), 1 / len(reports.ids)), state)


def test_a_class_with_one_method_is_a_rule() -> None:
    (done,) = rounds(task(), federation(), rule=Equal(), rounds=1)
    assert set(done.weights.values()) == {0.25}


def test_a_run_with_a_rule_that_is_no_dataclass_can_be_resumed(tmp_path: Path) -> None:
    """Its repr holds an address, which is another one in the process that resumes."""
    begun = run(task(), federation(), rule=Equal(), rounds=3, out=tmp_path / "own")
    next(begun)
    stop(begun)
    taken = [Equal() for _ in range(3)]  # so that the next one cannot get the same address
    again = {"rule": Equal(), "rounds": 3, "out": tmp_path / "own", "resume": True}
    assert [r.number for r in rounds(task(), federation(), **again)] == [2, 3]
    assert len(taken) == 3


class Plain:
    """Neither a rule, nor a client, nor anything else that a run takes."""

    def __call__(self, reports: Reports, state: State) -> Decision:
        raise AssertionError("never called")


@cases("part", ["rule", "client", "server", "sampler", "channels", "algorithm"])
@cases("thing", [Plain(), Equal, 3, None])
def test_a_part_that_is_no_part_is_an_error(part: str, thing: object) -> None:
    with pytest.raises(ConfigError, match=rf"{part.removesuffix('s')}s? = .*: give a "):
        rounds(task(), federation(), rounds=1, **{part: thing})


@cases(
    ("parts", "message"),
    [
        ({"rouns": 3}, "rouns.*did you mean 'rounds'"),
        ({"rule": "fedagv"}, "did you mean 'fedavg'"),
        ({"rule": {"name": "aaggff-s", "cfd": "normal"}}, "did you mean 'cdf'"),
        ({"vectorize": "vmapp"}, "did you mean 'vmap'"),
        ({"engine": "vmap"}, "engine = 'vmap': known: flower, simulator"),
        ({"score": "acuracy"}, "did you mean 'accuracy'"),
        ({"sampler": "poison"}, "did you mean 'poisson'"),
        ({"channels": ["clp"]}, "did you mean 'clip'"),
        ({"algorithm": "drfaa"}, "did you mean 'drfa'"),
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
def test_wrong_parts_are_errors(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        rounds(task(), federation(), **({"rounds": 2} | parts))


def test_run_refuses_other_parts() -> None:
    with pytest.raises(ConfigError, match="needs a Federation"):
        run(task())
    with pytest.raises(ConfigError, match="takes no other parts"):
        run(Experiment(**VOWEL), rounds=3)
    with pytest.raises(ConfigError, match="takes no other parts"):
        run(Experiment(**VOWEL), federation())


def test_run_of_something_else_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"vowel\.toml"):
        rounds("vowel.toml")


@cases(
    ("cohort", "size"),
    [("all", 15), (1, 1), (4, 4), (15, 15), (0.2, 3), (0.5, 8), (0.01, 1), (1.0, 15)],
)
def test_cohort_sizes(cohort: Any, size: int) -> None:
    built = job_from_experiment(Experiment(**VOWEL, cohort=cohort))
    assert built.cohort == size
    for number in (1, 2, 3):
        ids = built.sample(number)()
        assert len(set(ids.tolist())) == size
        assert ids.tolist() == sorted(ids.tolist())
        assert int(ids.max()) < 15


def test_a_cohort_larger_than_the_federation_is_an_error() -> None:
    with pytest.raises(ConfigError, match="cohort = 16 is 16 clients, but there are 15"):
        job_from_experiment(Experiment(**VOWEL, cohort=16))


def test_cohorts_are_those_of_earlier_versions() -> None:
    built = job_from_experiment(Experiment(**VOWEL, cohort=5))
    assert [built.sample(number)().tolist() for number in (1, 2, 7)] == [
        [2, 4, 5, 9, 12],
        [4, 5, 8, 10, 12],
        [0, 3, 6, 10, 11],
    ]


def test_only_the_cohort_reports() -> None:
    for r in run(Experiment(**VOWEL, cohort=4, rule="aaggff-s")):
        assert len(r.clients) == len(r.weights) == len(r.losses) == 4
        assert tuple(r.weights) == r.clients
        assert r.evaluation is not None
        assert r.evaluation.score.shape == (15,)


@cases(("every", "expected"), [(1, [1, 2, 3, 4]), (2, [2, 4]), (3, [3, 4]), (9, [4])])
def test_evaluation_comes_every_few_rounds_and_at_the_end(every: int, expected: list[int]) -> None:
    done = rounds(Experiment(**VOWEL, evaluate_every=every))
    assert [r.number for r in done if r.evaluation is not None] == expected
    assert [r.number for r in done if r.metrics] == expected


def test_evaluation_does_not_change_training() -> None:
    often, seldom = (final(Experiment(**VOWEL, evaluate_every=e)) for e in (1, 4))
    assert torch.equal(often, seldom)


@cases("mode", ["vmap", "chunked", "loop"])
def test_modes_agree(mode: str) -> None:
    expected = final(Experiment(**VOWEL))
    got = final(Experiment(**VOWEL, vectorize=mode))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_a_server_lr_scales_the_step() -> None:
    t, f = task(), federation()
    one, half = (final(t, f, rounds=1, server={"name": "sgd", "lr": lr}) for lr in (1.0, 0.5))
    torch.testing.assert_close(half - t.initial, 0.5 * (one - t.initial), rtol=1e-4, atol=1e-6)


def test_clients_whose_training_diverges_are_dropped_by_name_and_the_run_goes_on(
    tmp_path: Path,
) -> None:
    wild = federation(scale={2: 1e30})
    small = {"name": "sgd", "batch": 5}  # several steps: the second overflows
    done = rounds(task(), wild, rounds=4, rule="aaggff-s", client=small, out=tmp_path / "wild")
    assert all(list(r.dropped) == ["c2"] for r in done)
    assert all("not" in why and "finite" in why for r in done for why in r.dropped.values())
    assert all(set(r.weights) == {"c0", "c1", "c3"} for r in done)
    assert all(sum(r.weights.values()) == pytest.approx(1, abs=1e-9) for r in done)
    assert all(torch.isfinite(r.state["w"]).all() for r in done)
    read = Record.read(tmp_path / "wild").rounds
    assert [each.dropped for each in read] == [r.dropped for r in done]
    assert all(len(each.clients) == 4 for each in read)


@dataclass(frozen=True)
class Broken(Client):
    """Clients that report what cannot be used."""

    def reply(
        self, task: Task, vectors: Tensors, message: Tensors, state: Tensors, steps: Tensor
    ) -> tuple[Tensors, Tensors]:
        return {"update": (message["w"] - vectors["w"]) * float("nan")}, state


def test_when_nobody_can_be_used_nothing_moves(tmp_path: Path) -> None:
    t = task()
    done = rounds(t, federation(), rounds=3, client=Broken(), out=tmp_path / "none")
    for r in done:
        assert r.weights == {}
        why = "its update is not finite: local training diverged"
        assert r.dropped == {f"c{k}": why for k in range(4)}
        assert torch.equal(r.state["w"], t.initial)
    assert Record.read(tmp_path / "none").finished


def test_a_loss_that_is_not_a_number_is_none_in_the_record(tmp_path: Path) -> None:
    (done,) = rounds(task(), federation(), rounds=1)
    Store(tmp_path).append(replace(done, losses=(1.0, math.nan, 2.0, math.inf)), {})
    (line,) = as_documented(tmp_path)
    assert line["loss"] == pytest.approx([1.0, math.nan, 2.0, math.inf], nan_ok=True)


# Replies that never come


def lost(request: Request) -> dict[int, str]:
    """In round 2 the reply of c1, in round 3 those of all but c0; c3 never answers."""
    round = int(request.message["round"])
    gone = {1: [3], 2: [1, 3], 3: [1, 2, 3]}.get(round, [3])
    return dict.fromkeys(gone, f"no reply within {round} s")


@pytest.mark.parametrize("algorithm", ["averaging", "two-phase", "drfa"])
def test_replies_that_never_come_are_in_the_record_with_the_reason(
    tmp_path: Path, algorithm: str
) -> None:
    f = federation()
    lossy = job(task(), f, Lossy(f, lost), algorithm=algorithm, rounds=4)
    done = rounds(lossy, out=tmp_path / "run")
    read = Record.read(tmp_path / "run").rounds
    for number, gone in enumerate(([3], [1, 3], [1, 2, 3], [3]), 1):
        each = read[number - 1]
        why = f"no reply within {number} s"
        answered = {f"c{k}" for k in range(4) if k not in gone}
        if algorithm == "drfa":  # which samples whom it asks
            assert set(each.dropped) <= {f"c{k}" for k in gone} and set(each.weights) <= answered
        else:
            assert set(each.dropped) == {f"c{k}" for k in gone} and set(each.weights) == answered
            assert each.clients == ("c0", "c1", "c2", "c3")
            asked = dict(zip(each.clients, each.losses, strict=True))
            assert {name for name, loss in asked.items() if not math.isnan(loss)} == answered
        assert set(each.dropped.values()) <= {why}
        assert each.dropped == done[number - 1].dropped
        assert sum(each.weights.values()) == pytest.approx(1) or not each.weights
    assert torch.isfinite(done[-1].state["w"]).all()


def test_a_client_that_does_not_answer_is_as_if_it_had_not_been_asked() -> None:
    f = federation()
    rule = {"name": "aaggff-s"}
    lossy = job(task(), f, Lossy(f, lambda _: {1: "gone"}), rule=rule, rounds=1)
    (some,) = rounds(lossy)
    algorithm = lossy.algorithm
    assert isinstance(algorithm, Averaging)
    state = lossy.initial_state()
    asked = torch.tensor([0, 2, 3])
    replies = job(task(), f, rounds=1).engine.collect(
        algorithm, Request(asked, algorithm.ask(state))
    )
    alone = algorithm.tell(state, replies, 4)
    assert torch.equal(alone.state["w"], some.state["w"])
    assert list(some.weights.values()) == alone.weights.tolist()


@cases("algorithm", ["averaging", "two-phase", "drfa"])
def test_a_round_without_any_reply_moves_nothing(algorithm: str) -> None:
    f, t = federation(), task()
    silent = Lossy(f, lambda _: dict.fromkeys(range(4), "the network is down"))
    for done in run(job(t, f, silent, algorithm=algorithm, rounds=3)):
        assert torch.equal(done.state["w"], t.initial)
        assert int(done.state["round"]) == done.number + 1
        assert done.weights == {}
        assert set(done.dropped.values()) == {"the network is down"}
        assert done.metrics["mean"] >= 0


def test_resuming_an_engine_that_loses_replies_ends_the_same(tmp_path: Path) -> None:
    f = federation()

    def lossy(folder: str, **how: Any) -> Any:
        parts: dict[str, Any] = {"rule": "aaggff-s", "client": "ditto", "rounds": 4}
        return run(job(task(), f, Lossy(f, lost), **parts), out=tmp_path / folder, **how)

    list(lossy("whole"))
    for _ in range(4):
        begun = lossy("part", resume=True)
        next(begun)
        stop(begun)
    list(lossy("part", resume=True))
    assert contents(tmp_path / "part") == contents(tmp_path / "whole")


def test_converse_drives_a_round_and_returns_all_exchanges() -> None:
    f = federation()
    built = job_from_parts(task(), f, rule="afl", algorithm="two-phase")
    outcome, exchanges = converse(
        built.algorithm, built.engine, built.initial_state(), built.sample(1)
    )
    assert [request.purpose for request, _ in exchanges] == ["loss", "train"]
    assert all(isinstance(replies, Replies) for _, replies in exchanges)
    assert outcome.clients.tolist() == [0, 1, 2, 3]


# Clients that join late

# What a rule needs besides its name.
MORE: dict[str, dict[str, Any]] = {
    "excess": {"rule": "afl"},
    "guarded": {"rule": "fedavg"},
    "grouped": {"rule": "afl", "domains": ["a", "b", "a"]},
}


@cases("name", catalog.entries("rules"))
def test_every_rule_takes_a_client_that_joins_late(name: str) -> None:
    f = federation(6)
    engine = Growing(f, joined=(3, 3, 4, 6))
    rule = {"name": name, **MORE.get(name, {})}
    built = job(task(), f, engine, rule=rule, client="sgd(batch=5)", rounds=6)
    built = replace(built, engine=engine)
    sizes = []
    for done in run(built):
        sizes.append(len(done.clients))
        assert done.dropped == {}
        assert set(done.weights) == set(done.clients)
        assert all(math.isfinite(weight) for weight in done.weights.values())
        if isinstance(built.algorithm, Averaging) and built.algorithm.rule.mixing:
            assert sum(done.weights.values()) == pytest.approx(1, abs=1e-6)
        assert torch.isfinite(done.state["w"]).all()
        assert done.evaluation is not None
    assert sizes == [3, 3, 4, 6, 6, 6]


@cases("parts", [{"client": "scaffold"}, {"client": "ditto"}, {"algorithm": "drfa"}])
def test_other_parts_take_a_client_that_joins_late(parts: dict[str, Any]) -> None:
    f = federation(5)
    engine = Growing(f, joined=(2, 2, 5))
    *_, last = run(job(task(), f, engine, rounds=6, seed=2, **parts))
    assert last.evaluation is not None and len(last.evaluation.score) == 5
    assert torch.isfinite(last.state["w"]).all()
    assert {"c2", "c3", "c4"} & set(last.clients)


def test_a_run_whose_population_grew_can_be_resumed(tmp_path: Path) -> None:
    f = federation(5)

    def growing(folder: str, joined: tuple[int, ...], **how: Any) -> Any:
        engine = Growing(f, joined)
        parts: dict[str, Any] = {"rule": "aaggff-s", "client": "ditto", "rounds": 5}
        return run(job(task(), f, engine, **parts), out=tmp_path / folder, **how)

    list(growing("whole", (3, 3, 4, 5)))
    begun = growing("part", (3, 3, 4, 5))
    assert [next(begun).number for _ in range(3)] == [1, 2, 3]
    stop(begun)
    # The process that resumes finds five clients from the start.
    list(growing("part", (5,), resume=True))
    whole, part = contents(tmp_path / "whole"), contents(tmp_path / "part")
    assert {name for name in whole if whole[name] != part[name]} <= {"run.json"}


# Clients without test rows, and scores that are undefined


def lonely() -> Federation:
    """Two clients of ten rows, and one of a single row, which has none to be evaluated on."""
    x = np.random.default_rng(1).normal(size=(21, 2))
    return Federation.from_arrays(x, (x[:, 0] > 0).astype(int), ["a"] * 10 + ["b"] * 10 + ["tiny"])


def test_clients_without_test_rows_train_but_are_not_scored(tmp_path: Path) -> None:
    (done,) = rounds(task(2), lonely(), rounds=1, out=tmp_path / "run")
    assert "tiny" in done.weights
    assert done.evaluation is not None
    assert done.evaluation.score.isnan().tolist() == [False, False, True]
    assert done.metrics["mean"] == pytest.approx(done.evaluation.score[:2].mean().item())
    record = Record.read(tmp_path / "run")
    assert record.facts.unscored == ("tiny",)
    table = (tmp_path / "run" / "clients.csv").read_text().splitlines()
    assert table[3] == "tiny,0,,"
    assert record.clients().evaluation.score.isnan().tolist() == [False, False, True]
    assert record.clients().evaluation.scored.tolist() == [0, 1]


def test_without_any_test_rows_there_are_no_metrics() -> None:
    with pytest.raises(DataError, match="no client has test rows"):
        rounds(task(), federation(test=0.0), rounds=1)


def test_without_any_test_rows_a_run_does_not_begin(tmp_path: Path) -> None:
    """Not after the first fifty rounds."""
    parts: dict[str, Any] = {"rounds": 60, "evaluate_every": 50, "out": tmp_path / "run"}
    with pytest.raises(DataError, match="no client has test rows"):
        next(run(task(), federation(test=0.0), **parts))
    assert not (tmp_path / "run").exists()


def one_class() -> Federation:
    """The test rows of the second client are all of healthy patients."""
    x = torch.zeros(8, 2)
    train = Rows(x, torch.tensor([0, 1, 0, 1, 0, 1, 0, 1]), torch.tensor([0, 4, 8]))
    test = Rows(x, torch.tensor([0, 1, 0, 1, 0, 0, 0, 0]), torch.tensor([0, 4, 8]))
    return Federation(train, test, ("both", "healthy"), outputs=1, labels="binary", score="auroc")


def test_a_client_whose_score_is_undefined_trains_but_is_not_scored(tmp_path: Path) -> None:
    """Its AUROC needs two classes. The record names it."""
    t = Task(nn.Linear(2, 1), "binary", "auroc")
    (done,) = rounds(t, one_class(), rounds=1, out=tmp_path / "run")
    assert set(done.weights) == {"both", "healthy"}
    assert done.metrics["mean"] == 0.5
    record = Record.read(tmp_path / "run")
    assert record.facts.unscored == ("healthy",)
    assert record.clients().evaluation.scored.tolist() == [0]
    assert record.clients().evaluation.sizes.tolist() == [4, 4]


def test_a_score_that_is_undefined_for_all_clients_is_refused_before_training(
    tmp_path: Path,
) -> None:
    f = one_class()
    f = replace(f, test=replace(f.test, y=torch.tensor([1, 1, 1, 1, 0, 0, 0, 0])))
    with pytest.raises(DataError, match="the auroc of all clients is undefined"):
        rounds(Task(nn.Linear(2, 1), "binary", "auroc"), f, rounds=1, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert len(rounds(Task(nn.Linear(2, 1), "binary", "accuracy"), f, rounds=1)) == 1


# Several scores


def test_several_scores_are_recorded(tmp_path: Path) -> None:
    e = Experiment(**VOWEL, score=["accuracy", "top-5"], evaluate_every=2)
    done = rounds(e, out=tmp_path / "run")
    record = Record.read(tmp_path / "run")
    assert record.facts.score == "accuracy"
    assert [bool(each.more) for each in record.rounds] == [False, True, False, True]
    scores = record.clients().evaluation.scores
    assert list(scores) == ["accuracy", "top-5"]
    last = done[-1]
    assert last.evaluation is not None
    for name, values in scores.items():
        assert torch.equal(values, last.evaluation.scores[name])
    assert record.rounds[-1].metrics["mean"] == pytest.approx(scores["accuracy"].mean().item())
    assert record.rounds[-1].more["top-5"]["mean"] == pytest.approx(scores["top-5"].mean().item())
    assert set(record.rounds[-1].more["top-5"]) == set(record.rounds[-1].metrics)
    assert (scores["top-5"] >= scores["accuracy"]).all()


def test_further_scores_do_not_change_training() -> None:
    one = rounds(Experiment(**VOWEL, rule="aaggff-s"))[-1]
    two = rounds(Experiment(**VOWEL, rule="aaggff-s", score=["accuracy", "top-5"]))[-1]
    assert torch.equal(one.state["w"], two.state["w"])
    assert (one.scores, one.metrics) == (two.scores, two.metrics)


def test_the_main_score_may_be_another_than_the_datasets() -> None:
    one: dict[str, Any] = VOWEL | {"rounds": 1, "rule": "aaggff-s"}
    (plain,) = rounds(Experiment(**one))
    (other,) = rounds(Experiment(**one, score="top-5"))
    assert other.metrics["mean"] > plain.metrics["mean"]
    assert other.scores != plain.scores and other.losses == plain.losses


def test_scores_of_own_models_are_recorded_too(tmp_path: Path) -> None:
    parts: dict[str, Any] = {"client": "ditto", "score": ["accuracy", "top-5"]}
    *_, last = run(task(), federation(), rounds=2, out=tmp_path / "run", **parts)
    evaluation = Record.read(tmp_path / "run").clients().evaluation
    assert evaluation.personal is not None
    assert list(evaluation.personal.scores) == ["accuracy", "top-5"]
    assert last.personal["mean"] == pytest.approx(evaluation.personal.score.mean().item())


# Label counts


def test_label_counts_are_asked_for_by_a_request() -> None:
    """`grouped` with a number of groups clusters what clients say, not what the server holds."""
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    owner = np.repeat(list("abcdef"), 10)
    y = np.array([int(name in "ace") for name in owner])
    f = Federation.from_arrays(x, y, owner)
    rule = {"name": "grouped", "rule": "afl", "domains": 2}
    built = job_from_parts(task(2), f, rule=rule, rounds=2)
    assert built.population.label_counts is None
    message = {"round": torch.tensor(0), "classes": torch.tensor(2)}
    request = Request(torch.arange(6), message, "describe")
    asked: list[str] = []

    class Listening(Lossy):
        def collect(self, algorithm: Any, request: Request) -> Replies:
            asked.append(request.purpose)
            return super().collect(algorithm, request)

    listening = replace(built, engine=Listening(f, lambda _: {}))
    first, *_ = rounds(listening)
    assert asked == ["describe", "train", "train"]
    group = first.state["rule"]["group"].tolist()
    assert group[0] == group[2] == group[4] != group[1] == group[3] == group[5]
    labels = built.engine.collect(built.algorithm, request).values["labels"]
    assert labels.tolist() == [[0, 8], [8, 0]] * 3


def test_a_rule_that_does_not_need_labels_asks_for_none() -> None:
    built = job_from_parts(task(), federation(), rule="afl")
    silent = Lossy(federation(), lambda _: pytest.fail("nobody is asked before the first round"))
    replace(built, engine=silent).initial_state()


def test_clients_without_label_counts_are_named() -> None:
    f = federation()
    rule = {"name": "grouped", "rule": "afl", "domains": 2}
    refusing = Lossy(f, lambda request: {2: "refused"} if request.purpose == "describe" else {})
    with pytest.raises(ConfigError, match=r"needs label counts, but \['c2'\] did not answer"):
        rounds(job(task(), f, refusing, rule=rule, rounds=1))


def test_values_are_scored_by_r2_and_a_bad_one_has_no_gini(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    f = Federation.from_arrays(x, x @ [1.0, -2.0] + 5, np.repeat(["a", "b", "c"], 20))
    parts: dict[str, Any] = {"rounds": 1, "client": "sgd(lr=1e-4)", "out": tmp_path / "run"}
    torch.manual_seed(0)  # some initial models are better than none
    (done,) = rounds(Task(nn.Linear(2, 1), score=f.score), f, **parts)
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
    t = Task(nn.Linear(2, 1), score=f.score)
    done = rounds(t, f, rounds=3, client={"name": "sgd", "lr": 0.01})
    assert [list(r.dropped) for r in done] == [["c"]] * 3
    assert torch.isfinite(done[-1].state["w"]).all()


def test_one_client_alone_is_a_federation() -> None:
    x = np.random.default_rng(0).normal(size=(20, 2))
    f = Federation.from_arrays(x, [0, 1] * 10, ["only"] * 20)
    for rule in ("fedavg", "aaggff-s"):
        done = rounds(task(2), f, rule=rule, rounds=2)
        assert done[-1].weights == {"only": 1.0}


@pytest.mark.parametrize("seconds", [-1.0, 1e9], ids=["a checkpoint every round", "one at the end"])
@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("rounds.jsonl", 2),
        ("timings.jsonl", 2),
        ("clients.chunks", 2),
        ("checkpoint.safetensors", 0),
    ],
)
def test_a_full_disk_is_an_error_and_resume_ends_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, allowed: int, seconds: float
) -> None:
    """From some write on, this file cannot be written any more."""
    parts: dict[str, Any] = {"rule": "aaggff-s", "server": "sgd(momentum=0.5)", "rounds": 5}
    rounds(task(), federation(), out=tmp_path / "whole", **parts)
    monkeypatch.setattr(rounds_module, "SAVE_EVERY", seconds)
    really_open = open
    count = 0

    def failing(path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        nonlocal count
        if Path(path).name.removesuffix(f".{os.getpid()}.part") == name and mode in ("ab", "wb"):
            count += 1
            if count > allowed:
                raise OSError(errno.ENOSPC, "No space left on device")
        return really_open(path, mode, *args, **kwargs)

    with monkeypatch.context() as full:
        full.setattr("builtins.open", failing)
        sentence = rf"cannot write '.*{name}': No space left on device; .*continue with --resume"
        with pytest.raises(RunError, match=sentence):
            rounds(task(), federation(), out=tmp_path / "part", **parts)
    rounds(task(), federation(), out=tmp_path / "part", resume=True, **parts)
    assert contents(tmp_path / "part") == contents(tmp_path / "whole")


LIMITED = """
import resource, sys
from pathlib import Path
import commonweal
from commonweal.base.errors import RunError
from commonweal.config.experiment import Experiment
from commonweal.jobs.rounds import run

folder, limit = Path(sys.argv[1]), int(sys.argv[2])
e = Experiment(dataset="vowel", rule="aaggff-s", server="sgd(momentum=0.5)", rounds=12)
for _ in run(e, out=folder / "whole"):
    pass
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
try:
    for _ in run(e, out=folder / "part"):
        pass
except RunError as error:
    print(error)
size = (folder / "part" / "clients.chunks").stat().st_size
assert size <= limit, size
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print([r.number for r in run(e, out=folder / "part", resume=True)])
"""


def test_a_write_that_the_system_cuts_short_is_an_error_and_resume_ends_the_same(
    tmp_path: Path,
) -> None:
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
    assert "clients.chunks': " in sentence
    assert sentence.endswith("continue with --resume")
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


@pytest.mark.parametrize("patience", [None, 1])
def test_the_model_is_written_before_the_last_round_is_handed_over(
    tmp_path: Path, patience: int | None
) -> None:
    """A caller may leave the loop at the last round, of all or of those that patience allows."""
    parts: dict[str, Any] = {} if patience is None else {"validation": 0.3, "patience": patience}
    whole = list(run(task(), federation(rows=40), rounds=9, out=tmp_path / "whole", **parts))
    for done in run(task(), federation(rows=40), rounds=9, out=tmp_path / "left", **parts):
        assert Record.read(tmp_path / "left").finished == (done.number == whole[-1].number)
        if done.number == whole[-1].number:
            break
    assert contents(tmp_path / "left") == contents(tmp_path / "whole")
