"""Client mods: what a ClientApp adds to its replies for `FairStrategy`."""

from collections.abc import Callable, Mapping

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict

from commonweal.flower.messages import Metric

__all__ = ["LOSS_KEY", "NAME_KEY", "add_metrics", "loss_before_training", "name_clients"]

LOSS_KEY = "loss-before"
NAME_KEY = "client"
Call = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, Call], Message]


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
