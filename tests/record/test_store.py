"""A run is a folder of plain files: what is in them, how they read back, and what is refused."""

import csv
import json
import math
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import commonweal
from commonweal.base import files
from commonweal.base.errors import ConfigError, RunError
from commonweal.base.plain import to_json
from commonweal.base.tensors import flatten, unflatten
from commonweal.config.experiment import Experiment, title_of
from commonweal.jobs.rounds import run
from commonweal.record import store
from commonweal.record.artifacts import read_samples, write_samples
from commonweal.record.facts import FORMAT, RunFacts
from commonweal.record.record import Record
from commonweal.record.rounds import ClientTable, RoundRecord, round_columns
from commonweal.record.store import Store
from commonweal.record.verify import problems
from commonweal.study.plan import Cell
from commonweal.training.evaluation import Evaluation
from run_helpers import (
    a_round,
    all_of,
    as_documented,
    contents,
    federation,
    lines,
    stop_after,
    task,
    weights_of,
)

SMALL: dict[str, Any] = {
    "dataset": "vowel",
    "rule": "aaggff-s",
    "server": {"name": "sgd", "momentum": 0.5},
    "client": {"name": "sgd", "lr": 0.1},
    "rounds": 6,
    "cohort": 9,
    "evaluate_every": 2,
}
FILES = {
    "experiment.toml",
    "run.json",
    "data.json",
    "rounds.jsonl",
    "timings.jsonl",
    "clients.chunks",
    "clients.csv",
    "final.json",
    "model.safetensors",
    "test-scores.safetensors",
    "checkpoint.safetensors",
}
TEXT = "rounds = 2\n"
FACTS = RunFacts(clients=2, score="accuracy")


def small(**changes: Any) -> Experiment:
    return Experiment(**(SMALL | changes))


def finish(experiment: Experiment, folder: Path, **how: Any) -> Record:
    for _ in run(experiment, out=folder, **how):
        pass
    return Record.read(folder)


def evaluation(scores: list[float], losses: list[float] | None = None) -> Evaluation:
    """An evaluation of ten rows per client."""
    values = torch.tensor(scores, dtype=torch.float64)
    sizes = torch.full((len(scores),), 10)
    given = values if losses is None else torch.tensor(losses, dtype=torch.float64)
    return Evaluation(given, {"accuracy": values}, sizes)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return finish(small(), tmp_path_factory.mktemp("finished") / "run")


def test_files_are_those_that_the_module_lists(finished: Record) -> None:
    assert {f.name for f in finished.folder.iterdir()} == FILES
    assert all(name in (store.__doc__ or "") for name in FILES)


@pytest.mark.parametrize("shape", [[-1], [10**9, 10**9]])
def test_a_model_of_an_impossible_shape_is_refused(
    finished: Record, tmp_path: Path, shape: list[int]
) -> None:
    folder = shutil.copytree(finished.folder, tmp_path / "run")
    facts = json.loads((folder / "run.json").read_text())
    facts["task"]["shape"] = shape
    (folder / "run.json").write_text(json.dumps(facts))
    with pytest.raises(RunError, match="has the tensors of another model"):
        Record.read(folder).raw_module()


@pytest.mark.parametrize("name", ["rounds.jsonl", "timings.jsonl"])
def test_every_line_is_json(finished: Record, name: str) -> None:
    data = (finished.folder / name).read_bytes()
    assert data.endswith(b"\n")
    assert [json.loads(line)["round"] for line in data.splitlines()] == [1, 2, 3, 4, 5, 6]


def test_a_rounds_line(finished: Record) -> None:
    for number, each in enumerate(finished.rounds, 1):
        assert each.number == number
        assert len(each.clients) == len(each.losses) == len(each.scores) == 9
        assert tuple(each.weights) == each.clients
        assert sum(each.weights.values()) == pytest.approx(1, abs=1e-9)
        assert each.dropped == each.capped == {}
        assert each.warnings == ()
        assert bool(each.metrics) == (number % 2 == 0)
        # 121 weights as float32 both ways, with what goes along: a few numbers per client.
        assert each.bytes["weights"] == 2 * 9 * 121 * 4
        assert 9 * 121 * 4 < each.bytes["down"] < 9 * (121 + 10) * 4
        assert 9 * 121 * 4 < each.bytes["up"] < 9 * (121 + 10) * 4


def test_a_rounds_line_has_the_keys_that_other_tools_read(finished: Record) -> None:
    first, second, *_ = (finished.folder / "rounds.jsonl").read_text().splitlines()
    keys = ["round", "chunk", "new", "dropped", "warnings", "bytes", "metrics"]
    assert list(json.loads(first)) == list(json.loads(second)) == keys


def test_the_values_of_clients_are_at_their_documented_places(finished: Record) -> None:
    for line, each in zip(as_documented(finished.folder), run(small()), strict=True):
        assert tuple(line["client"]) == each.clients
        assert tuple(line["loss"]) == each.losses
        assert tuple(line["score"]) == each.scores
        assert weights_of(line) == each.weights
        assert ("test.score" in line) == (each.evaluation is not None)
        if each.evaluation is not None:
            assert tuple(line["test.client"]) == each.job.population.names
            assert line["test.score"] == each.evaluation.score.tolist()
            assert line["test.loss"] == each.evaluation.losses.tolist()
            assert line["test.rows"] == each.evaluation.sizes.tolist()


def test_a_clients_history_is_its_part_of_every_round(finished: Record) -> None:
    for name in commonweal.dataset("vowel").names[:3]:
        found = finished.history(name)
        for k, line in enumerate(as_documented(finished.folder)):
            weight = weights_of(line).get(name, math.nan)
            loss = dict(zip(line["client"], line["loss"], strict=True)).get(name, math.nan)
            assert [found["weight"][k], found["loss"][k]] == pytest.approx(
                [weight, loss], abs=0, rel=0, nan_ok=True
            )
            if "test.client" in line:
                at = line["test.client"].index(name)
                assert found["test.score"][k] == line["test.score"][at]
            else:
                assert math.isnan(found["test.score"][k])
    with pytest.raises(RunError, match="no client of this run is called 'nobody'"):
        finished.history("nobody")


def test_run_json_has_the_facts_of_the_run(finished: Record) -> None:
    facts = json.loads((finished.folder / "run.json").read_text())
    assert facts.pop("digest")
    assert facts == json.loads(to_json(finished.facts.table()))
    assert facts["format"] == FORMAT == 2
    assert facts["commonweal"] == commonweal.__version__
    assert facts["torch"] == torch.__version__
    sizes = [facts[key] for key in ("clients", "train_rows", "test_rows", "parameters")]
    assert sizes == [15, 795, 195, 121]
    assert (facts["engine"], facts["vectorize"]) == ("simulator", "chunked")
    assert (facts["score"], facts["unscored"]) == ("accuracy", [])
    assert facts["vectorize_because"]


def test_experiment_toml_is_the_experiment(finished: Record) -> None:
    assert Experiment(**finished.experiment) == small()


def test_the_client_table_has_every_client(finished: Record) -> None:
    path = finished.folder / "clients.csv"
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["client", "rows", "score", "loss"]
    assert [row[0] for row in rows[1:]] == list(commonweal.dataset("vowel").names)
    assert [row[1] for row in rows[1:]] == ["13"] * 15
    last = as_documented(finished.folder)[-1]
    assert [float(row[2]) for row in rows[1:]] == last["test.score"]
    assert [float(row[3]) for row in rows[1:]] == last["test.loss"]


def test_the_table_agrees_with_the_metrics(finished: Record) -> None:
    scores = finished.clients(4).evaluation.score
    metrics = finished.rounds[3].metrics
    assert metrics["mean"] == pytest.approx(scores.mean().item(), rel=1e-14)
    assert metrics["worst"] == scores.min().item()


def test_the_last_table_is_that_of_the_last_evaluated_round(finished: Record) -> None:
    last = finished.clients()
    sixth = finished.clients(6)
    assert last.names == sixth.names
    assert torch.equal(last.evaluation.score, sixth.evaluation.score)
    assert torch.equal(last.evaluation.losses, sixth.evaluation.losses)


def test_a_table_reads_back_as_the_evaluation_that_was_written(finished: Record) -> None:
    for done in run(small()):
        if done.evaluation is None:
            continue
        table = finished.clients(done.number)
        assert table.names == done.job.population.names
        assert list(table.evaluation.scores) == ["accuracy"]
        assert torch.equal(table.evaluation.score, done.evaluation.score)
        assert torch.equal(table.evaluation.losses, done.evaluation.losses)
        assert torch.equal(table.evaluation.sizes, done.evaluation.sizes)
        assert torch.equal(table.evaluation.scored, done.evaluation.scored)
        assert table.evaluation.personal is None


def test_the_model_has_the_modules_names_and_can_be_loaded_into_it(finished: Record) -> None:
    model = commonweal.model("logistic", shape=(10,), outputs=11)
    model.load_state_dict(finished.state_dict())
    federation = commonweal.dataset("vowel")
    right = (model(federation.test.x).argmax(1) == federation.test.y).double().mean().item()
    assert right == pytest.approx(finished.rounds[-1].metrics["weighted_mean"], abs=1e-12)


def test_evaluated_and_finished(finished: Record) -> None:
    assert [each.number for each in finished.evaluated] == [2, 4, 6]
    assert finished.finished


def test_load_reads_a_folder(finished: Record) -> None:
    for path in (finished.folder, str(finished.folder)):
        record = commonweal.load_run(path)
        assert isinstance(record, Record)
        assert (record.experiment, record.facts) == (finished.experiment, finished.facts)
        assert lines(record) == lines(finished)


def test_load_reads_a_file_with_changes(finished: Record) -> None:
    assert commonweal.load_experiment(finished.folder / "experiment.toml", "rounds=3") == small(
        rounds=3
    )


def test_same_seed_gives_the_same_bytes(finished: Record, tmp_path: Path) -> None:
    again = finish(small(), tmp_path / "again")
    assert contents(again.folder) == contents(finished.folder)


def test_another_seed_gives_others(finished: Record, tmp_path: Path) -> None:
    other = contents(finish(small(seed=1), tmp_path / "other").folder)
    first = contents(finished.folder)
    assert other.keys() == first.keys()
    same = {name for name in first if first[name] == other[name]}
    assert same <= {"data.json"}  # the clients and their samples, however they are split


def test_writing_does_not_change_the_numbers(finished: Record) -> None:
    for done, read in zip(run(small()), finished.rounds, strict=True):
        assert all_of(done) == all_of(read)


def test_a_finished_run_yields_nothing_and_stays_as_it_was(finished: Record) -> None:
    before = contents(finished.folder)
    assert list(run(small(), out=finished.folder, resume=True)) == []
    assert contents(finished.folder) == before


def test_an_existing_run_is_refused_without_resume(finished: Record) -> None:
    before = contents(finished.folder)
    with pytest.raises(RunError, match=r"holds this run already: continue it with --resume"):
        list(run(small(), out=finished.folder))
    assert contents(finished.folder) == before


def test_a_folder_whose_run_failed_before_its_first_round_may_be_used_again(tmp_path: Path) -> None:
    model = {"name": "mlp", "hidden": (4,)}
    wrong = small(model=model, client={"name": "fedper", "head": ("nope",)})
    with pytest.raises(ConfigError, match="'nope' is not a layer"):
        list(run(wrong, out=tmp_path / "run"))
    right = small(model=model, client={"name": "fedper"})
    for folder in ("run", "other"):
        list(run(right, out=tmp_path / folder))
    assert contents(tmp_path / "run") == contents(tmp_path / "other")


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"rounds": 2}, "rounds = 2"),
        ({"seed": 3}, "seed = 3"),
        ({"rule": "fedavg"}, "fedavg"),
        ({"rule": {"name": "aaggff-s", "cdf": "gumbel"}}, "gumbel"),
        ({"client": {"name": "sgd", "lr": 0.3}}, "0.3"),
        # A line that is in another table of the old experiment already: the server's lr is 1.0.
        ({"client": {"name": "sgd", "lr": 1.0}}, "lr = 1.0"),
        ({"client": {"name": "sgd", "lr": 0.1, "momentum": 0.5}}, "momentum = 0.5"),
        ({"cohort": "all"}, "all"),
        ({"sampler": "poisson"}, "poisson"),
        ({"channels": ["clip"]}, "clip"),
        ({"score": "top-5"}, "top-5"),
    ],
)
def test_a_folder_of_another_experiment_is_refused_with_what_differs(
    finished: Record, changes: dict[str, Any], what: str, resume: bool
) -> None:
    before = contents(finished.folder)
    with pytest.raises(RunError) as caught:
        list(run(small(**changes), out=finished.folder, resume=resume))
    assert "holds another experiment" in str(caught.value)
    assert what in str(caught.value)
    assert contents(finished.folder) == before


def test_a_key_that_a_later_version_added_does_not_hinder_resuming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = Experiment.toml
    line = 'precision = "float32"\n'
    with monkeypatch.context() as patch:
        patch.setattr(Experiment, "toml", lambda self: text(self).replace(line, ""))
        stop_after(2, run(small(rounds=4), out=tmp_path / "run"))
    with pytest.raises(RunError, match="precision = 'bfloat16'"):
        list(run(small(rounds=4, precision="bfloat16"), out=tmp_path / "run", resume=True))
    list(run(small(rounds=4), out=tmp_path / "run", resume=True))
    list(run(small(rounds=4), out=tmp_path / "other"))
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("run", "other")]
    assert models[0] == models[1]
    assert line not in (tmp_path / "run" / "experiment.toml").read_text()
    assert problems(tmp_path / "run") == []
    assert Cell("a comparison's", small(rounds=4), tmp_path / "run").finished
    assert not Cell("another seed", small(rounds=4, seed=9), tmp_path / "run").finished


def test_a_folder_with_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    for resume in (False, True):
        with pytest.raises(RunError, match="is not empty and holds no run: choose another folder"):
            list(run(small(), out=tmp_path, resume=resume))
    assert [f.name for f in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_file_in_the_folders_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError, match="choose another folder"):
        list(run(small(), out=tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "x"


def test_a_folder_below_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError, match=r"cannot write '.*file/run/lock': "):
        list(run(small(), out=tmp_path / "file" / "run"))


def test_an_empty_folder_and_a_deep_one_do(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert finish(small(rounds=1), tmp_path / "empty").finished
    assert finish(small(rounds=1), tmp_path / "a" / "b" / "c").finished


def test_resume_without_a_run_begins_one(finished: Record, tmp_path: Path) -> None:
    record = finish(small(), tmp_path / "new", resume=True)
    assert contents(record.folder) == contents(finished.folder)


def test_asking_for_a_run_touches_nothing_until_it_is_iterated(tmp_path: Path) -> None:
    waiting = run(small(), out=tmp_path / "later")
    assert not (tmp_path / "later").exists()
    waiting.close()
    assert not (tmp_path / "later").exists()


def test_a_caller_who_stops_leaves_every_whole_round(finished: Record, tmp_path: Path) -> None:
    folder = tmp_path / "stopped"
    stop_after(3, run(small(), out=folder))
    record = Record.read(folder)
    assert [each.number for each in record.rounds] == [1, 2, 3]
    assert not record.finished
    assert [done.number for done in run(small(), out=folder, resume=True)] == [4, 5, 6]
    assert contents(folder) == contents(finished.folder)


def test_an_unfinished_run_has_no_model(tmp_path: Path) -> None:
    stop_after(1, run(small(), out=tmp_path / "stopped"))
    record = Record.read(tmp_path / "stopped")
    with pytest.raises(
        RunError, match="is not finished: its model is written after the last round"
    ):
        record.state_dict()
    with pytest.raises(RunError, match="has no evaluated round yet"):
        record.clients()


def test_a_round_that_was_not_evaluated_has_no_table(finished: Record) -> None:
    with pytest.raises(RunError, match="3"):
        finished.clients(3)


@pytest.mark.parametrize("bad", ["nothing", "empty", "no json", "no toml", "bytes"])
def test_a_folder_that_is_no_run_is_an_error(tmp_path: Path, bad: str) -> None:
    folder = tmp_path / "bad"
    if bad != "nothing":
        folder.mkdir()
    if bad in ("no json", "no toml", "bytes"):
        texts = {"no toml": b"[", "bytes": b"\xff"}
        (folder / "experiment.toml").write_bytes(texts.get(bad, b"rounds = 1\n"))
        (folder / "run.json").write_text("{" if bad == "no json" else "{}")
    with pytest.raises(RunError, match=r"^'.*bad' is not the folder of a run: "):
        Record.read(folder)


def test_a_torn_last_line_is_left_out_when_read(finished: Record, tmp_path: Path) -> None:
    folder = copy(finished, tmp_path)
    with open(folder / "rounds.jsonl", "ab") as file:
        file.write(b'{"round": 7, "cli')
    assert lines(Record.read(folder)) == lines(finished)


@pytest.mark.parametrize("bad", [b"{oops\n", b"[]\n", b"{}\n", b'{"round": 2}\n', b"\xff\n", b"\n"])
def test_a_damaged_line_in_the_middle_is_an_error(
    finished: Record, tmp_path: Path, bad: bytes
) -> None:
    folder = copy(finished, tmp_path)
    first, _, *rest = (folder / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "rounds.jsonl").write_bytes(b"".join([first, bad, *rest]))
    with pytest.raises(RunError, match=r"rounds\.jsonl' is damaged"):
        Record.read(folder)


def copy(record: Record, to: Path) -> Path:
    for name, data in contents(record.folder).items():
        (to / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
        (to / "copy" / name).write_bytes(data)
    (to / "copy" / "timings.jsonl").write_bytes((record.folder / "timings.jsonl").read_bytes())
    return to / "copy"


class Bomb:
    """What a pickle can do to whoever opens it."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


def test_the_bomb_works(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Bomb(tmp_path / "marker")))
    assert (tmp_path / "marker").exists()


def bad_checkpoints(marker: Path) -> dict[str, bytes]:
    return {
        "garbage": b"\x00\x01garbage" * 20,
        "empty": b"",
        "pickle": pickle.dumps(Bomb(marker)),
        "cut": safetensors.torch.save({"last": torch.tensor(3)})[:-4],
        "another file": safetensors.torch.save({"weight": torch.zeros(3)}),
        "no tensors": safetensors.torch.save({}),
        "no server": safetensors.torch.save({"last": torch.tensor(3)}),
        "another model": safetensors.torch.save(
            {"last": torch.tensor(3), "server/round": torch.tensor(4), "server/w": torch.zeros(2)}
        ),
    }


@pytest.mark.parametrize("kind", bad_checkpoints(Path()))
def test_a_bad_checkpoint_is_an_error_and_never_unpickled(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "run"
    marker = tmp_path / "marker"
    stop_after(3, run(small(), out=folder))
    (folder / "checkpoint.safetensors").write_bytes(bad_checkpoints(marker)[kind])
    with pytest.raises(RunError, match=r"checkpoint\.safetensors"):
        list(run(small(), out=folder, resume=True))
    assert not marker.exists()


@pytest.mark.parametrize("kind", ["garbage", "empty", "pickle", "cut"])
def test_a_bad_model_is_an_error_and_never_unpickled(
    finished: Record, tmp_path: Path, kind: str
) -> None:
    folder = copy(finished, tmp_path)
    marker = tmp_path / "marker"
    (folder / "model.safetensors").write_bytes(bad_checkpoints(marker)[kind])
    with pytest.raises(RunError, match=r"model\.safetensors"):
        Record.read(folder).state_dict()
    assert not marker.exists()


def test_after_deleting_a_bad_checkpoint_the_run_starts_again(
    finished: Record, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    stop_after(3, run(small(), out=folder))
    (folder / "checkpoint.safetensors").unlink()
    assert [done.number for done in run(small(), out=folder, resume=True)] == [1, 2, 3, 4, 5, 6]
    assert contents(folder) == contents(finished.folder)


@pytest.mark.parametrize(
    "left", [["run.json.part"], ["run.json"], ["run.json", "experiment.toml.part"]]
)
def test_a_kill_before_the_experiment_is_written_can_be_resumed(
    finished: Record, tmp_path: Path, left: list[str]
) -> None:
    """A kill at any instant leaves the folder whole: also before experiment.toml is there."""
    folder = tmp_path / "run"
    folder.mkdir()
    for name in left:
        whole = (finished.folder / name.removesuffix(".part")).read_bytes()
        (folder / name).write_bytes(whole[: len(whole) // 2] if name.endswith(".part") else whole)
    finish(small(), folder, resume=True)
    assert contents(folder) == contents(finished.folder)


def test_a_record_shorter_than_its_checkpoint_is_not_continued_with_a_hole(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    stop_after(3, run(small(), out=folder))
    path = folder / "rounds.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:1]))
    try:
        finish(small(), folder, resume=True)
    except RunError:
        return
    assert [each.number for each in Record.read(folder).rounds] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("name", [".DS_Store", "notes.csv", "clients copy.csv"])
def test_a_foreign_file_is_left_alone(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "run"
    stop_after(3, run(small(), out=folder))
    (folder / name).write_text("mine")
    finish(small(), folder, resume=True)
    assert (folder / name).read_text() == "mine"


def test_a_damaged_experiment_file_is_an_error(tmp_path: Path) -> None:
    stop_after(1, run(small(), out=tmp_path / "run"))
    (tmp_path / "run" / "experiment.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(RunError):
        list(run(small(), out=tmp_path / "run", resume=True))


# Rounds and tables, written and read


def written(folder: Path) -> RoundRecord:
    """The only round of a folder, read back."""
    path = folder / "experiment.toml"
    path.write_text("rounds = 1\n")
    (folder / "run.json").write_bytes(to_json(FACTS.table()))
    (record,) = Record.read(folder).rounds
    return record


def test_a_round_reads_back_as_it_was_written(tmp_path: Path) -> None:
    full = a_round(
        7,
        losses=(1 / 3, 1e-300),
        dropped={"b": "no reply within 5 s"},
        capped={"a": "its norm is 12 times the median"},
        warnings=("a warning",),
        bytes={"down": 5, "up": 6, "weights": 7},
        personal={"mean": 0.25},
        more={"top-5": {"mean": 0.75, "worst": 0.5}},
    )
    Store(tmp_path).append(full, {"train": 0.5})
    read = written(tmp_path)
    assert [getattr(read, each) for each in vars(full)] == list(vars(full).values())
    assert json.loads((tmp_path / "timings.jsonl").read_text()) == {"round": 7, "train": 0.5}
    assert Record.read(tmp_path).timings() == [{"round": 7, "train": 0.5}]


def test_numbers_that_json_does_not_know_become_null_and_read_back_as_nan(tmp_path: Path) -> None:
    nan, inf = math.nan, math.inf
    wild = a_round(1, losses=(nan, 2.0), scores=(0.5, -inf), metrics={"gini": nan, "mean": inf})
    Store(tmp_path).append(wild, {})
    line = json.loads((tmp_path / "rounds.jsonl").read_text())
    assert line["metrics"] == {"gini": None, "mean": None}
    read = written(tmp_path)
    assert math.isnan(read.losses[0]) and read.losses[1] == 2.0
    assert read.scores == (0.5, -inf)
    assert all(math.isnan(value) for value in read.metrics.values())


def test_what_later_versions_may_write_is_not_an_obstacle(tmp_path: Path) -> None:
    Store(tmp_path).append(a_round(1), {})
    line = json.loads((tmp_path / "rounds.jsonl").read_text()) | {"epsilon": 3.0}
    (tmp_path / "rounds.jsonl").write_bytes(to_json(line, indent=None))
    assert all_of(written(tmp_path)) == all_of(a_round(1))


def test_names_in_any_script_stay_readable(tmp_path: Path) -> None:
    names = ("Zürich", "東京", 'a "b", c\nd')
    three = (1.0, 1.0, 1.0)
    Store(tmp_path).append(a_round(1, clients=names, losses=three, scores=three), {})
    text = (tmp_path / "rounds.jsonl").read_text(encoding="utf-8")
    assert "Zürich" in text and "東京" in text
    assert text.count("\n") == 1
    assert written(tmp_path).clients == names


def write_table(folder: Path, names: tuple[str, ...], values: Evaluation) -> None:
    Store(folder).append(a_round(1), {}, test=ClientTable(names, values))


def table_of(folder: Path) -> ClientTable:
    written(folder)
    return Record.read(folder).clients(1)


def test_names_with_commas_and_lines_survive_the_table(tmp_path: Path) -> None:
    names = ("a,b", 'say "x"', "line\nbreak", "東京", "")
    losses = [0.1, math.nan, 3.0, math.inf, 5.0]
    values = evaluation([0.0, 1.0, 2.0, 3.0, 4.0], losses)
    write_table(tmp_path, names, values)
    table = table_of(tmp_path)
    assert table.names == names
    assert table.evaluation.score.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert table.evaluation.losses.tolist() == pytest.approx(losses, abs=0, rel=0, nan_ok=True)


def test_tables_keep_every_digit(tmp_path: Path) -> None:
    write_table(tmp_path, ("a",), evaluation([1 / 3], [1e-17 / 3]))
    table = table_of(tmp_path)
    assert table.names == ("a",)
    assert (table.evaluation.score.item(), table.evaluation.losses.item()) == (1 / 3, 1e-17 / 3)


def test_a_table_holds_further_scores_and_those_of_own_models(tmp_path: Path) -> None:
    shared = evaluation([0.5, 0.75], [1.0, 2.0])
    scores = shared.scores | {"sensitivity@0.8": torch.tensor([1.0, 0.875]).double()}
    own = evaluation([0.625, 1.0], [0.5, 0.25])
    write_table(tmp_path, ("a", "b"), replace(shared, scores=scores, personal=own))
    header = table_of(tmp_path).csv().decode().splitlines()[0]
    assert header == "client,rows,score,loss,sensitivity@0.8,personal_score,personal_loss"
    read = table_of(tmp_path).evaluation
    assert {name: value.tolist() for name, value in read.scores.items()} == {
        "accuracy": [0.5, 0.75],
        "sensitivity@0.8": [1.0, 0.875],
    }
    assert read.losses.tolist() == [1.0, 2.0] and read.sizes.tolist() == [10, 10]
    assert read.personal is not None
    assert read.personal.score.tolist() == [0.625, 1.0]
    assert read.personal.losses.tolist() == [0.5, 0.25]


def test_a_client_without_rows_and_one_without_a_score_differ(tmp_path: Path) -> None:
    values = evaluation([0.5, math.nan, math.nan])
    values = replace(values, sizes=torch.tensor([10, 0, 4]))
    write_table(tmp_path, ("a", "b", "c"), values)
    read = table_of(tmp_path).evaluation
    assert read.sizes.tolist() == [10, 0, 4]
    assert read.undefined is not None and read.undefined.tolist() == [False, False, True]
    assert read.scored.tolist() == [0]


def test_numbers_that_no_run_writes_are_refused(finished: Record, tmp_path: Path) -> None:
    """Though their digests are right: somebody may craft a folder."""
    write_table(tmp_path, ("a", "b"), replace(evaluation([0.5, 0.75]), sizes=torch.tensor([1, -1])))
    with pytest.raises(RunError, match=r"damaged evaluation \(numbers of rows"):
        table_of(tmp_path)
    wrong = {"loss": np.zeros(1), "score": np.zeros((2, 2)), "client": np.array([0, 9])}
    for name, values in wrong.items():
        s = Store(tmp_path / name)
        s.folder.mkdir()
        s.append(a_round(1), {})
        place = s.values.append(round_columns(a_round(1), {}, {"a": 0, "b": 1}) | {name: values})
        (line,) = as_documented(s.folder)
        crafted = {"round": 1, "chunk": place, "new": line["new"], "metrics": {}}
        (s.folder / "rounds.jsonl").write_bytes(to_json(crafted, indent=None))
        with pytest.raises(RunError, match=r"clients\.chunks' is damaged"):
            _ = written(s.folder).losses
    folder = copy(finished, tmp_path)
    for name, old, new in (
        ("rounds.jsonl", '"round": 3', f'"round": {10**40}'),
        ("rounds.jsonl", '"warnings": []', '"warnings": "text"'),
        ("run.json", '"clients": 15', '"clients": -15'),
    ):
        text = (folder / name).read_text(encoding="utf-8")
        (folder / name).write_text(text.replace(old, new), encoding="utf-8")
        with pytest.raises(RunError, match=r"damaged|is not the folder of a run"):
            Record.read(folder)
        (folder / name).write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda data: data[:-1], "it is shorter than it was written"),
        (lambda data: data[:-1] + b"x", "was changed after it was written: run again"),
        (lambda data: b"", "it is shorter than it was written"),
    ],
)
def test_damaged_values_of_clients_are_errors(
    tmp_path: Path, change: Callable[[bytes], bytes], sentence: str
) -> None:
    write_table(tmp_path, ("a", "b"), evaluation([0.5, 0.75]))
    path = tmp_path / "clients.chunks"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(RunError, match=rf"clients\.chunks' .*{sentence}"):
        table_of(tmp_path)


ODD = [0.0, -0.0, math.nan, math.inf, -math.inf, 1 / 3, 5e-324, 1e300, 0.5, float(np.float32(0.1))]


@pytest.mark.parametrize("values", [ODD, ODD * 20, [0.5] * 9, [0.1] * 9, [], [1 / 3]], ids=len)
def test_no_number_of_a_client_is_rounded(tmp_path: Path, values: list[float]) -> None:
    names = tuple(f"c{k}" for k in range(len(values)))
    given = a_round(
        1,
        clients=names,
        losses=tuple(values),
        scores=tuple(values[::-1]),
        weights=dict(zip(names, values, strict=True)),
    )
    Store(tmp_path).append(given, {})
    read = written(tmp_path)
    assert list(map(repr, read.losses)) == list(map(repr, values))
    assert list(map(repr, read.scores)) == list(map(repr, values[::-1]))
    assert repr(read.weights) == repr(given.weights)


def test_clients_get_numbers_when_they_are_first_named(tmp_path: Path) -> None:
    """Also those that join late, and are used without having been asked first."""
    s = Store(tmp_path)
    one = {"losses": (1.0,), "scores": (1.0,)}
    s.append(a_round(1, clients=("b",), weights={"b": 1.0}, **one), {})
    s.append(a_round(2), {}, test=ClientTable(("z", "a", "b"), evaluation([1.0, 2.0, 3.0])))
    s.append(a_round(3, clients=("a",), weights={"z": 0.5, "b": 0.5}, **one), {})
    assert [line["new"] for line in as_documented(tmp_path)] == [["b"], ["a", "z"], []]
    (tmp_path / "experiment.toml").write_text("rounds = 3\n")
    (tmp_path / "run.json").write_bytes(to_json(FACTS.table()))
    record = Record.read(tmp_path)
    assert [each.clients for each in record.rounds] == [("b",), ("a", "b"), ("a",)]
    assert record.rounds[2].weights == {"z": 0.5, "b": 0.5}
    assert record.clients(2).names == ("z", "a", "b")
    assert record.history("b")["test.score"][1] == 3.0
    assert record.history("z")["weight"][2] == 0.5 and math.isnan(record.history("a")["weight"][2])


def test_many_clients_take_few_bytes_and_a_record_is_read_lazily(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    names = tuple(f"client-{k}" for k in range(10_000))
    sizes = rng.integers(5, 60, len(names))
    s = Store(tmp_path)
    for number in (1, 2, 3):
        scores = rng.integers(0, 30, len(names)) / sizes
        given = a_round(
            number,
            clients=names,
            losses=tuple(rng.exponential(size=len(names))),
            scores=tuple(scores),
            weights=dict(zip(names, sizes / sizes.sum(), strict=True)),
        )
        s.append(given, {})
    assert (tmp_path / "clients.chunks").stat().st_size < 3 * 200_000
    *_, last = (tmp_path / "rounds.jsonl").read_bytes().splitlines()
    assert len(last) < 300
    chunks = tmp_path / "clients.chunks"
    chunks.rename(tmp_path / "away")
    (tmp_path / "experiment.toml").write_text("rounds = 3\n")
    (tmp_path / "run.json").write_bytes(to_json(FACTS.table()))
    record = Record.read(tmp_path)  # needs no value of a client
    assert [each.number for each in record.evaluated] == [1, 2, 3]
    (tmp_path / "away").rename(chunks)
    assert record.rounds[2].losses == given.losses


def test_synthetic_rows_read_back_and_equal_rows_are_equal_bytes(tmp_path: Path) -> None:
    x = torch.rand(6, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    y = torch.arange(6)
    (tmp_path / "other").mkdir()
    for folder in (tmp_path, tmp_path / "other"):
        write_samples(folder, x, y)
    name = "synthetic.npz"
    assert (tmp_path / name).read_bytes() == (tmp_path / "other" / name).read_bytes()
    samples = read_samples(tmp_path)
    assert samples is not None
    assert torch.equal(samples[0], x) and torch.equal(samples[1], y)


def test_a_run_without_synthetic_rows_has_none(finished: Record) -> None:
    assert finished.samples() is None


def test_timings_are_of_every_round(finished: Record) -> None:
    timings = finished.timings()
    assert [each["round"] for each in timings] == [1, 2, 3, 4, 5, 6]
    assert all(each["train"] > 0 and each["evaluate"] >= 0 for each in timings)


# Finding runs, and following one that is being written


def test_find_gives_all_runs_below_a_folder(finished: Record, tmp_path: Path) -> None:
    for place in ("b", "a/deep/er"):
        (tmp_path / place).mkdir(parents=True)
        copy(finished, tmp_path / place)
    (tmp_path / "not a run").mkdir()
    (tmp_path / "not a run" / "experiment.toml").write_text("[")
    (tmp_path / "empty").mkdir()
    found = Record.find(tmp_path)
    assert [record.folder for record in found] == [tmp_path / "a/deep/er/copy", tmp_path / "b/copy"]
    assert all(lines(record) == lines(finished) for record in found)


def test_find_gives_the_folder_itself(finished: Record) -> None:
    assert [record.folder for record in Record.find(finished.folder)] == [finished.folder]
    assert Record.find(finished.folder / "nothing") == []


def test_following_a_finished_run_gives_its_rounds(finished: Record) -> None:
    followed = [all_of(each) for each in finished.follow()]
    assert followed == lines(finished)


def test_following_gives_rounds_as_they_are_written(finished: Record, tmp_path: Path) -> None:
    rounds = run(small(), out=tmp_path / "run")
    next(rounds)
    record = Record.read(tmp_path / "run")
    looks: list[int] = []

    def another() -> bool:
        """The run goes on between two looks, by a round at a time."""
        looks.append(len(Record.read(record.folder).rounds))
        next(rounds, None)
        return False

    followed = list(record.follow(interval=0, stopped=another))
    assert [all_of(each) for each in followed] == lines(finished)
    assert looks == [1, 2, 3, 4, 5]  # with the sixth round comes the model


def test_following_can_be_stopped(tmp_path: Path) -> None:
    stop_after(2, run(small(), out=tmp_path / "run"))
    record = Record.read(tmp_path / "run")
    followed = list(record.follow(interval=0, stopped=lambda: True))
    assert [each.number for each in followed] == [1, 2]


def test_a_folder_of_a_newer_version_is_an_error(finished: Record, tmp_path: Path) -> None:
    folder = copy(finished, tmp_path)
    facts = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(facts | {"format": FORMAT + 1}))
    with pytest.raises(RunError, match=r"newer version \(format 3, .*: update commonweal"):
        Record.read(folder)


def test_a_folder_of_an_older_version_is_an_error(finished: Record, tmp_path: Path) -> None:
    folder = copy(finished, tmp_path)
    facts = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(facts | {"format": FORMAT - 1}))
    with pytest.raises(RunError, match=r"older version \(format 1, .*: run again"):
        Record.read(folder)
    with pytest.raises(RunError, match=r"older version \(format 1, .*: run again"):
        list(run(small(), out=folder, resume=True))


def test_a_record_describes_itself(finished: Record) -> None:
    assert finished.title == "aaggff-s"
    assert repr(finished) == f"<Record {str(finished.folder)!r}: aaggff-s, 6 of 6 rounds>"


@pytest.mark.parametrize(
    ("parts", "title"),
    [
        ({}, "fedavg"),
        ({"rule": {"name": "term"}}, "term"),
        ({"algorithm": {"name": "drfa"}}, "drfa"),
        ({"algorithm": {"name": "two-phase"}, "rule": {"name": "afl"}}, "two-phase-afl"),
    ],
)
def test_the_title_of_a_record(parts: dict[str, Any], title: str) -> None:
    assert title_of(parts) == title


# Writing


def test_appending_makes_one_write_per_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill can then leave at most one torn line."""
    writes: list[bytes] = []

    class File:
        def __enter__(self) -> "File":
            return self

        def __exit__(self, *_: object) -> None: ...

        def tell(self) -> int:
            return 0

        def write(self, data: bytes) -> int:
            writes.append(data)
            return len(data)

    monkeypatch.setattr("builtins.open", lambda *_, **__: File())
    Store(tmp_path).append(a_round(1), {"train": 1.0})
    monkeypatch.undo()
    values, *writes = writes
    assert json.loads(writes[0])["chunk"][:2] == [0, len(values)]
    assert [json.loads(data)["round"] for data in writes] == [1, 1]
    assert [data.count(b"\n") for data in writes] == [1, 1]
    assert all(data.endswith(b"}\n") for data in writes)


def test_write_file_leaves_the_old_file_when_a_write_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    files.write_file(path, b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    sentence = r"cannot write '.*file': No space left on device; .*--resume"
    with pytest.raises(RunError, match=sentence):
        files.write_file(path, b"new")
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_write_file_leaves_no_temporary_file(tmp_path: Path) -> None:
    files.write_file(tmp_path / "a" / "file", b"x")
    assert [f.name for f in (tmp_path / "a").iterdir()] == ["file"]


names = st.text(st.characters(exclude_characters="/", codec="utf-8"), min_size=1, max_size=5)
leaves = st.builds(
    lambda seed, shape: torch.rand(shape, generator=torch.Generator().manual_seed(seed)),
    st.integers(0, 99),
    st.lists(st.integers(0, 3), max_size=2),
)
nests = st.recursive(
    leaves, lambda inner: st.dictionaries(names, inner, min_size=1, max_size=3), max_leaves=4
)


def each(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield path, value
    else:
        for name, inner in value.items():
            yield from each(inner, (*path, name))


@settings(derandomize=True, deadline=None, max_examples=20)
@given(st.dictionaries(names, nests, max_size=3))
def test_flatten_and_unflatten_are_inverse_through_a_file(nested: dict[str, Any]) -> None:
    flat = flatten(nested)
    back = unflatten(safetensors.torch.load(safetensors.torch.save(flat)))
    found = {path: value.tolist() for path, value in each(back)}
    assert found == {path: value.tolist() for path, value in each(nested)}


def test_flatten_forgets_empty_dicts() -> None:
    assert flatten({"a": {}, "b": {"c": {}}}) == {}


def test_unflatten_gives_tensors_of_their_own() -> None:
    flat = {"a/b": torch.zeros(2)}
    unflatten(flat)["a"]["b"][0] = 1
    assert flat["a/b"].tolist() == [0, 0]


def test_a_store_knows_where_a_run_continues(tmp_path: Path) -> None:
    s = Store(tmp_path / "run")
    assert s.open(TEXT, FACTS, resume=False) == (0, {})
    s.append(a_round(1), {})
    first = (s.folder / "rounds.jsonl").read_bytes()
    s.append(a_round(2), {})
    s.checkpoint(1, {"server": {"w": torch.ones(2)}})
    last, saved = s.open(TEXT, FACTS, resume=True)
    assert last == 1
    assert saved["server"]["w"].tolist() == [1, 1]
    assert (s.folder / "rounds.jsonl").read_bytes() == first


def test_what_was_written_after_the_checkpoint_is_cut(tmp_path: Path) -> None:
    s = Store(tmp_path / "run")
    s.open(TEXT, FACTS, resume=False)
    for number in (1, 2, 3):
        s.append(a_round(number), {}, test=ClientTable(("a",), evaluation([1.0])))
        if number == 2:
            s.checkpoint(2, {"server": {"w": torch.ones(1)}})
    with open(s.folder / "rounds.jsonl", "ab") as file:
        file.write(b'{"round": 4, "torn')
    with open(s.folder / "clients.chunks", "ab") as file:
        file.write(b"torn")
    assert s.open(TEXT, FACTS, resume=True)[0] == 2
    for name in ("rounds.jsonl", "timings.jsonl"):
        left = (s.folder / name).read_text().splitlines()
        assert [json.loads(line)["round"] for line in left] == [1, 2]
        assert [json.loads(line)["new"] for line in left if "new" in line] in ([], [["a", "b"], []])
    at, size, _ = as_documented(s.folder)[-1]["chunk"]
    assert (s.folder / "clients.chunks").stat().st_size == at + size


def test_checkpoints_hold_scalars_views_and_shared_memory(tmp_path: Path) -> None:
    whole = torch.arange(6.0)
    state = {"server": {"a": whole[::2], "b": whole, "c": whole[:3], "t": torch.tensor(5)}}
    s = Store(tmp_path / "run")
    s.open(TEXT, FACTS, resume=False)
    for number in (1, 2, 3):
        s.append(a_round(number), {})
    s.checkpoint(3, state)
    last, saved = s.open(TEXT, FACTS, resume=True)
    assert last == 3
    assert {n: v.tolist() for n, v in saved["server"].items()} == {
        "a": [0, 2, 4],
        "b": [0, 1, 2, 3, 4, 5],
        "c": [0, 1, 2],
        "t": 5,
    }


UNIX = ("pread", "pwrite", "sysconf", "sched_getaffinity", "fork", "killpg", "getuid", "mkfifo")


def test_a_run_needs_no_function_that_only_unix_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def written(folder: Path) -> Record:
        run(task(), federation(), rounds=2, out=folder).result()
        return run(task(), federation(), rounds=3, out=folder, resume=True).result()

    whole = written(tmp_path / "unix")
    for name in UNIX:
        monkeypatch.delattr(os, name)
    record = written(tmp_path / "windows")
    assert record.finished and record.clients().names == whole.clients().names
    assert problems(record.folder) == []
    assert contents(tmp_path / "windows") == contents(tmp_path / "unix")
