"""A round of FedAvg beside a careful hand-written loop and beside the limit, interleaved in one run.

100 clients x 100 rows of 28 x 28, 10 a round, one epoch, batch 20, SGD. All three also take the received model's loss
and score on the cohort's training rows. The limit is one centralised pass over the same rows at batch S * B. Prints
medians as ratios to the loop; ratios, because machines are shared and noisy.

    python benchmarks/round.py [--repeats N] [--threads N]
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from commonweal import catalog
from commonweal.algorithm import Averaging
from commonweal.engines.simulator import Simulator
from commonweal.federation import Federation, Rows
from commonweal.local import Local, measure
from commonweal.rules.fedavg import FedAvg
from commonweal.server import SGD
from commonweal.task import Task

CLIENTS, ROWS, COHORT, BATCH, LR = 100, 100, 10, 20, 0.1


def cnn(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """The CNN of McMahan et al. 2017, 1.66 M parameters."""
    body = [nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5, padding=2), nn.ReLU()]
    return nn.Sequential(*body, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, outputs))


def federation() -> Federation:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(CLIENTS * ROWS, 1, 28, 28, generator=generator)
    y = torch.randint(0, 10, (CLIENTS * ROWS,), generator=generator)
    offsets = torch.arange(CLIENTS + 1) * ROWS
    return Federation(Rows(x, y, offsets), Rows(x, y, offsets), tuple(map(str, range(CLIENTS))), outputs=10)


def hand_written(module: nn.Module, data: Rows, ids: Tensor) -> Callable[[], None]:
    """What a careful person writes: no DataLoader, no deep copies, one flat average."""
    parameters = list(module.parameters())
    start = [p.detach().clone() for p in parameters]
    loss = nn.CrossEntropyLoss()

    def one_round() -> None:
        total = [torch.zeros_like(p) for p in parameters]
        for k in ids.tolist():
            with torch.no_grad():
                torch._foreach_copy_(parameters, start)
                x, y = data.x[k * ROWS : (k + 1) * ROWS], data.y[k * ROWS : (k + 1) * ROWS]
                outputs = module(x)
                loss(outputs, y).item()
                (outputs.argmax(1) == y).double().mean().item()
            order = torch.randperm(ROWS)
            for b in range(0, ROWS, BATCH):
                rows = order[b : b + BATCH]
                gradients = torch.autograd.grad(loss(module(x[rows]), y[rows]), parameters)
                with torch.no_grad():
                    torch._foreach_add_(parameters, gradients, alpha=-LR)
            with torch.no_grad():
                torch._foreach_add_(total, parameters, alpha=1 / len(ids))
        with torch.no_grad():
            torch._foreach_copy_(parameters, start)

    return one_round


def centralised(task: Task, data: Rows, ids: Tensor) -> Callable[[], None]:
    """The same rows through one model in batches of S * B: no federated round can do less arithmetic."""
    module = task.module
    parameters = list(module.parameters())
    start = [p.detach().clone() for p in parameters]
    rows, _ = data.where(ids)
    loss = nn.CrossEntropyLoss()

    def one_pass() -> None:
        measure(task, task.initial, data, ids)
        order = rows[torch.randperm(len(rows))]
        for b in range(0, len(rows), len(ids) * BATCH):
            part = order[b : b + len(ids) * BATCH]
            gradients = torch.autograd.grad(loss(module(data.x[part]), data.y[part]), parameters)
            with torch.no_grad():
                torch._foreach_add_(parameters, gradients, alpha=-LR)
        with torch.no_grad():
            torch._foreach_copy_(parameters, start)

    return one_pass


def ours(task: Task, data: Federation, ids: Tensor, mode: str) -> Callable[[], None]:
    algorithm = Averaging(FedAvg(), Local(batch=BATCH, lr=LR), SGD())
    simulator, server = Simulator(task, data, mode), algorithm.init(task, CLIENTS)

    def one_round() -> None:
        replies = simulator.collect(algorithm, algorithm.ask(server), ids, 0)
        algorithm.tell(task, server, ids, replies, CLIENTS)

    return one_round


def interleaved(ways: dict[str, Callable[[], None]], repeats: int) -> dict[str, float]:
    """The median seconds of each way, taken in turns."""
    for way in ways.values():
        way()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def evaluation(repeats: int) -> None:
    """All of 10,000 clients judged, beside one forward pass over their pooled rows."""
    data = federation()
    many = Rows(data.test.x, data.test.y, torch.arange(10_001))
    task = Task(catalog.build("models", {"name": "mlp", "hidden": [200]}, shape=(1, 28, 28), outputs=10))

    def forward() -> None:
        with torch.no_grad():
            for part in torch.split(torch.arange(len(many.y)), 4096):
                task.outputs(task.initial, many.x[part])

    ways = {"forward": forward, "evaluate": lambda: measure(task, task.initial, many) and None}
    medians = interleaved(ways, repeats)
    ratio = medians["evaluate"] / medians["forward"]
    print(f"evaluation of 10,000 clients: {1e3 * medians['evaluate']:.1f} ms, {ratio:.2f} of one forward pass")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    data, ids = federation(), torch.arange(COHORT) * 7
    models = {"logistic": ("logistic", {}), "mlp 200": ("mlp", {"hidden": [200]}), "cnn 1.66M": (cnn, {})}
    for label, (model, options) in models.items():
        torch.manual_seed(0)
        factory = model if callable(model) else catalog.find("models", model).factory
        task = Task(factory((1, 28, 28), 10, **options))
        ways = {
            "loop": hand_written(task.module, data.train, ids),
            "ours": ours(task, data, ids, "auto"),
            "limit": centralised(task, data.train, ids),
        }
        medians = interleaved(ways, arguments.repeats if label != "cnn 1.66M" else max(3, arguments.repeats // 3))
        way, _ = Simulator(task, data).decision
        ratios = ", ".join(f"{name} {value / medians['loop']:.2f}" for name, value in medians.items() if name != "loop")
        print(
            f"{label:10s} loop {1e3 * medians['loop']:7.1f} ms; of it: {ratios}  ({way}, {arguments.threads} threads)"
        )
    evaluation(arguments.repeats)


if __name__ == "__main__":
    main()
