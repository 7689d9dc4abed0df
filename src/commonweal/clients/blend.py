"""blend: a client predicts with its local, the global and the fine-tuned model together.

Each client trains a local model on its own samples and, in the rounds, the global model. It mixes
their predictions, not their parameters. How much the partners (the global model and its fine-tuned
version) count is learned on validation samples and bounded, so that a client whose partners are bad
keeps to its local model. Related: Peterson et al. 2019, Mansour et al. 2020 (MAPPER), Marfoq et al.
2022 (kNN-Per).
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from commonweal.base.errors import ConfigError
from commonweal.base.tensors import Tensors
from commonweal.clients._local_model import LocalModel
from commonweal.clients.fine_tune import Tuned, tuning_parameters
from commonweal.training.client import Client, Samples, Stage, at_least, sgd_parameters
from commonweal.training.task import Task
from commonweal.training.uses import Uses

__all__ = ["GRID", "Blend"]

GRID = torch.linspace(0, 1, 11)  # the weights of the partners that are compared
LIKELIHOODS = ("cross-entropy", "binary", "tokens", "cox")  # losses in units of log-likelihood


@dataclass(frozen=True)
class Blend(Client):
    """(1-m) p_local + m p_partners, with p_partners = (p_global + p_tuned) / 2

    In the first rounds the global model does not see the validation samples. Then every client
    compares the mixtures with m = 0, 0.1, ..., 1 on them, and keeps the mean of m under
    exp(-(its losses + prior times everyone's mean losses)), at most `limit`. Only sums over clients
    are used by the server. From then on the global model, like the local one from the start, trains
    on all samples. After the last round the client fine-tunes the global model. A client that was
    not in every cohort trains its local model for the missing rounds at home. Without validation
    samples, classification uses m = `weight`.

    partner: whose predictions join the local model's: "global", "tuned", or "both"
    limit: the largest m (none: 2/3 for both, 1/2 for one partner)
    learn_at: the share of the rounds after which m is learned
    prior: how many samples everyone's losses are worth
    weight: m where there are no validation samples
    rejoin: whether validation samples return to training; without, `choose` can use them
    tune_epochs: epochs of fine-tuning; tune_lr: their learning rate (none: that of the round)
    The others are those of sgd, for all models
    """

    personalizes: ClassVar[bool] = True
    plans_rounds: ClassVar[bool] = True
    rejoins: ClassVar[bool] = True

    partner: Literal["both", "global", "tuned"] = "both"
    limit: float | None = None
    learn_at: float = 0.6
    prior: float = 5.0
    weight: float = 0.5
    rejoin: bool = True
    tune_epochs: int | float = 5
    tune_lr: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, prior=0)
        limits = {
            "limit": 1,
            "learn_at": 1,
            "weight": 1,
            "tune_epochs": math.inf,
            "tune_lr": math.inf,
        }
        for name, largest in limits.items():
            value = vars(self)[name]
            if value is not None and not 0 < value <= largest:
                raise ConfigError(f"blend {name} = {value}: give a number above 0, up to {largest}")

    @property
    def largest(self) -> float:
        """The largest weight of the partners."""
        if self.limit is not None:
            return self.limit
        return 2 / 3 if self.partner == "both" else 1 / 2

    def learning_round(self, rounds: int) -> int:
        """The round after which m is learned."""
        return math.ceil(self.learn_at * rounds)

    # What is trained when

    def exchanges(self, round: int, rounds: int) -> tuple[str, ...]:
        learning = ("mix",) if round == self.learning_round(rounds) else ()
        return learning if round < rounds else (*learning, "tune")

    def stages(
        self, task: Task, purpose: str, message: Tensors, validates: bool
    ) -> tuple[Stage, ...]:
        if not validates and task.loss not in LIKELIHOODS:
            raise ConfigError(
                f"client 'blend' needs validation samples for the loss {task.loss!r}, since a "
                "global model can be far off for some clients: set validation = 0.2"
            )
        plain = sgd_parameters(self)
        tuning = tuning_parameters(self, self.tune_epochs, self.tune_lr)
        samples: Samples = "all" if self.rejoin else "train"
        local = Stage(LocalModel(**plain, vector="local"), samples, "local_rounds")
        scout = Stage(LocalModel(**plain, vector="scout"), "train", "scout_rounds")
        if purpose == "tune":
            return (local._replace(catches_up=True), Stage(Tuned(**tuning), samples))
        if purpose == "mix":
            home = scout._replace(catches_up=True)
            if not self.rejoin:
                home = local._replace(catches_up=True)
            return (home, Stage(Tuned(**tuning))) if validates else ()
        learning = int(message["round"]) <= self.learning_round(int(message["rounds"]))
        if validates and learning and self.rejoin:
            return (local, scout, Stage(Client(**plain)))
        return (local, Stage(Client(**plain), samples))

    # What the client keeps

    def init_client(self, task: Task, seed: int) -> Tensors:
        w = task.initial
        return {
            "local": w.clone(),
            "scout": w.clone(),  # a local model that has not seen the validation samples
            "tuned": w.clone(),
            "is_tuned": torch.zeros(1),
            "local_rounds": torch.zeros(1),
            "scout_rounds": torch.zeros(1),
            "losses": torch.zeros(len(GRID)),
            "m": torch.tensor([min(self.weight, self.largest)]),
        }

    def mixtures(self, message: Tensors, state: Tensors) -> tuple[Uses, ...]:
        """What the client would use for each m of the grid, with models of the learning rounds."""
        local = state["scout" if self.rejoin else "local"]
        candidate = state | {"local": local, "is_tuned": torch.ones(1)}
        return tuple(self._mixed(message, candidate, m.reshape(1)) for m in GRID)

    def learned(self, state: Tensors, everyone: Tensor, scale: Tensor) -> Tensors:
        """The client's state with its m.

        Args:
            state: The client's state, with its sums of losses (11,) over validation samples.
            everyone: The mean losses (11,) over all clients' validation samples.
            scale: What losses are divided by.
        """
        evidence = (state["losses"] + self.prior * everyone) / scale
        posterior = torch.softmax(-evidence.double(), -1).to(GRID.dtype)
        m = (posterior * GRID).sum(-1, keepdim=True).clamp(max=self.largest)
        return state | {"m": m}

    def uses(self, task: Task, message: Tensors, state: Tensors) -> Uses:
        return self._mixed(message, state, state["m"])

    def _mixed(self, message: Tensors, state: Tensors, m: Tensor) -> Uses:
        tuned = torch.where(state["is_tuned"] > 0, state["tuned"], message["w"])
        partners = {"both": (message["w"], tuned), "global": (message["w"],), "tuned": (tuned,)}
        models = (state["local"], *partners[self.partner])
        shares = [m / (len(models) - 1)] * (len(models) - 1)
        return Uses(torch.stack(models), torch.cat([1 - m, *shares]))


ENTRIES = {"blend": Blend}
