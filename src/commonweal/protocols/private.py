"""private: client-level differential privacy that is right for unequal weights.

One request and one Gaussian release per round. Clients weigh themselves by their own loss, their
own memory and public numbers, so that one client changes the sum by its own term only. Clipping
after McMahan et al., ICLR 2018, with the bound of Andrew et al., NeurIPS 2021. docs/privacy.md has
the proofs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor

from commonweal.base import randomness
from commonweal.base.errors import ConfigError
from commonweal.base.tensors import State, Tensors
from commonweal.config import catalog
from commonweal.config.experiment import RunSettings
from commonweal.data.federation import Federation
from commonweal.data.population import Population
from commonweal.protocols.algorithm import Group, Outcome, Replies, Request, Sample
from commonweal.protocols.averaging import Averaging
from commonweal.protocols.privacy.accounting import epsilon_of, noise_for
from commonweal.protocols.privacy.entropy import Entropy, coins, source
from commonweal.protocols.privacy.promise import Promise
from commonweal.protocols.privacy.release import Sensitivity, adapted_clip, release
from commonweal.protocols.privacy.weighing import CLIP, PUBLIC, weigh
from commonweal.protocols.samplers.poisson import Poisson
from commonweal.protocols.samplers.sampler import Sampler
from commonweal.protocols.samplers.uniform import Uniform
from commonweal.protocols.sums import collected
from commonweal.rules.private_form import Federated, PrivateForm, guessing_loss, number
from commonweal.rules.rule import Rule
from commonweal.training.client_state import ClientState

NEAREST = {
    "afl": "aaggff-d",
    "aaggff-s": "aaggff-d",
    "qfedavg": "term",
    "propfair": "term",
    "vred": "semi-vred",
    "owa": "cvar",
    "gifair": "cvar",
    "term": "term with relative = true",
    "aaggff-d": "aaggff-d with a number as scale",
}


@dataclass(frozen=True, eq=False)
class Private(Averaging):
    """w <- server step along (sum_i h_i clip(u_i, C) + noise) / S, h_i computed by client i

    Give `epsilon`, or `noise`: each follows from the other. The noise has the standard deviation
    z H C / sqrt(1 - share), H the largest weight, z the smallest noise for `epsilon`.

    Args:
        epsilon: What the whole run may spend.
        noise: z, instead of epsilon.
        delta: By default 1e-5, or a tenth of 1 / K where that is smaller.
        clip: C, the longest update, in the first round.
        quantile: C follows this quantile of the lengths of updates, not below clip / 10; "none":
            C is fixed.
        share: The part of the promise that is used for public numbers.
        cap: The largest weight of a client, where its rule has no bound.
        bound: Losses above it count as it.
        entropy: "system": nobody can predict cohorts and noise. "seed": the run can be repeated,
            and its promise is simulated.
        loss: As in averaging.
    """

    epsilon: float | None = None
    noise: float | None = None
    delta: float | None = None
    clip: float = 1.0
    quantile: float | Literal["none"] = 0.9
    share: float = 0.05
    cap: float = 4.0
    bound: float = 5.0
    entropy: Entropy = "system"
    population: Population | None = None
    cohort_size: int | None = None
    sampler: Sampler | None = None

    always_evaluates: ClassVar[bool] = True  # clients weigh themselves by the received model

    # What is refused

    @property
    def plans_rounds(self) -> bool:
        return True

    def __post_init__(self) -> None:
        super().__post_init__()
        for problem in (*self._wrong_numbers(), *self._wrong_parts()):
            raise ConfigError(f"private: {problem}")

    def _wrong_numbers(self) -> Iterator[str]:
        if (self.epsilon is None) == (self.noise is None):
            given = f"epsilon = {self.epsilon}, noise = {self.noise}"
            yield f"{given}: give one of them, the other follows"
        for name in ("epsilon", "noise", "clip", "cap", "bound"):
            value = vars(self)[name]
            if value is not None and not value > 0:
                yield f"{name} = {value}: it must be above 0"
        if not 0 < self.share < 1:
            yield f"share = {self.share}: it must be between 0 and 1"
        if self.quantile != "none" and not 0 < self.quantile < 1:
            given = f"quantile = {self.quantile}"
            yield f'{given}: it must be between 0 and 1, or "none" for a fixed clip'
        if not 0 < self.chosen_delta < 1 / self.clients:
            yield (
                f"delta = {self.delta} with {self.clients} clients: it must be above 0 and below "
                f"1 / {self.clients}, or the promise allows to give a client away"
            )

    def _wrong_parts(self) -> Iterator[str]:
        everyone = self.rate == 1 and isinstance(self.sampler, Uniform | None)
        if not everyone and not isinstance(self.sampler, Poisson):
            reason = "draws clients by what must stay private"
            if isinstance(self.sampler, Uniform):
                reason = "draws cohorts of a fixed size, for which epsilon is several times larger"
            name = catalog.named_part(self.sampler).name
            yield f'sampler {name!r} {reason}: set sampler = "poisson", or cohort = "all"'
        if self.rule.private is None:
            yield _unavailable(self.rule)
        client = f"client {catalog.named_part(self.client).name!r}"
        if self.client.init_shared(self.task):
            yield (
                f"{client} has the server keep what clients sent without noise: use 'sgd' or "
                "'fedprox'"
            )
        collects = collected(self.client, self.rounds)
        if collects:
            yield (
                f"{client} collects replies without noise from all clients ({collects}), as for "
                "mixing or choosing: use 'ditto', 'fedper' or 'fine-tune'"
            )
        if self.channels:
            names = [catalog.named_part(channel).name for channel in self.channels]
            yield f"it clips by itself: remove channels = {names}"
        mask = self.client.private(self.task)
        buffers = torch.arange(self.task.size) >= self.task.num_trainable
        sent = int((buffers if mask is None else buffers & ~mask).sum())
        if sent:
            yield (
                f"the model sends {sent} averages over samples (BatchNorm): use a model without "
                "them, or client = 'fedbn', which keeps them at the client"
            )

    def check(self, settings: RunSettings, federation: Federation | None) -> None:
        """Raise ConfigError where something of a run would be published without noise."""
        choosing = {
            "patience": "stops where clients' scores say",
            "validation": "chooses the best round by clients' samples",
            "synthetic_from": "starts from a run without noise",
        }
        for key, reason in choosing.items():
            value = vars(settings)[key]
            if value:
                raise ConfigError(f"private: {key} = {value!r} {reason}: leave it out")
        if federation is not None and (federation.pooled or federation.target is not None):
            fitted = "statistics of the features"
            if federation.target is not None:
                fitted = "the mean and deviation of the labels"
            raise ConfigError(
                f"private: the data is scaled by {fitted} in clients' training samples, which "
                "would be published with the model: scale it by public numbers beforehand, or "
                "give a table public = 'preparation.json', made from public rows"
            )

    # The promise

    @property
    def clients(self) -> int:
        """K, the number of clients."""
        return 1 if self.population is None else self.population.clients

    @property
    def expected(self) -> float:
        """S, the expected number of clients in a round. Never the number that answers."""
        return float(self.cohort_size or self.clients)

    @property
    def rate(self) -> float:
        """q, the probability of a client to take part in a round."""
        return self.expected / self.clients

    @property
    def chosen_delta(self) -> float:
        return min(1e-5, 0.1 / self.clients) if self.delta is None else self.delta

    @cached_property
    def chosen_noise(self) -> float:
        """z, given or computed from epsilon."""
        if self.noise is not None:
            return self.noise
        assert self.epsilon is not None
        return noise_for(
            epsilon=self.epsilon, rate=self.rate, rounds=self.rounds, delta=self.chosen_delta
        )

    @cached_property
    def form(self) -> PrivateForm:
        """The function by which clients weigh themselves."""
        assert self.rule.private is not None
        return replace(self.rule.private, cap=self.cap, bound=self.bound)

    @property
    def statistics(self) -> int:
        """k, how many numbers clients send with their updates."""
        return self.form.statistics + (self.quantile != "none")

    @cached_property
    def promise(self) -> Promise:
        delta = self.chosen_delta
        noise = self.chosen_noise
        mask = self.client.private(self.task)
        return Promise(
            epsilon=epsilon_of(noise=noise, rate=self.rate, rounds=self.rounds, delta=delta),
            delta=delta,
            noise=noise,
            rate=self.rate,
            rounds=self.rounds,
            cohort=self.expected,
            numbers=self.task.size if mask is None else int((~mask).sum()),
            weight=self.form.most(self._first_numbers()),
            share=self.share if self.statistics else 0.0,
            clip=self.clip,
            quantile=None if self.quantile == "none" else self.quantile,
            simulated=self.entropy == "seed",
        )

    # The server

    def _first_numbers(self) -> Tensors:
        outputs = 1 if self.population is None else self.population.outputs
        loss = guessing_loss(self.task.loss, outputs)
        return self.form.init(Federated(self.clients, self.rate, min(loss, self.bound)))

    def init(self, population: Population) -> State:
        state = super().init(population)
        return state | {"rule": self._first_numbers(), CLIP: number(self.clip)}

    def ask(self, state: State) -> Tensors:
        public = {PUBLIC + name: value for name, value in state["rule"].items()}
        return super().ask(state) | public | {CLIP: state[CLIP]}

    def cohort(self, state: State, sample: Sample) -> Tensor:
        """Toss a coin for every client. Nothing of the past enters."""
        draw = source(self.entropy, self.seed, sample.round, randomness.COHORT)
        return torch.from_numpy(coins(self.rate, sample.population.clients, draw)).nonzero()[:, 0]

    def tell(self, state: State, replies: Replies, clients: int) -> Outcome:
        """Release the sums with noise and move the model, also where nobody answered."""
        replies = replies.finite()
        update, statistics = self._sums(replies)
        sensitivity = self.sensitivity(state)
        draw = source(self.entropy, self.seed, int(state["round"]), randomness.RELEASE)
        following = self.released(state, *release(update, statistics, sensitivity, draw))
        weights = replies.values.get("weight", torch.empty(0)).double() / self.expected
        return Outcome(following, replies.clients, weights, replies.failed)

    def sensitivity(self, state: State) -> Sensitivity:
        """Return the bound on one client's change of the sums of this round."""
        bound = self.form.most(state["rule"]) * float(state[CLIP])
        return Sensitivity(bound, self.statistics, self.chosen_noise, self.share)

    def _sums(self, replies: Replies) -> tuple[Tensor, Tensor]:
        """The sums of updates and statistics, in float64; zeros where nobody answered."""
        if len(replies.clients) == 0:
            sent = self.promise.numbers
            empty = torch.zeros(sent + self.statistics, dtype=torch.float64)
            return empty[:sent], empty[sent:]
        update = replies.values["update"].sum(0, dtype=torch.float64)
        return update, replies.values["statistics"].sum(0, dtype=torch.float64)

    def released(self, state: State, update: Tensor, statistics: Tensor) -> State:
        """The state after a release. It depends on the release and the state, on nothing else."""
        means = statistics / self.expected
        direction = (update / self.expected).to(state["w"].dtype)
        values: Tensors = {"update": direction[None]}
        for channel in reversed(self.path):
            values = channel.decode(values)
        following = self.move(state, values["update"][0], torch.ones(1))
        following["rule"] = self.form.learn(state["rule"], means[: self.form.statistics])
        if self.quantile != "none":
            share = float(means[-1]) + 0.5
            bound = adapted_clip(float(state[CLIP]), self.clip, share, self.quantile)
            following[CLIP] = number(bound)
        return following

    def mixture(self, state: State, clients: int) -> None:
        return None

    def public_numbers(self, state: State) -> dict[str, float]:
        """Return the numbers that the releases so far add to the model: they may be published."""
        # Sorted: a state from a file has another order.
        numbers = {name: float(value) for name, value in sorted(state["rule"].items())}
        return {"clip": float(state[CLIP]), **numbers}

    # The clients

    def init_client(self, seed: int) -> ClientState:
        return super().init_client(seed)._replace(protocol=self.form.init_client())

    def answer(self, request: Request, group: Group) -> tuple[Tensors, ClientState]:
        replies, states = super().answer(request, group)
        if request.purpose != "train":
            return {}, states  # whatever the method says, nothing leaves without noise
        further = sorted(replies.keys() - {"update", "loss", "score", "size"})
        if further:
            name = catalog.named_part(self.client).name
            raise ConfigError(
                f"private: client {name!r} replies with {further}, which get no noise: use 'sgd' "
                "or 'fedprox'"
            )
        memory = group.states.protocol
        sent, memory = self.weigh(replies["update"], replies["loss"], memory, request.message)
        return replies | sent, states._replace(protocol=memory)

    def weigh(
        self, updates: Tensor, losses: Tensor, memory: Tensors, message: Mapping[str, Tensor]
    ) -> tuple[Tensors, Tensors]:
        """Return the clients' bounded replies, and their states. The message has public numbers."""
        sent, memory = weigh(self.form, updates, losses, memory, message, self.quantile != "none")
        values = {"update": sent.updates, "statistics": sent.statistics, "weight": sent.weights}
        return values, memory


def _unavailable(rule: Rule) -> str:
    """Return the reason why a rule has no private form, and which one to use instead."""
    name = catalog.named_part(rule).name
    reason = "weighs each client by what the others report"
    if "update" in rule.needs:
        reason = "compares the clients' updates, which no useful noise can hide"
    nearest = NEAREST.get(name, "aaggff-d")
    return f"rule {name!r} {reason}: the nearest that is available is {nearest}"


ENTRIES = {"private": Private}
