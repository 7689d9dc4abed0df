"""Rounds of FedAvg by pfl 0.6.0, in one process or, started twice with RANK set, in two."""

import os

import torch
from pace import ROUNDS, Pace, build_model, read_work, rows_by_client
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

RANK = int(os.environ.get("RANK", "0"))
PROCESSES = int(os.environ.get("WORLD_SIZE", "1"))


class Module(nn.Module):
    """A module with the loss that pfl asks for."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def loss(self, x: Tensor, y: Tensor, is_eval: bool = False) -> Tensor:
        return nn.functional.cross_entropy(self.inner(x), y)

    def metrics(self, x: Tensor, y: Tensor, is_eval: bool = False) -> dict[str, object]:
        return {}


class Paced(TrainingProcessCallback):
    """Ends a round when the benchmark says so; the second process waits for the first."""

    def __init__(self, pace: Pace | None) -> None:
        self.pace = pace

    def after_central_iteration(
        self, aggregate_metrics: object, model: object, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        more = self.pace is None or self.pace.round_done()
        if PROCESSES > 1:
            said = torch.tensor(float(more))
            torch.distributed.broadcast(said, 0)
            more = bool(said)
        return not more, Metrics()


def main() -> None:
    work = read_work()
    users = rows_by_client(work)
    sampler = get_user_sampler("minimize_reuse", list(range(len(users))))
    # pfl takes batches in the order in which rows are stored.
    data = FederatedDataset(lambda k: Dataset(users[k], user_id=str(k)), sampler)
    module = Module(build_model(work))
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    train = NNTrainHyperParams(
        local_num_epochs=1, local_learning_rate=work["lr"], local_batch_size=work["batch"]
    )
    rounds = NNAlgorithmParams(
        central_num_iterations=ROUNDS,
        evaluation_frequency=ROUNDS,
        train_cohort_size=work["cohort"],
        val_cohort_size=0,
    )
    FederatedAveraging().run(
        rounds,
        SimulatedBackend(data, data),
        model,
        train,
        NNEvalHyperParams(local_batch_size=None),
        [Paced(Pace(work) if RANK == 0 else None)],
        send_metrics_to_platform=False,
    )


if __name__ == "__main__":
    main()
