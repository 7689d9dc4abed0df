"""Damaged files and impossible numbers: a sentence, never a traceback, whatever they are."""

import contextlib
import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from commonweal.base.errors import CommonwealError, ConfigError, ResumeWarning, RunError
from commonweal.config.catalog import parse_value
from commonweal.config.experiment import Experiment, change, read
from commonweal.jobs.job import build_dataset, job_from_experiment
from commonweal.jobs.rounds import run
from commonweal.record.record import Record
from commonweal.record.verify import problems
from commonweal.report import run_table
from run_helpers import contents, federation, stop_after, task

bounded = settings(
    derandomize=True,
    deadline=None,
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
changes = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=8)


def damaged(data: bytes, where: list[tuple[int, int]], cut: int) -> bytes:
    changed = bytearray(data)
    for at, value in where:
        changed[at % len(changed)] = value
    return bytes(changed[: len(changed) - cut % len(changed)])


def only_sentences(work: Any) -> None:
    """Whatever happens, it is a user's error or none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with contextlib.suppress(CommonwealError):
            work()


def rows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(int), np.repeat(["a", "b", "c"], 8)


def table_file(kind: str) -> bytes:
    x, y, client = rows()
    lines = ["client,label,p,q,r"]
    lines += [f"{c},{k},{a},{b},{d}" for c, k, (a, b, d) in zip(client, y, x, strict=True)]
    text = ("\n".join(lines) + "\n").encode()
    if kind == "csv":
        return text
    if kind == "csv.gz":
        return gzip.compress(text, mtime=0)
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {"client": client, "label": y, "p": x[:, 0], "q": x[:, 1], "r": x[:, 2]}
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out)
    return out.getvalue()


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "parquet"])
@bounded
@given(where=changes, cut=st.sampled_from([0, 0, 1, 100]))
def test_damaged_tables(tmp_path: Path, kind: str, where: list[tuple[int, int]], cut: int) -> None:
    path = tmp_path / f"t.{kind}"
    path.write_bytes(damaged(table_file(kind), where, cut))
    dataset = {"name": "table", "path": str(path), "client": "client", "label": "label"}
    only_sentences(lambda: build_dataset(Experiment(dataset=dataset)))


@bounded
@given(where=changes, cut=st.sampled_from([0, 0, 1, 100]))
def test_damaged_arrays(tmp_path: Path, where: list[tuple[int, int]], cut: int) -> None:
    x, y, _ = rows()
    for name in "ab":
        out = io.BytesIO()
        np.savez_compressed(out, x=x, y=y)
        data = damaged(out.getvalue(), where, cut) if name == "a" else out.getvalue()
        (tmp_path / f"{name}.npz").write_bytes(data)
    only_sentences(
        lambda: build_dataset(Experiment(dataset={"name": "folder", "path": str(tmp_path)}))
    )


@bounded
@given(where=changes, cut=st.sampled_from([0, 0, 1, 100]))
def test_damaged_images(tmp_path: Path, where: list[tuple[int, int]], cut: int) -> None:
    for client in "ab":
        for label in "xy":
            folder = tmp_path / client / label
            folder.mkdir(parents=True, exist_ok=True)
            for k in range(3):
                out = io.BytesIO()
                Image.fromarray(np.full((4, 4), 40 * k, np.uint8)).save(out, "PNG")
                data = out.getvalue()
                (folder / f"{k}.png").write_bytes(damaged(data, where, cut) if k == 0 else data)
    only_sentences(
        lambda: build_dataset(Experiment(dataset={"name": "folder", "path": str(tmp_path)}))
    )


EXPERIMENT = 'dataset = "vowel"\nrounds = 2\nrule = { name = "aaggff-s", cdf = "normal" }\n'


@bounded
@given(where=changes, cut=st.sampled_from([0, 1, 30]))
def test_damaged_experiments(tmp_path: Path, where: list[tuple[int, int]], cut: int) -> None:
    path = tmp_path / "e.toml"
    path.write_bytes(damaged(EXPERIMENT.encode(), where, cut))
    only_sentences(lambda: read(path))


@bounded
@given(st.text(max_size=30))
def test_changes_of_any_text(text: str) -> None:
    only_sentences(lambda: Experiment(**change({"dataset": "vowel"}, [text])))
    only_sentences(lambda: Experiment(**change({"dataset": "vowel"}, [f"rounds={text}"])))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    list(run(task(), federation(), rounds=2, out=folder))
    return folder


json_values = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=3,
)
FILES = ["run.json", "rounds.jsonl", "timings.jsonl", "clients.chunks", "experiment.toml"]


@pytest.mark.parametrize("name", FILES)
@bounded
@given(data=st.data())
def test_damaged_records(
    finished: Path, tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    folder = shutil.copytree(finished, tmp_path_factory.mktemp("copy") / "run")
    path = folder / name
    if name.endswith(("json", "jsonl")) and data.draw(st.booleans()):
        line = json.loads(path.read_text().split("\n")[0] if "jsonl" in name else path.read_text())
        line[data.draw(st.sampled_from(sorted(line)))] = data.draw(json_values)
        path.write_text(json.dumps(line) + "\n")
    else:
        path.write_bytes(damaged(path.read_bytes(), data.draw(changes), data.draw(st.just(0))))

    def look() -> None:
        record = Record.read(folder)
        record.timings()
        if record.evaluated:
            run_table.run_summary(record)
            run_table.result(record)

    only_sentences(look)
    assert name == "timings.jsonl" or problems(folder) or contents(folder) == contents(finished)


# Numbers and paths


@pytest.mark.parametrize(
    "text",
    ["1" * 5000, "[" * 5000, "2\nseed = 7", "{a = " * 2000],
    ids=["digits", "brackets", "two lines", "tables"],
)
def test_overrides_that_cannot_be_values(text: str) -> None:
    only_sentences(lambda: Experiment(**change({"dataset": "vowel"}, [f"rounds={text}"])))


def test_an_override_of_two_values_is_refused() -> None:
    with pytest.raises(ConfigError, match="more than one value"):
        parse_value("2\nseed = 7")


@pytest.mark.parametrize(
    "parts",
    [
        {"client": {"name": "sgd", "lr": 1e39}},
        {"client": {"name": "sgd", "batch": 10**30 * 2}},
        {"model": {"name": "mlp", "hidden": [2**62]}},
        {"dataset": {"name": "synthetic", "features": 10**12}},
        {"dataset": {"name": "table", "path": "~nosuchuser/x.csv", "label": "y"}},
        {"dataset": {"name": "table", "path": "x" * 5000, "label": "y"}},
        {"dataset": {"name": "table", "path": "/dev", "label": "y"}},
    ],
    ids=str,
)
def test_impossible_experiments_are_sentences(parts: dict[str, Any]) -> None:
    with pytest.raises(CommonwealError):
        job_from_experiment(Experiment(**({"dataset": "vowel"} | parts)))


def test_a_model_that_does_not_fit_is_refused_with_the_number() -> None:
    model = {"name": "mlp", "hidden": [10**6, 10**6]}
    with pytest.raises(ConfigError, match=r"1,000,\d\d\d,\d\d\d,\d\d\d parameters.* GB"):
        job_from_experiment(Experiment(dataset="vowel", model=model))


def test_a_pipe_as_an_experiment_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "e.toml")
    with pytest.raises(ConfigError, match="a pipe or a device"):
        read(tmp_path / "e.toml")


@pytest.mark.parametrize(
    "arguments",
    [["show", "x" * 300], ["run", "e.toml", "--out", "x" * 300]],
    ids=["show", "out"],
)
def test_the_command_says_what_is_wrong_with_a_path(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "e.toml").write_text(EXPERIMENT)
    main = [sys.executable, "-c", "from commonweal.cli import main; main()"]
    done = subprocess.run(
        [*main, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert done.stderr.strip().startswith("commonweal: ")


# Threads


def test_a_run_has_the_same_bytes_on_any_number_of_threads(tmp_path: Path) -> None:
    model = {"name": "mlp", "hidden": [200]}
    experiment = Experiment(dataset="digits", model=model, rounds=1, deterministic=True)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            list(run(experiment, out=tmp_path / str(threads)))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert contents(tmp_path / "1") == contents(tmp_path / "2") == contents(tmp_path / "3")


def test_a_resume_with_another_version_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts: dict[str, Any] = {"rounds": 3, "out": tmp_path / "run"}
    with monkeypatch.context() as old:
        old.setattr(torch, "__version__", "1.0")
        stop_after(1, run(task(), federation(), **parts))
    with pytest.warns(ResumeWarning, match=r"began with torch 1\.0, now "):
        list(run(task(), federation(), resume=True, **parts))


def test_settings_that_use_all_threads_say_so(tmp_path: Path) -> None:
    list(run(task(), federation(), rounds=1, deterministic=False, out=tmp_path / "run"))
    facts = Record.read(tmp_path / "run").facts
    assert facts.threads == torch.get_num_threads() and facts.processor


def test_a_damaged_table_of_a_record_is_a_sentence(finished: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished, tmp_path / "run")
    (folder / "clients.chunks").write_bytes((folder / "clients.chunks").read_bytes()[:-1])
    with pytest.raises(RunError, match=r"clients\.chunks' cannot be read \(it is shorter"):
        Record.read(folder).clients()
