"""What clients choose for their local models on samples that they hold out.

`watch` compares the local model with its best self after every round; `fit` decides when training
stops, fits a linear model, and weighs it against the network.
"""

import torch
from torch import Tensor

from commonweal.algorithms.algorithm import Group, Request
from commonweal.base.tensors import Tensors
from commonweal.clients.blend import LIKELIHOODS
from commonweal.clients.choice import ChoiceClient
from commonweal.clients.local_model import FURTHER, GRID, LocalTraining, posterior_mean
from commonweal.data.rows import Rows
from commonweal.training.choice import ALONE
from commonweal.training.client import Client
from commonweal.training.evaluation import evaluate_models, evaluate_rows_by_models
from commonweal.training.linear import STRENGTHS, fit_linear, has_linear, linear_outputs
from commonweal.training.task import Task
from commonweal.training.uses import Uses, mix_outputs, one_model
from commonweal.training.vectorize import single

NOBODY_LEAVES = (
    "no client takes the global or the fine-tuned model; choosing needs validation samples: set "
    "validation = 0.2 where there are none"
)
PAIRS = torch.stack([1 - GRID, GRID], 1)  # (11, 2) weights of two models that are compared
SMALLEST = 1e-12  # mean loss of a model that is right on all samples


def watch(client: Client, task: Task, request: Request, group: Group, states: Tensors) -> Tensors:
    """The states (S, ...) after a round, with the best local models so far."""
    if not isinstance(client, LocalTraining) or group.validation is None:
        return states
    last_scouted = client.scouted(int(request.message["rounds"]))
    if request.purpose == "train" and int(request.message["round"]) > last_scouted:
        return states
    held = group.validation.sizes[group.ids].nonzero().flatten()
    if not len(held):
        return states
    uses = one_model(states[client.local][held])
    losses = torch.full((len(group.ids), 1), torch.inf)
    evaluation = evaluate_models(task, uses, group.validation, group.ids[held], group.vectorize)
    losses[held, 0] = evaluation.losses.float()
    better = losses < states["best_loss"]
    now = {
        "best": states[client.local],
        "best_loss": losses,
        "best_round": states[f"{client.local}_rounds"],
    }
    return states | {n: torch.where(better, value, states[n]) for n, value in now.items()}


def fit(
    client: Client, task: Task, message: Tensors, group: Group, states: Tensors
) -> tuple[Tensors, list[Tensor]]:
    """The states (S, ...) of clients that have chosen their local models.

    Returns:
        The states, and the outputs (N, ...) of each client's local models for the samples that it
        holds out, as they were before these were trained on.
    """
    assert isinstance(client, LocalTraining)  # no other method asks for this
    assert group.validation is not None and group.everything is not None
    best = states["best_round"]
    goes_on = best == states[f"{client.local}_rounds"]
    if client.scouted(int(message["rounds"])) == int(message["rounds"]):
        goes_on = torch.zeros_like(goes_on)  # no round is left for the samples that were held out
    linear, weights, outputs = [], [], []
    for k, i in enumerate(group.ids.tolist()):
        held = group.validation.client(i)
        network = outputs_of(task, states["best"][k], held)
        if not has_linear(task, group.rows):
            outputs.append(network)
            continue
        model, strength, predicted = _linear(task, group.rows.client(i), held)
        both = torch.stack([network, predicted])
        weight = posterior_mean(evidence(task, both, PAIRS, held))
        linear.append(fit_linear(task, group.everything.client(i), strength, model))
        weights.append(weight)
        outputs.append(mix_outputs(task.loss, both, torch.cat([1 - weight, weight])))
    states = states | {"stop": torch.where(goes_on, 0.0, (FURTHER * best).ceil())}
    if linear:
        states |= {"linear": torch.stack(linear), "linear_weight": torch.stack(weights)}
    return states, outputs


def outputs_of(task: Task, w: Tensor, rows: Rows) -> Tensor:
    """What a model (d,) gives for all samples, on the CPU."""
    with torch.no_grad():
        return task.raw_outputs(w.to(rows.device), rows.inputs[:]).cpu()


def _linear(task: Task, rows: Rows, held: Rows) -> tuple[Tensor, float, Tensor]:
    """The linear model (p,) of the strength after which the loss on what is held out grows.

    Returns:
        The model, its strength, and its outputs (N, ...) for what is held out.
    """
    x = task.ready_tensor(held.x.cpu())
    best: tuple[Tensor, float, Tensor] | None = None
    least = torch.inf
    for strength in STRENGTHS:
        model = fit_linear(task, rows, strength, None if best is None else best[0])
        outputs = linear_outputs(model, x)
        loss = float(_loss_sums(task, outputs[None], torch.ones(1, 1), held))
        if best is not None and not loss < least:
            break
        best = model, strength, outputs
        least = loss
    assert best is not None
    return best


def evidence(task: Task, outputs: Tensor, weights: Tensor, rows: Rows) -> Tensor:
    """The negative log-likelihoods (G,) of mixtures on the samples of one client.

    A loss that is none, such as the squared error, is taken as the spread of a t-distribution: its
    scale is the mean loss of the first mixture, so that neither the unit of the labels nor a
    single client whose losses are large decides.

    Args:
        outputs: What each model gives for the samples (M, N, ...).
        weights: The weights of the models in the mixtures (G, M).
    """
    sums = _loss_sums(task, outputs, weights, rows)
    if task.loss in LIKELIHOODS or len(rows.y) == 0:
        return sums
    scale = (sums[0] / len(rows.y)).clamp(min=SMALLEST)
    return len(rows.y) / 2 * torch.log1p(sums / scale)


def _loss_sums(task: Task, outputs: Tensor, weights: Tensor, rows: Rows) -> Tensor:
    """The sums (G,) of the losses of mixtures over the samples of one client."""
    count, mixtures = len(rows.y), len(weights)
    if count == 0:
        return torch.zeros(mixtures)
    mixed = mix_outputs(task.loss, outputs[:, None], weights.T)  # (G, N, ...)
    labels = torch.cat([rows.y.cpu()] * mixtures)
    losses, _ = task.row_results(mixed.flatten(0, 1), labels)
    offsets = count * torch.arange(mixtures + 1)
    return count * task.mean_losses(losses, offsets).float()


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
