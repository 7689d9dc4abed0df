"""Parcels between processes of torch.distributed: a header of JSON and raw tensors.

Nothing is pickled. A parcel is two messages (two lengths; then the header with all small tensors)
and one more for each large tensor, which is sent from where it is.
"""

import json
from collections.abc import Callable
from math import prod
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from commonweal.base.plain import Table
from commonweal.base.tensors import Tensors

LARGE = 1 << 20  # bytes from which a tensor is a message of its own
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
TYPES = {str(kind).removeprefix("torch."): kind for kind in (*FLOATS, *INTEGERS)}

Carry = Callable[[Tensor], object]  # sends the bytes of a tensor, or fills it with what arrives


class DisconnectedError(Exception):
    """The other process is gone.

    Attributes:
        rank: Which one it is. None: not known.
        reason: What torch.distributed says.
    """

    def __init__(self, rank: int | None, reason: str) -> None:
        super().__init__(reason)
        self.rank = rank
        self.reason = reason


class Parcel(NamedTuple):
    """Values that are sent at once."""

    header: Table  # anything that JSON can hold
    tensors: Tensors


def send_parcel(parcel: Parcel, rank: int) -> None:
    """Send a parcel to a process."""
    _give(parcel, _guarded(lambda data: dist.send(data, rank), rank))


def receive(rank: int) -> Parcel:
    """Wait for a parcel of a process."""
    return _take(_guarded(lambda data: dist.recv(data, rank), rank))


def broadcast(parcel: Parcel | None = None) -> Parcel:
    """Rank 0 gives a parcel to all others, which call this without one. Returns the parcel."""
    carry = _guarded(lambda data: dist.broadcast(data, 0), 0 if parcel is None else None)
    if parcel is None:
        return _take(carry)
    _give(parcel, carry)
    return parcel


def _guarded(carry: Carry, rank: int | None) -> Carry:
    """The transfer, which raises DisconnectedError where the other process is gone."""

    def guarded(data: Tensor) -> None:
        try:
            carry(data)
        except RuntimeError as error:
            # Without the place in the source, and without advice for programmers.
            reason = str(error).partition("] ")[2].partition(". ")[0] or str(error)
            raise DisconnectedError(rank, reason.split("\n")[0][:200]) from error

    return guarded


def _give(parcel: Parcel, carry: Carry) -> None:
    small: list[Tensor] = []
    large: list[Tensor] = []
    described = []
    for name, value in parcel.tensors.items():
        described.append([name, str(value.dtype).removeprefix("torch."), list(value.shape)])
        data = _bytes(value)
        (large if len(data) >= LARGE else small).append(data)
    head = json.dumps({"header": parcel.header, "tensors": described}).encode()
    first = torch.cat([torch.frombuffer(bytearray(head), dtype=torch.uint8), *small])
    carry(torch.tensor([len(head), len(first)]))
    carry(first)
    for data in large:
        carry(data)


def _take(carry: Carry) -> Parcel:
    lengths = torch.zeros(2, dtype=torch.int64)
    carry(lengths)
    end, total = lengths.tolist()
    first = torch.empty(total, dtype=torch.uint8)
    carry(first)
    head = json.loads(first[:end].numpy().tobytes())
    tensors: Tensors = {}
    for name, kind, shape in head["tensors"]:
        dtype = TYPES[kind]
        length = prod(shape) * dtype.itemsize
        if length >= LARGE:
            tensors[name] = torch.empty(shape, dtype=dtype)
            carry(_bytes(tensors[name]))
        else:
            # A copy, as a view into the buffer may be aligned for another type.
            tensors[name] = first[end : end + length].clone().view(dtype).view(shape)
            end += length
    return Parcel(head["header"], tensors)


def _bytes(value: Tensor) -> Tensor:
    """The bytes (n,) of a tensor; a view where it is contiguous."""
    return value.detach().contiguous().view(-1).view(torch.uint8)
