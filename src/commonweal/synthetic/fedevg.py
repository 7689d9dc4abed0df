"""FedEvg: the server refines labelled noise into data by energy gradients that clients compute.

Hahn, dissertation 2024, chapter IV, Algorithms 4.1 and 4.2. No weights are sent: the server sends
M synthetic samples with labels, clients return their energies and energy gradients under their own
classifiers, and the server takes a Langevin step on the mixture of all clients' densities. Any
rule with mixing weights gives the w_i of that mixture, from the losses of the clients' classifiers.
The contrastive term has the sign of eq. 4.4 (Algorithm 4.2 prints the opposite).
"""

from dataclasses import dataclass, field
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
from commonweal.base.errors import ConfigError, did_you_mean
from commonweal.base.randomness import BEGIN, CLASSIFY, LANGEVIN, stream
from commonweal.base.tensors import State, Tensors, stack
from commonweal.data.federation import Rows
from commonweal.data.population import Population, Setting
from commonweal.rules.fedavg import FedAvg
from commonweal.rules.rule import Need, Reports, Rule
from commonweal.synthetic._energy import (
    SCHEDULES,
    UNIT,
    EnergyTraining,
    energy_gradient,
    exponentials,
    langevin,
    mixture,
)
from commonweal.synthetic._fit import check_fields, check_unit, draw_seed, fit, normal
from commonweal.training.client_state import NO_STATE, ClientState
from commonweal.training.optimizers import step_decay
from commonweal.training.task import Task
from commonweal.training.uses import Uses, one_model

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
    spc: synthetic samples per class; lam: weight of the cross-entropy on synthetic samples
    clip: largest entry of an energy gradient
    epochs, steps, batch, lr, decay, decay_every: of a client's training by Adam
    restart: clients start every round with a new classifier (Algorithm 4.2, line 3), or keep theirs
    chain_steps, chain_step, chain_noise: of the clients' Langevin chains, continued over batches
    first, last: the server's step size in the first and the last round (last: 0.01, reference 1)
    noise: of the server's step (0.01, reference 0.0001)
    schedule: of the step size, from first to last (cosine, reference betas)
    anchor: cross-entropy is taken on samples of the chain (chain) or received (reference: received)
    classifier_epochs: epochs of the server's classifier on the synthetic samples (100, reference 1)
    energies: what weighs the clients at a row beside w_i: exp(sgn(-E)) ("signed", section 4.3.3) or
        exp(-E) itself ("exact", eq. 4.13)
    bound: for standardised rows of a table: synthetic samples are kept in [-bound, bound] (none:
        samples are in [0, 1], as images)
    keep: whether clients keep their classifiers and are scored by them, also where they restart
    """

    task: Task
    population: Population
    rule: Rule = field(default_factory=FedAvg)
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
    energies: Literal["signed", "exact"] = "signed"
    bound: float | None = None
    keep: bool = False

    client = None  # clients answer one at a time

    def __post_init__(self) -> None:
        check_fields(self, "at least 1", "spc", "epochs", "batch", "decay_every", "chain_steps")
        check_fields(self, "at least 1", "classifier_epochs")
        check_fields(self, "above 0", "lr", "decay", "clip", "chain_step", "first", "last", "steps")
        check_fields(self, "above 0", "bound")
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
        if not self.rule.mixing or "loss_after" in self.rule.needs:
            name = type(self.rule).__name__
            raise ConfigError(
                f"fedevg mixes densities by weights of sum 1, which {name} does not give from "
                "losses and energy gradients: use a rule such as 'aaggff-s', 'afl' or 'fedavg'"
            )

    @property
    def chosen(self) -> Preset:
        """The preset, with the values that were set."""
        fields = {name: vars(self)[name] for name in Preset._fields}
        given = {name: value for name, value in fields.items() if value is not None}
        return PRESETS[self.preset]._replace(**given)

    @property
    def limits(self) -> tuple[float, float]:
        """Where synthetic samples are."""
        return UNIT if self.bound is None else (-self.bound, self.bound)

    @property
    def needs(self) -> frozenset[Need]:
        return self.rule.needs

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
            "rule": self.rule.init(self._setting(population)),
        }

    def _setting(self, population: Population) -> Setting:
        return Setting(
            clients=population.clients,
            rounds=self.rounds,
            lr=self.lr,
            groups=population.groups,
            label_counts=population.label_counts,
            sizes=population.sizes,
        )

    def message(self, state: State) -> Tensors:
        return {"round": state["round"], "x": state["x"], "y": state["y"]}

    def round(self, state: State, sample: Sample) -> Conversation:
        replies = yield Request(sample(), self.message(state))
        return self.tell(state, replies, sample.population.clients)

    def tell(self, state: State, replies: Replies, clients: int) -> Outcome:
        """Take one Langevin step on the mixture of the densities of the clients that replied."""
        following = state | {"round": state["round"] + 1}
        replies = replies.finite()
        if len(replies.clients) == 0:
            nothing = torch.empty(0, dtype=torch.float64)
            return Outcome(
                following, replies.clients, nothing, replies.failed, diverged=replies.diverged
            )
        decision = self.rule(self.reports(replies, clients), state["rule"])
        following["rule"] = decision.state
        following["x"], posterior = self.move(state, replies.values, decision.weights)
        used = torch.tensor([i not in decision.dropped for i in replies.clients.tolist()])
        return Outcome(
            following,
            replies.clients[used],
            posterior.double().mean(1)[used],
            replies.failed | decision.dropped,
            decision.capped,
            decision.warnings,
            replies.diverged,
        )

    def reports(self, replies: Replies, clients: int) -> Reports:
        """What the rule sees: clients' classifiers on their samples, and energy gradients."""
        values = replies.values
        return Reports(
            ids=replies.clients,
            sizes=values["size"],
            losses=values["loss"],
            scores=values["score"],
            updates=values["gradient"].flatten(1),
            clients=clients,
            checked=True,
        )

    def move(self, state: State, values: Tensors, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The synthetic samples after a Langevin step, and the clients' weights per row (R, M).

        weights: (R,), the w_i of eq. 4.13
        """
        number = int(state["round"])
        boltzmann = values["boltzmann"]
        if self.energies == "exact":
            boltzmann = exponentials(boltzmann, weights)
        grad, posterior = mixture(weights, boltzmann, values["gradient"])
        epsilon = normal(grad.shape, stream(self.seed, number, 0, LANGEVIN))
        step = self.step(number)
        x = langevin(state["x"], grad, step, self.chosen.noise, epsilon, self.limits)
        return x, posterior

    def step(self, number: int) -> float:
        """The server's step size in round 1, 2, ..., T."""
        chosen = self.chosen
        progress = SCHEDULES[chosen.schedule](number, self.rounds)
        return self.first + (chosen.last - self.first) * progress

    def samples(self, state: State) -> tuple[Tensor, Tensor]:
        return state["x"], state["y"]

    def before_evaluation(self, state: State) -> State:
        """Train the server's classifier on the synthetic samples alone."""
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

    @property
    def personalizes(self) -> bool:
        return self.keep or not self.restart

    def uses(self, message: Tensors, client_state: ClientState) -> Uses:
        """The classifier that a client trained on its own samples."""
        return one_model(client_state.method["w"])

    def init_client(self, seed: int) -> ClientState:
        if not self.personalizes:
            return NO_STATE
        return ClientState({"w": self.task.reinitialised(seed)})

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
            limits=self.limits,
        )

    def answer(self, request: Request, group: Group) -> tuple[Tensors, ClientState]:
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
        if not self.personalizes:
            return values, NO_STATE
        trained = {"w": torch.stack(models)}
        method = keep_finite(group.states.method, trained, values["gradient"])
        return values, ClientState(method)

    def initial_models(self, group: Group) -> list[Tensor]:
        """The classifiers from which the clients of a group train in this round."""
        if self.restart:
            return [self.task.reinitialised(draw_seed(rng)) for rng in group.streams]
        return list(group.states.method["w"])

    def answer_one(
        self, message: Tensors, rows: Rows, w: Tensor, rng: np.random.Generator
    ) -> tuple[Tensors, Tensor]:
        """Train a client's classifier: energies and gradients of the received samples, and w."""
        training = self.training(int(message["round"]))
        x = check_unit(rows.x) if self.bound is None else rows.x
        w, reported = training.train(self.task, w, message, x, rows.y, rng)
        received = (message["x"], message["y"])
        energy, grad = energy_gradient(self.task, w, *received, self.clip)
        # With unbounded energies one client could dominate the mixture (section 4.3.3). Exact ones
        # are sent as they are: exp(-E) overflows.
        boltzmann = -energy if self.energies == "exact" else torch.exp(torch.sign(-energy))
        return reported | {"boltzmann": boltzmann, "gradient": grad}, w


ENTRIES = {"fedevg": FedEvg}
