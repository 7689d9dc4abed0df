"""A comparison of one's own task and federation: its runs, and what a seed draws for them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch

from commonweal.base.errors import CommonwealError, ConfigError
from commonweal.config import catalog
from commonweal.data.federation import Federation
from commonweal.data.identity import identified
from commonweal.data.rows import Rows, select_rows
from commonweal.data.samples import joined_inputs, subset
from commonweal.data.split import tested_rows
from commonweal.jobs.job import Job, job_from_parts
from commonweal.study.plan import ALONE, POOLED, run_folder
from commonweal.task.task import Task
from commonweal.training.client import Client

T = TypeVar("T")

NOTHING = "nothing but cohorts, batches and noise varies between seeds"


@dataclass(frozen=True)
class OwnData:
    """One's own task and data, for every seed."""

    what: Task | Callable[[int], Task]
    data: Federation | Callable[[int], Federation]
    fixed: bool

    def task(self, seed: int) -> Task:
        """The task with initial weights drawn by the seed."""
        if isinstance(self.what, Task):
            return self.what if self.fixed else self.what.reinitialised(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return _of_seed("what", self.what, seed, Task)

    def federation(self, seed: int) -> Federation:
        if not isinstance(self.data, Federation):
            return identified(_of_seed("federation", self.data, seed, Federation), drawn=True)
        return resplit(self.data, seed) if self._splits else self.data

    @property
    def _splits(self) -> bool:
        """True if the samples at hand can be split again."""
        data = self.data
        if not isinstance(data, Federation):
            return True
        prepared = data.preprocessing is not None or data.validation is not None
        return not (self.fixed or prepared or data.held_out is not None)

    @property
    def varied(self) -> str:
        """A note on what differs between seeds."""
        changing = ["split"] if self._splits else []
        if not isinstance(self.what, Task) or (self.what.is_drawn and not self.fixed):
            changing.append("initial weights")
        if not changing:
            return NOTHING
        return f"seeds vary {', '.join(changing)} and batches"


@dataclass(frozen=True)
class OwnCell:
    """One run of one's own task and federation."""

    label: str
    seed: int
    folder: Path
    own: OwnData
    parts: Mapping[str, object]
    finished: bool = False  # only running it shows whether the folder holds the same run

    @property
    def data(self) -> object:
        """The key of the data: runs with equal ones share their federation."""
        return self.seed

    def federation(self) -> Federation:
        return self.own.federation(self.seed)

    def job(self, federation: Federation) -> Job:
        task = self.own.task(self.seed)
        return job_from_parts(task, federation, **{**self.parts, "seed": self.seed})


def own_cells(
    own: OwnData,
    rules: Mapping[str, Mapping[str, object]],
    seeds: Sequence[int],
    baselines: bool,
    folder: Path,
    parts: Mapping[str, object],
) -> list[OwnCell]:
    """The runs of every rule, and of local and pooled training.

    Args:
        own: The task and the data.
        rules: The parts of each method, by its label.
        seeds: Which.
        baselines: Also train local models, and one model on pooled data.
        folder: Where the runs are.
        parts: The other parts and settings of `run`.
    """
    kinds = {label: {**parts, **rule} for label, rule in rules.items()}
    if baselines:
        kinds |= _baseline_parts(parts)
    plan = []
    for label, given in kinds.items():
        for seed in seeds:
            plan.append(OwnCell(label, seed, run_folder(folder, label, seed), own, given))
    return plan


def resplit(federation: Federation, seed: int) -> Federation:
    """Split each client's samples into training and test samples again: seeds are folds.

    They are those of `Federation.from_arrays`: with test = 0.2 five seeds test every sample once.
    Where samples were given as training and test samples, the share of test samples stays.
    """
    train, test = federation.train, federation.test
    clients = torch.arange(federation.clients)
    owner = torch.cat([clients.repeat_interleave(rows.sizes) for rows in (train, test)])
    order = owner.argsort(stable=True)
    everything = Rows(
        subset(joined_inputs([train.inputs, test.inputs]), order),
        torch.cat([train.y, test.y])[order],
        torch.cat([torch.zeros(1, dtype=torch.int64), (train.sizes + test.sizes).cumsum(0)]),
        numbers=torch.arange(len(order)),
    )
    share = federation.test_share
    if share is None:
        share = len(test.y) / len(order)
    owners = owner[order].numpy()
    is_test = tested_rows(owners, everything.y.numpy(), federation.names, share, seed)
    new_train = replace(select_rows(everything, owners, ~is_test), transform=train.transform)
    return replace(
        federation,
        train=replace(new_train, numbers=None),
        test=replace(select_rows(everything, owners, is_test), transform=test.transform),
    )


def _of_seed(name: str, function: Callable[[int], T], seed: int, kind: type[T]) -> T:
    """Return the federation that a user's function of the seed makes."""
    try:
        made = function(seed)
    except CommonwealError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{name}({seed}) raised {reason[:200]}") from error
    if not isinstance(made, kind):
        raise ConfigError(f"{name}({seed}) returned {made!r:.60}: return a {kind.__name__}")
    return made


def _baseline_parts(parts: Mapping[str, object]) -> dict[str, dict[str, object]]:
    """The parts of runs alone and pooled, with the same learning rate and batches."""
    given = parts.get("client", "sgd")
    is_object = isinstance(given, Client)
    table = catalog.named_part(given) if is_object else catalog.complete("clients", given)
    known = catalog.find_entry("clients", "sgd").parameters
    common = {key: value for key, value in table.items() if key in known}
    replaced = ("rule", "client", "channels", "sampler")
    rest = {key: value for key, value in parts.items() if key not in replaced}
    return {
        ALONE: {**rest, "client": {"name": "alone", **common}},
        POOLED: {**rest, "algorithm": "pooled", "client": {"name": "sgd", **common}},
    }
