"""What the adapters of peers share. They run in the peers' environments: only torch is imported.

The benchmark writes a line for each turn; the adapter runs the rounds of a turn and answers with
the seconds per round.
"""

import json
import os
import sys
import time
from typing import Any, TextIO

import torch
from torch import Tensor, nn

__all__ = ["Pace", "build_model", "read_work", "rows_by_client"]

WARM = 2  # rounds before the first turn
ROUNDS = 10**6  # more than will be asked for
CHARACTERS = 80

Work = dict[str, Any]

# PyPI's torchvision belongs to a CUDA build of torch: beside the CPU build its import fails for
# operators that nothing here uses. So this module is imported first.
_TORCHVISION = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
for _name in ("nms", "qnms"):
    _SIGNATURE = f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    _TORCHVISION.define(_SIGNATURE)  # type: ignore[no-untyped-call]


def read_work() -> Work:
    """The work that the benchmark asks for, with the number of threads set."""
    work: Work = json.loads(os.environ["WORK"])
    torch.set_num_threads(work["threads"])
    torch.manual_seed(0)
    return work


class Pace:
    """Says after each round when the next may begin, and how long it took."""

    def __init__(self, work: Work) -> None:
        self.rounds = work["rounds_per_turn"]
        self.left = WARM
        self.ready = False
        self.answers: TextIO = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # what the library prints is no answer
        self._start()

    def round_done(self) -> bool:
        """Call after every round: waits for the next turn where this one is over.

        Returns whether there is a next one.
        """
        self.left -= 1
        if self.left > 0:
            return True
        if self.ready:
            wall = time.perf_counter() - self.wall
            processor = time.process_time() - self.processor
            self._answer({"wall": wall / self.rounds, "processor": processor / self.rounds})
        else:
            self._answer({"ready": True})
            self.ready = True
        if not sys.stdin.readline().strip():
            return False
        self.left = self.rounds
        self._start()
        return True

    def _start(self) -> None:
        self.wall = time.perf_counter()
        self.processor = time.process_time()

    def _answer(self, values: dict[str, object]) -> None:
        print(json.dumps(values), file=self.answers, flush=True)


def build_model(work: Work) -> nn.Module:
    """The models of `Work`, as plain modules."""
    outputs = CHARACTERS if work["model"] == "lstm" else 10
    if work["model"] == "logistic":
        return nn.Linear(work["features"], outputs)
    if work["model"] == "mlp":
        hidden = work["hidden"]
        return nn.Sequential(
            nn.Linear(work["features"], hidden), nn.ReLU(), nn.Linear(hidden, outputs)
        )
    if work["model"] == "lstm":
        return _LSTM(outputs)
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(3136, 512),
        nn.ReLU(),
        nn.Linear(512, outputs),
    )


class _LSTM(nn.Module):
    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(outputs, 8)
        self.lstm = nn.LSTM(8, 256, 2, batch_first=True)
        self.head = nn.Linear(256, outputs)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(x))
        result: Tensor = self.head(states[:, -1])
        return result


def rows_by_client(work: Work) -> list[tuple[Tensor, Tensor]]:
    """Random rows and labels of every client, as views of one tensor."""
    generator = torch.Generator().manual_seed(0)
    sizes = work["sizes"]
    count = sum(sizes)
    shape = tuple(work["shape"])
    if work["model"] == "lstm":
        x = torch.randint(0, CHARACTERS, (count, *shape), generator=generator)
        y = torch.randint(0, CHARACTERS, (count,), generator=generator)
    else:
        x = torch.randn(count, *shape, generator=generator)
        y = torch.randint(0, 10, (count,), generator=generator)
    return list(zip(torch.split(x, sizes), torch.split(y, sizes), strict=True))
