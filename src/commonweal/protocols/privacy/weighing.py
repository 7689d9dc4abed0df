"""The part of a private round that clients do after training, wherever they run."""

from collections.abc import Mapping

import torch
from torch import Tensor

from commonweal.base.errors import DataError
from commonweal.base.tensors import Tensors
from commonweal.protocols.privacy.release import Contribution, contribute
from commonweal.rules.private_form import PrivateForm

PUBLIC = "public-"  # prefix of public numbers in a message
CLIP = "clip-bound"


def weigh(
    form: PrivateForm,
    updates: Tensor,
    losses: Tensor,
    memory: Tensors,
    message: Mapping[str, object],
    adapts: bool,
) -> tuple[Contribution, Tensors]:
    """Return what clients send, bounded, and what they remember.

    Args:
        form: How they weigh themselves.
        updates: (S, d), without what stays at the client.
        losses: (S,) of the received model.
        memory: (S, ...) of each client.
        message: What the server sent: public numbers of the form, and the clip bound.
        adapts: Whether the clip bound follows a quantile, for which clients send a bit.

    Raises:
        DataError: A loss is below 0, and the form uses losses.
    """
    if form.statistics and (losses < 0).any():
        raise DataError(
            f"private rounds bound losses between 0 and {form.bound:g}, but a loss is below 0: "
            'take the rule "fedavg" or "uniform", or a loss that is at least 0'
        )
    public = {}
    for name, value in message.items():
        if name.startswith(PUBLIC):
            public[name.removeprefix(PUBLIC)] = torch.as_tensor(value, dtype=torch.float64)
    clip = float(torch.as_tensor(message[CLIP], dtype=torch.float64))
    weighed = form.weigh(losses.double().clamp(0, form.bound), memory, public)
    statistics = weighed.statistics
    if adapts:
        fits = torch.linalg.vector_norm(updates, dim=1, dtype=torch.float64) <= clip
        statistics = torch.cat([statistics, fits.double()[:, None] - 0.5], 1)
    sent = contribute(updates, weighed.weights, statistics, clip, form.most(public))
    following = {}
    for name, value in weighed.memory.items():
        following[name] = torch.where(sent.usable & value.isfinite(), value, memory[name])
    return sent, following
