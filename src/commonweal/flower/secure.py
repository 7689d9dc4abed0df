"""Sums over clients by SecAgg+, of which the server sees no term.

Clients run Flower's `secaggplus_mod`. Flower's workflow for servers is tied to its legacy
strategies, so the server's four rounds of messages are here, of Flower's primitives: public keys,
encrypted shares of keys, masked numbers, and shares of what removes the masks of the sum. Bell et
al., Secure Single-Server Aggregation with (Poly)Logarithmic Overhead, CCS 2020.
"""

import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import bytes_to_ndarray
from flwr.common.secure_aggregation.crypto.shamir import combine_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key
from flwr.common.secure_aggregation.secaggplus_constants import (
    RECORD_KEY_CONFIGS,
    RECORD_KEY_STATE,
    Key,
    Stage,
)
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from flwr.supercore.primitives.asymmetric import bytes_to_private_key, bytes_to_public_key

from commonweal.base.errors import DataError
from commonweal.base.tensors import Tensors
from commonweal.flower.content import Settings
from commonweal.flower.messages import Answers
from commonweal.flower.replies import unusual

LEAST = 3  # clients: what others sent follows from the sum over two
SHARES = 21  # of a client's keys at most, one for each neighbour and itself; odd
LIMB = 2**29  # Flower rounds to 32 bits: a number is sent as two of 29 bits and a sign
STEP = 2.0**-36  # to which numbers with fractions are rounded
LARGEST = 2.0**57  # steps; of either sign
MODULUS = 2**48  # of masked numbers, so that 2^18 clients can be added up
KINDS = {kind: getattr(torch, kind) for kind in ("float32", "float64", "int32", "int64")}
TYPES = "types"  # the record with the types of masked tensors by name

Ask = Callable[[Mapping[int, RecordDict]], Answers]


class Sums(NamedTuple):
    """Sums over some nodes."""

    values: Tensors  # (1, ...) each
    nodes: frozenset[int]  # whose numbers are in them
    failed: dict[int, str]  # node -> why it is not


class _TooFewError(Exception):
    """The masks cannot be removed, so that there is no sum."""


def secure_settings(clients: int) -> dict[str, int | float]:
    """The settings of SecAgg+ for a number of clients. Its own rounding changes nothing then."""
    shares = min(clients, SHARES)
    return {
        Key.SAMPLE_NUMBER: clients,
        Key.SHARE_NUMBER: shares,
        Key.THRESHOLD: shares - (shares - 1) // 3,  # more than two thirds
        Key.CLIPPING_RANGE: float(LIMB),
        Key.TARGET_RANGE: 2 * LIMB,
        Key.MOD_RANGE: MODULUS,
        Key.MAX_WEIGHT: 1.0,
    }


# The client's side


def answer_masked(message: Message, context: Context, answer: Callable[[], Tensors]) -> Message:
    """Answer one of the messages of SecAgg+; `answer` computes what is masked.

    Raises DataError where the server asks for numbers without masks, or for weaker masks.
    """
    config = message.content.config_records.get(RECORD_KEY_CONFIGS)
    if config is None:
        raise DataError(
            "the server asks for numbers without masks, but this node's experiment has "
            "secure = true: give server and nodes the same experiment"
        )
    settings: dict[str, Any] = dict(config)
    stage = settings.pop(Key.STAGE, None)
    if stage == Stage.SETUP:
        clients = settings.get(Key.SAMPLE_NUMBER, 0)
        if clients < LEAST or settings != secure_settings(clients):
            raise DataError(
                f"the server's settings of secure sums are {settings}: this node masks its numbers "
                f"among at least {LEAST} clients, by the settings of its own version"
            )
    if stage == Stage.UNMASK:
        both = {*settings[Key.ACTIVE_NODE_ID_LIST]} & {*settings[Key.DEAD_NODE_ID_LIST]}
        if both:
            raise DataError(f"the server asks for both keys of nodes {sorted(both)}: not answered")

    def compute(message: Message, context: Context) -> Message:
        return Message(_limbs(answer()), reply_to=message)

    reply: Message = secaggplus_mod(message, context, compute)
    if stage == Stage.UNMASK:
        del context.state[RECORD_KEY_STATE]  # the keys have served
    return reply


def _limbs(values: Tensors) -> RecordDict:
    """Tensors (1, ...) as whole numbers, in the record whose arrays Flower's mod masks."""
    arrays: list[Array] = []
    types: Settings = {}
    for name in sorted(values):
        value = values[name].numpy()
        steps = value.astype(np.float64)
        if values[name].is_floating_point():
            steps = np.rint(steps / STEP)
        if not (np.abs(steps) < LARGEST).all():  # the server may not see which
            raise DataError(
                f"its {name} has numbers that are not finite, or not below {LARGEST * STEP:g} as "
                "secure sums need: local training diverged, or its numbers are too large"
            )
        high = np.floor(steps / LIMB)
        arrays.append(Array(np.stack([high, steps - high * LIMB])))
        types[name] = str(value.dtype)
    return RecordDict(
        {
            "fitres.parameters": ArrayRecord({str(k): array for k, array in enumerate(arrays)}),
            "fitres.num_examples": MetricRecord({"num_examples": 1}),
            "fitres.metrics": ConfigRecord(),
            "fitres.status": ConfigRecord({"code": 0, "message": ""}),
            TYPES: ConfigRecord(types),
        }
    )


# The server's side


def secure_sum(ask: Ask, contents: Mapping[int, RecordDict]) -> Sums:
    """Add up what nodes answer, by SecAgg+.

    Nodes may drop out at any time, while each of the others has enough neighbours left. Else
    nobody's numbers are used.

    Args:
        ask: Sends messages to nodes and waits for the replies.
        contents: What each node is asked.
    """
    failed: dict[int, str] = {}
    try:
        return _Round(ask, contents, failed).sums()
    except _TooFewError as error:
        return Sums({}, frozenset(), dict.fromkeys(contents, str(error)) | failed)


class _Round:
    """One sum: who is whose neighbour, and the four rounds of messages."""

    def __init__(
        self, ask: Ask, contents: Mapping[int, RecordDict], failed: dict[int, str]
    ) -> None:
        self.ask = ask
        self.contents = contents
        self.failed = failed
        nodes = list(contents)
        if len(nodes) < LEAST:
            raise _TooFewError(
                f"a secure sum needs at least {LEAST} clients, but {len(nodes)} are asked: the sum "
                "would show what a client sent"
            )
        self.settings = secure_settings(len(nodes))
        secrets.SystemRandom().shuffle(nodes)
        half = int(self.settings[Key.SHARE_NUMBER]) // 2
        self.neighbours = {  # and the node itself
            node: {nodes[(k + step) % len(nodes)] for step in range(-half, half + 1)}
            for k, node in enumerate(nodes)
        }

    def exchange(
        self, stage: str, nodes: Iterable[int], config: Callable[[int], Mapping[str, Any]]
    ) -> dict[int, RecordDict]:
        """Send one stage's message to nodes."""
        sent = {}
        for node in nodes:
            own = self.contents[node]
            if stage != Stage.COLLECT_MASKED_VECTORS:
                own = RecordDict({"request": own["request"]})
            record = ConfigRecord({**config(node), Key.STAGE: stage})
            sent[node] = RecordDict({**own, RECORD_KEY_CONFIGS: record})
        answers = self.ask(sent)
        for node, problem in answers.failed.items():
            self.failed.setdefault(node, problem.text)
        return answers.contents

    def read(self, replies: Mapping[int, RecordDict], read: Callable[[Any], Any]) -> dict[int, Any]:
        """What nodes sent. One whose reply cannot be read drops out."""
        values = {}
        for node, content in replies.items():
            try:
                values[node] = read(content)
            except Exception as error:  # it may have sent anything
                problem = f"its reply is not one of SecAgg+ ({type(error).__name__}: {error})"
                self.failed.setdefault(node, problem)
        return values

    def check(self, stage: str, nodes: Iterable[int]) -> None:
        """Raise _TooFewError where a client has too few neighbours left."""
        there = set(nodes)
        threshold = int(self.settings[Key.THRESHOLD])
        asked = [node for node in self.contents if node in there]
        least = min((len(self.neighbours[node] & there) for node in asked), default=0)
        if least < threshold:
            shares = self.settings[Key.SHARE_NUMBER]
            raise _TooFewError(
                f"no secure sum: after {stage!r} {len(there)} of {len(self.contents)} clients are "
                f"left, but {threshold} of each group of {shares} are needed to remove the masks"
            )

    def sums(self) -> Sums:
        """Run the four stages, and remove the masks of the sum."""
        hello = self.exchange(Stage.SETUP, self.contents, lambda _: self.settings)
        keys = self.read(hello, _public_keys)
        self.check(Stage.SETUP, keys)

        def public_keys(node: int) -> dict[str, list[bytes]]:
            return {str(other): keys[other] for other in self.neighbours[node] & keys.keys()}

        shared = self.read(self.exchange(Stage.SHARE_KEYS, keys, public_keys), _ciphertexts)
        self.check(Stage.SHARE_KEYS, shared)

        def forwarded(node: int) -> dict[str, list[Any]]:
            sources = [source for source, own in shared.items() if node in own]
            texts = [shared[source][node] for source in sources]
            return {Key.SOURCE_LIST: sources, Key.CIPHERTEXT_LIST: texts}

        replies = self.exchange(Stage.COLLECT_MASKED_VECTORS, shared, forwarded)
        masked = self.read(replies, _Masked.read)
        unlike = unusual({node: own.tensors() for node, own in masked.items()}) if masked else {}
        for node, problem in unlike.items():
            del masked[node]
            self.failed[node] = problem
        self.check(Stage.COLLECT_MASKED_VECTORS, masked)
        active, dead = set(masked), shared.keys() - masked.keys()

        def whose(node: int) -> dict[str, list[int]]:
            near = self.neighbours[node]
            return {
                Key.ACTIVE_NODE_ID_LIST: sorted(near & active),
                Key.DEAD_NODE_ID_LIST: sorted(near & dead),
            }

        found = self.read(self.exchange(Stage.UNMASK, masked, whose), _shares)
        total = [sum(arrays) for arrays in zip(*(o.arrays for o in masked.values()), strict=True)]
        for node in active | dead:
            secret = self.secret([own[node] for own in found.values() if node in own])
            if node in active:
                self.add_mask(total, secret, -1)
                continue
            private = bytes_to_private_key(secret)
            for other in self.neighbours[node] & active:
                agreed = generate_shared_key(private, bytes_to_public_key(keys[other][0]))
                self.add_mask(total, agreed, 1 if node > other else -1)
        types = next(iter(masked.values())).types
        values = _unscaled([value % MODULUS for value in total], types, len(active))
        failed = {node: self.failed[node] for node in self.contents if node not in active}
        return Sums(values, frozenset(active), failed)

    def secret(self, shares: list[bytes]) -> bytes:
        """A client's secret from its neighbours' shares."""
        threshold = int(self.settings[Key.THRESHOLD])
        if len(shares) < threshold:
            raise _TooFewError(
                f"no secure sum: {len(shares)} clients sent their share of a client's secret, but "
                f"{threshold} are needed to remove its masks"
            )
        return combine_shares(shares[:threshold])

    def add_mask(self, total: list[np.ndarray], seed: bytes, sign: int) -> None:
        """Add the mask that follows from a seed, or take it away."""
        masks = pseudo_rand_gen(seed, MODULUS, [value.shape for value in total])
        for value, mask in zip(total, masks, strict=True):
            value += sign * mask


def _unscaled(total: list[np.ndarray], types: Mapping[str, str], clients: int) -> Tensors:
    """Tensors from the sums of whole numbers, which begin with Flower's sum of weights."""
    count, *sums = total
    if int(count[0]) != clients * 2 * LIMB:
        raise _TooFewError("no secure sum: the masks did not cancel: some client sent a wrong key")
    values = {}
    for (name, kind), limbs in zip(sorted(types.items()), sums, strict=True):
        high, low = limbs.astype(np.float64) - clients * LIMB
        dtype = KINDS[kind]
        step = STEP if dtype.is_floating_point else 1.0
        values[name] = torch.from_numpy((high * LIMB + low) * step).to(dtype)
    return values


# What nodes send, as the server reads it


class _Masked(NamedTuple):
    """A node's masked numbers."""

    arrays: list[np.ndarray]
    types: dict[str, str]

    @classmethod
    def read(cls, content: RecordDict) -> "_Masked":
        config: Any = content.config_records[RECORD_KEY_CONFIGS]
        arrays = [bytes_to_ndarray(data) for data in config[Key.MASKED_PARAMETERS]]
        types = {name: str(kind) for name, kind in content.config_records[TYPES].items()}
        if len(arrays) != 1 + len(types) or arrays[0].shape != (1,) or {*types.values()} - {*KINDS}:
            raise DataError(f"{len(arrays)} arrays for {types}")
        if any(value.dtype != np.int64 for value in arrays):
            raise DataError("its numbers are no whole ones")
        return cls(arrays, types)

    def tensors(self) -> Tensors:
        """By name and type, to compare with what others sent."""
        named = zip(sorted(self.types.items()), self.arrays[1:], strict=True)
        return {f"{name} ({kind})": torch.from_numpy(array) for (name, kind), array in named}


def _public_keys(content: RecordDict) -> list[bytes]:
    config: Any = content.config_records[RECORD_KEY_CONFIGS]
    keys = [config[Key.PUBLIC_KEY_1], config[Key.PUBLIC_KEY_2]]
    for key in keys:
        bytes_to_public_key(key)
    return keys


def _ciphertexts(content: RecordDict) -> dict[int, bytes]:
    config: Any = content.config_records[RECORD_KEY_CONFIGS]
    return dict(zip(config[Key.DESTINATION_LIST], config[Key.CIPHERTEXT_LIST], strict=True))


def _shares(content: RecordDict) -> dict[int, bytes]:
    config: Any = content.config_records[RECORD_KEY_CONFIGS]
    return dict(zip(config[Key.NODE_ID_LIST], config[Key.SHARE_LIST], strict=True))
