"""Client mods: what a ClientApp adds to its replies for `FairStrategy`."""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from numpy.typing import ArrayLike
from torch import Tensor

from commonweal.clients.local_model import GRID, posterior_mean
from commonweal.flower.messages import Metric

LOSS_KEY = "loss-before"
NAME_KEY = "client"
BLEND = "blend"  # the local model in a node's state, and the score of the mixture
TINY = 1e-30  # a smaller probability counts as this
LARGEST = 0.5  # the largest weight of the global model, as in the client method "blend"
Call = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, Call], Message]
Predict = Callable[[ArrayRecord, Context, str], tuple[ArrayLike, ArrayLike]]


def add_metrics(content: RecordDict, metrics: Mapping[str, Metric]) -> None:
    """Add metrics to a reply, to the record that it has or to a new one."""
    record = next(iter(content.metric_records.values()), MetricRecord())
    record.update(metrics)
    if not content.metric_records:
        content["metrics"] = record


def loss_before_training(loss: Callable[[Message, Context], float], key: str = LOSS_KEY) -> Mod:
    """A client mod that reports the loss of the received model, before it is trained.

    Use it as `@app.train(mods=[loss_before_training(my_loss)])`.

    Args:
        loss: From the message and the context to the mean loss of the received model on the
            client's training samples.
        key: The metric's name, which is the strategy's `loss_key`.
    """

    def mod(message: Message, context: Context, call_next: Call) -> Message:
        before = float(loss(message, context))
        reply = call_next(message, context)
        if reply.has_content():
            add_metrics(reply.content, {key: before})
        return reply

    return mod


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

    def read(part: str) -> tuple[Tensor, Tensor, Tensor]:
        (local, labels), (shared, _) = (predict(model, context, part) for model in models)
        local, shared = np.asarray(local), np.asarray(shared)
        return torch.tensor(local), torch.tensor(shared), torch.tensor(np.asarray(labels))

    local, shared, labels = read("validation")
    own, partner = (p.double().gather(1, labels[:, None]) for p in (local, shared))  # (n, 1)
    likelihood = (1 - GRID) * own + GRID * partner  # (n, 11)
    losses = -likelihood.clamp(min=TINY).log().sum(0)
    weight = min(float(posterior_mean(losses)), LARGEST)
    local, shared, labels = read("test")
    right = ((1 - weight) * local + weight * shared).argmax(1) == labels
    return {BLEND: float(right.double().mean()), f"{BLEND}-weight": weight}
