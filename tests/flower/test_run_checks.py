"""The rule is on or the run fails: subclasses, loops of `start`, and losses that are not there."""

import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'commonweal[flower]'")

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Result
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords

from commonweal.base.errors import ConfigError, DataError, RunError
from commonweal.flower import FairStrategy
from commonweal.record.record import Record
from flower_helpers import FIRST, LocalGrid, configs, distance, mean_app

START = ArrayRecord([np.zeros(3, np.float32)])


def before(k: int, w: np.ndarray, mine: np.ndarray) -> dict[str, Any]:
    return {"loss-before": distance(w, mine), "client": k}


def start(strategy: FairStrategy, grid: LocalGrid | None = None, rounds: int = 3) -> Result:
    grid = LocalGrid(mean_app(before), configs(4)) if grid is None else grid
    return strategy.start(grid=grid, initial_arrays=START, num_rounds=rounds)


def model(result: Result) -> np.ndarray:
    return result.arrays.to_numpy_ndarrays()[0]


# Subclasses that aggregate by themselves


class Averaging(FairStrategy):
    """As in public apps: FedAvg's own functions in place of the strategy's."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        contents = [reply.content for reply in replies if not reply.has_error()]
        metrics = self.train_metrics_aggr_fn(contents, self.weighted_by_key)
        return aggregate_arrayrecords(contents, self.weighted_by_key), metrics


class AveragingAll(Averaging):
    """It sends its own messages, too, so that nothing of the strategy runs in a round."""

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        content = RecordDict({"arrays": arrays, "config": config})
        return [Message(content, node, "train") for node in grid.get_node_ids()]

    def configure_evaluate(self, *values: Any) -> Any:
        return []

    def aggregate_evaluate(self, *values: Any) -> Any:
        return None


@pytest.mark.parametrize(("strategy", "messages"), [(Averaging, 4), (AveragingAll, 12)])
def test_a_subclass_that_goes_around_the_rule_is_refused(
    strategy: type[FairStrategy], messages: int
) -> None:
    """In the first round, where it can be seen there, and else at the end."""
    grid = LocalGrid(mean_app(before), configs(4))
    text = rf"{strategy.__name__}\.aggregate_train.*'term' has decided nothing.*super\(\)"
    with pytest.raises(RunError, match=text):
        start(strategy("term", out=None), grid)
    assert grid.sent == messages


def test_a_subclass_may_skip_rounds_and_change_what_the_rule_gives() -> None:
    class Skipping(FairStrategy):
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            if server_round == 2:
                return None, None  # the model stays
            arrays, metrics = super().aggregate_train(server_round, replies)
            assert arrays is not None
            return ArrayRecord([arrays.to_numpy_ndarrays()[0] + 1]), metrics

    result = start(Skipping("term", out=None))
    plain = FairStrategy("term", out=None)
    first = start(plain, rounds=1).arrays.to_numpy_ndarrays()[0] + 1
    grid = LocalGrid(mean_app(before), configs(4))
    second = plain.start(grid=grid, initial_arrays=ArrayRecord([first]), num_rounds=1)
    np.testing.assert_allclose(model(result), model(second) + 1, rtol=1e-6)


# A second start


def test_starts_in_a_loop_are_one_run(tmp_path: Path) -> None:
    """A common way to save the model of every round: the rule's memory goes on."""

    def strategy(name: str, **more: Any) -> FairStrategy:
        return FairStrategy("aaggff-s", "sgd(momentum=0.5)", out=tmp_path / name, **more)

    whole = start(strategy("whole"), rounds=4)
    grid = LocalGrid(mean_app(before), configs(4))
    looped = strategy("looped")
    arrays = START
    numbers = []
    for _ in range(4):
        result = looped.start(
            grid=grid,
            initial_arrays=arrays,
            num_rounds=1,
            evaluate_fn=lambda number, arrays: numbers.append(number),
        )
        arrays = result.arrays
    np.testing.assert_array_equal(model(result), model(whole))
    assert list(result.train_metrics_clientapp) == [4]
    assert numbers == [0, 1, 1, 2, 2, 3, 3, 4]
    parts, complete = Record.read(tmp_path / "looped"), Record.read(tmp_path / "whole")
    assert parts.finished and parts.total == 4
    for a, b in zip(parts.rounds, complete.rounds, strict=True):
        assert (a.number, a.weights, a.metrics) == (b.number, b.weights, b.metrics)
    # A process that continues after two of the rounds, as one with resume=True does.
    resumed = strategy("resumed")
    half = start(resumed, grid, 2)
    again = strategy("resumed", resume=True)
    arrays = START
    for rounds in (3, 1):  # all rounds at first, then one more
        arrays = again.start(grid=grid, initial_arrays=arrays, num_rounds=rounds).arrays
    assert not np.array_equal(model(half), model(whole))
    np.testing.assert_array_equal(arrays.to_numpy_ndarrays()[0], model(whole))


def test_a_resumed_run_without_rounds_left_is_warned_of_or_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start(FairStrategy("aaggff-s", out=tmp_path / "run"), rounds=2)
    with caplog.at_level(logging.WARNING, "flwr"):
        start(FairStrategy("aaggff-s", out=tmp_path / "run", resume=True), rounds=2)
    assert any("nothing is trained" in record.getMessage() for record in caplog.records)
    with pytest.raises(RunError, match=r"another experiment \(not rounds = 1"):
        start(FairStrategy("aaggff-s", out=tmp_path / "run", resume=True), rounds=1)


def test_what_cannot_go_on_is_refused() -> None:
    app = mean_app(lambda k, w, mine: before(k, w, mine) | {"loss-after": 0.1})
    planned = FairStrategy("feddg-ga", out=None)
    start(planned, LocalGrid(app, configs(4)), 2)
    with pytest.raises(RunError, match="planned for 2 rounds"):
        start(planned, LocalGrid(app, configs(4)), 1)
    strategy = FairStrategy("term", out=None)
    start(strategy, rounds=1)
    with pytest.raises(RunError, match="other arrays"):
        strategy.start(LocalGrid(mean_app(before), configs(4)), ArrayRecord([np.zeros(4)]), 1)


# Losses


def test_losses_of_evaluations_are_used_also_where_clients_report_others() -> None:
    """The same weights as without the mod, which reports losses in another order here."""
    weights = []
    for report in (None, lambda k, w, mine: {"loss-before": 100.0 - k}):
        strategy = FairStrategy("term", losses="evaluate", out=None)
        start(strategy, LocalGrid(mean_app(report), configs(4)))
        weights.append([record.weights for record in strategy.history])
    assert weights[0] == weights[1] and weights[0][2] != weights[0][0]


@pytest.mark.parametrize("losses", [[-1.0, -2.0, -3.0, -4.0], [3.0, 2.0, -1.0, 1.0]])
def test_negative_losses_are_refused_counted_or_used(
    losses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    app = mean_app(lambda k, w, mine: {"loss-before": losses[k], "client": k})
    lowest = int(np.argmin(losses))
    for rule in ("term", "propfair", "qfedavg", "aaggff-s"):
        with pytest.raises(RunError, match=rf"{rule}.* below 0 .*client {lowest}\. strict=False"):
            start(FairStrategy(rule, out=None), LocalGrid(app, configs(4)))
    strategy = FairStrategy("term", strict=False, out=None)
    with caplog.at_level(logging.WARNING, "flwr"):
        start(strategy, LocalGrid(app, configs(4)))
    assert caplog.records[-1].getMessage() == "FedAvg weights in 3 of 3 rounds: losses were below 0"
    assert {record.fallback for record in strategy.history} == {"fedavg"}
    strategy = FairStrategy("term(relative=false)", out=None)
    start(strategy, LocalGrid(app, configs(4)), 1)
    tilted = np.array([10.0, 20, 30, 40]) * np.exp(losses)
    weights = [strategy.history[0].weights[str(k)] for k in range(4)]
    assert weights == pytest.approx(tilted / tilted.sum())


def test_a_client_that_never_reports_its_loss_ends_the_run_or_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def report(k: int, w: np.ndarray, mine: np.ndarray) -> dict[str, Any]:
        return {"client": k} if k == 2 else before(k, w, mine)

    grid = LocalGrid(mean_app(report), configs(4))
    text = r"client 2 has reported no loss in 2 rounds \(it reported client, num-examples, train_"
    with pytest.raises(RunError, match=text):
        start(FairStrategy("term", out=None), grid)
    assert grid.sent == 3 * 4  # two rounds of training, and the evaluation between them
    with caplog.at_level(logging.WARNING, "flwr"):
        start(FairStrategy("term", strict=False, out=None), grid)
    text = "the others' mean loss in place of a client's own: 2 (3)"
    assert caplog.records[-1].getMessage() == text


def test_a_client_that_lacks_its_loss_now_and_then_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked: list[int] = []

    def report(k: int, w: np.ndarray, mine: np.ndarray) -> dict[str, Any]:
        asked.append(k)
        lacks = k == 2 and asked.count(2) > 1
        return {"client": k} if lacks else before(k, w, mine)

    with caplog.at_level(logging.WARNING, "flwr"):
        start(FairStrategy("term", out=None), LocalGrid(mean_app(report), configs(4)), 4)
    assert caplog.records[-1].getMessage().endswith("in place of a client's own: 2 (3)")


def test_evaluations_that_a_subclass_keeps_to_itself_are_missed() -> None:
    class Silent(FairStrategy):
        def aggregate_evaluate(self, server_round: int, replies: Any) -> Any:
            return None

    strategy = Silent("term", losses="evaluate", out=None)
    with pytest.raises(RunError, match="no evaluation with a loss has been aggregated"):
        start(strategy, rounds=9)
    assert len(strategy.history) == 2


# Nobody answers


def test_a_run_ends_where_nobody_answers_for_several_rounds() -> None:
    grid = LocalGrid(mean_app(before), configs(3))
    strategy = FairStrategy("term", out=None, timeout=7)
    start(strategy, grid, 2)
    grid.silent = set(grid.nodes)
    sent = grid.sent
    with pytest.raises(RunError, match=rf"in rounds 3 to 5 \(of node {FIRST}: no reply within 7 s"):
        start(strategy, grid, 9)
    assert grid.sent - sent == 5 * 3  # three rounds of training, two evaluations


# Flower's habits


def test_the_log_has_flowers_lines_and_one_about_each_round(
    caplog: pytest.LogCaptureFixture,
) -> None:
    from flwr.serverapp.strategy import FedAvg

    def report(k: int, w: np.ndarray, mine: np.ndarray) -> dict[str, Any]:
        if k == 3:
            raise ValueError("no disk")
        return before(k, w, mine)

    logs = []
    fair = FairStrategy("term", out=None)
    for strategy in (FedAvg(), fair):
        caplog.clear()
        with caplog.at_level(logging.INFO, "flwr"):
            strategy.start(LocalGrid(mean_app(report), configs(4)), START, 1)
        logs.append([record.getMessage() for record in caplog.records])
    theirs, ours = logs
    for line in theirs:
        if re.search(r"Sampling|Fraction|Minimum|configure_|Received \d", line):
            assert line in ours, line
    assert "configure_train: Sampled 4 nodes (out of 4)" in ours
    assert "aggregate_train: Received 3 results and 1 failures" in ours
    (line,) = [line for line in ours if line.startswith("round 1: weights")]
    record = fair.history[0]
    least, most = min(record.weights.values()), max(record.weights.values())
    # Client 2 has the largest distance to the others. Client 3 has failed: nobody knows its name.
    assert line.startswith(f"round 1: weights {least:.3g} to {most:.3g}, worst client ")
    assert line.endswith(", 1 dropped, 0 capped")


def test_a_function_gets_the_numbers_of_every_round() -> None:
    noted: list[dict[str, float]] = []
    strategy = FairStrategy("term", out=None, on_round=noted.append)
    start(strategy, LocalGrid(mean_app(before), configs(4)), 2)
    assert [numbers["round"] for numbers in noted] == [1, 2]
    for numbers, record in zip(noted, strategy.history, strict=True):
        assert all(type(value) in (int, float) for value in numbers.values())
        for k in range(4):
            assert numbers[f"weight/{k}"] == record.weights[str(k)]
            assert numbers[f"loss/{k}"] == record.losses[k]
        assert numbers["test/worst"] == min(numbers[f"score/{k}"] for k in range(4))
        assert numbers["cohort/weight_max"] == max(record.weights.values())


def test_a_record_may_be_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with caplog.at_level(logging.INFO, "flwr"):
        start(FairStrategy("term", out="~/volume/run"), rounds=1)
    assert Record.read(tmp_path / "home" / "volume" / "run").finished
    folder = tmp_path / "home" / "volume" / "run"
    assert any(f"record: {folder}" in record.getMessage() for record in caplog.records)


def test_arguments_that_do_not_exist_are_named() -> None:
    with pytest.raises(ConfigError, match=r"no argument 'fraction_tran': did you mean 'fraction_t"):
        FairStrategy("term", fraction_tran=0.5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"fraction_fit is .*legacy API.*this is fraction_train"):
        FairStrategy("term", fraction_fit=0.5)  # type: ignore[arg-type]
    strategy = FairStrategy("term", out=None)
    grid = LocalGrid(mean_app(before), configs(2))
    with pytest.raises(ConfigError, match=r"start has no argument 'rounds'.*'num_rounds'"):
        strategy.start(grid, START, rounds=2)  # type: ignore[arg-type]


# The table "works / is refused" of docs/flower.md, where no other test shows a row


def test_apps_with_the_trees_of_xgboost_are_refused() -> None:
    trees = ArrayRecord([np.frombuffer(b'{"learner": {}}', np.uint8)])
    with pytest.raises(DataError, match=r'XGBoost send their trees.*algorithm = "boosting"'):
        FairStrategy("term", out=None).start(LocalGrid(mean_app(), configs(2)), trees, 1)


def test_legacy_clients_are_named() -> None:
    from flwr.client import NumPyClient

    class Legacy(NumPyClient):
        def fit(self, parameters: Any, config: Any) -> Any:
            return parameters, 3, {}

    app = ClientApp(lambda context: Legacy().to_client())
    with pytest.raises(RunError, match=r"ClientApp is of Flower's legacy API.*NumPyClient.*@app\."):
        start(FairStrategy("term", out=None), LocalGrid(app, configs(2)), 1)


def test_secure_aggregation_is_named() -> None:
    from flwr.server import LegacyContext, ServerConfig
    from flwr.server.workflow.default_workflows import default_init_params_workflow

    context = LegacyContext(
        context=Context(1, 1, {}, RecordDict(), {}),
        config=ServerConfig(num_rounds=1),
        strategy=FairStrategy("term", out=None),  # type: ignore[arg-type]
    )
    # The first step of DefaultWorkflow, in which SecAggPlusWorkflow is the second one.
    with pytest.raises(ConfigError, match=r"secure aggregation \(SecAgg\+\) are .* legacy API"):
        default_init_params_workflow(LocalGrid(mean_app(), configs(3)), context)


def test_adapters_of_a_frozen_model_are_weighed() -> None:
    """As apps with LoRA send them: names of layers, two small matrices each."""
    names = [f"base.layers.{k}.q_proj.lora_{part}.weight" for k in range(2) for part in "AB"]
    shapes = [(2, 6), (6, 2)] * 2
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        k = int(context.node_config["partition-id"])
        received = message.content.array_records["arrays"].to_torch_state_dict()
        arrays = ArrayRecord({name: value + k for name, value in received.items()})
        metrics = MetricRecord({"num-examples": 1, "loss-before": 1.0 + k, "client": k})
        return Message(RecordDict({"arrays": arrays, "m": metrics}), reply_to=message)

    import torch

    adapter = {n: torch.zeros(s) for n, s in zip(names, shapes, strict=True)}
    strategy = FairStrategy("term", out=None, fraction_evaluate=0)
    result = strategy.start(LocalGrid(app, configs(3)), ArrayRecord(adapter), 1)
    p = np.exp(np.array([1.0, 2.0, 3.0]) / 2)
    for value in result.arrays.to_torch_state_dict().values():
        np.testing.assert_allclose(value, p @ [0.0, 1.0, 2.0] / p.sum(), rtol=1e-6)


def test_vertical_apps_are_refused() -> None:
    """Clients send embeddings of the same samples, which no rule can weigh."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        embeddings = ArrayRecord([np.zeros((20, 4), np.float32)])
        metrics = MetricRecord({"num-examples": 20, "loss-before": 1.0})
        return Message(RecordDict({"arrays": embeddings, "m": metrics}), reply_to=message)

    grid = LocalGrid(app, configs(2))
    with pytest.raises(RunError, match=r"all 2 clients are refused.*shape \(20, 4\), not \(3,\)"):
        FairStrategy("term", out=None).start(grid, START, 1, train_config=ConfigRecord({"lr": 0.1}))
