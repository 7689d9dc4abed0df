"""Rounds of FedAvg by fluke 0.8.1."""

from pace import ROUNDS, Pace, build_model, read_work, rows_by_client  # isort: skip

from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.evaluation import ClassificationEval
from fluke.server import EarlyStopping
from fluke.utils import FederationObserver
from torch import nn


class Paced(FederationObserver):
    def __init__(self, pace: Pace) -> None:
        self.pace = pace

    def end_round(self, round: int) -> None:
        if not self.pace.round_done():
            raise EarlyStopping(round)


def main() -> None:
    work = read_work()
    FlukeENV().set_seed(0)
    FlukeENV().set_device("cpu")
    FlukeENV().set_inmemory(True)
    FlukeENV().set_evaluator(ClassificationEval(eval_every=ROUNDS, n_classes=10))
    FlukeENV().set_eval_cfg(server=False, locals=False, pre_fit=False, post_fit=False)
    loaders = [
        FastDataLoader(x, y, num_labels=10, batch_size=work["batch"], shuffle=True)
        for x, y in rows_by_client(work)
    ]
    data = DummyDataContainer(loaders, [None] * len(loaders), loaders[0], 10)
    parameters = DDict(
        model=build_model(work),
        client={
            "batch_size": work["batch"],
            "local_epochs": 1,
            "loss": nn.CrossEntropyLoss,
            "optimizer": {"name": "SGD", "lr": work["lr"]},
            "scheduler": {"name": "StepLR", "gamma": 1, "step_size": 1},
        },
        server={"weighted": True},
    )
    algorithm = FedAVG(work["clients"], DataSplitter(data), parameters)
    algorithm.set_callbacks(Paced(Pace(work)))
    algorithm.run(ROUNDS, work["cohort"] / work["clients"])


if __name__ == "__main__":
    main()
