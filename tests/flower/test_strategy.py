"""FairStrategy in the place of FedAvg, in an app of Flower's usual shape."""

import logging
import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'commonweal[flower]'")

import torch
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from flwr.serverapp.strategy import Result as FlowerResult
from torch import nn
from typer.testing import CliRunner

import commonweal
from commonweal.base.errors import ConfigError, DivergedError, RunError
from commonweal.cli import app as command
from commonweal.flower import FairStrategy, loss_before_training, name_clients
from commonweal.flower.messages import node_keys
from commonweal.record.record import Record
from commonweal.rules.rule import Reports
from flower_helpers import FIRST, LocalGrid, WithKeys, configs, distance, mean_app, needs_keys, rows

NODES = [FIRST + 7919 * k for k in range(4)]
START = ArrayRecord([np.zeros(3, np.float32)])


def before(k: int, w: np.ndarray, mine: np.ndarray) -> dict[str, Any]:
    return {"loss-before": distance(w, mine), "client": k}


def start(strategy: FairStrategy, grid: LocalGrid, rounds: int = 3) -> FlowerResult:
    return strategy.start(grid=grid, initial_arrays=START, num_rounds=rounds)


def model(result: FlowerResult) -> np.ndarray:
    return result.arrays.to_numpy_ndarrays()[0]


def by_hand(rounds: int, clients: int = 4) -> tuple[np.ndarray, list[list[float]]]:
    """AAggFF-S on the same clients, in plain numpy around the rule."""
    rule = commonweal.rule("aaggff-s")
    state = rule.init(clients)
    w = np.zeros(3)
    weights = []
    data = [rows(k, 10 * (k + 1)) for k in range(clients)]
    for _ in range(rounds):
        losses = torch.tensor([distance(w, mine) for mine in data], dtype=torch.float64)
        sizes = torch.tensor([float(len(mine)) for mine in data])
        reports = Reports(ids=torch.arange(clients), sizes=sizes, losses=losses, clients=clients)
        decision = rule(reports, state)
        state = decision.state
        p = decision.weights.double().numpy()
        w = w + sum(p[k] * 0.5 * (data[k].mean(0) - w) for k in range(clients))
        weights.append(p.tolist())
    return w, weights


def test_losses_before_training_decide_the_weights(tmp_path: Path) -> None:
    strategy = FairStrategy("aaggff-s", out=tmp_path / "run", name_key="client")
    result = start(strategy, LocalGrid(mean_app(before), configs(4)))
    w, weights = by_hand(3)
    np.testing.assert_allclose(model(result), w, rtol=1e-5)
    record = Record.read(tmp_path / "run")
    for line, expected in zip(record.rounds, weights, strict=True):
        assert line.clients == ("0", "1", "2", "3") or line.number == 1
        assert line.weights == pytest.approx({str(k): p for k, p in enumerate(expected)})
    assert record.finished and record.clients().names == ("0", "1", "2", "3")
    assert record.rounds[-1].metrics["mean"] > 0
    shown = CliRunner().invoke(command, ["show", str(tmp_path / "run")])
    assert shown.exit_code == 0 and "aaggff-s: round 3 of 3" in shown.output


def test_losses_of_the_last_evaluation_are_used_when_asked_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Evaluation rows are the training rows here, so that only the first round differs."""
    strategy = FairStrategy("aaggff-s", losses="evaluate", out=tmp_path / "run")
    with caplog.at_level(logging.WARNING, "flwr"):
        start(strategy, LocalGrid(mean_app(), configs(4)), 4)
    logged = [r.getMessage() for r in caplog.records]
    assert sum("depend on the samples that clients are scored on" in text for text in logged) == 1
    assert logged[-1] == "FedAvg weights in 1 of 4 rounds: no losses were known"
    first, second, *_ = strategy.history
    assert "FedAvg" in first.warnings[0] and all(map(math.isnan, first.losses))
    assert [first.weights[str(n)] for n in NODES] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    w = sum(0.5 * p * rows(k, 10 * (k + 1)).mean(0) for k, p in enumerate([0.1, 0.2, 0.3, 0.4]))
    expected = {str(n): distance(w, rows(k, 10 * (k + 1))) for k, n in enumerate(NODES)}
    assert dict(zip(second.clients, second.losses, strict=True)) == pytest.approx(expected)
    assert second.weights != pytest.approx(first.weights)


def test_the_mod_adds_the_loss_of_the_received_model() -> None:
    def loss(message: Message, context: Context) -> float:
        k = int(context.node_config["partition-id"])
        w = message.content.array_records["arrays"].to_numpy_ndarrays()[0]
        return distance(w, rows(k, 10 * (k + 1)))

    app = mean_app(mods=[loss_before_training(loss)])
    strategy = FairStrategy("aaggff-s", out=None)
    result = start(strategy, LocalGrid(app, configs(4)))
    np.testing.assert_allclose(model(result), by_hand(3)[0], rtol=1e-5)


@pytest.mark.parametrize(
    "rule", ["term", "qfedavg", "adafed", "fedmgda+", "afl", "guarded(rule=term)"]
)
def test_any_rule_and_server_step_and_channel(rule: str) -> None:
    strategy = FairStrategy(rule, "adam", ["clip(norm=0.5)"], out=None)
    app = mean_app(lambda k, w, mine: before(k, w, mine) | {"loss-after": 0.1})
    result = start(strategy, LocalGrid(app, configs(4)))
    assert np.isfinite(model(result)).all() and (model(result) != 0).all()
    assert all(len(each.weights) == 4 for each in strategy.history)


def test_a_subclass_may_ask_nodes_by_itself(tmp_path: Path) -> None:
    """The rule gets the replies to messages that the strategy has not made, and records them."""

    class Asking(FairStrategy):
        def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
            content = RecordDict({"arrays": arrays, "config": config})
            return [Message(content, node, "train") for node in grid.get_node_ids()]

        def configure_evaluate(self, *values: Any) -> Any:
            return []

    strategy = Asking("aaggff-s", out=tmp_path / "run")
    result = start(strategy, LocalGrid(mean_app(before), configs(4)))
    w, weights = by_hand(3)
    np.testing.assert_allclose(model(result), w, rtol=1e-5)
    for line, expected in zip(Record.read(tmp_path / "run").rounds, weights, strict=True):
        assert [line.weights[str(k)] for k in range(4)] == pytest.approx(expected)


def test_updates_are_clipped_before_they_are_weighed() -> None:
    result = start(
        FairStrategy("fedavg", channels=["clip(norm=0.25)"], out=None),
        LocalGrid(mean_app(), configs(4)),
        1,
    )
    expected = np.zeros(3)
    for k, p in enumerate([0.1, 0.2, 0.3, 0.4]):
        update = 0.5 * rows(k, 10 * (k + 1)).mean(0)
        expected += p * update * min(1, 0.25 / np.linalg.norm(update))
    np.testing.assert_allclose(model(result), expected, rtol=1e-5)


# Faults


def faulty(k: int, w: np.ndarray, mine: np.ndarray) -> dict[str, Any]:
    if k == 1:
        raise ValueError("the disk is full")
    if k == 2:
        return {"loss-before": math.nan}
    if k == 3:
        return {"loss-before": 1.0, "num-examples": -5}
    if k == 4:
        return {"loss-before": 1.0, "num-examples": 10**12}
    return before(k, w, mine)


def test_replies_that_cannot_be_used_are_dropped_and_named(tmp_path: Path) -> None:
    app = mean_app(faulty)
    grid = LocalGrid(app, configs(9))
    nodes = list(grid.nodes)
    grid.silent = {nodes[5]}
    grid.lost = {nodes[6]}
    answer = grid.answer

    def tampered(message: Message) -> Message | None:
        reply = answer(message)
        node = message.metadata.dst_node_id
        if reply is not None and message.metadata.message_type == "train":
            if node == nodes[7]:
                reply.content["arrays"] = ArrayRecord([np.zeros((3, 2), np.float32)])
            if node == nodes[8]:
                reply.content["arrays"] = ArrayRecord([np.full(3, np.nan, np.float32)])
        return reply

    grid.answer = tampered  # type: ignore[method-assign]
    strategy = FairStrategy(
        "aaggff-s", out=tmp_path / "run", max_examples=10**6, timeout=2, name_key="none"
    )
    start(strategy, grid, 2)
    for line in Record.read(tmp_path / "run").rounds:
        assert line.weights == {str(nodes[0]): pytest.approx(1)}
        reasons = [line.dropped[str(node)] for node in nodes[1:]]
        said = [
            "the disk is full",
            "loss is not a finite number",
            "-5",
            "max_examples",
            "no reply within 2 s",
            "Node unavailable",
            "(3, 2)",
            "update is not finite",
        ]
        for reason, words in zip(reasons, said, strict=True):
            assert words in reason


def test_a_round_without_replies_changes_nothing(tmp_path: Path) -> None:
    grid = LocalGrid(mean_app(before), configs(3))
    strategy = FairStrategy("aaggff-s", out=tmp_path / "run")
    first = start(strategy, grid, 1)
    resumed = FairStrategy("aaggff-s", out=tmp_path / "run", resume=True, timeout=1)
    grid.silent = set(grid.nodes)
    with pytest.raises(RunError, match=r"nothing was trained.* in all 2 rounds.*no reply within"):
        start(resumed, grid, 3)
    assert [len(each.dropped) for each in resumed.history] == [3, 3]
    again = start(FairStrategy("aaggff-s", out=tmp_path / "run", resume=True), grid, 3)
    np.testing.assert_array_equal(model(again), model(first))


def test_what_clients_do_not_send_is_reported(tmp_path: Path) -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        content = RecordDict({"arrays": START, "metrics": MetricRecord({"loss": 1.0})})
        return Message(content, reply_to=message)

    strategy = FairStrategy("aaggff-s", out=None, fraction_evaluate=0)
    with pytest.raises(RunError, match=r"all 2 clients are refused.*'num-examples'.*\['loss'\]"):
        start(strategy, LocalGrid(app, configs(2)), 1)
    with pytest.raises(ConfigError, match="label counts"):
        FairStrategy({"name": "grouped", "rule": "afl", "domains": 2})


def test_clients_that_fail_for_different_reasons_in_a_round_do_not_end_the_run() -> None:
    """One app crashes and the other sends no size, in the second round only."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        metrics: dict[str, Any] = {"num-examples": 5, "loss-before": 1.0}
        if message.content.config_records["config"]["server-round"] == 2:
            if context.node_config["partition-id"] == 0:
                raise MemoryError("for a moment")
            del metrics["num-examples"]
        content = RecordDict({"arrays": START, "metrics": MetricRecord(metrics)})
        return Message(content, reply_to=message)

    strategy = FairStrategy("aaggff-s", out=None, fraction_evaluate=0)
    start(strategy, LocalGrid(app, configs(2)), 3)
    assert [len(each.dropped) for each in strategy.history] == [0, 2, 0]


def test_too_few_nodes_are_waited_for_and_named() -> None:
    strategy = FairStrategy("aaggff-s", out=None, wait=0.2, min_available_nodes=5)
    with pytest.raises(RunError, match="4 nodes are connected, but 5 are needed"):
        start(strategy, LocalGrid(mean_app(), configs(4)))


# As an engineer who knows Flower would try it


def test_functions_that_aggregate_metrics_are_called_as_fedavg_calls_them() -> None:
    def largest(records: list[RecordDict], key: str) -> MetricRecord:
        sizes = [record.metric_records["metrics"][key] for record in records]
        return MetricRecord({"largest": max(sizes), "replies": len(records)})

    results = []
    for strategy in (
        FedAvg(train_metrics_aggr_fn=largest, evaluate_metrics_aggr_fn=largest),
        FairStrategy(
            "fedavg", out=None, train_metrics_aggr_fn=largest, evaluate_metrics_aggr_fn=largest
        ),
    ):
        grid = LocalGrid(mean_app(), configs(4))
        results.append(strategy.start(grid=grid, initial_arrays=START, num_rounds=2))
    theirs, ours = results
    assert ours.train_metrics_clientapp == theirs.train_metrics_clientapp
    assert ours.evaluate_metrics_clientapp == theirs.evaluate_metrics_clientapp
    assert dict(ours.train_metrics_clientapp[1]) == {"largest": 40, "replies": 4}


def test_metrics_that_are_lists_are_averaged_as_by_fedavg() -> None:
    def report(k: int, w: np.ndarray, mine: np.ndarray) -> dict[str, Any]:
        return {"by-class": [float(k), 1.0]}

    grid = LocalGrid(mean_app(report), configs(3))
    theirs = FedAvg().start(grid=grid, initial_arrays=START, num_rounds=1)
    ours = start(FairStrategy("fedavg", out=None), LocalGrid(mean_app(report), configs(3)), 1)
    for name, value in theirs.train_metrics_clientapp[1].items():
        assert ours.train_metrics_clientapp[1][name] == pytest.approx(value)


def test_a_dropped_client_is_in_no_mean() -> None:
    def report(k: int, w: np.ndarray, mine: np.ndarray) -> dict[str, Any]:
        return before(k, w, mine) | ({"num-examples": -1, "train_loss": 1e9} if k == 1 else {})

    result = start(FairStrategy("fedavg", out=None), LocalGrid(mean_app(report), configs(3)), 1)
    assert result.train_metrics_clientapp[1]["train_loss"] == pytest.approx(0.1)


def test_every_strategy_has_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = start(FairStrategy("aaggff-s"), LocalGrid(mean_app(before), configs(4)))
    second = start(FairStrategy("aaggff-s"), LocalGrid(mean_app(before), configs(4)))
    np.testing.assert_array_equal(model(first), model(second))
    start(FairStrategy("aaggff-s"), LocalGrid(mean_app(before), configs(4)), 1)
    assert sorted(p.name for p in Path("runs").iterdir()) == ["flower", "flower-2", "flower-3"]
    assert Record.read("runs/flower-2").finished
    start(FairStrategy("aaggff-s", resume=True), LocalGrid(mean_app(before), configs(4)), 1)
    assert len(list(Path("runs").iterdir())) == 3
    strategy = FairStrategy("aaggff-s", out=tmp_path / "runs" / "flower")
    with pytest.raises(RunError, match="holds a run already"):
        start(strategy, LocalGrid(mean_app(before), configs(4)))


def test_arguments_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"0\.5 is no rule.*keywords"):
        FairStrategy(0.5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"fraction_train = 1\.5"):
        FairStrategy("term", fraction_train=1.5)
    with pytest.raises(ConfigError, match="aaggff-s"):
        FairStrategy("aagff-s")


def test_a_rule_never_becomes_fedavg_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    strategy = FairStrategy("aaggff-s", out=None, loss_key="lossbefore")
    sent = "client, loss-before, num-examples, train_loss"
    with pytest.raises(RunError, match=f"'lossbefore'.*{sent}.*loss_before_training.*evaluate"):
        start(strategy, LocalGrid(mean_app(before), configs(3)), 3)
    strategy = FairStrategy("aaggff-s", out=None, losses="evaluate", evaluate_loss_key="lss")
    with pytest.raises(RunError, match=r"none reported 'lss'.*eval_acc, eval_loss"):
        start(strategy, LocalGrid(mean_app(), configs(3)), 3)
    strategy = FairStrategy("aaggff-s", out=None, losses="evaluate")
    nan = evaluating(lambda k, loss: {"loss": math.nan})
    with pytest.raises(RunError, match="no unique finite loss"):
        start(strategy, LocalGrid(nan, configs(3)), 3)
    with pytest.raises(ConfigError, match="nobody is evaluated"):
        FairStrategy("aaggff-s", losses="evaluate", fraction_evaluate=0)
    strategy = FairStrategy("aaggff-s", out=None, strict=False)
    with caplog.at_level(logging.WARNING, "flwr"):
        start(strategy, LocalGrid(mean_app(), configs(3)), 3)
    assert caplog.records[-1].getMessage().startswith("FedAvg weights in 3 of 3 rounds")
    for line in strategy.history:
        assert list(line.weights.values()) == pytest.approx([1 / 6, 2 / 6, 3 / 6])
        assert any("weights of FedAvg" in warning for warning in line.warnings)


def test_fractions_and_central_evaluation_are_those_of_fedavg() -> None:
    numbers = []

    def central(number: int, arrays: ArrayRecord) -> MetricRecord:
        numbers.append(number)
        return MetricRecord({"first": float(arrays.to_numpy_ndarrays()[0][0])})

    strategy = FairStrategy(
        "fedavg", out=None, fraction_train=0.5, min_train_nodes=1, fraction_evaluate=0.25
    )
    grid = LocalGrid(mean_app(before), configs(8))
    result = strategy.start(
        grid=grid, initial_arrays=START, num_rounds=3, evaluate_fn=central, timeout=5
    )
    assert numbers == [0, 1, 2, 3] and sorted(result.evaluate_metrics_serverapp) == numbers
    assert [len(line.clients) for line in strategy.history] == [4, 4, 4]
    assert len({line.clients for line in strategy.history}) > 1
    assert grid.sent == 3 * (4 + 2)


def test_nodes_may_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other nodes in every round: weights are of those who are there, and sum to 1."""
    grid = LocalGrid(mean_app(before), configs(6))
    every = dict(grid.nodes)
    strategy = FairStrategy("aaggff-s", out=None, name_key="client")
    evaluated = strategy.aggregate_evaluate

    def changes(number: int, replies: Any) -> MetricRecord | None:
        there = [node for k, node in enumerate(every) if (k + number) % 3]
        grid.nodes = {node: every[node] for node in there}
        return evaluated(number, replies)

    monkeypatch.setattr(strategy, "aggregate_evaluate", changes)
    start(strategy, grid, 4)
    assert [len(line.weights) for line in strategy.history] == [6, 4, 4, 4]
    assert len({tuple(sorted(line.weights)) for line in strategy.history[1:]}) == 3
    for line in strategy.history:
        assert sum(line.weights.values()) == pytest.approx(1) and not line.dropped


def test_a_client_app_without_evaluation_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        w = message.content.array_records["arrays"].to_numpy_ndarrays()[0]
        metrics = MetricRecord({"num-examples": 4, "loss-before": float(w.sum() ** 2)})
        content = RecordDict({"arrays": ArrayRecord([w + 1]), "metrics": metrics})
        return Message(content, reply_to=message)

    strategy = FairStrategy("term", out=None)
    with caplog.at_level(logging.WARNING, "flwr"):
        result = start(strategy, LocalGrid(app, configs(2)), 2)
    np.testing.assert_allclose(model(result), 2)
    assert any("evaluation: client" in record.getMessage() for record in caplog.records)


# What apps report


def evaluating(report: Callable[[int, float], dict[str, Any]]) -> ClientApp:
    """The app of `mean_app` whose evaluations report something else."""
    app = ClientApp(mods=[name_clients()])
    usual = mean_app(before)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        reply: Message = usual(message, context)
        return reply

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        k = int(context.node_config["partition-id"])
        w = message.content.array_records["arrays"].to_numpy_ndarrays()[0]
        metrics = report(k, distance(w, rows(k, 10 * (k + 1)))) | {"num-examples": 5 + k}
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    return app


@pytest.mark.parametrize(
    ("report", "key", "higher", "name", "shown"),
    [
        (lambda k, loss: {"accuracy": 80.0 + k}, None, True, "accuracy", "80.00 %"),
        (lambda k, loss: {"test_accuracy": 0.8 + k / 100}, None, True, "accuracy", "80.00 %"),
        (lambda k, loss: {"score_f1": 7.5 + k}, "score_f1", True, "higher:score_f1", "7.5"),
        (lambda k, loss: {"rmse": 12.5 - k}, "rmse", False, "rmse", "12.5"),
        (lambda k, loss: {"minutes": 12.5 - k}, "minutes", False, "lower:minutes", "12.5"),
    ],
)
def test_scores_of_any_name_and_unit_can_be_read(
    report: Any, key: str | None, higher: bool, name: str, shown: str, tmp_path: Path
) -> None:
    """Client 0 is the worst in each of them."""
    strategy = FairStrategy(
        "aaggff-s", score_key=key, higher_is_better=higher, out=tmp_path / "run"
    )
    start(strategy, LocalGrid(evaluating(report), configs(4)))
    record = Record.read(tmp_path / "run")
    assert record.facts.score == name and record.clients().names == ("0", "1", "2", "3")
    output = CliRunner().invoke(command, ["show", str(tmp_path / "run")]).output
    assert re.search(rf"worst .*{re.escape(shown)}", output), output


def test_a_score_that_nobody_reports_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    strategy = FairStrategy("aaggff-s", score_key="f1", out=None)
    with caplog.at_level(logging.WARNING, "flwr"):
        start(strategy, LocalGrid(mean_app(before), configs(4)), 2)
    (warning,) = [r.getMessage() for r in caplog.records if "score_key" in r.getMessage()]
    assert "no client reported f1 (they reported eval_acc, eval_loss, num-examples)" in warning


def test_some_clients_may_be_evaluated_in_a_round(tmp_path: Path) -> None:
    """The rule uses the last known losses, and the record says whose are old or missing."""
    app = evaluating(lambda k, loss: {"test_logloss": loss, "accuracy": 0.5})
    usual = mean_app(lambda k, w, mine: {"client": k})

    def both(message: Message, context: Context) -> Message:
        training = message.metadata.message_type == "train"
        return usual(message, context) if training else app(message, context)

    strategy = FairStrategy(
        "aaggff-s", losses="evaluate", fraction_evaluate=0.5, out=tmp_path / "run"
    )
    start(strategy, LocalGrid(both, configs(6)), 6)
    last = Record.read(tmp_path / "run").rounds[-1]
    assert any(re.fullmatch(r"not evaluated: \d, \d, \d", text) for text in last.warnings)
    ages = [text for line in strategy.history for text in line.warnings if "rounds old" in text]
    assert ages and "losses of earlier models, up to" in ages[0]
    output = CliRunner().invoke(command, ["show", str(tmp_path / "run")]).output
    assert "without a score (not evaluated" in " ".join(output.split())


def test_weights_may_be_fractions() -> None:
    shares = [0.2, 0.3, 0.5]
    app = mean_app(lambda k, w, mine: before(k, w, mine) | {"importance": shares[k]})
    strategy = FairStrategy("fedavg", weighted_by_key="importance", out=None)
    start(strategy, LocalGrid(app, configs(3)), 1)
    done = strategy.history[0]
    assert [done.weights[name] for name in done.clients] == pytest.approx(shares)


def test_the_record_counts_rounds_with_the_weights_of_fedavg(tmp_path: Path) -> None:
    strategy = FairStrategy("aaggff-s", strict=False, out=tmp_path / "run")
    start(strategy, LocalGrid(mean_app(), configs(3)), 2)
    assert [line.fallback for line in Record.read(tmp_path / "run").rounds] == ["fedavg"] * 2
    shown = CliRunner().invoke(command, ["show", str(tmp_path / "run")]).output
    page = tmp_path / "report.html"
    done = CliRunner().invoke(command, ["report", str(tmp_path / "run"), "--out", str(page)])
    assert done.exit_code == 0, done.output
    words = "weights of fedavg in 2 of 2 rounds"
    assert words in " ".join(shown.split()) and words in page.read_text()


def test_a_client_with_nearly_all_of_the_weight_is_warned_of() -> None:
    """As adafed's f^5 gives it, or an exponential of the losses here."""
    losses = [1.0, 1.0, 10.0, 1.0]
    app = mean_app(lambda k, w, mine: {"loss-before": losses[k], "client": k})
    for rule, warned in (("term(t=20)", True), ("term(t=0.1)", False)):
        strategy = FairStrategy(rule, out=None)
        start(strategy, LocalGrid(app, configs(4)), 1)
        warnings = strategy.history[0].warnings
        assert any("of the weight is on client 2" in text for text in warnings) is warned


@pytest.mark.parametrize(("rule", "warned"), [("adafed", True), ("fedavg", False)])
def test_losses_that_rise_under_a_common_descent_are_warned_of(rule: str, warned: bool) -> None:
    """As on Flower's quickstart, where steps are long: 1.9 in one round, 5.4 in the next."""
    losses = iter([1.0] * 4 + [1.4] * 4 + [5.0] * 4 + [4.0] * 4)
    app = mean_app(lambda k, w, mine: {"loss-before": next(losses), "client": k})
    strategy = FairStrategy(rule, out=None)
    start(strategy, LocalGrid(app, configs(4)), 4)
    rose = [any("rose by more than 50 %" in w for w in line.warnings) for line in strategy.history]
    assert rose == [False, False, warned, False]


def test_training_that_diverges_everywhere_ends_the_run() -> None:
    app = mean_app(before)
    grid = LocalGrid(app, configs(2))
    answer = grid.answer

    def diverged(message: Message) -> Message | None:
        reply = answer(message)
        if reply is not None and message.metadata.message_type == "train":
            reply.content["arrays"] = ArrayRecord([np.full(3, np.nan, np.float32)])
        return reply

    grid.answer = diverged  # type: ignore[method-assign]
    with pytest.raises(DivergedError, match=r"in round 1.*learning rate"):
        start(FairStrategy("aaggff-s", out=None), grid, 9)


# The record and the checkpoint


def test_a_stopped_run_is_resumed_with_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule, server optimizer, round number and cohorts continue where they were."""

    def strategy(name: str, **more: Any) -> FairStrategy:
        return FairStrategy(
            "aaggff-s",
            "sgd(momentum=0.5)",
            out=tmp_path / name,
            name_key="client",
            fraction_train=0.5,
            **more,
        )

    whole = start(strategy("whole"), LocalGrid(mean_app(before), configs(4)), 6)
    first = strategy("parts")
    evaluated = first.aggregate_evaluate

    def dies(number: int, replies: Any) -> MetricRecord | None:
        metrics = evaluated(number, replies)
        if number == 3:
            raise KeyboardInterrupt
        return metrics

    monkeypatch.setattr(first, "aggregate_evaluate", dies)
    with pytest.raises(KeyboardInterrupt):
        start(first, LocalGrid(mean_app(before), configs(4)), 6)
    seen = []

    def noting(k: int, w: np.ndarray, mine: np.ndarray) -> dict[str, Any]:
        seen.append(k)
        return before(k, w, mine)

    again = start(strategy("parts", resume=True), LocalGrid(mean_app(noting), configs(4)), 6)
    assert len(seen) == 6  # three rounds of two clients
    assert list(again.train_metrics_clientapp) == [4, 5, 6]
    np.testing.assert_array_equal(model(again), model(whole))
    parts, complete = Record.read(tmp_path / "parts"), Record.read(tmp_path / "whole")
    assert [line.number for line in parts.rounds] == [1, 2, 3, 4, 5, 6]
    for a, b in zip(parts.rounds[1:], complete.rounds[1:], strict=True):
        assert a.weights == b.weights and a.clients == b.clients


def test_a_resumed_run_may_have_more_rounds_and_other_nodes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a simulation, where node ids are new in each run."""
    usual = mean_app(lambda k, w, mine: {"loss-before": distance(w, mine)})

    def named(message: Message, context: Context) -> Message:
        return name_clients()(message, context, usual)

    def run(app: Any, rounds: int, first: int, name: str = "run") -> FlowerResult:
        grid = LocalGrid(app, configs(4))
        grid.nodes = {first + node: config for node, config in grid.nodes.items()}
        grid.contexts = {first + node: context for node, context in grid.contexts.items()}
        strategy = FairStrategy("aaggff-s", out=tmp_path / name, resume=first > 0)
        return start(strategy, grid, rounds)

    whole = run(named, 5, 0, "whole")
    run(named, 2, 0)
    again = run(named, 5, 1000)
    np.testing.assert_array_equal(model(again), model(whole))
    record = Record.read(tmp_path / "run")
    assert record.finished and record.total == 5
    assert record.rounds[-1].weights == Record.read(tmp_path / "whole").rounds[-1].weights
    assert not any("is lost" in warning for line in record.rounds for warning in line.warnings)
    run(usual, 2, 0, "unnamed")
    with caplog.at_level(logging.WARNING, "flwr"):
        run(usual, 3, 1000, "unnamed")
    assert any("name_clients()" in record.getMessage() for record in caplog.records)
    with pytest.raises(RunError, match="resume=True"):
        run(named, 3, 0, "whole")


def test_a_run_in_which_no_round_trained_is_an_error(tmp_path: Path) -> None:
    app = mean_app(lambda k, w, mine: {"loss-before": math.nan})
    with pytest.raises(RunError, match="nothing was trained"):
        start(FairStrategy("aaggff-s", out=tmp_path / "run"), LocalGrid(app, configs(4)), 2)
    recovers = mean_app(lambda k, w, mine: {"loss-before": math.nan if not w.any() and k else 1.0})
    result = start(FairStrategy("aaggff-s", out=None), LocalGrid(recovers, configs(4)), 2)
    assert model(result).any()


def test_a_rule_that_plans_its_rounds_gets_no_more_of_them(tmp_path: Path) -> None:
    app = mean_app(lambda k, w, mine: before(k, w, mine) | {"loss-after": 0.1})
    start(FairStrategy("feddg-ga", out=tmp_path / "run"), LocalGrid(app, configs(4)), 2)
    resumed = FairStrategy("feddg-ga", out=tmp_path / "run", resume=True)
    with pytest.raises(RunError, match="planned for 2 rounds"):
        start(resumed, LocalGrid(app, configs(4)), 3)


def test_batch_norm_and_whole_numbers_survive(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        k = int(context.node_config["partition-id"])
        arrays = message.content.array_records["arrays"].to_torch_state_dict()
        for name, value in arrays.items():
            arrays[name] = value + (k if value.is_floating_point() else 4)
        content = RecordDict(
            {
                "arrays": ArrayRecord(arrays),
                "metrics": MetricRecord({"num-examples": 1, "loss-before": 1.0 + k}),
            }
        )
        return Message(content, reply_to=message)

    start_arrays = ArrayRecord(net.state_dict())
    strategy = FairStrategy("uniform", out=tmp_path / "run", fraction_evaluate=0)
    result = strategy.start(
        grid=LocalGrid(app, configs(3)), initial_arrays=start_arrays, num_rounds=1
    )
    state = result.arrays.to_torch_state_dict()
    for name, value in net.state_dict().items():
        expected = value + (1 if value.is_floating_point() else 4)
        torch.testing.assert_close(state[name], expected)
    assert state["1.num_batches_tracked"].dtype == torch.int64
    saved = Record.read(tmp_path / "run").state_dict()
    assert saved.keys() == net.state_dict().keys()


def test_without_flower_an_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = ("strategy", "aggregation", "messages")
    loaded = [f"commonweal.flower.{part}" for part in parts]
    loaded += [name for name in sys.modules if name.partition(".")[0] == "flwr"]
    for name in loaded:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "flwr", None)
    with pytest.raises(ConfigError, match=r'pip install "commonweal\[flower\]"'):
        _ = commonweal.flower.FairStrategy


# Keys of nodes


@needs_keys
@pytest.mark.parametrize("binds", [False, True])
def test_a_name_belongs_to_the_key_that_gave_it_first(tmp_path: Path, binds: bool) -> None:
    """Client 1 is away, and another registered node says that it is client 1."""
    grid = WithKeys(mean_app(before), configs(4))
    strategy = FairStrategy("aaggff-s", out=tmp_path / "run")
    start(strategy, grid, 2)
    stranger = NODES[1] + 5
    grid.move(NODES[1], stranger)
    resumed = FairStrategy("aaggff-s", out=tmp_path / "run", resume=True, bind_names=binds)
    start(resumed, grid, 3)
    last = resumed.history[-1]
    if binds:
        assert "belongs to the node with the key SHA256:" in last.dropped[str(stranger)]
        assert "1" not in last.weights and len(last.weights) == 3
    else:
        assert last.dropped == {} and last.weights["1"] > 0


@needs_keys
def test_a_fingerprint_is_that_of_ssh_keygen(tmp_path: Path) -> None:
    grid = WithKeys(mean_app(), configs(1))
    (node,) = grid.nodes
    path = tmp_path / "key.pub"
    path.write_bytes(grid.keys[node].public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    printed = subprocess.run(
        ["ssh-keygen", "-lf", path], capture_output=True, text=True, check=True
    )
    assert node_keys(grid) == {node: printed.stdout.split()[1]}
    assert node_keys(LocalGrid(mean_app(), configs(2))) == {}
