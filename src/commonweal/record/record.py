"""Reading a run's folder: store.py lists its files."""

import json
import math
import os
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from commonweal.base.arguments import expect, expect_int
from commonweal.base.errors import RunError
from commonweal.base.files import read_plain
from commonweal.base.frames import frame
from commonweal.base.tensors import Tensors
from commonweal.config import catalog
from commonweal.config.experiment import part_name, title_of
from commonweal.data.tables.preprocessing import Preprocessing
from commonweal.record.artifacts import MODEL, read_model, read_preprocessing, read_samples
from commonweal.record.columns import Columns
from commonweal.record.facts import RunFacts, TaskFacts, read_facts
from commonweal.record.rounds import (
    VALUES,
    ClientTable,
    Part,
    Progress,
    RoundRecord,
    StoredRound,
    best_round,
    last_lines,
    last_round,
    read_rounds,
    whole_lines,
)
from commonweal.record.test_scores import TestScores, read_test_scores
from commonweal.task.modules import InUnits, frozen_digest
from commonweal.task.scores import find_score
from commonweal.task.task import Task

if TYPE_CHECKING:
    from commonweal.jobs.stored import StoredModels
    from commonweal.report.figures import Plots

PRIVATE = "private"  # the folder within that of a private run, with the values of its clients
MARKS = {"experiment.toml", "run.json", "rounds.jsonl"}  # a folder with one of them is a run's


def find_runs(root: str | Path) -> Iterator[Path]:
    """Yield the folders of runs in a folder and below it, by path. Links are not followed.

    What is below a run belongs to it.
    """
    pending = [str(root)]
    while pending:
        folder = pending.pop()
        try:
            with os.scandir(folder) as entries:
                listed = sorted(entries, key=lambda entry: entry.name, reverse=True)
        except OSError:
            continue
        if MARKS & {entry.name for entry in listed}:
            yield Path(folder)
            continue
        pending += [entry.path for entry in listed if entry.is_dir(follow_symlinks=False)]


@dataclass(frozen=True)
class Outline:
    """A run by its small files. Its rounds are looked at when they are asked for."""

    folder: Path
    experiment: dict[str, Any]  # the tables of experiment.toml
    facts: RunFacts

    @classmethod
    def open(cls, folder: str | Path) -> "Outline":
        """Read experiment.toml and run.json."""
        return Outline(Path(folder), *_small_files(Path(folder)))

    @property
    def title(self) -> str:
        """The rule, preceded by an algorithm other than averaging."""
        return title_of(self.experiment)

    @property
    def total(self) -> int:
        """The number of rounds that the experiment has."""
        return int(self.experiment.get("rounds", 0))

    @property
    def has_model(self) -> bool:
        """True if the final model is written."""
        return (self.folder / MODEL).exists()

    @property
    def lower_is_better(self) -> bool:
        return find_score(self.facts.score).lower_is_better

    def part(self, key: str, default: str = "") -> str:
        """The name of a part of the experiment, such as its `rule`."""
        return part_name(self.experiment.get(key, default))

    @property
    def is_public_part(self) -> bool:
        """True if this is the part that a private run publishes, without values of its clients."""
        return self.facts.privacy is not None and not (self.folder / VALUES).exists()

    @property
    def where_scores_are(self) -> str:
        """For a private run: where what it does not publish is."""
        return (
            "what is known of single clients is private and left out; it is in "
            f"{self.folder / PRIVATE}, outside the promise"
        )

    def last(self) -> Progress:
        """The last round's number, and the last metrics, from the end of rounds.jsonl."""
        return last_round(self.folder)


def _small_files(folder: Path) -> tuple[dict[str, Any], RunFacts]:
    try:
        experiment = dict(_parse(read_plain(folder / "experiment.toml").decode()))
        for key in ("rounds", "seed"):
            number = experiment.get(key, 0)
            if not isinstance(number, int):
                raise ValueError(f"{key} = {number!r}")
        return experiment, read_facts(folder)
    except FileNotFoundError as error:
        missing = Path(str(error.filename)).name
        raise RunError(
            f"{str(folder)!r} is not the folder of a run: {missing} is missing"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{str(folder)!r} is not the folder of a run: {error}") from None


@lru_cache(maxsize=1 << 13)  # a list of runs reads the same files again and again
def _parse(text: str) -> dict[str, Any]:
    return tomllib.loads(text)


@dataclass(frozen=True)
class Record(Outline):
    """A run read back from its folder."""

    rounds: list[StoredRound]

    def __repr__(self) -> str:
        total = self.experiment.get("rounds")
        return f"<Record {str(self.folder)!r}: {self.title}, {len(self.rounds)} of {total} rounds>"

    @classmethod
    def read(cls, folder: str | Path) -> "Record":
        """Read a run, finished or not."""
        expect("folder", folder, str | Path, "the path of a run's folder")
        folder = Path(folder)
        return cls(folder, *_small_files(folder), read_rounds(folder))

    @classmethod
    def sample(cls, folder: str | Path, most: int) -> "Record":
        """Read a run with a part of its rounds, to draw it: see `read_rounds`."""
        folder = Path(folder)
        return cls(folder, *_small_files(folder), read_rounds(folder, most))

    @classmethod
    def find(cls, root: str | Path) -> "list[Record]":
        """All runs in a folder and below it, by path. Folders that cannot be read are skipped."""
        records = []
        for folder in find_runs(root):
            try:
                records.append(cls.read(folder))
            except RunError:
                continue
        return records

    def whole(self) -> "Record":
        """The run with what it does not publish: of a private run, the part that is kept apart."""
        return Record.read(self.folder / PRIVATE) if self.is_public_part else self

    # Rounds

    def follow(
        self, interval: float = 0.5, stopped: Callable[[], bool] = lambda: False
    ) -> Iterator[StoredRound]:
        """Yield all rounds, and new ones as they are written, until the run is finished.

        Args:
            interval: seconds between looks
            stopped: checked between looks; where it is true, the iteration ends early
        """
        seen = 0
        while True:
            has_model = self.has_model
            rounds = read_rounds(self.folder)
            yield from rounds[seen:]
            seen = max(seen, len(rounds))
            if (has_model and self._are_all(rounds)) or stopped():
                return
            time.sleep(interval)

    @property
    def finished(self) -> bool:
        """True if all rounds are there, and the model."""
        return self.has_model and self._are_all(self.rounds)

    def _are_all(self, rounds: Sequence[RoundRecord]) -> bool:
        last = rounds[-1].number if rounds else 0
        patience = self.experiment.get("patience")
        if patience is not None:
            best = self._best(rounds)
            if best is not None and last - best.number >= patience:
                return True  # the run stopped early
        return last >= self.total

    @property
    def best(self) -> RoundRecord | None:
        """The round that is best on validation samples, whose model is in best.safetensors."""
        return self._best(self.rounds)

    def _best(self, rounds: Sequence[RoundRecord]) -> RoundRecord | None:
        monitor = str(self.experiment.get("monitor", "mean"))
        return best_round(rounds, monitor, self.lower_is_better)

    @property
    def evaluated(self) -> list[StoredRound]:
        """The rounds that were evaluated."""
        return [stored for stored in self.rounds if stored.metrics]

    def timings(self, last: bool = False) -> list[dict[str, float]]:
        """The seconds of every round, by what they were spent on.

        Args:
            last: Read the end of the file only.
        """
        expect("last", last, bool, "True or False")
        path = self.folder / "timings.jsonl"
        try:
            return [json.loads(line) for line in (last_lines if last else whole_lines)(path)]
        except (OSError, ValueError, RecursionError) as error:
            raise RunError(f"{str(path)!r} is damaged ({error}): delete it") from None

    @property
    def plot(self) -> "Plots":
        """Figures of this run: `plot.clients()`, `.rounds()`, `.weights()` and `.regret()`."""
        plots: Plots = import_module("commonweal.report.figures").Plots(self)
        return plots

    # Clients

    def clients(self, round: int | None = None) -> ClientTable:
        """Every client's evaluation after a round, by default the last evaluated one."""
        where = repr(str(self.folder))
        if round is None:
            if self.is_public_part:
                raise RunError(f"{where}: {self.where_scores_are}")
            if not self.evaluated:
                raise RunError(f"{where} has no evaluated round yet")
            round = self.evaluated[-1].number
        expect_int("round", round)
        for stored in self.rounds:
            table = self.table(stored, "test") if stored.number == round else None
            if table is not None:
                return table
        raise RunError(f"{where}: round {round} was not evaluated")

    def unseen(self) -> ClientTable | None:
        """The last evaluation of the clients that are held out of training, if there are any."""
        return self.table(self.evaluated[-1], "unseen") if self.evaluated else None

    def table(self, stored: StoredRound, part: Part) -> ClientTable | None:
        """The evaluation of a round on a part of the data, if there is one."""
        named = stored.table(part)
        if named is None:
            return None
        try:
            return ClientTable.parse(*named, self.facts.score)
        except (KeyError, ValueError) as error:
            raise RunError(f"{str(self.folder)!r} has a damaged evaluation ({error})") from None

    def history(self, client: str) -> dict[str, list[float]]:
        """A client's values by round: NaN where it took no part, or was not evaluated.

        `loss`, `score` and `weight` are what it reported and how much its reply counted; `rate` is
        its rate of descent, for rules that choose a direction; those of the evaluation on test
        samples are called `test.score`, `test.loss` and so on.
        """
        expect("client", client, str, "the name of a client")
        names = list(self.rounds[0].names) if self.rounds else []
        if client not in names:
            raise RunError(f"no client of this run is called {client!r}")
        number = names.index(client)
        history: dict[str, list[float]] = {"round": [stored.number for stored in self.rounds]}
        for k, stored in enumerate(self.rounds):
            for name, value in stored.of_client(number).items():
                history.setdefault(name, [math.nan] * len(self.rounds))[k] = value
        return history

    def frame(self) -> Any:
        """A line per evaluated round and client: round, client, rows, score, loss, ...

        A pandas DataFrame, or a polars one; where neither is installed, a dict of lists. NaN where
        a round has no such column.
        """
        parts: list[Columns] = []
        names: dict[str, None] = {}  # of all columns, in the order in which they appear
        for stored in self.evaluated:
            table = self.table(stored, "test")
            if table is not None:
                part: Columns = {"round": np.full(len(table.names), stored.number)}
                part["client"] = np.array(table.names, object)
                part |= {name: column.numpy() for name, column in table.columns().items()}
                names |= dict.fromkeys(part)
                parts.append(part)
        columns = {}
        for name in names:
            values = [part.get(name, np.full(len(part["round"]), np.nan)) for part in parts]
            columns[name] = np.concatenate(values)
        return frame(columns)

    def test_scores(self) -> TestScores | None:
        """The main score of every test sample, by the models that the run ends with.

        None where they are not known: the samples are at Flower's nodes, the run is not finished,
        or the record is the public part of a private run, or of an older version.
        """
        return read_test_scores(self.folder) if self.has_model else None

    # Models

    def samples(self) -> tuple[Tensor, Tensor] | None:
        """Synthetic samples and their labels, where the algorithm makes some."""
        return read_samples(self.folder)

    def preprocessing(self) -> Preprocessing | None:
        """The preprocessing of a table's rows, where the run was trained on a table."""
        preprocessing = read_preprocessing(self.folder)
        if preprocessing is not None and (len(preprocessing.features),) != self.shape:
            raise RunError(
                f"{str(self.folder)!r}: preparation.json gives {len(preprocessing.features)} "
                f"features, but the model takes {self.shape}: run again"
            )
        return preprocessing

    def state_dict(self) -> Tensors:
        """The final model's tensors, by the module's own names."""
        return read_model(self.folder)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a sample."""
        return self._task.shape

    @property
    def loss(self) -> str:
        return self._task.loss

    @property
    def _task(self) -> TaskFacts:
        if self.facts.task is None:
            raise RunError(f"{str(self.folder)!r} was written by an older version: run it again")
        return self.facts.task

    def module(
        self, own: nn.Module | None = None, trust: bool = False, client: str | None = None
    ) -> nn.Module:
        """The final model as a module in evaluation mode; its outputs are in the labels' units.

        Args:
            own: your own module, where the run is of one: its copy gets the model's values
            trust: import the program that makes the module, where the run names one
            client: the client whose personal model it is; None: the global model
        """
        expect("own", own, nn.Module | None, "the module of the run")
        if client is not None:
            return self._stored(own, trust).module(client)
        target = self.facts.target
        if own is None:
            module = self.raw_module(trust)
            if target is None:
                return module
            return InUnits(module, target.mean, target.deviation, target.log).eval()
        scale = None if target is None else (target.mean, target.deviation)
        task = Task(own, target=scale, log_target=target is not None and target.log)
        tensors = self.state_dict()
        shapes = {name: value.shape for name, value in tensors.items()}
        if shapes != dict(zip(task.names, task.shapes, strict=True)):
            raise RunError(f"{str(self.folder)!r} has the tensors of another model than {own}")
        self.check_frozen(own)
        return task.module_of(task.vector(tensors))

    def modules(
        self, own: nn.Module | None = None, trust: bool = False
    ) -> Iterator[tuple[str, nn.Module]]:
        """Yield every client that took part with its personal model, one after the other.

        Args:
            own: your own module, where the run is of one
            trust: import the programs that the run names
        """
        stored = self._stored(own, trust)
        for client in stored.names:
            yield client, stored.module(client)

    def _stored(self, own: nn.Module | None, trust: bool) -> "StoredModels":
        """The models of the clients, by the last checkpoint."""
        module = own
        if module is None:
            module = self.raw_module(trust)
        else:
            self.check_frozen(module)
        stored = import_module("commonweal.jobs.stored").stored_models
        models: StoredModels = stored(self.folder, self.facts, trust, module)
        return models

    def check_frozen(self, module: nn.Module) -> None:
        """Raise RunError where the parts of a module that are not trained are others."""
        known = self._task.frozen
        if known and frozen_digest(module) != known:
            raise RunError(
                f"{str(self.folder)!r} was trained with other values in the parts of "
                f"{type(module).__name__} that are not trained (another base model?): load those "
                "of the run first"
            )

    def raw_module(self, trust: bool = False) -> nn.Module:
        """The final model as the module that was trained."""
        part = self.experiment.get("model", {})
        if part_name(part) == "given":
            raise RunError(
                f"{str(self.folder)!r} is a run of your own module: give it, record.module(own)"
            )
        task = self._task
        try:
            with torch.random.fork_rng(devices=[]), catalog.trusting(trust):
                torch.manual_seed(self.experiment.get("seed", 0))  # for what is not trained
                module: nn.Module = catalog.build(
                    "models",
                    part,
                    outputs=task.outputs,
                    labels=task.labels,
                    shape=task.shape,
                    rounds=self.experiment.get("rounds", 100),
                )
            self.check_frozen(module)
            module.load_state_dict(self.state_dict(), strict=False)
        except RuntimeError as error:
            raise RunError(
                f"{str(self.folder)!r} has the tensors of another model: {error}"
            ) from None
        return module.eval()


def final_tables(folder: Path) -> dict[str, bytes]:
    """The last evaluation of a run as CSV files, by name."""
    record = Record.sample(folder, 2)  # with the last one: a long run is not held in memory
    files = {}
    parts: dict[str, Part] = {"clients.csv": "test", "unseen.csv": "unseen"}
    for name, part in parts.items():
        table = record.table(record.evaluated[-1], part) if record.evaluated else None
        if table is not None:
            files[name] = table.csv()
    return files
