"""The model, the rows of each client, training and testing: nothing here knows of Commonweal."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

CLIENTS = 5


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def load_data(client: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Handwritten digits. Client k has few of the classes above 2 k, and fewer rows than k + 1."""
    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32) / 16
    y = torch.tensor(digits.target)
    mine = torch.arange(len(y)) % CLIENTS == client
    x, y = x[mine], y[mine]
    keep = (y <= 2 * client + 1) | (torch.arange(len(y)) % 5 == 0)
    x, y = x[keep], y[keep]
    test = torch.arange(len(y)) % 4 == 0
    return x[~test], y[~test], x[test], y[test]


def train(model: nn.Module, x: Tensor, y: Tensor, epochs: int, lr: float) -> float:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    total = 0.0
    batches = 0
    for _ in range(epochs):
        for rows in torch.split(torch.arange(len(y)), 16):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += loss.item()
            batches += 1
    return total / batches


def test(model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    with torch.no_grad():
        outputs = model(x)
    loss = nn.functional.cross_entropy(outputs, y).item()
    return loss, (outputs.argmax(1) == y).float().mean().item()
