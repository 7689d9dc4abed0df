"""Batches in parts give the same steps, a frozen base is held once, and memory is bounded."""

import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import TensorDataset

import commonweal
from cases import cases
from commonweal import Federation, Task
from commonweal.base.errors import ConfigError
from commonweal.task.task import Batch

GENERATOR = torch.Generator().manual_seed(0)
DATA = {}
for n in (24, 40, 17):
    labels = torch.randint(0, 3, (n, 6), generator=GENERATOR)
    labels[torch.rand(n, 6, generator=GENERATOR) < 0.3] = -100
    DATA[f"c{n}"] = TensorDataset(torch.randn(n, 5, generator=GENERATOR), labels)
FEDERATION = Federation.from_datasets(DATA, test=0.25)


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 18), nn.Unflatten(1, (3, 6)))


def contrastive(outputs: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(outputs, y, reduction="none").mean(1) + outputs.mean()


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The samples of every pass of training."""
    seen = []
    whole = Task.row_losses

    def row_losses(self: Task, w: Tensor, batch: Batch) -> object:
        seen.append(len(batch.y))
        return whole(self, w, batch)

    monkeypatch.setattr(Task, "row_losses", row_losses)
    return seen


METHODS = [
    {"name": "sgd", "momentum": 0.9},
    {"name": "fedprox", "mu": 0.5},
    {"name": "ditto"},
    {"name": "superfed-mm"},
    {"name": "apfl"},
    {"name": "scaffold"},
]


def trained(task: Task, client: dict[str, object], vectorize: str) -> Tensor:
    steps = client | {"batch": 16, "lr": 0.2, "epochs": 2}
    run = commonweal.run(task, FEDERATION, rounds=2, client=steps, vectorize=vectorize, seed=1)
    *_, done = run
    assert done.evaluation is not None
    w = task.vector(done.state_dict())
    return torch.cat([w, done.evaluation.losses.float()])


@cases("client", METHODS)
@cases("vectorize", ["loop", "vmap"])
def test_parts_of_a_batch_give_its_step(
    client: dict[str, object], vectorize: str, sizes: list[int]
) -> None:
    loss = nn.CrossEntropyLoss()
    whole = trained(Task(module(), loss=loss), client, vectorize)
    assert max(sizes) == 16
    sizes.clear()
    parts = trained(Task(module(), loss=loss, batch_memory=0.006), client, vectorize)
    assert max(sizes[6:]) < 8
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-5)


def with_norm() -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(5), module())


@cases(
    ["task", "client"],
    [
        (lambda **more: Task(module(), loss=contrastive, **more), "sgd"),
        (lambda **more: Task(with_norm(), loss=nn.CrossEntropyLoss(), **more), "sgd"),
        (lambda **more: Task(module(), loss=nn.CrossEntropyLoss(), **more), "term"),
    ],
)
def test_batches_stay_whole_where_parts_would_change_them(
    task: Callable[..., Task], client: str, sizes: list[int]
) -> None:
    whole = trained(task(), {"name": client}, "loop")
    sizes.clear()
    assert trained(task(batch_memory=1e-6), {"name": client}, "loop").equal(whole)
    assert max(sizes) == 16


class Adapted(nn.Module):
    """A frozen base of another type, and what is trained on top of it."""

    def __init__(self, seen: set[int]) -> None:
        super().__init__()
        self.seen = seen
        self.base = nn.Linear(5, 8, dtype=torch.bfloat16).requires_grad_(False)
        self.head = nn.Linear(8, 18)

    def __deepcopy__(self, memo: dict[int, object]) -> "Adapted":
        copy = Adapted.__new__(Adapted)
        memo[id(self)] = copy
        state = {key: value for key, value in vars(self).items() if key != "seen"}
        vars(copy).update(deepcopy(state, memo), seen=self.seen)
        return copy

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add(self.base.weight.data_ptr())
        hidden = self.base(x.bfloat16()).float().tanh()
        outputs: Tensor = self.head(hidden).unflatten(1, (3, 6))
        return outputs


@cases("client", ["sgd", "ditto"])
def test_a_frozen_base_is_held_once(client: str) -> None:
    seen: set[int] = set()
    own = Adapted(seen)
    before = own.base.weight.clone()
    threads = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        *_, done = commonweal.run(
            Task(own, loss=nn.CrossEntropyLoss()), FEDERATION, rounds=2, client=client
        )
    finally:
        torch.set_num_threads(threads)
    assert seen == {own.base.weight.data_ptr()}
    assert own.base.weight.equal(before)
    assert done.state_dict().keys() == {"head.weight", "head.bias"}


class Shrinks(nn.Module):
    """Changes a frozen parameter behind autograd's back."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(5, 5).requires_grad_(False)
        self.head = module()

    def forward(self, x: Tensor) -> Tensor:
        self.base.weight.data.mul_(0.9)
        outputs: Tensor = self.head(self.base(x))
        return outputs


def test_a_forward_that_changes_a_frozen_parameter_is_refused() -> None:
    with pytest.raises(ConfigError, match="changes its parameter base"):
        commonweal.run(Task(Shrinks(), loss=nn.CrossEntropyLoss()), FEDERATION).result()


def test_the_loss_of_ones_own_as_a_score() -> None:
    """Per client the mean over positions; per sample values with the same mean."""
    loss = nn.CrossEntropyLoss(weight=torch.ones(3))
    task = Task(module(), loss=loss)
    score = task.find_score(task.score)
    rows = FEDERATION.test
    outputs = task.module(rows.x).detach()
    stats = score.row_stats(outputs, rows.y)
    assert stats.shape == (len(rows.y), 2)  # not the outputs of each sample
    parts = rows.offsets.tolist()
    expected = [float(loss(outputs[a:b], rows.y[a:b])) for a, b in pairwise(parts)]
    assert score.reduce(stats, rows.offsets).tolist() == pytest.approx(expected)
    assert score.samples is not None
    values = score.samples(stats, rows.offsets)
    means = [float(values[a:b].mean()) for a, b in pairwise(parts)]
    assert means == pytest.approx(expected)


@cases("value", [0, -1.0, float("nan")])
def test_batch_memory_is_positive(value: float) -> None:
    with pytest.raises(ConfigError, match=r"batch_memory = .* give a number of MB above 0"):
        Task(module(), batch_memory=value)


PEAK = """
import re, sys
import torch
from torch import nn
from torch.utils.data import TensorDataset
import commonweal

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1e6

V, L, W, samples = 50_000, 128, 64, int(sys.argv[1])
torch.set_num_threads(2)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(V, W)
        self.layer = nn.TransformerEncoderLayer(W, 2, 4 * W, dropout=0.0, batch_first=True)
        self.head = nn.Linear(W, V, bias=False)

    def forward(self, x):
        return self.head(self.layer(self.embedding(x)))

tokens = {f"c{k}": torch.randint(0, V, (samples, L)) for k in range(2)}
federation = commonweal.Federation.from_datasets(
    {name: TensorDataset(x, x) for name, x in tokens.items()}, test=0.5
)
task = commonweal.Task(Model(), loss="tokens")
before = peak()
client = {"name": "sgd", "batch": 16, "steps": 1}
commonweal.run(task, federation, rounds=1, client=client).result()
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@cases("samples", [8, 64])
def test_peak_memory_of_a_language_model(samples: int) -> None:
    command = [sys.executable, "-c", PEAK, str(samples)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(done.stdout.splitlines()[-1]) < 1.5
