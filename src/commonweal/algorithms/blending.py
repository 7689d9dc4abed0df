"""How clients learn the weights with which they mix predictions: two requests after a round.

First every client compares mixtures on its validation samples and replies with the sums of their
losses. Then it receives the sums over all clients, and learns its own weight from both.
"""

import torch

from commonweal.algorithms.algorithm import Group, Replies
from commonweal.algorithms.local_fit import evidence, fit, outputs_of
from commonweal.base.tensors import Tensors
from commonweal.clients.blend import Blend
from commonweal.clients.local_model import GRID
from commonweal.training.client import Client
from commonweal.training.task import Task

NO_VALIDATION = (
    "no client has validation samples: predictions are mixed with fixed weights; set "
    "validation = 0.2 to learn them"
)


def compare(
    client: Client, task: Task, message: Tensors, group: Group, states: Tensors
) -> tuple[Tensors, Tensors]:
    """Reply with the sums of the losses (S, 11) of mixtures over validation samples.

    states: the method's states (S, ...) after training on the other samples
    """
    assert isinstance(client, Blend)  # no other method asks for this
    count = len(group.ids)
    losses = torch.zeros(count, len(GRID))
    samples = torch.zeros(count)
    if group.validation is not None:
        samples = group.validation.sizes[group.ids].float()
        states, local = fit(client, task, message, group, states)
        for k, i in enumerate(group.ids.tolist()):
            held = group.validation.client(i)
            own = {name: value[k] for name, value in states.items()}
            partners = client.partners(message, own)
            predicted = [outputs_of(task, w, held) for w in partners]
            shares = [GRID / len(partners)] * len(partners)
            weights = torch.stack([1 - GRID, *shares], 1)
            outputs = torch.stack([local[k], *predicted])
            losses[k] = evidence(task, outputs, weights, held)
    return {"sums": losses, "samples": samples}, states | {"losses": losses}


def everyone(replies: Replies) -> Tensors | None:
    """What all clients' losses say about the weights; None without validation samples."""
    if len(replies.clients) == 0:
        return None
    usable = torch.isfinite(replies.values["sums"]).all(1)
    samples = replies.values["samples"][usable].sum()
    if samples == 0:
        return None
    return {"everyone": replies.values["sums"][usable].sum(0) / samples}


def weigh(client: Client, message: Tensors, states: Tensors) -> Tensors:
    """The method's states (S, ...) of clients that have learned their weights."""
    assert isinstance(client, Blend)  # no other method asks for this
    return states | client.learned(states, message["everyone"])
