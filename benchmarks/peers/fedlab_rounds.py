"""Rounds of FedAvg by FedLab 1.3.0."""

import sys

from pace import ROUNDS, Pace, build_model, read_work, rows_by_client  # isort: skip

from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.core.standalone import StandalonePipeline
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset


class Data:
    """What FedLab asks of a federated dataset."""

    def __init__(self, clients: list[tuple[Tensor, Tensor]]) -> None:
        self.clients = [TensorDataset(x, y) for x, y in clients]

    def get_dataloader(self, client: int, batch: int) -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(self.clients[client], batch_size=batch, shuffle=True)


class Paced(StandalonePipeline):
    pace: Pace

    def evaluate(self) -> None:
        if not self.pace.round_done():
            sys.exit()


def main() -> None:
    work = read_work()
    model = build_model(work)
    ratio = work["cohort"] / work["clients"]
    handler = SyncServerHandler(model, ROUNDS, ratio)
    trainer = SGDSerialClientTrainer(model, work["clients"])
    trainer.setup_dataset(Data(rows_by_client(work)))
    trainer.setup_optim(1, work["batch"], work["lr"])
    pipeline = Paced(handler, trainer)
    pipeline.pace = Pace(work)
    pipeline.main()


if __name__ == "__main__":
    main()
