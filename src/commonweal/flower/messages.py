"""Flower's nodes and messages: who is connected, who replied, and why others did not."""

import base64
import hashlib
import io
import logging
import math
import time
from collections.abc import Iterable
from functools import lru_cache
from importlib.metadata import version
from itertools import chain
from typing import Literal

import numpy as np
import torch
from cryptography.hazmat.primitives import serialization
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from commonweal.base.errors import DataError, RunError
from commonweal.base.tensors import Tensors
from commonweal.flower.arrays import Layout
from commonweal.flower.content import metrics_of
from commonweal.flower.reports import Problem

logger = logging.getLogger("flwr")

POLL = 0.5  # seconds between two looks at who is connected
PULL = 0.25  # seconds between two looks for replies; Flower's own loop waits 3
# Seconds for which a message lives longer than its sender waits. A node works off one message after
# the other: older ones that nobody waits for any more would keep it late for ever.
SLACK = 1.0
SUPERLINK = 1  # its node id
HAS_KEYS = tuple(map(int, version("flwr").split(".")[:2])) >= (1, 38)  # Grid.get_nodes
UNAVAILABLE = 5  # Flower's error where a node's heartbeat is overdue
# Of messages to legacy clients, which miss them in ours.
LEGACY_RECORDS = ("fitins.", "evaluateins.")
EXPIRED = (3, 4)  # Flower's errors where a message or its reply has outlived its sender's patience


def wait_for_nodes(grid: Grid, least: int, patience: float) -> list[int]:
    """The sorted ids of the connected nodes, once there are enough of them.

    Raises RunError where there are still too few after `patience` seconds.
    """
    deadline = time.monotonic() + patience
    least = max(1, least)
    nodes = sorted(grid.get_node_ids())
    if len(nodes) < least:
        logger.info("waiting up to %g s for %d nodes", patience, least)
    while len(nodes) < least:
        left = deadline - time.monotonic()
        if left <= 0:
            raise RunError(
                f"{len(nodes)} nodes are connected, but {least} are needed: none came within "
                f"{patience:g} s; start more SuperNodes, or wait longer"
            )
        time.sleep(min(POLL, left))
        nodes = sorted(grid.get_node_ids())
    return nodes


def node_keys(grid: Grid) -> dict[int, str]:
    """The fingerprints of the nodes' public keys. Nodes of a simulation have none."""
    keys: dict[int, str] = {}
    if not HAS_KEYS:
        return keys
    for node in grid.get_nodes():
        if node.public_key.startswith(b"-----BEGIN PUBLIC KEY"):
            keys[node.node_id] = _fingerprint(node.public_key)
    return keys


@lru_cache(4096)
def _fingerprint(pem: bytes) -> str:
    """As `ssh-keygen -l` prints it."""
    key = serialization.load_pem_public_key(pem)
    form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    line = key.public_bytes(*form)
    digest = hashlib.sha256(base64.b64decode(line.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


class Answers:
    """The replies to some messages, by node, and why others have none.

    Args:
        sent: The messages. One that was never sent, as a subclass of a strategy may have left it
            out, is nobody's failure.
        replies: What came back, also to messages of a subclass's own.
        waited: How long replies were waited for, as in "within 5 s".
    """

    def __init__(self, sent: Iterable[Message], replies: Iterable[Message], waited: str) -> None:
        asked: dict[str, int] = {}
        for message in sent:
            if message.metadata.message_id:
                asked[message.metadata.message_id] = message.metadata.dst_node_id
        self.contents: dict[int, RecordDict] = {}
        self.failed: dict[int, Problem] = {}
        for reply in replies:
            # The source of an error is the SuperLink where a node is gone: the question tells who.
            source = reply.metadata.src_node_id
            node = asked.get(reply.metadata.reply_to_message_id, source)
            if node == SUPERLINK or node in self.contents or node in self.failed:
                continue
            if not reply.has_error():
                self.contents[node] = reply.content
            elif reply.error.code not in EXPIRED:
                self.failed[node] = _problem(reply.error.code, reply.error.reason)
        for node in asked.values():
            if node not in self.contents:
                self.failed.setdefault(node, Problem("silent", f"no reply {waited}"))

    @property
    def nodes(self) -> list[int]:
        """The nodes that were asked."""
        return sorted({*self.contents, *self.failed})

    @property
    def metrics(self) -> str:
        """The names of all metrics that were reported."""
        return ", ".join(sorted(set().union(*map(metrics_of, self.contents.values()))))


def _problem(code: int, reason: str | None) -> Problem:
    lines = (reason or "").strip().splitlines()
    text = lines[-1].strip() if lines else "no reason given"
    if any(record in text for record in LEGACY_RECORDS):
        text = (
            "its ClientApp is of Flower's legacy API (client_fn, NumPyClient), which cannot answer "
            "a ServerApp of the Message API: write functions with @app.train() and @app.evaluate()"
        )
    kind: Literal["app", "unavailable"] = "unavailable" if code == UNAVAILABLE else "app"
    return Problem(kind, f"its app failed: {text[:200]} (Flower's error {code})")


def weighted_mean(contents: list[RecordDict], by: str) -> MetricRecord | None:
    """The mean of each metric over replies, weighted by the metric `by`, as FedAvg computes it.

    A reply may lack a metric; without `by` it counts as 1. Lists of other lengths than the first
    one's are left out. None: there are no other metrics.
    """
    total: dict[str, np.ndarray] = {}
    weights: dict[str, float] = {}
    for content in contents:
        values = metrics_of(content)
        size = values.get(by)
        weight = float(size) if isinstance(size, int | float) and 0 < size < math.inf else 1.0
        for name, value in values.items():
            numbers = np.asarray(value, dtype=np.float64)
            known = total.get(name, np.zeros(numbers.shape))
            if name != by and known.shape == numbers.shape:
                total[name] = known + weight * numbers
                weights[name] = weights.get(name, 0.0) + weight
    means = {name: (total[name] / weights[name]).tolist() for name in total}
    return MetricRecord(means) if means else None


def only_arrays(content: RecordDict) -> ArrayRecord:
    """The only array record of a reply. Raises DataError where there are others."""
    records = list(content.array_records.values())
    if len(records) != 1:
        raise DataError(f"it sent {len(records)} array records instead of one")
    return records[0]


def array_bytes(contents: Iterable[RecordDict]) -> int:
    """The bytes of all arrays in messages."""
    records = chain.from_iterable(content.array_records.values() for content in contents)
    return sum(record.count_bytes() for record in records)


def values_of(record: ArrayRecord) -> dict[str, np.ndarray]:
    """The arrays of a record, as read-only views of the bytes that arrived. Raises DataError."""
    return {name: _view(name, array) for name, array in record.items()}


def _view(name: str, array: Array) -> np.ndarray:
    data = array.data
    # Version 1 of the format has two bytes for the header's length.
    begin = 10 if data[6:7] == b"\1" else 12
    offset = begin + int.from_bytes(data[8:begin], "little")
    try:
        shape, fortran, dtype = _header(data[:offset])
        flat = np.frombuffer(data, dtype, offset=offset)
        return flat.reshape(shape, order="F" if fortran else "C")
    except Exception as error:  # numpy parses the header of an array as Python
        raise DataError(f"its array {name!r} cannot be read ({error})") from None


@lru_cache(4096)
def _header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, order and type of an array: the same for every client, and slow to read."""
    stream = io.BytesIO(header)
    if np.lib.format.read_magic(stream) == (1, 0):
        return np.lib.format.read_array_header_1_0(stream)
    return np.lib.format.read_array_header_2_0(stream)


def to_arrays(layout: Layout, w: Tensor) -> ArrayRecord:
    """A model's vector as the arrays that a Flower app exchanges."""
    return ArrayRecord({name: Array(array) for name, array in layout.arrays(w).items()})


def to_record(tensors: Tensors) -> ArrayRecord:
    """Tensors as Flower's messages carry them."""
    return ArrayRecord({name: Array(value.detach().numpy()) for name, value in tensors.items()})


def to_tensors(record: ArrayRecord) -> Tensors:
    """Tensors from a message, copied to aligned memory. Raises DataError where they are none."""
    try:
        return {name: torch.tensor(array) for name, array in values_of(record).items()}
    except TypeError as error:
        raise DataError(f"it sent no numbers ({error})") from None
