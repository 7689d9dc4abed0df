"""Every model the catalog finds: its shape, a gradient for each parameter, the same training by vmap and by loop."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import commonweal
from commonweal import catalog
from commonweal.engines.simulator import Simulator
from commonweal.errors import ConfigError
from commonweal.federation import Federation
from commonweal.task import Batch, Task

# What a small row of its kind is. A new model is tested on images before its author writes a line here.
SHAPES = {"lstm": (7,), "m5": (1, 2000)} | dict.fromkeys(
    ("efficientnet-b0", "mobilenet", "resnet10", "resnet18-gn"), (3, 5, 5)
)
NAMES = [name for name in catalog.entries("models") if name != "distilbert"]  # it needs a folder of weights
OUTPUTS = 5


def rows(shape: tuple[int, ...], n: int, tokens: bool) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    if tokens:
        return torch.randint(0, OUTPUTS, (n, *shape), generator=generator)
    return torch.rand(n, *shape, generator=generator, dtype=torch.float64)


def built(name: str, **options: Any) -> tuple[Task, tuple[int, ...]]:
    shape = SHAPES.get(name, (1, 16, 16))
    torch.manual_seed(0)
    return Task(commonweal.model(name, shape=shape, outputs=OUTPUTS, **options)), shape


@pytest.mark.parametrize("name", NAMES)
def test_shape_and_gradients(name: str) -> None:
    task, shape = built(name)
    x = rows(shape, 4, name == "lstm")
    w = task.initial.double().requires_grad_()
    assert task.outputs(w.detach(), x).shape == (4, OUTPUTS)
    loss, _ = task.loss(w, Batch(x, torch.tensor([0, 1, 2, 3]), torch.full((4,), 0.25)))
    (slope,) = torch.autograd.grad(loss, w)
    assert torch.isfinite(slope).all() and loss.item() > 0
    for piece, n in zip(task.tensors(slope).items(), task.sizes, strict=True):
        if not piece[0].endswith(("running_mean", "running_var")) and n > 1:
            assert float(piece[1].abs().sum()) > 0, piece[0]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "lstm"])
def test_two_clients_at_once_or_one_by_one(name: str) -> None:
    """In double precision, so that an operator that mixes clients cannot hide behind rounding."""
    task, shape = built(name)
    x, y = rows(shape, 6, False).view(2, 3, *shape), torch.tensor([[0, 1, 2], [3, 4, 0]])
    w = torch.stack([task.initial, task.fresh(1)]).double()
    share = torch.full((2, 3), 1 / 3, dtype=torch.float64)

    def step(w: Tensor, x: Tensor, y: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
        return task.loss(w, Batch(x, y, share))

    leaves = w.clone().requires_grad_()
    losses, statistics = torch.vmap(step)(leaves, x, y, share)
    (together,) = torch.autograd.grad(losses.sum(), leaves)
    for k in range(2):
        leaf = w[k].clone().requires_grad_()
        loss, own = step(leaf, x[k], y[k], share[k])
        (alone,) = torch.autograd.grad(loss, leaf)
        assert torch.allclose(losses[k], loss) and torch.allclose(statistics[k], own)
        assert torch.allclose(together[k], alone, rtol=1e-6, atol=1e-9 * float(alone.abs().max()))


# Published numbers of parameters, or sums over the papers' tables.
@pytest.mark.parametrize(
    ("name", "shape", "outputs", "parameters"),
    [
        ("mlp", (1, 28, 28), 10, 199_210),
        ("cnn", (1, 28, 28), 10, 1_663_370),
        ("femnist-cnn", (1, 28, 28), 62, 6_603_710),
        ("m5", (1, 16_000), 35, 150_819),
        ("resnet10", (3, 32, 32), 10, 4_903_242),
        ("resnet18-gn", (3, 224, 224), 1000, 11_689_512),
        ("mobilenet", (3, 224, 224), 1000, 4_231_976),
        ("efficientnet-b0", (3, 224, 224), 1000, 5_288_548),
    ],
)
def test_the_architecture_is_the_published_one(
    name: str, shape: tuple[int, ...], outputs: int, parameters: int
) -> None:
    module = commonweal.model(name, shape=shape, outputs=outputs)
    assert sum(p.numel() for p in module.parameters()) == parameters


def test_large_images_are_shrunk_as_published() -> None:
    """Before the last pooling a 224-pixel image is 7 x 7."""
    for name in ("resnet18-gn", "mobilenet", "efficientnet-b0"):
        module = commonweal.model(name, shape=(3, 224, 224), outputs=2).eval()
        seen: list[torch.Size] = []
        pool = next(m for m in module.modules() if isinstance(m, nn.AdaptiveAvgPool2d))
        pool.register_forward_hook(lambda _m, inputs, _o, seen=seen: seen.append(inputs[0].shape))
        with torch.no_grad():
            module(torch.zeros(1, 3, 224, 224))
        assert seen[0][-2:] == (7, 7), name


def test_convnet_is_the_one_for_celeba() -> None:
    module = commonweal.model("convnet", shape=(3, 84, 84), outputs=1)
    convolutions = [m for m in module.modules() if isinstance(m, nn.Conv2d)]
    assert [m.bias for m in convolutions] == [None] * 4 and {m.out_channels for m in convolutions} == {32}
    assert [m.num_groups for m in module.modules() if isinstance(m, nn.GroupNorm)] == [32, 16, 8, 4]
    assert module(torch.zeros(2, 3, 84, 84)).shape == (2, 1)


def test_lstm_answers_once_a_row_or_once_a_token() -> None:
    x = torch.randint(0, 96, (3, 20))
    assert commonweal.model("lstm", shape=(20,), outputs=96)(x).shape == (3, 96)
    each = commonweal.model("lstm", shape=(20,), outputs=300, labels=(20,))
    assert each(x).shape == (3, 20, 300) and each.embedding.weight.shape == (300, 200)
    assert commonweal.model("lstm", shape=(20,), outputs=2, vocabulary=50).embedding.weight.shape == (50, 8)
    later = x.clone()
    later[:, 10:] = 5
    with torch.no_grad():
        assert torch.allclose(each(x)[:, :10], each(later)[:, :10])  # it does not look ahead


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("cnn", (784,), r"images \(C, H, W\)"),
        ("vgg", (1, 4, 4), "8 pixels or more"),
        ("m5", (1, 100), "longer waveforms than 100"),
        ("m5", (3, 8, 8), "waveforms"),
        ("lstm", (1, 8, 8), "sequences of tokens"),
        ("mobilenet", (10,), "images"),
    ],
)
def test_rows_of_another_kind_are_a_sentence(name: str, shape: tuple[int, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        commonweal.model(name, shape=shape, outputs=2)


def texts() -> Federation:
    x = torch.randint(0, 6, (12, 5), generator=torch.Generator().manual_seed(0))
    return Federation.from_arrays(x, x.roll(-1, 1), [i // 4 for i in range(12)], 0.25)


def test_the_engine_goes_one_by_one_where_vmap_cannot() -> None:
    federation = texts()
    module = commonweal.model("lstm", shape=(5,), outputs=6, labels=(5,), hidden=4)
    task = Task(module, federation.loss, federation.score)
    way, why = Simulator(task, federation, "vmap").decision
    assert way == "loop" and "aten::lstm" in why
    asked, loop = (list(commonweal.run(task, federation, rounds=2, engine=e))[-1].server["w"] for e in ("vmap", "loop"))
    assert torch.equal(asked, loop)


class Peeking(nn.Module):
    """Looks at a value, which vmap does not allow."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out if float(out.detach().sum()) > 1e9 else out * 2


def test_a_users_module_that_vmap_refuses_runs_too() -> None:
    federation = Federation.from_arrays(torch.rand(12, 5), torch.arange(12) % 2, [i // 4 for i in range(12)], 0.25)
    simulator = Simulator(Task(Peeking()), federation)
    assert simulator.decision[0] == "loop"
    assert Simulator(Task(nn.Linear(5, 2)), federation).decision[0] == "chunked"
    named = commonweal.Experiment(dataset="vowel", model="test_models:own")
    assert named.model == {"name": "test_models:own", "width": 3}


def own(shape: tuple[int, ...], outputs: int, width: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], width), nn.Linear(width, outputs))


def test_token_losses_and_scores_against_plain_python() -> None:
    from commonweal import scores
    from commonweal.task import LOSSES

    outputs = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.tensor([[1, 2, -1, -1], [0, 0, 4, 3], [-1, -1, -1, -1]])
    logs = outputs.log_softmax(-1)
    surprise = [[-float(logs[i, j, y[i, j]]) for j in range(4) if y[i, j] >= 0] for i in range(3)]
    expected = [sum(s) / len(s) if s else 0.0 for s in surprise]
    assert LOSSES["tokens"](outputs, y).tolist() == pytest.approx(expected)
    offsets = torch.tensor([0, 2, 3])
    right = [float(outputs[i, j].argmax() == y[i, j]) for i in range(2) for j in range(4) if y[i, j] >= 0]
    score = scores.named("token-accuracy")
    assert float(score.clients(score.rows(outputs, y), offsets)[0]) == pytest.approx(sum(right) / 6)
    assert torch.isnan(score.clients(score.rows(outputs, y), offsets)[1])  # no token to be judged by
    likelihood = scores.named("likelihood")
    flat = [s for row in surprise for s in row]
    found = float(likelihood.clients(likelihood.rows(outputs, y), offsets)[0])
    assert 1 / found == pytest.approx(float(torch.tensor(sum(flat) / 6).exp()))  # the perplexity
    mae = scores.named("neg-mae")
    rows = mae.rows(torch.tensor([[1.0], [3.0]]), torch.tensor([2.0, 0.0]))
    assert mae.clients(rows, torch.tensor([0, 2])).tolist() == [-2.0]


def test_labels_of_tokens_need_a_model_of_sequences() -> None:
    federation = texts()
    assert (federation.loss, federation.score, federation.outputs) == ("tokens", "token-accuracy", 6)
    task = Task(nn.Sequential(nn.Embedding(6, 3), nn.Flatten(), nn.Linear(15, 6)), "tokens", "token-accuracy")
    with pytest.raises(ConfigError, match="take a model of sequences, such as 'lstm'"):
        list(commonweal.run(task, federation, rounds=1))


def test_rows_are_stored_small() -> None:
    task = Task(nn.Linear(2, 2))
    w = task.initial
    for kind, top in ((torch.uint8, 255), (torch.int16, 32768)):
        x = torch.tensor([[0, 100]], dtype=kind)
        assert torch.allclose(task.outputs(w, x), task.outputs(w, x.float() / top))
