"""Models that a client uses: one or several with weights, whose predictions are mixed."""

from collections.abc import Callable
from copy import deepcopy
from typing import NamedTuple

import torch
from torch import Tensor, nn

from commonweal.base.tensors import Tensors
from commonweal.task.members import member_module
from commonweal.task.modules import copied, fill
from commonweal.task.own import Pick, pick_outputs
from commonweal.task.task import Task

CLASSES = ("cross-entropy", "binary")  # losses of outputs that can be recalibrated
LOG_PROBABILITIES = (
    "cross-entropy",
    "tokens",
    "causal",
)  # losses of outputs that are logits of classes
NO_OTHERS: Tensors = {}


class Uses(NamedTuple):
    """The models that a client predicts with. `mix_outputs` says how predictions are mixed.

    Attributes:
        models: The parameter vectors (M, d).
        weights: The weights, at least 0 and with sum 1: of the models (M,), then of the others.
        others: Models of other kinds in addition, each a vector, by kind (`task/members.py`).
        calibration: The "intercept" and "slope" by which log odds of classes are corrected.
    """

    models: Tensor
    weights: Tensor
    others: Tensors = NO_OTHERS
    calibration: Tensors = NO_OTHERS

    def map(self, change: Callable[[Tensor], Tensor]) -> "Uses":
        """The same with all tensors changed, as by giving them an axis of clients."""
        others = {kind: change(vector) for kind, vector in self.others.items()}
        calibration = {name: change(value) for name, value in self.calibration.items()}
        return Uses(change(self.models), change(self.weights), others, calibration)


def one_model(w: Tensor) -> Uses:
    """One model (d,), or one of each client of a group (S, d)."""
    group = w.shape[:-1]
    return Uses(w[..., None, :], w.new_ones(*group, 1))


def mix_outputs(loss: str, outputs: Tensor, weights: Tensor) -> Tensor:
    """The outputs of a mixture of models, which loss and scores take as those of one model.

    Probabilities of classes are mixed, and returned as their logits. Values of a regression are
    mixed as they are. So are log-risks of Cox's model: each is known up to a constant, which a
    mixture of log-risks leaves one, and a mixture of risks would not.

    Args:
        loss: The task's loss.
        outputs: What the models give (M, ...).
        weights: The weights of the models (M,), or with further axes of `outputs`, (M, S, ...).

    >>> outputs = torch.tensor([[[0.0, 0.0]], [[20.0, -20.0]]])  # half and half; the first class
    >>> mix_outputs("cross-entropy", outputs, torch.tensor([0.5, 0.5])).softmax(-1)
    tensor([[0.7500, 0.2500]])
    """
    for _ in range(outputs.ndim - weights.ndim):
        weights = weights[..., None]
    if loss in LOG_PROBABILITIES:
        return (outputs.log_softmax(-1) + weights.log()).logsumexp(0)
    if loss == "binary":
        positive = nn.functional.logsigmoid(outputs) + weights.log()
        negative = nn.functional.logsigmoid(-outputs) + weights.log()
        return positive.logsumexp(0) - negative.logsumexp(0)
    return (outputs * weights).sum(0)


def partner_weights(task: Task, uses: Uses) -> Tensor | None:
    """The weight (S,) of what each client does not train itself; None: it uses one kind of model.

    uses: has a client axis (S, ...); the first network is the client's own
    """
    first, models = int(task.is_network), uses.models.shape[-2]
    if models == first or uses.weights.shape[-1] == 1:
        return None
    return uses.weights[..., first:models].sum(-1)


def recalibrated(outputs: Tensor, calibration: Tensors) -> Tensor:
    """The outputs (..., k) of classes after a correction; the same ones without any.

    Two classes have corrected log odds, intercept + slope * log odds. With more classes the logits
    are multiplied by the slope.

    >>> line = {"intercept": torch.tensor(1.0), "slope": torch.tensor(2.0)}
    >>> recalibrated(torch.tensor([[0.5]]), line)
    tensor([[2.]])
    """
    if not calibration:
        return outputs
    intercept, slope = calibration["intercept"], calibration["slope"]
    for _ in range(outputs.ndim - slope.ndim):
        intercept, slope = intercept[..., None], slope[..., None]
    corrected = slope * outputs
    if outputs.shape[-1] > 2:
        return corrected
    return torch.cat([corrected[..., :-1], corrected[..., -1:] + intercept], -1)


class CalibratedModule(nn.Module):
    """A module whose outputs of classes are corrected."""

    intercept: Tensor
    slope: Tensor

    def __init__(self, module: nn.Module, calibration: Tensors, pick: Pick | None = None) -> None:
        super().__init__()
        self.module = module
        self.pick = pick
        for name, value in calibration.items():
            self.register_buffer(name, value)

    def forward(self, *x: Tensor, **named: Tensor) -> Tensor:
        line = {"intercept": self.intercept, "slope": self.slope}
        return recalibrated(pick_outputs(self.module(*x, **named), self.pick), line)


class MixedModule(nn.Module):
    """The modules of several models as one, whose predictions are mixed."""

    weights: Tensor

    def __init__(
        self, modules: list[nn.Module], weights: Tensor, loss: str, pick: Pick | None = None
    ) -> None:
        super().__init__()
        self.members = nn.ModuleList(modules)
        self.register_buffer("weights", weights)
        self.loss = loss
        self.pick = pick

    def forward(self, *x: Tensor, **named: Tensor) -> Tensor:
        outputs = [pick_outputs(member(*x, **named), self.pick) for member in self.members]
        return mix_outputs(self.loss, torch.stack(outputs), self.weights)


def mixed_module(task: Task, module: nn.Module, uses: Uses) -> nn.Module:
    """Return the models of a client as one module in evaluation mode, from copies of `module`."""
    # A model of weight 0 has no part in a prediction: it is left out.
    chosen = [k for k, weight in enumerate(uses.weights.tolist()) if weight > 0]
    others = list(uses.others.items())
    members: list[nn.Module] = []
    module = deepcopy(module)  # its frozen part once for all members
    for k in chosen:
        if k >= len(uses.models):
            members.append(member_module(*others[k - len(uses.models)]))
            continue
        member = copied(module).eval()
        fill(member, task.tensors(uses.models[k]))
        members.append(member)
    mixed, pick = members[0], task.output
    if len(members) > 1:
        mixed, pick = MixedModule(members, uses.weights[chosen], task.loss, pick), None
    if uses.calibration:
        mixed = CalibratedModule(mixed, uses.calibration, pick)
    return mixed.eval()
