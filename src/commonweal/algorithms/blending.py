"""How clients learn the weights with which they mix predictions: two requests after a round.

First every client compares mixtures on its validation samples and replies with the sums of their
losses. Then it receives the sums over all clients, and learns its own weight from both.
"""

import torch
from torch import Tensor

from commonweal.algorithms.algorithm import Group, Replies
from commonweal.base.tensors import Tensors
from commonweal.clients.blend import LIKELIHOODS, Blend
from commonweal.data.federation import Rows
from commonweal.training.client import Client
from commonweal.training.evaluation import evaluate_models
from commonweal.training.task import Task

__all__ = ["NO_VALIDATION", "compare", "everyone", "weigh"]

NO_VALIDATION = (
    "no client has validation samples: predictions are mixed with fixed weights; set "
    "validation = 0.2 to learn them"
)


def compare(
    client: Client, task: Task, message: Tensors, group: Group, states: Tensors
) -> tuple[Tensors, Tensors]:
    """Reply with the sums of the losses (S, 11) of mixtures over validation samples.

    Args:
        client: The method.
        task: What is trained.
        message: What the server sent, with the model "w".
        group: The clients.
        states: The method's states after training on the other samples.
    """
    assert isinstance(client, Blend)  # no other method asks for this
    count = len(group.ids)
    losses = torch.zeros(count, states["losses"].shape[-1])
    samples = torch.zeros(count)
    if group.validation is not None:
        samples = group.validation.sizes[group.ids].float()
        validated = samples.nonzero().flatten()
        if len(validated):
            own = {name: value[validated] for name, value in states.items()}
            sums = _sums(client, task, message, group, own, group.ids[validated], group.validation)
            losses = losses.index_copy(0, validated, sums)
    return {"sums": losses, "samples": samples}, states | {"losses": losses}


def _sums(
    client: Blend,
    task: Task,
    message: Tensors,
    group: Group,
    states: Tensors,
    ids: Tensor,
    validation: Rows,
) -> Tensor:
    mixtures = torch.vmap(lambda state: client.mixtures(message, state))(states)
    columns = []
    for uses in mixtures:
        evaluation = evaluate_models(task, uses, validation, ids, group.vectorize)
        columns.append(evaluation.losses * validation.sizes[ids])
    return torch.stack(columns, 1).float()


def everyone(replies: Replies, task: Task) -> Tensors | None:
    """What all clients' losses say about the weights; None without validation samples.

    Losses that are no log-likelihoods are divided by twice the local models' mean loss, as for a
    normal distribution with that variance.
    """
    if len(replies.clients) == 0:
        return None
    usable = torch.isfinite(replies.values["sums"]).all(1)
    samples = replies.values["samples"][usable].sum()
    if samples == 0:
        return None
    mean = replies.values["sums"][usable].sum(0) / samples
    scale = torch.ones(())
    if task.loss not in LIKELIHOODS and mean[0] > 0:
        scale = 2 * mean[0]
    return {"everyone": mean, "scale": scale}


def weigh(client: Client, message: Tensors, states: Tensors) -> Tensors:
    """The method's states (S, ...) of clients that have learned their weights."""
    assert isinstance(client, Blend)  # no other method asks for this
    return states | client.learned(states, message["everyone"], message["scale"])
