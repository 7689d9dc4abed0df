"""Private rounds on Flower: clients clip and weigh by a mod, the trusted server adds the noise.

The server draws every connected client by a coin of its own, whatever the number of connected ones,
and moves the model also where nobody answers.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress

import torch
from flwr.app import Context, Message
from flwr.serverapp import strategy
from torch import Tensor

from commonweal.base import randomness
from commonweal.base.errors import ConfigError, DataError
from commonweal.base.tensors import State, Tensors
from commonweal.config import catalog
from commonweal.data.population import Population
from commonweal.flower import messages
from commonweal.flower.arrays import Layout
from commonweal.flower.content import Metric, Settings, add_metrics, settings_of
from commonweal.flower.mods import LOSS_KEY, Call, Loss, Mod, received_loss
from commonweal.flower.reports import Report, column
from commonweal.protocols.privacy.entropy import coins, source
from commonweal.protocols.privacy.release import contribute
from commonweal.protocols.privacy.weighing import CLIP, PUBLIC, weigh
from commonweal.protocols.private import Private
from commonweal.protocols.samplers.poisson import Poisson
from commonweal.protocols.servers.server import ServerOptimizer
from commonweal.rules.fedavg import FedAvg
from commonweal.rules.rule import Rule
from commonweal.rules.uniform import Uniform
from commonweal.training.client import Client

FORM = "private-form"  # settings of a message, metrics of a reply, and a record of a client's state
STATISTICS = "private-statistics"
WEIGHT = "private-weight"
MEMORY = "private-memory"
NO_MOD = (
    "its reply is not clipped and weighed: add the mod commonweal.flower.weigh_privately(my_loss) "
    "to its @app.train"
)
WRAPPERS = tuple(vars(strategy)[n] for n in vars(strategy) if n.startswith("DifferentialPrivacy"))


@dataclass(frozen=True)
class PrivateRounds:
    """The settings that make the rounds of a strategy private.

    Attributes:
        clients: K, the number of all clients: a public number, whoever is connected.
        cohort: S, the expected number of clients in a round.
        classes: Of the labels; public numbers of losses begin at log(classes).
        numbers: The parameters of the algorithm "private", such as epsilon.
    """

    clients: int
    cohort: int
    classes: int
    numbers: Mapping[str, object]

    @classmethod
    def of(cls, given: Mapping[str, object]) -> "PrivateRounds":
        """Read FairStrategy's argument."""
        numbers = {"classes": 1, **given}
        counts = {}
        for name in ("clients", "cohort", "classes"):
            value = numbers.pop(name, None)
            if not isinstance(value, int) or value < 1:
                raise ConfigError(
                    f"private: {name} = {value!r}: give a whole number above 0, as in "
                    "private={'epsilon': 8.0, 'clients': 500, 'cohort': 100}"
                )
            counts[name] = value
        completed = dict(catalog.complete("algorithms", {"name": "private", **numbers}))
        del completed["name"]
        return cls(**counts, numbers=completed)

    def algorithm(
        self, layout: Layout, rule: Rule, server: ServerOptimizer, rounds: int, seed: int
    ) -> Private:
        """The protocol of the server."""
        if rounds < 1:
            raise ConfigError(
                f"private: {rounds} rounds, but their number must be known beforehand: use "
                "start(num_rounds=...)"
            )
        names = tuple(map(str, range(self.clients)))
        return Private(
            layout.task,
            rule,
            Client(),
            server,
            rounds=rounds,
            seed=seed,
            population=Population(names, torch.ones(self.clients), (), self.classes),
            cohort_size=self.cohort,
            sampler=Poisson(),
            **self.numbers,  # type: ignore[arg-type]  # checked by the catalog
        )


def draw_nodes(algorithm: Private, nodes: Sequence[int], round: int) -> list[int]:
    """Toss a coin for every connected node. The rate does not depend on how many there are."""
    entropy = source(algorithm.entropy, algorithm.seed, round, randomness.COHORT)
    return list(compress(nodes, coins(algorithm.rate, len(nodes), entropy)))


def mod_settings(algorithm: Private, state: State) -> Settings:
    """Return the settings of the mod: the form of the rule, and the round's public numbers."""
    form = {
        "rule": catalog.named_part(algorithm.rule),
        "cap": algorithm.cap,
        "bound": algorithm.bound,
        "adapts": algorithm.quantile != "none",
    }
    settings: Settings = {FORM: json.dumps(form), CLIP: float(state[CLIP])}
    for name, value in state["rule"].items():
        settings[PUBLIC + name] = float(value)
    return settings


def read_weighed(algorithm: Private, report: Report, metrics: Mapping[str, Metric]) -> None:
    """Read what the mod reported. Raises DataError where the client does not have it."""
    statistics, weight = metrics.get(STATISTICS), metrics.get(WEIGHT)
    if not isinstance(weight, float) or not isinstance(statistics, list):
        raise DataError(NO_MOD)
    if len(statistics) != algorithm.statistics:
        raise DataError(NO_MOD)
    report.statistics = statistics
    report.weight = weight


def released(
    algorithm: Private, state: State, updates: Tensor, reports: Sequence[Report]
) -> Tensors:
    """Return the replies, bounded once more, as clients may run another program.

    The updates (S, d) are weighted by the clients already.
    """
    rows = [report.statistics for report in reports]
    statistics = torch.tensor(rows, dtype=torch.float64).view(len(rows), -1)
    bound = algorithm.sensitivity(state).update
    sent = contribute(updates, torch.ones(len(rows)), statistics, bound, 1.0)
    weights = column(reports, "weight")
    return {"update": sent.updates, "statistics": sent.statistics, "weight": weights}


def check_wrapper(caller: object, rule: Rule, private: bool) -> str:
    """A warning where one of Flower's privacy wrappers calls a strategy; empty: there is none.

    Raises ConfigError where the privacy that the wrapper reports would not hold.
    """
    if not isinstance(caller, WRAPPERS):
        return ""
    name = type(caller).__name__
    if private or not isinstance(rule, FedAvg | Uniform):
        raise ConfigError(
            f"{name} around FairStrategy({catalog.named_part(rule).name!r}): its noise is made for "
            "equal weights, and losses are sent without noise, so that the privacy that it reports "
            'does not hold; use FairStrategy("uniform"), or FairStrategy(..., private=...) without '
            "the wrapper"
        )
    if isinstance(rule, Uniform):
        return ""
    return (
        f"{name}: its noise is made for equal weights, but FedAvg weighs by sample counts, here as "
        'in Flower: FairStrategy("uniform") has equal weights'
    )


def weigh_privately(loss: Loss, key: str = LOSS_KEY) -> Mod:
    """A client mod that clips and weighs what leaves the client, for `FairStrategy(private=...)`.

    Use it as `@app.train(mods=[weigh_privately(my_loss)])`. The arrays of the reply are replaced by
    the received ones minus the weighted update. What a rule remembers stays in the node's state.

    Args:
        loss: As that of `loss_before_training`.
        key: The metric with the loss, for the record that the server keeps apart.
    """

    def mod(message: Message, context: Context, call_next: Call) -> Message:
        settings = settings_of(message.content)
        if FORM not in settings:
            raise ConfigError(
                f"private: the server's strategy is not private (it sent {sorted(settings)}): "
                "remove the mod"
            )
        before = received_loss(loss, message, context)
        received = next(iter(message.content.array_records.values()))
        reply = call_next(message, context)
        if not reply.has_content():
            return reply
        (name, trained), *_ = reply.content.array_records.items()
        layout = Layout.of(messages.values_of(received))
        w = layout.vector(messages.values_of(received))
        update = (w - layout.vector(messages.values_of(trained)))[None]
        weight, statistics, sent = _weighed(settings, update, before, context)
        reply.content[name] = messages.to_arrays(layout, w - sent)
        metrics: dict[str, Metric] = {key: before, WEIGHT: weight, STATISTICS: statistics}
        add_metrics(reply.content, metrics)
        return reply

    return mod


def _weighed(
    settings: Settings, update: Tensor, loss: float, context: Context
) -> tuple[float, list[float], Tensor]:
    """The weight, the statistics and the weighted update (d,) of one client."""
    form = json.loads(str(settings[FORM]))
    private = catalog.build("rules", form["rule"]).private
    if private is None:
        raise ConfigError(f"private: rule {form['rule']['name']!r} has no private form here")
    private = replace(private, cap=form["cap"], bound=form["bound"])
    memory = {name: value[None] for name, value in private.init_client().items()}
    if MEMORY in context.state.array_records:
        memory |= messages.to_tensors(context.state.array_records[MEMORY])
    losses = torch.tensor([loss], dtype=torch.float64)
    sent, memory = weigh(private, update, losses, memory, settings, form["adapts"])
    if memory:
        context.state[MEMORY] = messages.to_record(memory)
    return float(sent.weights[0]), sent.statistics[0].tolist(), sent.updates[0]
