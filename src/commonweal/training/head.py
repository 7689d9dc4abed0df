"""The last layers of a model as a task of their own, on what the layers below give for samples.

Where a phase trains no others, the layers below are run once for each sample.
"""

from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor, nn

from commonweal.data.rows import Rows
from commonweal.task.memory_format import channels_last
from commonweal.task.task import Task
from commonweal.training.batches import BatchSchedule
from commonweal.training.evaluation import passes


@lru_cache(maxsize=16)
def divided(task: Task, mask: Tensor) -> tuple[Task, Task] | None:
    """Divide a stack at the first layer that a mask (d,) has; None: it is not such a stack.

    Remembered by the tensor, not by its values: masks are never changed.
    """
    module = task.module
    if type(module) is not nn.Sequential or task.output is not None:
        return None
    if module._forward_hooks or module._forward_pre_hooks:
        return None
    begin = int((~mask).sum())  # of the part that is trained
    if begin == 0 or mask[:begin].any():
        return None
    parameters = 0
    first: int | None = None  # the layer that begins there
    for k, layer in enumerate(module):
        if parameters == begin:
            first = k
        parameters += sum(value.numel() for value in layer.parameters())
    if first is None or task.size != parameters:  # buffers, or parameters that are not trained
        return None
    return Task(module[:first]), task.replace(module=module[first:])


def rows_above(body: Task, w: Tensor, rows: Rows, plan: BatchSchedule) -> Rows:
    """The outputs of a body (d,) for the samples of a schedule's clients, in its order."""
    offsets = np.append(0, plan.sizes.cumsum())
    shift = np.repeat(plan.first_row - offsets[:-1], plan.sizes)
    index = torch.from_numpy(shift + np.arange(offsets[-1])).to(rows.device)
    body = channels_last(body, rows.inputs)
    outputs = []
    with torch.no_grad():
        for part in passes(body, rows, len(index)):
            outputs.append(body.raw_outputs(w, rows.inputs[index[part]]))
    x = torch.cat(outputs)
    return replace(rows, inputs=x, y=rows.y[index], offsets=torch.from_numpy(offsets), numbers=None)
