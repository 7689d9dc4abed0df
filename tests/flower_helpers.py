"""A Grid in this process, and the shape of app that Flower's quickstarts have."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from flwr.app import (
    ArrayRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes

from commonweal.flower.messages import HAS_KEYS

needs_keys = pytest.mark.skipif(not HAS_KEYS, reason="flwr before 1.38 does not tell nodes' keys")
FIRST = 2**63 + 11  # node ids have 64 bits without sign


class LocalGrid(Grid):
    """Calls a ClientApp for every message. Replies come in an order of their own."""

    def __init__(self, app: Callable[[Message, Context], Message], configs: list[Any]) -> None:
        with suppress(ImportError):  # private, and needed to make messages since flwr 1.38
            from flwr.supercore.task_identity import TaskIdentity

            TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        self.app = app
        self.nodes = {FIRST + 7919 * k: config for k, config in enumerate(configs)}
        self.contexts = {
            node: Context(1, node, dict(config), RecordDict(), {})
            for node, config in self.nodes.items()
        }
        self.silent: set[int] = set()  # nodes whose replies never come
        self.lost: set[int] = set()  # nodes for which the SuperLink answers
        self.sent = 0
        self.replies: dict[str, Message] = {}

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    def create_message(self, *arguments: Any, **more: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            self.sent += 1
            key = f"message-{self.sent}"
            message.metadata.__dict__["_message_id"] = key
            ids.append(key)
            reply = self.answer(message)
            if reply is not None:
                self.replies[key] = reply
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        there = [key for key in message_ids if key in self.replies]
        return [self.replies.pop(key) for key in sorted(there, reverse=True)]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))

    def answer(self, message: Message) -> Message | None:
        node = message.metadata.dst_node_id
        if node in self.silent:
            return None
        if node in self.lost:
            reply = Message(Error(5, "Node unavailable"), reply_to=message)
            reply.metadata.__dict__["_src_node_id"] = 1
            return reply
        copied = RecordDict(dict(message.content))
        message.__dict__["_content"] = copied
        try:
            return self.app(message, self.contexts[node])
        except Exception as error:
            return Message(
                Error(2, f"Traceback\n{type(error).__name__}: {error}"), reply_to=message
            )


class WithKeys(LocalGrid):
    """A grid whose nodes have keys, as those of a deployment."""

    def __init__(self, app: Callable[[Message, Context], Message], configs: list[Any]) -> None:
        super().__init__(app, configs)
        self.keys = {node: generate_key_pairs()[1] for node in self.nodes}

    def get_nodes(self) -> list[NodeInfo]:
        return [
            NodeInfo(node_id=node, public_key=public_key_to_bytes(self.keys[node]))
            for node in self.nodes
        ]

    def move(self, old: int, new: int) -> None:
        """Let another node, with another key, say that it is the client of an old one."""
        self.nodes[new] = self.nodes.pop(old)
        self.contexts[new] = self.contexts.pop(old)
        self.contexts[new].node_id = new
        self.keys[new] = generate_key_pairs()[1]


# A NumPy app: each node fits the mean of its rows


def rows(k: int, n: int) -> np.ndarray:
    return np.random.default_rng(k).normal(k, 1, (n, 3)).astype(np.float32)


def mean_app(
    report: Callable[[int, np.ndarray, np.ndarray], dict[str, Any]] | None = None,
    mods: list[Any] | None = None,
) -> ClientApp:
    """Clients move halfway to the mean of their rows; `report` adds metrics to their replies."""
    app = ClientApp()

    @app.train(mods=mods)
    def train(message: Message, context: Context) -> Message:
        k = int(context.node_config["partition-id"])
        mine = rows(k, 10 * (k + 1))
        w = message.content.array_records["arrays"].to_numpy_ndarrays()[0]
        more = {} if report is None else report(k, w, mine)
        trained = w + np.float32(0.5) * (mine.mean(0) - w)
        metrics = {"train_loss": 0.1, "num-examples": len(mine)} | more
        content = RecordDict({"arrays": ArrayRecord([trained]), "metrics": MetricRecord(metrics)})
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        k = int(context.node_config["partition-id"])
        w = message.content.array_records["arrays"].to_numpy_ndarrays()[0]
        loss = distance(w, rows(k, 10 * (k + 1)))
        metrics: dict[str, Any] = {
            "eval_loss": loss,
            "eval_acc": 1 / (1 + loss),
            "num-examples": 5 + k,
        }
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    return app


def distance(w: np.ndarray, mine: np.ndarray) -> float:
    return float(((mine - w) ** 2).mean())


def configs(count: int) -> list[dict[str, Any]]:
    return [{"partition-id": k, "num-partitions": count} for k in range(count)]
