"""Replies of nodes that are any bytes: tensors, or an error of our own."""

from pathlib import Path

import pytest
import torch
from flwr.common import Array, ArrayRecord
from hypothesis import given

from commonweal.flower.messages import to_tensors
from commonweal.flower.replies import evaluated, unusual
from fuzzing import accepted, changed, files, fuzz
from fuzzing import contents as corpus


def read_reply(data: bytes) -> None:
    record = ArrayRecord({"update": Array("float32", (1, 4), "numpy.ndarray", data)})
    tensors = to_tensors(record)
    unusual({0: tensors, 1: {"update": torch.ones(1, 4)}})
    evaluated(tensors)


@pytest.mark.parametrize("path", files("array"), ids=lambda path: path.name)
def test_known_replies_give_tensors_or_an_error(path: Path) -> None:
    accepted(lambda: read_reply(path.read_bytes()))


@fuzz
@given(changed(corpus("array")))
def test_replies_with_random_changes(data: bytes) -> None:
    accepted(lambda: read_reply(data))
