"""Plans of comparisons: the same experiment under several rules and seeds.

Nothing slow is imported here, so that mistakes in a plan are reported at once.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from commonweal.base.errors import ConfigError
from commonweal.config import catalog
from commonweal.config.experiment import MODELS, Experiment, change, file_name, part_table

if TYPE_CHECKING:
    from commonweal.data.federation import Federation
    from commonweal.jobs.job import Job

ALONE = "alone"  # the label of runs in which every client trains for itself
POOLED = "pooled"  # and of those in which all samples are in one place


class Planned(Protocol):
    """One run of a plan."""

    @property
    def label(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def folder(self) -> Path: ...
    @property
    def finished(self) -> bool: ...
    @property
    def data(self) -> object:
        """The key of the data: runs with equal ones share their federation."""

    def federation(self) -> "Federation": ...
    def job(self, federation: "Federation") -> "Job": ...


P = TypeVar("P", bound=Planned)

# What a federation depends on.
OF_DATA = (
    "dataset",
    "partition",
    "label_noise",
    "seed",
    "holdout_clients",
    "validation",
    "policy",
    "without",
    "synthetic_from",
)


@dataclass(frozen=True)
class Cell:
    """One run of a comparison."""

    label: str
    experiment: Experiment
    folder: Path

    @property
    def seed(self) -> int:
        return self.experiment.seed

    @property
    def data(self) -> object:
        """The settings of its federation, with its validation samples and held-out clients."""
        return tuple(getattr(self.experiment, key) for key in OF_DATA)

    def federation(self) -> "Federation":
        from commonweal.jobs.job import experiment_federation

        return experiment_federation(self.experiment)

    def job(self, federation: "Federation") -> "Job":
        from commonweal.jobs.job import job_from_experiment

        return job_from_experiment(self.experiment, federation)

    @property
    def finished(self) -> bool:
        """True if the folder holds this run, with all rounds, of the files of today."""
        from commonweal.record.identity import changed_files
        from commonweal.record.record import Record
        from commonweal.record.store import changed_keys

        if changed_keys(self.folder / "experiment.toml", self.experiment.toml()):
            return False  # also where there is none; running it says what is wrong
        return Record.read(self.folder).finished and not changed_files(self.folder)


def seed_list(text: str) -> list[int]:
    """The seeds that a text names: how many (0, 1, ...), or the seeds themselves.

    >>> seed_list("3"), seed_list("2,4,6"), seed_list("4,")
    ([0, 1, 2], [2, 4, 6], [4])
    """
    parts = [part.strip() for part in text.removesuffix(",").split(",")]
    if not all(part.isdigit() for part in parts) or len(set(parts)) < len(parts):
        raise ConfigError(f"seeds = {text!r}: give a number of seeds, or a list such as 2,4,6")
    numbers = [int(part) for part in parts]
    if "," in text:
        return numbers
    if numbers[0] < 1:
        raise ConfigError(f"seeds = {text!r}: give at least one")
    return list(range(numbers[0]))


def baseline_cells(
    base: Mapping[str, object], seeds: int | Sequence[int], folder: Path
) -> list[Cell]:
    """The runs that a federation is measured against: every client alone, and all samples pooled.

    Both train with the experiment's learning rate, epochs and batches, and choose on validation
    samples when to stop and how much a linear model and trees count.
    """
    client = part_table(base.get("client"))
    for key in client.keys() - catalog.find_entry("clients", "sgd").parameters:
        del client[key]
    common = dict(base)
    for key in ("rule", "channels", "sampler"):
        common.pop(key, None)
    if part_table(base.get("algorithm")).get("name") in MODELS:
        common.pop("model", None)  # these train networks
    plan = []
    for label, algorithm, method in ((ALONE, "averaging", "alone"), (POOLED, "pooled", "sgd")):
        for seed in _seeds(seeds):
            parts = {"algorithm": algorithm, "client": client | {"name": method}, "seed": seed}
            plan.append(Cell(label, Experiment(**common | parts), run_folder(folder, label, seed)))
    return plan


def _seeds(seeds: int | Sequence[int]) -> Sequence[int]:
    return range(seeds) if isinstance(seeds, int) else seeds


def cells(
    base: Mapping[str, object],
    rules: Sequence[str],
    seeds: int | Sequence[int],
    vary: Sequence[str],
    folder: Path,
    settings: Mapping[str, Sequence[str]] | None = None,
) -> list[Cell]:
    """Every combination of rule, varied values and seed, in the order in which they are run.

    Args:
        base: The values of an experiment.
        rules: Their names, with parameters in brackets; "Ours=./file.py:Rule" is called Ours.
        seeds: How many, or which.
        vary: Texts such as `key=value1,value2`.
        folder: Where the runs are.
        settings: Further changes (`key=value`) of some of the rules.
    """
    refuse_torchrun(base.get("engine"))
    settings = settings or {}
    choices = [_choices(text) for text in vary]
    plan = []
    for text, setting, seed in product(rules, product(*choices), _seeds(seeds)):
        name, rule = catalog.split_name(text)
        own = [*settings.get(rule, ()), *setting]
        label = " ".join([name or rule.replace(" ", ""), *own])
        values = change(_with_rule(base, rule), own) | {"seed": seed}
        if name:
            values["name"] = name
        plan.append(Cell(label, Experiment(**values), run_folder(folder, label, seed)))
    if len({cell.folder for cell in plan}) < len(plan):
        raise ConfigError(
            f"the same rule twice among {', '.join(rules)}: give each its own parameters"
        )
    return plan


def run_folder(folder: Path, label: str, seed: int) -> Path:
    """Return the folder of a run by its content: adding or reordering rules continues.

    >>> run_folder(Path("runs"), "afl(lr=0.5)", 2).as_posix()
    'runs/afl_lr=0.5_/seed-2'
    """
    return folder / file_name(label) / f"seed-{seed}"


def _with_rule(base: Mapping[str, object], text: str) -> dict[str, object]:
    """The values with a rule. If it is the base's own, the base's parameters are kept."""
    rule = catalog.parse_part(text)
    name = rule.pop("name")
    values = dict(base)
    if part_table(values.get("rule")).get("name") != name:
        values = change(values, [f"rule={name}"])
    values["rule"] = part_table(values["rule"]) | rule
    return values


def _choices(text: str) -> list[str]:
    key, equals, values = text.partition("=")
    choices = catalog.split_list(values)
    if not equals or not choices:
        raise ConfigError(f"--vary {text!r}: write key=value1,value2")
    return [f"{key}={value}" for value in choices]


def refuse_torchrun(engine: object = None) -> None:
    """Raise ConfigError where torchrun started this process, or an experiment's engine needs it."""
    if engine == "torchrun" or "TORCHELASTIC_RUN_ID" in os.environ:
        raise ConfigError(
            "torchrun divides a single run: divide several runs with --jobs N on one machine, or "
            "with compare --shard K/N on several, without torchrun"
        )


def seed_by_seed(plan: Iterable[P]) -> list[P]:
    """The cells in the order in which they are run: those of one seed have the same data."""
    return sorted(plan, key=lambda cell: cell.seed)


def shard_of(plan: Sequence[P], shard: str) -> list[P]:
    """The part of a plan that one of several machines runs: "3/16" is the third of sixteen.

    >>> shard_of(["a", "b", "c"], "2/2")
    ['b']
    """
    part, slash, parts = shard.partition("/")
    if not slash or not part.isdigit() or not parts.isdigit() or not 1 <= int(part) <= int(parts):
        raise ConfigError(f"--shard {shard!r}: write 3/16 for the third of sixteen parts")
    return list(plan[int(part) - 1 :: int(parts)])
