"""A small federation of scikit-learn's digits, 8 x 8, by label skew, and fast settings."""

from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits

import commonweal
from commonweal.config import catalog
from commonweal.data.federation import Federation
from commonweal.data.population import Population
from commonweal.protocols.servers import SGD
from commonweal.rules.fedavg import FedAvg
from commonweal.task.task import Task

ROUNDS = 5
SEED = 3
FAST: dict[str, Any] = {"spc": 2, "steps": 2, "classifier_epochs": 2}
SMALL: dict[str, dict[str, Any]] = {
    "fedevg": {"name": "fedevg", "batch": 16, **FAST},
    "fedevg-kept": {"name": "fedevg", "batch": 16, "restart": False, **FAST},
    "fedcgan": {"name": "fedcgan", "batch": 8, "width": 4, "latent": 6, **FAST},
    "fedcvae": {"name": "fedcvae", "batch": 8, "width": 4, "latent": 6, **FAST},
}


def population(
    shape: tuple[int, ...] = (1, 8, 8),
    outputs: int = 10,
    clients: int = 3,
) -> Population:
    names = tuple(f"client {k}" for k in range(clients))
    return Population(names, torch.full((clients,), 20), shape, outputs)


def built(
    name: str,
    p: Population | None = None,
    model: Task | None = None,
    seed: int = SEED,
    **values: Any,
) -> Any:
    """An algorithm with fast settings."""
    return catalog.build(
        "algorithms",
        SMALL[name] | values,
        task=model or task(),
        population=p or population(),
        rule=FedAvg(),
        server=SGD(),
        rounds=ROUNDS,
        seed=seed,
    )


def digits(rows: int = 300, clients: int = 3, alpha: float = 1.0, seed: int = 0) -> Federation:
    """Clients that draw a label distribution each from Dir(alpha)."""
    data = load_digits()
    rng = np.random.default_rng(seed)
    x = (data.images[:rows, None] / 16).astype(np.float32)
    y = data.target[:rows]
    chance = rng.dirichlet([alpha] * clients, 10)  # (classes, clients)
    owner = [f"client {rng.choice(clients, p=chance[label])}" for label in y]
    return Federation.from_arrays(x, y, owner, outputs=10)


def task(width: int = 4) -> Task:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Task(commonweal.model("energy-cnn", width=width, shape=(1, 8, 8), outputs=10))
