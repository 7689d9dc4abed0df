"""The ClientApp of a deployment with faulty clients: `fault=...` in --node-config says which.

It is copied into an exported app. Faulty clients answer without torch, which saves seconds.
"""

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


def honest(message: Message, context: Context) -> Message:
    from commonweal.flower import make_client_app

    real = make_client_app(Path(__file__).with_name("experiment.toml"))
    reply: Message = real(message, context)
    return reply


@app.query()
def query(message: Message, context: Context) -> Message:
    if "about" not in context.node_config:
        return honest(message, context)
    schema = ConfigRecord(json.loads(Path(str(context.node_config["about"])).read_text()))
    return Message(RecordDict({"schema": schema}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    return honest(message, context)


@app.train()
def train(message: Message, context: Context) -> Message:
    fault = str(context.node_config.get("fault", ""))
    if not fault:
        return honest(message, context)
    if fault == "raises":
        raise ValueError("the disk is full")
    if fault == "sleeps":
        time.sleep(float(context.node_config["seconds"]))
    w = message.content.array_records["message"]["w"].numpy()
    number = int(message.content.config_records["request"]["round"])  # type: ignore[arg-type]
    update = np.zeros((1, w.size), np.float32)
    size = 32
    if fault == "broken" and number % 2 == 1:
        update[:] = np.nan
    elif fault == "broken":
        update = update[:, :7]
    elif fault == "lies":
        size = 10**6
    values = {
        "loss": np.ones(1),
        "score": np.ones(1),
        "size": np.array([size]),
        "update": update,
    }
    record = ArrayRecord({name: Array(value) for name, value in values.items()})
    return Message(RecordDict({"reply": record}), reply_to=message)
