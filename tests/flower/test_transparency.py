"""FairStrategy("fedavg") and Flower's FedAvg: the same messages and results, subclassed or not."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'commonweal[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    Result,
    Strategy,
)

from commonweal.base.errors import ConfigError
from commonweal.flower import FairStrategy
from commonweal.record.record import Record
from flower_helpers import LocalGrid, configs, mean_app

START = ArrayRecord([np.zeros(3, np.float32)])
CONFIG = ConfigRecord({"lr": 0.1})
Build = Callable[[type[Any]], Strategy]


class NotingGrid(LocalGrid):
    """Keeps what is sent, by kind, node and order."""

    def __init__(self, clients: int = 4) -> None:
        super().__init__(mean_app(), configs(clients))
        self.noted: list[tuple[str, int, dict[str, Any], dict[str, Any]]] = []

    def answer(self, message: Message) -> Message | None:
        arrays = {
            f"{key}/{name}": array.numpy()
            for key, record in message.content.array_records.items()
            for name, array in record.items()
        }
        config = {key: dict(r) for key, r in message.content.config_records.items()}
        metadata = message.metadata
        self.noted.append((metadata.message_type, metadata.dst_node_id, arrays, config))
        return super().answer(message)


def run(build: Build, base: type[Any], **more: Any) -> tuple[NotingGrid, Result]:
    grid = NotingGrid()
    made = build(base)
    result = made.start(
        grid=grid,
        initial_arrays=START,
        num_rounds=3,
        train_config=ConfigRecord(dict(CONFIG)),
        **more,
    )
    return grid, result


def ours(**more: Any) -> FairStrategy:
    return FairStrategy("fedavg", out=None, **more)


def made(base: type[Any], **more: Any) -> Any:
    return base(**more) if base is FedAvg or issubclass(base, FedAvg) else base("fedavg", out=None)


# Shapes of subclasses that Flower's users write


def plain(base: type[Any]) -> Strategy:
    strategy: Strategy = made(base)
    return strategy


def changes_the_model(base: type[Any]) -> Strategy:
    class Changed(base):  # type: ignore[misc]
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            arrays, metrics = super().aggregate_train(server_round, replies)
            rounded = {name: Array(np.round(a.numpy(), 1) + 7) for name, a in arrays.items()}
            return ArrayRecord(rounded), metrics

    return plain(Changed)


def changes_the_model_in_place(base: type[Any]) -> Strategy:
    class Changed(base):  # type: ignore[misc]
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            arrays, metrics = super().aggregate_train(server_round, replies)
            arrays["0"] = Array(arrays["0"].numpy() * np.float32(0.5))
            return arrays, metrics

    return plain(Changed)


def changes_the_config(base: type[Any]) -> Strategy:
    class Changed(base):  # type: ignore[misc]
        def configure_train(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
        ) -> Iterable[Message]:
            config["lr"] = float(str(config["lr"])) / 2
            messages: Iterable[Message] = super().configure_train(
                server_round, arrays, config, grid
            )
            return messages

    return plain(Changed)


def leaves_out_messages(base: type[Any]) -> Strategy:
    class Changed(base):  # type: ignore[misc]
        def configure_train(self, *values: Any) -> Iterable[Message]:
            messages = list(super().configure_train(*values))
            return sorted(messages, key=lambda message: message.metadata.dst_node_id)[:2]

    return plain(Changed)


def leaves_out_replies(base: type[Any]) -> Strategy:
    class Changed(base):  # type: ignore[misc]
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            ordered = sorted(replies, key=lambda reply: reply.metadata.src_node_id)
            return super().aggregate_train(server_round, ordered[1:])

    return plain(Changed)


def keeps_evaluations(base: type[Any]) -> Strategy:
    class Changed(base):  # type: ignore[misc]
        def aggregate_evaluate(
            self, server_round: int, replies: Iterable[Message]
        ) -> MetricRecord | None:
            metrics = super().aggregate_evaluate(server_round, replies)
            return MetricRecord({**metrics, "round": server_round})

    return plain(Changed)


def evaluates_nothing(base: type[Any]) -> Strategy:
    class Changed(base):  # type: ignore[misc]
        def configure_evaluate(self, *values: Any) -> Iterable[Message]:
            return []

    return plain(Changed)


def asks_by_itself(base: type[Any]) -> Strategy:
    class Changed(base):  # type: ignore[misc]
        def configure_train(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
        ) -> Iterable[Message]:
            config["server-round"] = server_round
            content = RecordDict({"arrays": arrays, "config": config})
            return [Message(content, node, "train") for node in sorted(grid.get_node_ids())[1:]]

    return plain(Changed)


def asks_again_by_itself(base: type[Any]) -> Strategy:
    class Changed(base):  # type: ignore[misc]
        def configure_train(self, *values: Any) -> Iterable[Message]:
            for message in super().configure_train(*values):
                content = RecordDict(dict(message.content))
                content["config"] = ConfigRecord({**content.config_records["config"], "mu": 0.1})
                yield Message(content, message.metadata.dst_node_id, "train")

    return plain(Changed)


def rejects_a_model(base: type[Any]) -> Strategy:
    class Changed(base):  # type: ignore[misc]
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            arrays, metrics = super().aggregate_train(server_round, replies)
            return (None if server_round == 2 else arrays), metrics

    return plain(Changed)


SHAPES = (
    plain,
    asks_by_itself,
    asks_again_by_itself,
    rejects_a_model,
    changes_the_model,
    changes_the_model_in_place,
    changes_the_config,
    leaves_out_messages,
    leaves_out_replies,
    keeps_evaluations,
    evaluates_nothing,
)


def same(one: tuple[NotingGrid, Result], other: tuple[NotingGrid, Result]) -> None:
    """Every message, and all results."""

    def in_order(grid: NotingGrid) -> list[Any]:
        def place(noted: Any) -> Any:
            kind, node, _, config = noted
            return config["config"]["server-round"], kind != "train", node

        return sorted(grid.noted, key=place)

    (here, ours), (there, theirs) = one, other
    assert len(here.noted) == len(there.noted) > 0
    for a, b in zip(in_order(here), in_order(there), strict=True):
        assert a[:2] == b[:2] and a[3] == b[3] and a[2].keys() == b[2].keys()
        for name, array in a[2].items():
            assert array.dtype == b[2][name].dtype
            np.testing.assert_allclose(array, b[2][name], rtol=1e-5, atol=1e-6)
    assert ours.arrays.keys() == theirs.arrays.keys()
    for name in ours.arrays:
        np.testing.assert_allclose(
            ours.arrays[name].numpy(), theirs.arrays[name].numpy(), rtol=1e-5, atol=1e-6
        )
    for kind in ("train_metrics_clientapp", "evaluate_metrics_clientapp"):
        results, expected = vars(ours)[kind], vars(theirs)[kind]
        assert results.keys() == expected.keys()
        for number, record in expected.items():
            assert dict(results[number]) == pytest.approx(dict(record))
    assert ours.evaluate_metrics_serverapp == theirs.evaluate_metrics_serverapp


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_the_rule_fedavg_is_flowers_fedavg(shape: Build) -> None:
    same(run(shape, FairStrategy), run(shape, FedAvg))


def test_central_evaluation_sees_what_the_loop_holds() -> None:
    def central(number: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord({"first": round(float(arrays["0"].numpy()[0]), 4)})

    (_, ours), (_, theirs) = (
        run(changes_the_model, base, evaluate_fn=central) for base in (FairStrategy, FedAvg)
    )
    assert sorted(ours.evaluate_metrics_serverapp) == [0, 1, 2, 3]
    assert ours.evaluate_metrics_serverapp == theirs.evaluate_metrics_serverapp


def test_flowers_privacy_wrappers_work_around_equal_weights_only() -> None:
    def wrapped(strategy: Strategy) -> DifferentialPrivacyServerSideFixedClipping:
        return DifferentialPrivacyServerSideFixedClipping(strategy, 1e-9, 1.0, 4)

    class Equal(FedAvg):
        """FedAvg with the weights of the rule uniform."""

        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            replies = list(replies)
            for reply in replies:
                reply.content.metric_records["metrics"][self.weighted_by_key] = 1
            return super().aggregate_train(server_round, replies)

    results = []
    for strategy in (FairStrategy("uniform", out=None), Equal()):
        grid = NotingGrid()
        results.append((grid, wrapped(strategy).start(grid=grid, initial_arrays=START)))
    (here, ours), (there, theirs) = results
    np.testing.assert_allclose(ours.arrays["0"].numpy(), theirs.arrays["0"].numpy(), atol=1e-6)
    for a, b in zip(here.noted, there.noted, strict=True):
        np.testing.assert_allclose(a[2]["arrays/0"], b[2]["arrays/0"], atol=1e-6)
    same(
        run(lambda base: wrapped(plain(base)), FairStrategy),
        run(lambda base: wrapped(plain(base)), FedAvg),
    )
    for wrapper in (
        lambda strategy: wrapped(strategy),
        lambda strategy: DifferentialPrivacyClientSideFixedClipping(strategy, 1.0, 1.0, 4),
        lambda strategy: DifferentialPrivacyServerSideAdaptiveClipping(strategy, 0.1, 4),
    ):
        grid = NotingGrid()
        with pytest.raises(ConfigError, match=r"equal weights.*FairStrategy\(\"uniform\"\)"):
            wrapper(FairStrategy("aaggff-s", out=None)).start(grid=grid, initial_arrays=START)
        assert grid.noted == []


def test_a_loop_of_ones_own_leaves_a_whole_record(tmp_path: Any) -> None:
    strategy = FairStrategy("fedavg", out=tmp_path / "run")
    grid = NotingGrid()
    arrays = START
    for number in (1, 2):
        sent = strategy.configure_train(number, arrays, ConfigRecord(), grid)
        trained, _ = strategy.aggregate_train(number, grid.send_and_receive(sent))
        assert trained is not None
        arrays = trained
        if number == 2:
            sent = strategy.configure_evaluate(number, arrays, ConfigRecord(), grid)
            strategy.aggregate_evaluate(number, grid.send_and_receive(sent))
    record = Record.read(tmp_path / "run")
    assert [line.number for line in record.rounds] == [1, 2] and record.finished
    assert [bool(line.metrics) for line in record.rounds] == [False, True]
    np.testing.assert_array_equal(record.state_dict()["0"].numpy(), arrays["0"].numpy())
    assert (tmp_path / "run" / "clients.csv").exists()


def test_a_resumed_run_continues_with_what_a_subclass_made_of_the_model(tmp_path: Any) -> None:
    def run(rounds: int, out: str, resume: bool = False) -> Result:
        class Recorded(FairStrategy):
            def __init__(self, *arguments: Any, **more: Any) -> None:
                more |= {"out": tmp_path / out, "resume": resume}
                super().__init__(*arguments, **more)

        strategy = changes_the_model(Recorded)
        return strategy.start(grid=NotingGrid(), initial_arrays=START, num_rounds=rounds)

    whole = run(4, "whole")
    run(2, "parts")
    again = run(4, "parts", resume=True)
    np.testing.assert_array_equal(again.arrays["0"].numpy(), whole.arrays["0"].numpy())
    record = Record.read(tmp_path / "parts")
    np.testing.assert_array_equal(record.state_dict()["0"].numpy(), whole.arrays["0"].numpy())


def test_what_cannot_work_in_flowers_loop_is_refused() -> None:
    with pytest.raises(ConfigError, match="'polyak' publishes another model"):
        FairStrategy("fedavg", "polyak(step=sgd)", out=None)
    from flwr.server import Server, SimpleClientManager  # the legacy API

    with pytest.raises(ConfigError, match="legacy API"):
        Server(client_manager=SimpleClientManager(), strategy=ours()).fit(1, timeout=1)  # type: ignore[arg-type]
