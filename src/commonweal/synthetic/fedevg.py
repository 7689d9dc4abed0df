"""FedEvg: the server refines labelled noise into data by energy gradients that clients compute.

Hahn, dissertation 2024, chapter IV, Algorithms 4.1 and 4.2. No weights are sent: the server sends
M synthetic rows with labels, clients return their energies and energy gradients under classifiers
of their own, and the server takes a Langevin step on the mixture of all clients' densities. The
contrastive term has the sign of eq. 4.4 (Algorithm 4.2 prints the opposite).
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from commonweal.algorithms.algorithm import (
    Algorithm,
    Conversation,
    Group,
    Outcome,
    Replies,
    Request,
    Sample,
    keep_finite,
)
from commonweal.errors import ConfigError, did_you_mean
from commonweal.federation import Rows
from commonweal.optimizers import step_decay
from commonweal.population import Population
from commonweal.randomness import BEGIN, CLASSIFY, LANGEVIN, stream
from commonweal.synthetic._energy import (
    SCHEDULES,
    EnergyTraining,
    energy_gradient,
    langevin,
    mixture,
)
from commonweal.synthetic._fit import check_fields, check_unit, draw_seed, fit, normal
from commonweal.task import Task
from commonweal.tensors import State, Tensors, stack

__all__ = ["FedEvg"]


class Preset(NamedTuple):
    """Parameters in which the thesis and its authors' code differ."""

    last: float
    noise: float
    schedule: str
    anchor: str
    classifier_epochs: int


PRESETS = {
    "thesis": Preset(
        last=0.01,
        noise=0.01,
        schedule="cosine",
        anchor="chain",
        classifier_epochs=100,
    ),
    "reference": Preset(
        last=1.0,
        noise=1e-4,
        schedule="betas",
        anchor="received",
        classifier_epochs=1,
    ),
}


@dataclass(frozen=True, eq=False)
class FedEvg(Algorithm):
    """x <- clip(x - step grad E(x; all clients) + noise epsilon), E the mixture's energy (eq. 4.14)

    preset: whose values unset parameters take where the thesis and its code differ
    spc: synthetic rows per class; lam: weight of the cross-entropy on synthetic rows
    clip: largest entry of an energy gradient
    epochs, steps, batch, lr, decay, decay_every: of a client's training by Adam
    restart: clients start every round with a new classifier (Algorithm 4.2, line 3), or keep theirs
    chain_steps, chain_step, chain_noise: of the clients' Langevin chains, continued over batches
    first, last: the server's step size in the first and the last round (last: 0.01, reference 1)
    noise: of the server's step (0.01, reference 0.0001)
    schedule: of the step size, from first to last (cosine, reference betas)
    anchor: cross-entropy is taken on the chain's rows (chain) or as received (reference: received)
    classifier_epochs: epochs of the server's classifier on the synthetic rows (100, reference 1)
    """

    task: Task
    population: Population
    rounds: int = 100
    seed: int = 0
    preset: Literal["thesis", "reference"] = "thesis"
    spc: int = 10
    lam: float = 0.1
    clip: float = 3.0
    epochs: int = 1
    steps: int | None = None
    batch: int = 64
    lr: float = 1e-3
    decay: float = 0.9
    decay_every: int = 50
    restart: bool = True
    chain_steps: int = 1
    chain_step: float = 1.0
    chain_noise: float = 0.01
    first: float = 10.0
    last: float | None = None
    noise: float | None = None
    schedule: Literal["cosine", "betas"] | None = None
    anchor: Literal["chain", "received"] | None = None
    classifier_epochs: int | None = None

    client = None  # clients answer one at a time

    def __post_init__(self) -> None:
        check_fields(self, "at least 1", "spc", "epochs", "batch", "decay_every", "chain_steps")
        check_fields(self, "at least 1", "classifier_epochs")
        check_fields(self, "above 0", "lr", "decay", "clip", "chain_step", "first", "last", "steps")
        check_fields(self, "at least 0", "lam", "chain_noise", "noise")
        self._check_parts()

    def _check_parts(self) -> None:
        if self.preset not in PRESETS:
            hint = did_you_mean(self.preset, PRESETS)
            raise ConfigError(f"fedevg preset = {self.preset!r}: {hint}")
        if self.population.loss != "cross-entropy":
            raise ConfigError(
                f"fedevg needs classes, but the data's loss is {self.population.loss!r}"
            )
        if self.task.size > self.task.num_trainable or self.task.has_dropout:
            raise ConfigError(
                "fedevg needs one energy per row: use a model without BatchNorm and dropout"
            )

    @property
    def chosen(self) -> Preset:
        """The preset, with the values that were set."""
        fields = {name: vars(self)[name] for name in Preset._fields}
        given = {name: value for name, value in fields.items() if value is not None}
        return PRESETS[self.preset]._replace(**given)

    # The server

    def init(self, population: Population) -> State:
        rng = stream(self.seed, 0, 0, BEGIN)
        y = torch.arange(population.outputs).repeat_interleave(self.spc)
        x = normal((len(y), *population.shape), rng)  # eq. 4.12
        return {
            "round": torch.tensor(1),
            "x": x,
            "y": y,
            "classifier": self.task.initial.clone(),
        }

    def message(self, state: State) -> Tensors:
        return {"round": state["round"], "x": state["x"], "y": state["y"]}

    def round(self, state: State, sample: Sample) -> Conversation:
        replies = yield Request(sample(), self.message(state))
        return self.tell(state, replies)

    def tell(self, state: State, replies: Replies) -> Outcome:
        """Take one Langevin step on the mixture of the densities of the clients that replied."""
        following = state | {"round": state["round"] + 1}
        replies = replies.finite(optional=("score", "loss"))
        weights = torch.empty(0, dtype=torch.float64)
        if len(replies.clients):
            following["x"], posterior = self.move(state, replies.values)
            weights = posterior.double().mean(1)
        return Outcome(following, replies.clients, weights, replies.failed)

    def move(self, state: State, values: Tensors) -> tuple[Tensor, Tensor]:
        """The synthetic rows after a Langevin step, and the clients' weights per row (R, M)."""
        number = int(state["round"])
        sizes = values["size"]
        weights = sizes / sizes.sum()
        grad, posterior = mixture(weights, values["boltzmann"], values["gradient"])
        epsilon = normal(grad.shape, stream(self.seed, number, 0, LANGEVIN))
        step = self.step(number)
        x = langevin(state["x"], grad, step, self.chosen.noise, epsilon)
        return x, posterior

    def step(self, number: int) -> float:
        """The server's step size in round 1, 2, ..., T."""
        chosen = self.chosen
        progress = SCHEDULES[chosen.schedule](number, self.rounds)
        return self.first + (chosen.last - self.first) * progress

    def samples(self, state: State) -> tuple[Tensor, Tensor]:
        return state["x"], state["y"]

    def before_evaluation(self, state: State) -> State:
        """Train the server's classifier on the synthetic rows alone."""
        rng = stream(self.seed, int(state["round"]), 0, CLASSIFY)
        x, y = self.samples(state)
        epochs = self.chosen.classifier_epochs
        w = fit(self.task, x, y, epochs, self.batch, self.lr, rng)
        return state | {"classifier": w}

    def model(self, state: State) -> Tensor:
        """The server's classifier, as of the last evaluation."""
        w: Tensor = state["classifier"]
        return w

    # The clients

    def init_client(self, seed: int) -> Tensors:
        return {} if self.restart else {"w": self.task.reinitialised(seed)}

    def training(self, number: int) -> EnergyTraining:
        """How clients train in round 1, 2, ..."""
        return EnergyTraining(
            lr=step_decay(self.lr, self.decay, self.decay_every, number),
            batch=self.batch,
            epochs=self.epochs,
            steps=self.steps,
            lam=self.lam,
            clip=self.clip,
            anchor=self.chosen.anchor,
            chain_steps=self.chain_steps,
            chain_step=self.chain_step,
            chain_noise=self.chain_noise,
        )

    def answer(self, request: Request, group: Group) -> tuple[Tensors, Tensors]:
        replies = []
        models = []
        starts = self.initial_models(group)
        ids = group.ids.tolist()
        for client, start, rng in zip(ids, starts, group.streams, strict=True):
            rows = group.rows.client(client)
            reply, w = self.answer_one(request.message, rows, start, rng)
            replies.append(reply)
            models.append(w)
        values = stack(replies) | {"size": group.rows.sizes[group.ids]}
        states = {} if self.restart else {"w": torch.stack(models)}
        return values, keep_finite(group.states, states, values["gradient"])

    def initial_models(self, group: Group) -> list[Tensor]:
        """The classifiers from which the clients of a group train in this round."""
        if self.restart:
            return [self.task.reinitialised(draw_seed(rng)) for rng in group.streams]
        return list(group.states["w"])

    def answer_one(
        self, message: Tensors, rows: Rows, w: Tensor, rng: np.random.Generator
    ) -> tuple[Tensors, Tensor]:
        """Train a client's classifier: energies and gradients of the received rows, and w."""
        training = self.training(int(message["round"]))
        x = check_unit(rows.x)
        w, reported = training.train(self.task, w, message, x, rows.y, rng)
        received = (message["x"], message["y"])
        energy, grad = energy_gradient(self.task, w, *received, self.clip)
        # Instead of exp(-E): with unbounded energies one client could dominate the mixture
        # (section 3.3).
        boltzmann = torch.exp(torch.sign(-energy))
        return reported | {"boltzmann": boltzmann, "gradient": grad}, w


ENTRIES = {"fedevg": FedEvg}
