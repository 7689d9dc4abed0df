"""What the tests of the report and of the page share: runs with difficult names, and a browser."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from commonweal.data.federation import Federation
from commonweal.jobs.rounds import run
from commonweal.task.task import Task

IMAGE = "<img src=x onerror=document.title='hacked'>"
NAMES = (IMAGE, "$\\frac$ & \"quoted\" 'single'", "Zoë 李\x07", "d", "e")


def make_runs(
    root: Path,
    rules: Sequence[str] = ("fedavg", "aaggff-s"),
    seeds: int = 2,
    rounds: int = 4,
    names: Sequence[str] = NAMES,
    client: str = "sgd",
) -> list[Path]:
    """Runs of small data in folders rule/seed-0, ..."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(20 * len(names), 2)).astype(np.float32)
    y = (x[:, 0] > 0).astype(int) + (x[:, 1] > 0.3)
    owner = np.repeat(np.arange(len(names)), 20)
    y[owner == 0] = 2 - y[owner == 0]  # the first client is unlike the others
    federation = Federation.from_arrays(x, y, np.array(names)[owner], test=0.5)
    folders = []
    for rule in rules:
        for seed in range(seeds):
            folder = root / rule / f"seed-{seed}"
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                task = Task(nn.Linear(2, 3))
            settings: dict[str, Any] = {"seed": seed, "rounds": rounds, "evaluate_every": 2}
            for _ in run(task, federation, out=folder, rule=rule, client=client, **settings):
                pass
            folders.append(folder)
    return folders
