"""What clients choose for their local models on samples that they hold out.

`watch` compares the scout with its best self after every round; `fit` decides when training stops,
fits a linear model, and weighs it against the network.
"""

from dataclasses import replace

import torch
from torch import Tensor

from commonweal.algorithms.algorithm import Group, Request
from commonweal.base.tensors import Tensors
from commonweal.clients._local_model import GRID, LocalTraining, posterior_mean
from commonweal.clients.blend import LIKELIHOODS
from commonweal.clients.choice import ChoiceClient
from commonweal.data.federation import Rows
from commonweal.training.choice import ALONE
from commonweal.training.client import Client
from commonweal.training.evaluation import evaluate_models, evaluate_rows_by_models
from commonweal.training.linear import STRENGTHS, fit_linear, has_linear, linear_outputs
from commonweal.training.task import Task
from commonweal.training.uses import Uses, mix_outputs, one_model
from commonweal.training.vectorize import single

__all__ = ["NOBODY_LEAVES", "choose", "evidence", "fit", "outputs_of", "watch"]


NOBODY_LEAVES = (
    "no client takes the global or the fine-tuned model; choosing needs validation samples: set "
    "validation = 0.2 where there are none"
)
SMALLEST = 1e-12  # mean loss of a model that is right on all samples


def watch(client: Client, task: Task, request: Request, group: Group, states: Tensors) -> Tensors:
    """The states (S, ...) with the best scouts so far, and the local models of the same round.

    Args:
        client: The method; those without local models have nothing to watch.
        task: What is trained.
        request: What was asked, with the round.
        group: The clients.
        states: Their states after a round.
    """
    if not isinstance(client, LocalTraining) or group.validation is None:
        return states
    round, rounds = (int(request.message[name]) for name in ("round", "rounds"))
    if request.purpose == "train" and round > client.scouted(rounds):
        return states
    held = group.validation.sizes[group.ids].nonzero().flatten()
    if not len(held):
        return states
    scouts = one_model(states["scout"][held])
    plain = replace(task, also=())
    losses = torch.full((len(group.ids), 1), torch.inf)
    evaluation = evaluate_models(plain, scouts, group.validation, group.ids[held], group.vectorize)
    losses[held, 0] = evaluation.losses.float()
    better = losses < states["best_loss"]
    now = {
        "best": states["scout"],
        "stopped": states[client.local],
        "best_loss": losses,
        "best_round": states["scout_rounds"],
    }
    return states | {n: torch.where(better, value, states[n]) for n, value in now.items()}


def fit(client: Client, task: Task, group: Group, states: Tensors) -> tuple[Tensors, list[Tensor]]:
    """The states (S, ...) of clients that have chosen their local models.

    Returns:
        The states, and the outputs (N, ...) of each client's local models for the samples that it
        holds out, as they were before these were trained on.
    """
    assert isinstance(client, LocalTraining)  # no other method asks for this
    assert group.validation is not None and group.everything is not None
    stops = (states["best_round"] > 0) & (states["best_round"] < states["scout_rounds"])
    linear, weights, outputs = [], [], []
    for k, i in enumerate(group.ids.tolist()):
        held = group.validation.client(i)
        network = outputs_of(task, states["best"][k], held)
        if not has_linear(task, group.rows):
            outputs.append(network)
            continue
        chosen, predicted = _linear(task, group.rows.client(i), held)
        both = torch.stack([network, predicted])
        weight = posterior_mean(evidence(task, both, _pairs(), held))
        linear.append(fit_linear(task, group.everything.client(i), chosen))
        weights.append(weight)
        outputs.append(mix_outputs(task.loss, both, torch.cat([1 - weight, weight])))
    states = states | {"stops": stops.float()}
    if linear:
        states |= {"linear": torch.stack(linear), "linear_weight": torch.stack(weights)}
    return states, outputs


def outputs_of(task: Task, w: Tensor, rows: Rows) -> Tensor:
    """What a model (d,) gives for all samples, on the CPU."""
    with torch.no_grad():
        return task.raw_outputs(w.to(rows.device), rows.inputs[:]).cpu()


def _linear(task: Task, rows: Rows, held: Rows) -> tuple[float, Tensor]:
    """The best strength of a linear model, and its outputs for the samples that are held out."""
    candidates = []
    for strength in STRENGTHS:
        outputs = linear_outputs(fit_linear(task, rows, strength), held.x.cpu())
        (loss,) = _loss_sums(task, outputs[None], torch.ones(1, 1), held)
        candidates.append((float(loss), strength, outputs))
    _, strength, outputs = min(candidates, key=lambda candidate: candidate[0])
    return strength, outputs


def _pairs() -> Tensor:
    """The weights (11, 2) of two models that are compared."""
    return torch.stack([1 - GRID, GRID], 1)


def evidence(task: Task, outputs: Tensor, weights: Tensor, rows: Rows) -> Tensor:
    """The negative log-likelihoods (G,) of mixtures on the samples of one client.

    A loss that is none, such as the squared error, is taken as the spread of a t-distribution: its
    scale is the mean loss of the first mixture, so that neither the unit of the labels nor a
    single client whose losses are large decides.

    Args:
        task: The task, with its loss.
        outputs: What each model gives for the samples (M, N, ...).
        weights: The weights of the models in the mixtures (G, M).
        rows: The samples.
    """
    sums = _loss_sums(task, outputs, weights, rows)
    if task.loss in LIKELIHOODS or len(rows.y) == 0:
        return sums
    scale = (sums[0] / len(rows.y)).clamp(min=SMALLEST)
    return len(rows.y) / 2 * torch.log1p(sums / scale)


def _loss_sums(task: Task, outputs: Tensor, weights: Tensor, rows: Rows) -> Tensor:
    """The sums (G,) of the losses of mixtures over the samples of one client."""
    count = len(rows.y)
    if count == 0:
        return torch.zeros(len(weights))
    plain = replace(task, also=())
    sums = []
    for own in weights:
        losses, _ = plain.row_results(mix_outputs(task.loss, outputs, own), rows.y.cpu())
        sums.append(count * plain.mean_losses(losses, torch.tensor([0, count])))
    return torch.cat(sums).float()


def choose(
    client: Client, task: Task, message: Tensors, group: Group, states: Tensors
) -> tuple[Tensor, Tensors]:
    """Let clients choose among their models on validation samples that none was trained on.

    Returns:
        What each client takes, as one-hot rows (S, 3), and the states (S, ...) with it.
    """
    assert isinstance(client, ChoiceClient)  # no other method asks for this
    taken = torch.zeros(len(group.ids), len(client.candidates))
    if group.reserved is None:  # there is nothing to choose on
        taken[:, client.candidates.index(ALONE)] = 1.0
        return taken, states | {"taken": taken}
    for k, i in enumerate(group.ids.tolist()):
        own = {name: value[k] for name, value in states.items()}
        rows = group.reserved.client(i)
        evaluated = {
            name: _by_sample(task, client.uses_of(name, message, own), rows)
            for name in client.candidates
        }
        taken[k, client.candidates.index(client.choose(task, evaluated))] = 1.0
    return taken, states | {"taken": taken}


def _by_sample(task: Task, uses: Uses, rows: Rows) -> Tensor:
    """The loss and the main score (N, 2) of every sample by what a client uses."""
    stacked = Uses(*(value[None] for value in uses))
    losses, stats = evaluate_rows_by_models(task, stacked, rows, torch.tensor([0]), single)
    return torch.stack([losses.double(), stats[task.score][:, 0].double()], 1)
