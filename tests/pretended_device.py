"""Trains and evaluates on a pretended device, and fails where tensors of two devices meet.

Run as a program, as torch keeps the device for the rest of the process:

    python tests/pretended_device.py

A tensor on the device holds its numbers on the CPU, under a name of its own ("gpu"): every
operation is checked and then computed there. So a group that is trained on the device must give the
numbers of the CPU, up to the rounding of other kernels. torch's FakeTensorMode cannot do this on a
build without CUDA, where autograd aborts. As on MPS, there is no float64 on the device.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from commonweal.base import randomness
from commonweal.base.tensors import Tensors, stack
from commonweal.config import catalog
from commonweal.data.rows import Rows
from commonweal.task.task import Task
from commonweal.task.uses import one_model
from commonweal.task.vectorize import Vectorize, single, vmap_clients
from commonweal.training.batches import schedule
from commonweal.training.client import Client
from commonweal.training.evaluation import evaluate_rows, evaluate_rows_by_models
from commonweal.training.local import Trained, train_locally

CLIENTS = 2
ROWS = 4  # per client
GPU = "gpu"

# Rows that every model of the catalog can take: shape, type, outputs.
IMAGES = ((1, 28, 28), torch.float32, 10)
PICTURES = ((3, 32, 32), torch.float32, 10)
TOKENS = ((12,), torch.int64, 20)
MODELS = {
    "cnn": IMAGES,
    "energy-cnn": IMAGES,
    "femnist-cnn": IMAGES,
    "logistic": IMAGES,
    "lstm": TOKENS,
    "mlp": IMAGES,
    "mobilenet": PICTURES,
    "resnet10": PICTURES,
    "resnet18-gn": PICTURES,
    "vgg": PICTURES,
}
# Their indices may be on the CPU, as torch allows.
INDEXED = ("aten::index.Tensor", "aten::index_put_", "aten::_index_put_impl_", "aten::index_put")


class Placed(Tensor):
    """A tensor on the pretended device."""

    value: Tensor  # its numbers

    @staticmethod
    def __new__(cls, value: Tensor) -> "Placed":
        placed: Placed = Tensor._make_wrapper_subclass(
            cls,
            value.shape,
            strides=value.stride(),
            storage_offset=value.storage_offset(),
            dtype=value.dtype,
            device=torch.device(GPU, 0),
        )
        placed.value = value
        return placed

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, f: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return compute(f, args, kwargs or {})


class Pretend(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees operations without a tensor on the device, which may put one there."""

    def __torch_dispatch__(
        self, f: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return compute(f, args, kwargs or {})


def compute(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Check where the tensors of an operation are, and compute it on the CPU."""
    leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    here = any(isinstance(leaf, Placed) for leaf in leaves)
    target = kwargs.get("device")
    moves = f.overloadpacket in (torch.ops.aten._to_copy, torch.ops.aten.copy_)
    result_here = here if target is None else torch.device(target).type == GPU
    name = f.name()
    if here and not moves and not name.startswith(INDEXED):
        others = [leaf for leaf in leaves if not isinstance(leaf, Placed) and leaf.ndim > 0]
        if others:
            raise RuntimeError(f"{name} meets tensors of two devices: {leaves}")
    if name.startswith("aten::copy_"):
        result_here = isinstance(args[0], Placed)
    plain_args = tree_map(unwrap, args)
    plain = tree_map(unwrap, kwargs)
    if target is not None:
        plain["device"] = torch.device("cpu")
    result = KERNELS.get(name, f)(*plain_args, **plain)
    if not result_here:
        return result
    result = tree_map(wrap, result)
    if not here:
        return result
    return return_and_correct_aliasing(f, args, kwargs, result)  # type: ignore[no-untyped-call]


def lstm_cell(inputs: Tensor, hidden: Tensor, c: Tensor, *bias: Tensor) -> tuple[Tensor, ...]:
    """The cell that devices have as one kernel: the next h and c, and what backward needs."""
    gates = sum((b for b in bias if b is not None), inputs + hidden)
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    following = f * c + i * g
    return o * following.tanh(), following, torch.cat([i, f, g, o], 1)


def lstm_cell_backward(
    grad_h: Tensor | None,
    grad_c: Tensor | None,
    c: Tensor,
    following: Tensor,
    gates: Tensor,
    *_: Any,
) -> tuple[Tensor, ...]:
    i, f, g, o = gates.chunk(4, 1)
    t = following.tanh()
    dh = torch.zeros_like(c) if grad_h is None else grad_h
    dc = dh * o * (1 - t * t) + (0 if grad_c is None else grad_c)
    slopes = (
        dc * g * i * (1 - i),
        dc * c * f * (1 - f),
        dc * i * (1 - g * g),
        dh * t * o * (1 - o),
    )
    grad = torch.cat(slopes, 1)
    return grad, dc * f, grad.sum(0)


KERNELS: dict[str, Callable[..., Any]] = {  # of devices only
    "aten::_thnn_fused_lstm_cell": lstm_cell,
    "aten::_thnn_fused_lstm_cell_backward_impl": lstm_cell_backward,
}


def unwrap(value: Any) -> Any:
    return value.value if isinstance(value, Placed) else value


def wrap(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    if value.dtype == torch.float64:
        raise TypeError("there is no float64 on the device")
    return Placed(value)


def build(name: str) -> tuple[Task, Rows]:
    shape, dtype, outputs = MODELS[name]
    torch.manual_seed(0)
    task = Task(catalog.build("models", name, shape=shape, labels=(), outputs=outputs))
    count = CLIENTS * ROWS
    x = torch.randn(count, *shape)
    if dtype == torch.int64:
        x = torch.randint(0, outputs, (count, *shape))
    y = torch.randint(0, outputs, (count,))
    return task, Rows(x, y, torch.arange(CLIENTS + 1) * ROWS)


def run(client: Client, task: Task, rows: Rows, vectorize: Vectorize) -> list[Tensor]:
    """All that training and evaluation of a group give, which is on the CPU wherever rows are."""
    ids = torch.arange(1 if vectorize is single else CLIENTS)
    streams = [randomness.stream(0, 1, k, 0) for k in range(len(ids))]
    plan = schedule(client, task, rows, ids, streams)
    states = stack([client.init_client(task, k) for k in range(len(ids))])
    message: Tensors = {"w": task.initial, "round": torch.tensor(1), "rounds": torch.tensor(5)}
    message |= client.init_shared(task)
    trained: Trained = train_locally(client, task, message, states, rows, plan, vectorize)
    losses, stats = evaluate_rows(task, task.initial, rows)
    own = one_model(task.initial.expand(len(ids), -1))
    own_losses, own_stats = evaluate_rows_by_models(task, own, rows, ids, vectorize)
    groups = (trained.replies, trained.states, stats, own_stats)
    values = [value for group in groups for value in group.values()]
    values += [trained.models, losses, own_losses]
    for value in values:
        assert value.device.type == "cpu", value.device
    return values


def check(client: Client, task: Task, rows: Rows, vectorize: Vectorize) -> None:
    expected = run(client, task, rows, vectorize)
    with Pretend():  # type: ignore[no-untyped-call]
        placed = rows.to(GPU)
        assert placed.device.type == GPU and placed.offsets.device.type == "cpu"
        found = run(client, task, placed, vectorize)
    for a, b in zip(expected, found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4, equal_nan=True)


def cases() -> list[tuple[str, str, Vectorize]]:
    methods = [method for method in catalog.entries("clients") if method != "fedbn"]
    pairs = [(method, model) for method in methods for model in ("mlp", "cnn")]
    pairs += [("fedbn", "resnet10")]  # it needs normalisation layers
    pairs += [("sgd", model) for model in MODELS]
    pairs += [("fedper", model) for model in ("lstm", "resnet10")]
    found: list[tuple[str, str, Vectorize]] = []
    for method, model in dict.fromkeys(pairs):
        found.append((method, model, single))
        if model == "mlp":  # whose clients are run together
            found.append((method, model, vmap_clients))
    return found


def main(chosen: Callable[[str, str], bool] = lambda method, model: True) -> None:
    _setup_privateuseone_for_python_backend(GPU)
    failed = 0
    for method, model, vectorize in cases():
        if not chosen(method, model):
            continue
        client = catalog.build("clients", {"name": method, "batch": 2})
        task, rows = build(model)
        try:
            check(client, task, rows, vectorize)
        except Exception as error:
            failed += 1
            where = f"{method}, {model}, {'single' if vectorize is single else 'vmap'}"
            print(f"{where}: {type(error).__name__}: {str(error)[:300]}")
    print(f"{len(cases())} cases, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
