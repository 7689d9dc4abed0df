"""The mod `blend`: a local model at the node, whose predictions are mixed with the global one's."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'commonweal[flower]'")

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from commonweal.flower import FairStrategy, blend
from flower_helpers import LocalGrid, configs

START = ArrayRecord([np.zeros((2, 2))])


def samples(k: int, part: str, flipped: bool) -> tuple[np.ndarray, np.ndarray]:
    """Two classes by the sign of the first input; client 0 may call them the other way round."""
    rng = np.random.default_rng([k, {"train": 0, "validation": 1, "test": 2}[part]])
    x = rng.normal(size=(40, 2))
    return x, ((x[:, 0] > 0) ^ (flipped and k == 0)).astype(np.int64)


def probabilities(w: np.ndarray, x: np.ndarray) -> np.ndarray:
    scores = np.exp(x @ w.T)
    normalised: np.ndarray = scores / scores.sum(1, keepdims=True)
    return normalised


def softmax_app(flipped: bool) -> ClientApp:
    def predict(arrays: ArrayRecord, context: Context, part: str) -> Any:
        x, y = samples(int(context.node_config["partition-id"]), part, flipped)
        return probabilities(arrays.to_numpy_ndarrays()[0], x), y

    app = ClientApp(mods=[blend(predict)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        w = message.content.array_records["arrays"].to_numpy_ndarrays()[0]
        x, y = samples(int(context.node_config["partition-id"]), "train", flipped)
        for _ in range(20):
            w = w - (probabilities(w, x) - np.eye(2)[y]).T @ x / len(y)
        metrics = MetricRecord({"num-examples": len(y)})
        content = RecordDict({"arrays": ArrayRecord([w]), "metrics": metrics})
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        w = message.content.array_records["arrays"].to_numpy_ndarrays()[0]
        x, y = samples(int(context.node_config["partition-id"]), "test", flipped)
        accuracy = float((probabilities(w, x).argmax(1) == y).mean())
        metrics = MetricRecord({"num-examples": len(y), "accuracy": accuracy})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def local_model(k: int, rounds: int) -> np.ndarray:
    """Training without others, in plain numpy."""
    w = np.zeros((2, 2))
    x, y = samples(k, "train", flipped=True)
    for _ in range(20 * rounds):
        w = w - (probabilities(w, x) - np.eye(2)[y]).T @ x / len(y)
    return w


def test_a_client_that_differs_keeps_to_its_local_model() -> None:
    grid = LocalGrid(softmax_app(flipped=True), configs(4))
    strategy = FairStrategy("fedavg", score_key="blend", out=None)
    result = strategy.start(grid=grid, initial_arrays=START, num_rounds=3)
    for k, context in enumerate(grid.contexts.values()):
        (w,) = context.state.array_records["blend"].to_numpy_ndarrays()
        np.testing.assert_allclose(w, local_model(k, 3), rtol=1e-9)
    metrics: dict[str, Any] = dict(result.evaluate_metrics_clientapp[3])
    assert metrics["accuracy"] < 0.8 < 0.95 < metrics["blend"]  # client 0 is wrong everywhere
    assert strategy.history[-1].metrics["worst"] > 0.9


def test_clients_that_agree_mix_half_and_half_at_most() -> None:
    grid = LocalGrid(softmax_app(flipped=False), configs(4))
    strategy = FairStrategy("fedavg", out=None)
    result = strategy.start(grid=grid, initial_arrays=START, num_rounds=2)
    metrics: dict[str, Any] = dict(result.evaluate_metrics_clientapp[2])
    assert 0.2 < metrics["blend-weight"] <= 0.5
    assert metrics["blend"] == pytest.approx(metrics["accuracy"], abs=0.05)
