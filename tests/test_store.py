"""A run is a folder of plain files: what is in them, how they read back, and what is refused."""

import csv
import json
import math
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import commonweal
from commonweal import store
from commonweal.errors import ConfigError, RunError
from commonweal.experiment import Experiment
from commonweal.run import run
from commonweal.store import Record, Store, flatten, unflatten

SMALL: dict[str, Any] = {
    "dataset": "vowel",
    "rule": "aaggff-s",
    "server": {"name": "sgd", "momentum": 0.5},
    "client": {"name": "sgd", "lr": 0.1},
    "rounds": 6,
    "cohort": 9,
    "evaluate_every": 2,
}
FILES = {"experiment.toml", "run.json", "rounds.jsonl", "timings.jsonl", "model.safetensors", "checkpoint.safetensors"}
TEXT, FACTS = "rounds = 2\n", {"clients": 2}


def small(**changes: Any) -> Experiment:
    return Experiment(**(SMALL | changes))


def finish(experiment: Experiment, folder: Path, **how: Any) -> Record:
    for _ in run(experiment, out=folder, **how):
        pass
    return Record.read(folder)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file but the one that may differ between two equal runs."""
    files = (f for f in sorted(folder.rglob("*")) if f.is_file() and f.name != "timings.jsonl")
    return {f.relative_to(folder).as_posix(): f.read_bytes() for f in files}


def stop_after(rounds: int, experiment: Experiment, folder: Path) -> None:
    """As a caller does who breaks out of the loop."""
    generator = run(experiment, out=folder)
    for done in generator:
        if done.number == rounds:
            break
    generator.close()  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return finish(small(), tmp_path_factory.mktemp("finished") / "run")


def test_files_are_those_that_the_module_lists(finished: Record) -> None:
    assert {f.name for f in finished.folder.iterdir()} == FILES | {"clients"}
    assert {f.name for f in (finished.folder / "clients").iterdir()} == {"000002.csv", "000004.csv", "000006.csv"}
    assert all(name in (store.__doc__ or "") for name in FILES)


@pytest.mark.parametrize("name", ["rounds.jsonl", "timings.jsonl"])
def test_every_line_is_json(finished: Record, name: str) -> None:
    data = (finished.folder / name).read_bytes()
    assert data.endswith(b"\n")
    assert [json.loads(line)["round"] for line in data.splitlines()] == [1, 2, 3, 4, 5, 6]


def test_a_rounds_line(finished: Record) -> None:
    for number, line in enumerate(finished.rounds, 1):
        assert set(line) >= {"round", "clients", "losses", "scores", "weights", "dropped", "metrics"}
        assert line["round"] == number
        assert len(line["clients"]) == len(line["losses"]) == len(line["scores"]) == 9
        assert list(line["weights"]) == line["clients"]
        assert sum(line["weights"].values()) == pytest.approx(1, abs=1e-9)
        assert line["dropped"] == {}
        assert bool(line["metrics"]) == (number % 2 == 0)


def test_run_json_says_what_it_ran_on(finished: Record) -> None:
    facts = json.loads((finished.folder / "run.json").read_text())
    assert facts == finished.facts
    assert facts["commonweal"] == commonweal.__version__
    assert facts["torch"] == torch.__version__
    assert (facts["clients"], facts["train_rows"], facts["test_rows"], facts["parameters"]) == (15, 795, 195, 121)
    assert (facts["engine"], facts["score"], facts["unscored"]) == ("chunked", "accuracy", [])
    assert facts["engine_because"]


def test_experiment_toml_is_the_experiment(finished: Record) -> None:
    assert Experiment(**finished.experiment) == small()


@pytest.mark.parametrize("round", [2, 4, 6])
def test_the_client_table_has_every_client(finished: Record, round: int) -> None:
    with open(finished.folder / "clients" / f"{round:06d}.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["client", "score", "loss"]
    assert [row[0] for row in rows[1:]] == list(commonweal.dataset("vowel").names)
    assert all(math.isfinite(float(v)) for row in rows[1:] for v in row[1:])


def test_the_table_agrees_with_the_metrics(finished: Record) -> None:
    scores = [score for _, score, _ in finished.clients(4)]
    assert finished.rounds[3]["metrics"]["mean"] == pytest.approx(sum(scores) / 15, rel=1e-14)
    assert finished.rounds[3]["metrics"]["worst"] == min(scores)
    assert finished.clients() == finished.clients(6)


def test_the_model_has_the_modules_names_and_can_be_loaded_into_it(finished: Record) -> None:
    model = commonweal.model("logistic", shape=(10,), outputs=11)
    model.load_state_dict(finished.model())
    federation = commonweal.dataset("vowel")
    right = (model(federation.test.x).argmax(1) == federation.test.y).double().mean().item()
    assert right == pytest.approx(finished.rounds[-1]["metrics"]["weighted_mean"], abs=1e-12)


def test_evaluated_and_finished(finished: Record) -> None:
    assert [line["round"] for line in finished.evaluated] == [2, 4, 6]
    assert finished.finished


def test_load_reads_a_folder(finished: Record) -> None:
    assert commonweal.load(finished.folder) == finished
    assert commonweal.load(str(finished.folder)) == finished


def test_load_reads_a_file_with_overrides(finished: Record) -> None:
    assert commonweal.load(finished.folder / "experiment.toml", "rounds=3") == small(rounds=3)


def test_same_seed_gives_the_same_bytes(finished: Record, tmp_path: Path) -> None:
    again = finish(small(), tmp_path / "again")
    assert contents(again.folder) == contents(finished.folder)


def test_another_seed_gives_others(finished: Record, tmp_path: Path) -> None:
    other, first = contents(finish(small(seed=1), tmp_path / "other").folder), contents(finished.folder)
    assert other.keys() == first.keys()
    same = {name for name in first if first[name] == other[name]}
    assert same == {"run.json"}


def test_writing_does_not_change_the_numbers(finished: Record) -> None:
    for done, line in zip(run(small()), finished.rounds, strict=True):
        assert json.loads(json.dumps(done.weights)) == line["weights"]
        assert done.losses.tolist() == line["losses"]


def test_a_finished_run_yields_nothing_and_stays_as_it_was(finished: Record) -> None:
    before = contents(finished.folder)
    assert list(run(small(), out=finished.folder, resume=True)) == []
    assert contents(finished.folder) == before


def test_an_existing_run_is_refused_without_resume(finished: Record) -> None:
    before = contents(finished.folder)
    with pytest.raises(RunError, match=r"holds this run already: go on with --resume, or choose another$"):
        list(run(small(), out=finished.folder))
    assert contents(finished.folder) == before


def test_a_folder_whose_run_failed_before_its_first_round_may_be_used_again(tmp_path: Path) -> None:
    wrong = small(model={"name": "mlp", "hidden": (4,)}, client={"name": "fedper", "head": ("nope",)})
    with pytest.raises(ConfigError, match="'nope' is no layer"):
        list(run(wrong, out=tmp_path / "run"))
    right = small(model={"name": "mlp", "hidden": (4,)}, client={"name": "fedper"})
    for folder in ("run", "other"):
        list(run(right, out=tmp_path / folder))
    assert contents(tmp_path / "run") == contents(tmp_path / "other")


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"rounds": 8}, "rounds = 8"),
        ({"seed": 3}, "seed = 3"),
        ({"rule": "fedavg"}, "fedavg"),
        ({"rule": {"name": "aaggff-s", "cdf": "gumbel"}}, "gumbel"),
        ({"client": {"name": "sgd", "lr": 0.3}}, "0.3"),
        # A line that stands in another table of the old experiment already: the server's lr is 1.0.
        ({"client": {"name": "sgd", "lr": 1.0}}, "lr = 1.0"),
        ({"client": {"name": "sgd", "lr": 0.1, "momentum": 0.5}}, "momentum = 0.5"),
        ({"cohort": "all"}, "all"),
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


def test_a_folder_below_a_file_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError, match=r"cannot write '.*file/run/run\.json': "):
        list(run(small(), out=tmp_path / "file" / "run"))


def test_an_empty_folder_and_a_deep_one_do(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert finish(small(rounds=1), tmp_path / "empty").finished
    assert finish(small(rounds=1), tmp_path / "a" / "b" / "c").finished


def test_resume_without_a_run_begins_one(finished: Record, tmp_path: Path) -> None:
    record = finish(small(), tmp_path / "new", resume=True)
    assert contents(record.folder) == contents(finished.folder)


def test_asking_for_a_run_touches_nothing_until_it_is_iterated(tmp_path: Path) -> None:
    run(small(), out=tmp_path / "later")
    assert not (tmp_path / "later").exists()


def test_a_caller_who_stops_leaves_every_whole_round(finished: Record, tmp_path: Path) -> None:
    folder = tmp_path / "stopped"
    stop_after(3, small(), folder)
    record = Record.read(folder)
    assert [line["round"] for line in record.rounds] == [1, 2, 3]
    assert not record.finished
    assert [done.number for done in run(small(), out=folder, resume=True)] == [4, 5, 6]
    assert contents(folder) == contents(finished.folder)


def test_an_unfinished_run_has_no_model(tmp_path: Path) -> None:
    stop_after(1, small(), tmp_path / "stopped")
    record = Record.read(tmp_path / "stopped")
    with pytest.raises(RunError, match="is not finished: its model comes with the last round"):
        record.model()
    with pytest.raises(RunError, match="has no evaluated round yet"):
        record.clients()


def test_a_round_that_was_not_evaluated_has_no_table(finished: Record) -> None:
    with pytest.raises(RunError, match="3"):
        finished.clients(3)


@pytest.mark.parametrize("bad", ["nothing", "empty", "no json", "no toml", "bytes"])
def test_a_folder_that_is_no_run_is_a_sentence(tmp_path: Path, bad: str) -> None:
    folder = tmp_path / "bad"
    if bad != "nothing":
        folder.mkdir()
    if bad in ("no json", "no toml", "bytes"):
        (folder / "experiment.toml").write_bytes({"no toml": b"[", "bytes": b"\xff"}.get(bad, b"rounds = 1\n"))
        (folder / "run.json").write_text("{" if bad == "no json" else "{}")
    with pytest.raises(RunError, match=r"^'.*bad' is not the folder of a run: "):
        Record.read(folder)


def test_a_torn_last_line_is_left_out_when_read(finished: Record, tmp_path: Path) -> None:
    folder = copy(finished, tmp_path)
    with open(folder / "rounds.jsonl", "ab") as file:
        file.write(b'{"round": 7, "cli')
    assert Record.read(folder).rounds == finished.rounds


def test_a_spoilt_line_in_the_middle_is_a_sentence(finished: Record, tmp_path: Path) -> None:
    folder = copy(finished, tmp_path)
    lines = (folder / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "rounds.jsonl").write_bytes(b"".join([lines[0], b"{oops\n", *lines[2:]]))
    with pytest.raises(RunError, match="rounds"):
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
def test_a_bad_checkpoint_is_a_sentence_and_never_unpickled(tmp_path: Path, kind: str) -> None:
    folder, marker = tmp_path / "run", tmp_path / "marker"
    stop_after(3, small(), folder)
    (folder / "checkpoint.safetensors").write_bytes(bad_checkpoints(marker)[kind])
    with pytest.raises(RunError, match=r"checkpoint\.safetensors"):
        list(run(small(), out=folder, resume=True))
    assert not marker.exists()


@pytest.mark.parametrize("kind", ["garbage", "empty", "pickle", "cut"])
def test_a_bad_model_is_a_sentence_and_never_unpickled(finished: Record, tmp_path: Path, kind: str) -> None:
    folder, marker = copy(finished, tmp_path), tmp_path / "marker"
    (folder / "model.safetensors").write_bytes(bad_checkpoints(marker)[kind])
    with pytest.raises(RunError, match=r"model\.safetensors"):
        Record.read(folder).model()
    assert not marker.exists()


def test_after_deleting_a_bad_checkpoint_the_run_begins_anew(finished: Record, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    stop_after(3, small(), folder)
    (folder / "checkpoint.safetensors").unlink()
    assert [done.number for done in run(small(), out=folder, resume=True)] == [1, 2, 3, 4, 5, 6]
    assert contents(folder) == contents(finished.folder)


@pytest.mark.parametrize("left", [["run.json.part"], ["run.json"], ["run.json", "experiment.toml.part"]])
def test_a_kill_while_the_folder_is_begun_can_be_resumed(finished: Record, tmp_path: Path, left: list[str]) -> None:
    """The module promises that a kill at any instant leaves the folder whole: also before experiment.toml is there."""
    folder = tmp_path / "run"
    folder.mkdir()
    for name in left:
        whole = (finished.folder / name.removesuffix(".part")).read_bytes()
        (folder / name).write_bytes(whole[: len(whole) // 2] if name.endswith(".part") else whole)
    finish(small(), folder, resume=True)
    kept = {name: data for name, data in contents(folder).items() if not name.endswith(".part")}
    assert kept == contents(finished.folder)


def test_a_record_shorter_than_its_checkpoint_is_not_continued_with_a_hole(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    stop_after(3, small(), folder)
    path = folder / "rounds.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:1]))
    try:
        finish(small(), folder, resume=True)
    except RunError:
        return
    assert [line["round"] for line in Record.read(folder).rounds] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("name", [".DS_Store", "notes.csv", "000002 copy.csv"])
def test_a_foreign_file_among_the_tables_is_left_alone(finished: Record, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "run"
    stop_after(3, small(), folder)
    (folder / "clients" / name).write_text("mine")
    finish(small(), folder, resume=True)
    assert (folder / "clients" / name).read_text() == "mine"


def test_a_spoilt_experiment_file_is_a_sentence(tmp_path: Path) -> None:
    stop_after(1, small(), tmp_path / "run")
    (tmp_path / "run" / "experiment.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(RunError):
        list(run(small(), out=tmp_path / "run", resume=True))


def test_numbers_that_json_does_not_know_become_null(tmp_path: Path) -> None:
    s = Store(tmp_path)
    s.append("x.jsonl", {"a": float("nan"), "b": [1.5, float("inf")], "c": {"d": torch.tensor([float("-inf"), 2.0])}})
    assert json.loads((tmp_path / "x.jsonl").read_text()) == {"a": None, "b": [1.5, None], "c": {"d": [None, 2.0]}}


def test_names_in_any_script_stay_readable(tmp_path: Path) -> None:
    s = Store(tmp_path)
    s.append("x.jsonl", {"clients": ["Zürich", "東京", 'a "b", c\nd']})
    text = (tmp_path / "x.jsonl").read_text(encoding="utf-8")
    assert "Zürich" in text and "東京" in text
    assert json.loads(text)["clients"][2] == 'a "b", c\nd'
    assert text.count("\n") == 1


def test_names_with_commas_and_lines_survive_the_table(tmp_path: Path) -> None:
    names = ("a,b", 'say "x"', "line\nbreak", "東京", "")
    s = Store(tmp_path)
    s.table(1, names, torch.arange(5.0), torch.tensor([0.1, float("nan"), 3.0, float("inf"), 5.0]))
    rows = Record(tmp_path, {}, {}, [{"round": 1, "metrics": {"mean": 1.0}}]).clients()
    assert [name for name, _, _ in rows] == list(names)
    assert [score for _, score, _ in rows] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert [math.isnan(loss) for _, _, loss in rows] == [False, True, False, True, False]


def test_tables_keep_every_digit(tmp_path: Path) -> None:
    third = torch.tensor([1 / 3], dtype=torch.float64)
    Store(tmp_path).table(1, ("a",), third, third * 1e-17)
    rows = Record(tmp_path, {}, {}, []).clients(1)
    assert rows == [("a", 1 / 3, (third * 1e-17).item())]


def test_appending_makes_one_write_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill can then leave at most one torn line."""
    writes: list[bytes] = []

    class File:
        def __enter__(self) -> "File":
            return self

        def __exit__(self, *_: object) -> None: ...

        def write(self, data: bytes) -> int:
            writes.append(data)
            return len(data)

    monkeypatch.setattr("builtins.open", lambda *_, **__: File())
    Store(tmp_path).append("x.jsonl", {"a": 1})
    monkeypatch.undo()
    assert writes == [b'{"a": 1}\n']


def test_replace_leaves_the_old_file_when_a_write_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    store.replace(path, b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"cannot write '.*file': No space left on device; .*--resume"):
        store.replace(path, b"new")
    assert path.read_bytes() == b"old"


def test_replace_leaves_no_temporary_file(tmp_path: Path) -> None:
    store.replace(tmp_path / "a" / "file", b"x")
    assert [f.name for f in (tmp_path / "a").iterdir()] == ["file"]


names = st.text(st.characters(exclude_characters="/", codec="utf-8"), min_size=1, max_size=5)
leaves = st.builds(lambda seed, shape: torch.rand(shape, generator=torch.Generator().manual_seed(seed)),
                   st.integers(0, 99), st.lists(st.integers(0, 3), max_size=2))  # fmt: skip
nests = st.recursive(leaves, lambda inner: st.dictionaries(names, inner, min_size=1, max_size=3), max_leaves=4)


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
    assert {path: v.tolist() for path, v in each(back)} == {path: v.tolist() for path, v in each(nested)}


def test_flatten_forgets_empty_dicts() -> None:
    assert flatten({"a": {}, "b": {"c": {}}}) == {}


def test_unflatten_gives_tensors_of_their_own() -> None:
    flat = {"a/b": torch.zeros(2)}
    unflatten(flat)["a"]["b"][0] = 1
    assert flat["a/b"].tolist() == [0, 0]


def test_a_store_says_where_a_run_goes_on(tmp_path: Path) -> None:
    s = Store(tmp_path / "run")
    assert s.open(TEXT, FACTS, resume=False) == (0, {})
    s.append("rounds.jsonl", {"round": 1})
    s.append("rounds.jsonl", {"round": 2})
    s.checkpoint(1, {"server": {"w": torch.ones(2)}})
    last, saved = s.open(TEXT, FACTS, resume=True)
    assert last == 1
    assert saved["server"]["w"].tolist() == [1, 1]
    assert (s.folder / "rounds.jsonl").read_text() == '{"round": 1}\n'


def test_what_was_written_after_the_checkpoint_is_cut(tmp_path: Path) -> None:
    s = Store(tmp_path / "run")
    s.open(TEXT, FACTS, resume=False)
    one = torch.ones(1)
    for number in (1, 2, 3):
        s.append("rounds.jsonl", {"round": number})
        s.append("timings.jsonl", {"round": number})
        s.table(number, ("a",), one, one)
        if number == 2:
            s.checkpoint(2, {"server": {"w": one}})
    with open(s.folder / "rounds.jsonl", "ab") as file:
        file.write(b'{"round": 4, "torn')
    (s.folder / "clients" / "000004.csv.part").write_text("half")
    assert s.open(TEXT, FACTS, resume=True)[0] == 2
    for name in ("rounds.jsonl", "timings.jsonl"):
        assert (s.folder / name).read_text() == '{"round": 1}\n{"round": 2}\n'
    assert sorted(f.name for f in (s.folder / "clients").iterdir()) == ["000001.csv", "000002.csv"]


def test_checkpoints_hold_scalars_views_and_shared_memory(tmp_path: Path) -> None:
    whole = torch.arange(6.0)
    state = {"server": {"a": whole[::2], "b": whole, "c": whole[:3], "t": torch.tensor(5)}}
    s = Store(tmp_path / "run")
    s.open(TEXT, FACTS, resume=False)
    for number in (1, 2, 3):
        s.append("rounds.jsonl", {"round": number})
    s.checkpoint(3, state)
    last, saved = s.open(TEXT, FACTS, resume=True)
    assert last == 3
    assert {n: v.tolist() for n, v in saved["server"].items()} == {
        "a": [0, 2, 4],
        "b": [0, 1, 2, 3, 4, 5],
        "c": [0, 1, 2],
        "t": 5,
    }
