"""glm: the regression of all clients' pooled rows, by Newton steps on summed derivatives.

Wu, Jiang, Kim and Ohno-Machado, Grid Binary LOgistic REgression (GLORE), JAMIA 2012. In a round
every client replies with the gradient and the information matrix of its log-likelihood: sums over
clients are those of the pooled rows, so that coefficients and standard errors are, too. Cox's
likelihood is stratified: each client has a baseline hazard of its own.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from commonweal.base.errors import ConfigError
from commonweal.base.tensors import State, Tensors
from commonweal.data.population import Population
from commonweal.data.rows import Rows
from commonweal.protocols.algorithm import (
    Algorithm,
    Conversation,
    Group,
    Outcome,
    Request,
    Sample,
    unchanged,
)
from commonweal.task.regression import FAMILIES, derivatives
from commonweal.task.task import Task
from commonweal.training.client_state import ClientState

DEPENDENT = 1e-9  # the rest of a column's information, below which others determine it


@dataclass(frozen=True, eq=False)
class GLM(Algorithm):
    """beta <- beta + (sum_k I_k)^-1 sum_k g_k, halved where the likelihood falls

    All clients are asked in every round; some ten rounds are enough. The coefficients of columns
    that others determine, such as the last level of a category, stay 0: they are the reference.
    `commonweal estimates RUN` has standard errors, intervals and the heterogeneity of clients
    """

    task: Task
    population: Population

    client = None
    together: ClassVar[bool] = True

    def __post_init__(self) -> None:
        task = self.task
        if task.own_loss is not None or task.loss not in FAMILIES:
            known = ", ".join(FAMILIES)
            raise ConfigError(f"glm has no likelihood of the loss {task.loss!r}, only of {known}")
        if task.class_weight is not None:
            raise ConfigError("glm estimates probabilities of the pooled rows: no class_weight")
        if self._linear is None:
            kind = type(task.module).__name__
            raise ConfigError(f"glm has linear predictors, but the model is a {kind}: 'logistic'")
        if self._linear.out_features > 2:
            raise ConfigError(f"glm has two classes, but there are {self._linear.out_features}")

    @property
    def _linear(self) -> "nn.Linear | None":
        layers = [layer for layer in self.task.module.modules() if isinstance(layer, nn.Linear)]
        own = sum(p.numel() for layer in layers for p in layer.parameters())
        return layers[0] if len(layers) == 1 and own == self.task.size else None

    # The server

    def init(self, population: Population) -> State:
        size = math.prod(population.shape) + 1
        clients = population.clients
        beta = torch.zeros(size, dtype=torch.float64)
        if self.task.loss == "poisson" and self.task.target is not None:
            beta[0] = self.task.target[0]
        return {
            "round": torch.tensor(1),
            "w": self.vector(beta),
            "beta": beta,  # the intercept first
            "step": torch.zeros_like(beta),  # that led to beta
            "value": torch.tensor(-torch.inf, dtype=torch.float64),  # before that step
            "used": torch.zeros(size, dtype=torch.bool),  # columns that no others determine
            "sizes": torch.zeros(clients),
            "values": torch.zeros(clients, dtype=torch.float64),
            "gradients": torch.zeros(clients, size, dtype=torch.float64),
            "informations": torch.zeros(clients, size, size, dtype=torch.float64),
        }

    def round(self, state: State, sample: Sample) -> Conversation:
        everyone = torch.arange(sample.population.clients)
        message = {"round": state["round"], "beta": state["beta"]}
        replies = (yield Request(everyone, message, "derivatives")).finite()
        if len(replies.clients) == 0:
            return unchanged(state, replies)
        sizes = torch.zeros_like(state["sizes"])
        sizes[replies.clients] = replies.values["size"].float()
        following = state | {"round": state["round"] + 1, "sizes": sizes}
        for name in ("values", "gradients", "informations"):
            table = torch.zeros_like(state[name])
            table[replies.clients] = replies.values[name]
            following[name] = table
        is_same = torch.equal(sizes > 0, state["sizes"] > 0)
        value = following["values"].sum()
        if not state["used"].any():
            following["used"] = independent(following["informations"].sum(0))
        if is_same and value < state["value"] - 1e-9 * state["value"].abs():
            step = state["step"] / 2
            moved = state["beta"] - step
        else:
            step = newton_step(following)
            moved = state["beta"] + step
            following["value"] = value
        following |= {"beta": moved, "step": step, "w": self.vector(moved)}
        weights = sizes[replies.clients].double()
        return Outcome(following, replies.clients, weights / weights.sum(), replies.failed)

    def vector(self, beta: Tensor) -> Tensor:
        """The model (d,) with these coefficients, which are in units of the labels."""
        target = self.task.target
        own = beta.clone()
        if target is not None:
            own[0] -= target[0]
            own /= target[1]
        linear = self._linear
        assert linear is not None
        weight = torch.zeros(linear.out_features, linear.in_features, dtype=torch.float64)
        weight[-1] = own[1:]
        tensors = {}
        for name, piece in self.task.tensors(self.task.initial).items():
            if piece.ndim == 2:
                tensors[name] = weight.float()
            else:
                bias = torch.zeros(linear.out_features)
                bias[-1] = own[0]
                tensors[name] = bias
        return self.task.vector(tensors)

    def model(self, state: State) -> Tensor:
        w: Tensor = state["w"]
        return w

    # The clients

    def answer(self, request: Request, group: Group) -> tuple[Tensors, ClientState]:
        parts = [
            derivatives(self.task.loss, *self.design(group.rows.client(k)), request.message["beta"])
            for k in group.ids.tolist()
        ]
        values, gradients, informations = (torch.stack(part) for part in zip(*parts, strict=True))
        size = group.rows.sizes[group.ids]
        replies = {"values": values, "gradients": gradients, "informations": informations}
        return {"size": size} | replies, group.states

    def design(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """The columns (n, p) of a client's rows with a first one of ones, and its labels."""
        x = self.task.ready_tensor(rows.x).flatten(1).double().cpu()
        y = rows.y.double().cpu()
        if self.task.log_target and self.task.loss == "squared":
            y = y.log()
        return torch.cat([torch.ones(len(x), 1, dtype=torch.float64), x], 1), y


def newton_step(state: State) -> Tensor:
    """The solution of (sum of informations) step = sum of gradients, 0 for the reference."""
    used = state["used"]
    information = state["informations"].sum(0)[used][:, used]
    step = torch.zeros_like(state["beta"])
    step[used] = torch.linalg.lstsq(
        information, state["gradients"].sum(0)[used][:, None], driver="gelsd"
    ).solution[:, 0]
    return step


def independent(information: Tensor) -> Tensor:
    """Return which columns (p,) those before them do not determine."""
    used: list[int] = []
    for k in range(len(information)):
        own = information[k, k]
        rest = own
        if used:
            with_others = information[k, used]
            among_others = information[used][:, used]
            rest = own - with_others @ torch.linalg.solve(among_others, with_others)
        if own > 0 and rest > DEPENDENT * own:
            used.append(k)
    mask = torch.zeros(len(information), dtype=torch.bool)
    mask[used] = True
    return mask


ENTRIES = {"glm": GLM}
