"""recalibrate: local SGD for one model for all, whose probabilities every client corrects.

Cox, Two Further Applications of a Model for Binary Regression, Biometrika 1958; Steyerberg,
Clinical Prediction Models, 2009, on updating a model for a new hospital. After the last round each
client fits an intercept and a slope of the global model's log odds. Its ranking of samples, and
with it the AUROC, stays as it is.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from commonweal.base.errors import ConfigError
from commonweal.base.tensors import Tensors
from commonweal.data.rows import Rows
from commonweal.task.task import Task
from commonweal.task.uses import CLASSES, Uses, recalibrated
from commonweal.training.ask import Ask
from commonweal.training.client import Client, Notes, Requests, ToAll, at_least

INTERCEPTS = torch.linspace(-3, 3, 49)
SLOPES = torch.logspace(-2, 2, 17, base=2.0)
NOT_HELD_OUT = (
    "no client has validation samples: probabilities are not recalibrated; set validation = 0.2, "
    "or client.samples = 'all'"
)


@dataclass(frozen=True)
class Recalibrate(Client):
    """loss(w_i) in every round, as sgd; then log odds are intercept_i + slope_i * log odds

    After the last round each client compares lines on a grid (intercepts from -3 to 3, slopes from
    1/4 to 4) and keeps the mean line under exp(-(its losses + prior times everyone's mean losses)).
    Only sums over clients are used by the server. With more than two classes there is a slope only

    samples: those that lines are compared on: "validation", or "all" with the training samples,
        which a client with few samples needs: its part in a model for all is small
    prior: how many samples everyone's losses are worth
    Before the last round, and after an early stop, clients use the global model. The others are
    those of sgd
    """

    personalizes = True
    plans_rounds = True

    samples: Literal["validation", "all"] = "validation"
    prior: float = 20.0

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, prior=0)
        if self.samples not in ("validation", "all"):
            raise ConfigError(f"client samples = {self.samples!r}: give 'validation' or 'all'")

    def check(self, task: Task, rounds: int) -> None:
        if task.loss not in CLASSES:
            raise ConfigError(
                f"client 'recalibrate' corrects probabilities of classes, but the loss is "
                f"{task.loss!r}: choose another client method"
            )

    def after(self, round: int, rounds: int) -> Requests:
        if round < rounds:
            return Notes()
        replies = yield ToAll("compare")
        usable = torch.isfinite(replies["sums"]).flatten(1).all(1) if replies else torch.zeros(0)
        if not replies or not replies["count"][usable].sum() > 0:
            return Notes(warnings=(NOT_HELD_OUT,))
        mean = replies["sums"][usable].sum(0) / replies["count"][usable].sum()
        yield ToAll("recalibrate", {"everyone": mean}, silent=True)
        return Notes()

    def answer(self, ask: Ask) -> tuple[Tensors, Tensors]:
        if ask.purpose == "compare":
            return self.compared(ask)
        if ask.purpose == "recalibrate":
            losses = ask.states["losses"] + self.prior * ask.message["everyone"]
            return {"size": ask.sizes}, ask.states | mean_line(losses)
        return super().answer(ask)

    def compared(self, ask: Ask) -> tuple[Tensors, Tensors]:
        """Reply with the sums (S, 49, 17) of the losses of lines over each client's samples."""
        rows = ask.samples.everything if self.samples == "all" else ask.samples.validation
        losses = torch.zeros(len(ask.ids), len(INTERCEPTS), len(SLOPES))
        count = torch.zeros(len(ask.ids))
        if rows is not None:
            count = rows.sizes[ask.ids].float()
            for k, own in enumerate(ask.of_each(rows)):
                outputs = ask.outputs(ask.message["w"], own)
                losses[k] = line_losses(ask.task, outputs, own)
        return {"size": ask.sizes, "sums": losses, "count": count}, ask.states | {"losses": losses}

    def init_client(self, task: Task, seed: int) -> Tensors:
        return {
            "intercept": torch.zeros(()),
            "slope": torch.ones(()),
            "losses": torch.zeros(len(INTERCEPTS), len(SLOPES)),
        }

    def reply(
        self, task: Task, vectors: Tensors, message: Tensors, state: Tensors, steps: Tensor
    ) -> tuple[Tensors, Tensors]:
        return {}, state

    def uses(self, task: Task, message: Tensors, state: Tensors) -> Uses:
        line = {"intercept": state["intercept"], "slope": state["slope"]}
        w = message["w"]
        return Uses(w[None], w.new_ones(1), calibration=line)


def line_losses(task: Task, outputs: Tensor, rows: Rows) -> Tensor:
    """The negative log-likelihoods (49, 17) of a client's samples by each line."""
    losses = torch.zeros(len(INTERCEPTS), len(SLOPES))
    if outputs.shape[-1] == 1:
        outputs = torch.cat([torch.zeros_like(outputs), outputs], -1)
    labels = rows.y.cpu().long()
    for k, slope in enumerate(SLOPES):
        line = {"intercept": INTERCEPTS, "slope": slope.expand(len(INTERCEPTS))}
        logits = recalibrated(outputs.expand(len(INTERCEPTS), *outputs.shape), line)
        each = nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.repeat(len(INTERCEPTS)), reduction="none"
        )
        losses[:, k] = each.view(len(INTERCEPTS), -1).double().sum(1)
    return losses


def mean_line(losses: Tensor) -> Tensors:
    """The mean intercept and slope (...) of lines that are as likely as losses (..., 49, 17)."""
    likely = torch.softmax(-losses.double().flatten(-2), -1).view(losses.shape)
    intercept = (likely.sum(-1) * INTERCEPTS).sum(-1)
    slope = (likely.sum(-2) * SLOPES.log()).sum(-1).exp()
    return {"intercept": intercept.float(), "slope": slope.float()}


ENTRIES = {"recalibrate": Recalibrate}
