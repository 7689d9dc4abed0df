"""Attacks: what malicious clients do to a rule, plain and guarded.

Twenty clients, 120 rounds, three federations on which losses fall by far. One or four of the
clients are malicious in every round. The figures are the points of mean accuracy over the honest
clients that are lost against the plain rule without an attack. A model that is no longer finite
counts as 0. Attacks in HELD_OUT and these federations were not used to choose the constants of
`guarded`.

All cells of a table train at once, as one batch of small models, so that the whole takes minutes;
rules and reports are the package's own. Finished cells are appended to a file, and the same
command continues where it was stopped.

    nice -n 19 python benchmarks/attacks.py [--rules afl,adafed] [--data digits] [--rounds 40]

With --minorities nobody is malicious: it prints what a guarded rule leaves of the accuracy that an
honest minority gains by a fair rule over FedAvg, and how many honest reports it rejects.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import commonweal
from commonweal.base.tensors import State, Tensors
from commonweal.config import catalog
from commonweal.data.population import Setting
from commonweal.data.rows import Rows
from commonweal.jobs.job import Job, job_from_experiment
from commonweal.protocols.algorithm import Outcome, Replies
from commonweal.protocols.averaging import Averaging
from commonweal.rules import Decision, Reports, Rule

ROUNDS = 120
RULES = ("fedavg", "qfedavg", "term", "afl", "aaggff-s", "adafed")
MALICIOUS = {1: (3,), 4: (3, 8, 11, 16)}
CLIENTS = 20
HIDDEN = 32
STEPS = 4  # of local SGD per round
BATCH = 16
LR = 0.2
AT_ONCE = 60  # cells that train together
DATA: dict[str, dict[str, object]] = {
    "synthetic": {
        "dataset": {"name": "synthetic", "clients": 20, "rows": 100, "quantity": 0.5, "test": 0.5}
    },
    "digits": {
        "dataset": "digits",
        "partition": {"name": "dirichlet", "alpha": 0.3, "clients": CLIENTS},
    },
    "shards": {"dataset": "digits", "partition": {"name": "shards", "clients": CLIENTS}},
}


class Lie:
    """The replies of a round, of which those of malicious clients are changed."""

    def __init__(self, values: Tensors, malicious: Tensor, number: int) -> None:
        self.values = {name: value.clone() for name, value in values.items()}
        self.malicious = malicious
        self.number = number
        self.honest = torch.ones(len(values["update"]), dtype=torch.bool)
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
        """Report so many times the honest clients' median loss, where the rule asks for losses."""
        if "loss" not in self.values:
            return
        loss = times_median * float(self.values["loss"][self.honest].median())
        self.values["loss"][self.malicious] = loss
        if "loss_after" in self.values:
            self.values["loss_after"][self.malicious] = loss

    def multiply(self, loss: float = 1.0, update: float = 1.0) -> None:
        self.update[self.malicious] *= update
        for name in ("loss", "loss_after"):
            if name in self.values:
                self.values[name][self.malicious] *= loss


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


def min_sum(lie: Lie) -> None:
    """As far against the mean as the squared distances to all honest updates allow in sum."""
    honest = lie.update[lie.honest]
    most = torch.cdist(honest, honest).square().sum(1).max()
    around = (honest - lie.mean).square().sum()
    length = ((most - around).clamp(min=0) / len(honest)).sqrt()
    lie.send(lie.mean - length * lie.mean / lie.mean.norm())
    lie.claim(3.0)


def signs(lie: Lie) -> None:
    """The signs of the honest mean backwards."""
    lie.send(-lie.mean.sign(), norm=1.0)
    lie.claim(1.5)


def stubborn(lie: Lie) -> None:
    """One fixed wrong direction, and always the loss of the first round."""
    drift(lie)
    if "loss" in lie.values:
        lie.values["loss"][lie.malicious] = 2.3


def late(lie: Lie) -> None:
    """Honest for two thirds of the rounds."""
    if lie.number > 80:
        little_is_enough(lie, z=1.5, loss=3.0)


def erratic(lie: Lie) -> None:
    """A direction of its own, and losses at random."""
    drift(lie)
    lie.claim(float(4 * torch.rand((), generator=lie.random)))


def improving(lie: Lie) -> None:
    """A wrong direction at a usual norm, and losses that approach the others'."""
    drift(lie)
    lie.multiply(update=0.5)
    lie.claim(1 + 3 * 0.97**lie.number)


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
    "riser": riser,
    "half flipped": half_flipped,
    "shifted": shifted,
    "stubborn": stubborn,
    "late": late,
    "improving": improving,
}
HELD_OUT: dict[str, Attack] = {
    "min-max every second round": partial(alternating, attack=partial(min_max, loss=2.5), every=2),
    "copies": copies,
    "lazy, loss x 2": partial(free_rider, update=0.05, loss=2.0),
    "min-sum, loss x 3": min_sum,
    "signs, loss x 1.5": signs,
    "erratic": erratic,
}
EVERY = ATTACKS | HELD_OUT


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


class Cell(NamedTuple):
    """A run: a rule, and what some clients do to it."""

    data: str
    rule: str
    attack: str  # empty: none
    malicious: tuple[int, ...]


class Part(NamedTuple):
    """All samples of a federation, client by client."""

    x: Tensor  # (n, p)
    y: Tensor  # (n,)
    client: Tensor  # (n,)
    sizes: Tensor  # (K,)
    offsets: Tensor  # (K,)

    @classmethod
    def of(cls, rows: Rows) -> "Part":
        parts = [rows.client(k) for k in range(CLIENTS)]
        sizes = torch.tensor([len(part.y) for part in parts])
        x = torch.cat([part.x for part in parts]).flatten(1)
        x = x.float() if x.is_floating_point() else x / 255
        y = torch.cat([part.y for part in parts])
        client = torch.arange(CLIENTS).repeat_interleave(sizes)
        return cls(x, y, client, sizes, sizes.cumsum(0) - sizes)

    def mean(self, values: Tensor) -> Tensor:
        """The means (C, K) over the samples of each client of values (C, n)."""
        sums = torch.zeros(len(values), CLIENTS).index_add(1, self.client, values)
        return sums / self.sizes


class Models:
    """Networks of one hidden layer, as vectors (..., d)."""

    def __init__(self, inputs: int, classes: int) -> None:
        self.shapes = [(inputs, HIDDEN), (1, HIDDEN), (HIDDEN, classes), (1, classes)]

    def initial(self) -> Tensor:
        random = torch.Generator().manual_seed(0)
        parts = []
        for rows, columns in self.shapes:
            scale = 0.0 if rows == 1 else rows**-0.5
            parts.append(scale * torch.randn(rows * columns, generator=random))
        return torch.cat(parts)

    def parts(self, w: Tensor) -> list[Tensor]:
        sizes = [rows * columns for rows, columns in self.shapes]
        pieces = torch.split(w, sizes, dim=-1)
        shaped = zip(pieces, self.shapes, strict=True)
        return [torch.unflatten(piece, -1, shape) for piece, shape in shaped]

    def logits(self, w: Tensor, x: Tensor) -> Tensor:
        first, bias, second, shift = self.parts(w)
        return (x @ first + bias).relu() @ second + shift

    def gradient(self, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Of the mean loss of each model (M, d) on its own batch (M, b, p)."""
        first, bias, second, shift = self.parts(w)
        hidden = (x @ first + bias).relu()
        error = (hidden @ second + shift).softmax(-1)
        error.scatter_add_(-1, y[..., None], -torch.ones_like(error[..., :1]))
        error /= y.shape[-1]
        below = (error @ second.mT) * (hidden > 0)
        parts = [x.mT @ below, below.sum(-2, True), hidden.mT @ error, error.sum(-2, True)]
        return torch.cat([part.flatten(-2) for part in parts], -1)


class Federated:
    """A federation whose clients train for many cells at once."""

    def __init__(self, name: str, seed: int = 0) -> None:
        local = job_from_experiment(commonweal.Experiment(**DATA[name], seed=seed)).local
        assert local is not None
        data = local.federation
        self.train = Part.of(data.train)
        self.test = Part.of(data.test)
        classes = 1 + int(max(self.train.y.max(), self.test.y.max()))
        self.models = Models(self.train.x.shape[1], classes)

    def reported(self, w: Tensor) -> Tensor:
        """The training losses (C, K) of models (C, d)."""
        logits = self.models.logits(w, self.train.x)
        y = self.train.y.expand(len(w), -1)
        losses = cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none")
        return self.train.mean(losses.view(len(w), -1))

    def scores(self, w: Tensor) -> Tensor:
        """The accuracies (C, K) in % on test samples."""
        right = self.models.logits(w, self.test.x).argmax(-1) == self.test.y
        return 100 * self.test.mean(right.float())

    def updates(self, w: Tensor, number: int) -> Tensor:
        """The updates (C, K, d) of local training from models (C, d)."""
        random = torch.Generator().manual_seed(number)
        local = w[:, None].repeat(1, CLIENTS, 1)
        for _ in range(STEPS):
            drawn = torch.rand(CLIENTS, BATCH, generator=random) * self.train.sizes[:, None]
            index = self.train.offsets[:, None] + drawn.long()
            x = self.train.x[index].expand(len(w), -1, -1, -1)
            y = self.train.y[index].expand(len(w), -1, -1)
            local -= LR * self.models.gradient(local, x, y)
        return w[:, None] - local


class Played(NamedTuple):
    """The end of a run."""

    scores: Tensor  # (K,) in %; 0 where the model is not finite
    rejected: int  # reports that were dropped or capped, of all clients in all rounds


def play(data: Federated, cells: Sequence[Cell], rounds: int, where: str) -> list[Played]:
    """Run cells of one federation together, and say how far they are."""
    start = time.perf_counter()
    w = data.models.initial().repeat(len(cells), 1)
    rules = [build(cell.rule) for cell in cells]
    setting = Setting(clients=CLIENTS, rounds=rounds, lr=LR, sizes=data.train.sizes)
    states = [rule.init(setting) for rule in rules]
    rejected = [0] * len(cells)
    for number in range(1, rounds + 1):
        losses = data.reported(w)
        updates = data.updates(w, number)
        for c, cell in enumerate(cells):
            values = {"loss": losses[c], "update": updates[c], "size": data.train.sizes}
            decision, sent = decide(rules[c], states[c], cell, values, number)
            if decision is not None:
                states[c] = decision.state
                rejected[c] += len(decision.dropped) + len(decision.capped)
                w[c] -= decision.weights.float() @ sent
        if number % 20 == 0:
            seconds = time.perf_counter() - start
            print(f"{where}: round {number} of {rounds}, {seconds:.0f} s", file=sys.stderr)
    finite = w.isfinite().all(1)
    scores = data.scores(w.nan_to_num(0, 0, 0)) * finite[:, None]
    return [Played(*each) for each in zip(scores, rejected, strict=True)]


def build(rule: str) -> Rule:
    built = catalog.build("rules", rule)
    assert isinstance(built, Rule)
    return built


def decide(
    rule: Rule, state: State, cell: Cell, values: Tensors, number: int
) -> tuple[Decision | None, Tensor]:
    """What the rule makes of a round, and the updates (S, d) that it weighs; None: nothing."""
    if cell.attack:
        lie = Lie(values, torch.tensor(cell.malicious), number)
        EVERY[cell.attack](lie)
        values = lie.values
    usable = values["update"].isfinite().all(1) & values["loss"].isfinite()
    if not usable.any():
        return None, values["update"]
    sent = values["update"][usable]
    reports = Reports(
        ids=torch.arange(CLIENTS)[usable],
        sizes=values["size"][usable],
        losses=values["loss"][usable].double(),
        updates=sent,
        clients=CLIENTS,
    )
    return rule(reports, state), sent


class Results:
    """Finished cells in a file, a line each."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.known: dict[tuple[str, ...], Played] = {}
        if path is not None and path.exists():
            for line in path.read_text().splitlines():
                *key, scores, rejected = json.loads(line)
                self.known[tuple(key)] = Played(torch.tensor(scores), rejected)

    def of(self, cells: Sequence[Cell], rounds: int) -> dict[Cell, Played]:
        """The results of cells; those that are not known are run, with progress."""
        names = {cell: (*map(str, cell), str(rounds)) for cell in dict.fromkeys(cells)}
        left = [cell for cell in names if names[cell] not in self.known]
        for name in dict.fromkeys(cell.data for cell in left):
            data = Federated(name)
            mine = [cell for cell in left if cell.data == name]
            for first in range(0, len(mine), AT_ONCE):
                some = mine[first : first + AT_ONCE]

                where = f"{name}: cells {first} to {first + len(some)} of {len(mine)}"
                for cell, played in zip(some, play(data, some, rounds, where), strict=True):
                    self._add(names[cell], played)
        return {cell: self.known[name] for cell, name in names.items()}

    def _add(self, name: tuple[str, ...], played: Played) -> None:
        self.known[name] = played
        if self.path is not None:
            line = json.dumps([*name, played.scores.tolist(), played.rejected])
            with self.path.open("a") as file:
                file.write(line + "\n")


def honest_mean(played: Played, malicious: tuple[int, ...]) -> float:
    """The mean score over the clients that are not malicious."""
    honest = [k for k in range(CLIENTS) if k not in malicious]
    return float(played.scores[honest].mean())


def tables(
    results: Results,
    data: Sequence[str],
    rules: Sequence[str],
    attacks: Sequence[str],
    rounds: int,
    counts: Sequence[int],
    guard: str,
) -> list[float]:
    """Print a table for each federation and number of malicious clients.

    Returns:
        The points that guarded rules lose, of all cells.
    """
    cells = []
    for name in data:
        for count in counts:
            for rule in rules:
                cells.append(Cell(name, rule, "", MALICIOUS[count]))
                guarded = guard.format(rule)
                cells += [Cell(name, guarded, attack, MALICIOUS[count]) for attack in attacks]
    played = results.of(cells, rounds)
    scores = {cell: honest_mean(played[cell], cell.malicious) for cell in cells}
    lost = []
    for name in data:
        for count in counts:
            malicious = MALICIOUS[count]
            print(
                f"\n{name}, {count} of {CLIENTS} clients malicious, {rounds} rounds: points lost\n"
            )
            print(f"| attack | {' | '.join(rules)} |")
            print(f"|---|{'--:|' * len(rules)}")
            truth = [scores[Cell(name, rule, "", malicious)] for rule in rules]
            print("| none: accuracy |", " | ".join(f"{value:.1f}" for value in truth), "|")
            for attack in attacks:
                ends = [scores[Cell(name, guard.format(r), attack, malicious)] for r in rules]
                row = [before - after for before, after in zip(truth, ends, strict=True)]
                lost += row
                star = "*" if attack in HELD_OUT else ""
                print(f"| {attack}{star} | {' | '.join(f'{points:.1f}' for points in row)} |")
    return lost


def rotated(part: Part, chosen: Tensor) -> Part:
    """Images a quarter turned."""
    turned = part.x.view(-1, 8, 8).rot90(1, (1, 2)).flatten(1)
    return part._replace(x=torch.where(chosen[:, None], turned, part.x))


def renamed(part: Part, chosen: Tensor) -> Part:
    """Every digit under the next one's name: a distant target."""
    return part._replace(y=torch.where(chosen, (part.y + 1) % 10, part.y))


def inverted(part: Part, chosen: Tensor) -> Part:
    """Black for white."""
    return part._replace(x=torch.where(chosen[:, None], part.x.max() - part.x, part.x))


def wrong(part: Part, chosen: Tensor) -> Part:
    """A third of the labels at random, of the training samples."""
    random = torch.Generator().manual_seed(0)
    labels = torch.randint(10, part.y.shape, generator=random)
    chosen = chosen & (torch.rand(part.y.shape, generator=random) < 1 / 3)
    return part._replace(y=torch.where(chosen, labels, part.y))


FAIR = ("afl", "aaggff-s", "term", "adafed")
MINORITY = (3, 8)
CHANGES: dict[str, Callable[[Part, Tensor], Part]] = {
    "rotated": rotated,
    "inverted": inverted,
    "renamed": renamed,
    "wrong labels": wrong,
}


def minority_federation(kind: str, seed: int) -> Federated:
    """Digits of which two clients' differ; "few classes" are shards without a change."""
    if kind == "few classes":
        return Federated("shards", seed)
    data = Federated("digits", seed)
    change = CHANGES[kind]
    minority = torch.tensor(MINORITY)
    data.train = change(data.train, torch.isin(data.train.client, minority))
    if kind != "wrong labels":
        data.test = change(data.test, torch.isin(data.test.client, minority))
    return data


def minorities(seeds: Sequence[int], rules: Sequence[str], rounds: int, guard: str) -> None:
    """Print the gains of minorities over FedAvg, plain and guarded, as means over the seeds.

    A minority are the clients whose data differ; without a difference the two of the lowest
    accuracy under FedAvg.
    """
    print("| federation | rule | FedAvg | gain | gain, guarded | kept | rejected |")
    print("|---|---|--:|--:|--:|--:|--:|")
    methods = ["fedavg", *rules, *(guard.format(rule) for rule in rules)]
    for kind in (*CHANGES, "few classes"):
        scores = dict.fromkeys(methods, 0.0)
        rejected = dict.fromkeys(methods, 0)
        for seed in seeds:
            data = minority_federation(kind, seed)
            cells = [Cell(kind, method, "", ()) for method in methods]
            played = play(data, cells, rounds, f"{kind}, seed {seed}")
            minority = torch.tensor(MINORITY)
            if kind == "few classes":
                minority = played[0].scores.argsort()[:2]
            for method, end in zip(methods, played, strict=True):
                scores[method] += float(end.scores[minority].mean()) / len(seeds)
                rejected[method] += end.rejected
        for rule in rules:
            guarded = guard.format(rule)
            gain = scores[rule] - scores["fedavg"]
            left = scores[guarded] - scores["fedavg"]
            part = f"{left / gain:.0%}" if gain >= 1 else "-"
            reports = len(seeds) * rounds * CLIENTS
            print(
                f"| {kind} | {rule} | {scores['fedavg']:.1f} | {gain:+.1f} | {left:+.1f} | "
                f"{part} | {rejected[guarded] / reports:.1%} |"
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rules", default=",".join(RULES))
    parser.add_argument("--data", default=",".join(DATA))
    parser.add_argument("--attacks", default=";".join(EVERY), help="separated by ';'")
    parser.add_argument("--counts", default="1,4", help="of malicious clients")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--guard", default="guarded(rule={})", help="what is put around a rule")
    parser.add_argument("--out", type=Path, help="the file of finished cells")
    parser.add_argument("--minorities", help="seeds, such as 10,11,12: nobody is malicious")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.minorities:
        seeds = [int(seed) for seed in arguments.minorities.split(",")]
        minorities(seeds, FAIR, arguments.rounds, arguments.guard)
        return
    lost = tables(
        Results(arguments.out),
        arguments.data.split(","),
        arguments.rules.split(","),
        arguments.attacks.split(";"),
        arguments.rounds,
        [int(count) for count in arguments.counts.split(",")],
        arguments.guard,
    )
    above = sum(points > 5 for points in lost)
    print(
        f"\n{len(lost)} cells: median {median(lost):.1f}, largest {max(lost):.1f}, {above} above 5"
    )


if __name__ == "__main__":
    main()
