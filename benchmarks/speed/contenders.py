"""Who runs a round here: Commonweal, a careful hand-written loop, and one centralised pass."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from commonweal import run
from commonweal.data.federation import Federation
from commonweal.data.rows import Rows
from commonweal.task.task import Task

from .work import Work

__all__ = ["centralised", "hand_written", "ours"]

FOREVER = 10**6
EVALUATED = 4096  # rows per forward pass of a loss pass


def ours(work: Work, task: Task, data: Federation, **parts: Any) -> Callable[[], object]:
    """A round as a user runs it, without evaluation on test rows."""
    given: dict[str, Any] = {
        "client": {"name": "sgd", "batch": work.batch, "lr": work.lr},
        "cohort": work.cohort,
    }
    rounds = run(task, data, rounds=FOREVER, evaluate_every=FOREVER, **(given | parts))
    return lambda: next(rounds)


def hand_written(work: Work, task: Task, data: Federation, loss_pass: bool) -> Callable[[], object]:
    """What a careful person writes: no DataLoader, no deep copies, one average in place."""
    module = task.module
    parameters: list[Tensor] = list(module.parameters())
    start = [p.detach().clone() for p in parameters]
    offsets = data.train.offsets.tolist()
    loss = nn.CrossEntropyLoss()
    generator = torch.Generator().manual_seed(0)
    slices = list(pairwise(offsets))

    def one_client(k: int) -> None:
        a, b = slices[k]
        x = data.train.x[a:b]
        y = data.train.y[a:b]
        torch._foreach_copy_(parameters, start)
        if loss_pass:
            outputs = module(x)
            loss(outputs, y).item()
            (outputs.argmax(1) == y).double().mean().item()
        order = torch.randperm(b - a)
        for rows in torch.split(order, work.batch):
            with torch.enable_grad():
                gradients = torch.autograd.grad(loss(module(x[rows]), y[rows]), parameters)
            torch._foreach_add_(parameters, gradients, alpha=-work.lr)

    def one_round() -> None:
        with torch.no_grad():
            total = [torch.zeros_like(p) for p in parameters]
            drawn = torch.randperm(work.clients, generator=generator)[: work.cohort].tolist()
            for k in drawn:
                one_client(k)
                torch._foreach_add_(total, parameters, alpha=1 / len(drawn))
            torch._foreach_copy_(parameters, start)

    return one_round


def centralised(work: Work, task: Task, data: Federation, loss_pass: bool) -> Callable[[], object]:
    """The rows of a cohort through one model in batches of S * B: the same arithmetic, at once."""
    module = task.module
    parameters: list[Tensor] = list(module.parameters())
    start = [p.detach().clone() for p in parameters]
    rows = _rows_of_cohort(work, data.train)
    loss = nn.CrossEntropyLoss()

    def one_pass() -> None:
        if loss_pass:
            with torch.no_grad():
                for part in torch.split(rows, EVALUATED):
                    loss(module(data.train.x[part]), data.train.y[part]).item()
        order = rows[torch.randperm(len(rows))]
        for part in torch.split(order, work.cohort * work.batch):
            outputs = module(data.train.x[part])
            gradients = torch.autograd.grad(loss(outputs, data.train.y[part]), parameters)
            with torch.no_grad():
                torch._foreach_add_(parameters, gradients, alpha=-work.lr)
        with torch.no_grad():
            torch._foreach_copy_(parameters, start)

    return one_pass


def _rows_of_cohort(work: Work, rows: Rows) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randperm(work.clients, generator=generator)[: work.cohort]
    return rows.index_of(drawn)[0]
