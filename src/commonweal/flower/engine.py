"""Flower: a strategy for Flower apps, and an engine. The one file that imports flwr.

`FairStrategy("aaggff-s")` takes the place of `FedAvg()` in a ServerApp. The rule, the server
optimizer and the channels are those of `Averaging`: the clients' part is the app's own.

`FlowerEngine` runs experiments of Commonweal, with all that clients do, on Flower's nodes.
"""

import itertools
import logging
import math
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Result, Strategy
from torch import Tensor

import commonweal
from commonweal import metrics
from commonweal.algorithms.algorithm import Algorithm, Group, Outcome, Replies, Request
from commonweal.algorithms.averaging import Averaging
from commonweal.base import randomness
from commonweal.base.errors import ConfigError, DataError, RunError
from commonweal.base.tensors import State, Tensors, flatten, select
from commonweal.base.values import Value, Values
from commonweal.channels.channel import Channel
from commonweal.config import catalog
from commonweal.config.experiment import to_toml
from commonweal.data.federation import Rows
from commonweal.data.population import Population
from commonweal.data.preprocessing import Preprocessing
from commonweal.engines.engine import Engine
from commonweal.flower.arrays import (
    LOSS_NAMES,
    SCORE_NAMES,
    Layout,
    find_number,
    name_id,
    positive,
    to_id,
)
from commonweal.flower.node import (
    About,
    Member,
    Node,
    When,
    agreed,
    fits,
    joined,
)
from commonweal.flower.own_table import Agreement
from commonweal.flower.replies import evaluated, gathered, unusual
from commonweal.record.facts import RunFacts
from commonweal.record.rounds import ClientTable, RoundRecord
from commonweal.record.store import Store
from commonweal.rules.fedavg import FedAvg
from commonweal.rules.rule import Rule
from commonweal.servers.server import ServerOptimizer
from commonweal.training.client import Client
from commonweal.training.evaluation import Evaluation
from commonweal.training.local import vmap_clients

__all__ = ["FairStrategy", "FlowerEngine", "client_app", "loss_before_training", "server_app"]

logger = logging.getLogger("flwr")

POLL = 0.5  # seconds between two looks at who is connected
UNAVAILABLE = "(Flower's error 5)"  # the node's heartbeat is overdue
EXPIRED = (3, 4)  # Flower's errors where a message or its reply has outlived its sender's patience
PULL = 0.25  # seconds between two looks for replies; Flower's own loop waits 3
# Seconds for which a message lives longer than its sender waits. A node works off one message after
# the other: older ones that nobody waits for any more would keep it late for ever.
SLACK = 1.0
AGAIN = 60.0  # seconds after which a node that has not said which client it is is asked again
RECORDS = "runs/flower"  # where records are written by default
Loss = Callable[[Message, Context], float]
Summarize = Callable[[list[RecordDict], str], MetricRecord | None]
Mod = Callable[[Message, Context, Callable[[Message, Context], Message]], Message]


# Nodes and messages


def wait_for_nodes(grid: Grid, least: int, patience: float) -> list[int]:
    """The connected nodes, sorted, once there are enough. Raises RunError after `patience` s."""
    deadline = time.monotonic() + patience
    said = False
    while True:
        nodes = sorted(grid.get_node_ids())
        if len(nodes) >= max(1, least):
            return nodes
        if time.monotonic() >= deadline:
            raise RunError(
                f"{len(nodes)} nodes are connected, but {max(1, least)} are needed: none came "
                f"within {patience:g} s; start more SuperNodes, or wait longer"
            )
        if not said:
            logger.info("waiting up to %g s for %d nodes", patience, max(1, least))
            said = True
        time.sleep(min(POLL, max(0.0, deadline - time.monotonic())))


class Answers:
    """The replies to some messages, by node; and why others have none."""

    def __init__(self, sent: Iterable[Message], replies: Iterable[Message], waited: str) -> None:
        asked = {message.metadata.message_id: message.metadata.dst_node_id for message in sent}
        self.contents: dict[int, RecordDict] = {}
        self.failed: dict[int, str] = {}
        for reply in replies:
            # The source of an error is the SuperLink where a node is gone: the question tells who.
            source = reply.metadata.src_node_id
            node = asked.get(reply.metadata.reply_to_message_id, source)
            if node not in asked.values() or node in self.contents or node in self.failed:
                continue
            if reply.has_error() and reply.error.code in EXPIRED:
                continue
            if reply.has_error():
                self.failed[node] = _reason(reply.error.code, reply.error.reason)
            else:
                self.contents[node] = reply.content
        for node in asked.values():
            if node not in self.contents:
                self.failed.setdefault(node, f"no reply {waited}")


def _reason(code: int, reason: str | None) -> str:
    lines = [line.strip() for line in (reason or "").splitlines() if line.strip()]
    text = lines[-1] if lines else "no reason given"
    return f"its app failed: {text[:200]} (Flower's error {code})"


def _arrays(content: RecordDict) -> dict[str, np.ndarray]:
    """The one model in a reply, by name."""
    records = list(content.array_records.values())
    if len(records) != 1:
        raise DataError(f"it sent {len(records)} array records instead of one")
    return {name: array.numpy() for name, array in records[0].items()}


def _metrics(content: RecordDict) -> dict[str, object]:
    """All metrics in a reply, and the texts beside them."""
    found: dict[str, object] = {}
    for config in content.config_records.values():
        found |= dict(config)
    for record in content.metric_records.values():
        found |= dict(record)
    return found


def loss_before_training(loss: Loss, key: str = "loss-before") -> Mod:
    """A client mod that reports the loss of the received model, as the papers define it.

    loss: from the message and the context to the mean loss of the received model on the client's
    training rows. Use it as `@app.train(mods=[loss_before_training(my_loss)])`.
    """

    def mod(
        message: Message, context: Context, call_next: Callable[[Message, Context], Message]
    ) -> Message:
        before = float(loss(message, context))
        reply = call_next(message, context)
        if reply.has_content():
            records = list(reply.content.metric_records.values())
            if records:
                records[0][key] = before
            else:
                reply.content["metrics"] = MetricRecord({key: before})
        return reply

    return mod


# FairStrategy


@dataclass
class _Known:
    """A client as the server knows it: by its node, and from its last evaluation."""

    name: str
    loss: float = math.nan
    score: float = math.nan


@dataclass(frozen=True)
class _Trained:
    """What a round has done before its evaluation."""

    outcome: Outcome
    clients: tuple[int, ...]  # nodes that were asked
    losses: dict[int, float]  # by node
    scores: dict[int, float]
    failed: dict[int, str]
    warnings: tuple[str, ...]
    bytes: dict[str, int]
    seconds: float


class FairStrategy(Strategy):
    """Aggregates by a Commonweal rule, in the place of Flower's FedAvg.

    rule, server, channels: names, tables with parameters, or the things themselves
    loss_key: under which clients report the loss of the received model, before training; a client
    that does not is taken to have the loss of its last evaluation
    evaluate_loss_key, score_key: of evaluations; by default the first that looks like one
    name_key: a metric by which clients are named in the record; by default a node's id is its name
    out: the folder of the run's record (None: none is written); by default runs/flower, or
    runs/flower-2 and so on where it exists; resume: continue the run in it, by default the last one
    wait: seconds to wait for `min_available_nodes`; timeout: seconds to wait for replies, by
    default that of `start`
    max_examples: clients that report more rows are dropped
    lr: the clients' learning rate, for rules that use it; by default train_config["lr"]

    All others are those of Flower's FedAvg.
    """

    def __init__(
        self,
        rule: str | Mapping[str, Value] | Rule = "aaggff-s",
        server: str | Mapping[str, Value] | ServerOptimizer = "sgd",
        channels: Iterable[str | Mapping[str, Value] | Channel] = (),
        *,
        loss_key: str = "loss-before",
        evaluate_loss_key: str | None = None,
        score_key: str | None = None,
        name_key: str | None = None,
        out: str | Path | None = RECORDS,
        resume: bool = False,
        wait: float = 120.0,
        timeout: float | None = None,
        max_examples: int | None = None,
        lr: float | None = None,
        seed: int = 0,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 1.0,
        min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        train_metrics_aggr_fn: Summarize | None = None,
        evaluate_metrics_aggr_fn: Summarize | None = None,
    ) -> None:
        self.rule: Rule = _built("rules", rule, Rule)
        self.server: ServerOptimizer = _built("servers", server, ServerOptimizer)
        listed = [channels] if isinstance(channels, str | Mapping) else channels
        self.channels: tuple[Channel, ...] = tuple(
            _built("channels", each, Channel) for each in listed
        )
        for key, share in (("train", fraction_train), ("evaluate", fraction_evaluate)):
            if not 0 <= share <= 1:
                raise ConfigError(f"fraction_{key} = {share}: give a share from 0 to 1")
        if "labels" in self.rule.needs:
            raise ConfigError(
                "this rule needs the clients' label counts, which Flower apps do not send: run a "
                "Commonweal experiment on Flower instead (commonweal flower export)"
            )
        self.loss_key = loss_key
        self.loss_names = LOSS_NAMES if evaluate_loss_key is None else (evaluate_loss_key,)
        self.score_names = SCORE_NAMES if score_key is None else (score_key,)
        self.score_name = score_key or "accuracy"
        self.name_key = name_key
        self.out = out
        self.store: Store | None = None
        self.resume = resume
        self.wait = wait
        self.timeout = timeout
        self.max_examples = max_examples
        self.lr = lr
        self.seed = seed
        self.fraction_train = fraction_train
        self.fraction_evaluate = fraction_evaluate
        self.min_train_nodes = min_train_nodes
        self.min_evaluate_nodes = min_evaluate_nodes
        self.min_available_nodes = min_available_nodes
        self.weighted_by_key = weighted_by_key
        self.arrayrecord_key = arrayrecord_key
        self.configrecord_key = configrecord_key
        self.train_metrics_aggr_fn = train_metrics_aggr_fn or _weighted_mean
        self.evaluate_metrics_aggr_fn = evaluate_metrics_aggr_fn or _weighted_mean
        self._begin()

    def _begin(self) -> None:
        """Forget an earlier run of this strategy."""
        self.store = None if self.out is None else Store(_folder(Path(self.out), self.resume))
        self.history: list[RoundRecord] = []
        self.known: dict[int, _Known] = {}  # by node
        self._remembered: dict[int, _Known] = {}  # of a resumed run, by node
        self._said: set[str] = set()
        self._sent: list[Message] = []
        self._offset = 0
        self._rounds = 0
        self._patience = 3600.0 if self.timeout is None else self.timeout
        self._waited = "in time"
        self._began = 0.0
        self._model: _Model | None = None
        self._trained: _Trained | None = None

    def summary(self) -> None:
        logger.info("\t├──> rule: %s", catalog.describe(self.rule))
        logger.info("\t├──> server: %s", catalog.describe(self.server))
        for channel in self.channels:
            logger.info("\t├──> channel: %s", catalog.describe(channel))
        folder = "not written" if self.store is None else str(self.store.folder)
        logger.info("\t└──> record: %s", folder)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run all rounds, or those that a resumed run still has to do."""
        if self._model is not None:
            self._begin()
        patience = timeout if self.timeout is None else self.timeout
        self._patience = patience
        self._waited = f"within {patience:g} s"
        self._rounds = num_rounds
        lr = None if train_config is None else train_config.get("lr")
        if self.lr is None and isinstance(lr, int | float):
            self.lr = float(lr)
        self._meet(wait_for_nodes(grid, self.min_available_nodes, self.wait))
        with nullcontext() if self.store is None else self.store.locked():
            return self._run(
                grid, initial_arrays, patience, train_config, evaluate_config, evaluate_fn
            )

    def _run(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        patience: float,
        train_config: ConfigRecord | None,
        evaluate_config: ConfigRecord | None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None,
    ) -> Result:
        model = self._open(initial_arrays)
        arrays = model.arrays()

        def shifted(number: int, record: ArrayRecord) -> MetricRecord | None:
            return None if evaluate_fn is None else evaluate_fn(number + self._offset, record)

        result = super().start(
            grid,
            arrays,
            max(0, self._rounds - self._offset),
            patience,
            train_config,
            evaluate_config,
            None if evaluate_fn is None else shifted,
        )
        result.train_metrics_clientapp = self._shift(result.train_metrics_clientapp)
        result.evaluate_metrics_clientapp = self._shift(result.evaluate_metrics_clientapp)
        result.evaluate_metrics_serverapp = self._shift(result.evaluate_metrics_serverapp)
        result.arrays = model.published()
        if self.store is not None:
            self.store.write_model(model.tensors())
        return result

    def _shift(self, by_round: dict[int, MetricRecord]) -> dict[int, MetricRecord]:
        return {number + self._offset: record for number, record in by_round.items()}

    # Training

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._open(arrays)
        self._began = time.perf_counter()
        if self.fraction_train == 0:
            return []
        nodes = self._sample(grid, server_round, self.fraction_train, self.min_train_nodes)
        config["server-round"] = server_round + self._offset
        return self._messages(nodes, arrays, config, MessageType.TRAIN)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        number = server_round + self._offset
        model = self._opened()
        answers = Answers(self._sent, replies, self._waited)
        asked = tuple(message.metadata.dst_node_id for message in self._sent)
        model.begin(len(self.known))
        read = _read(self, answers, model)
        warnings = list(read.warnings)
        for warning in warnings:
            self._say_once(warning)
        outcome = model.tell(read, len(self.known))
        nodes = {self._id(node): node for node in asked}
        failed = read.failed | {nodes[client]: why for client, why in outcome.dropped.items()}
        for node, why in failed.items():
            logger.warning("round %d: client %s: %s", number, self.known[node].name, why)
        self._trained = _Trained(
            outcome,
            asked,
            read.losses,
            read.scores,
            failed,
            (*warnings, *outcome.warnings),
            {"down": _bytes(self._sent), "up": sum(map(_size, answers.contents.values()))},
            time.perf_counter() - self._began,
        )
        if len(outcome.clients) == 0:
            logger.warning("round %d: no reply can be used; the model stays", number)
            return None, None
        used = [each for node, each in answers.contents.items() if node not in failed]
        return model.arrays(), self.train_metrics_aggr_fn(used, self.weighted_by_key)

    def _id(self, node: int) -> int:
        """The id by which rules know a client."""
        name = self.known[node].name
        return to_id(node) if name == str(node) else name_id(name)

    # Evaluation

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._began = time.perf_counter()
        self._sent = []
        if self.fraction_evaluate == 0:
            return []
        nodes = self._sample(
            grid, server_round, self.fraction_evaluate, self.min_evaluate_nodes, "evaluate"
        )
        config["server-round"] = server_round + self._offset
        return self._messages(nodes, self._opened().published(), config, MessageType.EVALUATE)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        answers = Answers(self._sent, replies, self._waited)
        rows: dict[int, int] = {}
        losses: dict[int, float] = {}
        scores: dict[int, float] = {}
        for node, content in answers.contents.items():
            values = _metrics(content)
            try:
                self._name(node, values)
            except DataError as error:
                answers.failed[node] = str(error)
                continue
            loss = find_number(values, self.loss_names)
            score = find_number(values, self.score_names)
            size = values.get(self.weighted_by_key)
            rows[node] = int(size) if isinstance(size, int | float) and positive(size) else 1
            losses[node] = math.nan if loss is None else loss
            scores[node] = math.nan if score is None else score
            if loss is None:
                self._say_once(
                    f"evaluations have no loss ({', '.join(values)}): say evaluate_loss_key=..."
                )
            elif math.isfinite(loss):
                self.known[node].loss = loss
            self.known[node].score = scores[node]
        for node, why in answers.failed.items():
            logger.warning("evaluation: client %s: %s", self.known[node].name, why)
        self._record(server_round + self._offset, rows, losses, scores)
        used = [each for node, each in answers.contents.items() if node in rows]
        return self.evaluate_metrics_aggr_fn(used, self.weighted_by_key) if used else None

    # Nodes

    def _sample(
        self, grid: Grid, server_round: int, fraction: float, least: int, what: str = "train"
    ) -> list[int]:
        """Draw nodes, the same ones in every run where the nodes are the same."""
        nodes = wait_for_nodes(grid, max(least, self.min_available_nodes), self.wait)
        self._meet(nodes)
        size = min(len(nodes), max(least, int(len(nodes) * fraction)))
        ordered = sorted(nodes, key=lambda node: (self.known[node].name, node))
        number = server_round + self._offset
        purpose = randomness.COHORT if what == "train" else randomness.purpose(what)
        rng = randomness.stream(self.seed, number, 0, purpose)
        chosen = rng.choice(len(ordered), size, replace=False)
        return [ordered[k] for k in sorted(chosen.tolist())]

    def _messages(
        self, nodes: list[int], arrays: ArrayRecord, config: ConfigRecord, kind: str
    ) -> list[Message]:
        self._sent = []
        for node in nodes:
            content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
            self._sent.append(Message(content, node, kind, ttl=self._patience + SLACK))
        return list(self._sent)

    def _meet(self, nodes: Iterable[int]) -> None:
        for node in nodes:
            if node not in self.known:
                self.known[node] = _Known(str(node))
                self._recall(node)

    def _recall(self, node: int) -> None:
        """Give a client of a resumed run the name and the evaluation that it had."""
        before = self._remembered.get(node)
        named = [each for each in self._remembered.values() if each.name == self.known[node].name]
        if before is None and named:
            before = named[0]
        if before is not None and math.isnan(self.known[node].loss):
            self.known[node] = replace(before)

    def _name(self, node: int, values: Mapping[str, object]) -> None:
        """Name a client as it names itself. A node that took another's place inherits its name."""
        given = None if self.name_key is None else values.get(self.name_key)
        name = str(given)
        if given is None or name == self.known[node].name:
            return
        asked = {message.metadata.dst_node_id for message in self._sent}
        for other, known in list(self.known.items()):
            if known.name != name or other == node:
                continue
            if other in asked:
                raise DataError(f"node {node} has the name {name!r} of node {other}")
            self.known[node] = self.known.pop(other)
        self.known[node].name = name
        self._recall(node)

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            logger.warning(text)

    # The run's record

    def _open(self, arrays: ArrayRecord) -> "_Model":
        """The model with its states, from the checkpoint where a run is resumed."""
        if self._model is not None:
            return self._model
        given = {name: array.numpy() for name, array in arrays.items()}
        self._model = _Model(self, Layout.of(given), given)
        if self.store is None:
            return self._model
        last, saved = self.store.open(self._text(), self._facts(), self.resume)
        if last:
            self._offset = last
            self._model.restore(saved)
            logger.info("resuming after round %d of %s", last, self.store.folder)
        return self._model

    def _opened(self) -> "_Model":
        if self._model is None:
            raise ConfigError("FairStrategy needs a model: call configure_train before the rest")
        return self._model

    def _text(self) -> str:
        parts = {"rule": self.rule, "server": self.server}
        tables: Values = {"rounds": self._rounds, "seed": self.seed, "engine": "flower"}
        tables |= {key: catalog.describe(part) for key, part in parts.items()}
        tables["channels"] = [catalog.describe(channel) for channel in self.channels]
        return to_toml(tables | {"algorithm": {"name": "averaging"}})

    def _facts(self) -> RunFacts:
        return RunFacts(
            commonweal=commonweal.__version__,
            engine="flower",
            parameters=self._opened().layout.task.size,
            score=self.score_name,
            clients=len(self.known),
        )

    def _record(
        self,
        number: int,
        rows: Mapping[int, int],
        losses: Mapping[int, float],
        scores: Mapping[int, float],
    ) -> None:
        """Write a round, with the evaluation of the model after it, and a checkpoint."""
        trained = self._trained
        if trained is None:
            return
        names = {node: known.name for node, known in self.known.items()}
        by_id = {self._id(node): names[node] for node in trained.clients}
        nodes = sorted(names, key=lambda node: names[node])
        evaluation = _evaluation(nodes, rows, losses, {self.score_name: scores})
        scored = evaluation.scored.tolist()
        found = {}
        if scored:
            called = [names[nodes[k]] for k in scored]
            found = metrics.summary(evaluation.score[scored], evaluation.sizes[scored], called)
        weights = zip(
            trained.outcome.clients.tolist(), trained.outcome.weights.tolist(), strict=True
        )
        record = RoundRecord(
            number=number,
            clients=tuple(names[node] for node in trained.clients),
            losses=tuple(trained.losses.get(node, math.nan) for node in trained.clients),
            scores=tuple(trained.scores.get(node, math.nan) for node in trained.clients),
            weights={by_id[client]: weight for client, weight in weights},
            dropped={names[node]: why for node, why in trained.failed.items()},
            capped={by_id[client]: why for client, why in trained.outcome.capped.items()},
            warnings=trained.warnings,
            bytes=trained.bytes,
            metrics=found,
        )
        self.history.append(record)
        self._trained = None
        if self.store is None:
            return
        seconds = {"train": trained.seconds, "evaluate": time.perf_counter() - self._began}
        listed = [names[node] for node in nodes]
        test = ClientTable(listed, evaluation) if rows else None
        self.store.append(record, seconds, test=test)
        self.store.checkpoint(number, self._opened().saved())


def _built(kind: str, part: Value, interface: type) -> Value:
    built = catalog.build(kind, part) if isinstance(part, str | Mapping) else part
    if not isinstance(built, interface):
        raise ConfigError(
            f"FairStrategy: {part!r} is no {catalog.KINDS[kind].label}: give a name of commonweal "
            f"list, a table with a name, or a {interface.__name__}; FedAvg's arguments are keywords"
        )
    return built


def _folder(folder: Path, resume: bool) -> Path:
    """The folder of a run: the one that is named, or by default a free one, or the last one."""
    if folder != Path(RECORDS):
        return folder
    last = folder
    for number in itertools.count(2):
        if not folder.exists():
            break
        last = folder
        folder = Path(f"{RECORDS}-{number}")
    return last if resume else folder


def _size(content: RecordDict) -> int:
    return sum(record.count_bytes() for record in content.array_records.values())


def _bytes(sent: Iterable[Message]) -> int:
    return sum(_size(message.content) for message in sent if message.has_content())


def _weighted_mean(contents: list[RecordDict], by: str) -> MetricRecord | None:
    """The mean of each metric over clients, weighted by their rows: what Flower's log shows."""
    total: dict[str, np.ndarray] = {}
    weights: dict[str, float] = {}
    for content in contents:
        values = _metrics(content)
        size = values.get(by)
        weight = float(size) if isinstance(size, int | float) and positive(size) else 1.0
        for name, value in values.items():
            if name == by or not isinstance(value, int | float | list):
                continue
            numbers = np.asarray(value)
            known = total.get(name, np.zeros(numbers.shape))
            usable = numbers.dtype.kind in "if" and np.isfinite(numbers).all()
            if usable and known.shape == numbers.shape:
                total[name] = known + weight * numbers
                weights[name] = weights.get(name, 0.0) + weight
    means = {name: (total[name] / weights[name]).tolist() for name in total}
    return MetricRecord(means) if means else None


def _evaluation(
    nodes: list[int],
    rows: Mapping[int, int],
    losses: Mapping[int, float],
    scores: Mapping[str, Mapping[int, float]],
) -> Evaluation:
    """What nodes reported, NaN where one was not asked or did not answer."""

    def column(values: Mapping[int, float]) -> Tensor:
        return torch.tensor([values.get(node, math.nan) for node in nodes], dtype=torch.float64)

    columns = {name: column(values) for name, values in scores.items()}
    main = next(iter(columns.values()))
    sizes = torch.tensor([rows.get(node, 0) for node in nodes])
    return Evaluation(column(losses), columns, sizes, ~main.isfinite())


@dataclass(frozen=True)
class _Reports:
    """The replies to a request for training that can be read."""

    replies: Replies
    losses: dict[int, float]  # by node, as reported or evaluated; missing: unknown
    scores: dict[int, float]
    failed: dict[int, str]
    warnings: tuple[str, ...]
    blind: bool  # no loss is known: the rule cannot decide


def _read(strategy: FairStrategy, answers: Answers, model: "_Model") -> _Reports:
    """Turn replies to updates and reports, ordered by client. What cannot be used is named."""
    failed = dict(answers.failed)
    columns: dict[int, dict[str, float]] = {}
    updates: dict[int, Tensor] = {}
    for node, content in answers.contents.items():
        values = _metrics(content)
        try:
            strategy._name(node, values)
            columns[node] = _columns(strategy, values)
            updates[node] = model.update(_arrays(content))
        except DataError as error:
            failed[node] = str(error)
            columns.pop(node, None)
    before = {node for node, column in columns.items() if "loss" in column}
    sent = sorted({name for each in answers.contents.values() for name in _metrics(each)})
    warnings = _fill_losses(strategy, columns, sent)
    losses = {node: column["loss"] for node, column in columns.items() if "loss" in column}
    scores = {node: column["score"] for node, column in columns.items() if "score" in column}
    blind = bool(columns) and not any(math.isfinite(loss) for loss in losses.values())
    if blind and before:  # all reported a loss that is not a number: drop them below
        blind = False
    neutral = _neutral(losses)
    values_by_node = {
        node: column | {"loss": column.get("loss", neutral), "score": column.get("score", math.nan)}
        for node, column in columns.items()
    }
    ids = {strategy._id(node): node for node in columns}
    order = sorted(ids)
    names = list(next(iter(values_by_node.values()), {}))
    stacked: Tensors = {
        name: torch.tensor([values_by_node[ids[i]][name] for i in order], dtype=torch.float64)
        for name in names
    }
    if order:
        stacked["update"] = torch.stack([updates[ids[i]] for i in order])
    clients = torch.tensor(order, dtype=torch.int64)
    return _Reports(Replies(clients, stacked), losses, scores, failed, warnings, blind)


def _columns(strategy: FairStrategy, values: Mapping[str, object]) -> dict[str, float]:
    """The numbers of a reply. Raises DataError where one that is needed is missing."""
    size = values.get(strategy.weighted_by_key)
    if size is None:
        raise DataError(
            f"it sent no {strategy.weighted_by_key!r}, the number of its training rows, but "
            f"{sorted(values)}: add it to the metrics of its reply"
        )
    if not isinstance(size, int | float) or not positive(size):
        raise DataError(f"its {strategy.weighted_by_key!r} is {size!r}: it must be above 0")
    if strategy.max_examples is not None and size > strategy.max_examples:
        raise DataError(f"it reports {size} rows, more than max_examples = {strategy.max_examples}")
    columns = {"size": float(size)}
    for name, keys in (
        ("loss", (strategy.loss_key,)),
        ("score", ("score-before",)),
        ("loss_after", ("loss-after",)),
    ):
        value = find_number(values, keys)
        if value is not None:
            columns[name] = value
    if "loss_after" in strategy.rule.needs and "loss_after" not in columns:
        raise DataError(
            "the rule needs the loss after training: report it as the metric 'loss-after'"
        )
    return columns


def _fill_losses(
    strategy: FairStrategy, columns: dict[int, dict[str, float]], sent: list[str]
) -> tuple[str, ...]:
    """Take losses and scores that were not reported from each client's last evaluation.

    sent: the names of what clients report
    """
    unknown = []
    for node, column in columns.items():
        known = strategy.known[node]
        if "score" not in column and math.isfinite(known.score):
            column["score"] = known.score
        if "loss" in column:
            continue
        if math.isfinite(known.loss):
            some = "" if strategy.fraction_evaluate == 1 else " (of some, of an earlier model)"
            strategy._say_once(
                f"clients do not report {strategy.loss_key!r}, but {', '.join(sent) or 'nothing'}: "
                "the rule uses the loss of the received model on each node's evaluation rows, from "
                f"the last evaluation{some}"
            )
            column["loss"] = known.loss
        else:
            unknown.append(known.name)
    if not unknown or len(unknown) == len(columns):
        blind = bool(unknown)
        return (_no_losses(strategy, sent),) if blind else ()
    return (f"no loss is known of {', '.join(sorted(unknown)[:5])}: the others' mean is used",)


def _no_losses(strategy: FairStrategy, sent: list[str]) -> str:
    return (
        f"no client has reported {strategy.loss_key!r} (but {', '.join(sent) or 'nothing'}) or was "
        "evaluated before: this round's weights are those of FedAvg"
    )


def _neutral(losses: Mapping[int, float]) -> float:
    """The loss of a client of whom none is known."""
    finite = [loss for loss in losses.values() if math.isfinite(loss)]
    return sum(finite) / len(finite) if finite else 1.0


class _Model:
    """The server's model and the states of rule and server optimizer, on arrays."""

    def __init__(
        self, strategy: FairStrategy, layout: Layout, arrays: Mapping[str, np.ndarray]
    ) -> None:
        self.strategy = strategy
        self.layout = layout
        self.w = layout.vector(arrays)
        self.algorithm: Averaging | None = None
        self.state: State = {"round": torch.tensor(1), "w": self.w}

    def begin(self, clients: int) -> None:
        """Build the algorithm when the number of clients is known."""
        if self.algorithm is not None:
            return
        strategy = self.strategy
        lr = 0.1 if strategy.lr is None else strategy.lr
        self.algorithm = Averaging(
            self.layout.task,
            strategy.rule,
            Client(lr=lr),
            strategy.server,
            strategy.channels,
            max(1, strategy._rounds),
            strategy.seed,
        )
        names = tuple(str(k) for k in range(clients))
        initial = self.algorithm.init(Population(names, torch.ones(clients), (), 1))
        w = self.state["w"]
        initial |= {"w": w, "server": strategy.server.init(w[: self.layout.task.num_trainable])}
        self.state = initial | self.state
        if self.algorithm.init_client(0):
            kept = [each for each in strategy.channels if each.init(self.layout.task)]
            listed = ", ".join(repr(catalog.describe(each)["name"]) for each in kept)
            raise ConfigError(
                f"the channels {listed} keep a memory at the client, which FairStrategy cannot "
                "give them: run a Commonweal experiment on Flower instead"
            )

    def restore(self, saved: State) -> None:
        """Continue from a checkpoint."""
        server: State = saved["server"]
        if server["w"].shape != self.w.shape:
            raise RunError(
                f"checkpoint.safetensors is of another model, with {server['w'].numel()} numbers "
                f"instead of {self.w.numel()}: choose another folder"
            )
        self.state = {"server": {}, "rule": {}, "shared": {}} | server
        strategy = self.strategy
        for node, values in saved["nodes"].items():
            known = _Known(bytes(values["name"].tolist()).decode(), *values["evaluated"].tolist())
            strategy._remembered[int(node)] = known
        for node in strategy.known:
            strategy._recall(node)

    def saved(self) -> State:
        nodes = {}
        for node, known in self.strategy.known.items():
            name = torch.tensor(list(known.name.encode()), dtype=torch.uint8)
            evaluated = torch.tensor([known.loss, known.score], dtype=torch.float64)
            nodes[str(node)] = {"name": name, "evaluated": evaluated}
        return {"server": self.state, "nodes": nodes}

    def update(self, arrays: Mapping[str, np.ndarray]) -> Tensor:
        """The received model minus a client's."""
        w: Tensor = self.state["w"]
        return w - self.layout.vector(arrays)

    def tell(self, read: _Reports, clients: int) -> Outcome:
        """Pass the replies through the channels, ask the rule, and move the model."""
        assert self.algorithm is not None
        algorithm = self.algorithm
        replies = read.replies
        if len(replies.clients):
            replies = replies._replace(values=self._encoded(replies))
        if read.blind and "loss" in algorithm.rule.needs:
            algorithm = replace(algorithm, rule=FedAvg())
        outcome = algorithm.tell(self.state, replies, clients)
        if algorithm is not self.algorithm:
            kept = outcome.state | {"rule": self.state["rule"]}
            outcome = replace(outcome, state=kept)
        self.state = outcome.state
        return outcome

    def _encoded(self, replies: Replies) -> Tensors:
        """What channels do at the client, done here where the client is not ours."""
        assert self.algorithm is not None
        round = int(self.state["round"])
        seed = self.strategy.seed
        streams = [
            randomness.stream(seed, round, client % (1 << 64), randomness.TRAIN)
            for client in replies.clients.tolist()
        ]
        nothing = Rows(torch.empty(0), torch.empty(0), torch.zeros(1, dtype=torch.int64))
        group = Group(replies.clients, nothing, {}, streams, vmap_clients)
        return self.algorithm.encode(replies.values, {}, group)[0]

    def _record_of(self, w: Tensor) -> ArrayRecord:
        arrays = self.layout.arrays(w)
        return ArrayRecord({name: Array(array) for name, array in arrays.items()})

    def arrays(self) -> ArrayRecord:
        """The model that clients train."""
        return self._record_of(self.state["w"])

    def published(self) -> ArrayRecord:
        """The model to evaluate: the last one, or the server optimizer's average."""
        if self.algorithm is None:
            return self.arrays()
        return self._record_of(self.algorithm.model(self.state))

    def tensors(self) -> Tensors:
        w = self.state["w"] if self.algorithm is None else self.algorithm.model(self.state)
        return {name: torch.from_numpy(a.copy()) for name, a in self.layout.arrays(w).items()}


# Experiments of Commonweal on Flower


def _to_record(tensors: State) -> ArrayRecord:
    flat = flatten(tensors)
    return ArrayRecord({name: Array(value.detach().numpy()) for name, value in flat.items()})


def _to_tensors(record: ArrayRecord) -> Tensors:
    # A copy, so that values are aligned as in a process that computed them.
    return {name: torch.tensor(array.numpy()) for name, array in record.items()}


def _config(content: RecordDict) -> Values:
    found: Values = {}
    for record in content.config_records.values():
        found |= dict(record)
    return found


def _check_reply(algorithm: Algorithm, purpose: str, values: Tensors) -> None:
    """Raise DataError where a single reply cannot be used, whatever the others are."""
    if not isinstance(algorithm, Averaging) or purpose != "train":
        return
    needed = ("loss", "score", "size", "update") if type(algorithm) is Averaging else ()
    missing = [name for name in needed if name not in values]
    if missing:
        raise DataError(f"its reply has no {', '.join(missing)}")
    if "update" not in values:
        return
    shape = tuple(values["update"].shape)
    try:
        whole = algorithm.decode(Replies(torch.tensor([0]), values)).values["update"]
    except (RuntimeError, IndexError, ValueError, KeyError):
        whole = values["update"].new_empty(0)
    if tuple(whole.shape) != (1, algorithm.task.size):
        size = algorithm.task.size
        raise DataError(f"its update has shape {shape}, which does not fit a model of {size}")


def _who() -> RecordDict:
    """The query by which a node says which client it is."""
    return RecordDict({"query": ConfigRecord({"purpose": "population"})})


class FlowerEngine(Engine):
    """Carries requests to nodes of Flower; the clients' rows and states stay with them.

    nodes: how many must be connected at the start, within `wait` seconds
    timeout: seconds to wait for replies; who has not answered by then is left out of the round
    preprocessing: of a run that is resumed; without it, clients with own files agree on one
    """

    def __init__(
        self,
        grid: Grid,
        nodes: int = 1,
        wait: float = 120.0,
        timeout: float = 120.0,
        preprocessing: Preprocessing | None = None,
    ) -> None:
        self.grid = grid
        self._agreement = None if preprocessing is None else Agreement.of(preprocessing)
        self.timeout = timeout
        self.clients: dict[str, About] = {}
        self.nodes: dict[str, int] = {}  # by client
        self.refused: dict[int, str] = {}  # nodes that cannot take part
        self.round = -1
        self.step = 0
        self._silent: set[int] = set()
        self._asked: dict[str, Message] = {}  # queries without an answer
        self._asked_at: dict[int, float] = {}  # nodes, and when each was asked last
        self.reset()
        self._meet(nodes, wait)
        known = sorted(self.clients.values(), key=lambda each: (each.position, each.name))
        if self._agreement is None:
            self._agreement = agreed(known)
        self.clients = {about.name: fits(about, self._agreement) for about in known}
        self._know()

    # Nodes

    def _meet(self, nodes: int, wait: float) -> None:
        """Wait until so many nodes have said which client they are, and the others have answered.

        Raises RunError where they do not. The first answers take longest: apps are installed and
        data are read.
        """
        deadline = time.monotonic() + wait
        last = time.monotonic() + max(wait, self.timeout)
        while True:
            connected = wait_for_nodes(self.grid, nodes, max(0.0, deadline - time.monotonic()))
            self._look(max(wait, self.timeout))
            late = time.monotonic() >= last
            if len(self.clients) >= nodes and (late or not self._asked):
                return
            if late or (self.refused.keys() >= set(connected)):
                reasons = "; ".join(dict.fromkeys(self.refused.values()))
                raise RunError(
                    f"{len(self.clients)} of {len(connected)} connected nodes can take part, but "
                    f"{nodes} are needed ({reasons or 'the others did not answer'})"
                )
            time.sleep(PULL if self._asked else POLL)

    def _look(self, patience: float) -> None:
        """Ask nodes that are not known yet which client they are. Nobody is waited for.

        A node that does not answer is asked again after a while: a SuperLink whose database is
        busy loses messages.
        """
        connected = sorted(self.grid.get_node_ids())
        for node in self.refused.keys() - set(connected):
            del self.refused[node]  # it may come back with its fault corrected
        now = time.monotonic()
        settled = {*self.nodes.values(), *self.refused}
        self._asked = {
            key: query
            for key, query in self._asked.items()
            if query.metadata.dst_node_id not in settled
            and now < self._asked_at[query.metadata.dst_node_id] + patience
        }
        queries = [
            Message(_who(), node, MessageType.QUERY, ttl=patience + SLACK)
            for node in connected
            if node not in settled and now >= self._asked_at.get(node, -AGAIN) + AGAIN
        ]
        keys = self.grid.push_messages(queries) if queries else []
        for key, query in zip(keys, queries, strict=True):
            self._asked[key] = query
            self._asked_at[query.metadata.dst_node_id] = now
        for reply in list(self.grid.pull_messages(set(self._asked))) if self._asked else ():
            query = self._asked.pop(reply.metadata.reply_to_message_id)
            node = query.metadata.dst_node_id
            if node not in self.nodes.values():
                self._hear(node, Answers([query], [reply], "in time"))

    def _hear(self, node: int, answers: Answers) -> None:
        """Admit a node that has said which client it is, or say why not."""
        if node not in answers.contents:
            self._refuse(node, answers.failed[node])
            return
        try:
            self._admit(node, About.read(_config(answers.contents[node])))
        except DataError as error:
            self._refuse(node, str(error))

    def _refuse(self, node: int, why: str) -> None:
        if not why.startswith("no reply") and UNAVAILABLE not in why:  # those are asked again
            self.refused[node] = why
        if node not in self._silent:
            logger.warning("node %d cannot take part: %s", node, why)
        self._silent.add(node)

    def _admit(self, node: int, about: About) -> None:
        """Add a client, or give one that was away its new node."""
        other = self.nodes.get(about.name)
        if other is not None and other in set(self.grid.get_node_ids()):
            raise DataError(f"its client {about.name!r} is already at node {other}")
        if self._started:
            about = fits(about, self._agreement)
            joined([next(iter(self.clients.values())), about])  # raises where data do not fit
        before = self.clients.get(about.name)
        if before is not None and before.rows != about.rows:
            raise DataError(
                f"its client {about.name!r} has {about.rows} rows, but had {before.rows}"
            )
        self.clients[about.name] = about
        self.nodes[about.name] = node

    def _know(self) -> None:
        outputs = self.population.outputs if self._started else 0
        self.population, self.about = joined(list(self.clients.values()))
        if self._started and self.population.outputs > outputs:
            raise RunError(
                f"a client that joined late has {self.population.outputs} classes, but the model "
                f"has {outputs} outputs: start again with all clients"
            )
        self._started = True

    _started = False

    @property
    def preprocessing(self) -> Preprocessing | None:
        return None if self._agreement is None else self._agreement.preprocessing

    @cached_property
    def _text(self) -> str:
        """The agreement, as messages carry it."""
        return "" if self._agreement is None else self._agreement.text()

    # Messages

    def _exchange(
        self, contents: Mapping[int, RecordDict], kind: str, timeout: float | None = None
    ) -> Answers:
        """Send to several nodes at once and wait for the replies, at most `timeout` seconds."""
        patience = self.timeout if timeout is None else timeout
        ttl = patience + SLACK
        sent = [Message(content, node, kind, ttl=ttl) for node, content in contents.items()]
        waiting = {key for key in self.grid.push_messages(sent) if key}
        deadline = time.monotonic() + patience
        replies: list[Message] = []
        while waiting:
            arrived = list(self.grid.pull_messages(waiting))
            replies += arrived
            waiting -= {reply.metadata.reply_to_message_id for reply in arrived}
            left = deadline - time.monotonic()
            if left <= 0:
                break
            if waiting:
                time.sleep(min(PULL, left))
        return Answers(sent, replies, f"within {patience:g} s")

    def _ask(self, clients: Iterable[str], contents: Iterable[RecordDict], kind: str) -> Answers:
        """Ask clients by name. Those whose node is away are not waited for."""
        connected = set(self.grid.get_node_ids())
        away = {}
        messages = {}
        for name, content in zip(clients, contents, strict=True):
            node = self.nodes[name]
            if node in connected:
                messages[node] = content
            else:
                away[node] = "its node is not connected"
        answers = self._exchange(messages, kind)
        answers.failed |= away
        return answers

    def _when(self, round: int, purpose: str, **more: str) -> ConfigRecord:
        return ConfigRecord(
            {
                "purpose": purpose,
                "run": f"{self.run:x}",
                "round": round,
                "step": self.step,
                "saved": self.saved,
                "outputs": self.about.outputs,
                "score": self.about.score,
                "target": list(self.about.target or ()),
                "preprocessing": self._text,
                **more,
            }
        )

    def collect(self, algorithm: Algorithm, request: Request) -> Replies:
        before = len(self.clients)
        self._look(self.timeout)  # lets nodes in that have come since the last request
        if len(self.clients) > before:
            self._know()
        round = int(request.message["round"])
        self.step = self.step + 1 if round == self.round else 0
        self.round = round
        asked = [self.population.names[client] for client in request.clients.tolist()]
        message = _to_record(request.message)
        config = self._when(round, request.purpose)
        contents = []
        for k in range(len(asked)):
            records: dict[str, ArrayRecord | MetricRecord | ConfigRecord] = {
                "message": message,
                "when": config,
            }
            if request.each:
                records["each"] = _to_record(select(request.each, slice(k, k + 1)))
            contents.append(RecordDict(records))
        answers = self._ask(asked, contents, MessageType.TRAIN)
        return self._replies(algorithm, request, answers)

    def _replies(self, algorithm: Algorithm, request: Request, answers: Answers) -> Replies:
        """Put replies in the order of the request. Those that do not fit are named."""
        failed: dict[int, str] = {}
        arrived: dict[int, Tensors] = {}
        for client in request.clients.tolist():
            name = self.population.names[client]
            node = self.nodes[name]
            if node in answers.failed:
                failed[client] = answers.failed[node]
                continue
            try:
                values = self._checked(name, answers.contents[node])
                _check_reply(algorithm, request.purpose, values)
                arrived[client] = values
            except DataError as error:
                failed[client] = str(error)
        wrong = unusual(arrived, algorithm.task.size)
        for client, why in wrong.items():
            del arrived[client]
            failed[client] = why
        names = next(iter(arrived.values()), {})
        values = {n: torch.cat([reply[n] for reply in arrived.values()]) for n in names}
        return Replies(torch.tensor(list(arrived), dtype=torch.int64), values, failed)

    def _checked(self, name: str, content: RecordDict) -> Tensors:
        records = list(content.array_records.values())
        if len(records) != 1:
            raise DataError(f"it sent {len(records)} array records instead of one")
        values = _to_tensors(records[0])
        size = values.get("size")
        rows = self.clients[name].rows
        if size is not None and (size.numel() != 1 or size.item() != rows):
            raise DataError(f"it reports {size.tolist()} rows, but said that it has {rows}")
        return values

    # Evaluation

    def evaluate(self, algorithm: Algorithm, state: State, part: str = "test") -> Evaluation:
        message = algorithm.message(state) if algorithm.personalizes else {}
        arrays = _to_record({**message, "w": algorithm.model(state)})
        names = self.population.names
        config = self._when(self.round, "evaluate", part=part)
        content = [RecordDict({"message": arrays, "when": config}) for _ in names]
        answers = self._ask(names, content, MessageType.EVALUATE)
        arrived = {}
        for client, name in enumerate(names):
            reply = answers.contents.get(self.nodes[name])
            try:
                if reply is not None:
                    arrived[client] = evaluated(_to_tensors(reply.array_records["reply"]))
            except (DataError, KeyError, ValueError) as error:
                logger.warning("evaluation: client %s sent no evaluation (%s)", name, error)
        shared = gathered(arrived, len(names), algorithm.task.scores)
        if not algorithm.personalizes:
            return shared
        own = gathered(arrived, len(names), algorithm.task.scores, "own_")
        return replace(shared, personal=own)

    def facts(self, algorithm: Algorithm) -> RunFacts:
        columns = () if self.preprocessing is None else self.preprocessing.columns
        return RunFacts(
            engine="flower",
            clients=self.population.clients,
            train_rows=int(self.population.sizes.sum()),
            notes=tuple(
                f"column {column.name!r} is left out: {column.why}"
                for column in columns
                if column.becomes == "nothing"
            ),
        )

    # Clients' states are with the clients; the server says which run they belong to

    def reset(self) -> None:
        self.run = secrets.randbits(62)
        self.round = -1
        self.step = 0
        self.saved = 0
        self._saving = 0

    def save(self, last: int) -> State:
        self._saving = last
        return {"flower_run": torch.tensor(self.run)}

    def confirm(self) -> None:
        self.saved = self._saving

    def restore(self, saved: State, folder: Path, resume: bool = True) -> None:
        if "flower_run" in saved:
            self.run = int(saved["flower_run"])
            self.saved = int(saved["server"]["round"]) - 1


def client_app(build: Callable[[Values], Member]) -> ClientApp:
    """A ClientApp whose functions call `Algorithm.answer` for the node's own rows.

    build: from the node's and the run's configuration to the client
    """
    app = ClientApp()
    built: dict[int, Member] = {}

    def opened(context: Context) -> Member:
        if context.node_id not in built:
            built[context.node_id] = build({**context.run_config, **context.node_config})
        return built[context.node_id]

    def read(message: Message, context: Context) -> "tuple[Node, Algorithm, When, Values]":
        config = _config(message.content)
        member = opened(context)
        node = member.node(str(config["preprocessing"]))
        numbers = {key: int(config[key]) for key in ("round", "step", "saved")}
        when = When(int(config["run"], 16), **numbers)
        told = replace(
            node.about,
            outputs=int(config["outputs"]),
            score=str(config["score"]),
            target=tuple(config["target"]) or None,
        )
        return node, member.algorithm(told), when, config

    @app.query()
    def query(message: Message, context: Context) -> Message:
        about = ConfigRecord(opened(context).about.values())
        return Message(RecordDict({"about": about}), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        node, algorithm, when, config = read(message, context)
        records = message.content.array_records
        each = _to_tensors(records["each"]) if "each" in records else {}
        request = Request(
            torch.tensor([0]), _to_tensors(records["message"]), config["purpose"], each
        )
        values = node.answer(algorithm, request, when)
        return Message(RecordDict({"reply": _to_record(values)}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        node, algorithm, when, config = read(message, context)
        received = _to_tensors(message.content.array_records["message"])
        values = node.evaluate(algorithm, received, when, str(config["part"]))
        return Message(RecordDict({"reply": _to_record(values)}), reply_to=message)

    return app


def server_app(main: Callable[[Grid, Values], None]) -> ServerApp:
    """A ServerApp that runs `main` with the grid and the run's configuration."""
    app = ServerApp()

    @app.main()
    def run(grid: Grid, context: Context) -> None:
        main(grid, dict(context.run_config))

    return app
