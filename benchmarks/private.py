"""What privacy costs whom: mean accuracy and that of the worst 10 % of clients, by epsilon.

    python benchmarks/private.py RESULTS.jsonl                # runs what is missing, prints tables
    python benchmarks/private.py RESULTS.jsonl --only rotated # or writers
    python benchmarks/private.py --cost                       # a private round next to a plain one

Two federations of digits of 7 x 7 pixels and a logistic model of 500 numbers, 100 rounds, 5 local
steps on all samples. `rotated`: 2,000 clients of 20 training samples, a tenth of them with digits
turned by 90 degrees; 200 clients per round. `writers`: 535 real writers (QMNIST) with 40 training
samples; 100 per round. Every finished run is one line of the file, so that a stopped benchmark
continues. Seeds make the runs repeatable: their promise is simulated.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import commonweal
from commonweal.clients import Client
from commonweal.config import catalog
from commonweal.data.federation import Federation
from commonweal.data.rows import Rows
from commonweal.datasets import build_federation
from commonweal.jobs.rounds import run
from commonweal.task.task import Task

SEEDS = (10, 11, 12)
EPSILONS = (None, 8.0, 4.0, 2.0)
ROUNDS = 100
DELTA = 1e-5
PARTITION_SEED = 1
RULES: dict[str, dict[str, Any]] = {
    "fedavg": {"rule": "fedavg"},
    "fedavg, C = 4": {"rule": "fedavg", "clip": 4.0, "quantile": "none"},
    "cvar 0.5": {"rule": {"name": "cvar", "theta": 0.5}},
    "cvar 0.8": {"rule": {"name": "cvar", "theta": 0.8}},
    "term 2": {"rule": {"name": "term", "t": 2.0}},
    "semi-vred 1": {"rule": {"name": "semi-vred", "beta": 1.0}},
    "aaggff-d": {"rule": {"name": "aaggff-d", "scale": 0.3, "lipschitz": 0.5}},
}


class Result(NamedTuple):
    """One run."""

    federation: str
    rule: str
    epsilon: float | None
    seed: int
    mean: float
    worst: float  # mean of the worst 10 % of clients
    ratio: float | None  # r, the noise's length relative to the longest mean update


def small(images: Tensor) -> Tensor:
    """Digits (n, 28, 28) as rows (n, 49) of length about 1."""
    pooled = torch.nn.functional.avg_pool2d(images[:, None], 4)[:, 0]
    return (pooled.flatten(1) - 0.13) / 0.31 / 7


def equal_clients(x: Tensor, y: Tensor, train: int) -> Federation:
    """Clients (K, n, ...) whose first samples are for training."""

    def rows(inputs: Tensor, labels: Tensor) -> Rows:
        count = labels.shape[1]
        offsets = torch.arange(len(labels) + 1) * count
        return Rows(inputs.flatten(0, 1), labels.flatten(), offsets)

    names = tuple(f"{k:04d}" for k in range(len(y)))
    parts = rows(x[:, :train], y[:, :train]), rows(x[:, train:], y[:, train:])
    return Federation(*parts, names, outputs=10)


def all_samples(name: str, **parameters: object) -> Federation:
    return build_federation(catalog.build("datasets", {"name": name, **parameters}), None, None, 0)


def rotated(seed: int = PARTITION_SEED, clients: int = 2000, samples: int = 35) -> Federation:
    """Clients of equal size, the first tenth with digits turned by 90 degrees."""
    pool = catalog.build("datasets", {"name": "mnist"})
    assert not isinstance(pool, Federation)
    images = torch.from_numpy(np.asarray(pool.x, dtype=np.float32)).view(-1, 28, 28) / 255
    labels = torch.from_numpy(pool.y)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    chosen = order[: clients * samples].view(clients, samples)
    turned = images[chosen]
    minority = clients // 10
    turned[:minority] = torch.rot90(turned[:minority], 1, (2, 3))
    x = small(turned.flatten(0, 1)).view(clients, samples, -1)
    return equal_clients(x, labels[chosen], train=20)


def writers(samples: int = 60) -> Federation:
    """Writers of QMNIST with as many samples as that."""
    whole = all_samples("mnist-writers")
    xs = []
    ys = []
    for client in range(whole.clients):
        parts = [rows.client(client) for rows in (whole.train, whole.test)]
        x = torch.cat([part.x for part in parts]).view(-1, 28, 28)
        y = torch.cat([part.y for part in parts])
        if len(y) < samples:
            continue
        chosen = torch.randperm(len(y), generator=torch.Generator().manual_seed(client))[:samples]
        xs.append(small(x[chosen].float() / 255))
        ys.append(y[chosen])
    return equal_clients(torch.stack(xs), torch.stack(ys), train=40)


FEDERATIONS: dict[str, tuple[Callable[[], Federation], int]] = {
    "rotated": (rotated, 200),
    "writers": (writers, 100),
}


def task() -> Task:
    module = nn.Linear(49, 10)
    nn.init.zeros_(module.weight)
    nn.init.zeros_(module.bias)
    return Task(module)


def settings(rule: str, epsilon: float | None, seed: int, cohort: int) -> dict[str, Any]:
    """The parts of a run; without epsilon it is a plain one."""
    given = dict(RULES[rule])
    chosen = {
        "rule": given.pop("rule"),
        "client": Client(steps=5, batch=0, lr=4.0),
        "sampler": "poisson",
        "cohort": cohort,
        "rounds": ROUNDS,
        "seed": seed,
        "evaluate_every": ROUNDS,
    }
    if epsilon is None:
        return chosen
    private = {"name": "private", "epsilon": epsilon, "delta": DELTA, "entropy": "seed", **given}
    return chosen | {"algorithm": private}


def measured(name: str, data: Federation, rule: str, epsilon: float | None, seed: int) -> Result:
    """Run once."""
    cohort = FEDERATIONS[name][1]
    rounds = run(task(), data, **settings(rule, epsilon, seed, cohort))
    last = list(rounds)[-1]
    promise = last.job.algorithm.promise
    ratio = None if promise is None else promise.ratio
    scores = last.metrics
    return Result(name, rule, epsilon, seed, scores["mean"], scores["worst_10"], ratio)


def read(path: Path) -> list[Result]:
    if not path.exists():
        return []
    return [Result(*json.loads(line)) for line in path.read_text().splitlines()]


def missing(name: str, done: list[Result]) -> Iterator[tuple[str, float | None, int]]:
    """The runs that have no line yet. A fixed clip bound means nothing without privacy."""
    known = {(each.rule, each.epsilon, each.seed) for each in done if each.federation == name}
    for seed in SEEDS:
        for rule, given in RULES.items():
            for epsilon in EPSILONS:
                plain_again = epsilon is None and "clip" in given
                if (rule, epsilon, seed) not in known and not plain_again:
                    yield rule, epsilon, seed


def table(name: str, results: list[Result]) -> str:
    """Worst 10 % and mean over seeds, by rule and epsilon."""
    header = ["rule", *(f"eps {e:g}" if e else "none" for e in EPSILONS), "r at 8 / 2"]
    lines = [f"| {' | '.join(header)} |", "|---|" + "--:|" * (len(header) - 1)]
    for rule in RULES:
        cells = []
        ratios = {}
        for epsilon in EPSILONS:
            own = [r for r in results if (r.federation, r.rule, r.epsilon) == (name, rule, epsilon)]
            if not own:
                cells.append("")
                continue
            ratios[epsilon] = own[0].ratio
            worst, average = mean(r.worst for r in own), mean(r.mean for r in own)
            cells.append(f"{worst:.3f} ({average:.3f})")
        shown = " / ".join(f"{ratios[e]:.2f}" for e in (8.0, 2.0) if ratios.get(e) is not None)
        lines.append(f"| {rule} | {' | '.join(cells)} | {shown} |")
    return "\n".join(lines)


def cost() -> None:
    """A private round as a multiple of a plain one, alternating within one process."""
    data = rotated()
    name = "term 2"
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for repeat in range(6):
        for private in (False, True):
            parts = settings(name, 8.0 if private else None, repeat, 200) | {"evaluate_every": 1000}
            begun = run(task(), data, **parts | {"rounds": ROUNDS})
            times = [each.seconds["train"] for each in begun]
            if repeat:
                seconds[private] += times
    ratio = float(np.median(seconds[True]) / np.median(seconds[False]))
    print(f"a private round takes {ratio:.2f} times as long as a plain one (median, {name})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="?", type=Path)
    parser.add_argument("--only", choices=list(FEDERATIONS))
    parser.add_argument("--cost", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.cost:
        cost()
    if options.results is None:
        return
    for name in [options.only] if options.only else list(FEDERATIONS):
        data = FEDERATIONS[name][0]()
        todo = list(missing(name, read(options.results)))
        start = time.monotonic()
        for k, (rule, epsilon, seed) in enumerate(todo, start=1):
            result = measured(name, data, rule, epsilon, seed)
            with options.results.open("a") as file:
                file.write(json.dumps(result) + "\n")
            left = (time.monotonic() - start) / k * (len(todo) - k)
            print(
                f"{name} {k}/{len(todo)}: {rule}, epsilon {epsilon}, {left:.0f} s left", flush=True
            )
        found = read(options.results)
        print(f"\n{name} (commonweal {commonweal.__version__}): worst 10 % of clients (mean)\n")
        print(table(name, found) + "\n")


if __name__ == "__main__":
    main()
