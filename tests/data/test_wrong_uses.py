"""Random wrong arguments of the front door: a CommonwealError, never a traceback from inside."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import commonweal as cw

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


def fit(client: Any, **parameters: Any) -> None:
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
    fit: {
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
        (fit, "hidden", 3),
        (cw.reopen, "federation", 3),
    ],
)
def test_errors_name_the_argument(
    function: Callable[..., object], name: str, value: object
) -> None:
    with pytest.raises(cw.CommonwealError, match=name):
        function(**CALLS[function] | {name: value})
