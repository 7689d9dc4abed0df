"""Rounds of FedAvg by Flower 1.41 with its Ray simulation: one worker, or two."""

import os
import sys
from collections.abc import Iterable

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import Tensor, nn

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # for the workers of Ray
from pace import ROUNDS, Pace, build_model, read_work, rows_by_client

client_app = ClientApp()
server_app = ServerApp()
rows: list[tuple[Tensor, Tensor]] = []  # of each worker


@client_app.train()
def train(message: Message, context: Context) -> Message:
    work = read_work()
    if not rows:
        rows.extend(rows_by_client(work))
    model = build_model(work)
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    x, y = rows[int(context.node_config["partition-id"])]
    optimizer = torch.optim.SGD(model.parameters(), lr=work["lr"])
    for index in torch.split(torch.randperm(len(y)), work["batch"]):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x[index]), y[index])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    content = RecordDict()
    content["arrays"] = ArrayRecord(model.state_dict())
    content["metrics"] = MetricRecord({"num-examples": len(y)})
    return Message(content=content, reply_to=message)


class Paced(FedAvg):
    pace: Pace

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        failed = [reply.error for reply in replies if reply.has_error()]
        if failed:
            raise RuntimeError(f"a client failed: {failed[0]}")
        result = super().aggregate_train(server_round, replies)
        if not self.pace.round_done():
            os._exit(0)
        return result


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    work = read_work()
    strategy = Paced(
        fraction_train=work["cohort"] / work["clients"],
        fraction_evaluate=0.0,
        min_train_nodes=work["cohort"],
        min_available_nodes=work["clients"],
    )
    strategy.pace = Pace(work)
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(build_model(work).state_dict()),
        train_config=ConfigRecord({"lr": work["lr"]}),
        num_rounds=ROUNDS,
    )


if __name__ == "__main__":
    asked = read_work()
    processes = asked["processes"]
    run_simulation(
        server_app,
        client_app,
        num_supernodes=asked["clients"],
        backend_config={
            "init_args": {"num_cpus": processes, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
