"""fedcorr: finds clients with wrong labels, corrects them, then trains as usual with any rule.

Xu et al., FedCorr: Multi-Stage Federated Learning for Label Noise Correction, CVPR 2022. With
AdaFed as rule it is the combination of AdaFed's Appendix I. Three stages: all clients train in
turns, noisy ones are found by the dimension of their models' predictions and relabel their
samples of high loss; the clean ones train; the noisy ones relabel all samples of which the model is
sure, and all train. Corrected labels stay with the client. Without the paper's mixup.
"""

import math
from collections.abc import Generator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from commonweal.base import randomness
from commonweal.base.errors import ConfigError
from commonweal.base.shares import product
from commonweal.base.tensors import State, Tensors
from commonweal.clients.fedprox import FedProx
from commonweal.data.population import Population
from commonweal.data.rows import Rows
from commonweal.protocols.algorithm import Conversation, Group, Replies, Request, Sample
from commonweal.protocols.averaging import Averaging
from commonweal.protocols.noisy_labels import intrinsic_dimension, upper_component
from commonweal.rules.fedavg import FedAvg
from commonweal.training.ask import Samples
from commonweal.training.client import sgd_parameters
from commonweal.training.client_state import ClientState
from commonweal.training.evaluation import evaluate_rows


@dataclass(frozen=True, eq=False)
class FedCorr(Averaging):
    """Averaging on labels that noisy clients correct: wrong ones are where the loss is high

    iterations: how often all clients are visited in the first stage, in parts of `cohort`
    tuning: the rounds of the second stage, in which clean clients train, as a fraction below 1 of
        those after the first stage, or as a number
    relabel: the share of a noisy client's samples of high loss that are relabelled per iteration
    confidence: a sample is relabelled where the model's largest probability is above it
    clean: the noise level up to which a client trains in the second stage
    beta: the penalty beta level |w_i - w|^2 of the first stage; neighbours: for the dimension
    """

    iterations: int = 5
    tuning: float = 0.5
    relabel: float = 0.5
    confidence: float = 0.5
    clean: float = 0.1
    beta: float = 5.0
    neighbours: int = 20

    @property
    def plans_rounds(self) -> bool:
        return True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.task.loss != "cross-entropy":
            raise ConfigError(f"fedcorr corrects classes, but the loss is {self.task.loss!r}")
        self._check_plain_sgd()
        self._check_fields("iterations", least=1)
        self._check_fields("neighbours", least=2)
        self._check_fields("beta", "tuning", least=0)
        for name in ("relabel", "confidence", "clean"):
            value = vars(self)[name]
            if not 0 <= value <= 1:
                raise ConfigError(f"fedcorr {name} = {value}: it must be from 0 to 1")
        if self.beta * self.client.lr >= 1:
            raise ConfigError(
                f"fedcorr beta = {self.beta}, client lr = {self.client.lr}: steps on the penalty "
                "diverge unless beta lr is below 1; lower one of them"
            )

    @property
    def one_by_one(self) -> bool:
        return True

    # The server

    def init(self, population: Population) -> State:
        zeros = torch.zeros(population.clients, dtype=torch.float64)
        unknown = {"dimension": zeros, "level": zeros, "noisy": zeros.bool()}
        return super().init(population) | unknown

    def round(self, state: State, sample: Sample) -> Conversation:
        number = int(state["round"])
        state = _grown(state, sample.population.clients)
        parts = -(-sample.population.clients // sample.size)
        first = self.iterations * parts
        tuning = self.tuning if self.tuning >= 1 else self.tuning * (self.rounds - first)
        second = first + int(tuning)
        if first >= self.rounds:
            raise ConfigError(
                f"fedcorr visits all clients {self.iterations} times, which takes {first} of "
                f"{self.rounds} rounds: give more rounds, a larger cohort or fewer iterations"
            )
        if number <= first:
            outcome = yield from self.identify(state, sample, number - 1, parts)
        elif number <= second:
            outcome = yield from self.train_clean(state, sample)
        else:
            outcome = yield from super().round(state, sample)
        if number == max(first, second):
            noisy = outcome.state["noisy"].nonzero().flatten()
            yield from self.ask_noisy(outcome.state, noisy, "correct")
        return outcome

    def identify(self, state: State, sample: Sample, step: int, parts: int) -> Conversation:
        """A part of all clients trains; after the last part noisy clients are found."""
        iteration, part = divmod(step, parts)
        rng = randomness.stream(self.seed, iteration, 0, randomness.purpose("fedcorr"))
        order = torch.from_numpy(rng.permutation(sample.population.clients))
        cohort = order[part * sample.size : (part + 1) * sample.size].sort().values
        each = {"level": state["level"][cohort].float()}
        replies = yield Request(cohort, self.ask(state), "train", each)
        usable = replies.finite()
        dimension = state["dimension"].clone()
        if len(usable.clients):
            dimension[usable.clients] += usable.values["dimension"].double()
        # A fair rule would favour noisy clients as long as their labels are wrong.
        by_size = replace(self, rule=FedAvg())
        outcome = by_size.tell(state, replies, sample.population.clients)
        following = outcome.state | {"dimension": dimension, "rule": state["rule"]}
        if part == parts - 1:
            following = yield from self.estimate(following)
        return replace(outcome, state=following)

    def estimate(self, state: State) -> Generator[Request, Replies, State]:
        """Find the noisy clients, who estimate their noise and relabel some samples."""
        noisy = upper_component(state["dimension"])
        level = torch.zeros_like(state["level"])
        replies = yield from self.ask_noisy(state, noisy.nonzero().flatten(), "relabel")
        if len(replies.clients):
            level[replies.clients] = replies.values["level"].double()
        return state | {"noisy": noisy, "level": level}

    def ask_noisy(
        self, state: State, noisy: Tensor, purpose: str
    ) -> Generator[Request, Replies, Replies]:
        if len(noisy) == 0:
            return Replies(noisy, {})
        message = self.ask(state) | {"round": state["round"] - 1}  # still the round that ends
        replies = yield Request(noisy, message, purpose)
        return replies

    def train_clean(self, state: State, sample: Sample) -> Conversation:
        """A round of the clients whose noise is at most `clean`; of all where none is."""
        clean = (state["level"] <= self.clean).nonzero().flatten().numpy()
        if len(clean) == 0:
            clean = torch.arange(sample.population.clients).numpy()
        drawn = sample.rng.choice(clean, min(sample.size, len(clean)), replace=False)
        cohort = torch.from_numpy(drawn).sort().values
        replies = yield Request(cohort, self.ask(state))
        return self.tell(state, replies, sample.population.clients)

    # The clients, one at a time

    def answer(self, request: Request, group: Group) -> tuple[Tensors, ClientState]:
        rows = group.rows.client(int(group.ids[0]))
        known = group.states.protocol  # "labels", and "losses" of the first stage
        labels = known["labels"][0] if known else rows.y
        rows = replace(rows, y=labels)
        w = request.message["w"]
        replies: Tensors = {}
        if request.purpose == "relabel" and "losses" in known:
            level, labels = self.corrected(w, rows, known["losses"][0])
            replies = {"level": level[None]}
        elif request.purpose == "correct":
            labels = self.relabelled(w, rows, torch.ones_like(labels).bool())
            replies = {"size": rows.sizes}
        if replies:
            protocol = known | {"labels": labels[None]}
            return replies, group.states._replace(protocol=protocol)
        alone = group._replace(ids=torch.tensor([0]), samples=Samples.of(rows))
        if "level" not in group.each:
            return super().answer(request, alone)
        replies, states, losses = self.train_and_measure(request, alone)
        protocol = {"labels": labels[None], "losses": losses[None]}
        return replies, states._replace(protocol=protocol)

    def train_and_measure(
        self, request: Request, group: Group
    ) -> tuple[Tensors, ClientState, Tensor]:
        """Train with a penalty by noise; also return the dimension and the samples' losses."""
        penalty = 2 * self.beta * float(group.each["level"][0])
        client = FedProx(**sgd_parameters(self.client), mu=penalty)
        reported = self.evaluate_received(request.message, group)
        sent, method = client.answer(self.ask_clients(request, group))
        sent.pop("model", None)  # no rule weighs these replies
        w = request.message["w"] - sent["update"][0]
        probabilities = self.probabilities(w, group.rows)
        dimension = intrinsic_dimension(probabilities, self.neighbours).mean()
        losses, _ = evaluate_rows(self.task.reporting, w, group.rows)
        losses = losses if losses.ndim == 1 else losses[:, 0]  # without what counts in each
        replies = sent | {
            "loss": reported.losses,
            "score": reported.score,
            "size": group.rows.sizes,
            "dimension": dimension[None],
        }
        replies, states = self.encode(replies, method, group)
        return replies, states, losses

    def corrected(self, w: Tensor, rows: Rows, losses: Tensor) -> tuple[Tensor, Tensor]:
        """A client's noise level, and its labels with some of its highest losses relabelled."""
        level = upper_component(losses).double().mean()
        count = math.floor(product(float(level) * self.relabel, len(losses)))
        highest = torch.zeros(len(losses), dtype=torch.bool)
        highest[losses.argsort(descending=True, stable=True)[:count]] = True
        return level, self.relabelled(w, rows, highest)

    def relabelled(self, w: Tensor, rows: Rows, candidates: Tensor) -> Tensor:
        """The labels with those candidates (n,) replaced of which the model is sure."""
        confidence, predicted = self.probabilities(w, rows).max(1)
        return torch.where(candidates & (confidence > self.confidence), predicted, rows.y)

    def probabilities(self, w: Tensor, rows: Rows) -> Tensor:
        """The model's predictions (n, classes)."""
        with torch.no_grad():
            outputs = [self.task.outputs(w, part) for part in torch.split(rows.x, 4096)]
        return torch.cat(outputs).softmax(-1)


def _grown(state: State, clients: int) -> State:
    """The state for clients that joined later: nothing is known of their labels."""
    missing = clients - len(state["level"])
    if missing <= 0:
        return state
    names = ("dimension", "level", "noisy")
    return state | {n: torch.cat([state[n], state[n].new_zeros(missing)]) for n in names}


ENTRIES = {"fedcorr": FedCorr}
