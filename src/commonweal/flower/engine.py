"""`FlowerEngine`: experiments of Commonweal on Flower's nodes."""

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from commonweal.base.errors import DataError, RunError
from commonweal.base.tensors import State, Tensors, concatenate, select, summed
from commonweal.data.tables.preprocessing import Preprocessing
from commonweal.engines.engine import Engine
from commonweal.flower import messages
from commonweal.flower.content import settings_of
from commonweal.flower.directory import NodeKeys
from commonweal.flower.messages import Answers, logger, to_record, to_tensors
from commonweal.flower.node import (
    RequestKey,
    Schema,
    agreed,
    fitted_schema,
    joined_schema,
    to_settings,
)
from commonweal.flower.replies import check_reply, evaluated, gathered, unusual
from commonweal.flower.reports import Problem, listed
from commonweal.flower.secure import secure_sum
from commonweal.protocols.algorithm import Algorithm, Replies, Request
from commonweal.record.client_states import StateStore
from commonweal.record.facts import RunFacts
from commonweal.training.evaluation import Evaluation

AGAIN = 60.0  # seconds after which a node that has not said which client it is is asked again
AWAY = Problem("unavailable", "its node is not connected")


class FlowerEngine(Engine, StateStore):
    """Carries requests to nodes of Flower; the clients' samples and states stay with them.

    Args:
        grid: Flower's connection to the nodes.
        nodes: How many nodes must be connected at the start.
        wait: Seconds to wait for them.
        timeout: Seconds to wait for replies; who has not answered by then is left out of the
            round.
        preprocessing: Of a run that is resumed; without it, clients with own files agree on one.
        bind_names: Refuse a node that gives the name of a client with another key.
    """

    def __init__(
        self,
        grid: Grid,
        nodes: int = 1,
        wait: float = 120.0,
        timeout: float = 120.0,
        preprocessing: Preprocessing | None = None,
        bind_names: bool = True,
        names: Sequence[str] = (),
    ) -> None:
        self.grid = grid
        self.bind_names = bind_names
        self.keys = NodeKeys()
        self.timeout = timeout
        self.clients: dict[str, Schema] = {}
        self.nodes: dict[str, int] = {}  # by client
        self.refused: dict[int, str] = {}  # nodes that cannot take part
        self.round = -1
        self.step = 0
        self._preprocessing = preprocessing
        self._setting: Schema | None = None  # known once the clients at the start are
        self._informed: set[int] = set()  # nodes that have the run's setting
        self._warned: set[int] = set()
        self._asked: dict[str, Message] = {}  # queries without an answer
        self._asked_at: dict[int, float] = {}  # nodes, and when each was asked last
        self.states = self
        self.reset()
        self._meet(nodes, wait)
        known = sorted(self.clients.values(), key=lambda schema: (schema.position, schema.name))
        self._preprocessing = preprocessing or agreed(known)
        self.clients = {schema.name: fitted_schema(schema, self._preprocessing) for schema in known}
        self._order = list(names)
        self.population, self.schema = joined_schema(self._members())
        table = "" if self.preprocessing is None else json.dumps(self.preprocessing.values())
        self._setting = replace(self.schema, name="", samples=1, group="", table=table)

    # Nodes

    def _members(self) -> list[Schema]:
        """The clients in the order of their ids, which a resumed run keeps.

        One that is away since the run was resumed has the mean number of samples until it comes.
        """
        self._order += [name for name in self.clients if name not in set(self._order)]
        known = list(self.clients.values())
        samples = round(sum(schema.samples for schema in known) / len(known))
        away = replace(known[0], samples=samples)
        return [self.clients.get(name) or replace(away, name=name) for name in self._order]

    def _meet(self, nodes: int, wait: float) -> None:
        """Wait until so many nodes have said which client they are, and the others have answered.

        Raises RunError where they do not. The first answers take longest: apps are installed and
        data are read.
        """
        deadline = time.monotonic() + wait
        last = time.monotonic() + max(wait, self.timeout)
        while True:
            connected = messages.wait_for_nodes(
                self.grid, nodes, max(0.0, deadline - time.monotonic())
            )
            self._look(max(wait, self.timeout))
            late = time.monotonic() >= last
            if len(self.clients) >= nodes and (late or not self._asked):
                return
            if late or (self.refused.keys() >= set(connected)):
                reasons = list(dict.fromkeys(self.refused.values()))
                silent = sorted({*connected} - {*self.nodes.values(), *self.refused})
                if silent:
                    reasons.append(f"no answer from {listed([str(node) for node in silent])}")
                raise RunError(
                    f"{len(self.clients)} of {len(connected)} connected nodes can take part, but "
                    f"{nodes} are needed ({'; '.join(reasons)})"
                )
            time.sleep(messages.PULL if self._asked else messages.POLL)

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
        for key, query in list(self._asked.items()):
            node = query.metadata.dst_node_id
            if node in settled or now >= self._asked_at[node] + patience:
                del self._asked[key]
        queries = [
            Message(_query("schema"), node, MessageType.QUERY, ttl=patience + messages.SLACK)
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
        """Admit a node that has said which client it is, or refuse it."""
        problem = answers.failed.get(node)
        try:
            if problem is None:
                self._admit(node, Schema.read(settings_of(answers.contents[node])))
                return
        except DataError as error:
            problem = Problem("schema", str(error))
        if not problem.passing:  # others are asked again
            self.refused[node] = problem.text
        if node not in self._warned:
            logger.warning("node %d cannot take part: %s", node, problem.text)
        self._warned.add(node)

    def _admit(self, node: int, schema: Schema) -> None:
        """Add a client, or give one that was away its new node."""
        if self.bind_names:
            self.keys.bind(schema.name, messages.node_keys(self.grid).get(node))
        other = self.nodes.get(schema.name)
        if other is not None and other in set(self.grid.get_node_ids()):
            raise DataError(f"its client {schema.name!r} is already at node {other}")
        if self._setting is not None:
            schema = fitted_schema(schema, self._preprocessing)
            joined_schema(
                [next(iter(self.clients.values())), schema]
            )  # raises where data do not fit
        before = self.clients.get(schema.name)
        if before is not None and before.samples != schema.samples:
            raise DataError(
                f"its client {schema.name!r} has {schema.samples} samples, but had {before.samples}"
            )
        self.clients[schema.name] = schema
        self.nodes[schema.name] = node

    @property
    def preprocessing(self) -> Preprocessing | None:
        return self._preprocessing

    # Messages

    def _exchange(self, contents: Mapping[int, RecordDict], kind: str) -> Answers:
        """Send to several nodes at once and wait for the replies, at most `timeout` seconds."""
        ttl = self.timeout + messages.SLACK
        sent = [Message(content, node, kind, ttl=ttl) for node, content in contents.items()]
        waiting = {key for key in self.grid.push_messages(sent) if key}
        deadline = time.monotonic() + self.timeout
        replies: list[Message] = []
        while waiting:
            arrived = list(self.grid.pull_messages(waiting))
            replies += arrived
            waiting -= {reply.metadata.reply_to_message_id for reply in arrived}
            left = deadline - time.monotonic()
            if left <= 0:
                break
            if waiting:
                time.sleep(min(messages.PULL, left))
        return Answers(sent, replies, f"within {self.timeout:g} s")

    def _ask(self, contents: Mapping[str, RecordDict], kind: str) -> Answers:
        """Ask clients by name. Those whose node is away are not waited for.

        A node gets the run's setting with the first message that it answers, and again after a
        failure, since a node that was started elsewhere does not have it.
        """
        assert self._setting is not None
        by_node = {self.nodes[name]: own for name, own in contents.items() if name in self.nodes}
        away = by_node.keys() - set(self.grid.get_node_ids())
        for node in away:
            del by_node[node]
        for node in by_node.keys() - self._informed:
            setting = ConfigRecord(to_settings(self._setting))
            by_node[node] = RecordDict({**by_node[node], "setting": setting})
        answers = self._exchange(by_node, kind)
        answers.failed |= dict.fromkeys(away, AWAY)
        self._informed = (self._informed | answers.contents.keys()) - answers.failed.keys()
        return answers

    def _content(self, message: Tensors, purpose: str) -> RecordDict:
        """A message with the key of the request."""
        key = RequestKey(self._run, self.round, self.step, self.saved, purpose)
        request = ConfigRecord(to_settings(key))
        return RecordDict({"message": to_record(message), "request": request})

    def collect(self, algorithm: Algorithm, request: Request) -> Replies:
        self._let_in()
        round = int(request.message["round"])
        self.step = self.step + 1 if round == self.round else 0
        self.round = round
        content = self._content(request.message, request.purpose)
        contents = {}
        for k, client in enumerate(request.clients.tolist()):
            own = RecordDict(dict(content))
            if request.each:
                own["each"] = to_record(select(request.each, slice(k, k + 1)))
            contents[self.population.names[client]] = own
        if request.purpose in algorithm.masked:
            return self._secure_sum(request, contents)
        return self._replies(algorithm, request, self._ask(contents, MessageType.TRAIN))

    def _secure_sum(self, request: Request, contents: Mapping[str, RecordDict]) -> Replies:
        """The sum over the masked replies, of which none is seen."""
        names = {self.nodes[name]: name for name in contents if name in self.nodes}

        def ask(by_node: Mapping[int, RecordDict]) -> Answers:
            named = {names[node]: content for node, content in by_node.items()}
            return self._ask(named, MessageType.TRAIN)

        sums = secure_sum(ask, {node: contents[name] for node, name in names.items()})
        clients, failed = [], {}
        for client in request.clients.tolist():
            node = self.nodes.get(self.population.names[client])
            if node in sums.nodes:
                clients.append(client)
            else:
                failed[client] = AWAY.text if node is None else sums.failed[node]
        return Replies(torch.tensor(clients, dtype=torch.int64), sums.values, failed)

    def _let_in(self) -> None:
        """Let nodes in that have come since the last request."""
        before = len(self.clients)
        self._look(self.timeout)
        if len(self.clients) == before:
            return
        outputs = self.population.outputs
        self.population, _ = joined_schema(self._members())
        if self.population.outputs > outputs:
            raise RunError(
                f"a client that joined late has {self.population.outputs} classes, but the model "
                f"has {outputs} outputs: start again with all clients"
            )

    def _replies(self, algorithm: Algorithm, request: Request, answers: Answers) -> Replies:
        """Put replies in the order of the request. Those that do not fit are named."""
        failed: dict[int, str] = {}
        arrived: dict[int, Tensors] = {}
        for client in request.clients.tolist():
            name = self.population.names[client]
            node = self.nodes.get(name)
            if node is None or node in answers.failed:
                failed[client] = (AWAY if node is None else answers.failed[node]).text
                continue
            try:
                values = self._checked(name, answers.contents[node])
                check_reply(algorithm, request.purpose, values)
                arrived[client] = values
            except DataError as error:
                failed[client] = str(error)
        for client, reason in unusual(arrived).items():
            del arrived[client]
            failed[client] = reason
        values = concatenate(list(arrived.values())) if arrived else {}
        if request.summed:
            values = summed(values)
        return Replies(torch.tensor(list(arrived), dtype=torch.int64), values, failed)

    def _checked(self, name: str, content: RecordDict) -> Tensors:
        values = to_tensors(messages.only_arrays(content))
        size = values.get("size")
        samples = self.clients[name].samples
        if size is not None and (size.numel() != 1 or size.item() != samples):
            raise DataError(
                f"it reports {size.tolist()} samples, but {samples} when the run started"
            )
        return values

    # Evaluation

    def evaluate(self, algorithm: Algorithm, state: State, part: str = "test") -> Evaluation:
        message = algorithm.message(state) if algorithm.personalizes else {}
        content = self._content({**message, "w": algorithm.model(state)}, part)
        names = self.population.names
        answers = self._ask(dict.fromkeys(names, content), MessageType.EVALUATE)
        arrived = {}
        refused = {}
        for client, name in enumerate(names):
            node = self.nodes.get(name, -1)
            if node in answers.failed:
                refused[client] = answers.failed[node].text
            reply = answers.contents.get(node)
            try:
                if reply is not None:
                    arrived[client] = evaluated(to_tensors(reply.array_records["reply"]))
            except (DataError, KeyError, ValueError) as error:
                logger.warning("evaluation: client %s sent no evaluation (%s)", name, error)
        shared = gathered(arrived, len(names), algorithm.task.scores)
        shared = replace(shared, refused=refused)
        if not algorithm.personalizes:
            return shared
        own = gathered(arrived, len(names), algorithm.task.scores, "own_")
        return replace(shared, personal=own)

    def facts(self, algorithm: Algorithm) -> RunFacts:
        notes = [*self.preprocessing.notes] if self.preprocessing else []
        for column in () if self.preprocessing is None else self.preprocessing.columns:
            if column.becomes == "nothing":
                notes.append(f"column {column.name!r} is left out: {column.why}")
        notes += [f"node {node} takes no part: {why}" for node, why in self.refused.items()]
        return RunFacts(
            engine="flower",
            clients=self.population.clients,
            train_rows=int(self.population.sizes.sum()),
            notes=tuple(notes),
        )

    # Clients' states are with the clients; the server says which run they belong to

    @property
    def _run(self) -> str:
        return f"{self.run:016x}"

    def reset(self) -> None:
        self.run = secrets.randbits(62)
        self.round = -1
        self.step = 0
        self.saved = 0
        self._saving = 0
        self._informed.clear()

    def save(self, last: int) -> State:
        self._saving = last
        return {"flower_run": torch.tensor(self.run), "flower_keys": self.keys.saved()}

    def confirm(self) -> None:
        self.saved = self._saving

    def restore(self, saved: State, folder: Path, resume: bool = True) -> None:
        if "flower_run" in saved:
            self.run = int(saved["flower_run"])
            self.saved = int(saved["server"]["round"]) - 1
        if self.bind_names and "flower_keys" in saved:
            self.keys.restore(saved["flower_keys"])

    def finish(self, keep: bool) -> None:
        """Tell the nodes that the run is over, so that they delete its states.

        Args:
            keep: Keep each client's last state, as where it holds a personal model.
        """
        connected = set(self.nodes.values()) & set(self.grid.get_node_ids())
        query = _query("finish", run=self._run, keep=keep)
        contents = dict.fromkeys(sorted(connected), query)
        for node, problem in self._exchange(contents, MessageType.QUERY).failed.items():
            logger.warning("node %d may have kept its states: %s", node, problem.text)


def _query(purpose: str, **settings: str | bool) -> RecordDict:
    """A question to a node about itself."""
    return RecordDict({"query": ConfigRecord({"purpose": purpose, **settings})})
