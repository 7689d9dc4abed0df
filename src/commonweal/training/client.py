"""The interface of client methods, whose base class is plain local SGD; methods override a part.

Client code speaks of a single client. The simulator runs many clients at once; what is random is
drawn before, so that every engine computes the same numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, NamedTuple

from torch import Tensor

from commonweal.base.arguments import check_bounds
from commonweal.base.errors import ConfigError
from commonweal.base.tensors import Tensors, merge, take
from commonweal.training.objective import Objective, Phase
from commonweal.training.optimizers import step_decay
from commonweal.training.schedules import factor
from commonweal.training.task import Task
from commonweal.training.uses import Uses, one_model

# The run's validation samples, a part of the training samples that the client chooses, or none.
HoldsOut = Literal["nothing", "validation", "training"]
Grid = Mapping[str, tuple[float | str, ...]]  # values of parameters that a publication tried


@dataclass(frozen=True)
class Client:
    """Local SGD from the received model, over the client's own samples.

    The methods take the task that is trained, the message that the server sent ("w", "round",
    "rounds" and what the method shares) and the client's state.

    epochs: passes over the samples, or a part of one (0.25: a quarter of its batches, rounded up)
    steps: a number of batches instead, the same for every client
    batch: samples per step (0: all of them); lr, momentum, weight_decay: as in torch.optim
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

    personalizes: ClassVar[bool] = False  # whether clients use personal models
    plans_rounds: ClassVar[bool] = False  # whether a round depends on how many there are
    grid: ClassVar[Grid] = {}

    def __post_init__(self) -> None:
        at_least(self, batch=0, decay_every=1, weight_decay=0)
        for name in ("momentum", "beta1", "beta2"):
            check_bounds(f"client {name}", vars(self)[name], least=0, below=1)
        if self.optimizer != "sgd" and self.momentum:
            raise ConfigError(
                f"client momentum = {self.momentum}: {self.optimizer} has beta1 instead; "
                "leave it at 0"
            )
        for name in ("epochs", "lr", "decay", "clip", "steps"):
            check_bounds(f"client {name}", vars(self)[name], above=0)

    # What the method is

    @property
    def holds_out(self) -> HoldsOut:
        """The samples on which clients compare their models, before they train on them too."""
        return "nothing"

    def check(self, task: Task, rounds: int) -> None:
        """Raise ConfigError where the method cannot train this task in this many rounds."""

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """The epochs of a round, and which coordinates they train."""
        return (Phase(self.epochs),)

    def draws(self, task: Task) -> int:
        """How many uniform random numbers a batch needs: "noise" of an objective."""
        return 0

    def private(self, task: Task) -> Tensor | None:
        """The mask (d,) of the coordinates that never leave the client; None: there are none."""
        return None

    # What the server keeps for the clients, and what a client keeps

    def init_shared(self, task: Task) -> Tensors:
        """What the server sends along with the model in the first round."""
        return {}

    def update_shared(self, shared: Tensors, replies: Tensors, clients: int) -> Tensors:
        """What the server sends along with the model in the next round.

        Args:
            shared: What it sent in this round.
            replies: The replies (S, ...) that were used.
            clients: The number of all clients.
        """
        return shared

    def init_client(self, task: Task, seed: int) -> Tensors:
        """A client's state before its first round.

        Args:
            seed: The client's own, for random initialisations.
        """
        private = self.private(task)
        return {} if private is None else {"private": take(task.initial, private)}

    # Training

    def exchanges(self, round: int, rounds: int) -> tuple[str, ...]:
        """The further requests that go to all clients after a round, by their purposes."""
        return ()

    def stages(
        self, task: Task, purpose: str, message: Tensors, validates: bool
    ) -> "tuple[Stage, ...]":
        """What is trained for a request, one after another. The last stage's update is sent.

        Args:
            purpose: "train" in a round, or one of `exchanges`.
            validates: Whether the client has validation samples.
        """
        return (Stage(self),)

    def start(self, task: Task, message: Tensors, state: Tensors) -> Tensors:
        """The vectors of a round by name. "w" is the received model with the private part."""
        private = self.private(task)
        w = message["w"]
        return {"w": w if private is None else merge(w, state["private"], private)}

    def objective(self, task: Task, message: Tensors) -> Objective:
        """What is minimised in this round, in terms of the names of the vectors of `start`."""
        return Objective()

    def reply(
        self, task: Task, vectors: Tensors, message: Tensors, state: Tensors, steps: Tensor
    ) -> tuple[Tensors, Tensors]:
        """What is sent with the model's update, and the client's next state.

        The update, received model minus trained model, is added to every reply that has none.

        Args:
            vectors: The vectors after training, by name.
            steps: The number of batches that were taken, a scalar.
        """
        private = self.private(task)
        if private is not None:
            state = state | {"private": take(vectors["w"], private)}
        return {}, state

    # Using the models

    def uses(self, task: Task, message: Tensors, state: Tensors) -> Uses:
        """The models that the client predicts with: by default the one that training starts at."""
        return one_model(self.start(task, message, state)["w"])

    def endpoints(self, task: Task, message: Tensors, state: Tensors) -> tuple[Tensor, Tensor]:
        """The global and the personal model (d,), for analyses of the line between them."""
        return message["w"], self.uses(task, message, state).models[0]


Samples = Literal["train", "all"]


class Stage(NamedTuple):
    """Local training of one kind.

    Attributes:
        client: What is trained, and how.
        samples: "train", or "all": those that are held out, too.
        counter: The name of the method's state (1,) that counts the rounds of this stage; empty:
            they are not counted.
        catches_up: Train all rounds that the counter lacks, so that clients who missed rounds make
            up for them at home. Otherwise one round is trained.
        until: The name of the state (1,) that has the round up to which that is. Empty: the present
            one.
        unless: The name of a state (1,) that is 0 for the clients that train. Empty: all do.
    """

    client: Client
    samples: Samples = "train"
    counter: str = ""
    catches_up: bool = False
    until: str = ""
    unless: str = ""


def sgd_parameters(client: Client) -> dict[str, Any]:
    """The parameters of a method that all methods have, those of plain local SGD."""
    return {field.name: vars(client)[field.name] for field in fields(Client)}


def learning_rate(client: Client, round: int) -> float:
    """The learning rate of round 1, 2, ..."""
    lr = step_decay(client.lr, client.decay, client.decay_every, round)
    return lr * factor(client.schedule, round)


def at_least(method: object, **minimum: float) -> None:
    """Raise ConfigError if a parameter is below its minimum."""
    for name, least in minimum.items():
        check_bounds(f"client {name}", vars(method)[name], least=least)
