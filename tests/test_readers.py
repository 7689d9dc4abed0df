"""Every reader gives a result or an error of our own, whatever it reads.

Files of tests/corpus are read as they are, then with random changes. `COMMONWEAL_FUZZ=5000` tries
that many changes of each kind, as `make campaign` does.
"""

import json
import os
import shutil
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
from flwr.common import Array, ArrayRecord
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette

from commonweal.base.errors import CommonwealError
from commonweal.base.files import digest
from commonweal.base.plain import to_json
from commonweal.config.experiment import read
from commonweal.datasets import build_federation
from commonweal.datasets.table import table
from commonweal.flower.messages import to_tensors
from commonweal.flower.replies import evaluated, unusual
from commonweal.jobs.rounds import run
from commonweal.record.checksums import pack, unpack
from commonweal.record.columns import Array as Column
from commonweal.record.record import Record
from commonweal.record.verify import problems
from commonweal.report.compare import Comparison
from commonweal.report.comparison import render, summarize
from commonweal.ui import runs, views
from commonweal.ui.server import application
from run_helpers import federation, stop_after, task

CORPUS = Path(__file__).parent / "corpus"
fuzz = settings(
    max_examples=int(os.environ.get("COMMONWEAL_FUZZ", "15")),
    deadline=None,
    derandomize="COMMONWEAL_FUZZ" not in os.environ,
    database=None,
    suppress_health_check=list(HealthCheck),
)
TOKENS = [b"inf", b"nan", b"-1", b"1e400", b"9" * 400, b"null", b"true", b"[", b"]", b"{", b"}"]
TOKENS += [b'"', b"'", b"\0", b"\xff", b"\r", b"\n", b"\xe2\x80\xa8", b"[]", b"{}", b"=", b",", b""]
RUN = ["experiment.toml", "run.json", "rounds.jsonl", "clients.chunks", "timings.jsonl"]
RUN += ["model.safetensors", "checkpoint.safetensors", "clients.csv"]


@st.composite
def changed(draw: st.DrawFn, seeds: Sequence[bytes]) -> bytes:
    """One of some contents with up to four places replaced."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 4))):
        begin = draw(st.integers(0, len(data)))
        end = begin + draw(st.sampled_from([0, 1, 4, 30]))
        data[begin:end] = draw(st.sampled_from(TOKENS) | st.binary(max_size=6))
    return bytes(data)


def files(kind: str) -> list[Path]:
    return sorted((CORPUS / kind).iterdir())


def contents(kind: str) -> list[bytes]:
    return [path.read_bytes() for path in files(kind)]


def accepted(reader: Callable[[], object]) -> None:
    """Call a reader, which may raise errors of our own only."""
    with warnings.catch_warnings(), suppress(CommonwealError):
        warnings.simplefilter("ignore")
        reader()


# Experiments and tables


def read_table(path: Path) -> None:
    build_federation(table(str(path)), None, None, 0)


@pytest.mark.parametrize("path", files("experiment"), ids=lambda path: path.name)
def test_known_experiments(path: Path) -> None:
    accepted(lambda: read(path))


@fuzz
@given(changed(contents("experiment")))
def test_experiments(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.toml"
    path.write_bytes(data)
    accepted(lambda: read(path))


@pytest.mark.parametrize("path", files("table"), ids=lambda path: path.name)
def test_known_tables(path: Path) -> None:
    accepted(lambda: read_table(path))


@fuzz
@given(changed(contents("table")))
def test_tables(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.csv"
    path.write_bytes(data)
    accepted(lambda: read_table(path))


# Records


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of three rounds."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    list(run(task(), federation(), rounds=3, rule="aaggff-s", out=folder))
    return folder


def summary(record: Record) -> object:
    comparison = Comparison.of_records([record])
    return render(summarize(comparison.results, comparison.score), "markdown")


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
    runs.select(described, "x")
    accepted(lambda: Record.sample(folder, 2))
    with suppress(CommonwealError):
        record = Record.read(folder)
        for reader in READERS:
            accepted(lambda: reader(record))  # noqa: B023


@pytest.mark.parametrize(("name", "old", "new"), json.loads((CORPUS / "record.json").read_text()))
def test_known_damage_of_records(
    whole: Path, tmp_path: Path, name: str, old: str, new: str
) -> None:
    folder = shutil.copytree(whole, tmp_path / "run")
    text = (folder / name).read_text(encoding="utf-8")
    assert old in text
    (folder / name).write_text(text.replace(old, new), encoding="utf-8")
    read_run(folder)


@fuzz
@given(st.data())
def test_records(whole: Path, data: st.DataObject) -> None:
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
def test_values_with_a_correct_digest(whole: Path, data: st.DataObject) -> None:
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


# Checkpoints with a correct digest


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a method with client states, stopped after two of three rounds."""
    folder = tmp_path_factory.mktemp("half") / "run"
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
def test_checkpoints(half: Path, data: st.DataObject) -> None:
    path = half / "checkpoint.safetensors"
    content = path.read_bytes()
    tensors, facts = unpack(content, "it")
    name = data.draw(st.sampled_from(sorted(tensors)))
    for _ in range(data.draw(st.integers(1, 2))):
        added = data.draw(st.sampled_from(["", "/x", "/0/w", "x"]) | st.text("a/0", max_size=50))
        if data.draw(st.booleans()):
            tensors.pop(name, None)
        tensors[name + added] = data.draw(VALUES)
    path.write_bytes(pack(tensors, **facts))
    copy = shutil.copytree(half, half.parent / "copy")
    try:
        again = run(task(), federation(), rounds=3, client="ditto", out=copy, resume=True)
        accepted(again.result)
    finally:
        path.write_bytes(content)
        shutil.rmtree(copy)


# Flower's messages


def read_reply(data: bytes) -> None:
    record = ArrayRecord({"update": Array("float32", (1, 4), "numpy.ndarray", data)})
    tensors = to_tensors(record)
    unusual({0: tensors, 1: {"update": torch.ones(1, 4)}})
    evaluated(tensors)


@pytest.mark.parametrize("path", files("array"), ids=lambda path: path.name)
def test_known_replies(path: Path) -> None:
    accepted(lambda: read_reply(path.read_bytes()))


@fuzz
@given(changed(contents("array")))
def test_replies(data: bytes) -> None:
    accepted(lambda: read_reply(data))


# The page


@pytest.fixture(scope="module")
def page(whole: Path) -> Starlette:
    return application(whole.parent)


@fuzz
@given(
    st.sampled_from(["home", "sentence", "compare", "client", "run", "figure", "table", "report"]),
    st.dictionaries(
        st.sampled_from(["id", "name", "what", "form", "federation", "words", "file", "title"]),
        st.sampled_from(["run", "c1", "weights", "svg", "../run", "run/.", "\x00", "=1"])
        | st.text(max_size=8).filter(lambda text: text.isprintable()),
    ),
)
def test_the_page(page: Starlette, what: str, parameters: dict[str, str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from starlette.testclient import TestClient

    client = TestClient(page, base_url="http://127.0.0.1")
    answer = client.get(f"/api/{what}", params=parameters)
    assert answer.status_code in (200, 404)
    if answer.status_code == 404:
        problem = answer.json()["problem"]
        assert "this cannot be read" not in problem, problem
