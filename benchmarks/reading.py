"""Rounds on datasets of torch, as ratios: in memory to arrays, read when needed to DataLoaders.

    python benchmarks/reading.py [--rounds 8] [--workers 2]

Rounds of both are interleaved and only train. Times are medians of a round's wall time, and of its
processor time with that of worker processes.
"""

import argparse
import os
import statistics
import time
from collections.abc import Iterator
from copy import deepcopy
from io import BytesIO

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

import commonweal as cw

BATCH = 32
LR = 0.05


class Pictures(Dataset[tuple[Tensor, int]]):
    """JPEG files that are decoded when they are read, as a folder of images is."""

    def __init__(self, seed: int, count: int = 160) -> None:
        rng = np.random.default_rng(seed)
        self.files = []
        for _ in range(count):
            coarse = rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)
            file = BytesIO()
            Image.fromarray(coarse).resize((64, 64)).save(file, "JPEG")
            self.files.append(file.getvalue())

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        with Image.open(BytesIO(self.files[index])) as image:
            pixels = np.asarray(image.resize((32, 32)), dtype=np.float32)
        return torch.from_numpy(pixels / 255).permute(2, 0, 1), index % 10


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 6 * 6, 10),
    )


def rounds_of(task: cw.Task, federation: cw.Federation, rounds: int) -> Iterator[object]:
    """Rounds that train only: the first evaluation would be after the last one."""
    client = {"name": "sgd", "lr": LR, "batch": BATCH}
    return cw.run(task, federation, rounds=rounds + 1, evaluate_every=rounds + 1, client=client)


def by_hand(data: dict[str, Pictures], workers: int) -> Iterator[object]:
    """FedAvg as one writes it: a DataLoader per client, whose workers live on."""
    loaders = [
        DataLoader(part, BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
        for part in data.values()
    ]
    model = network()
    while True:
        states = []
        for loader in loaders:
            own = deepcopy(model)
            optimizer = torch.optim.SGD(own.parameters(), LR)
            for x, y in loader:
                optimizer.zero_grad()
                torch.autograd.backward(nn.functional.cross_entropy(own(x), y))
                optimizer.step()
            states.append(own.state_dict())
        mean = {name: torch.stack([s[name] for s in states]).mean(0) for name in states[0]}
        model.load_state_dict(mean)
        yield mean


def processor_time() -> float:
    """Seconds of this process and of its children that are alive, which Linux knows."""
    total = time.process_time()
    ticks = os.sysconf("SC_CLK_TCK")
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid():
            total += (int(fields[11]) + int(fields[12])) / ticks
    return total


def compare(name: str, ours: Iterator[object], theirs: Iterator[object], rounds: int) -> None:
    """Print the ratio of the times of rounds, after one that is not counted."""
    times: dict[str, list[tuple[float, float]]] = {"ours": [], "theirs": []}
    kinds = {"ours": ours, "theirs": theirs}
    for _ in range(rounds):
        for kind, iterator in kinds.items():
            begin = (time.perf_counter(), processor_time())
            next(iterator)
            spent = (time.perf_counter() - begin[0], processor_time() - begin[1])
            times[kind].append(spent)
    for k, clock in enumerate(("wall", "processor")):
        medians = [statistics.median(t[k] for t in times[kind][1:]) for kind in kinds]
        print(
            f"{name}, {clock} time of a round: {medians[0]:.3f} s, to {medians[1]:.3f} s: "
            f"{medians[0] / medians[1]:.3f}",
            flush=True,
        )


def main(rounds: int, workers: int) -> None:
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(20_000, 32)).astype(np.float32))
    y = torch.from_numpy(rng.integers(0, 10, 20_000))
    owner = np.repeat(np.arange(50), 400)
    pairs = {str(k): TensorDataset(x[owner == k], y[owner == k]) for k in range(50)}
    dense = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    arrays = cw.Federation.from_arrays(x, y, owner)
    compare(
        "in memory, to from_arrays",
        rounds_of(cw.Task(dense), cw.Federation.from_datasets(pairs), 4 * rounds),
        rounds_of(cw.Task(deepcopy(dense)), arrays, 4 * rounds),
        4 * rounds,
    )
    pictures = {str(k): Pictures(k) for k in range(4)}
    test = {name: Subset(part, range(4)) for name, part in pictures.items()}  # nothing is tested
    lazy = cw.Federation.from_datasets(pictures, test, memory=0, workers=max(1, workers))
    compare(
        f"read when needed, to DataLoaders with {workers} workers",
        rounds_of(cw.Task(network()), lazy, rounds),
        by_hand(pictures, workers),
        rounds,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    main(arguments.rounds, arguments.workers)
