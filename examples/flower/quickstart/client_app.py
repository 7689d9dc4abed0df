"""The ClientApp, as Flower's quickstart has it, but for two mods."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from commonweal.flower import loss_before_training, name_clients
from quickstart.task import load_data, net, test, train

app = ClientApp(mods=[name_clients()])


def received_model(message: Message) -> nn.Module:
    model = net()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    return model


@app.train(mods=[loss_before_training(app)])
def train_client(message: Message, context: Context) -> Message:
    model = received_model(message)
    x, y, _, _ = load_data(int(context.node_config["partition-id"]))
    epochs = int(context.run_config["local-epochs"])
    lr = float(message.content.config_records["config"]["lr"])  # type: ignore[arg-type]
    loss = train(model, x, y, epochs, lr)
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(y)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate_client(message: Message, context: Context) -> Message:
    x, y, x_test, y_test = load_data(int(context.node_config["partition-id"]))
    if message.content.config_records["config"].get("part") != "train":  # asked by the mod
        x, y = x_test, y_test
    loss, accuracy = test(received_model(message), x, y)
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(y)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
