"""Wrong arguments and experiments: refused with an error of our own, or run without NaN."""

import inspect
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import TensorDataset

import commonweal as cw
from commonweal.base.errors import CommonwealError, ConfigError
from commonweal.config import catalog
from commonweal.config.catalog import parse_value
from commonweal.config.experiment import Experiment, change, read
from commonweal.data.federation import Federation
from commonweal.jobs.job import job_from_experiment, job_from_parts
from commonweal.jobs.rounds import run
from commonweal.models.mlp import mlp
from commonweal.task.task import Task
from fuzzing import accepted, changed, files, fuzz
from fuzzing import contents as corpus

# Wrong arguments


X, Y = torch.randn(12, 3), torch.arange(12) % 2


DATA = TensorDataset(X, Y)


FEDERATION = cw.Federation.from_arrays(X, Y, torch.arange(12) // 4)


TASK = cw.Task(nn.Linear(3, 2))


REPORTS = {
    "ids": torch.arange(3),
    "sizes": torch.ones(3),
    "losses": torch.ones(3),
    "updates": torch.ones(3, 2),
    "clients": 3,
}


WRONG: list[Any] = [None, -1, 0, 0.5, float("nan"), "x", "", "fedavg(", "a:b", [], [1, 2]]
WRONG += [["a", "b"], {}, {"a": 1}, {"name": "x"}, b"x", True, (1, 2), 1 << 80, object()]
WRONG += [np.zeros((2, 2)), np.array(["a", "b"]), torch.zeros(3), torch.zeros(12), X, Y, DATA]
WRONG += [torch.zeros(12, dtype=torch.complex64), nn.Linear, nn.Linear(3, 2), lambda *_: 1]
WRONG += [FEDERATION, TASK, cw.rule("fedavg")]


class Columns:
    """A table as Hugging Face's datasets have it."""

    columns: dict[str, Any] = {"h": Y.tolist(), "x": X.tolist(), "label": Y.tolist()}  # noqa: RUF012

    def __len__(self) -> int:
        return 12

    def __getitem__(self, key: str | int) -> object:
        if isinstance(key, str):
            return self.columns[key]
        return {name: column[key] for name, column in self.columns.items()}


def first_round(**arguments: Any) -> None:
    run = cw.run(**arguments)
    try:
        next(run)
    finally:
        run.close()


def fit_estimator(client: Any, **parameters: Any) -> None:
    cw.FederatedClassifier(**parameters).fit(X.numpy(), Y.numpy(), client=client)


CALLS: dict[Callable[..., object], dict[str, Any]] = {
    cw.Federation.from_arrays: {
        "x": X,
        "y": Y,
        "client": Y,
        "test": 0.2,
        "seed": 0,
        "names": None,
        "outputs": None,
        "loss": None,
        "score": None,
        "groups": None,
        "notes": (),
        "class_names": (),
    },
    cw.Federation.from_datasets: {
        "datasets": {"a": DATA},
        "test": 0.2,
        "seed": 0,
        "label": None,
        "collate_fn": None,
        "transform": None,
        "memory": 1000,
        "workers": 2,
        "outputs": None,
        "groups": None,
        "class_names": (),
    },
    cw.Federation.from_function: {"names": ["a"], "make_dataset": lambda _: DATA, "test": 0.2},
    cw.Federation.from_huggingface: {
        "dataset": Columns(),
        "client": "h",
        "inputs": ["x"],
        "label": "label",
    },
    cw.Task: {
        "module": nn.Linear(3, 2),
        "loss": "",
        "score": "",
        "also": (),
        "target": None,
        "output": None,
    },
    cw.partition: {"labels": Y, "name": "iid", "seed": 0, "clients": 3},
    first_round: {
        "what": TASK,
        "federation": FEDERATION,
        "out": None,
        "resume": False,
        "algorithm": "averaging",
        "rule": "fedavg",
        "client": "sgd",
        "server": "sgd",
        "sampler": "uniform",
        "channels": [],
        "rounds": 1,
        "cohort": "all",
        "seed": 0,
        "score": None,
        "validation": 0.0,
        "patience": None,
        "monitor": "mean",
        "device": "cpu",
        "vectorize": "auto",
        "engine": "simulator",
    },
    cw.compare: {
        "what": TASK,
        "federation": FEDERATION,
        "rules": ["fedavg"],
        "seeds": 1,
        "baselines": False,
        "out": None,
        "fixed": False,
        "rounds": 1,
    },
    cw.choose: {"folder": "x", "how": "safe", "margin": 0.0, "level": 0.95, "trust": False},
    cw.Reports: REPORTS,
    cw.rule: {"name": "aaggff-s", "cdf": "frechet"},
    cw.client: {"name": "sgd", "lr": 0.1, "epochs": 1},
    cw.channel: {"name": "clip", "norm": 1.0},
    cw.model: {"name": "mlp", "shape": (3,), "outputs": 2, "labels": (), "hidden": [3]},
    cw.load_run: {"folder": "x"},
    cw.load_experiment: {"path": "x"},
    cw.reopen: {"folder": "x", "task": TASK, "federation": FEDERATION, "trust": False},
    cw.metrics.paired: {"a": [1.0, 2.0], "b": [1.0, 3.0], "confidence": 0.95},
    cw.metrics.seeds_needed: {"a": [1.0, 2.0], "b": [1.0, 3.0], "most": 100, "power": 0.8},
    fit_estimator: {
        "client": Y.numpy(),
        "rounds": 1,
        "rule": "fedavg",
        "method": "sgd",
        "hidden": (3,),
        "random_state": 0,
    },
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("function", CALLS, ids=lambda function: function.__qualname__)
def test_every_wrong_argument_is_a_clear_error(
    function: Callable[..., object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # "x" may be taken for a folder
    tracebacks = []
    refused = 0
    for name in CALLS[function]:
        for value in WRONG:
            try:
                function(**CALLS[function] | {name: value})
            except cw.CommonwealError:
                refused += 1
            except Exception as error:
                tracebacks.append(f"{name} = {value!r:.40}: {type(error).__name__}: {error}")
    assert tracebacks == []
    assert refused >= len(WRONG) - 8


@pytest.mark.parametrize(
    ("function", "name", "value"),
    [
        (cw.Federation.from_arrays, "outputs", "x"),
        (cw.Federation.from_arrays, "groups", ["a"]),
        (cw.Federation.from_datasets, "class_names", 3),
        (cw.Federation.from_datasets, "datasets", {}),
        (cw.Federation.from_function, "make_dataset", nn.Linear),
        (cw.Federation.from_huggingface, "client", "nowhere"),
        (first_round, "what", None),
        (first_round, "rounds", 1 << 80),
        (first_round, "algorithm", TASK),
        (first_round, "engine", np.zeros(2)),
        (cw.compare, "seeds", 1 << 80),
        (cw.compare, "rules", []),
        (cw.compare, "federation", lambda seed: seed),
        (cw.choose, "folder", [3]),
        (cw.client, "lr", b"x"),
        (cw.model, "shape", (3, -1)),
        (cw.metrics.seeds_needed, "most", None),
        (fit_estimator, "hidden", 3),
        (cw.reopen, "federation", 3),
    ],
)
def test_errors_name_the_argument(
    function: Callable[..., object], name: str, value: object
) -> None:
    with pytest.raises(cw.CommonwealError, match=name):
        function(**CALLS[function] | {name: value})


# Wrong experiments


EXPERIMENT = 'dataset = "vowel"\nrounds = 2\nrule = { name = "aaggff-s", cdf = "normal" }\n'


@pytest.mark.parametrize(
    "text",
    ["1" * 5000, "[" * 5000, "2\nseed = 7", "{a = " * 2000],
    ids=["digits", "brackets", "two lines", "tables"],
)
def test_overrides_that_cannot_be_values_are_refused(text: str) -> None:
    accepted(lambda: Experiment(**change({"dataset": "vowel"}, [f"rounds={text}"])))


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
def test_impossible_experiments_are_refused(parts: dict[str, Any]) -> None:
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
def test_a_path_that_is_too_long_is_refused_by_the_command(
    tmp_path: Path, arguments: list[str]
) -> None:
    (tmp_path / "e.toml").write_text(EXPERIMENT)
    main = [sys.executable, "-c", "from commonweal.cli import main; main()"]
    done = subprocess.run(
        [*main, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert done.stderr.strip().startswith("commonweal: ")


# Random experiments


@pytest.mark.parametrize("path", files("experiment"), ids=lambda path: path.name)
def test_known_experiments_give_a_result_or_an_error(path: Path) -> None:
    accepted(lambda: read(path))


@fuzz
@given(changed(corpus("experiment")))
def test_known_experiments_with_random_changes(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.toml"
    path.write_bytes(data)
    accepted(lambda: read(path))


@fuzz
@given(data=changed([EXPERIMENT.encode()]))
def test_an_experiment_with_random_changes(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "e.toml"
    path.write_bytes(data)
    accepted(lambda: read(path))


@fuzz
@given(st.text(max_size=30))
def test_overrides_of_any_text(text: str) -> None:
    accepted(lambda: Experiment(**change({"dataset": "vowel"}, [text])))
    accepted(lambda: Experiment(**change({"dataset": "vowel"}, [f"rounds={text}"])))


PARTITIONS = (None, "iid", "dirichlet", "quantity", "labels")


REFUSED_AT_MOST = 0.15  # of the experiments: fedbn without such layers, grouped without domains


def own_rows(rng: np.random.Generator) -> tuple[Task, Federation]:
    """A regression of any scale, or classes of which some clients have one only."""
    n = 90
    x = rng.normal(size=(n, 3)).astype(np.float32)
    owner = rng.integers(0, 6, n)
    owner[:6] = np.arange(6)
    if rng.random() < 0.5:
        scale, shift = 10.0 ** rng.integers(-3, 4), rng.normal() * 100
        y = (scale * (x[:, 0] + 0.1 * rng.normal(size=n)) + shift).astype(np.float32)
        score = str(rng.choice(["r2", "mae", "rmse", "neg-mae"]))
        f = Federation.from_arrays(x, y, owner, score=score)
    else:
        y = (x[:, 0] > 0.8).astype(np.int64)
        score = str(rng.choice(["accuracy", "auroc", "f1", "balanced-accuracy", "auprc"]))
        f = Federation.from_arrays(x, y, owner, outputs=2, score=score)
    return Task(mlp((3,), f.outputs, hidden=(4,)), score=f.score), f


def any_part(kind: str, rng: np.random.Generator) -> dict[str, object]:
    """A part with its defaults, and with what it requires: guarded(rule=...), ball(step=...)."""
    entries = catalog.entries(kind)
    plain = [name for name in entries if not required(entries[name])]
    chosen = str(rng.choice(sorted(entries)))
    part: dict[str, object] = {"name": chosen}
    for parameter in required(entries[chosen]):
        part[parameter] = 10.0 if parameter == "radius" else str(rng.choice(plain))
    return part


def required(entry: catalog.Entry) -> list[str]:
    """The parameters without a default: another part, or a radius."""
    empty = inspect.Parameter.empty
    return [name for name, each in entry.parameters.items() if each.default is empty]


def random_experiment(seed: int) -> bool:
    """Run one random experiment. Returns whether it ran."""
    rng = np.random.default_rng(seed)
    parts = {
        "rule": any_part("rules", rng),
        "client": {
            "name": str(rng.choice(sorted(catalog.entries("clients")))),
            "lr": float(10.0 ** rng.uniform(-3, 0)),
        },
        "server": any_part("servers", rng),
        "rounds": 3,
        "seed": seed,
        "cohort": [0.5, "all", 3][int(rng.integers(3))],
        "validation": [0.0, 0.3][int(rng.integers(2))],
        "holdout_clients": [0.0, 0.3][int(rng.integers(2))],
    }
    try:
        if rng.random() < 0.5:
            task, federation = own_rows(rng)
            job = job_from_parts(task, federation, **parts)
        else:
            partition = PARTITIONS[int(rng.integers(len(PARTITIONS)))]
            model = {"name": "mlp", "hidden": [4]}
            job = job_from_experiment(
                Experiment(dataset="vowel", partition=partition, model=model, **parts)
            )
        done = list(run(job))
    except CommonwealError:
        return False
    for each in done:
        for found in (each.metrics, each.personal, each.validation, each.unseen):
            undefined = {"gini", "kl"}  # of negative scores
            bad = {k for k, v in found.items() if not math.isfinite(v)} - undefined
            assert not bad, (seed, parts, bad)
    return True


def test_random_experiments_run_or_are_refused() -> None:
    ran = [random_experiment(seed) for seed in range(25)]
    assert sum(ran) >= (1 - REFUSED_AT_MOST) * len(ran)


@pytest.mark.slow
def test_two_hundred_random_experiments() -> None:
    ran = [random_experiment(seed) for seed in range(1000, 1200)]
    assert sum(ran) >= (1 - REFUSED_AT_MOST) * len(ran)
