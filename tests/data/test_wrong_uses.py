"""Random wrong arguments of the front door: a CommonwealError, never a traceback from inside."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import commonweal as cw

X, Y = torch.randn(12, 3), torch.arange(12) % 2
DATA = TensorDataset(X, Y)
WRONG: list[Any] = [None, -1, 0.5, float("nan"), "x", "", [], [1, 2], {}, {"a": 1}, b"x", True]
WRONG += [np.zeros((2, 2)), torch.zeros(3), torch.zeros(12), object(), (1, 2), X, Y, DATA, 1 << 80]
CALLS: dict[Callable[..., object], dict[str, Any]] = {
    cw.Federation.from_arrays: {"x": X, "y": Y, "client": Y, "test": 0.2, "seed": 0, "names": None},
    cw.Federation.from_datasets: {
        "datasets": {"a": DATA},
        "test": 0.2,
        "seed": 0,
        "label": None,
        "memory": 1000,
        "workers": 2,
        "outputs": None,
        "groups": None,
    },
    cw.Federation.from_function: {"names": ["a"], "make_dataset": lambda _: DATA, "test": 0.2},
    cw.Task: {"module": nn.Linear(3, 2), "loss": "", "score": "", "also": (), "target": None},
    cw.partition: {"labels": Y, "name": "iid", "seed": 0, "clients": 3},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("function", CALLS, ids=lambda function: function.__qualname__)
def test_every_wrong_argument_is_a_clear_error(function: Callable[..., object]) -> None:
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
    assert refused > 2 * len(WRONG)
