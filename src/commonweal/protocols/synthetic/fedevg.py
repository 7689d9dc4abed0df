"""FedEvg: the server refines labelled noise into data by energy gradients that clients compute.

Hahn, dissertation 2024, chapter IV, Algorithms 4.1 and 4.2. No weights are sent: the server sends
M synthetic samples with labels, clients return their energies and energy gradients under their own
classifiers, and the server takes a Langevin step on the mixture of all clients' densities. Any
rule with mixing weights gives the w_i of that mixture, from the losses of the clients' classifiers.
The contrastive term has the sign of eq. 4.4 (Algorithm 4.2 prints the opposite).
"""

from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from commonweal.base.errors import ConfigError, DataError, did_you_mean
from commonweal.base.randomness import BEGIN, LANGEVIN, stream
from commonweal.base.tensors import State, Tensors, stack
from commonweal.data.population import Population
from commonweal.data.rows import Rows
from commonweal.protocols import algorithm
from commonweal.protocols.algorithm import Conversation, Group, Outcome, Replies, Request, Sample
from commonweal.protocols.synthetic import energy, fitting
from commonweal.protocols.synthetic.energy import energy_gradient, langevin, logit
from commonweal.protocols.synthetic.fitting import Synthetic, draw_seed, standard_normal
from commonweal.rules.fedavg import FedAvg
from commonweal.rules.rule import Reports, Rule, decide
from commonweal.task.losses import LOSSES
from commonweal.task.task import Task
from commonweal.task.uses import Uses, one_model
from commonweal.training.client_state import NO_STATE, ClientState, keep_finite
from commonweal.training.optimizers import step_decay


class Preset(NamedTuple):
    """Parameters in which the thesis and its authors' code differ."""

    last: float
    noise: float
    schedule: str
    anchor: str
    classifier_epochs: int


PRESETS = {
    "thesis": Preset(0.01, 0.01, "cosine", "chain", 100),
    "reference": Preset(1.0, 1e-4, "betas", "received", 1),
}


@dataclass(frozen=True, eq=False)
class FedEvg(Synthetic):
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
    energies: what weighs the clients at a row with w_i: exp(sgn(-E)) ("signed", section 4.3.3) or
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
        self._check_fields("spc", "epochs", "batch", "decay_every", "chain_steps", least=1)
        self._check_fields("classifier_epochs", least=1)
        self._check_fields("lr", "decay", "clip", "chain_step", "first", "last", "steps", above=0)
        self._check_fields("bound", above=0)
        self._check_fields("lam", "chain_noise", "noise", least=0)
        if self.preset not in PRESETS:
            hint = did_you_mean(self.preset, PRESETS)
            raise ConfigError(f"fedevg preset = {self.preset!r}: {hint}")
        self._check_classes()
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
        """The path of synthetic samples."""
        return energy.UNIT if self.bound is None else (-self.bound, self.bound)

    @property
    def epochs_of_classifier(self) -> int:
        return self.chosen.classifier_epochs

    # The server

    def init(self, population: Population) -> State:
        rng = stream(self.seed, 0, 0, BEGIN)
        y = torch.arange(population.outputs).repeat_interleave(self.spc)
        return {
            "round": torch.tensor(1),
            "x": standard_normal((len(y), *population.shape), rng),  # eq. 4.12
            "y": y,
            "classifier": self.task.initial.clone(),
            "rule": self.rule.init(algorithm.setting(population, self.rounds, self.lr)),
        }

    def message(self, state: State) -> Tensors:
        return {"round": state["round"], "x": state["x"], "y": state["y"]}

    def round(self, state: State, sample: Sample) -> Conversation:
        replies = yield Request(sample(), self.message(state))
        return self.tell(state, replies, sample.population.clients)

    def tell(self, state: State, replies: Replies, clients: int) -> Outcome:
        """Take one Langevin step on the mixture of the densities of the clients that replied."""
        replies = replies.finite()
        if len(replies.clients) == 0:
            return algorithm.unchanged(state, replies)
        # The rule sees clients' classifiers on their samples, and energy gradients.
        values = replies.values
        reports = Reports(
            ids=replies.clients,
            sizes=values["size"],
            losses=values["loss"],
            scores=values["score"],
            updates=values["gradient"].flatten(1),
            clients=clients,
            checked=True,
        )
        decision = decide(self.rule, reports, state["rule"])
        x, posterior = self.move(state, values, decision.weights)
        following = state | {"round": state["round"] + 1, "rule": decision.state, "x": x}
        # A descent along energy gradients is not one of the clients' losses.
        decision = replace(decision, descent=None)
        return algorithm.decided(following, replies, decision, posterior.double().mean(1))

    def move(self, state: State, values: Tensors, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The synthetic samples after a Langevin step, and the clients' weights per row (R, M).

        weights: (R,), the w_i of eq. 4.13
        """
        number = int(state["round"])
        boltzmann = values["boltzmann"]
        if self.energies == "exact":
            boltzmann = energy.exponentials(boltzmann, weights)
        grad, posterior = energy.mixture_gradient(weights, boltzmann, values["gradient"])
        epsilon = standard_normal(grad.shape, stream(self.seed, number, 0, LANGEVIN))
        step = self.step(number)
        x = langevin(state["x"], grad, step, self.chosen.noise, epsilon, self.limits)
        return x, posterior

    def step(self, number: int) -> float:
        """The server's step size in round 1, 2, ..., T."""
        chosen = self.chosen
        progress = energy.SCHEDULES[chosen.schedule](number, self.rounds)
        return self.first + (chosen.last - self.first) * progress

    def samples(self, state: State) -> tuple[Tensor, Tensor]:
        return state["x"], state["y"]

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
        return ClientState({"w": self.task.reinitialised(seed).initial})

    def answer(self, request: Request, group: Group) -> tuple[Tensors, ClientState]:
        replies = []
        models = []
        starts = group.states.method["w"] if not self.restart else None
        streams = group.streams.begin()
        for k, (client, rng) in enumerate(zip(group.ids.tolist(), streams, strict=True)):
            start = self.task.reinitialised(draw_seed(rng)).initial if starts is None else starts[k]
            reply, w = self._answer(request.message, group.rows.client(client), start, rng)
            replies.append(reply)
            models.append(w)
        values = stack(replies) | {"size": group.rows.sizes[group.ids]}
        if not self.personalizes:
            return values, NO_STATE
        trained = {"w": torch.stack(models)}
        method = keep_finite(group.states.method, trained, values["gradient"])
        return values, ClientState(method)

    def _answer(
        self, message: Tensors, rows: Rows, w: Tensor, rng: np.random.Generator
    ) -> tuple[Tensors, Tensor]:
        """Train a client's classifier: energies and gradients of the received samples, and w."""
        if rows.transform is not None:
            raise DataError(
                "fedevg trains on samples as they are and needs no transform: leave it out"
            )
        x = fitting.check_unit(rows.x) if self.bound is None else rows.x
        w, report = self.train(w, message, x, rows.y, rng)
        energy, grad = energy_gradient(self.task, w, message["x"], message["y"], self.clip)
        # With unbounded energies one client could dominate the mixture (section 4.3.3). Exact ones
        # are sent as they are: exp(-E) overflows.
        boltzmann = -energy if self.energies == "exact" else torch.exp(torch.sign(-energy))
        return report | {"boltzmann": boltzmann, "gradient": grad}, w

    def train(
        self, w: Tensor, message: Tensors, x: Tensor, y: Tensor, rng: np.random.Generator
    ) -> tuple[Tensor, Tensors]:
        """Train a client's classifier as an energy-based model: Algorithm 4.2.

        Returns:
            The classifier, and its mean loss and score on the client's samples during training.
        """
        cross_entropy = LOSSES["cross-entropy"]
        round = int(message["round"])
        optimizer = fitting.adam(step_decay(self.lr, self.decay, self.decay_every, round))
        w = w.clone()
        memory = optimizer.memory(w)
        chains, labels = message["x"].clone(), message["y"]
        losses, scores = [], []
        for index in fitting.batches(len(y), self.batch, self.epochs, self.steps, rng):
            real, own = fitting.scaled(x[index]), y[index]
            count = min(len(index), len(labels))
            drawn = torch.from_numpy(rng.choice(len(labels), count, replace=False))
            drawn_labels = labels[drawn]
            anchors = chains if self.chosen.anchor == "chain" else message["x"]
            anchor = anchors[drawn]  # a copy, taken before the chain moves
            chains[drawn] = self._continued(w, chains[drawn], drawn_labels, rng)
            leaf = w.detach().requires_grad_()
            outputs = self.task.outputs(leaf, torch.cat([real, anchor, chains[drawn]]))
            of_real, of_anchor, negative = torch.split(outputs, [len(own), count, count])
            real_losses = cross_entropy(of_real, own)
            loss = real_losses.mean() + self.lam * cross_entropy(of_anchor, drawn_labels).mean()
            loss = loss + energy.contrast(logit(of_real, own), logit(negative, drawn_labels))
            optimizer.step(w, torch.autograd.grad(loss, leaf)[0], memory)
            losses.append(real_losses.detach())
            scores.append(of_real.argmax(1) == own)
        means = {"loss": torch.cat(losses), "score": torch.cat(scores)}
        return w, {name: values.double().mean() for name, values in means.items()}

    def _continued(self, w: Tensor, x: Tensor, y: Tensor, rng: np.random.Generator) -> Tensor:
        """Samples after further steps of their Langevin chains."""
        for _ in range(self.chain_steps):
            _, grad = energy_gradient(self.task, w, x, y, self.clip)
            epsilon = standard_normal(x.shape, rng)
            x = langevin(x, grad, self.chain_step, self.chain_noise, epsilon, self.limits)
        return x


ENTRIES = {"fedevg": FedEvg}
