"""FedAvg of many kinds of modules against a plain loop in torch: the same weights and buffers."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import parametrizations
from torch.utils.data import TensorDataset

import commonweal
from cases import cases
from commonweal import Federation, Task

SIZES = (8, 12, 20)
ROUNDS, EPOCHS, LR = 2, 3, 0.1


def samples(n: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 5, generator=generator) + 0.2 * seed
    return x, (x[:, 0] > 0.2 * seed).long()


DATA = [samples(n, k) for k, n in enumerate(SIZES)]
CLIENTS = {f"c{k}": TensorDataset(x, y) for k, (x, y) in enumerate(DATA)}
FEDERATION = Federation.from_datasets(CLIENTS, test=CLIENTS)


def by_loop(
    module: nn.Module,
    loss: Callable[[Any, Tensor], Tensor] = F.cross_entropy,
    data: list[tuple[Any, Tensor]] = DATA,
    weights: list[float] | None = None,
) -> dict[str, Tensor]:
    """Federated averaging as one writes it in torch: copies, an optimizer, means of state dicts."""
    sizes = torch.tensor(weights or [float(len(y)) for _, y in data])
    state = deepcopy(module.state_dict())
    for _ in range(ROUNDS):
        trained = []
        for x, y in data:
            own = deepcopy(module)
            own.load_state_dict(state)
            own.train()
            optimizer = torch.optim.SGD([p for p in own.parameters() if p.requires_grad], lr=LR)
            for _ in range(EPOCHS):
                optimizer.zero_grad()
                loss(own(x), y).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            trained.append(own.state_dict())
        for name, value in state.items():
            every = torch.stack([own[name].double() for own in trained])
            mean = torch.tensordot((sizes / sizes.sum()).double(), every, 1)
            state[name] = (mean if value.is_floating_point() else mean.round()).to(value.dtype)
    return state


def by_run(task: Task, federation: Federation = FEDERATION, **settings: Any) -> dict[str, Tensor]:
    client = {"name": "sgd", "batch": 0, "epochs": EPOCHS, "lr": LR}
    rounds = commonweal.run(
        task, federation, rounds=ROUNDS, client=client, cohort="all", **settings
    )
    *_, last = rounds
    state: dict[str, Tensor] = last.module().state_dict()
    return state


def norm(**settings: Any) -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8, **settings), nn.ReLU(), nn.Linear(8, 2))


class Head(nn.Module):
    """A linear layer with a buffer or several, which subclasses use."""

    def __init__(self, **buffers: Tensor) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 2)
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, x: Tensor) -> Any:
        return self.layer(x)


class InPlace(Head):
    mu: Tensor

    def forward(self, x: Tensor) -> Any:
        if self.training:
            self.mu.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return self.layer(x - self.mu)


class Reassigned(Head):
    mu: Tensor

    def forward(self, x: Tensor) -> Any:
        if self.training:
            self.mu = 0.9 * self.mu + 0.1 * x.detach().mean(0)
        return self.layer(x - self.mu.float())


class Counting(Head):
    seen: Tensor

    def forward(self, x: Tensor) -> Any:
        if self.training:
            self.seen += 1
        return self.layer(x) * (1 + self.seen.float())


class CountingRows(Head):
    """Counts samples and assigns the count; also in evaluation, which must not move it."""

    seen: Tensor

    def forward(self, x: Tensor) -> Any:
        self.seen = self.seen + len(x)
        return self.layer(x) / self.seen.float().sqrt()


class Switched(Head):
    """A flag that the first batch sets, as in layers that initialise themselves by data."""

    ready: Tensor
    scale: Tensor

    def forward(self, x: Tensor) -> Any:
        if self.training:
            self.scale = torch.where(self.ready, self.scale, x.detach().std(0))
            self.ready = torch.ones_like(self.ready)
        return self.layer(x / self.scale)


class Hidden(Head):
    """A moving average of what a layer gives."""

    mean: Tensor

    def forward(self, x: Tensor) -> Any:
        h = self.layer(x)
        if self.training:
            self.mean = torch.lerp(self.mean, h.detach().mean(0), 0.2)
        return h - self.mean


class Bank(Head):
    """Keeps the last batch means in a ring, by an index that it counts."""

    bank: Tensor
    at: Tensor

    def forward(self, x: Tensor) -> Any:
        if self.training:
            place = F.one_hot(self.at % 3, 3)[:, None]
            self.bank = torch.where(place > 0, x.detach().mean(0), self.bank)
            self.at += 1
        return self.layer(x - self.bank.mean(0))


class Branch(Head):
    def forward(self, x: Tensor) -> Any:
        return self.layer(x) if x.sum() > 0 else self.layer(-x)


class Centred(Head):
    """Subtracts the mean of the batch: a sample's output depends on the others."""

    def forward(self, x: Tensor) -> Any:
        return self.layer(x - x.mean(0))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 5, bias=False), nn.Linear(5, 5, bias=False)
        self.b.weight = self.a.weight
        self.head = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.b(self.a(x).tanh()))


class TwoNames(nn.Module):
    """A normalised layer under two names, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5, momentum=None))
        self.b = self.a
        self.head = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.b(self.a(x)))


class InEval(nn.Module):
    """The usual recipe of fine-tuning: BatchNorm stays in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.net = norm()

    def train(self, mode: bool = True) -> "InEval":
        super().train(mode)
        self.net[1].eval()  # type: ignore[index]
        return self

    def forward(self, x: Tensor) -> Any:
        return self.net(x)


class Recurrent(nn.Module):
    def __init__(self, kind: Callable[..., nn.RNNBase]) -> None:
        super().__init__()
        self.cell = kind(1, 6, batch_first=True)
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.cell(x[..., None])[0][:, -1])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(1, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.register_buffer("mask", torch.ones(5, 5).triu(1).bool(), persistent=False)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.layer(self.inner(x[..., None]), self.mask).mean(1))


@dataclass
class Output:
    logits: Tensor
    hidden: Tensor


class Structured(Head):
    def forward(self, x: Tensor) -> Output:
        return Output(self.layer(x), x)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 3, 3, padding=1)
        self.norm = nn.BatchNorm1d(3, momentum=0.3)
        self.head = nn.Linear(15, 2)

    def forward(self, x: Tensor) -> Any:
        x = x[:, None]
        return self.head((x + self.norm(self.conv(x)).relu()).flatten(1))


def frozen(m: nn.Module, part: str) -> nn.Module:
    m.get_submodule(part).requires_grad_(False)
    return m


MODULES: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(5, 2),
    "mlp": lambda: nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2)),
    "batchnorm": norm,
    "batchnorm, large momentum": lambda: norm(momentum=0.9),
    "batchnorm, cumulative": lambda: norm(momentum=None),
    "batchnorm without affine": lambda: norm(affine=False),
    "batchnorm frozen": lambda: frozen(norm(), "1"),
    "batchnorm in eval": InEval,
    "groupnorm": lambda: nn.Sequential(nn.Linear(5, 8), nn.GroupNorm(2, 8), nn.Linear(8, 2)),
    "layernorm": lambda: nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.Linear(8, 2)),
    "instancenorm": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 5)),
        nn.Conv1d(1, 3, 2),
        nn.InstanceNorm1d(3),
        nn.Flatten(),
        nn.Linear(12, 2),
    ),
    "instancenorm with statistics": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 5)),
        nn.Conv1d(1, 3, 2),
        nn.InstanceNorm1d(3, track_running_stats=True),
        nn.Flatten(),
        nn.Linear(12, 2),
    ),
    "prelu": lambda: nn.Sequential(nn.Linear(5, 4), nn.PReLU(), nn.Linear(4, 2)),
    "gru": lambda: Recurrent(nn.GRU),
    "lstm": lambda: Recurrent(nn.LSTM),
    "attention": Attention,
    "residual": Residual,
    "tied": Tied,
    "two names": TwoNames,
    "bilinear": lambda: nn.Sequential(nn.Linear(5, 4), nn.GLU(), nn.Linear(2, 2)),
    "weight_norm": lambda: nn.Sequential(
        parametrizations.weight_norm(nn.Linear(5, 8)), nn.ReLU(), nn.Linear(8, 2)
    ),
    "spectral_norm": lambda: nn.Sequential(
        parametrizations.spectral_norm(nn.Linear(5, 8)), nn.ReLU(), nn.Linear(8, 2)
    ),
    "orthogonal": lambda: nn.Sequential(
        parametrizations.orthogonal(nn.Linear(5, 5)), nn.ReLU(), nn.Linear(5, 2)
    ),
    "frozen layer": lambda: frozen(nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2)), "0"),
    "buffer in place": lambda: InPlace(mu=torch.zeros(5)),
    "buffer reassigned": lambda: Reassigned(mu=torch.zeros(5)),
    "buffer reassigned, double": lambda: Reassigned(mu=torch.zeros(5, dtype=torch.float64)),
    "buffer of a hidden layer": lambda: Hidden(mean=torch.zeros(2)),
    "counter": lambda: Counting(seen=torch.tensor(0)),
    "counter, small": lambda: Counting(seen=torch.zeros(1, dtype=torch.uint8)),
    "counter of rows": lambda: CountingRows(seen=torch.tensor(1)),
    "flag": lambda: Switched(ready=torch.tensor(False), scale=torch.ones(5)),
    "ring": lambda: Bank(bank=torch.zeros(3, 5), at=torch.tensor(0)),
    "branch on data": Branch,
    "centred by the batch": Centred,
    "dataclass": Structured,
}


def loss_of(outputs: Any, y: Tensor) -> Tensor:
    return F.cross_entropy(outputs.logits if isinstance(outputs, Output) else outputs, y)


def made(name: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return MODULES[name]()


@cases("name", MODULES)
@pytest.mark.parametrize("vectorize", ["auto", "loop"])
def test_a_run_is_a_plain_loop_with_buffers(name: str, vectorize: str) -> None:
    module = made(name)
    want = by_loop(deepcopy(module), loss_of)
    before = deepcopy(module.state_dict())
    got = by_run(Task(module), vectorize=vectorize)
    assert got.keys() == want.keys()
    for key, value in want.items():
        assert got[key].dtype == value.dtype, key
        torch.testing.assert_close(got[key], value, rtol=1e-5, atol=1e-5)
    for key, value in module.state_dict().items():  # the user's module stays as it was
        assert torch.equal(value, before[key])


@cases(
    "name", ["batchnorm, cumulative", "counter", "buffer reassigned", "ring", "flag", "residual"]
)
def test_threads_and_groups_of_any_size_compute_the_same(name: str) -> None:
    """In threads every client has a copy of the module; in small batches samples are left over."""
    module = made(name)
    client = {"name": "sgd", "batch": 5, "epochs": 2, "lr": LR}
    threads = torch.get_num_threads()
    states = []
    for count, vectorize in ((1, "loop"), (3, "auto"), (1, "auto")):
        torch.set_num_threads(count)
        try:
            *_, last = commonweal.run(
                Task(module), FEDERATION, rounds=2, client=client, cohort="all", vectorize=vectorize
            )
        finally:
            torch.set_num_threads(threads)
        states.append(last.state_dict())
    for key, value in states[0].items():
        for other in states[1:]:
            torch.testing.assert_close(other[key], value, rtol=1e-5, atol=1e-6)


@cases("name", ["batchnorm, cumulative", "counter", "ring"])
def test_personal_models_have_buffers_of_their_own(name: str) -> None:
    """Without a penalty, each client's model is that of a loop over its own samples."""
    module = made(name)
    client = {"name": "ditto", "lam": 0, "batch": 0, "epochs": EPOCHS, "lr": LR}
    *_, last = commonweal.run(Task(module), FEDERATION, rounds=ROUNDS, client=client, cohort="all")
    assert last.evaluation is not None and last.evaluation.personal is not None
    for k, (x, y) in enumerate(DATA):
        plain = deepcopy(module)
        plain.load_state_dict(by_loop(module, data=[(x, y)]))
        with torch.no_grad():
            want = F.cross_entropy(plain.eval()(x), y)
        assert float(last.evaluation.personal.losses[k]) == pytest.approx(float(want), rel=1e-4)


# Labels with several positions


class Tokens(nn.Module):
    """Gives each of six positions its logits, (N, 3, 6) as torch's losses take them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Any:
        return self.layer(x).transpose(1, 2)


def sequences(n: int, real: int, ignored: int) -> tuple[Tensor, Tensor]:
    """Sequences of up to `real` labelled positions; the others are padding."""
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(n, 6, 2, generator=generator)
    y = (x.sum(2) > 0).long() + (x[..., 0] > 1).long()
    length = torch.randint(1, real + 1, (n, 1), generator=generator)
    y[torch.arange(6) >= length] = ignored
    return x, y


def masked(outputs: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(outputs, y.clamp(min=0), reduction="none")


def mean_of_each(outputs: Tensor, y: Tensor) -> Tensor:
    """The mean over the counted positions of each sample (N,)."""
    return (masked(outputs, y) * (y >= 0)).sum(1) / (y >= 0).sum(1).clamp(min=1)


class LogTokens(Tokens):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x).log_softmax(1)


@cases(
    ("module", "given", "ignored", "batch"),
    [
        (Tokens, {"loss": nn.CrossEntropyLoss()}, -100, 0),
        (Tokens, {"loss": nn.CrossEntropyLoss(ignore_index=-1)}, -1, 0),
        (Tokens, {"loss": nn.CrossEntropyLoss(ignore_index=-1)}, -1, 3),
        (Tokens, {"loss": F.cross_entropy}, -100, 3),
        (Tokens, {"loss": partial(F.cross_entropy, ignore_index=7)}, 7, 0),
        (LogTokens, {"loss": nn.NLLLoss(ignore_index=9)}, 9, 0),
        (Tokens, {"loss": masked, "counted": lambda y: y >= 0}, -1, 3),
        (Tokens, {"loss": mean_of_each, "counted": lambda y: y >= 0}, -1, 0),
    ],
)
@pytest.mark.parametrize("vectorize", ["auto", "loop"])
def test_padding_changes_nothing(
    module: Callable[[], nn.Module], given: dict[str, Any], ignored: int, batch: int, vectorize: str
) -> None:
    """Batches, losses and weights are those of the labelled positions alone."""
    torch.manual_seed(0)
    net = module()
    data = [sequences(8, 6, ignored), sequences(9, 1, ignored), sequences(20, 3, ignored)]
    federation = Federation.from_datasets(
        {f"c{k}": TensorDataset(*pair) for k, pair in enumerate(data)},
        test={f"c{k}": TensorDataset(*pair) for k, pair in enumerate(data)},
    )
    counts = [int((y != ignored).sum()) for _, y in data]

    def loss(outputs: Tensor, y: Tensor) -> Tensor:
        losses = masked(outputs, torch.where(y == ignored, 0, y))[y != ignored]
        return losses.mean()

    client = {"name": "sgd", "batch": batch, "epochs": EPOCHS, "lr": LR}
    settings: dict[str, Any] = {
        "cohort": "all",
        "client": client,
        "vectorize": vectorize,
        "rounds": ROUNDS,
    }
    *_, last = commonweal.run(Task(net, **given), federation, **settings)
    assert list(last.weights.values()) == pytest.approx([n / sum(counts) for n in counts])
    if batch == 0:
        for key, value in by_loop(net, loss, data, list(map(float, counts))).items():
            torch.testing.assert_close(last.state_dict()[key], value, rtol=1e-5, atol=1e-5)
    model = last.module()
    assert last.evaluation is not None
    for k, (x, y) in enumerate(data):
        with torch.no_grad():
            want = float(loss(model(x), y))
        assert float(last.evaluation.losses[k]) == pytest.approx(want, rel=1e-5)
        assert float(last.evaluation.score[k]) == pytest.approx(want, rel=1e-5)
    # More padding, and samples of nothing else, change nothing.
    wider = []
    for x, y in data:
        longer = torch.cat([x, torch.ones(len(x), 4, 2)], 1)
        labels = torch.cat([y, torch.full((len(y), 4), ignored)], 1)
        wider.append(TensorDataset(longer, labels))
    names = [f"c{k}" for k in range(3)]
    again = Federation.from_datasets(
        dict(zip(names, wider, strict=True)), test=dict(zip(names, wider, strict=True))
    )
    *_, other = commonweal.run(Task(net, **given), again, **settings)
    assert other.weights == pytest.approx(last.weights)
    assert other.losses == pytest.approx(last.losses, rel=1e-5)
    for key, value in last.state_dict().items():
        torch.testing.assert_close(other.state_dict()[key], value, rtol=1e-5, atol=1e-6)


def test_soft_labels_and_pixels_take_the_plain_cross_entropy() -> None:
    torch.manual_seed(0)
    soft = [(x, torch.rand(len(x), 2).softmax(1)) for x, _ in DATA]
    hard = [(x, F.one_hot(y, 2).float()) for x, y in DATA]
    pixels = [(torch.randn(n, 1, 4, 4), torch.randint(0, 2, (n, 4, 4))) for n in SIZES]
    for data, net in (
        (soft, nn.Linear(5, 2)),
        (hard, nn.Linear(5, 2)),
        (pixels, nn.Conv2d(1, 2, 1)),
    ):
        sets = {f"c{k}": TensorDataset(*pair) for k, pair in enumerate(data)}
        federation = Federation.from_datasets(sets, test=sets)
        want = by_loop(net, data=data)
        losses: tuple[Any, ...] = (nn.CrossEntropyLoss(), F.cross_entropy, "cross-entropy")
        for loss in losses:
            got = by_run(Task(net, loss=loss), federation)
            for key, value in want.items():
                torch.testing.assert_close(got[key], value, rtol=1e-5, atol=1e-5)
