"""Client mods: losses before training, and local models whose predictions are mixed in."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'commonweal[flower]'")

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from commonweal.base.errors import RunError
from commonweal.flower import FairStrategy, blend, loss_before_training
from flower_helpers import LocalGrid, configs, distance, rows

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


# The loss of the received model by the app's own evaluate function


def evaluating_app(metrics: dict[str, Any]) -> ClientApp:
    """It evaluates the samples that the mod asks for; `metrics` come instead of its loss."""
    app = ClientApp()

    @app.train(mods=[loss_before_training(app)])
    def train(message: Message, context: Context) -> Message:
        assert message.metadata.message_type == "train"
        assert "part" not in message.content.config_records["config"]
        k = int(context.node_config["partition-id"])
        content = RecordDict(
            {
                "arrays": ArrayRecord([np.full(3, k + 1.0)]),
                "metrics": MetricRecord({"num-examples": 10}),
            }
        )
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        assert message.metadata.message_type == "evaluate"
        seed = 50 if message.content.config_records["config"].get("part") == "train" else 0
        w = message.content.array_records["arrays"].to_numpy_ndarrays()[0]
        loss = distance(w, rows(seed + int(context.node_config["partition-id"]), 20))
        sent = metrics or {"test_loss": loss}
        return Message(RecordDict({"metrics": MetricRecord(sent)}), reply_to=message)

    return app


def test_the_apps_own_evaluate_function_gives_the_loss_before_training() -> None:
    strategy = FairStrategy("term", out=None)
    result = strategy.start(
        LocalGrid(evaluating_app({}), configs(3)),
        ArrayRecord([np.zeros(3)]),
        2,
        train_config=ConfigRecord({"lr": 0.1}),
    )
    received = np.zeros(3)
    for record in strategy.history:
        losses = [distance(received, rows(50 + k, 20)) for k in range(3)]
        assert record.losses == pytest.approx(losses)  # of training samples
        received = received + [record.weights[c] for c in record.clients] @ (
            np.array([[1.0], [2.0], [3.0]]) - received
        )
    np.testing.assert_allclose(result.arrays.to_numpy_ndarrays()[0], received)


def test_an_evaluation_without_a_loss_is_named() -> None:
    grid = LocalGrid(evaluating_app({"accuracy": 0.5}), configs(2))
    with pytest.raises(RunError, match=r"evaluation has no unique loss, but \['accuracy'\]"):
        FairStrategy("term", out=None).start(grid, ArrayRecord([np.zeros(3)]), 1)


# Clients without torch

WITHOUT_TORCH = """
import sys
from importlib.abc import MetaPathFinder
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

try:
    from flwr.supercore.task_identity import TaskIdentity
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
except ImportError:  # before flwr 1.38
    pass
known = set(sys.modules)

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        root = name.partition(".")[0]
        if root not in ("commonweal", "flwr", "numpy") and root not in sys.stdlib_module_names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from commonweal.flower import blend, loss_before_training, name_clients

def predict(arrays, context, part):
    return np.array([[0.2, 0.8], [0.6, 0.4]]), np.array([1, 0])

app = ClientApp(mods=[name_clients(), blend(predict)])

@app.train(mods=[loss_before_training(app)])
def train(message, context):
    content = {"arrays": message.content["arrays"], "m": MetricRecord({"num-examples": 3})}
    return Message(RecordDict(content), reply_to=message)

@app.evaluate()
def evaluate(message, context):
    return Message(RecordDict({"m": MetricRecord({"eval_loss": 0.25})}), reply_to=message)

context = Context(1, 1, {"partition-id": 0}, RecordDict(), {})
for kind in ("train", "evaluate"):
    content = RecordDict({"arrays": ArrayRecord([np.zeros(2)]), "config": ConfigRecord({})})
    reply = app(Message(content, 1, kind), context).content
    print(kind, dict(next(iter(reply.metric_records.values()))), dict(reply["client-name"]))
roots = {name.partition(".")[0] for name in set(sys.modules) - known}
print(sorted(roots - set(sys.stdlib_module_names)))
"""


def test_mods_work_where_torch_is_not_installed() -> None:
    """Nor is any other library there: flwr and numpy are all that clients need."""
    script = [sys.executable, "-c", WITHOUT_TORCH]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    train, evaluate, roots = done.stdout.splitlines()
    assert train == "train {'num-examples': 3, 'loss-before': 0.25} {'client': '0'}"
    assert "'blend': 1.0" in evaluate and "{'client': '0'}" in evaluate
    assert roots == "['commonweal']"
