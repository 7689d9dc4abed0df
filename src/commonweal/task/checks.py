"""Checks of what a task is made of: its arguments and its module."""

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from commonweal.base.arguments import expect, expect_callable, expect_names
from commonweal.base.errors import ConfigError
from commonweal.task.modules import BATCHNORM

PRECISIONS = ("float32", "bfloat16")
OLD_HOOKS = {"WeightNorm": "weight_norm", "SpectralNorm": "spectral_norm"}


def check_arguments(
    module: object,
    loss: object,
    score: object,
    also: object,
    target: tuple[float, float] | None,
    output: object,
    lower_is_better: object,
    class_weight: tuple[float, ...] | None,
    precision: object,
    counted: object,
    batch_memory: float,
    **_: object,
) -> None:
    expect("module", module, nn.Module, "a torch.nn.Module")
    for key, function in (("loss", loss), ("score", score)):
        if isinstance(function, type):
            raise ConfigError(f"{key} = {function!r} is a class: give {function.__name__}()")
        if not isinstance(function, str):
            expect_callable(key, function, f"the name of a {key}, or a function")
        if isinstance(function, nn.Module):
            for name, value in function.named_parameters():
                if value.requires_grad:
                    raise ConfigError(
                        f"the {key} {type(function).__name__} has parameters ({name}), which would "
                        "not be trained: make them part of the module, or freeze them by "
                        "requires_grad_(False)"
                    )
    expect_names("also", also)
    if target is not None:
        expect("target", target, tuple, "(mean, deviation)")
        is_pair = len(target) == 2 and all(isinstance(item, int | float) for item in target)
        if not is_pair or not target[1] > 0:
            raise ConfigError(f"target = {target!r}: give (mean, deviation), with deviation > 0")
    expect("class_weight", class_weight, list | tuple | None, "a number for each class")
    for weight in class_weight or ():
        expect("class_weight", weight, int | float, "a number for each class")
    if precision not in PRECISIONS:
        raise ConfigError(f"precision = {precision!r}: give one of {', '.join(PRECISIONS)}")
    expect("batch_memory", batch_memory, int | float, "a number of MB")
    if not batch_memory > 0:
        raise ConfigError(f"batch_memory = {batch_memory}: give a number of MB above 0")
    expect("lower_is_better", lower_is_better, bool, "True or False")
    if counted is not None:
        expect_callable("counted", counted, "a function from labels to which positions count")
    if output is not None:
        expect_callable("output", output, "a function that picks the outputs")


def check_module(module: nn.Module) -> None:
    """Raise ConfigError where a module cannot be trained."""
    kind = type(module).__name__
    for part in module.modules():
        if isinstance(part, nn.DataParallel | nn.parallel.DistributedDataParallel):
            raise ConfigError(
                f"{type(part).__name__} divides batches between devices, which commonweal does "
                "itself: give the module inside it, Task(module.module)"
            )
        for hook in part._forward_pre_hooks.values():
            name = type(hook).__name__
            if name in OLD_HOOKS:
                raise ConfigError(
                    f"a layer of {kind} uses torch.nn.utils.{OLD_HOOKS[name]}, which torch has "
                    f"deprecated: use torch.nn.utils.parametrizations.{OLD_HOOKS[name]}"
                )
    if not any(p.requires_grad for p in module.parameters()):
        raise ConfigError(f"{kind} has no parameter to train")
    for name, p in module.named_parameters():
        if isinstance(p, UninitializedParameter) or p.is_meta:
            raise ConfigError(
                f"{name} of {kind} has no values yet: call the module once with a batch, or "
                "build it on the CPU"
            )
    for name, p in module.named_parameters():
        if p.requires_grad and p.dtype != torch.float32:
            raise ConfigError(
                f"{name} of {kind} is {p.dtype}: models are trained in float32; call module.float()"
            )
    for part in module.modules():
        if isinstance(part, BATCHNORM) and part.running_mean is None:
            raise ConfigError(
                f"{type(part).__name__} has no running statistics to evaluate with: "
                "set track_running_stats=True"
            )
