"""A small federation of scikit-learn's digits, 8 x 8, by label skew: what the tests of synthetic data share."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits

from commonweal import catalog
from commonweal.algorithm import Setting
from commonweal.federation import Federation
from commonweal.task import Task

SETTING = Setting((1, 8, 8), 10, "cross-entropy", rounds=5, seed=3)
SMALL: dict[str, dict[str, Any]] = {
    "fedevg": {"name": "fedevg", "spc": 2, "steps": 2, "batch": 16, "classifier_epochs": 2},
    "fedevg-kept": {"name": "fedevg", "spc": 2, "steps": 2, "batch": 16, "classifier_epochs": 2, "restart": False},
    "fedcgan": {"name": "fedcgan", "spc": 2, "steps": 2, "batch": 8, "width": 4, "latent": 6, "classifier_epochs": 2},
    "fedcvae": {"name": "fedcvae", "spc": 2, "steps": 2, "batch": 8, "width": 4, "latent": 6, "classifier_epochs": 2},
}


def digits(rows: int = 300, clients: int = 3, alpha: float = 1.0, seed: int = 0) -> Federation:
    """Clients that draw a label distribution each from Dir(alpha)."""
    data, rng = load_digits(), np.random.default_rng(seed)
    x, y = (data.images[:rows, None] / 16).astype(np.float32), data.target[:rows]
    chance = rng.dirichlet([alpha] * clients, 10)  # (classes, clients)
    owner = [f"client {rng.choice(clients, p=chance[label])}" for label in y]
    return Federation.from_arrays(x, y, owner, outputs=10)


def task(width: int = 4) -> Task:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Task(catalog.build("models", {"name": "energy-cnn", "width": width}, shape=(1, 8, 8), outputs=10))


def files(folder: Path) -> dict[str, bytes]:
    """The bytes of a run's files, but for the times it took."""
    every = {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
    return {name: data for name, data in every.items() if name != "timings.jsonl"}
