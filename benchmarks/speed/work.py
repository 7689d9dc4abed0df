"""The work that all contenders do: clients with random rows, a model, and one epoch of SGD."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from commonweal.config import catalog
from commonweal.data.federation import Federation
from commonweal.data.rows import Rows
from commonweal.task.task import Task

__all__ = ["CNN", "DEVICES", "LOGISTIC", "LSTM", "MLP", "UNEQUAL", "WORKS", "Work"]

CLASSES = 10
CHARACTERS = 80


@dataclass(frozen=True)
class Work:
    """What a round trains: `cohort` of `clients` clients, one epoch each."""

    name: str
    model: str
    clients: int = 100
    rows: int = 100  # per client; the median where sizes differ
    cohort: int = 10
    batch: int = 20
    lr: float = 0.1
    spread: float = 0.0  # of the logarithm of the sizes
    hidden: int = 200
    layers: int = 1  # hidden ones
    features: int = 784  # of a row; a sequence's length for the lstm

    def spec(self) -> dict[str, Any]:
        """What an adapter of a peer is told."""
        return asdict(self) | {"sizes": self.sizes().tolist(), "shape": list(self.shape)}

    @property
    def shape(self) -> tuple[int, ...]:
        if self.model == "cnn":
            return (1, 28, 28)
        return (self.features,)

    def sizes(self) -> Tensor:
        """The rows of each client."""
        if self.spread == 0:
            return torch.full((self.clients,), self.rows)
        generator = torch.Generator().manual_seed(1)
        normal = torch.randn(self.clients, generator=generator)
        return (self.rows * (self.spread * normal).exp()).round().clamp(2, 20 * self.rows).long()

    def federation(self) -> Federation:
        generator = torch.Generator().manual_seed(0)
        sizes = self.sizes()
        count = int(sizes.sum())
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
        names = tuple(map(str, range(self.clients)))
        if self.model == "lstm":
            x = torch.randint(0, CHARACTERS, (count, *self.shape), generator=generator)
            y = torch.randint(0, CHARACTERS, (count,), generator=generator)
        else:
            x = torch.randn(count, *self.shape, generator=generator)
            y = torch.randint(0, CLASSES, (count,), generator=generator)
        rows = Rows(x, y, offsets)
        # One test row for each client: nothing here measures evaluation.
        test = Rows(x[: self.clients], y[: self.clients], torch.arange(self.clients + 1))
        return Federation(rows, test, names, outputs=self.outputs)

    @property
    def outputs(self) -> int:
        return CHARACTERS if self.model == "lstm" else CLASSES

    def task(self) -> Task:
        models: dict[str, Any] = {
            "logistic": "logistic",
            "mlp": {"name": "mlp", "hidden": [self.hidden] * self.layers},
            "cnn": "cnn",
            "lstm": "lstm",
        }
        torch.manual_seed(0)
        about = {"shape": self.shape, "labels": (), "outputs": self.outputs}
        return Task(catalog.build("models", models[self.model], **about))


LOGISTIC = Work("logistic", "logistic")
MLP = Work("mlp", "mlp")
CNN = Work("cnn", "cnn")
LSTM = Work("char-lstm", "lstm", clients=20, rows=50, batch=10, features=80)
DEVICES = Work("mlp, 10,000 x 20 rows", "mlp", clients=10_000, rows=20, cohort=100)
UNEQUAL = Work("mlp, unequal sizes", "mlp", rows=50, cohort=100, spread=1.0)
WORKS = (LOGISTIC, MLP, CNN, DEVICES, UNEQUAL, LSTM)
