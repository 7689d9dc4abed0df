"""The ClientApp, as Flower's quickstart has it."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quickstart.task import load_data, net, test, train

app = ClientApp()


@app.train()
def train_client(message: Message, context: Context) -> Message:
    model = net()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    x, y, _, _ = load_data(int(context.node_config["partition-id"]))
    epochs = int(context.run_config["local-epochs"])
    lr = float(message.content.config_records["config"]["lr"])  # type: ignore[arg-type]
    loss = train(model, x, y, epochs, lr)
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(y)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate_client(message: Message, context: Context) -> Message:
    model = net()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    _, _, x, y = load_data(int(context.node_config["partition-id"]))
    loss, accuracy = test(model, x, y)
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(y)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
