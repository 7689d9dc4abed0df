"""A module as functions of a flat vector, against the plain module."""

import math
import pickle
from collections.abc import Callable
from copy import deepcopy
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from cases import cases
from commonweal.base.errors import ConfigError
from commonweal.jobs.job import job_from_parts
from commonweal.jobs.rounds import run
from commonweal.task.losses import LOSSES
from commonweal.task.memory_format import ChannelsLast
from commonweal.task.task import Batch, Task
from helpers import SHAPES, close, federation, loaded, module, torch_loss, vector

KINDS = ["logistic", "mlp", "norm", "cnn", "cnn-norm"]


def some_rows(kind: str, n: int = 9, classes: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(n, *SHAPES[kind], generator=generator), torch.randint(
        classes, (n,), generator=generator
    )


def even(x: Tensor, y: Tensor) -> Batch:
    return Batch(x, y, torch.full((len(x),), 1 / len(x)))


def moved(task: Task) -> Tensor:
    """A vector that is not the module's own, with variances that stay positive."""
    w = task.initial.clone()
    w[: task.num_trainable] += 0.1 * torch.randn(
        task.num_trainable, generator=torch.Generator().manual_seed(2)
    )
    w[task.num_trainable :] += 0.3
    return w


class Shared(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.b(self.a(x).tanh())
        return result


class Twice(nn.Module):
    """One normalised layer under two names, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.b = self.a

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.b(self.a(x))
        return result


def half_frozen() -> nn.Sequential:
    m = module("norm")
    m[0].requires_grad_(False)
    return m


MODULES: dict[str, Callable[[], nn.Module]] = {kind: partial(module, kind) for kind in KINDS}
MODULES |= {"shared": Shared, "twice": Twice, "half frozen": half_frozen}


def shape_of(name: str) -> str:
    return name if name in SHAPES else "mlp"


# The vector


@cases("name", MODULES)
def test_the_vector_is_the_modules_values_in_order(name: str) -> None:
    task = Task(MODULES[name]())
    assert torch.equal(task.initial, vector(task.module))
    assert task.size == len(task.initial) == sum(task.sizes)
    assert task.num_trainable == sum(p.numel() for p in task.module.parameters() if p.requires_grad)
    assert task.initial.dtype == torch.float32 and not task.initial.requires_grad


@cases("name", MODULES)
def test_a_vector_cut_into_tensors_and_joined_is_itself(name: str) -> None:
    task = Task(MODULES[name]())
    w = torch.randn(task.size)
    w[task.num_trainable :] = torch.arange(task.size - task.num_trainable)  # counters are whole
    tensors = task.tensors(w)
    assert torch.equal(torch.cat([t.flatten() for t in tensors.values()]), w)
    own = dict(task.module.named_parameters()) | dict(task.module.named_buffers())
    assert all(own[name].shape == t.shape for name, t in tensors.items())
    assert tuple(tensors) == task.names


def test_tensors_are_views() -> None:
    task = Task(module("mlp"))
    w = torch.zeros(task.size)
    task.tensors(w)["0.weight"].fill_(1)
    assert int(w.sum()) == 32


def test_buffers_are_at_the_end_and_not_trained() -> None:
    task = Task(module("norm"))
    assert task.names[-3:] == ("1.running_mean", "1.running_var", "1.num_batches_tracked")
    assert task.size - task.num_trainable == 17
    assert task.initial[task.num_trainable :].tolist() == [0] * 8 + [1] * 8 + [0]
    loss, _ = task.batch_loss(w := moved(task).requires_grad_(), even(*some_rows("norm")))
    (grad,) = torch.autograd.grad(loss, w)
    assert grad[task.num_trainable :].eq(0).all() and grad[: task.num_trainable].ne(0).any()


def test_an_average_of_counters_is_rounded_where_the_module_reads_it() -> None:
    task = Task(module("norm"))
    w = task.initial.clone()
    for given, want in ((2.4, 2), (2.9999998, 3), (16777216.0, 1 << 24)):
        w[-1] = given
        count = task.module_of(w).get_buffer("1.num_batches_tracked")
        assert count.dtype == torch.int64 and int(count) == want


def test_initial_is_a_copy() -> None:
    task = Task(nn.Linear(2, 1, bias=False))
    task.initial.fill_(7)
    assert task.module.get_parameter("weight").ne(7).all()


def test_frozen_parameters_stay_with_the_module() -> None:
    task = Task(half_frozen())
    assert not any(name.startswith("0.") for name in task.names)
    x, y = some_rows("norm")
    before = task.module.get_parameter("0.weight").clone()
    w = moved(task)
    close(task.outputs(w, x), loaded(task, w).eval()(x))
    task.batch_loss(w, even(x, y))
    assert torch.equal(task.module.get_parameter("0.weight"), before)


def test_shared_weights_are_in_the_vector_once() -> None:
    task = Task(Shared())
    assert task.size == 16 + 4 + 4
    assert task.names == ("a.weight", "a.bias", "b.bias")


@cases(
    ("make", "want"),
    [
        (lambda: module("mlp"), [0, 0, 1, 1]),
        (lambda: module("norm"), [0, 0, 1, 1, 2, 2, 1, 1, 1]),
        (lambda: nn.Linear(2, 1), [0, 0]),
    ],
)
def test_layers_number_the_module_that_owns_a_piece(
    make: Callable[[], nn.Module], want: list[int]
) -> None:
    assert Task(make()).layers == want


# Another initialisation


@cases("kind", KINDS)
def test_another_initialisation_is_the_same_for_the_same_seed(kind: str) -> None:
    task = Task(module(kind))
    before = task.initial.clone()
    a, b, c = (task.reinitialised(seed).initial for seed in (1, 1, 2))
    assert torch.equal(a, b) and a.shape == before.shape
    assert not torch.equal(a, c) and not torch.equal(a, before)
    assert torch.equal(task.initial, before) and torch.equal(vector(task.module), before)


def test_another_initialisation_resets_buffers() -> None:
    m = module("norm")
    m.get_buffer("1.running_mean").fill_(5)
    task = Task(m)
    assert task.initial[task.num_trainable :][:8].tolist() == [5] * 8
    fresh = task.reinitialised(0).initial[task.num_trainable :]
    assert fresh.tolist() == [0] * 8 + [1] * 8 + [0]


def test_another_initialisation_is_what_torch_draws_from_the_seed() -> None:
    fresh = Task(nn.Linear(3, 2)).reinitialised(11).initial
    torch.manual_seed(11)
    assert torch.equal(fresh, vector(nn.Linear(3, 2)))


def test_another_initialisation_draws_attention_and_keeps_frozen_layers() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    layer.linear1.weight.requires_grad_(False)
    task = Task(nn.Sequential(layer, nn.Flatten(), nn.Linear(16, 3)))
    other = task.reinitialised(1).module
    for name, value in task.module.named_parameters():
        is_constant = "norm" in name or name.endswith(("in_proj_bias", "out_proj.bias"))
        is_same = torch.equal(value, other.get_parameter(name))
        assert is_same == (is_constant or "linear1" in name), name
    assert not task.is_drawn
    layer.linear1.weight.requires_grad_(True)
    assert Task(task.module).is_drawn


def test_another_initialisation_leaves_torchs_generator_alone() -> None:
    before = torch.get_rng_state()
    Task(module("mlp")).reinitialised(3)
    assert torch.equal(torch.get_rng_state(), before)


# Losses


TARGETS = {"cross-entropy": 3, "binary": 1, "squared": 1}
SCORES = {"cross-entropy": "accuracy", "binary": "accuracy", "squared": "r2"}


def task_of(kind: str, loss: str) -> Task:
    return Task(module(kind, TARGETS[loss]), loss, SCORES[loss])


def labels(loss: str, n: int) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    if loss == "squared":
        return torch.randn(n, generator=generator)
    return torch.randint(3 if loss == "cross-entropy" else 2, (n,), generator=generator)


@cases("loss", TARGETS)
@cases("kind", ["mlp", "cnn-norm"])
def test_the_loss_is_torchs_own(loss: str, kind: str) -> None:
    task = task_of(kind, loss)
    x, _ = some_rows(kind)
    y, w = labels(loss, len(x)), moved(task)
    close(task.batch_loss(w, even(x, y))[0], torch_loss(loss, loaded(task, w).train()(x), y))


@cases("loss", TARGETS)
def test_rows_count_by_their_weight(loss: str) -> None:
    task = task_of("mlp", loss)
    x, _ = some_rows("mlp")
    y, w = labels(loss, len(x)), moved(task)
    weight = torch.rand(len(x), generator=torch.Generator().manual_seed(4))
    each = torch.stack(
        [torch_loss(loss, loaded(task, w)(x[i : i + 1]), y[i : i + 1]) for i in range(len(x))]
    )
    close(task.batch_loss(w, Batch(x, y, weight))[0], weight @ each)


@cases("loss", TARGETS)
def test_padding_changes_nothing(loss: str) -> None:
    task = task_of("mlp", loss)
    x, _ = some_rows("mlp")
    y, w = labels(loss, len(x)), moved(task).requires_grad_()
    padded = Batch(
        torch.cat([x, 50 + x[:1]]), torch.cat([y, y[:1]]), torch.tensor([1 / 9] * 9 + [0.0])
    )
    a, b = task.batch_loss(w, even(x, y))[0], task.batch_loss(w, padded)[0]
    close(a, b)
    close(torch.autograd.grad(a, w)[0], torch.autograd.grad(b, w)[0])


@cases("loss", TARGETS)
def test_extreme_outputs_give_finite_losses_and_gradients(loss: str) -> None:
    outputs = torch.full((2, TARGETS[loss]), 1e4)
    outputs[1] = -1e4
    outputs[:, 0] *= -1
    outputs.requires_grad_()
    y = torch.zeros(2) if loss == "squared" else torch.tensor([0, 1])
    losses = LOSSES[loss](outputs, y)
    assert losses.shape == (2,) and losses.isfinite().all()
    assert torch.autograd.grad(losses.sum(), outputs)[0].isfinite().all()


@cases("name", MODULES)
def test_the_gradient_is_that_of_the_plain_module(name: str) -> None:
    task = Task(MODULES[name]())
    x, y = some_rows(shape_of(name))
    w = moved(task).requires_grad_()
    (grad,) = torch.autograd.grad(task.batch_loss(w, even(x, y))[0], w)
    plain = loaded(task, w.detach()).train()
    torch.autograd.backward([torch_loss("cross-entropy", plain(x), y)])
    want = torch.cat([p.grad.flatten() for p in plain.parameters() if p.grad is not None])
    close(grad[: task.num_trainable], want)


@cases("kind", ["mlp", "norm", "cnn"])
def test_mixed_precision_trains_as_autocast_does_and_evaluates_in_float32(kind: str) -> None:
    exact = Task(module(kind))
    task = exact.replace(precision="bfloat16")
    x, y = some_rows(kind)
    w = moved(task).requires_grad_()
    loss = task.batch_loss(w, even(x, y))[0]
    (grad,) = torch.autograd.grad(loss, w)
    plain = loaded(task, w.detach()).train()
    with torch.autocast("cpu", torch.bfloat16):
        outputs = plain(x)
    expected = torch_loss("cross-entropy", outputs.float(), y)
    torch.autograd.backward([expected])
    want = torch.cat([p.grad.flatten() for p in plain.parameters() if p.grad is not None])
    assert loss.dtype == grad.dtype == torch.float32
    close(grad[: task.num_trainable], want, rtol=0.03, atol=0.003)  # products round to 8 bits
    assert not torch.equal(loss, exact.batch_loss(w, even(x, y))[0])
    assert torch.equal(task.outputs(w.detach(), x), exact.outputs(w.detach(), x))


@cases("client", ["sgd", "ditto", "superfed-mm"])
def test_a_run_in_mixed_precision_is_near_one_in_float32(client: str) -> None:
    """Also of a stack of linear layers, which the closed form must leave to autograd."""
    rows = federation({"a": 12, "b": 12}, SHAPES["mlp"])
    options = {"name": client, "batch": 4, "lr": 0.1}
    vectors = []
    for precision in ("float32", "bfloat16"):
        job = job_from_parts(
            Task(module("mlp")), rows, client=options, rounds=2, precision=precision
        )
        *_, last = run(job)
        vectors.append(job.algorithm.model(last.state))
    assert not torch.equal(vectors[0], vectors[1])
    close(vectors[0], vectors[1], rtol=0.05, atol=0.01)


@cases("name", ["norm", "cnn-norm", "half frozen", "twice"])
def test_buffers_after_a_loss_are_those_of_the_plain_module(name: str) -> None:
    task = Task(MODULES[name]())
    x, y = some_rows(shape_of(name))
    w = moved(task)
    before = w.clone()
    _, buffers = task.batch_loss(w, even(x, y))
    plain = loaded(task, w).train()
    plain(x)
    close(buffers, vector(plain)[task.num_trainable :])
    assert not torch.equal(buffers, before[task.num_trainable :])
    assert torch.equal(w, before)  # the vector itself is as it was


@cases("momentum", [0.1, 0.7, None])
def test_a_loss_does_not_depend_on_earlier_calls(momentum: float | None) -> None:
    m = module("norm")
    layer = m[1]
    assert isinstance(layer, nn.BatchNorm1d)
    layer.momentum = momentum
    task = Task(m)
    batch, w = even(*some_rows("norm")), moved(task)
    a, b = task.batch_loss(w, batch), task.batch_loss(w, batch)
    assert torch.equal(a[0], b[0]) and torch.equal(a[1], b[1])


def test_a_module_without_buffers_gives_none() -> None:
    task = Task(module("mlp"))
    assert task.batch_loss(task.initial, even(*some_rows("mlp")))[1].shape == (0,)


def test_the_users_module_is_not_touched() -> None:
    m = module("cnn-norm").eval()
    before = {name: value.clone() for name, value in m.state_dict().items()}
    task = Task(m)
    x, y = some_rows("cnn-norm")
    task.batch_loss(moved(task), even(x, y))
    task.evaluate_rows(moved(task), x, y)
    assert all(torch.equal(before[name], value) for name, value in m.state_dict().items())
    assert not m.training and all(p.grad is None for p in m.parameters())


@cases("name", MODULES)
def test_evaluation_is_the_module_in_eval_mode(name: str) -> None:
    task = Task(MODULES[name]())
    x, y = some_rows(shape_of(name))
    w = moved(task)
    plain = loaded(task, w).eval()
    close(task.outputs(w, x), plain(x))
    losses, stats = task.evaluate_rows(w, x, y)
    close(losses, nn.functional.cross_entropy(plain(x), y, reduction="none"))
    correct = (plain(x).argmax(1) == y).double()
    assert stats["accuracy"][:, 0].tolist() == correct.tolist()


def test_dropout_is_off_in_evaluation() -> None:
    task = Task(module("dropout"))
    x, _ = some_rows("dropout")
    assert torch.equal(task.outputs(task.initial, x), task.outputs(task.initial, x))


def test_bytes_become_numbers_from_0_to_1() -> None:
    task = Task(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)))
    images = torch.tensor([[[0, 51], [255, 102]]], dtype=torch.uint8)
    want = task.outputs(task.initial, torch.tensor([[[0.0, 0.2], [1.0, 0.4]]]))
    close(task.outputs(task.initial, images), want)
    a, b = (
        task.batch_loss(task.initial, even(x, torch.tensor([1])))[0] for x in (images, images / 255)
    )
    close(a, b)


def test_whole_number_features_are_numbers() -> None:
    task = Task(module("mlp"))
    x, y = torch.tensor([[1, 0, 2, 5], [3, 1, 0, 0]]), torch.tensor([0, 1])
    close(task.outputs(task.initial, x), task.outputs(task.initial, x.float()))
    close(
        task.batch_loss(task.initial, even(x, y))[0],
        task.batch_loss(task.initial, even(x.float(), y))[0],
    )


def test_tokens_stay_whole_numbers() -> None:
    task = Task(nn.Sequential(nn.Embedding(6, 2), nn.Flatten(), nn.Linear(8, 3)))
    x, y = torch.tensor([[1, 0, 2, 5], [3, 1, 0, 0]]), torch.tensor([0, 1])
    close(
        task.batch_loss(task.initial, even(x, y))[0], torch_loss("cross-entropy", task.module(x), y)
    )
    assert task.width(x) == 4 + 8 + 8 + 3


def test_layers_see_sequences_too() -> None:
    # The faster linear layer is for rows that are vectors; others take torch's own path.
    task = Task(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Flatten(), nn.Linear(15, 2)))
    x, y = torch.randn(6, 3, 4), torch.tensor([0, 1, 0, 1, 0, 1])
    close(
        task.batch_loss(task.initial, even(x, y))[0], torch_loss("cross-entropy", task.module(x), y)
    )


# Names and facts


def test_an_unknown_loss_is_suggested() -> None:
    with pytest.raises(
        ConfigError, match="no loss is called 'cross_entropy': did you mean 'cross-entropy'"
    ):
        Task(nn.Linear(1, 1), "cross_entropy")


def test_an_unknown_score_is_suggested() -> None:
    with pytest.raises(ConfigError, match="no score is called 'auc': did you mean 'auroc'"):
        Task(nn.Linear(1, 1), score="auc")


@cases("m", [nn.ReLU(), nn.Linear(2, 2).requires_grad_(False)])
def test_a_module_needs_something_to_train(m: nn.Module) -> None:
    with pytest.raises(ConfigError, match=f"{type(m).__name__} has no parameter to train"):
        Task(m)


def test_batchnorm_without_statistics_is_refused() -> None:
    # In evaluation it would normalise a client's rows by those of other clients in the same pass.
    with pytest.raises(ConfigError, match="BatchNorm1d"):
        Task(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False)))


@cases(
    ("kind", "numbers"),
    [
        ("logistic", 4 + 3),
        ("mlp", 4 + 8 + 8 + 3),
        ("norm", 4 + 8 + 8 + 8 + 3),
        ("cnn", 36 + 48 + 48 + 48 + 3),
        ("dropout", 4 + 8 + 8 + 8 + 3),
    ],
)
def test_width_counts_the_numbers_of_a_row(kind: str, numbers: int) -> None:
    x, _ = some_rows(kind)
    assert Task(module(kind)).width(x) == numbers
    assert Task(module(kind)).width(x[:1]) == numbers


def test_width_goes_by_the_shape_of_a_row() -> None:
    task = Task(
        nn.Sequential(nn.Conv1d(1, 2, 3), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(2, 2))
    )
    assert task.width(torch.zeros(5, 1, 10)) == 10 + 16 + 2 + 2 + 2
    assert task.width(torch.zeros(5, 1, 4)) == 4 + 4 + 2 + 2 + 2


def test_width_does_not_need_a_row() -> None:
    task = Task(module("mlp"))
    assert task.width(torch.zeros(0, 4)) == task.width(torch.zeros(3, 4)) == 23


def test_width_leaves_the_module_alone() -> None:
    task = Task(module("norm"))
    w = moved(task)
    x, _ = some_rows("norm")
    before = task.outputs(w, x)
    task.width(x)
    assert torch.equal(task.outputs(w, x), before)
    assert not any(part._forward_hooks for part in task.module.modules())


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.5, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.attention(x, x, x)[0][:, 0]
        return result


@cases(
    ("m", "draws"),
    [
        (module("mlp"), False),
        (module("norm"), False),
        (module("dropout"), True),
        (nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.0)), False),
        (nn.Sequential(nn.Conv2d(1, 1, 1), nn.Dropout2d(0.1)), True),
        (nn.Sequential(nn.Linear(2, 2), nn.AlphaDropout(0.1)), True),
        (nn.LSTM(2, 2, num_layers=2, dropout=0.5), True),
        (nn.LSTM(2, 2, num_layers=2), False),
        (nn.Sequential(nn.Linear(2, 2), nn.RReLU()), True),
        (Attention(), True),
    ],
)
def test_has_dropout_is_whether_training_draws_inside_the_module(m: nn.Module, draws: bool) -> None:
    assert Task(m).has_dropout is draws


def test_a_vector_of_not_a_number_gives_a_loss_of_none() -> None:
    task = Task(module("mlp"))
    assert math.isnan(
        task.batch_loss(torch.full_like(task.initial, math.nan), even(*some_rows("mlp")))[0]
    )


def test_layers_may_be_frozen_after_the_task_was_made() -> None:
    network = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    task = Task(network)
    network[0].requires_grad_(False)
    assert task.names == ("2.weight", "2.bias")
    assert task.size == task.num_trainable == len(task.initial) == 18


def test_a_task_cannot_be_changed_but_replaced() -> None:
    task = Task(module("mlp"), class_weight=[1.0, 2.0, 3.0])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"task\.replace\(loss="):
        task.loss = "mse"
    assert task.class_weight == (1.0, 2.0, 3.0)
    other = ChannelsLast(module("cnn")).replace(precision="bfloat16")
    assert type(other) is ChannelsLast and other.precision == "bfloat16"


def test_a_task_with_own_functions_is_copied_and_pickled() -> None:
    task = Task(module("mlp"), loss=nn.functional.huber_loss, score=nn.functional.l1_loss)
    for copy in (pickle.loads(pickle.dumps(task)), deepcopy(task)):
        assert copy.functions == task.functions
        assert copy.module is not task.module and torch.equal(copy.initial, task.initial)
