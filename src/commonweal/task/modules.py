"""Tools for torch modules: wrap, replace, initialise and inspect their layers."""

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from commonweal.base.files import digest
from commonweal.base.tensors import tensor_bytes


class InUnits(nn.Module):
    """A module that was trained on a scaled target, with outputs in the target's units."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, module: nn.Module, mean: float, deviation: float, log: bool = False) -> None:
        super().__init__()
        self.module = module
        self.log = log  # whether mean and deviation are of the target's logarithm
        self.register_buffer("mean", torch.tensor(mean))
        self.register_buffer("deviation", torch.tensor(deviation))

    def forward(self, *x: Tensor, **named: Tensor) -> Tensor:
        outputs: Tensor = self.mean + self.deviation * self.module(*x, **named)
        return outputs.exp() if self.log else outputs


class TransposedLinear(nn.Linear):
    """W x' instead of x W': under vmap the weight's gradient then needs no copy to its layout."""

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim != 2:
            return super().forward(input)
        outputs = (self.weight @ input.mT).mT
        return outputs if self.bias is None else outputs + self.bias


@runtime_checkable
class _Resettable(Protocol):
    """A layer that draws its own parameters, as those of torch.nn do."""

    def reset_parameters(self) -> None: ...


def resettable(module: nn.Module) -> Iterator[tuple[nn.Module, Callable[[], None]]]:
    """The layers that can be initialised again, and how: a layer after those inside it."""
    for child in module.children():
        yield from resettable(child)
    if any(not p.requires_grad for p in module.parameters(recurse=False)):
        return
    if isinstance(module, nn.MultiheadAttention | nn.Transformer):
        yield module, module._reset_parameters
    elif isinstance(module, _Resettable):
        yield module, module.reset_parameters


BATCHNORM = nn.modules.batchnorm._BatchNorm
EXACT = 1 << 24  # whole numbers up to which float32 has them all


def carried_buffers(module: nn.Module) -> dict[str, Tensor]:
    """The buffers that each client has its own of: they go with the model.

    Constants do not: buffers of whole numbers that are not saved either (masks, positions), and
    numbers that float32 does not have.
    """
    constant = set()
    for prefix, part in module.named_modules():
        names = part._non_persistent_buffers_set
        constant |= {f"{prefix}.{name}" if prefix else name for name in names}
    carried = {}
    for name, buffer in module.named_buffers():
        is_whole = not (buffer.is_floating_point() or buffer.is_complex())
        if buffer.is_complex() or (is_whole and name in constant):
            continue
        if is_whole and buffer.numel() and int(buffer.long().abs().max()) > EXACT:
            continue
        carried[name] = buffer
    return carried


def frozen_tensors(module: nn.Module) -> dict[str, Tensor]:
    """The tensors that are no part of the model's vector: nothing changes them."""
    carried = carried_buffers(module)
    frozen = {name: p.detach() for name, p in module.named_parameters() if not p.requires_grad}
    buffers = module.named_buffers()
    return frozen | {name: value for name, value in buffers if name not in carried}


def frozen_digest(module: nn.Module) -> str:
    """A hash of the frozen tensors; empty: there are none."""
    parts: list[bytes | memoryview] = []
    for name, value in frozen_tensors(module).items():
        parts += [f"{name} {tuple(value.shape)} {value.dtype}".encode(), tensor_bytes(value)]
    return digest(*parts, size=8) if parts else ""


def copied(module: nn.Module, trained: bool = False) -> nn.Module:
    """A copy that shares the frozen parameters, which may be large, and the trained ones if told.

    Buffers are copied: a call may write to them.
    """
    shared = [p for p in module.parameters() if trained or not p.requires_grad]
    return deepcopy(module, {id(p): p for p in shared})


def fill(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy tensors to the parameters and buffers of these names."""
    own = dict(module.named_parameters()) | dict(module.named_buffers())
    with torch.no_grad():
        for name, value in tensors.items():
            own[name].copy_(value)


def changed_constant(module: nn.Module, name: str) -> str:
    """The error about a buffer that is no part of the vector, but that forward changed."""
    return (
        f"forward of {type(module).__name__} changes its buffer {name}, which does not go with the "
        "model: register it with persistent=True, as floating-point or whole numbers up to 2^24"
    )


def draws(layer: nn.Module) -> bool:
    """Return whether a layer draws random numbers in training."""
    if isinstance(layer, nn.modules.dropout._DropoutNd):
        return layer.p > 0
    if isinstance(layer, nn.RNNBase | nn.MultiheadAttention):
        return layer.dropout > 0
    return isinstance(layer, nn.RReLU)


def count_activations(
    module: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]
) -> int:
    """The numbers that the layers of a module give for its arguments."""
    count = 0

    def add(_module: nn.Module, _inputs: object, output: object) -> None:
        nonlocal count
        outputs = output if isinstance(output, tuple) else (output,)
        count += sum(value.numel() for value in outputs if isinstance(value, Tensor))

    for layer in module.modules():
        if not list(layer.children()):
            layer.register_forward_hook(add)
    with torch.no_grad():
        module(*args, **kwargs)
    return count
