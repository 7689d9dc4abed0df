"""The interface of client methods, whose base class is plain local SGD; methods override a part.

Client code speaks of a single client. The simulator runs many clients at once by vmap; what is
random is drawn before, so that every engine computes the same numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from commonweal.base.errors import ConfigError
from commonweal.base.tensors import State, Tensors, merge, take
from commonweal.training.optimizers import adam_step, clip_gradients, sgd_step, step_decay
from commonweal.training.schedules import factor
from commonweal.training.task import Batch, Task

__all__ = ["PLAIN", "Client", "Line", "Term", "at_least", "squared_distance"]


class Term(NamedTuple):
    """What the loss of a vector v has beside that of the rows: pull/2 |v - anchor|^2 + <slope, v>.

    anchor, slope: (d,)
    """

    pull: float = 0.0
    anchor: Tensor | None = None
    slope: Tensor | None = None


PLAIN = Term()


class Line(NamedTuple):
    """The loss of the rows is taken at the point (1-m) w + m own between two trained vectors.

    m: (1,), or one per layer (layers,)
    both: whether it trains w and own, or own only and w is trained on the rows by itself
    angle: the factor of cos^2(w, own) in the loss
    learns: whether m moves, at the first step of a round, as `move_point` says
    """

    m: Tensor
    both: bool = True
    angle: float = 0.0
    learns: bool = False


@dataclass(frozen=True)
class Client:
    """Local SGD from the received model, over the client's own rows.

    epochs: passes over the rows, or a part of one (0.25: a quarter of its batches, rounded up)
    steps: a number of batches instead, the same for every client
    batch: rows per step (0: all of them); lr, momentum, weight_decay: as in torch.optim
    clip: the largest norm of a gradient; decay: lr is multiplied by it every `decay_every` rounds
    schedule: what lr is multiplied by in round t, a formula such as "1/t" or "0.99^(t-1)"
    optimizer: "sgd", "adam" or "adamw"; beta1, beta2: of Adam
    """

    epochs: int | float = 1
    steps: int | None = None
    batch: int = 20
    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None
    decay: float = 1.0
    decay_every: int = 1
    schedule: str | None = None
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    beta1: float = 0.9
    beta2: float = 0.999

    personalizes: ClassVar[bool] = False  # whether clients use a model of their own
    grid: ClassVar[Mapping[str, tuple[float | str, ...]]] = {}  # values tried in the publication

    # For speed. A class that overrides loss, step or descend has neither unless it says so.
    # plain_steps: whether loss and step are those of this class, with the method's own `terms`,
    #     `row_factors`, `line`, `move_point`, `active`, `inner_rate` and `after_batch`, which then
    #     also take groups
    # takes_groups: whether loss and step also take groups, with a leading client axis everywhere
    plain_steps: ClassVar[bool] = True
    takes_groups: ClassVar[bool] = True

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if vars(cls).keys() & {"loss", "step", "descend"}:
            cls.plain_steps = vars(cls).get("plain_steps", False)
            cls.takes_groups = vars(cls).get("takes_groups", False)

    def __post_init__(self) -> None:
        at_least(self, batch=0, decay_every=1, momentum=0, weight_decay=0)
        if self.momentum >= 1:
            raise ConfigError(f"client momentum = {self.momentum}: it must be below 1")
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1):
            betas = f"beta1 = {self.beta1}, beta2 = {self.beta2}"
            raise ConfigError(f"client {betas}: both must be at least 0 and below 1")
        if self.optimizer != "sgd" and self.momentum:
            raise ConfigError(
                f"client momentum = {self.momentum}: {self.optimizer} has beta1 instead; "
                "leave it at 0"
            )
        for name in ("epochs", "lr", "decay", "clip", "steps"):
            value = vars(self)[name]
            if value is not None and not value > 0:
                raise ConfigError(f"client {name} = {value}: it must be above 0")

    # What the method is

    def check(self, task: Task, rounds: int) -> None:
        """Raise ConfigError where the method cannot train this task in this many rounds."""

    def rate(self, round: int) -> float:
        """The learning rate of round 1, 2, ..."""
        return step_decay(self.lr, self.decay, self.decay_every, round) * factor(
            self.schedule, round
        )

    @property
    def total_epochs(self) -> float:
        """Passes over the rows per round, where `steps` is not set."""
        return self.epochs

    @property
    def steps_per_batch(self) -> int:
        """Gradient steps on every batch."""
        return 1

    def inner_rate(self, lr: float) -> float:
        """The learning rate of these steps."""
        return lr

    def after_batch(self, params: Tensors, lr: float) -> Tensors:
        """The vectors that the last of these steps moves in another way than by a gradient."""
        return {}

    def draws(self, task: Task) -> int:
        """Uniform random numbers that a step needs."""
        return 0

    def private_mask(self, task: Task) -> Tensor | None:
        """The coordinates (d,) of the model that never leave the client; None: there are none."""
        return None

    def active(self, task: Task, epoch: Tensor) -> Tensor | None:
        """The coordinates (d,) that steps of an epoch 0, 1, ... move; None: all of them."""
        return None

    # What the server keeps for the clients, and what a client keeps

    def init_shared(self, task: Task) -> Tensors:
        """What the server sends along with the model, before the first round."""
        return {}

    def update_shared(self, shared: Tensors, replies: Tensors, clients: int) -> Tensors:
        """The same after a round, from the replies that were used."""
        return shared

    def init_client(self, task: Task, seed: int) -> Tensors:
        """A client's state before its first round."""
        private = self.private_mask(task)
        return {} if private is None else {"private": take(task.initial, private)}

    # Training

    def start(self, task: Task, message: Tensors, state: Tensors) -> Tensors:
        """The vectors to train. `w` is the received model with the client's private part."""
        private = self.private_mask(task)
        w = message["w"]
        return {"w": w if private is None else merge(w, state["private"], private)}

    def trains_received(self, message: Tensors) -> bool:
        """Whether in this round `start` and `reply` do what they do in this class."""
        return type(self).start is Client.start and type(self).reply is Client.reply

    def terms(self, params: Tensors, message: Tensors, state: Tensors) -> dict[str, Term]:
        """The vectors that are trained on the rows, with what else their losses have."""
        return {"w": PLAIN}

    def line(self, task: Task, params: Tensors, message: Tensors, noise: Tensor) -> Line | None:
        """Where between w and own the loss of the rows is taken; None: at every vector itself."""
        return None

    def move_point(self, params: Tensors, grad: Tensor, lr: float) -> Tensors:
        """The vectors that move with the derivative (1,) of the loss by the m of a line."""
        return {}

    def row_factors(self, losses: Tensor, weight: Tensor) -> Tensor:
        """The derivatives (B,) of `loss` by the losses (B,) of a batch's rows."""
        return weight

    def loss(
        self,
        task: Task,
        params: Tensors,
        batch: Batch,
        message: Tensors,
        state: Tensors,
        noise: Tensor,
    ) -> tuple[Tensor, Tensors]:
        """The objective on a batch, and the updated buffers (BatchNorm) of each vector by name."""
        losses = []
        buffers: Tensors = {}
        for name, term in self.terms(params, message, state).items():
            v = params[name]
            loss, buffers[name] = task.batch_loss(v, batch)
            if term.anchor is not None:
                loss = loss + term.pull / 2 * squared_distance(task, v, term.anchor)
            if term.slope is not None:
                loss = loss + (term.slope * task.trainable(v)).sum(-1)
            losses.append(loss)
        return sum(losses[1:], losses[0]), buffers

    def step(
        self,
        task: Task,
        params: Tensors,
        grads: Tensors,
        opt_state: State,
        lr: float,
        epoch: Tensor,
        last: bool,
    ) -> tuple[Tensors, State]:
        """One gradient step in the active coordinates. Buffers are written afterwards.

        opt_state: empty at the first step of a round; epoch: passes finished, a scalar;
        last: whether this is the last of `steps_per_batch` on the same batch
        """
        active = self.active(task, epoch)
        if active is None:
            return self.descend(params, grads, opt_state, lr)
        active = active.to(params["w"].device)
        moved, opt_state = self.descend(params, {"w": grads["w"] * active}, opt_state, lr)
        # Momentum and weight decay must not move the other part.
        return {"w": torch.where(active, moved["w"], params["w"])}, opt_state

    def descend(
        self, params: Tensors, grads: Tensors, opt_state: State, lr: float
    ) -> tuple[Tensors, State]:
        """Take the optimizer's step on every vector that has a gradient."""
        if self.clip is not None:
            grads = clip_gradients(grads, self.clip)
        if self.optimizer == "sgd":
            return sgd_step(params, grads, opt_state, lr, self.momentum, self.weight_decay)
        betas = (self.beta1, self.beta2)
        decoupled = self.optimizer == "adamw"
        return adam_step(params, grads, opt_state, lr, betas, self.weight_decay, decoupled)

    def reply(
        self, task: Task, params: Tensors, message: Tensors, state: Tensors, steps: Tensor
    ) -> tuple[Tensors, Tensors]:
        """The reply to the server and the client's next state. steps: batches that were taken"""
        private = self.private_mask(task)
        if private is not None:
            state = state | {"private": take(params["w"], private)}
        return {"update": message["w"] - params["w"]}, state

    # Using the models

    @property
    def tuner(self) -> "Client | None":
        """How clients train the final model before they use it; None: they do not."""
        return None

    def keep_tuned(self, state: Tensors, w: Tensor) -> Tensors:
        """The client's state with the model (d,) that `tuner` trained."""
        return state

    def personal(self, task: Task, message: Tensors, state: Tensors) -> Tensor:
        """The model (d,) that the client uses: the received one, with its private coordinates."""
        return self.start(task, message, state)["w"]

    def endpoints(self, task: Task, message: Tensors, state: Tensors) -> tuple[Tensor, Tensor]:
        """The ends of the line between the global and the client's own model."""
        return message["w"], self.personal(task, message, state)


def at_least(method: object, **minimum: float) -> None:
    """Raise ConfigError if a parameter is below its minimum."""
    for name, least in minimum.items():
        value = vars(method)[name]
        if not value >= least:  # also where it is NaN
            raise ConfigError(f"client {name} = {value}: it must be at least {least}")


def squared_distance(task: Task, a: Tensor, b: Tensor) -> Tensor:
    """|a - b|^2 over the trainable coordinates."""
    return (task.trainable(a) - task.trainable(b)).square().sum(-1)
