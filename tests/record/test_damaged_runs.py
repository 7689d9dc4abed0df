"""Folders of runs that are damaged, crafted or of other data: noticed by every reader."""

import json
import math
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

import command_helpers
from command_helpers import Command, make, refusal
from commonweal.app.ui import runs, views
from commonweal.base.errors import CommonwealError, RunError
from commonweal.base.files import digest
from commonweal.base.plain import to_json
from commonweal.config.experiment import Experiment
from commonweal.engines.simulator import Simulator
from commonweal.jobs import rounds as rounds_module
from commonweal.jobs.rounds import run
from commonweal.record.checksums import from_bytes, to_bytes
from commonweal.record.columns import Array as Column
from commonweal.record.final import Final, read_final
from commonweal.record.record import Record
from commonweal.record.verify import problems
from commonweal.report import run_table
from commonweal.study.comparison import Comparison
from commonweal.study.plan import Cell
from fuzzing import CORPUS, accepted, changed, fuzz
from run_helpers import contents, federation, job, stop, stop_after, task
from stored_runs import PARTS, files_job, finish, stop_in_round_three

# Damage of a stored run


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stop_in_round_three(tmp_path_factory.mktemp("half") / "run")


@pytest.fixture
def copy(half: Path, tmp_path: Path) -> Path:
    return shutil.copytree(half, tmp_path / "copy")


def test_lines_that_are_not_rounds_1_2_3_are_refused(copy: Path) -> None:
    path = copy / "rounds.jsonl"
    first, second, third = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + third + second)
    with pytest.raises(RunError, match=r"rounds\.jsonl' is damaged: line 2 is not round 2"):
        list(run(files_job(), out=copy, resume=True))


def tracked(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != "timings.jsonl":
            yield path


def test_every_flipped_bit_of_every_file_is_noticed(half: Path, copy: Path) -> None:
    """By `verify`, and by a resumed run; what is not noticed would give the same bytes."""
    draw = random.Random(0)
    files = [path.relative_to(half) for path in tracked(half)]
    assert {"client_states", "clients.chunks"} <= {file.parts[0] for file in files}
    for file in files:
        data = (half / file).read_bytes()
        for _ in range(8):
            at = draw.randrange(len(data))
            changed = bytearray(data)
            changed[at] ^= 1 << draw.randrange(8)
            (copy / file).write_bytes(bytes(changed))
            assert problems(copy), f"{file}: byte {at}"
        if file.name != "experiment.toml":
            with pytest.raises(RunError, match=file.name):
                list(run(files_job(), out=copy, resume=True))
        shutil.rmtree(copy)
        shutil.copytree(half, copy)
    assert problems(copy) == []


def test_every_damaged_file_is_reported(copy: Path) -> None:
    """Whoever restores them from a backup needs all their names."""
    files = [*(copy / "client_states").iterdir(), copy / "run.json", copy / "rounds.jsonl"]
    files.append(copy / "experiment.toml")
    assert len(files) > 4
    for file in files:
        file.write_bytes(file.read_bytes().replace(b"0", b"1", 1))
    damage = problems(copy)
    assert len(damage) == len(files)
    assert all(any(repr(str(file)) in problem for problem in damage) for file in files)


@pytest.mark.parametrize("name", ["run.json", "clients.chunks"])
def test_a_missing_file_is_noticed(copy: Path, name: str) -> None:
    (copy / name).unlink()
    assert name in problems(copy)[0]
    with pytest.raises(RunError, match=name):
        list(run(files_job(), out=copy, resume=True))


def test_every_damage_of_the_last_numbers_is_noticed(tmp_path: Path) -> None:
    """By `verify`, and by whoever would show them."""
    finish(tmp_path)
    path = tmp_path / "final.json"
    data = path.read_bytes()
    wrong = [b"", b"[1]", b"\xff", b"[" * 60_000, data[:-9], data.replace(b"0.", b"1.", 1)]
    for at in random.Random(0).sample(range(len(data)), 20):
        wrong.append(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    for other in wrong:
        path.write_bytes(other)
        assert other != data and "final.json" in problems(tmp_path)[0]
        with pytest.raises(RunError, match=r"final\.json' is damaged: restore it, or delete it"):
            read_final(tmp_path)
    path.unlink()
    assert read_final(tmp_path) == Final()
    path.write_bytes(data)
    assert problems(tmp_path) == [] and read_final(tmp_path).bounds


def test_two_swapped_client_states_are_noticed(copy: Path) -> None:
    one, other = sorted((copy / "client_states").iterdir())[:2]
    held = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(held)
    with pytest.raises(RunError, match="under another name"):
        list(run(files_job(), out=copy, resume=True))


NAMES = ["rounds.jsonl", "run.json", "checkpoint.safetensors", "timings.jsonl"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_a_pipe_or_a_folder_in_a_files_place_is_an_error(
    copy: Path, name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds_module, "SAVE_EVERY", -1.0)
    (copy / name).unlink()
    if kind == "pipe":
        os.mkfifo(copy / name)
    else:
        (copy / name).mkdir()
    with pytest.raises(RunError, match=name):
        list(run(files_job(), out=copy, resume=True))
    assert problems(copy) or name == "timings.jsonl"  # which may differ


def test_a_whole_run_has_no_problems(half: Path, tmp_path: Path) -> None:
    assert problems(half) == []
    finish(tmp_path / "run")
    assert problems(tmp_path / "run") == []
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    (tmp_path / "run" / "run.json").write_text(json.dumps(facts | {"clients": 5}))
    assert "run.json' was changed" in problems(tmp_path / "run")[0]


# Crafted checkpoints


def craft(folder: Path, **changes: torch.Tensor) -> None:
    """Change tensors of a checkpoint as someone who knows how digests are made."""
    path = folder / "checkpoint.safetensors"
    tensors, facts = from_bytes(path.read_bytes(), "it")
    named = {_path(name): value for name, value in changes.items()}
    path.write_bytes(to_bytes(tensors | named, **facts))


def _path(name: str) -> str:
    """The name of a tensor: "server_w" stands for "server/w"."""
    if name.startswith("client_"):
        kind, _, rest = name.removeprefix("client_").partition("_")
        return f"client_{kind}" + (f"/{rest.replace('_', '/')}" if rest else "")
    return name.replace("_", "/")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"last": torch.tensor(2)}, r"rounds\.jsonl"),
        ({"last": torch.tensor([2, 3])}, "is not a checkpoint"),
        ({"server_round": torch.tensor(9)}, "of round 3, but the server would continue with 9"),
        ({"server_w": torch.zeros(9).double()}, "server/w"),
        ({"server_server_velocity": torch.zeros(1)}, "server/server/velocity"),
        ({"server_server": torch.zeros(1)}, "is not a checkpoint"),
        ({"last": torch.tensor(math.nan)}, "is not a checkpoint"),
        ({"last": torch.tensor(-3)}, "is not a checkpoint"),
        ({"_".join("a" * 3000): torch.zeros(1)}, "is not a checkpoint"),
        ({"client_states_foo": torch.zeros(1)}, "client_states are not by client"),
        ({"client_states_3": torch.zeros(1)}, "client_states/3 is a tensor"),
        ({"client_states_³_w": torch.zeros(1)}, "client_states are not by client"),
        ({"client_rounds": torch.zeros(1, 2)}, "client_rounds are not pairs of numbers"),
        ({"client_rounds": torch.ones(3)}, "client_rounds are not pairs of numbers"),
    ],
)
def test_a_crafted_checkpoint_is_refused(
    tmp_path: Path, changes: dict[str, torch.Tensor], message: str
) -> None:
    stop_after(3, run(task(), federation(), out=tmp_path / "run", **PARTS))
    craft(tmp_path / "run", **changes)
    problems(tmp_path / "run")  # raises nothing
    with pytest.raises(RunError, match=message):
        finish(tmp_path / "run", resume=True)


# Models and data of other runs


def test_a_stale_model_does_not_make_a_run_finished(tmp_path: Path) -> None:
    finish(tmp_path / "run")
    (tmp_path / "run" / "checkpoint.safetensors").unlink()
    begun = run(task(), federation(), out=tmp_path / "run", resume=True, **PARTS)
    next(begun)
    assert not (tmp_path / "run" / "model.safetensors").exists()
    stop(begun)
    shutil.copy(half_model(tmp_path), tmp_path / "run" / "model.safetensors")
    assert not Record.read(tmp_path / "run").finished


def half_model(folder: Path) -> Path:
    finish(folder / "other")
    return folder / "other" / "model.safetensors"


def test_data_that_changed_since_the_kill_is_named(tmp_path: Path) -> None:
    before = federation()
    parts = PARTS | {"rounds": 4}
    original = job(task(), before, **parts)
    stop_after(2, run(original, out=tmp_path / "run"))
    fewer = replace(original, engine=Simulator(federation(3)))
    with pytest.raises(RunError, match=r"data changed since .*\(clients was 4 and is 3"):
        list(run(fewer, out=tmp_path / "run", resume=True))
    before.train.x[0, 0] += 1
    with pytest.raises(RunError, match="some value not"):
        list(run(replace(original, engine=Simulator(before)), out=tmp_path / "run", resume=True))
    before.train.x[0, 0] -= 1


# Any reader


command = command_helpers.command  # a fixture
RUN = ["experiment.toml", "run.json", "rounds.jsonl", "clients.chunks", "timings.jsonl"]
RUN += ["model.safetensors", "checkpoint.safetensors", "clients.csv"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of three rounds."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    list(run(task(), federation(), rounds=3, rule="aaggff-s", out=folder))
    return folder


def summary(record: Record) -> object:
    comparison = Comparison.of_records([record])
    return comparison.table("markdown")


READERS: tuple[Callable[[Record], object], ...] = (
    repr,
    lambda record: record.finished,
    lambda record: record.best,
    lambda record: [(r.clients, r.losses, r.weights, r.rates, r.mixture) for r in record.rounds],
    lambda record: record.clients(),
    lambda record: record.unseen(),
    lambda record: record.history("c1"),
    lambda record: record.frame(),
    lambda record: record.timings(),
    lambda record: record.state_dict(),
    lambda record: record.module(),
    lambda record: record.preprocessing(),
    summary,
    lambda record: views.run_view(record, "stopped"),
)


def read_run(folder: Path) -> None:
    """Read a run in all ways."""
    accepted(lambda: problems(folder))
    described = runs.scan(folder.parent)
    runs.federations(described)
    runs.matching_runs(described, "x")
    accepted(lambda: Record.sample(folder, 2))
    with suppress(CommonwealError):
        record = Record.read(folder)
        for reader in READERS:
            accepted(lambda: reader(record))  # noqa: B023


@pytest.mark.parametrize(("name", "old", "new"), json.loads((CORPUS / "record.json").read_text()))
def test_known_damage_gives_a_result_or_an_error(
    whole: Path, tmp_path: Path, name: str, old: str, new: str
) -> None:
    folder = shutil.copytree(whole, tmp_path / "run")
    text = (folder / name).read_text(encoding="utf-8")
    assert old in text
    (folder / name).write_text(text.replace(old, new), encoding="utf-8")
    read_run(folder)


@fuzz
@given(st.data())
def test_files_with_random_changes(whole: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(RUN))
    content = (whole / name).read_bytes()
    (whole / name).write_bytes(data.draw(changed([content])))
    try:
        read_run(whole)
    finally:
        (whole / name).write_bytes(content)


COLUMNS: list[Callable[[Column], Column]] = [
    lambda values: values[:-1],
    lambda values: values[None],
    lambda values: values.astype(np.int64) + 7,
    lambda values: np.full(len(values), np.nan),
    lambda values: np.full(len(values), 1e300),
]


@fuzz
@given(st.data())
def test_other_values_with_a_correct_digest(whole: Path, data: st.DataObject) -> None:
    """Columns of a round that somebody changed who knows how digests are made."""
    contents = {name: (whole / name).read_bytes() for name in ("rounds.jsonl", "clients.chunks")}
    lines = [json.loads(line) for line in contents["rounds.jsonl"].splitlines()]
    line = data.draw(st.sampled_from(lines))
    at, size, _ = line["chunk"]
    columns = safetensors.numpy.load(contents["clients.chunks"][at : at + size])
    name = data.draw(st.sampled_from(sorted(columns)))
    changed = data.draw(st.sampled_from(COLUMNS))(columns[name])
    if data.draw(st.booleans()):
        del columns[name]
    added = st.sampled_from([".values", "test.x", "test.personal_score", "mixed", "weighted", "x"])
    columns[data.draw(st.just(name) | added)] = changed
    chunk = safetensors.numpy.save(columns)
    line["chunk"] = [len(contents["clients.chunks"]), len(chunk), digest(chunk)]
    (whole / "clients.chunks").write_bytes(contents["clients.chunks"] + chunk)
    (whole / "rounds.jsonl").write_bytes(b"".join(to_json(each, indent=None) for each in lines))
    try:
        read_run(whole)
    finally:
        for name, content in contents.items():
            (whole / name).write_bytes(content)


json_values = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=3,
)


@pytest.mark.parametrize("name", RUN[:5])
@fuzz
@given(data=st.data())
def test_other_values_in_json(
    whole: Path, tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    folder = shutil.copytree(whole, tmp_path_factory.mktemp("copy") / "run")
    path = folder / name
    if name.endswith(("json", "jsonl")) and data.draw(st.booleans()):
        line = json.loads(path.read_text().split("\n")[0] if "jsonl" in name else path.read_text())
        line[data.draw(st.sampled_from(sorted(line)))] = data.draw(json_values)
        path.write_text(json.dumps(line) + "\n")
    else:
        path.write_bytes(data.draw(changed([path.read_bytes()])))

    def look() -> None:
        record = Record.read(folder)
        record.timings()
        if record.evaluated:
            run_table.run_summary(record)
            run_table.result(record)

    accepted(look)
    assert name == "timings.jsonl" or problems(folder) or contents(folder) == contents(whole)


def test_a_file_that_is_cut_short_is_an_error(whole: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(whole, tmp_path / "run")
    (folder / "clients.chunks").write_bytes((folder / "clients.chunks").read_bytes()[:-1])
    with pytest.raises(RunError, match=r"clients\.chunks' cannot be read \(it is shorter"):
        Record.read(folder).clients()


# Checkpoints with a correct digest


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a method with client states, stopped after two of three rounds."""
    folder = tmp_path_factory.mktemp("begun") / "run"
    stop_after(2, run(task(), federation(), rounds=3, client="ditto", out=folder))
    return folder


VALUES = st.sampled_from(
    [
        torch.tensor(torch.nan),
        torch.tensor(2**62),
        torch.tensor(-1),
        torch.zeros(0),
        torch.zeros(3, 2, dtype=torch.int64),
        torch.tensor(True),
        torch.ones(2).half(),
    ]
)


@fuzz
@given(st.data())
def test_other_tensors_with_a_correct_digest(begun: Path, data: st.DataObject) -> None:
    path = begun / "checkpoint.safetensors"
    content = path.read_bytes()
    tensors, facts = from_bytes(content, "it")
    name = data.draw(st.sampled_from(sorted(tensors)))
    for _ in range(data.draw(st.integers(1, 2))):
        added = data.draw(st.sampled_from(["", "/x", "/0/w", "x"]) | st.text("a/0", max_size=50))
        if data.draw(st.booleans()):
            tensors.pop(name, None)
        tensors[name + added] = data.draw(VALUES)
    path.write_bytes(to_bytes(tensors, **facts))
    copy = shutil.copytree(begun, begun.parent / "copy")
    try:
        again = run(task(), federation(), rounds=3, client="ditto", out=copy, resume=True)
        accepted(again.result)
    finally:
        path.write_bytes(content)
        shutil.rmtree(copy)


# Commands


FILES = ["run.json", "rounds.jsonl", "experiment.toml", "checkpoint.safetensors", "clients.chunks"]


DAMAGES: list[bytes | str] = [
    b"",
    b"[]\n",
    b"{}\n",
    b"null\n",
    b"\xff\xfe",
    "pipe",
    "device",
    "folder",
    "gone",
]


def test_damaged_runs_are_refused_by_commands(
    command: Command, whole: Path, tmp_path: Path
) -> None:
    for name, content in product(FILES, DAMAGES):
        folder = shutil.copytree(whole, tmp_path / "run")
        if content == "gone":
            (folder / name).unlink()
        elif isinstance(content, str):
            make(content, folder / name)
        else:
            (folder / name).write_bytes(content)
        refusal(command("verify", folder))
        if name in ("run.json", "experiment.toml") and content != b"":
            refusal(command("show", folder))
        shutil.rmtree(folder)


def test_a_cell_of_a_comparison_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "experiment.toml").write_bytes(b"\xff\xfe")
    assert not Cell("fedavg", Experiment(dataset="vowel"), tmp_path).finished
