"""Images with their channels last in memory, where a model is run for one client at a time.

Speed lives here: torch's max pooling on the CPU is ten times faster so, and a forward pass of the
model `cnn` takes half the time. The numbers are the same up to rounding.
"""

from copy import deepcopy
from functools import lru_cache

import torch
from torch import Tensor, nn

from commonweal.base.generator import shared_generator
from commonweal.data.samples import Inputs
from commonweal.task.task import Task


class ChannelsLast(Task):
    """A task whose module is given images with their channels last in memory."""

    def ready_tensor(self, x: Tensor) -> Tensor:
        return super().ready_tensor(x).to(memory_format=torch.channels_last)


def channels_last(task: Task, x: Inputs) -> Task:
    """The task with its images' channels last, if its module gains by it and takes them so."""
    if not isinstance(x, Tensor) or x.ndim != 4 or x.device.type != "cpu":
        return task
    return _faster(task, x.shape[1:], x.dtype)


@lru_cache(maxsize=16)
def _faster(task: Task, shape: torch.Size, dtype: torch.dtype) -> Task:
    if not any(isinstance(layer, nn.MaxPool2d) for layer in task.module.modules()):
        return task
    faster = ChannelsLast(**task._given)
    rows = faster.ready_tensor(torch.zeros(2, *shape, dtype=dtype))
    try:
        with torch.no_grad(), shared_generator():
            deepcopy(task.module).train()(rows)
            deepcopy(task.module).eval()(rows)
    except RuntimeError:  # a forward may use `view`, which needs channels first
        return task
    return faster
