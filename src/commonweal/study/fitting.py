"""The runs of `commonweal fit`: seven methods over several seeds, within the given time.

The experiment of a table is written to the folder, with all settings of the call. A later call
continues it. Where its settings are others, it replaces what is not finished.
"""

import os
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, NamedTuple

from commonweal.base.errors import ConfigError, DataError, RunError
from commonweal.base.files import LOCK, locked, read_plain, write_file
from commonweal.config.experiment import (
    LIFTED,
    OF_FIT,
    PATHS,
    Experiment,
    Tree,
    change,
    part_table,
    to_toml,
    values,
    values_in,
)
from commonweal.datasets.guess.doubts import advice
from commonweal.datasets.guess.guess import Guess, guess
from commonweal.record.record import find_runs
from commonweal.record.removal import remove_run
from commonweal.record.store import EXPERIMENT, changed_keys
from commonweal.study.choosing import run_evidence
from commonweal.study.compare import Data, Step, run_cells
from commonweal.study.given import FILE as CHOICE
from commonweal.study.plan import ALONE, Cell, run_folder
from commonweal.study.refitting import ALL, needs_validation, refit_cell
from commonweal.study.unchanged import check_unchanged

SEEDS = 5
VALIDATION = 0.2
REPORT = "report.html"
FEWEST = 2  # seeds, whatever the time: one shows nothing
TOGETHER = "blend with boosting"  # of local models and trees grown together: classes and values
METHODS = {  # each as changes of an experiment of FedAvg
    ALONE: ["client=alone"],
    "fedavg": ["rule=fedavg"],
    "aaggff-s": ["rule=aaggff-s"],
    "fine-tune": ["client=fine-tune"],
    "blend": ["client=blend", "client.rejoin=false"],
    "boosting": ["algorithm=boosting", "rule=aaggff-s"],
    TOGETHER: ["algorithm=boosting", "rule=fedavg", "client=blend", "client.rejoin=false"],
}
COSTS = {ALONE: 1.5, "blend": 2.5, "boosting": 4.0, TOGETHER: 5.0}  # relative to FedAvg
LOOKING = 1.0  # what the validation samples of a run cost, in rounds of FedAvg
SHOWN = 3  # changed settings that a message names


# The experiment


class Call(NamedTuple):
    """The options of a call of `fit`. None: as in an earlier call, or guessed."""

    path: Path
    changes: tuple[str, ...] = ()  # of the experiment
    label: str | None = None
    client: str | None = None
    seeds: int | None = None
    minutes: float | None = None
    out: Path | None = None
    worth: float | None = None

    def command(self) -> tuple[list[str], list[str]]:
        """The words of the command before and after its label and client."""
        end: list[str] = []
        if self.seeds is not None:
            end += ["--seeds", str(self.seeds)]
        if self.minutes is not None:
            end += ["--minutes", f"{self.minutes:g}"]
        if self.worth is not None:
            end += ["--worth", f"{self.worth:g}"]
        if self.out is not None:
            end += ["--out", str(self.out)]
        return ["commonweal", "fit", str(self.path), *self.changes], end


class Settings(NamedTuple):
    """The settings of a call that are no part of an experiment, and its changes of it."""

    seeds: int = SEEDS
    minutes: float | None = None
    changes: tuple[str, ...] = ()
    worth: float | None = None  # a gain worth having, in points or in % of an error

    def and_of(self, call: Call) -> "Settings":
        """These settings, and those of a later call."""
        changes = {_key(text): text for text in (*self.changes, *call.changes)}
        minutes = self.minutes if call.minutes is None else call.minutes
        worth = self.worth if call.worth is None else call.worth
        return Settings(call.seeds or self.seeds, minutes, tuple(changes.values()), worth)


class Prepared(NamedTuple):
    """The plan of a call, after its experiment was written."""

    settings: Settings
    plan: list[list[Cell]]  # by seed
    guessed: Guess | None  # None: the table was looked at by an earlier call
    replaced: str  # the settings for which an earlier call's runs were removed; empty: none were


def check_folder(folder: Path, toml: Path, path: Path, force: bool = False) -> None:
    """Check that a folder is free for the models of a table, or has those of this one.

    Args:
        folder: Of the runs.
        toml: The experiment that an earlier call wrote.
        path: The table.
        force: Delete what another table has left there.

    Raises:
        DataError: There is no such table.
        RunError: The folder belongs to another table.
    """
    if not path.is_file():
        raise DataError(
            f"there is no file {str(path)!r} (that is, {str(path.absolute())!r}): check the path"
        )
    others = _other_tables(folder, toml, path)
    if not others:
        return
    if not force:
        raise RunError(
            f"{str(folder)!r} has the models of another table, {others[0]!r}: choose another "
            "folder (--out), or start again with --force"
        )
    remove_runs(folder)
    toml.unlink(missing_ok=True)


def _other_tables(folder: Path, toml: Path, path: Path) -> list[str]:
    """The tables, other than this one, that a folder has an experiment or runs of."""
    experiments = [toml, *(run / EXPERIMENT for run in find_runs(folder))]
    others = []
    for experiment in filter(Path.exists, experiments):
        known = part_table(values(experiment).get("dataset")).get("path")
        if isinstance(known, str) and Path(known).resolve() != path.resolve():
            others.append(known)
    return others


def prepare_fit(call: Call, folder: Path, toml: Path, force: bool = False) -> Prepared:
    """Write the experiment of a call to its folder, and plan its runs.

    force: remove finished runs of other settings, too

    Raises:
        ConfigError: The label or the clients are doubtful, or finished runs have other settings.
    """
    call = _with_roles(call)
    earlier = values(toml) if toml.exists() else {}
    before = read_settings(toml) if toml.exists() else Settings()
    settings = before.and_of(call)
    guessed = None
    if not earlier or _looks_again(call, earlier, before):
        dataset = part_table(earlier.get("dataset"))
        label = call.label or _text(dataset.get("label"))
        client = call.client or _text(dataset.get("client"))
        if client == label and call.client is None:
            client = None  # which was guessed before the label was named
        guessed = guess(call.path, label, client, toml, settings.changes)
        if guessed.doubts:
            raise ConfigError(
                f"{advice(guessed.doubts, *call.command())}\n"
                "Nothing was trained. Run the command that is right."
            )
        text = guessed.experiment
    else:
        text = _changed(toml, earlier, [t for t in call.changes if t not in before.changes])
    base = values_in(text, toml)
    plan = fit_plan(_with_defaults(base), settings.seeds, folder)
    replaced = changed_settings(chain.from_iterable(plan))
    if replaced and (folder / CHOICE).exists() and not force:
        raise ConfigError(
            f"{str(folder)!r} has finished models of other settings ({replaced}): --force replaces "
            "them, --out names another folder"
        )
    if replaced:
        remove_runs(folder)
    write_experiment(toml, text, settings)
    return Prepared(settings, plan, guessed, replaced)


def write_experiment(toml: Path, text: str, settings: Settings) -> None:
    """Write an experiment with the settings of the call."""
    text = text.partition(f"\n[{OF_FIT}]\n")[0].rstrip("\n")
    table = {key: value for key, value in settings._asdict().items() if value not in (None, ())}
    about = "# What commonweal fit was called with, besides the columns of label and client"
    written = f"{text}\n\n[{OF_FIT}]\n{about}\n{to_toml(table)}"
    if not toml.exists() or read_plain(toml).decode("utf-8-sig") != written:
        write_file(toml, written.encode(), durable=False)


def read_settings(toml: Path) -> Settings:
    """The settings of an earlier call, in the file that it wrote."""
    table = tomllib.loads(read_plain(toml).decode("utf-8-sig")).get(OF_FIT, {})
    own: Mapping[str, Any] = table if isinstance(table, Mapping) else {"seeds": table}
    seeds, minutes, worth = own.get("seeds", SEEDS), own.get("minutes"), own.get("worth")
    changes = own.get("changes", [])
    is_time = minutes is None or (isinstance(minutes, int | float) and minutes >= 0)
    is_gain = worth is None or (isinstance(worth, int | float) and worth > 0)
    are_numbers = isinstance(seeds, int) and seeds >= FEWEST and is_time and is_gain
    if are_numbers and isinstance(changes, list):
        return Settings(seeds, minutes, tuple(map(str, changes)), worth)
    raise ConfigError(
        f"{str(toml)!r}, [{OF_FIT}]: seeds is a whole number from {FEWEST} on, minutes and worth "
        f"are numbers, changes a list of texts such as 'rounds=50'; got {table!r}"
    )


def finish(toml: Path, settings: Settings, seeds: Sequence[int]) -> None:
    """Write how many seeds there was time for, so that the next call does not go on."""
    if settings.minutes is not None:
        text = read_plain(toml).decode("utf-8-sig")
        write_experiment(toml, text, settings._replace(seeds=len(seeds), minutes=None))


def changed_settings(cells: Iterable[Cell]) -> str:
    """Describe the differences between a plan and the runs in its folders; empty: none."""
    for cell in cells:
        known = cell.folder / EXPERIMENT
        if known.exists() and (changed := changed_keys(known, cell.experiment.toml())):
            parts = []
            for key, (before, after) in list(changed.items())[:SHOWN]:
                parts.append(f"{key} was {before!r}, now {after!r}")
            more = ", ..." if len(changed) > SHOWN else ""
            return ", ".join(parts) + more
    return ""


def remove_runs(folder: Path) -> None:
    """Remove the runs in a folder of `fit`, and what was made of them.

    Raises:
        LockedError: Another process is at one of them.
    """
    runs = list(find_runs(folder))
    for run in runs:
        for lock in run.rglob(LOCK):  # of the run, and of what is below it
            with locked(lock.parent):
                pass
    for run in runs:
        with locked(run):
            remove_run(run)
    for name in (CHOICE, REPORT):
        (folder / name).unlink(missing_ok=True)


def _with_roles(call: Call) -> Call:
    """The call with columns that changes name, as in dataset.label=died, in their own place."""
    roles = {"label": call.label, "client": call.client}
    changes: list[str] = []
    for text in call.changes:
        head, _, key = _key(text).partition(".")
        if head == "dataset" and key in roles:
            roles[key] = text.partition("=")[2].strip()
        else:
            changes.append(text)
    return call._replace(changes=tuple(changes), label=roles["label"], client=roles["client"])


def _looks_again(call: Call, earlier: Tree, before: Settings) -> bool:
    """Return whether a call gives something new about the columns of the table."""
    dataset = part_table(earlier.get("dataset"))
    named = {"label": call.label, "client": call.client}
    if any(value not in (None, dataset.get(key)) for key, value in named.items()):
        return True
    new = [text for text in call.changes if text not in before.changes]
    keys = [_key(text).partition(".") for text in new]
    return any(head == "dataset" and key not in LIFTED for head, _, key in keys)


def _changed(toml: Path, earlier: Tree, changes: Sequence[str]) -> str:
    """The text of an experiment, changed. Comments in front of the first key stay."""
    text = read_plain(toml).decode("utf-8-sig")
    if not changes:
        return text
    tree = change(earlier, changes)
    dataset = dict(part_table(tree["dataset"]))
    for key in PATHS:
        path = dataset.get(key)
        if isinstance(path, str) and path:
            dataset[key] = Path(os.path.relpath(path, toml.absolute().parent)).as_posix()
    comments = []
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            break
        comments.append(line)
    return "\n".join([*comments, to_toml(tree | {"dataset": dataset})])


def _with_defaults(base: Tree) -> Tree:
    rounds = base.get("rounds")
    few = max(1, rounds // 5) if isinstance(rounds, int) else 20
    return {"validation": VALIDATION, "evaluate_every": few} | base


def _key(text: str) -> str:
    return text.partition("=")[0].strip()


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


# Running


class Work(NamedTuple):
    """A step, and how much of all the work is done, in rounds of FedAvg."""

    step: Step
    done: float
    total: float
    evidence: dict[str, Any] | None = None  # of the run, by its validation samples


def fit_plan(base: Mapping[str, object], seeds: int, folder: Path) -> list[list[Cell]]:
    """The runs of every seed: the methods that clients choose among, and what `choose` refits."""
    plan = []
    for seed in range(seeds):
        own = []
        for label, changes in METHODS.items():
            if label == TOGETHER and not _has_local_models(base):
                continue
            experiment = Experiment(**change(base, changes) | {"seed": seed})
            own.append(Cell(label, experiment, run_folder(folder, label, seed)))
        if not needs_validation(own[0].experiment):
            own += [refit_cell(*vars(cell).values()) for cell in own]
        plan.append(own)
    return plan


def _has_local_models(base: Mapping[str, object]) -> bool:
    """Return whether there are linear models and forests, which survival and counts lack."""
    label = _text(part_table(base.get("dataset")).get("label")) or ""
    return "," not in label and base.get("loss") in (None, "squared")


def run_plan(
    plan: Sequence[Sequence[Cell]],
    seconds: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    look: Callable[[bool, Path], dict[str, Any]] = run_evidence,
    force: bool = False,
) -> Iterator[Work]:
    """Run what is not finished, and look at the validation samples, seed by seed.

    Args:
        plan: The runs by seed.
        seconds: Begin no seed beyond the second that would end later; None for all seeds.
        clock: Gives the time in seconds.
        look: Gives the evidence of a run's validation samples.
        force: Start runs again that are of other data, instead of raising RunError.
    """
    check_unchanged(chain.from_iterable(plan), force)
    start = clock()
    data = Data()
    costs = [sum(map(_cost, cells)) for cells in plan]
    ends = list(accumulate(costs))  # the work done after each seed
    done = 0.0
    for k, cells in enumerate(plan):
        if k >= FEWEST and k >= _seeds_within(ends, seconds, clock() - start, done):
            return
        for cell in cells:
            before = done
            cost = _training_cost(cell)
            failed = False
            for step in run_cells([cell], data):
                if step.round is not None:
                    done = before + cost * step.round.number / cell.experiment.rounds
                failed = failed or bool(step.failure)
                seeds = _seeds_within(ends, seconds, clock() - start, done)
                yield Work(step, done, ends[max(k + 1, seeds) - 1])
            done = before + cost
            if not cell.label.endswith(ALL):
                evidence = None if failed else look(False, cell.folder)
                done += LOOKING
                seeds = _seeds_within(ends, seconds, clock() - start, done)
                yield Work(Step(cell, (), None), done, ends[max(k + 1, seeds) - 1], evidence)


def finished(plan: Iterable[Sequence[Cell]], failures: Sequence[str]) -> list[Path]:
    """The runs that clients choose among, where those on all samples are finished, too.

    failures: why some are not

    Raises:
        RunError: There are none of local training, or of no other method.
    """
    runs: list[Cell] = []
    for cells in plan:
        ends = {cell.label: cell.finished for cell in cells}
        for cell in cells:
            if (
                not cell.label.endswith(ALL)
                and ends[cell.label]
                and ends.get(cell.label + ALL, True)
            ):
                runs.append(cell)
    labels = {cell.label for cell in runs}
    if ALONE in labels and len(labels) > 1:
        return [cell.folder for cell in runs]
    lacking = "any method" if not labels else "local training"
    if ALONE in labels:
        lacking = "any other method than local training"
    raise RunError("; ".join([f"no result of {lacking}", *failures]))


def _cost(cell: Cell) -> float:
    looking = 0.0 if cell.label.endswith(ALL) else LOOKING
    return looking + _training_cost(cell)


def _training_cost(cell: Cell) -> float:
    if cell.finished:
        return 0.0
    return COSTS.get(cell.label.removesuffix(ALL), 1.0) * cell.experiment.rounds


def _seeds_within(ends: Sequence[float], seconds: float | None, elapsed: float, done: float) -> int:
    """Return the number of seeds that the time allows, at the speed so far."""
    if seconds is None or done == 0:
        return len(ends)
    affordable = seconds * done / elapsed if elapsed > 0 else float("inf")
    return max(min(FEWEST, len(ends)), sum(end <= affordable for end in ends))
