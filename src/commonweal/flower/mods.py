"""Client mods: what a ClientApp adds to its replies for `FairStrategy`.

They need flwr and numpy only: a client that uses them has no torch to install or import.
"""

from collections.abc import Callable

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from numpy.typing import ArrayLike

from commonweal.base.errors import ConfigError
from commonweal.flower.content import Metric, add_metrics, find_loss, metrics_of

LOSS_KEY = "loss-before"
NAME_KEY = "client"
BLEND = "blend"  # the local model in a node's state, and the score of the mixture
GRID = np.linspace(0, 1, 11)  # the weights of the global model that are compared
TINY = 1e-30  # a smaller probability counts as this
LARGEST = 0.5  # the largest weight of the global model, as in the client method "blend"
Call = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, Call], Message]
Loss = Callable[[Message, Context], float | Message]
Predict = Callable[[ArrayRecord, Context, str], tuple[ArrayLike, ArrayLike]]


def loss_before_training(loss: Loss, key: str = LOSS_KEY) -> Mod:
    """A client mod that reports the loss of the received model, before it is trained.

    `@app.train(mods=[loss_before_training(app)])` lets the app's own evaluate function compute it.
    The function gets the additional setting `part = "train"`, by which it can choose the training
    samples. If it does not read the setting, it evaluates its usual samples.

    Args:
        loss: The ClientApp, its evaluate function, or a function from the message and the context
            to the mean loss of the received model on the client's training samples.
        key: The metric's name, which is the strategy's `loss_key`.
    """

    def mod(message: Message, context: Context, call_next: Call) -> Message:
        before = received_loss(loss, message, context)
        reply = call_next(message, context)
        if reply.has_content():
            add_metrics(reply.content, {key: before})
        return reply

    return mod


def received_loss(loss: Loss, message: Message, context: Context) -> float:
    """The loss of the received model, from a function or the app that `loss_before_training` has.

    Raises ConfigError where an evaluation has no loss.
    """
    received, kind = message.content, message.metadata.message_type
    name, record = next(iter(received.config_records.items()), ("config", ConfigRecord()))
    message.content = RecordDict({**received, name: ConfigRecord({**record, "part": "train"})})
    message.metadata.message_type = MessageType.EVALUATE
    try:
        result = loss(message, context)
    finally:
        message.content = received
        message.metadata.message_type = kind
    if not isinstance(result, Message):
        return float(result)
    if not result.has_content():
        raise ConfigError(f"loss_before_training: the evaluation failed: {result.error.reason}")
    metrics = metrics_of(result.content)
    value = find_loss(metrics)
    if value is None:
        raise ConfigError(
            f"loss_before_training: the evaluation has no unique loss, but {sorted(metrics)}: name "
            "one of its metrics 'loss', or give a function that returns the loss"
        )
    return value


def name_clients(key: str = NAME_KEY) -> Mod:
    """A client mod that reports the client's name.

    The name is `client` of the node's `--node-config`, or else its `partition-id`, which Flower's
    simulation sets. Use it for the whole app: `ClientApp(mods=[name_clients()])`.

    Args:
        key: The setting's name, which is the strategy's `name_key`.
    """

    def mod(message: Message, context: Context, call_next: Call) -> Message:
        reply = call_next(message, context)
        config = context.node_config
        name = config.get("client", config.get("partition-id"))
        if reply.has_content() and name is not None:
            reply.content["client-name"] = ConfigRecord({key: str(name)})
        return reply

    return mod


def blend(predict: Predict) -> Mod:
    """A client mod that mixes the global model's predictions with those of a local model.

    The local model starts as the first model that the node receives, is trained in every round by
    the app's own train function, and stays in the node's state (`context.state["blend"]`). How much
    the global model counts is learned on the node's validation samples, on which the app must not
    train, and is at most 1/2. Evaluations report the mixture's accuracy on the test samples as
    `blend` and that weight as `blend-weight`. Use it for the whole app: `ClientApp(mods=[...])`.

    Args:
        predict: From a model's arrays, the context, and "validation" or "test" to the model's
            probabilities of the classes (n, classes) for these samples, and their labels (n,).
    """

    def mod(message: Message, context: Context, call_next: Call) -> Message:
        reply = call_next(message, context)
        kind = message.metadata.message_type.partition(".")[0]
        if kind == MessageType.TRAIN and reply.has_content():
            local = _train_local(message, context, call_next) if BLEND in context.state else reply
            if local.has_content():
                context.state[BLEND] = next(iter(local.content.array_records.values()))
        elif kind == MessageType.EVALUATE and reply.has_content():
            received = next(iter(message.content.array_records.values()))
            # A node that has not trained yet has no model but the received one.
            models = (context.state.array_records.get(BLEND, received), received)
            add_metrics(reply.content, _mixed(predict, models, context))
        return reply

    return mod


def _train_local(message: Message, context: Context, call_next: Call) -> Message:
    """Train the node's local model by the app's own function."""
    received = message.content
    name = next(iter(received.array_records))
    message.content = RecordDict({**received, name: context.state[BLEND]})
    reply = call_next(message, context)
    message.content = received
    return reply


def _mixed(
    predict: Predict, models: tuple[ArrayRecord, ArrayRecord], context: Context
) -> dict[str, Metric]:
    """The accuracy of the mixture of the local and the global model, and the latter's weight."""

    def read(part: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        (local, labels), (shared, _) = (predict(model, context, part) for model in models)
        return np.asarray(local), np.asarray(shared), np.asarray(labels)

    local, shared, labels = read("validation")
    rows = np.arange(len(labels))
    own, partner = (p[rows, labels].astype(np.float64)[:, None] for p in (local, shared))  # (n, 1)
    likelihood = (1 - GRID) * own + GRID * partner  # (n, 11)
    scores = np.log(np.maximum(likelihood, TINY)).sum(0)
    posterior = np.exp(scores - scores.max())
    weight = min(float(posterior @ GRID / posterior.sum()), LARGEST)
    local, shared, labels = read("test")
    right = ((1 - weight) * local + weight * shared).argmax(1) == labels
    return {BLEND: float(right.mean()), f"{BLEND}-weight": weight}
