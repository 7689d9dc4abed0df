"""A trial step of a task on two samples, which refuses what training would not carry.

A run trains all clients with one module. What its forward keeps for the next call must be in
buffers, which go with the model: anything else would pass from one client to another. What has
parameters must be in the module: nothing else is trained.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from commonweal.base.errors import ConfigError
from commonweal.base.generator import shared_generator
from commonweal.data.samples import Inputs
from commonweal.task.modules import changed_constant, copied
from commonweal.task.own import pick_outputs
from commonweal.task.task import Task

OTHER = 1 << 20  # put in place of a number that forward counts

Results = tuple[Tensor, ...]  # outputs, and the buffers after them


def check_step(task: Task, x: Inputs, y: Tensor) -> None:
    """Raise ConfigError where a step would change or need what is no part of the model."""
    kind = type(task.module).__name__
    module = copied(task.module).train()
    before = dict(module.named_parameters())
    places = {name: _place(value) for name, value in before.items()}
    outputs = _outputs(task, module, x)
    if not outputs.requires_grad:
        raise ConfigError(f"the outputs of {kind} have no gradient: compute them without detach()")
    known = {id(value) for value in module.parameters() if value.requires_grad}
    for leaf in _leaves(outputs):
        if id(leaf) not in known:
            raise ConfigError(
                f"{kind} uses parameters {tuple(leaf.shape)} that are none of its own, so they "
                "would not be trained: keep layers in nn.ModuleList, and parameters as attributes"
            )
    for leaf in _leaves(task.losses(outputs, task.scaled(y))):
        if id(leaf) not in known:
            raise ConfigError(
                f"the loss {task.loss} has parameters {tuple(leaf.shape)}, which would not be "
                "trained: make them part of the module, or freeze them by requires_grad_(False)"
            )
    given = dict(task.module.named_parameters())
    for name, value in before.items():
        if _place(value) != places[name] or not torch.equal(value, given[name]):
            raise ConfigError(
                f"forward of {kind} changes its parameter {name}: compute it by "
                "torch.nn.utils.parametrize, or keep it as a buffer if it is not trained"
            )
    buffers = dict(module.named_buffers())
    for name, buffer in task.module.named_buffers():
        if name in task.names:
            task.check_shape(name, buffers[name].shape)
        elif not _equal((buffer,), (buffers[name],)):
            raise ConfigError(changed_constant(task.module, name))
    added = buffers.keys() - dict(task.module.named_buffers()).keys()
    if added:
        raise ConfigError(
            f"forward of {kind} makes its buffer {min(added)}: give it its shape in __init__"
        )
    _check_memory(task, module, x)


def _place(value: Tensor) -> tuple[int, float]:
    """Where a parameter is, and its sum: the copy shares those that are frozen."""
    total = float(value.sum(dtype=torch.float64).nan_to_num()) if not value.requires_grad else 0.0
    return value.data_ptr(), total


def _check_memory(task: Task, used: nn.Module, x: Inputs) -> None:
    """Raise ConfigError if a module that was called once remembers more than its buffers."""

    def fresh() -> nn.Module:
        module = copied(task.module).train()
        with torch.no_grad():
            for own, value in zip(module.buffers(), used.buffers(), strict=True):
                own.copy_(value)
        return module

    other = fresh()
    counted = list(_counted(copied(task.module).train(), used))
    for part, key in counted:
        setattr(other.get_submodule(part), key, OTHER)
    plain = _results(task, fresh(), x)
    if _equal(plain, _results(task, used, x)) and _ignores(task, other, x, plain):
        return
    if not _equal(plain, _results(task, fresh(), x)):
        return  # it draws numbers that torch's generator does not give
    names = [f"{part}.{key}" if part else key for part, key in counted]
    what = f" ({', '.join(names)})" if names else ""
    raise ConfigError(
        f"forward of {type(task.module).__name__} remembers something that is no buffer{what}, so "
        "that clients would change each other's models: use register_buffer"
    )


def _ignores(task: Task, other: nn.Module, x: Inputs, plain: Results) -> bool:
    """Return whether a module with other numbers gives the same."""
    try:
        return _equal(plain, _results(task, other, x))
    except Exception:  # of a user's own code, such as an index out of range
        return False


def _counted(before: nn.Module, after: nn.Module) -> Iterator[tuple[str, str]]:
    """The plain numbers of a module's parts that a call changed."""
    parts = dict(before.named_modules())
    for name, part in after.named_modules():
        for key, value in vars(part).items():
            if isinstance(value, int | float) and vars(parts[name]).get(key) != value:
                yield name, key


def _results(task: Task, module: nn.Module, x: Inputs) -> Results:
    with torch.no_grad():
        return (_outputs(task, module, x), *module.buffers())


def _outputs(task: Task, module: nn.Module, x: Inputs) -> Tensor:
    args, kwargs = task.arguments(x)
    with shared_generator() as generator:
        generator.manual_seed(0)
        return pick_outputs(module(*args, **kwargs), task.output)


def _equal(first: Results, second: Results) -> bool:
    pairs = zip(first, second, strict=True)
    return all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in pairs)


def _leaves(value: Tensor) -> Iterator[Tensor]:
    """The tensors to which the gradient of a value goes."""
    waiting: list[Node | None] = [value.grad_fn]
    seen: set[Node] = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name() == "torch::autograd::AccumulateGrad":
            yield node.variable  # type: ignore[attr-defined]
        waiting += [following for following, _ in node.next_functions]
