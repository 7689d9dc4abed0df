"""What clients of a private round do after training, wherever they run."""

from typing import NamedTuple

import torch
from torch import Tensor

from commonweal.base.tensors import Tensors
from commonweal.privacy.form import PrivateForm
from commonweal.privacy.release import Contribution, contribute


class Asked(NamedTuple):
    """What clients receive with the model."""

    public: Tensors  # numbers of the form
    clip: float
    adapts: bool  # whether the clip bound follows a quantile, for which clients send a bit


def weigh(
    form: PrivateForm, updates: Tensor, losses: Tensor, memory: Tensors, asked: Asked
) -> tuple[Contribution, Tensors]:
    """Return what clients send, bounded, and what they remember.

    Args:
        form: How they weigh themselves.
        updates: (S, d), without what stays at the client.
        losses: (S,) of the received model.
        memory: (S, ...) of each client.
        asked: What the server sent.
    """
    weighed = form.weigh(losses.double().clamp(0, form.bound), memory, asked.public)
    statistics = weighed.statistics
    if asked.adapts:
        fits = torch.linalg.vector_norm(updates, dim=1, dtype=torch.float64) <= asked.clip
        statistics = torch.cat([statistics, fits.double()[:, None] - 0.5], 1)
    most = form.most(asked.public)
    sent = contribute(updates, weighed.weights, statistics, asked.clip, most)
    following = {}
    for name, value in weighed.memory.items():
        following[name] = torch.where(sent.usable & value.isfinite(), value, memory[name])
    return sent, following
