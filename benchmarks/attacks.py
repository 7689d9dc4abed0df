"""Liars: what false reports do to every rule, plain and guarded.

Twenty clients of the synthetic data, 20 rounds. One or four of them lie in every round; the figures
are the mean accuracy in % over the honest clients, averaged over seeds. "update" is the received
model minus the client's. A run that diverges counts as 0.

    nice -n 10 python benchmarks/attacks.py [--seeds N] [--rules fedavg,afl] [--honest]
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

import commonweal
from commonweal.algorithms.algorithm import Outcome, Replies
from commonweal.algorithms.averaging import Averaging
from commonweal.base.errors import DivergedError
from commonweal.base.tensors import State, Tensors
from commonweal.config import catalog
from commonweal.jobs.job import Job, job_from_experiment
from commonweal.rules import Rule

DATA = {"name": "synthetic", "clients": 20, "rows": 100, "quantity": 0.5, "test": 0.5}
ROUNDS = 20
MLP: dict[str, Any] = {"name": "mlp", "hidden": [32]}
HONEST: dict[str, dict[str, Any]] = {
    "vowel": {"dataset": "vowel", "model": MLP, "client": {"name": "sgd", "epochs": 5}},
    "heart": {"dataset": "heart", "client": {"name": "sgd", "lr": 0.01}},
    "digits, Dirichlet 0.1": {
        "dataset": "digits",
        "partition": {"name": "dirichlet", "alpha": 0.1, "clients": 20},
        "model": MLP,
    },
    "digits, two classes per client": {
        "dataset": "digits",
        "partition": {"name": "shards", "clients": 20},
        "model": MLP,
    },
    "synthetic": {"dataset": {"name": "synthetic", "clients": 20}},
}
LIARS = {1: (3,), 4: (3, 8, 11, 16)}


class Lie(NamedTuple):
    """What liars send instead of their loss, size and update."""

    loss: float = 1.0  # factors
    update: float = 1.0
    size: float = 0.0  # 0: the true one


def nothing_finite(values: Tensors, liars: Tensor) -> Tensors:
    return values | {"update": values["update"].index_fill(0, liars, torch.nan)}


def collude(values: Tensors, liars: Tensor) -> Tensors:
    """All liars send the honest mean update backwards, at a usual norm, loss and size."""
    update = values["update"].clone()
    honest = torch.ones(len(update), dtype=torch.bool).index_fill(0, liars, False)
    norms = update[honest].norm(dim=1)
    mean = update[honest].mean(0)
    update[liars] = -mean / mean.norm() * norms.median()
    loss = values["loss"].index_fill(0, liars, 2.5 * float(values["loss"][honest].median()))
    size = values["size"].index_fill(0, liars, int(values["size"][honest].max()))
    return values | {"update": update, "loss": loss, "size": size}


def lying(lie: Lie) -> Callable[[Tensors, Tensor], Tensors]:
    def change(values: Tensors, liars: Tensor) -> Tensors:
        false = {name: values[name].clone() for name in ("loss", "update", "size")}
        false["loss"][liars] *= lie.loss
        false["update"][liars] *= lie.update
        if lie.size:
            false["size"][liars] = int(lie.size)
        if "loss_after" in values:
            false["loss_after"] = values["loss_after"].clone()
            false["loss_after"][liars] *= lie.loss
        return values | false

    return change


ATTACKS: dict[str, Callable[[Tensors, Tensor], Tensors]] = {
    "loss x 1e6": lying(Lie(loss=1e6)),
    "loss x 5": lying(Lie(loss=5.0)),
    "update x 1e4": lying(Lie(update=1e4)),
    "size 1e12, -update": lying(Lie(update=-1.0, size=1e12)),
    "loss x 50, -update": lying(Lie(loss=50.0, update=-1.0)),
    "-50 x update": lying(Lie(update=-50.0)),
    "-update": lying(Lie(update=-1.0)),
    "NaN": nothing_finite,
    "colluding": collude,
}


@dataclass(frozen=True, eq=False)
class Attacked(Averaging):
    """Averaging in which some clients' replies are changed before the server gets them"""

    attack: Callable[[Tensors, Tensor], Tensors] | None = None
    liars: tuple[int, ...] = ()

    def tell(self, state: State, replies: Replies, clients: int) -> Outcome:
        if self.attack is not None:
            liars = torch.isin(replies.clients, torch.tensor(self.liars)).nonzero()[:, 0]
            replies = replies._replace(values=self.attack(replies.values, liars))
        return super().tell(state, replies, clients)


def attacked(job: Job, attack: str | None, liars: tuple[int, ...]) -> Job:
    algorithm = job.algorithm
    assert isinstance(algorithm, Averaging)
    parts = {field.name: getattr(algorithm, field.name) for field in fields(algorithm)}
    chosen = None if attack is None else ATTACKS[attack]
    return replace(job, algorithm=Attacked(**parts, attack=chosen, liars=liars))


def scores(rule: str, seed: int, attack: str | None, liars: tuple[int, ...]) -> Tensor:
    """All clients' accuracies in % after the last round."""
    experiment = commonweal.Experiment(
        dataset=DATA | {"seed": seed}, rule=rule, rounds=ROUNDS, seed=seed, evaluate_every=ROUNDS
    )
    job = attacked(job_from_experiment(experiment), attack, liars)
    try:
        *_, last = commonweal.run(job)
    except DivergedError:  # a model that is no longer a number serves nobody
        return torch.zeros(job.population.clients)
    assert last.evaluation is not None
    return 100 * last.evaluation.score


def honest_mean(values: Tensor, liars: tuple[int, ...]) -> float:
    honest = [i for i in range(len(values)) if i not in liars]
    return float(values[honest].nanmean())


def rule_names() -> list[str]:
    """All rules that are not made of other rules."""
    rules = {name: entry.factory for name, entry in catalog.entries("rules").items()}
    return [name for name, rule in rules.items() if is_simple(rule)]


def is_simple(rule: object) -> bool:
    if not (isinstance(rule, type) and issubclass(rule, Rule)):
        return False
    return rule.kind.family != "combinator"


def table(rules: list[str], count: int, seeds: range) -> float:
    """Print a table for so many liars, and return the largest loss of a guarded rule."""
    liars = LIARS[count]
    print(f"\n{count} of 20 clients lie (plain -> guarded):\n")
    print(f"| rule | no liar | {' | '.join(ATTACKS)} |")
    print(f"|---|--:|{'--:|' * len(ATTACKS)}")
    worst = 0.0
    for rule in rules:
        guarded = f"guarded(rule={rule})"
        truth = mean_over(seeds, rule, None, liars)
        cells = []
        for attack in ATTACKS:
            plain = mean_over(seeds, rule, attack, liars)
            safe = mean_over(seeds, guarded, attack, liars)
            worst = max(worst, truth - safe)
            cells.append(f"{plain:.1f} -> {safe:.1f}")
        print(f"| {rule} | {truth:.1f} | {' | '.join(cells)} |", flush=True)
    return worst


def mean_over(seeds: range, rule: str, attack: str | None, liars: tuple[int, ...]) -> float:
    values = [honest_mean(scores(rule, seed, attack, liars), liars) for seed in seeds]
    return sum(values) / len(values)


def honest_run(settings: dict[str, Any], rule: str) -> tuple[int, int, int, float]:
    """How many reports, dropped and capped ones, and the mean score after 40 rounds."""
    experiment = commonweal.Experiment(rule=rule, rounds=40, evaluate_every=40, **settings)
    reports = dropped = capped = 0
    for done in commonweal.run(experiment):
        dropped += len(done.dropped)
        capped += len(done.capped)
        reports += len(done.weights) + len(done.dropped)
    return reports, dropped, capped, 100 * done.metrics["mean"]


def honest_table(rules: list[str]) -> None:
    """Print whom guarded rules reject where nobody lies, and whether they change the result."""
    print("\n| data | rule | reports | dropped | capped | mean score: plain | guarded |")
    print("|---|---|--:|--:|--:|--:|--:|")
    for name, settings in HONEST.items():
        for rule in rules:
            *_, plain = honest_run(settings, rule)
            reports, dropped, capped, mean = honest_run(settings, f"guarded(rule={rule})")
            counts = f"{reports} | {dropped} | {capped}"
            print(f"| {name} | {rule} | {counts} | {plain:.2f} | {mean:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rules", default="")
    parser.add_argument("--honest", action="store_true", help="count false alarms instead")
    arguments = parser.parse_args()
    rules = arguments.rules.split(",") if arguments.rules else rule_names()
    start = time.perf_counter()
    if arguments.honest:
        honest_table(rules)
        return
    for count in LIARS:
        worst = table(rules, count, range(arguments.seeds))
        print(f"\nThe most that a guarded rule loses to {count} liars: {worst:.1f} points.")
    print(f"\n{time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
