"""boosting: trees that all clients grow together, each of them weighted by a rule of losses.

The objective of a rule of losses is sum_k p_k f_k(F), F the sum of trees and f_k the mean loss of
client k. A step of boosting needs sum_k (p_k / n_k) sum_i g_i by node and bin, and the same of
second derivatives: sums over clients, with weights. So the rule decides from the clients' losses
before each tree, and clients send histograms. Boosting for several sources has a theory since
Cortes, Mohri, Storcheus and Suresh, Boosting with Multiple Sources, NeurIPS 2021. What leaves a
client are its loss, its numbers of rows, and sums over its rows that are already weighted.
"""

import math
from collections.abc import Generator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from commonweal.base.errors import ConfigError, DataError, RunError
from commonweal.base.randomness import purpose, stream
from commonweal.base.tensors import State, Tensors
from commonweal.config.catalog import Entry, entries, named_part
from commonweal.data.population import Population
from commonweal.data.rows import CLASSIFICATION, REGRESSION, Rows
from commonweal.models.tree_ensemble import ABSENT, TreeEnsemble, Trees, count_columns, own_trees
from commonweal.protocols.algorithm import (
    Algorithm,
    Conversation,
    Group,
    Outcome,
    Replies,
    Request,
    Sample,
    after_round,
    ask_clients,
    is_used,
    setting,
    unchanged,
)
from commonweal.protocols.averaging import label_counts
from commonweal.protocols.growing import Growing, Limits, Question
from commonweal.protocols.sums import UNAVAILABLE, collected, rules_of_losses
from commonweal.protocols.tree_work import LEFT, VALUE, TreeWork, bins_of
from commonweal.rules.rule import Decision, Need, Reports, Rule, decide
from commonweal.task import scores
from commonweal.task.task import Task
from commonweal.task.uses import Uses, one_model
from commonweal.training.bins import PARTS, STAGES, TOP, Distribution, floats_of_keys, rows_up_to
from commonweal.training.client import Client
from commonweal.training.client_state import NO_STATE, ClientState
from commonweal.training.evaluation import by_client
from commonweal.training.gradients import GRADIENTS

SUMS = frozenset({"count", "histogram", "median"})  # the requests of which sums are used
PLAIN = Client()  # of which boosting needs nothing
COLUMNS, ROWS = map(purpose, ("columns", "histogram"))  # of the random streams that draw them
Preparing = Generator[Request, Replies, State]


class LostError(Exception):
    """Some clients did not answer a request for a sum: id -> why."""

    def __init__(self, clients: dict[int, str]) -> None:
        super().__init__(f"clients {list(clients)} did not answer")
        self.clients = clients


@dataclass(frozen=True, eq=False)
class Boosting(Algorithm):
    """F <- F + tree, grown by sums over clients of (p_k / n_k) times their derivatives

    lr: by which a tree's values are multiplied
    min_rows: the least number of rows of a leaf, of all clients together
    l2: is added to sums of second derivatives, which shrinks the values of small leaves
    bins: the largest number of bins of a feature
    min_rows_per_bin: the least number of rows of a bin, of all clients together; bins with fewer
        are merged with their neighbours, so that no threshold is about a few rows
    sample_rows: the share of its rows that a client draws for a tree
    sample_columns: the share of the features that are drawn for a tree
    personal: "client" lets trees ask which client it is, so that each has trees of its own; who
        it is, only the client knows. Clients that take no part answer no to all such questions
    secure: clients on Flower mask their counts and histograms, so that the server sees only their
        sums (SecAgg+). The simulator adds them up without masks
    """

    task: Task
    population: Population
    rule: Rule
    rounds: int = 100
    seed: int = 0
    lr: float = 0.1
    min_rows: int = 20
    l2: float = 0.0
    bins: int = 255
    min_rows_per_bin: int = 1
    sample_rows: float = 1.0
    sample_columns: float = 1.0
    personal: Literal["none", "client"] = "none"
    client: Client = PLAIN
    secure: bool = False

    together: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._check_fields("lr", "sample_rows", "sample_columns", above=0)
        self._check_fields("min_rows", "min_rows_per_bin", least=1)
        self._check_fields("bins", least=2)
        self._check_fields("l2", least=0)
        for name in ("sample_rows", "sample_columns"):
            if vars(self)[name] > 1:
                raise ConfigError(f"boosting {name} = {vars(self)[name]}: it is a share, at most 1")
        if self.bins > 255:
            raise ConfigError(f"boosting bins = {self.bins}: at most 255 are used")
        self._check_rule()
        self._check_client()
        if self.secure:
            self._check_secure()
        if self.task.is_network:
            kind = type(self.task.module).__name__
            raise ConfigError(
                f"boosting grows trees, but the model is a {kind}: take the model 'trees', which "
                "is the default of boosting"
            )
        if self.task.own_loss is not None or self.task.loss not in (*GRADIENTS, "cox"):
            known = ", ".join((*GRADIENTS, "cox"))
            raise ConfigError(f"boosting has no derivatives of {self.task.loss!r}, only of {known}")
        if len(self.ensemble.trees.feature) < self.rounds * self.columns:
            room = len(self.ensemble.trees.feature) // self.columns
            raise ConfigError(
                f"the model has room for {room} trees, but there are {self.rounds} rounds: give "
                f"it rounds = {self.rounds}"
            )

    def _check_rule(self) -> None:
        """Raise ConfigError for a rule that needs more than boosting has."""
        unavailable = self.rule.needs & UNAVAILABLE
        if not unavailable:
            return
        name = type(self.rule).__name__
        raise ConfigError(
            f"boosting has trees and no updates, but {name} needs {sorted(unavailable)}: take a "
            f"rule of losses, which are {', '.join(rules_of_losses())}, or grouped or excess "
            "around one of them"
        )

    def _check_client(self) -> None:
        """Raise ConfigError for a client method that needs a network."""
        if self.client == PLAIN:
            return
        if not self.client.takes_trees:
            taken = [name for name, entry in entries("clients").items() if _takes_trees(entry)]
            raise ConfigError(
                "boosting trains no network and does not take a client such as "
                f"{named_part(self.client)}: leave it out, or take one of {', '.join(taken)}"
            )
        if self.asks_clients:
            raise ConfigError(
                f"personal = {self.personal!r} gives each client trees of its own, and the client "
                f"method {type(self.client).__name__} local models: take one of the two"
            )
        self.client.check(self.task, self.rounds)

    def _check_secure(self) -> None:
        """Raise ConfigError where a sum would be one client's, or replies are used one by one."""
        if self.asks_clients:
            raise ConfigError(
                f"personal = {self.personal!r} asks which client a row belongs to, so that "
                "histograms are single clients': with secure = true, leave personal out"
            )
        collects = collected(self.client, self.rounds)
        if collects:
            raise ConfigError(
                f"secure = true shows the server sums only, but {type(self.client).__name__} "
                f"collects each client's reply ({collects}): leave it out, or secure"
            )

    @property
    def masked(self) -> frozenset[str]:
        return SUMS if self.secure else frozenset()

    @property
    def ensemble(self) -> TreeEnsemble:
        """The module that the task wraps."""
        module = self.task.module
        assert isinstance(module, TreeEnsemble)
        return module

    @property
    def features(self) -> int:
        """The number of numbers of a row."""
        return math.prod(self.population.shape)

    @property
    def outputs(self) -> int:
        return len(self.ensemble.base)

    @property
    def columns(self) -> int:
        """The number of trees that a round grows: one for each class, or one."""
        return count_columns(self.outputs)

    @property
    def limits(self) -> Limits:
        """The limits at which a tree stops growing."""
        leaves = (self.ensemble.trees.feature.shape[1] + 1) // 2
        return Limits(leaves, self.ensemble.depth, self.min_rows, l2=self.l2, lr=self.lr)

    @property
    def needs(self) -> frozenset[Need]:
        return self.rule.needs

    # The server

    def init(self, population: Population) -> State:
        features = self.features
        return {
            "round": torch.tensor(1),
            "w": self.task.initial.clone(),
            "rule": self.rule.init(setting(population, self.rounds, self.lr)),
            "cuts": torch.empty(0),  # the thresholds between the bins of all features
            "lengths": torch.zeros(features, dtype=torch.int64),
            "missing": torch.zeros(features, dtype=torch.bool),
            # Of the splits by each feature, and those by clients
            "gain": torch.zeros(features + self.asks_clients, dtype=torch.float64),
            **({"taken": torch.zeros(len(taken))} if (taken := self.client.candidates) else {}),
        }

    @property
    def asks_clients(self) -> bool:
        """True if trees may ask which client it is."""
        return self.personal == "client"

    @property
    def personalizes(self) -> bool:
        return self.asks_clients or self.client.personalizes

    def model(self, state: State) -> Tensor:
        return self.own(state["w"], -1)

    def importance(self, state: State) -> Tensor:
        """By how much the splits by each feature reduce the loss."""
        gain: Tensor = state["gain"]
        return gain

    def own(self, w: Tensor, client: Tensor | int) -> Tensor:
        """The model of one client; -1: of one that no tree knows."""
        if not self.asks_clients:
            return w
        tensors = self.task.tensors(w)
        trees = Trees(*(tensors[name] for name in Trees._fields))
        own = own_trees(trees, self.features, client)
        return self.task.vector(dict(tensors) | own._asdict())

    def message(self, state: State) -> Tensors:
        message = {"w": self.model(state), "round": state["round"]}
        message["rounds"] = torch.tensor(self.rounds)
        return message | {"trees": state["w"]} if self.asks_clients else message

    def init_client(self, seed: int) -> ClientState:
        if self.asks_clients:
            return ClientState(protocol={"client": torch.tensor([-1])})
        return ClientState(self.client.init_client(self.task, seed))

    def uses(self, message: Tensors, client_state: ClientState) -> Uses:
        if self.asks_clients:
            return one_model(self.own(message["trees"], client_state.protocol["client"]))
        return self.client.uses(self.task, message, client_state.method)

    def mixture(self, state: State, clients: int) -> Tensor | None:
        return self.rule.averaged(state["rule"], clients)

    def ask(self, state: State) -> Tensors:
        """Return the message of every request: the rounds and the trees so far."""
        tensors = self.task.tensors(state["w"])
        count = (int(state["round"]) - 1) * self.columns
        trees = Trees(*(tensors[name][:count] for name in Trees._fields))
        rounds = {"round": state["round"], "rounds": torch.tensor(self.rounds)}
        return rounds | {"trees": trees.packed, "base": tensors["base"]}

    def round(self, state: State, sample: Sample) -> Conversation:
        """Grow trees, and make the further requests of the client method to all clients."""
        outcome = yield from self.exchange(state, sample)
        clients = sample.population.clients
        return (yield from after_round(self, self.client, self.rounds, outcome, clients))

    def exchange(self, state: State, sample: Sample) -> Conversation:
        """Ask a cohort for losses, and grow the trees of a round."""
        if int(state["round"]) == 1:
            state = yield from self.prepare(state, sample.population)
        clients = sample.population.clients
        drawn = sample(lambda: self.rule.distribution(state["rule"], clients))
        cohort = torch.unique(drawn)
        replies = yield Request(cohort, self.ask(state), "loss", {"client": cohort})
        replies = replies.finite()
        if len(replies.clients) == 0:
            return unchanged(state, replies)
        decision = decide(self.rule, self.reports(replies, clients), state["rule"])
        state = state | {"rule": decision.state}
        weights = decision.weights.double().clamp(min=0) * is_used(decision, replies)
        if not weights.sum() > 0:
            return unchanged(state, replies)
        return (yield from self.grow(state, clients, replies, decision, weights / weights.sum()))

    def reports(self, replies: Replies, clients: int) -> Reports:
        """Return the rule's reports: its view of the replies."""
        values = replies.values
        score = values["score"]
        if scores.find_score(self.task.score).lower_is_better:
            score = -score  # for rules higher is better
        return Reports(
            ids=replies.clients,
            sizes=values["size"],
            losses=values["loss"],
            scores=score,
            clients=clients,
            checked=True,
        )

    def grow(
        self,
        state: State,
        clients: int,
        replies: Replies,
        decision: Decision,
        weights: Tensor,
    ) -> Conversation:
        """Grow the trees of a round. Clients that fail leave, and the trees are grown again."""
        sizes = replies.values["size"].double()
        counts = weights > 0
        failed = dict(replies.failed)
        while counts.any():
            share = weights / weights[counts].sum()
            per_row = (share * sizes[counts].sum() / sizes)[counts]
            cohort = replies.clients[counts]
            try:
                following = yield from self.grow_from(state, clients, cohort, per_row)
            except LostError as error:
                failed |= error.clients
                counts &= ~torch.isin(replies.clients, torch.tensor(list(error.clients)))
                continue
            used = share[counts]
            dropped = failed | decision.dropped
            return Outcome(following, cohort, used, dropped, decision.capped, decision.warnings)
        return unchanged(state, Replies(replies.clients, {}, failed))

    def grow_from(self, state: State, clients: int, cohort: Tensor, per_row: Tensor) -> Preparing:
        """Grow the trees of a round from some clients, by a request for each depth.

        Args:
            state: The server's.
            clients: How many clients there are.
            cohort: Who is asked (S,).
            per_row: By what each client multiplies its rows' derivatives (S,).

        Returns:
            The state after the round.

        Raises:
            LostError: Some clients did not answer, so that sums are not over the same rows.
        """
        bins = bins_of(state)
        features = self.draw_columns(int(state["round"]), len(state["lengths"]))
        some = bins.only(features)
        known = clients if self.asks_clients else 0
        question = Question.of(some, features, self.features + np.arange(known))
        grown = [Growing(some, question, self.limits) for _ in range(self.columns)]
        message = self.ask(state) | {name: state[name] for name in ("cuts", "lengths", "missing")}
        message["features"] = torch.from_numpy(features)
        message["clients"] = torch.tensor(known)
        level = 0
        while any(growing.asked for growing in grown):
            message |= growing_trees(grown) | {"level": torch.tensor(level)}
            values = yield from self.total(cohort, message, "histogram", per_row)
            sums, rows = values["sums"].numpy(), values["rows"].numpy()
            histograms = np.concatenate([sums, rows[:, None]], 1)
            begin = 0
            for growing in grown:
                end = begin + len(growing.asked)
                if growing.asked:
                    growing.receive(histograms[begin:end])
                begin = end
            level += 1
        tables = [torch.from_numpy(growing.finished()).float() for growing in grown]
        if self.task.loss == "absolute":
            medians = yield from self.medians(message, tables[0], cohort, per_row)
            tables[0][:, VALUE] = self.lr * medians
        gain = state["gain"]
        for growing in grown:
            gain = gain + torch.from_numpy(growing.gains(len(gain)))
        return self.added(state, tables) | {"gain": gain}

    def total(
        self, cohort: Tensor, message: Tensors, purpose: str, per_row: Tensor
    ) -> Generator[Request, Replies, Tensors]:
        """Ask for a sum over a cohort. Raises LostError where somebody does not answer."""
        each = {"weight": per_row, "client": cohort}
        replies = yield Request(cohort, message, purpose, each, summed=True)
        answered = set(replies.clients.tolist())
        lost = [client for client in cohort.tolist() if client not in answered]
        if lost:
            raise LostError({k: replies.failed.get(k, "it did not answer") for k in lost})
        return {name: value[0] for name, value in replies.values.items()}

    def medians(
        self, message: Tensors, table: Tensor, cohort: Tensor, per_row: Tensor
    ) -> Generator[Request, Replies, Tensor]:
        """The median (n,) of what is missing to the labels, by leaf of a tree (n, 6); else 0.

        It is found like bins: by the weights of the rows up to some numbers, then between two.
        """
        leaves = (table[:, LEFT] == torch.arange(len(table))).nonzero().flatten()
        slots = torch.full((1, len(table)), -1)
        slots[0, leaves] = torch.arange(len(leaves))
        depth = torch.tensor(self.ensemble.depth)
        message = message | {"tree": table[None], "slots": slots, "level": depth}
        low = np.full((len(leaves), 1), -TOP)
        high = np.full((len(leaves), 1), TOP)
        half = None
        while (high - low > 1).any():
            parts = np.arange(1, PARTS + 1)
            keys = low + (high - low) * parts // PARTS
            message["thresholds"] = torch.from_numpy(floats_of_keys(keys))
            values = yield from self.total(cohort, message, "median", per_row)
            below = values["below"].numpy()
            half = below[:, -1:] / 2 if half is None else half
            first = (below >= half).argmax(1)[:, None]
            ends = np.concatenate([low, keys], 1)
            low, high = (np.take_along_axis(ends, first + more, 1) for more in (0, 1))
        found = torch.zeros(len(table))
        found[leaves] = torch.from_numpy(floats_of_keys(high[:, 0]))
        return found

    def draw_columns(self, number: int, features: int) -> np.ndarray:
        """The features that the trees of a round may ask about, in their order."""
        if self.sample_columns == 1:
            return np.arange(features)
        count = max(1, round(self.sample_columns * features))
        rng = stream(self.seed, number, 0, COLUMNS)
        return np.sort(rng.choice(features, count, replace=False))

    def added(self, state: State, tables: list[Tensor]) -> State:
        """The state with the trees (n, 6) of its round, and the round after it."""
        tensors = dict(self.task.tensors(state["w"]))
        trees = Trees(*(tensors[name] for name in Trees._fields))
        for column, table in enumerate(tables):
            number = (int(state["round"]) - 1) * self.columns + column
            trees = trees.replaced(number, Trees.unpacked(table[None]))
        w = self.task.vector(tensors | trees._asdict())
        return state | {"round": state["round"] + 1, "w": w}

    def prepare(self, state: State, population: Population) -> Preparing:
        """Find the bins, and the outputs without trees, from counts of all clients' rows."""
        everyone = torch.arange(population.clients)
        features = len(state["lengths"])
        known = [Distribution.unknown()] * features
        for stage in range(STAGES):
            coarse = [one.coarse(self.bins) for one in known]
            if not any(cells.any() for cells in coarse):
                break
            keys = [one.keys(cells) for one, cells in zip(known, coarse, strict=True)]
            message = {
                "round": state["round"],
                "rounds": torch.tensor(self.rounds),
                "thresholds": torch.from_numpy(floats_of_keys(np.concatenate(keys))),
                "lengths": torch.tensor([len(own) for own in keys]),
            }
            replies = yield Request(everyone, message, "count", summed=True)
            if len(replies.clients) == 0:
                raise RunError("no client counted its rows, so that there are no bins: try again")
            total = {name: value[0] for name, value in replies.values.items()}
            if stage == 0:
                state = state | {"missing": total["missing"] > 0}
                state["w"] = self.with_base(state["w"], total["labels"])
            counts = np.split(total["rows"].numpy(), np.cumsum([len(own) for own in keys])[:-1])
            known = [
                one.refined(cells, own, below) if cells.any() else one
                for one, cells, own, below in zip(known, coarse, keys, counts, strict=True)
            ]
        cuts = [one.cuts(self.bins, self.min_rows_per_bin) for one in known]
        lengths = torch.tensor([len(own) for own in cuts])
        state |= {"cuts": torch.from_numpy(np.concatenate(cuts)), "lengths": lengths}
        if self.task.loss == "absolute":
            message = self.ask(state)
            root = torch.zeros(1, VALUE + 1)
            ones = torch.ones(len(everyone))
            try:
                median = yield from self.medians(message, root, everyone, ones)
            except LostError:
                return state  # trees begin at the mean, and find their way
            tensors = dict(self.task.tensors(state["w"])) | {"base": message["base"] + median}
            state["w"] = self.task.vector(tensors)
        return state

    def with_base(self, w: Tensor, labels: Tensor) -> Tensor:
        """The vector with the outputs that are best without trees, from sums over all labels."""
        if self.task.loss in CLASSIFICATION:
            counts = labels.clamp(min=labels.sum() * math.exp(ABSENT))
            base = (counts / counts.sum()).log()
            if self.columns == 1:
                base = (base - base[0])[-self.outputs :]
        elif self.task.loss in REGRESSION:
            base = labels[:1] / labels[1]
            if self.task.loss == "poisson":
                base = base.log()
        else:
            base = torch.zeros(self.outputs)
        return self.task.vector(dict(self.task.tensors(w)) | {"base": base.float()})

    # The clients

    def answer(self, request: Request, group: Group) -> tuple[Tensors, ClientState]:
        message = request.message
        if request.purpose == "describe":
            return {"labels": label_counts(group, int(message["classes"]))}, group.states
        asked = ask_clients(self.task, request, group)
        if request.purpose not in {"loss", *SUMS}:
            replies, method = self.client.answer(asked)
            replies = {} if self.secure else replies  # of which only silent ones are left
            return replies, group.states._replace(method=method)
        rows = self.client.rows(asked)
        work = self.work(rows, group)
        if request.purpose == "loss":
            return self.losses(work, message, group), self.kept(group)
        if request.purpose == "count":
            return self.counts(work, message, group), NO_STATE
        key = message["round"], group.ids, group.each["weight"]
        work.weigh(key, lambda: self.row_weights(rows, group))
        if request.purpose == "median":
            return {"below": work.below(message)[None]}, self.kept(group)
        sums, counts = work.histograms(message)
        return {"sums": sums[None], "rows": counts[None]}, self.kept(group)

    def counted(self, request: Request, values: Tensors) -> Tensor:
        if request.purpose == "describe":
            return values["labels"]
        if request.purpose == "count":
            below = torch.split(values["rows"][0], request.message["lengths"].tolist())
            between = [rows.diff(prepend=rows.new_zeros(1)) for rows in below]
            labels = values["labels"][0] if self.task.loss in CLASSIFICATION else torch.empty(0)
            return torch.cat([*between, values["missing"][0], labels])
        if request.purpose == "histogram":
            return values["rows"]
        return super().counted(request, values) if request.purpose == "median" else torch.empty(0)

    def kept(self, group: Group) -> ClientState:
        """The states of clients: which of them they are, where trees ask for it; else as before."""
        if not self.asks_clients:
            return NO_STATE
        return ClientState(protocol={"client": group.each["client"][:, None]})

    def work(self, rows: Rows, group: Group) -> TreeWork:
        """Return the work on some rows, remembered from one request to the next."""
        if rows.transform is not None:
            raise DataError("boosting has no batches and needs no transform: leave it out")
        work = self._memory.get("last")
        if work is None or work.rows is not rows:
            work = TreeWork(self.task, rows, self.ensemble.depth)
            self._memory["last"] = work
        if self.asks_clients and "client" in group.each:
            work.name(group.ids, group.each["client"])
        return work

    @cached_property
    def _memory(self) -> dict[str, TreeWork]:
        return {}

    def losses(self, work: TreeWork, message: Tensors, group: Group) -> Tensors:
        """The losses and scores of the trees so far on the clients' training rows."""
        outputs = work.outputs(message)
        rows = work.rows
        y, offsets = rows.y, rows.offsets
        if not torch.equal(group.ids, torch.arange(len(rows.sizes))):
            index, offsets = rows.index_of(group.ids)
            outputs, y = outputs[index], y[index]
        losses, stats = self.task.row_results(outputs, y)
        evaluation = by_client(self.task, losses, stats, offsets)
        sizes = rows.sizes[group.ids]
        # Computed in float64 and rounded, they do not depend on who else is computed with them.
        return {"loss": evaluation.losses.float(), "score": evaluation.score, "size": sizes}

    def counts(self, work: TreeWork, message: Tensors, group: Group) -> Tensors:
        """Return the numbers of rows up to each threshold, and sums over the group's labels."""
        index, _ = work.rows.index_of(group.ids)
        ordered = work.ordered(index)
        rows = rows_up_to(ordered, message["thresholds"], message["lengths"])
        y = work.rows.y[index]
        labels = torch.zeros(1, dtype=torch.float64)
        if self.task.loss in CLASSIFICATION:
            weights = None if self.task.class_weight is None else self.task.weight_of(y).double()
            labels = torch.bincount(y.long(), weights, max(2, self.outputs)).double()
        elif self.task.loss in REGRESSION:
            scaled = self.task.scaled(y).double()
            labels = torch.stack([scaled.sum(), torch.tensor(float(len(y)))])
        values = {"rows": rows, "missing": ordered.isnan().sum(1), "labels": labels}
        return {name: value[None] for name, value in values.items()}

    def row_weights(self, rows: Rows, group: Group) -> np.ndarray:
        """By what the derivatives of all rows (N,) are multiplied; 0: a row does not count."""
        by_client = torch.zeros(len(rows.sizes), dtype=torch.float64)
        by_client[group.ids] = group.each["weight"].double()
        weights = by_client.repeat_interleave(rows.sizes).numpy()
        if self.sample_rows < 1:
            offsets = rows.offsets.tolist()
            streams = group.streams._replace(purpose=ROWS).begin()
            for client, draws in zip(group.ids.tolist(), streams, strict=True):
                own = slice(offsets[client], offsets[client + 1])
                weights[own] *= draws.random(own.stop - own.start) < self.sample_rows
        return weights


def growing_trees(grown: list[Growing]) -> Tensors:
    """Return what clients must know of growing trees: nodes, and whose rows to add up where."""
    tables = [growing.so_far() for growing in grown]
    size = max(map(len, tables))
    tree = np.zeros((len(grown), size, VALUE + 1), np.float32)
    tree[..., LEFT:VALUE] = np.arange(size)[:, None]
    slots = np.full((len(grown), size), -1)
    number = 0
    for own, own_slots, table, growing in zip(tree, slots, tables, grown, strict=True):
        own[: len(table)] = table
        own_slots[growing.asked] = number + np.arange(len(growing.asked))
        number += len(growing.asked)
    return {"tree": torch.from_numpy(tree), "slots": torch.from_numpy(slots)}


def _takes_trees(entry: Entry) -> bool:
    return isinstance(entry.factory, type) and getattr(entry.factory, "takes_trees", False)


ENTRIES = {"boosting": Boosting}
