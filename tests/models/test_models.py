"""Every model in the catalog: its shape, its gradients, and the same training by vmap and loop."""

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import commonweal
import papers
from cases import cases
from commonweal.base.errors import ConfigError
from commonweal.clients import Client
from commonweal.config import catalog
from commonweal.config.experiment import Experiment
from commonweal.data.federation import Federation
from commonweal.engines.simulator import Simulator
from commonweal.jobs.rounds import run
from commonweal.task import scores
from commonweal.task.losses import LOSSES
from commonweal.task.task import Batch, Task
from helpers import averaging, close, collected

# The shape of a small row. A new model is tested on images before its author writes a line here.
SHAPES: dict[str, tuple[int, ...]] = {
    "lstm": (7,),
    "m5": (1, 2000),
    "efficientnet-b0": (3, 5, 5),
    "mobilenet": (3, 5, 5),
    "mobilenet-gn": (3, 5, 5),
    "resnet10": (3, 5, 5),
    "resnet18-gn": (3, 5, 5),
}
GROWN = "trees"  # not trained by gradients: tests/protocols/test_boosting.py
NAMES = [name for name in (*catalog.entries("models"), *papers.MODELS) if name != GROWN]
OUTPUTS = 5
BUFFERS = ("running_mean", "running_var")


def build(
    name: str, shape: tuple[int, ...], outputs: int, labels: tuple[int, ...] = (), **options: Any
) -> nn.Module:
    named = papers.paper(name) if name in papers.MODELS else name
    part = {"name": named, **options}
    module: nn.Module = catalog.build("models", part, shape=shape, outputs=outputs, labels=labels)
    return module


def rows(shape: tuple[int, ...], n: int, tokens: bool) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    if tokens:
        return torch.randint(0, OUTPUTS, (n, *shape), generator=generator)
    return torch.rand(n, *shape, generator=generator, dtype=torch.float64)


def small(name: str) -> tuple[Task, tuple[int, ...]]:
    """A task for small rows, and their shape."""
    shape = SHAPES.get(name, (1, 16, 16))
    torch.manual_seed(0)
    return Task(build(name, shape, OUTPUTS)), shape


@cases("name", NAMES)
def test_shape_and_gradients(name: str) -> None:
    task, shape = small(name)
    x = rows(shape, 4, name == "lstm")
    w = task.initial.double().requires_grad_()
    assert task.outputs(w.detach(), x).shape == (4, OUTPUTS)
    batch = Batch(x, torch.tensor([0, 1, 2, 3]), torch.full((4,), 0.25))
    loss, _ = task.batch_loss(w, batch)
    assert loss.item() > 0
    (grad,) = torch.autograd.grad(loss, w)
    assert torch.isfinite(grad).all()
    for tensor, piece in task.tensors(grad).items():
        if not tensor.endswith(BUFFERS) and piece.numel() > 1:
            assert float(piece.abs().sum()) > 0, tensor


@cases("name", [name for name in NAMES if name != "lstm"])
def test_two_clients_at_once_or_one_by_one(name: str) -> None:
    """In double precision, so that an operator that mixes clients cannot hide behind rounding."""
    task, shape = small(name)
    x = rows(shape, 6, False).view(2, 3, *shape)
    y = torch.tensor([[0, 1, 2], [3, 4, 0]])
    w = torch.stack([task.initial, task.reinitialised(1).initial]).double()
    weight = torch.full((2, 3), 1 / 3, dtype=torch.float64)

    def loss_of(w: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        return task.batch_loss(w, Batch(x, y, weight))

    leaves = w.clone().requires_grad_()
    losses, buffers = torch.vmap(loss_of)(leaves, x, y, weight)
    (together,) = torch.autograd.grad(losses.sum(), leaves)
    for k in range(2):
        leaf = w[k].clone().requires_grad_()
        loss, own_buffers = loss_of(leaf, x[k], y[k], weight[k])
        (single,) = torch.autograd.grad(loss, leaf)
        assert torch.allclose(losses[k], loss)
        assert torch.allclose(buffers[k], own_buffers)
        atol = 1e-9 * float(single.abs().max())
        assert torch.allclose(together[k], single, rtol=1e-6, atol=atol)


@cases("name", NAMES)
def test_two_threads_train_it_as_one_does(name: str) -> None:
    """As on every computer but in this suite, which gives torch one thread."""
    task, shape = small(name)
    x = rows(shape, 8, name == "lstm")
    x = x if name == "lstm" else x.float()
    f = Federation.from_arrays(x, torch.arange(8) % OUTPUTS, [0] * 4 + [1] * 4, 0.25)
    updates = []
    before = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            updates.append(collected(task, f, "auto", Client(lr=0.01))["update"])
    finally:
        torch.set_num_threads(before)
    close(updates[0], updates[1])


# Published numbers of parameters, or sums over the papers' tables.
@cases(
    ("name", "shape", "outputs", "parameters"),
    [
        ("mlp", (1, 28, 28), 10, 199_210),
        ("cnn", (1, 28, 28), 10, 1_663_370),
        ("femnist-cnn", (1, 28, 28), 62, 6_603_710),
        ("m5", (1, 16_000), 35, 150_819),
        ("resnet10", (3, 32, 32), 10, 4_903_242),
        ("resnet18-gn", (3, 224, 224), 1000, 11_689_512),
        ("mobilenet", (3, 224, 224), 1000, 4_231_976),
        ("mobilenet-gn", (3, 224, 224), 1000, 4_231_976),
        ("efficientnet-b0", (3, 224, 224), 1000, 5_288_548),
    ],
)
def test_the_architecture_is_the_published_one(
    name: str, shape: tuple[int, ...], outputs: int, parameters: int
) -> None:
    module = build(name, shape, outputs)
    assert sum(p.numel() for p in module.parameters()) == parameters


@cases("name", ["resnet18-gn", "mobilenet", "efficientnet-b0"])
def test_large_images_are_downsampled_as_published(name: str) -> None:
    """Before the last pooling an image of 224 pixels is 7 x 7."""
    module = build(name, (3, 224, 224), 2).eval()
    sizes: list[torch.Size] = []

    def note(_module: nn.Module, inputs: tuple[Tensor, ...], _output: Tensor) -> None:
        sizes.append(inputs[0].shape)

    pool = next(m for m in module.modules() if isinstance(m, nn.AdaptiveAvgPool2d))
    pool.register_forward_hook(note)
    with torch.no_grad():
        module(torch.zeros(1, 3, 224, 224))
    assert sizes[0][-2:] == (7, 7)


def test_convnet_is_the_one_for_celeba() -> None:
    module = build("convnet", (3, 84, 84), 1)
    convolutions = [m for m in module.modules() if isinstance(m, nn.Conv2d)]
    assert [m.bias for m in convolutions] == [None] * 4
    assert {m.out_channels for m in convolutions} == {32}
    norms = [m for m in module.modules() if isinstance(m, nn.GroupNorm)]
    assert [m.num_groups for m in norms] == [32, 16, 8, 4]
    assert module(torch.zeros(2, 3, 84, 84)).shape == (2, 1)


def embedding(module: nn.Module) -> tuple[int, ...]:
    """The shape of the embedding: tokens, numbers per token."""
    return tuple(module.get_parameter("embedding.weight").shape)


def test_lstm_answers_once_per_row_or_once_per_token() -> None:
    x = torch.randint(0, 96, (3, 20))
    characters = build("lstm", (20,), 96)
    assert characters(x).shape == (3, 96)
    assert embedding(characters) == (96, 8)
    words = build("lstm", (20,), 300, labels=(20,))
    assert words(x).shape == (3, 20, 300)
    assert embedding(words) == (300, 200)
    assert embedding(build("lstm", (20,), 2, vocabulary=50)) == (50, 8)
    later = x.clone()
    later[:, 10:] = 5
    with torch.no_grad():
        assert torch.allclose(words(x)[:, :10], words(later)[:, :10])  # it does not look ahead


@cases(
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
def test_rows_of_another_kind_are_errors(name: str, shape: tuple[int, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build(name, shape, 2)


def test_a_model_by_name_is_the_one_of_the_catalog() -> None:
    torch.manual_seed(0)
    named = commonweal.model("mlp", shape=(4,), outputs=3, hidden=(5,))
    torch.manual_seed(0)
    expected = build("mlp", (4,), 3, hidden=(5,))
    assert torch.equal(Task(named).initial, Task(expected).initial)


# How clients are computed


def texts() -> Federation:
    x = torch.randint(0, 6, (12, 5), generator=torch.Generator().manual_seed(0))
    owner = [i // 4 for i in range(12)]
    return Federation.from_arrays(x, x.roll(-1, 1), owner, 0.25, loss="tokens")


def last_model(task: Task, f: Federation, mode: str) -> Tensor:
    *_, last = run(task, f, rounds=2, vectorize=mode)
    w: Tensor = last.state["w"]
    return w


def test_the_simulator_loops_where_vmap_cannot() -> None:
    f = texts()
    task = Task(build("lstm", (5,), 6, labels=(5,), hidden=4), "tokens", f.score)
    mode, why = Simulator(f, vectorize="vmap").decision(averaging(task))
    assert mode == "loop"
    assert "aten::lstm" in why
    assert torch.equal(last_model(task, f, "vmap"), last_model(task, f, "loop"))


class Peeking(nn.Module):
    """Branches on a value, which vmap does not allow."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layer(x)
        return outputs if float(outputs.detach().sum()) > 1e9 else outputs * 2


def test_a_users_module_that_vmap_refuses_runs_too() -> None:
    clients = [i // 4 for i in range(12)]
    f = Federation.from_arrays(torch.rand(12, 5), torch.arange(12) % 2, clients, 0.25)
    simulator = Simulator(f)
    assert simulator.decision(averaging(Task(Peeking())))[0] == "loop"
    assert simulator.decision(averaging(Task(nn.Linear(5, 2))))[0] == "chunked"
    *_, last = run(Task(Peeking()), f, rounds=2)
    assert last.metrics


def test_a_users_model_is_named_by_its_module() -> None:
    named = Experiment(dataset="vowel", model="test_models:own")
    assert named.model == {"name": "test_models:own", "width": 3}


def own(shape: tuple[int, ...], outputs: int, width: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], width), nn.Linear(width, outputs))


# Models of tokens

TOKENS = torch.tensor([[1, 2, -1, -1], [0, 0, 4, 3], [-1, -1, -1, -1]])
OFFSETS = torch.tensor([0, 2, 3])  # the second client has no token


def token_outputs() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, 4, 5, generator=generator, dtype=torch.float64)


def labelled() -> Iterable[tuple[int, int]]:
    """The positions of the tokens that have labels."""
    return [(i, j) for i in range(3) for j in range(4) if TOKENS[i, j] >= 0]


def scored(name: str, outputs: Tensor, y: Tensor, offsets: Tensor) -> Tensor:
    score = scores.find_score(name)
    return score.reduce(score.row_stats(outputs, y), offsets)


def test_token_losses_against_plain_python() -> None:
    outputs = token_outputs()
    logs = outputs.log_softmax(-1)
    losses: list[list[float]] = [[], [], []]
    for i, j in labelled():
        losses[i].append(-float(logs[i, j, TOKENS[i, j]]))
    expected = [sum(row) / max(1, len(row)) for row in losses]
    assert LOSSES["tokens"](outputs, TOKENS).tolist() == pytest.approx(expected)


def test_token_scores_against_plain_python() -> None:
    outputs = token_outputs()
    correct = [float(outputs[i, j].argmax() == TOKENS[i, j]) for i, j in labelled()]
    accuracy = scored("token-accuracy", outputs, TOKENS, OFFSETS)
    assert float(accuracy[0]) == pytest.approx(sum(correct) / 6)
    assert torch.isnan(accuracy[1])
    logs = outputs.log_softmax(-1)
    losses = [-float(logs[i, j, TOKENS[i, j]]) for i, j in labelled()]
    likelihood = scored("likelihood", outputs, TOKENS, OFFSETS)
    perplexity = float(torch.tensor(sum(losses) / 6).exp())
    assert 1 / float(likelihood[0]) == pytest.approx(perplexity)


def test_the_negative_mean_absolute_error_by_hand() -> None:
    outputs = torch.tensor([[1.0], [3.0]])
    y = torch.tensor([2.0, 0.0])
    assert scored("neg-mae", outputs, y, torch.tensor([0, 2])).tolist() == [-2.0]


def test_labels_of_tokens_need_a_model_of_sequences() -> None:
    f = texts()
    assert (f.labels, f.outputs) == ("tokens", 6)
    module = nn.Sequential(nn.Embedding(6, 3), nn.Flatten(), nn.Linear(15, 6))
    task = Task(module, "tokens", "token-accuracy")
    with pytest.raises(ConfigError, match="take a model of sequences, such as 'lstm'"):
        list(run(task, f, rounds=1))


@cases(("kind", "largest"), [(torch.uint8, 255), (torch.int16, 32768)])
def test_rows_are_stored_small(kind: torch.dtype, largest: int) -> None:
    task = Task(nn.Linear(2, 2))
    x = torch.tensor([[0, 100]], dtype=kind)
    expected = task.outputs(task.initial, x.float() / largest)
    assert torch.allclose(task.outputs(task.initial, x), expected)


def test_mobilenet_with_groupnorm_has_no_statistics() -> None:
    module = build("mobilenet-gn", (3, 8, 8), 4)
    assert not list(module.buffers())
    assert sum(isinstance(m, nn.GroupNorm) for m in module.modules()) == 27


def test_a_cnn_of_other_channels() -> None:
    module = build("cnn", (3, 32, 32), 10, channels=(8, 16), hidden=64)
    weights = [25 * 3 * 8 + 8, 25 * 8 * 16 + 16, 16 * 8 * 8 * 64 + 64, 64 * 10 + 10]
    assert sum(p.numel() for p in module.parameters()) == sum(weights)
    with pytest.raises(ConfigError, match="name two numbers"):
        build("cnn", (3, 32, 32), 10, channels=(8,))


def test_an_lstm_reads_the_last_tokens_of_its_context() -> None:
    torch.manual_seed(0)
    short = build("lstm", (20,), 96, context=6)
    long = build("lstm", (20,), 96)
    long.load_state_dict(short.state_dict())
    x = torch.randint(0, 96, (3, 20), generator=torch.Generator().manual_seed(1))
    assert torch.equal(short(x), long(x[:, 14:]))
    assert not torch.allclose(short(x), long(x))
    with pytest.raises(ConfigError, match=r"lstm context = 6: .* a label per token"):
        build("lstm", (20,), 96, labels=(20,), context=6)


def test_an_lstm_with_projection_and_two_dense_layers_by_hand() -> None:
    part = {"name": "lstm", "embedding": 4, "hidden": 6, "layers": 1, "projection": 3, "dense": 5}
    module = catalog.build("models", part, shape=(7,), outputs=9)
    x = torch.randint(0, 9, (2, 7))
    weights = dict(module.named_parameters())
    w_in, w_state, b_in, b_state, project = (
        weights[f"lstm.{name}_l0"]
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
    )
    h, c = torch.zeros(2, 3), torch.zeros(2, 6)
    for position in range(7):
        gates = (
            weights["embedding.weight"][x[:, position]] @ w_in.T + h @ w_state.T + b_in + b_state
        )
        i, f, g, o = gates.chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = (o.sigmoid() * c.tanh()) @ project.T
    hidden = (h @ weights["head.0.weight"].T + weights["head.0.bias"]).relu()
    expected = hidden @ weights["head.2.weight"].T + weights["head.2.bias"]
    torch.testing.assert_close(module(x), expected)
    with pytest.raises(ConfigError, match="projection = 6: it must be below hidden = 6"):
        catalog.build("models", part | {"projection": 6}, shape=(7,), outputs=9)


def test_statistics_of_rows_replace_those_of_batchnorm() -> None:
    torch.manual_seed(0)
    task = Task(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2)))
    x = torch.randn(9, 4) * 3 + 1
    w = task.with_statistics(task.initial, x)
    hidden = task.module[0](x).detach()  # type: ignore[index]
    torch.testing.assert_close(task.tensors(w)["1.running_mean"], hidden.mean(0))
    torch.testing.assert_close(task.tensors(w)["1.running_var"], hidden.var(0))
    n = task.num_trainable
    assert torch.equal(w[:n], task.initial[:n])
    assert float(task.module[1].running_mean.abs().max()) == 0  # type: ignore[index]
