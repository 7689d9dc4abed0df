"""`FairStrategy`: a Commonweal rule in the place of Flower's FedAvg."""

import inspect
import math
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Literal, Never, NoReturn

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

import commonweal
from commonweal.base import randomness
from commonweal.base.errors import ConfigError, DataError, RunError, did_you_mean
from commonweal.base.shares import product
from commonweal.base.tensors import State
from commonweal.config import catalog
from commonweal.config.experiment import to_toml
from commonweal.flower import messages, reports
from commonweal.flower import private as private_rounds
from commonweal.flower.aggregation import Aggregation, Named, built, dominance, overshoot
from commonweal.flower.arrays import Layout
from commonweal.flower.content import metrics_of, settings_of
from commonweal.flower.directory import Directory
from commonweal.flower.messages import Answers, logger
from commonweal.flower.mods import LOSS_KEY, NAME_KEY
from commonweal.flower.private import PrivateRounds, check_wrapper
from commonweal.flower.recording import RECORDS, Recorder
from commonweal.flower.reports import Evaluated, Losses, Problem, ReplyReader, Report, column
from commonweal.flower.run_checks import NO_LOSSES, RunChecks
from commonweal.protocols.algorithm import Outcome
from commonweal.protocols.averaging import Averaging
from commonweal.protocols.channels.channel import Channel
from commonweal.protocols.servers.server import ServerOptimizer
from commonweal.record.facts import RunFacts
from commonweal.record.rounds import RoundRecord, outcome_fields
from commonweal.rules.rule import Rule
from commonweal.training.client import Client

LEGACY = ("initialize_parameters", "configure_fit", "aggregate_fit", "evaluate")
LEGACY_ARGUMENTS = {  # and what they are called now
    "fraction_fit": "fraction_train",
    "min_fit_clients": "min_train_nodes",
    "min_evaluate_clients": "min_evaluate_nodes",
    "min_available_clients": "min_available_nodes",
    "fit_metrics_aggregation_fn": "train_metrics_aggr_fn",
    "evaluate_metrics_aggregation_fn": "evaluate_metrics_aggr_fn",
    "initial_parameters": "initial_arrays of start",
    "evaluate_fn": "evaluate_fn of start",
    "on_fit_config_fn": "train_config of start",
    "on_evaluate_config_fn": "evaluate_config of start",
    "config": "train_config of start",
    "client_manager": "grid of start",
}

Summarize = Callable[[list[RecordDict], str], MetricRecord | None]
OnRound = Callable[[dict[str, float]], object]
EvaluateCentrally = Callable[[int, ArrayRecord], MetricRecord | None]


class FairStrategy(Strategy):
    """Aggregates by a Commonweal rule, in the place of Flower's FedAvg.

    It sends and returns the arrays that Flower's loop holds, as `FedAvg` does: subclasses may
    change them. Every round is recorded by client in a run's folder, which `commonweal show`
    reads.

    Args:
        rule: How much each client's update counts: a name of `commonweal list`, a table with
            a name and parameters, or a `Rule`.
        server: The server optimizer, which moves the model along the weighted updates; likewise.
        channels: What happens to updates on their way, such as clipping; likewise.
        private: Client-level differential privacy: `clients`, how many there are at all, `cohort`,
            how many take part in a round on average, and the parameters of the algorithm
            "private", such as `epsilon`. Clients need the mod `weigh_privately`.
        losses: Where the losses come from that the rule decides by. "train": clients report
            them with their trained models, as the mod `loss_before_training` does.
            "evaluate": each client's last evaluation, on the samples that it is scored on; the
            first round, where there is none, has the weights of FedAvg.
        strict: Raise an error where a rule needs losses and clients report none, where one client
            never reports any, and where losses are below 0 and the rule cannot use them. With
            False such rounds have the weights of FedAvg (for a single client: the others' mean
            loss), which the record says and the log counts at the end.
        loss_key: The metric of a training reply with the loss of the received model, before
            training.
        evaluate_loss_key: The metric of an evaluation with the loss; by default a usual name,
            or the only one that contains "loss".
        score_key: The metric of an evaluation with the score; by default an accuracy.
        higher_is_better: Whether higher scores are better.
        name_key: The setting or metric of a reply with the client's name, as the mod
            `name_clients` adds it. Without one, a node's id is its client's name.
        bind_names: Refuse a node that gives the name of a client with another key.
        max_examples: Clients that report more samples are dropped.
        out: The folder of the run's record; None writes none. By default `runs/flower`, or
            `runs/flower-2` and so on where it exists.
        resume: Continue the run in the folder, by default the last one.
        wait: Seconds to wait for `min_available_nodes`.
        timeout: Seconds to wait for replies; by default that of `start`.
        lr: The clients' learning rate, for rules that use it; by default `train_config["lr"]`.
        seed: Of the draws of clients.
        on_round: Called after every round with its numbers, such as "round", "test/worst",
            "cohort/weight_max" and, by client, "weight/NAME", "loss/NAME" and "score/NAME". For
            Weights & Biases: `on_round=wandb.log`.
        fraction_train: This and the following arguments are those of Flower's `FedAvg`.
    """

    def __init__(
        self,
        rule: Named | Rule = "aaggff-s",
        server: Named | ServerOptimizer = "sgd",
        channels: Iterable[Named | Channel] = (),
        *,
        private: Mapping[str, object] | None = None,
        losses: Losses = "train",
        strict: bool = True,
        loss_key: str = LOSS_KEY,
        evaluate_loss_key: str | None = None,
        score_key: str | None = None,
        higher_is_better: bool = True,
        name_key: str = NAME_KEY,
        bind_names: bool = True,
        max_examples: int | None = None,
        out: str | Path | None = RECORDS,
        resume: bool = False,
        wait: float = 120.0,
        timeout: float | None = None,
        lr: float | None = None,
        seed: int = 0,
        on_round: OnRound | None = None,
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
        **unknown: Never,
    ) -> None:
        _refuse_arguments(unknown, FairStrategy.__init__)
        self.rule = built("rules", rule, Rule)
        self.server = built("servers", server, ServerOptimizer)
        named = [channels] if isinstance(channels, str | Mapping) else channels
        self.channels = tuple(built("channels", channel, Channel) for channel in named)
        self.private = None if private is None else PrivateRounds.of(private)
        self.losses = losses
        self.strict = strict
        self.name_key = name_key
        self.bind_names = bind_names
        self.wait = wait
        self.timeout = timeout
        self.lr = lr
        self.seed = seed
        self.on_round = on_round
        self.fraction_train = fraction_train
        self.fraction_evaluate = fraction_evaluate
        self.min_train_nodes = min_train_nodes
        self.min_evaluate_nodes = min_evaluate_nodes
        self.min_available_nodes = min_available_nodes
        self.weighted_by_key = weighted_by_key
        self.arrayrecord_key = arrayrecord_key
        self.configrecord_key = configrecord_key
        self.train_metrics_aggr_fn = train_metrics_aggr_fn or messages.weighted_mean
        self.evaluate_metrics_aggr_fn = evaluate_metrics_aggr_fn or messages.weighted_mean
        self._reader = ReplyReader(
            losses=losses,
            loss_key=loss_key,
            evaluate_loss_key=evaluate_loss_key,
            score_key=score_key,
            higher_is_better=higher_is_better,
            size_key=weighted_by_key,
            max_examples=max_examples,
        )
        self._check()
        self._checks = RunChecks(self.rule, losses, strict, loss_key)
        score = self._reader.score
        self._recorder = Recorder(out, resume, score, higher_is_better, private is not None)
        self._clients = Directory(bind_names)
        self._logged: set[str] = set()
        self._grid: Grid | None = None
        self._sent: list[Message] = []  # whose replies are awaited
        self._resumed = 0  # rounds of the run that is resumed
        self._offset = 0  # rounds before those that Flower's loop counts
        self._rounds = 0  # to run; 0: not known, as the loop is the user's own
        self._patience = 3600.0 if timeout is None else timeout
        self._began = 0.0
        self._aggregation: Aggregation | None = None
        self._arrays = ArrayRecord()  # that Flower's loop holds
        self._untold: ArrayRecord | None = None  # sent for training, and not aggregated yet
        self._told = 0  # rounds that were aggregated
        self._trained: RoundRecord | None = None  # a round that is not recorded yet
        self._train_seconds = 0.0
        self._losses: dict[int, float] = {}  # of the last round, by client

    def _check(self) -> None:
        """Raise ConfigError for arguments that cannot work."""
        for key in ("fraction_train", "fraction_evaluate"):
            fraction = vars(self)[key]
            if not 0 <= fraction <= 1:
                raise ConfigError(f"{key} = {fraction}: give a fraction from 0 to 1")
        if self.losses not in ("train", "evaluate"):
            raise ConfigError(f'losses = {self.losses!r}: give "train" or "evaluate"')
        if self.losses == "evaluate" and self.fraction_evaluate == 0:
            raise ConfigError(
                f"losses = {self.losses!r} with fraction_evaluate = {self.fraction_evaluate}: "
                "nobody is evaluated; raise fraction_evaluate, or let clients report their losses"
            )
        if self.private is not None and (self.channels or self.losses == "evaluate"):
            raise ConfigError("private: it takes no channels, and losses of training samples only")
        if "labels" in self.rule.needs:
            raise ConfigError(
                "this rule needs the clients' label counts, which Flower apps do not send: run a "
                "Commonweal experiment on Flower instead (commonweal flower export)"
            )
        w = torch.zeros(1)
        if self.server.output(w, self.server.init(w)) is not w:
            name = catalog.named_part(self.server)["name"]
            raise ConfigError(
                f"server = {name!r} publishes another model than "
                "the one that it trains, but Flower's loop has one model: choose another server "
                "optimizer, or run a Commonweal experiment on Flower"
            )
        if self.losses == "evaluate" and self.fraction_evaluate < 1:
            logger.warning(
                'losses = "evaluate" with fraction_evaluate = %g: some losses will be of earlier '
                "models",
                self.fraction_evaluate,
            )

    def __getattr__(self, name: str) -> NoReturn:
        if name in LEGACY:
            raise ConfigError(
                f"FairStrategy has no {name}: it is for Flower's Message API, in ServerApp.main; "
                "start_server, Server, NumPyClient and secure aggregation (SecAgg+) are Flower's "
                "legacy API"
            )
        raise AttributeError(f"FairStrategy has no attribute {name!r}")

    def summary(self) -> None:
        """Log the strategy's parts and where its record is written."""
        self._check_wrapper()
        if self.bind_names and not messages.HAS_KEYS:
            self._log_once(
                "flwr before 1.38 does not tell the keys of nodes: a node may take any client's "
                "name; install a later one, or set bind_names=False"
            )
        logger.info("\t├──> Sampling:")
        logger.info(
            "\t│\t├──Fraction: train (%.2f) | evaluate ( %.2f)",
            self.fraction_train,
            self.fraction_evaluate,
        )
        least = self.min_train_nodes, self.min_evaluate_nodes
        logger.info("\t│\t├──Minimum nodes: train (%d) | evaluate (%d)", *least)
        logger.info("\t│\t└──Minimum available nodes: %d", self.min_available_nodes)
        logger.info("\t├──> Keys in records:")
        logger.info("\t│\t├── Weighted by: '%s'", self.weighted_by_key)
        logger.info("\t│\t├── ArrayRecord key: '%s'", self.arrayrecord_key)
        logger.info("\t│\t└── ConfigRecord key: '%s'", self.configrecord_key)
        logger.info("\t├──> rule: %s", catalog.named_part(self.rule))
        logger.info("\t├──> server: %s", catalog.named_part(self.server))
        for channel in self.channels:
            logger.info("\t├──> channel: %s", catalog.named_part(channel))
        store = self._recorder.store
        logger.info("\t└──> record: %s", "not written" if store is None else store.folder)

    def _check_wrapper(self) -> None:
        """Raise ConfigError where a privacy wrapper of Flower's that does not fit is the caller.

        A wrapper keeps the strategy and says nothing: only the caller shows that it is there.
        """
        caller = sys._getframe(2).f_locals.get("self")
        warning = check_wrapper(caller, self.rule, self.private is not None)
        if warning:
            self._log_once(warning)

    # The run

    @property
    def history(self) -> list[RoundRecord]:
        """The rounds so far."""
        return self._recorder.history

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateCentrally | None = None,
        **unknown: Never,
    ) -> Result:
        """Run all rounds, or those that a resumed run still has to do.

        Further calls continue the same run: the states of the rule and the server optimizer, the
        record and the numbers of rounds go on, from the model that is given.
        """
        _refuse_arguments(unknown, FairStrategy.start)
        self._patience = timeout if self.timeout is None else self.timeout
        before = self._resumed + len(self.history)
        self._rounds = before + num_rounds
        self._take_lr(train_config)
        self._wait_for_nodes(grid, self.min_available_nodes)
        with nullcontext() if self._recorder.store is None else self._recorder.store.locked():
            arrays = self._open(initial_arrays)
            left = max(0, self._rounds - max(before, self._resumed))
            told = self._told
            self._offset = self._rounds - left

            def shifted(number: int, record: ArrayRecord) -> MetricRecord | None:
                return None if evaluate_fn is None else evaluate_fn(number + self._offset, record)

            try:
                result = super().start(
                    grid,
                    arrays,
                    left,
                    self._patience,
                    train_config,
                    evaluate_config,
                    None if evaluate_fn is None else shifted,
                )
                self._check_told(result.arrays or arrays)
                if left and self._told == told:
                    self._bypassed()
                self._record({})
                self._recorder.check_anything_trained()
            finally:
                self._recorder.save()
            result.train_metrics_clientapp = self._shift(result.train_metrics_clientapp)
            result.evaluate_metrics_clientapp = self._shift(result.evaluate_metrics_clientapp)
            result.evaluate_metrics_serverapp = self._shift(result.evaluate_metrics_serverapp)
            if not result.arrays:
                result.arrays = arrays
            self._recorder.write_model(result.arrays)
        for line in self._checks.summary(len(self.history)):
            logger.warning(line)
        return result

    def _check_told(self, arrays: ArrayRecord) -> None:
        """Raise RunError where the model has changed, but the rule was not asked.

        Where no reply can be used, a subclass may leave the model as it was sent.
        """
        if self._untold is not None and arrays is not self._untold:
            self._bypassed()

    def _bypassed(self) -> NoReturn:
        raise RunError(
            f"{type(self).__name__}.aggregate_train aggregates without FairStrategy's: the rule "
            f"{self._checks.name!r} has decided nothing, and nothing is recorded. Call "
            "super().aggregate_train(server_round, replies) there and change what it returns, or "
            "derive from FedAvg"
        )

    def _take_lr(self, config: ConfigRecord | None) -> None:
        lr = None if config is None else config.get("lr")
        if self.lr is None and isinstance(lr, int | float):
            self.lr = float(lr)

    def _shift(self, by_round: dict[int, MetricRecord]) -> dict[int, MetricRecord]:
        return {number + self._offset: record for number, record in by_round.items()}

    def _wait_for_nodes(self, grid: Grid, least: int) -> list[int]:
        self._grid = grid
        nodes = messages.wait_for_nodes(grid, least, self.wait)
        self._clients.meet(nodes, grid)
        return nodes

    def _open(self, arrays: ArrayRecord) -> ArrayRecord:
        """Open the run's record, or go on. Returns the model to start from, as resumed."""
        layout = Layout.of(messages.values_of(arrays))
        again = self._aggregation is not None
        if self._aggregation is None:
            known = max(1, self._clients.clients)
            self._aggregation = Aggregation(layout, self._algorithm(layout), known)
        aggregation = self._aggregation
        algorithm = aggregation.algorithm
        if again and algorithm.plans_rounds:
            raise RunError(
                f"the rule or the privacy of this run was planned for {algorithm.rounds} rounds, "
                "which have been run: more of them need another FairStrategy"
            )
        if again and layout.pieces != aggregation.layout.pieces:
            raise RunError("start: the model has other arrays than before: use another strategy")
        aggregation.receive(arrays)
        self._arrays = arrays
        facts = RunFacts(
            commonweal=commonweal.__version__,
            engine="flower",
            parameters=layout.size,
            score=self._recorder.score,
            clients=self._clients.clients if self.private is None else self.private.clients,
            privacy=algorithm.promise,
        )
        last, saved = self._recorder.open(self._text(), facts, algorithm.plans_rounds, again)
        if again:
            logger.info("going on after round %d with the states of the rule", self._offset)
        elif last:
            self._resume(last, saved)
        return self._arrays

    def _resume(self, last: int, saved: State) -> None:
        """Continue after the last round of a checkpoint."""
        if last == self._rounds:
            logger.warning(
                "all %d rounds of the run are done, and nothing is trained: num_rounds counts "
                "those before it was resumed, too",
                last,
            )
        self._offset = self._resumed = last
        self._clients.restore(saved["nodes"])
        logger.info("resuming after round %d: Flower's log counts from 1 again", last)
        self._arrays = self._opened().restore(saved["server"])

    def _algorithm(self, layout: Layout) -> Averaging:
        if self.private is not None:
            return self.private.algorithm(layout, self.rule, self.server, self._rounds, self.seed)
        return Averaging(
            layout.task,
            self.rule,
            Client(lr=0.1 if self.lr is None else self.lr),
            self.server,
            self.channels,
            max(1, self._rounds),
            self.seed,
        )

    def _text(self) -> str:
        """The run as an experiment."""
        algorithm = {} if self.private is None else self.private.numbers
        return to_toml(
            {
                "rounds": self._rounds,
                "seed": self.seed,
                "engine": "flower",
                "rule": catalog.named_part(self.rule),
                "server": catalog.named_part(self.server),
                "channels": [catalog.named_part(channel) for channel in self.channels],
                "algorithm": {"name": "private" if self.private else "averaging", **algorithm},
            }
        )

    def _opened(self) -> Aggregation:
        if self._aggregation is None:
            raise ConfigError("FairStrategy needs a model: call configure_train before the rest")
        return self._aggregation

    # Training

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sample nodes, and send them the arrays that Flower's loop holds."""
        self._check_wrapper()
        self._check_told(arrays)
        self._record({})  # of a loop that does not evaluate
        self._began = time.perf_counter()
        nodes = []
        if self.private is None:
            least = self.min_train_nodes
            nodes = self._sample(grid, server_round, self.fraction_train, least, randomness.COHORT)
        if self._aggregation is None:
            self._take_lr(config)
            arrays = self._open(arrays)
        aggregation = self._opened()
        aggregation.receive(arrays)
        self._arrays = self._untold = arrays
        if aggregation.private is not None:
            connected = sorted(grid.get_node_ids())
            self._clients.meet(connected, grid)
            number = server_round + self._offset
            nodes = private_rounds.draw_nodes(aggregation.private, connected, number)
            config.update(private_rounds.mod_settings(aggregation.private, aggregation.state))
        return self._messages(nodes, server_round, arrays, config, MessageType.TRAIN)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Ask the rule for weights, and move the model along the weighted updates."""
        aggregation = self._opened()
        self._record({})  # of a subclass that configures its rounds itself
        self._untold = None
        self._told += 1
        number = self._resumed + len(self.history) + 1
        down = messages.array_bytes(message.content for message in self._sent)
        answers = self._answers(replies, "aggregate_train")
        traffic = {"down": down, "up": messages.array_bytes(answers.contents.values())}
        asked, updates = self._read(answers)
        reports.check_trained(asked)
        self._checks.check_silent(number, answers)
        usable = [report for report in asked if report.problem is None]
        fallback = ""
        if self.private is None:
            fallback = self._checks.fallback(usable, answers, self._expects_losses(number))
        outcome = aggregation.tell(usable, updates, self._clients.clients, bool(fallback))
        warnings = self._warnings(number, usable, fallback, outcome)
        self._trained = self._round(number, asked, outcome, warnings, traffic, fallback)
        self._train_seconds = time.perf_counter() - self._began
        if self.private is not None:  # metrics of clients have no noise
            self._arrays = aggregation.arrays()
            return self._arrays, None
        self._checks.check_diverged(number, outcome)
        if fallback != NO_LOSSES:
            self._checks.check_losses(self._asked_for_losses(usable), answers)
        if len(outcome.clients) == 0:
            logger.warning("round %d: no reply can be used; the model stays", number)
            return None, None
        used = [answers.contents[report.node] for report in usable if report.problem is None]
        self._arrays = aggregation.arrays()
        return self._arrays, self.train_metrics_aggr_fn(used, self.weighted_by_key)

    def _expects_losses(self, number: int) -> bool:
        """True if losses should be known: those of evaluations are there after the first round."""
        if self.losses == "train" or number > self._resumed + 2:
            return True
        return any(known.last.round for known in self._clients.known.values())

    def _asked_for_losses(self, usable: Sequence[Report]) -> list[Report]:
        """The reports of clients that have had the occasion to report a loss."""
        if self.losses == "train":
            return list(usable)
        return [report for report in usable if self._clients[report.node].last.round]

    def _answers(self, replies: Iterable[Message], logged: str) -> Answers:
        """Return replies by node. A subclass may have asked other nodes than `_messages` did."""
        answers = Answers(self._sent, replies, f"within {self._patience:g} s")
        self._sent = []
        counts = len(answers.contents), len(answers.failed)
        logger.info("%s: Received %s results and %s failures", logged, *counts)
        asked = answers.nodes
        self._clients.meet(asked, self._grid)
        for node, content in list(answers.contents.items()):
            values = metrics_of(content) | settings_of(content)
            try:
                if self.name_key in values:
                    self._clients.name(node, str(values[self.name_key]), asked)
            except DataError as error:
                del answers.contents[node]
                answers.failed[node] = Problem("name", str(error))
        return answers

    def _read(self, answers: Answers) -> tuple[list[Report], torch.Tensor]:
        """The reports of all nodes that were asked, by name, and updates (S, d) of the usable."""
        aggregation = self._opened()
        updates = aggregation.place_of_updates(len(answers.nodes))
        row = 0
        asked = []
        for node in sorted(answers.nodes, key=lambda node: self._clients[node].name):
            known = self._clients[node]
            report = Report(node, known.name, answers.failed.get(node))
            asked.append(report)
            if report.problem is not None:
                continue
            content = answers.contents[node]
            values = metrics_of(content)
            kind: Literal["metrics", "arrays"] = "metrics"
            try:
                self._reader.fill(report, values, known.last, self.rule.needs)
                kind = "arrays"
                if aggregation.private is not None:
                    private_rounds.read_weighed(aggregation.private, report, values)
                arrays = messages.values_of(messages.only_arrays(content))
                aggregation.layout.subtract(aggregation.state["w"], arrays, updates[row])
                row += 1
                report.client = self._clients.place(node)
            except DataError as error:
                report.problem = Problem(kind, str(error))
        return asked, updates[:row]

    def _round(
        self,
        number: int,
        asked: Sequence[Report],
        outcome: Outcome,
        warnings: Sequence[str],
        traffic: dict[str, int],
        fallback: str,
    ) -> RoundRecord:
        """The record of a round, without its evaluation. What it says of clients is logged."""
        for warning in warnings:
            self._log_once(warning)
        usable = [report for report in asked if report.problem is None]
        for report in usable:
            if report.client in outcome.dropped:
                report.problem = Problem("rule", outcome.dropped[report.client])
        dropped = {r.name: r.problem.text for r in asked if r.problem is not None}
        for name, reason in dropped.items():
            logger.warning("round %d: client %s: %s", number, name, reason)
        return RoundRecord(
            number=number,
            clients=tuple(report.name for report in asked),
            losses=tuple(column(asked, "loss").tolist()),
            scores=tuple(column(asked, "score").tolist()),
            dropped=dropped,
            warnings=(*warnings, *outcome.warnings),
            bytes=traffic,
            fallback="fedavg" if fallback else "",
            public=self._opened().algorithm.public_numbers(outcome.state),
            **outcome_fields(outcome, {report.client: report.name for report in usable}),
        )

    def _warnings(
        self, number: int, usable: Sequence[Report], fallback: str, outcome: Outcome
    ) -> list[str]:
        """Return a round's warnings about its clients, their losses and weights."""
        if self.private is not None:
            return []
        warnings = []
        if number == self._resumed + 1 and self._clients.lost:
            warnings.append(
                "none of the clients of the run that is resumed is here, so that what the rule "
                "knows of clients is lost: nodes get new ids in each simulation; name clients "
                "with the mod name_clients()"
            )
        if fallback:
            warnings.append(f"{fallback}: this round has the weights of FedAvg")
        elif "loss" in self.rule.needs:
            warnings += self._loss_warnings(number, usable)
        before = self._losses
        self._losses = {r.client: r.loss for r in usable if r.loss is not None}
        rise = overshoot(self.rule, before, self._losses)
        return [*warnings, *dominance(outcome, usable), *rise]

    def _loss_warnings(self, number: int, usable: Sequence[Report]) -> list[str]:
        warnings = []
        unknown = [report.name for report in usable if report.loss is None]
        if unknown:
            names = reports.listed(unknown)
            warnings.append(f"no loss is known of {names}: the others' mean is used")
        if self.losses == "train":
            return warnings
        self._log_once(
            "the rule uses losses of evaluations: its weights depend on the samples that "
            "clients are scored on; the mod loss_before_training reports those of training "
            "samples"
        )
        old = {}  # the rounds of losses, by client
        for report in usable:
            evaluated = self._clients[report.node].last.round
            if report.loss is not None and 0 < evaluated < number - 1:
                old[report.name] = evaluated
        if old:
            age = f"up to {number - 1 - min(old.values())} rounds old"
            warnings.append(f"losses of earlier models, {age}, of {reports.listed(list(old))}")
        return warnings

    # Evaluation

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sample nodes, and send them the arrays that Flower's loop holds."""
        self._check_told(arrays)
        self._began = time.perf_counter()
        self._arrays = arrays
        least, purpose = self.min_evaluate_nodes, randomness.purpose("evaluate")
        nodes = self._sample(grid, server_round, self.fraction_evaluate, least, purpose)
        return self._messages(nodes, server_round, arrays, config, MessageType.EVALUATE)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Record the clients' losses and scores, and aggregate their metrics."""
        number = server_round + self._offset
        answers = self._answers(replies, "aggregate_evaluate")
        for node, problem in answers.failed.items():
            logger.warning("evaluation: client %s: %s", self._clients[node].name, problem.text)
        evaluated = {}
        for node, content in answers.contents.items():
            evaluated[node] = self._reader.evaluated(metrics_of(content), number)
            self._clients[node].last = evaluated[node]
        self._reader.to_fractions(evaluated.values())
        if evaluated:
            self._check_evaluated(evaluated.values(), answers)
        self._record(evaluated)
        used = list(answers.contents.values())
        return self.evaluate_metrics_aggr_fn(used, self.weighted_by_key) if used else None

    def _check_evaluated(self, evaluated: Collection[Evaluated], answers: Answers) -> None:
        """Raise RunError where losses were asked for and none is there; warn without scores."""
        lacking = not column(evaluated, "loss").isfinite().any()
        if lacking and self.losses == "evaluate" and "loss" in self.rule.needs and self.strict:
            key = self._reader.evaluate_loss_key
            what = "evaluations have no unique finite loss"
            if key is not None:
                what = f"none reported {key!r}"
            self._checks.no_losses(what + " (name it with evaluate_loss_key)", answers)
        if column(evaluated, "score").isnan().all():
            self._log_once(
                f"no client reported {self._reader.score_key or 'an accuracy'} (they reported "
                f"{answers.metrics}), so that the record has no scores: name a number with "
                "score_key, and higher_is_better=False where lower is better"
            )

    def _sample(
        self, grid: Grid, server_round: int, fraction: float, least: int, purpose: int
    ) -> list[int]:
        """Draw nodes, the same ones in every run where the nodes are the same."""
        if fraction == 0:
            return []
        nodes = self._wait_for_nodes(grid, max(least, self.min_available_nodes))
        size = min(len(nodes), max(least, math.floor(product(fraction, len(nodes)))))
        ordered = [node for node in self._clients.by_name if node in nodes]
        stream = randomness.stream(self.seed, server_round + self._offset, 0, purpose)
        drawn = stream.choice(len(ordered), size, replace=False)
        kind = "train" if purpose == randomness.COHORT else "evaluate"
        logger.info("configure_%s: Sampled %s nodes (out of %s)", kind, size, len(nodes))
        return [ordered[k] for k in sorted(drawn.tolist())]

    def _messages(
        self,
        nodes: Iterable[int],
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        kind: str,
    ) -> list[Message]:
        config["server-round"] = server_round + self._offset
        content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        ttl = self._patience + messages.SLACK
        self._sent = [Message(content, node, kind, ttl=ttl) for node in nodes]
        return list(self._sent)

    def _log_once(self, text: str) -> None:
        if text not in self._logged:
            self._logged.add(text)
            logger.warning(text)

    def _record(self, evaluated: Mapping[int, Evaluated]) -> None:
        """Write the round that was trained, with the evaluation after it."""
        if self._trained is None:
            return
        aggregation = self._opened()
        aggregation.receive(self._arrays)  # a subclass may have changed them
        seconds = {"train": self._train_seconds, "evaluate": time.perf_counter() - self._began}
        record, self._trained = self._trained, None
        state = aggregation.state
        numbers, line = self._recorder.write(record, evaluated, self._clients, state, seconds)
        logger.info(line)
        if self.on_round is not None:
            self.on_round(numbers)
        if self._rounds == 0:  # nobody says when a loop of the user's own ends
            self._recorder.save()
            self._recorder.write_model(self._arrays)


def _refuse_arguments(unknown: Mapping[str, object], function: Callable[..., object]) -> None:
    """Raise ConfigError for keyword arguments that a function does not have."""
    for name in unknown:
        if name in LEGACY_ARGUMENTS:
            raise ConfigError(
                f"{name} is an argument of Flower's legacy API (start_server, Server, and the "
                "workflow of SecAgg+), but FairStrategy is for the Message API, in "
                f"ServerApp.main, where this is {LEGACY_ARGUMENTS[name]}"
            )
        known = [key for key in inspect.signature(function).parameters if key != "self"]
        what = "FairStrategy" if function.__name__ == "__init__" else "FairStrategy.start"
        raise ConfigError(f"{what} has no argument {name!r}: {did_you_mean(name, known)}")
