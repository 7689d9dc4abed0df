# %% [markdown]
# # Flower in one line
#
# In your Flower app, replace `FedAvg()` by `FairStrategy("aaggff-s")`, and see how the weights change and what is recorded of every
# client. This notebook needs `pip install "commonweal[flower]"`. The clients are those of Flower's quickstart. They also report the
# loss of the received model, which the rule needs.

# %%
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.datasets import load_digits
from torch import nn

from commonweal.flower import loss_before_training

CLIENTS = 4
digits = load_digits()
X = torch.tensor(digits.data, dtype=torch.float32) / 16
Y = torch.tensor(digits.target)


def rows(client):
    """Client 0 has few rows, and of three classes only."""
    mine = torch.arange(len(Y)) % CLIENTS == client
    return (X[mine & (Y < 3)], Y[mine & (Y < 3)]) if client == 0 else (X[mine], Y[mine])


def net():
    torch.manual_seed(0)
    return nn.Linear(64, 10)


def received(message):
    model = net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return model


def received_loss(message, context):
    x, y = rows(context.node_config["partition-id"])
    with torch.no_grad():
        return nn.functional.cross_entropy(received(message)(x), y).item()


app = ClientApp()


@app.train(mods=[loss_before_training(received_loss)])
def train(message: Message, context: Context) -> Message:
    model = received(message)
    x, y = rows(context.node_config["partition-id"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in torch.split(torch.arange(len(y)), 32):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
    arrays = ArrayRecord(model.state_dict())
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": len(y)})})
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    x, y = rows(context.node_config["partition-id"])
    with torch.no_grad():
        outputs = received(message)(x)
    loss = nn.functional.cross_entropy(outputs, y).item()
    accuracy = (outputs.argmax(1) == y).float().mean().item()
    metrics = {"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(y)}
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)


# %% [markdown]
# In an app, Flower gives your `ServerApp` a grid that reaches the clients. In this notebook, the grid calls them in the same process.

# %%
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity  # private: messages need it


class HereGrid(Grid):
    def __init__(self):
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        self.contexts = {
            node + 1: Context(1, node + 1, {"partition-id": node}, RecordDict(), {})
            for node in range(CLIENTS)
        }
        self.replies = {}

    run = None

    def set_run(self, run):
        pass

    def create_message(self, *arguments, **more):
        raise NotImplementedError

    def get_node_ids(self):
        return list(self.contexts)

    def push_messages(self, messages):
        ids = []
        for message in messages:
            ids.append(f"message-{len(self.replies)}")
            message.metadata.__dict__["_message_id"] = ids[-1]
            self.replies[ids[-1]] = app(message, self.contexts[message.metadata.dst_node_id])
        return ids

    def pull_messages(self, message_ids):
        return [self.replies[key] for key in message_ids if key in self.replies]

    def send_and_receive(self, messages, *, timeout=None):
        return self.pull_messages(self.push_messages(messages))


# %% [markdown]
# Change the one line, once with the rule `fedavg` and once with a fair rule. `out` names the folder of the record.

# %%
import commonweal as cw
from commonweal.flower import FairStrategy

for rule in ("fedavg", "aaggff-s"):
    strategy = FairStrategy(rule, out=f"runs/{rule}")  # instead of: strategy = FedAvg()
    strategy.start(grid=HereGrid(), initial_arrays=ArrayRecord(net().state_dict()), num_rounds=10)

# %% [markdown]
# Unlike Flower's own history, the record has every client's weight and score by round.

# %%
for rule in ("fedavg", "aaggff-s"):
    record = cw.load_run(f"runs/{rule}")
    last = record.rounds[-1]
    scores = record.clients().evaluation.score.tolist()
    print(rule.ljust(9), "weights", [round(value, 3) for value in last.weights.values()])
    print(" " * 9, "accuracy", [round(value, 3) for value in scores])
