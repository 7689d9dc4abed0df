"""The interface of client methods, whose base class is plain local SGD; methods override a part.

Client code speaks of a single client. The simulator runs many clients at once; what is random is
drawn before, so that every engine computes the same numbers.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from torch import Tensor

from commonweal.base.arguments import check_bounds
from commonweal.base.errors import ConfigError
from commonweal.base.tensors import Tensors, merge, take
from commonweal.task.task import Task
from commonweal.task.uses import Uses, one_model
from commonweal.training.objective import Objective, Phase
from commonweal.training.optimizers import step_decay
from commonweal.training.schedules import factor

if TYPE_CHECKING:  # it trains clients
    from commonweal.data.rows import Rows
    from commonweal.training.ask import Ask

Grid = Mapping[str, tuple[float | str, ...]]  # values of parameters that a publication tried
NONE: Tensors = {}


class ToAll(NamedTuple):
    """A request of a client method to all clients, after a round.

    Attributes:
        purpose: What it is for, as `Client.answer` gets it.
        message: What is sent in addition to the message for a round.
        silent: Whether the replies are not used. Private runs take no other requests: what clients
            reply has no noise.
    """

    purpose: str
    message: Tensors = NONE
    silent: bool = False


class Notes(NamedTuple):
    """The entries of the run's record on a method's own requests.

    Attributes:
        taken: How many clients take each of `Client.candidates`; None: nothing was chosen.
        warnings: Of the round.
    """

    taken: Tensor | None = None
    warnings: tuple[str, ...] = ()


# Yields requests, is sent the replies by name (R, ...), {} where nobody replied.
Requests = Generator[ToAll, Tensors, Notes]


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
    takes_trees: ClassVar[bool] = False  # whether the global model may be trees grown together
    candidates: ClassVar[tuple[str, ...]] = ()  # the models of which a client takes one
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

    def check(self, task: Task, rounds: int) -> None:
        """Raise ConfigError where the method cannot train this task in this many rounds."""

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """The epochs of a round, and which coordinates they train."""
        return (Phase(self.epochs),)

    def draws(self, task: Task) -> int:
        """Return the number of uniform random numbers of a batch: "noise" of an objective."""
        return 0

    def private(self, task: Task) -> Tensor | None:
        """The mask (d,) of the coordinates that never leave the client; None: there are none."""
        return None

    # What the server keeps for the clients, and what a client keeps

    def init_shared(self, task: Task) -> Tensors:
        """Return the tensors that the server sends along with the model in the first round."""
        return {}

    def update_shared(self, shared: Tensors, replies: Tensors, clients: int) -> Tensors:
        """Return the tensors that the server sends along with the model in the next round.

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

    # The conversation

    def answer(self, ask: "Ask") -> tuple[Tensors, Tensors]:
        """The replies (S, ...) of some clients to a request, and their next states (S, ...).

        In a round, replies have "update": what `ask.train` returns. By default clients train in
        rounds, and answer nothing else.
        """
        if ask.purpose != "train":
            name = type(self).__name__
            raise ConfigError(
                f"client {name} has no answer to a request for {ask.purpose!r}: let its `answer` "
                "give one"
            )
        return ask.train(self)

    def rows(self, ask: "Ask") -> "Rows":
        """The samples of a group's clients that a round trains on."""
        return ask.samples.train

    def after(self, round: int, rounds: int) -> Requests:
        """The method's own requests to all clients after a round."""
        yield from ()
        return Notes()

    # Training

    def start(self, task: Task, message: Tensors, state: Tensors) -> Tensors:
        """The vectors of a round by name. "w" is the received model with the private part."""
        private = self.private(task)
        w = message["w"]
        return {"w": w if private is None else merge(w, state["private"], private)}

    def objective(self, task: Task, message: Tensors) -> Objective:
        """Return the objective of this round, in terms of the names of the vectors of `start`."""
        return Objective()

    def reply(
        self, task: Task, vectors: Tensors, message: Tensors, state: Tensors, steps: Tensor
    ) -> tuple[Tensors, Tensors]:
        """Return the reply besides the model's update, and the client's next state.

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
