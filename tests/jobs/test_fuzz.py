"""Random small experiments: every one runs or is refused with a sentence, and no number is NaN."""

import inspect
import math

import numpy as np
import pytest

from commonweal.base.errors import CommonwealError
from commonweal.config import catalog
from commonweal.config.experiment import Experiment
from commonweal.data.federation import Federation
from commonweal.jobs.job import job_from_experiment, job_from_parts
from commonweal.jobs.rounds import run
from commonweal.models.mlp import mlp
from commonweal.training.task import Task

PARTITIONS = (None, "iid", "dirichlet", "quantity", "labels")
REFUSED_AT_MOST = 0.15  # of the experiments: fedbn without such layers, grouped without domains


def own_rows(rng: np.random.Generator) -> tuple[Task, Federation]:
    """A regression of any scale, or classes of which some clients have one only."""
    n = 90
    x = rng.normal(size=(n, 3)).astype(np.float32)
    owner = rng.integers(0, 6, n)
    owner[:6] = np.arange(6)
    if rng.random() < 0.5:
        scale, shift = 10.0 ** rng.integers(-3, 4), rng.normal() * 100
        y = (scale * (x[:, 0] + 0.1 * rng.normal(size=n)) + shift).astype(np.float32)
        score = str(rng.choice(["r2", "mae", "rmse", "neg-mae"]))
        f = Federation.from_arrays(x, y, owner, score=score)
    else:
        y = (x[:, 0] > 0.8).astype(np.int64)
        score = str(rng.choice(["accuracy", "auroc", "f1", "balanced-accuracy", "auprc"]))
        f = Federation.from_arrays(x, y, owner, outputs=2, score=score)
    return Task(mlp((3,), f.outputs, hidden=(4,)), f.loss, f.score), f


def any_part(kind: str, rng: np.random.Generator) -> dict[str, object]:
    """A part with its defaults, and with what it requires: guarded(rule=...), ball(step=...)."""
    entries = catalog.entries(kind)
    plain = [name for name in entries if not required(entries[name])]
    chosen = str(rng.choice(sorted(entries)))
    part: dict[str, object] = {"name": chosen}
    for parameter in required(entries[chosen]):
        part[parameter] = 10.0 if parameter == "radius" else str(rng.choice(plain))
    return part


def required(entry: catalog.Entry) -> list[str]:
    """The parameters without a default: another part, or a radius."""
    empty = inspect.Parameter.empty
    return [name for name, each in entry.parameters.items() if each.default is empty]


def experiment(seed: int) -> bool:
    """Run one random experiment. Returns whether it ran."""
    rng = np.random.default_rng(seed)
    parts = {
        "rule": any_part("rules", rng),
        "client": {
            "name": str(rng.choice(sorted(catalog.entries("clients")))),
            "lr": float(10.0 ** rng.uniform(-3, 0)),
        },
        "server": any_part("servers", rng),
        "rounds": 3,
        "seed": seed,
        "cohort": [0.5, "all", 3][int(rng.integers(3))],
        "validation": [0.0, 0.3][int(rng.integers(2))],
        "holdout_clients": [0.0, 0.3][int(rng.integers(2))],
    }
    try:
        if rng.random() < 0.5:
            task, federation = own_rows(rng)
            job = job_from_parts(task, federation, **parts)
        else:
            partition = PARTITIONS[int(rng.integers(len(PARTITIONS)))]
            model = {"name": "mlp", "hidden": [4]}
            job = job_from_experiment(
                Experiment(dataset="vowel", partition=partition, model=model, **parts)
            )
        done = list(run(job))
    except CommonwealError:
        return False
    for each in done:
        for found in (each.metrics, each.personal, each.validation, each.unseen):
            undefined = {"gini", "kl"}  # of negative scores
            bad = {k for k, v in found.items() if not math.isfinite(v)} - undefined
            assert not bad, (seed, parts, bad)
    return True


def test_random_experiments_run_or_are_refused() -> None:
    ran = [experiment(seed) for seed in range(25)]
    assert sum(ran) >= (1 - REFUSED_AT_MOST) * len(ran)


@pytest.mark.slow
def test_two_hundred_random_experiments() -> None:
    ran = [experiment(seed) for seed in range(1000, 1200)]
    assert sum(ran) >= (1 - REFUSED_AT_MOST) * len(ran)
