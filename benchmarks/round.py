"""A round of FedAvg beside a careful hand-written loop and beside the limit, taken in turns.

100 clients x 100 rows of 28 x 28, 10 per round, one epoch, batch 20, SGD. All three also compute
the received model's loss and score on the cohort's training rows. The limit is one centralised pass
over the same rows with batches of S * B rows. Prints medians as ratios to the loop, because
machines are shared and noisy.

    python benchmarks/round.py [--repeats N] [--threads N]
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from commonweal import catalog, engines
from commonweal.algorithms.algorithm import Request
from commonweal.algorithms.averaging import Averaging
from commonweal.clients import Client
from commonweal.evaluation import evaluate
from commonweal.federation import Federation, Rows
from commonweal.rules import FedAvg
from commonweal.servers import SGD
from commonweal.task import Task

CLIENTS = 100
ROWS = 100
COHORT = 10
BATCH = 20
LR = 0.1
SHAPE = (1, 28, 28)
MODELS = {
    "logistic": "logistic",
    "mlp 200": {"name": "mlp", "hidden": [200]},
    "cnn 1.66M": "cnn",  # of McMahan et al. 2017
}

Work = Callable[[], object]


def federation() -> Federation:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(CLIENTS * ROWS, *SHAPE, generator=generator)
    y = torch.randint(0, 10, (CLIENTS * ROWS,), generator=generator)
    rows = Rows(x, y, torch.arange(CLIENTS + 1) * ROWS)
    return Federation(rows, rows, tuple(map(str, range(CLIENTS))), outputs=10)


def build_task(model: object) -> Task:
    torch.manual_seed(0)
    return Task(catalog.build("models", model, shape=SHAPE, outputs=10))


def hand_written(module: nn.Module, data: Rows, ids: Tensor) -> Work:
    """What a careful person writes: no DataLoader, no deep copies, one flat average."""
    parameters: list[Tensor] = list(module.parameters())
    start = [p.detach().clone() for p in parameters]
    loss = nn.CrossEntropyLoss()

    def one_round() -> None:
        total = [torch.zeros_like(p) for p in parameters]
        for k in ids.tolist():
            x = data.x[k * ROWS : (k + 1) * ROWS]
            y = data.y[k * ROWS : (k + 1) * ROWS]
            with torch.no_grad():
                torch._foreach_copy_(parameters, start)
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


def centralised(task: Task, data: Rows, ids: Tensor) -> Work:
    """The same rows through one model in batches of S * B: no round can do less arithmetic."""
    module = task.module
    parameters: list[Tensor] = list(module.parameters())
    start = [p.detach().clone() for p in parameters]
    rows, _ = data.index_of(ids)
    loss = nn.CrossEntropyLoss()

    def one_pass() -> None:
        evaluate(task, task.initial, data, ids)
        order = rows[torch.randperm(len(rows))]
        for b in range(0, len(rows), len(ids) * BATCH):
            part = order[b : b + len(ids) * BATCH]
            gradients = torch.autograd.grad(loss(module(data.x[part]), data.y[part]), parameters)
            with torch.no_grad():
                torch._foreach_add_(parameters, gradients, alpha=-LR)
        with torch.no_grad():
            torch._foreach_copy_(parameters, start)

    return one_pass


def ours(task: Task, data: Federation, ids: Tensor) -> tuple[Work, str]:
    """A round of the simulator, and how it computes."""
    algorithm = Averaging(task, FedAvg(), Client(batch=BATCH, lr=LR), SGD())
    engine = engines.simulate(data)
    state = algorithm.init(engine.population)

    def one_round() -> None:
        replies = engine.collect(algorithm, Request(ids, algorithm.ask(state)))
        algorithm.tell(state, replies, CLIENTS)

    return one_round, engine.facts(algorithm)["vectorize"]


def in_turns(ways: dict[str, Work], repeats: int) -> dict[str, float]:
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
    """The evaluation of 10,000 clients beside one forward pass over their pooled rows."""
    data = federation()
    many = Rows(data.test.x, data.test.y, torch.arange(10_001))
    task = build_task(MODELS["mlp 200"])

    def forward() -> None:
        with torch.no_grad():
            for part in torch.split(torch.arange(len(many.y)), 4096):
                task.outputs(task.initial, many.x[part])

    ways: dict[str, Work] = {
        "forward": forward,
        "evaluate": lambda: evaluate(task, task.initial, many),
    }
    medians = in_turns(ways, repeats)
    milliseconds = 1e3 * medians["evaluate"]
    ratio = medians["evaluate"] / medians["forward"]
    print(f"evaluation of 10,000 clients: {milliseconds:.1f} ms, {ratio:.2f} of one forward pass")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    data = federation()
    ids = torch.arange(COHORT) * 7
    for label, model in MODELS.items():
        task = build_task(model)
        our_round, mode = ours(task, data, ids)
        ways = {
            "loop": hand_written(task.module, data.train, ids),
            "ours": our_round,
            "limit": centralised(task, data.train, ids),
        }
        slow = label.startswith("cnn")
        medians = in_turns(ways, max(3, arguments.repeats // 3) if slow else arguments.repeats)
        loop = medians.pop("loop")
        ratios = ", ".join(f"{name} {value / loop:.2f}" for name, value in medians.items())
        print(
            f"{label:10s} loop {1e3 * loop:7.1f} ms; of it: {ratios}  "
            f"({mode}, {arguments.threads} threads)"
        )
    evaluation(arguments.repeats)


if __name__ == "__main__":
    main()
