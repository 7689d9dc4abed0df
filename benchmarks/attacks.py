"""Attacks: what malicious clients do to a rule, plain and guarded.

Twenty clients, 120 rounds, three datasets on which losses fall by far. One or four of the clients
are malicious in every round. The figures are the mean accuracy in % over the honest clients. A run
that diverges counts as 0. Attacks in HELD_OUT were not used to choose the constants of `guarded`.

    nice -n 10 python benchmarks/attacks.py [--rules afl,adafed] [--data digits] [--rounds 40]
    nice -n 10 python benchmarks/attacks.py --honest
"""

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from statistics import median

import torch
from torch import Tensor

import commonweal
from commonweal.algorithms.algorithm import Outcome, Replies
from commonweal.algorithms.averaging import Averaging
from commonweal.base.errors import DivergedError
from commonweal.base.tensors import State, Tensors
from commonweal.jobs.job import Job, job_from_experiment

ROUNDS = 120
RULES = ("fedavg", "qfedavg", "term", "afl", "aaggff-s", "adafed")
MALICIOUS = {1: (3,), 4: (3, 8, 11, 16)}
MLP = {"name": "mlp", "hidden": [32]}
DATA: dict[str, dict[str, object]] = {
    "synthetic": {
        "dataset": {"name": "synthetic", "clients": 20, "rows": 100, "quantity": 0.5, "test": 0.5}
    },
    "digits": {
        "dataset": "digits",
        "partition": {"name": "dirichlet", "alpha": 0.3, "clients": 20},
        "model": MLP,
        "client": {"name": "sgd", "lr": 0.1, "epochs": 2},
    },
    "shards": {
        "dataset": "digits",
        "partition": {"name": "shards", "clients": 20},
        "model": MLP,
        "client": {"name": "sgd", "lr": 0.1, "epochs": 2},
    },
}


class Lie:
    """The replies of a round, of which those of malicious clients are changed."""

    def __init__(self, values: Tensors, malicious: Tensor, number: int) -> None:
        self.values = {name: value.clone() for name, value in values.items()}
        self.malicious = malicious
        self.number = number
        self.honest = torch.ones(len(values["loss"]), dtype=torch.bool)
        self.honest[malicious] = False
        self.random = torch.Generator().manual_seed(number)

    @property
    def update(self) -> Tensor:
        return self.values["update"]

    @property
    def mean(self) -> Tensor:
        """The honest mean update (d,)."""
        return self.update[self.honest].mean(0)

    @property
    def norm(self) -> Tensor:
        """The honest clients' median norm."""
        norm: Tensor = self.update[self.honest].norm(dim=1).median()
        return norm

    def send(self, update: Tensor, norm: float | None = None) -> None:
        """All malicious clients send this update, at so many times the usual norm."""
        if norm is not None:
            update = update / update.norm(dim=-1, keepdim=True).clamp(min=1e-12) * self.norm * norm
        self.update[self.malicious] = update

    def claim(self, times_median: float) -> None:
        """Report so many times the honest clients' median loss."""
        loss = times_median * float(self.values["loss"][self.honest].median())
        self.values["loss"][self.malicious] = loss
        if "loss_after" in self.values:
            self.values["loss_after"][self.malicious] = loss

    def multiply(self, loss: float = 1.0, update: float = 1.0) -> None:
        self.values["loss"][self.malicious] *= loss
        self.update[self.malicious] *= update
        if "loss_after" in self.values:
            self.values["loss_after"][self.malicious] *= loss


Attack = Callable[[Lie], None]


def inflated(lie: Lie, loss: float = 1.0, update: float = 1.0, size: float = 0.0) -> None:
    lie.multiply(loss, update)
    if size:
        lie.values["size"][lie.malicious] = int(size)


def not_finite(lie: Lie) -> None:
    lie.update[lie.malicious] = torch.nan


def backwards(lie: Lie) -> None:
    """The honest mean backwards, at a usual norm, loss and size."""
    lie.send(-lie.mean, norm=1.0)
    lie.claim(2.5)


def min_max(lie: Lie, loss: float = 1.0) -> None:
    """As far against the mean as the honest updates are from each other."""
    honest = lie.update[lie.honest]
    away = torch.cdist(honest, honest).max()
    against = -lie.mean / lie.mean.norm()
    length = (away**2 - (honest - lie.mean).norm(dim=1).max() ** 2).clamp(min=0).sqrt()
    lie.send(lie.mean + length * against)
    lie.claim(loss)


def little_is_enough(lie: Lie, z: float, loss: float = 1.0) -> None:
    """ALIE: so many standard deviations from the mean, in every coordinate."""
    honest = lie.update[lie.honest]
    lie.send(honest.mean(0) - z * honest.std(0))
    lie.claim(loss)


def inner_product(lie: Lie, strength: float, loss: float = 1.0) -> None:
    """IPM: a part of the honest mean backwards."""
    lie.send(-strength * lie.mean)
    lie.claim(loss)


def sleeper(lie: Lie) -> None:
    if lie.number > 8:
        min_max(lie, 2.5)


def alternating(lie: Lie, attack: Attack, every: int) -> None:
    if lie.number % every == 0:
        attack(lie)


def noise(lie: Lie) -> None:
    shape = (len(lie.malicious), lie.update.shape[1])
    lie.send(torch.randn(shape, generator=lie.random), norm=2.0)
    lie.claim(3.0)


def drift(lie: Lie) -> None:
    """One fixed wrong direction."""
    fixed = torch.randn(lie.update.shape[1], generator=torch.Generator().manual_seed(7))
    lie.send(fixed, norm=2.0)
    lie.claim(2.0)


def free_rider(lie: Lie, update: float = 0.0, loss: float = 1.0) -> None:
    lie.update[lie.malicious] *= update
    lie.claim(loss)


def riser(lie: Lie) -> None:
    """Nearly orthogonal, a little against, and losses that rise as that promises."""
    direction = torch.randn(lie.update.shape[1], generator=lie.random)
    direction -= (direction @ lie.mean) / (lie.mean @ lie.mean) * lie.mean
    lie.send(direction / direction.norm() - 0.2 * lie.mean / lie.mean.norm(), norm=1.5)
    lie.claim(1.5 + 0.02 * lie.number)


def copies(lie: Lie) -> None:
    """All send what one honest client sends, and say that they are badly served."""
    lie.send(lie.update[lie.honest][0])
    lie.claim(2.5)


def half_flipped(lie: Lie) -> None:
    lie.update[lie.malicious, ::2] *= -1
    lie.multiply(loss=2.0)


def shifted(lie: Lie) -> None:
    """Their own update with its coordinates in another order."""
    lie.send(lie.update[lie.malicious].roll(17, dims=1))
    lie.multiply(loss=2.0)


ATTACKS: dict[str, Attack] = {
    "loss x 1e6": partial(inflated, loss=1e6),
    "loss x 10": partial(inflated, loss=10.0),
    "loss x 3.5": partial(inflated, loss=3.5),
    "loss x 2": partial(inflated, loss=2.0),
    "update x 1e4": partial(inflated, update=1e4),
    "size 1e12, -update": partial(inflated, update=-1.0, size=1e12),
    "loss x 50, -update": partial(inflated, loss=50.0, update=-1.0),
    "-50 x update": partial(inflated, update=-50.0),
    "-update": partial(inflated, update=-1.0),
    "NaN": not_finite,
    "backwards": backwards,
    "min-max": min_max,
    "min-max, loss x 2.5": partial(min_max, loss=2.5),
    "sleeper": sleeper,
    "backwards every third round": partial(alternating, attack=backwards, every=3),
    "noise": noise,
    "drift": drift,
    "free rider": free_rider,
    "free rider, loss x 3.5": partial(free_rider, loss=3.5),
    "ALIE 3, loss x 2.5": partial(little_is_enough, z=3.0, loss=2.5),
    "ALIE 1, loss x 2.5": partial(little_is_enough, z=1.0, loss=2.5),
    "IPM 0.5": partial(inner_product, strength=0.5),
    "IPM 0.1, loss x 3": partial(inner_product, strength=0.1, loss=3.0),
}
HELD_OUT: dict[str, Attack] = {
    "riser": riser,
    "min-max every second round": partial(alternating, attack=partial(min_max, loss=2.5), every=2),
    "copies": copies,
    "half flipped": half_flipped,
    "shifted": shifted,
    "lazy, loss x 2": partial(free_rider, update=0.05, loss=2.0),
}


@dataclass(frozen=True, eq=False)
class Attacked(Averaging):
    """Averaging in which some clients' replies are changed before the server gets them"""

    attack: Attack | None = None
    malicious: tuple[int, ...] = ()

    def tell(self, state: State, replies: Replies, clients: int) -> Outcome:
        if self.attack is not None:
            positions = torch.isin(replies.clients, torch.tensor(self.malicious)).nonzero()[:, 0]
            lie = Lie(replies.values, positions, int(state["round"]))
            self.attack(lie)
            replies = replies._replace(values=lie.values)
        return super().tell(state, replies, clients)


def attacked(job: Job, attack: Attack | None, malicious: tuple[int, ...]) -> Job:
    algorithm = job.algorithm
    assert isinstance(algorithm, Averaging)
    parts = {field.name: getattr(algorithm, field.name) for field in fields(algorithm)}
    return replace(job, algorithm=Attacked(**parts, attack=attack, malicious=malicious))


def honest_mean(
    data: str, rule: str, attack: Attack | None, malicious: tuple[int, ...], rounds: int
) -> float:
    """The honest clients' mean accuracy in % after the last round."""
    experiment = commonweal.Experiment(
        rule=rule, rounds=rounds, evaluate_every=rounds, **DATA[data]
    )
    job = attacked(job_from_experiment(experiment), attack, malicious)
    try:
        *_, last = commonweal.run(job)
    except DivergedError:  # a model that is no longer a number serves nobody
        return 0.0
    assert last.evaluation is not None
    scores = 100 * last.evaluation.score
    honest = [i for i in range(len(scores)) if i not in malicious]
    return float(scores[honest].nanmean())


def table(
    data: str, rules: list[str], count: int, attacks: Mapping[str, Attack], rounds: int, plain: bool
) -> list[float]:
    """Print a table for so many malicious clients; return the points that guarded rules lose."""
    malicious = MALICIOUS[count]
    print(
        f"\n{data}, {count} of 20 clients malicious, {rounds} rounds: points lost, guarded", end=""
    )
    print(" (plain)" if plain else "")
    print(f"\n| attack | {' | '.join(rules)} |")
    print(f"|---|{'--:|' * len(rules)}")
    truth = {rule: honest_mean(data, rule, None, malicious, rounds) for rule in rules}
    print("| none: accuracy |", " | ".join(f"{truth[rule]:.1f}" for rule in rules), "|", flush=True)
    lost = []
    for name, attack in attacks.items():
        cells = []
        for rule in rules:
            guarded = honest_mean(data, f"guarded(rule={rule})", attack, malicious, rounds)
            lost.append(truth[rule] - guarded)
            cell = f"{lost[-1]:.1f}"
            if plain:
                cell += f" ({truth[rule] - honest_mean(data, rule, attack, malicious, rounds):.1f})"
            cells.append(cell)
        star = "*" if name in HELD_OUT else ""
        print(f"| {name}{star} | {' | '.join(cells)} |", flush=True)
    return lost


def honest_table(rules: list[str], rounds: int) -> None:
    """Print whom guarded rules reject where nobody is malicious, and what that costs."""
    print(
        "\n| data | rule | reports | dropped or capped, % | mean: plain | guarded | worst: plain |",
        end="",
    )
    print(" guarded |\n|---|---|--:|--:|--:|--:|--:|--:|")
    for data in DATA:
        for rule in rules:
            cells = []
            for name in (rule, f"guarded(rule={rule})"):
                experiment = commonweal.Experiment(
                    rule=name, rounds=rounds, evaluate_every=rounds, **DATA[data]
                )
                reports = rejected = 0
                for done in commonweal.run(experiment):
                    rejected += len(done.dropped) + len(done.capped)
                    reports += len(done.weights) + len(done.dropped)
                cells.append((reports, rejected, done.metrics["mean"], done.metrics["worst"]))
            (_, _, mean, worst), (reports, rejected, guarded, guarded_worst) = cells
            share = 100 * rejected / reports
            figures = [f"{100 * score:.1f}" for score in (mean, guarded, worst, guarded_worst)]
            cells_text = " | ".join([data, rule, str(reports), f"{share:.2f}", *figures])
            print(f"| {cells_text} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rules", default=",".join(RULES))
    parser.add_argument("--data", default=",".join(DATA))
    parser.add_argument("--attacks", default="", help="some of them, separated by ';'")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--plain", action="store_true", help="show what the plain rule loses, too")
    parser.add_argument("--honest", action="store_true", help="count false alarms instead")
    arguments = parser.parse_args()
    rules = arguments.rules.split(",")
    start = time.perf_counter()
    if arguments.honest:
        honest_table(rules, arguments.rounds)
        return
    attacks = ATTACKS | HELD_OUT
    if arguments.attacks:
        attacks = {name: attacks[name] for name in arguments.attacks.split(";")}
    lost = []
    for data in arguments.data.split(","):
        for count in MALICIOUS:
            lost += table(data, rules, count, attacks, arguments.rounds, arguments.plain)
    above = sum(points > 5 for points in lost)
    print(
        f"\n{len(lost)} cells: median {median(lost):.1f}, largest {max(lost):.1f}, {above} above 5"
    )
    print(f"{time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
