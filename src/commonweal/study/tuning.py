"""Tuning: the values that each rule's publication tried, evaluated on validation samples.

Nothing is chosen on test samples: a share of every client's training samples replaces them before
anything runs, and the seeds are not those of comparisons.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from commonweal.base.errors import ConfigError, RunError
from commonweal.base.files import digest, write_file
from commonweal.base.plain import to_json
from commonweal.config import catalog
from commonweal.config.experiment import Experiment, part_table
from commonweal.jobs.job import build_dataset, job_from_experiment
from commonweal.jobs.rounds import run
from commonweal.record.identity import NAME as DATA
from commonweal.record.identity import StoredData, check_data, write_data
from commonweal.rules.rule import Rule
from commonweal.study.compare import FAILURES
from commonweal.study.plan import cells
from commonweal.study.workers import worker_pool
from commonweal.task.own import score_name, score_path
from commonweal.training.client import Client

if TYPE_CHECKING:  # optuna is installed with commonweal[tune] only
    from optuna import Study
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial
    from optuna.trial import Trial as Draw


By = Literal["worst", "mean"]
Sampler = Literal["nsga2", "tpe"]
Direction = Literal["minimize", "maximize"]
Setting: TypeAlias = Mapping[str, object]  # values of a rule's parameters and of other keys
# The values to try, by key. Optuna takes lists too, which its types do not say.
Grid: TypeAlias = Mapping[str, tuple[Any, ...]]
Scored: TypeAlias = tuple[float, float]  # mean over clients, and mean of the worst 10 % of them


Progress: TypeAlias = Callable[[str, int, int], None]  # a rule, its finished settings, and all

FIRST_SEED = 1000  # comparisons begin with 0
LOG = "trials.log"  # Optuna's journal
CHOSEN = "tuned.json"
REFUSED = "refused"  # why a setting has no result


@dataclass(frozen=True)
class TriedSetting:
    """A setting of a rule, and its scores on validation samples, as means over seeds."""

    rule: str
    values: Setting  # keys with a dot (client.lr) are the experiment's, others the rule's
    mean: float  # over clients
    worst: float  # mean of the worst 10 % of them

    @property
    def text(self) -> str:
        """The rule with its parameters, as `compare --rules` takes it."""
        return with_values(self.rule, self.values)

    @property
    def settings(self) -> list[str]:
        """The values of other keys, as `key=value`."""
        return changes_of(self.values)


def changes_of(values: Setting) -> list[str]:
    """The values of the experiment's keys.

    >>> changes_of({"q": 1.0, "client.lr": 0.1})
    ['client.lr=0.1']
    """
    return [f"{key}={value}" for key, value in values.items() if "." in key]


def with_values(rule: str, values: Setting) -> str:
    """A rule with further parameters in its brackets. Keys of the experiment are left out.

    >>> with_values("aaggff-s(cdf=frechet)", {"variant": "paper"})
    'aaggff-s(cdf=frechet,variant=paper)'
    """
    own = {key: value for key, value in values.items() if "." not in key}
    part = catalog.parse_part(rule) | own
    name = part.pop("name")
    given = ",".join(f"{key}={value}" for key, value in part.items())
    return f"{name}({given})" if given else str(name)


# One setting


def validation_scores(values: Mapping[str, object], seeds: Sequence[int], share: float) -> Scored:
    """Score an experiment on validation samples, which stand in for the test samples."""
    by_seed = []
    for seed in seeds:
        experiment = Experiment(**values).change(seed=seed)
        split = build_dataset(experiment).with_validation(share, seed)
        assert split.validation is not None
        federation = replace(split, test=split.validation, validation=None)
        experiment = experiment.change(evaluate_every=experiment.rounds)
        metrics: Mapping[str, float] = {}
        for done in run(job_from_experiment(experiment, federation)):
            metrics = done.personal or done.metrics  # of the models that clients use
        by_seed.append((metrics["mean"], metrics["worst_10"]))
    mean, worst = np.mean(by_seed, axis=0).tolist()
    return mean, worst


# Many settings


def tune(
    base: Mapping[str, object],
    rules: Sequence[str],
    folder: Path,
    seeds: int | Sequence[int] = 2,
    share: float = 0.25,
    trials: int = 0,
    jobs: int = 1,
    progress: Progress = lambda rule, done, total: None,
    more: Grid | None = None,
    sampler: Sampler = "nsga2",
    lower_is_better: bool = False,
    grid: Grid | None = None,
    force: bool = False,
) -> list[TriedSetting]:
    """Try every rule's published grid, or some trials within it. A stopped search continues.

    Args:
        base: The values of an experiment.
        rules: Rules; parameters in brackets are fixed.
        folder: Where the trials are saved.
        seeds: How many seeds (1000, 1001, ...), or which.
        share: Share of the training samples that is used for validation.
        trials: How many settings a sampler draws; 0 tries the whole grid.
        jobs: Worker processes.
        progress: Called with a rule, the number of its finished trials, and that of all.
        more: Values of the experiment's keys to try as well.
        sampler: Which sampler draws between the grid's values.
        lower_is_better: Whether the score is an error.
        grid: Values to try instead of the published ones.
        force: Delete the trials that are in the folder, and start again.

    Raises:
        RunError: The trials in the folder are of other data.
    """
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    folder.mkdir(parents=True, exist_ok=True)
    numbers = list(range(FIRST_SEED, FIRST_SEED + seeds) if isinstance(seeds, int) else seeds)
    _check_data(base, numbers[0], folder, force)
    storage = JournalStorage(JournalFileBackend(str(folder / LOG)))
    identity = _identity(base, seeds, share, more)
    direction: Direction = "minimize" if lower_is_better else "maximize"
    processes: AbstractContextManager[Executor | None] = nullcontext()
    if jobs > 1:
        processes = worker_pool(jobs)
    finished: list[TriedSetting] = []
    with processes as pool:
        for rule in rules:
            values = grid_of(rule, base, more) if grid is None else grid
            settings = _Settings(base, rule, values, numbers, share, pool)
            for setting in settings.plan:
                _experiment(base, rule, setting)  # raises where a key or a value is wrong
            study = optuna.create_study(
                storage=storage,
                study_name=rule,
                directions=[direction, direction],  # of the mean, and of the worst 10 %
                sampler=_sampler(sampler, trials),  # for trials between the grid's values
                load_if_exists=True,
            )
            _check(study, identity, folder)
            finished += settings.search(study, trials, jobs, progress)
    return finished


@dataclass(frozen=True)
class _Settings:
    """The settings of a rule, and what evaluates them."""

    base: Mapping[str, object]
    rule: str
    grid: Grid
    seeds: Sequence[int]
    share: float
    pool: Executor | None  # None: here

    @property
    def plan(self) -> list[dict[str, object]]:
        """The whole grid."""
        values = product(*self.grid.values())
        return [dict(zip(self.grid, chosen, strict=True)) for chosen in values]

    def search(
        self, study: "Study", trials: int, jobs: int, progress: Progress
    ) -> list[TriedSetting]:
        """Evaluate the grid, or, within it, as many settings as Optuna is to draw."""
        plan = self.plan
        is_drawn = bool(trials and self.grid)
        total = trials if is_drawn else len(plan)

        def after(study: "Study", trial: "FrozenTrial | None") -> None:
            progress(self.rule, len(_ended(study)), total)

        missing = total - len(_ended(study)) if is_drawn else _enqueue(study, plan)
        after(study, None)
        if missing > 0:
            try:
                # Threads only wait for the worker processes.
                study.optimize(self, missing, n_jobs=jobs, catch=FAILURES, callbacks=[after])
            except (AssertionError, UnboundLocalError) as error:
                first: BaseException = error
                while first.__context__ is not None:
                    first = first.__context__
                if not isinstance(first, OSError):
                    raise
                # Optuna itself fails where its log cannot be written.
                raise RunError(
                    f"cannot write {LOG} ({first}): fix this, then run the same command again"
                ) from error

        def place(trial: "FrozenTrial") -> int:
            return plan.index(trial.params) if trial.params in plan else len(plan)

        # Equal settings rank by the plan, not by which worker was first.
        tried = sorted(study.trials, key=place)
        return [
            TriedSetting(self.rule, trial.params, *trial.values) for trial in tried if trial.values
        ]

    def __call__(self, draw: "Draw") -> Scored:
        """Evaluate a setting that Optuna draws or has in its queue."""
        setting = {key: _drawn(draw, key, values) for key, values in self.grid.items()}
        try:
            values = _experiment(self.base, self.rule, setting).model_dump()
            if self.pool is None:
                return validation_scores(values, self.seeds, self.share)
            return self.pool.submit(validation_scores, values, self.seeds, self.share).result()
        except FAILURES as error:
            draw.set_user_attr(REFUSED, str(error))
            raise


def _sampler(name: Sampler, trials: int) -> "BaseSampler":
    """A sampler of several objectives: mean and worst."""
    from optuna.samplers import NSGAIISampler, TPESampler

    if name == "tpe":
        return TPESampler(seed=0)
    return NSGAIISampler(population_size=max(4, trials // 5), seed=0)


def _experiment(base: Mapping[str, object], rule: str, setting: Setting) -> Experiment:
    text = with_values(rule, setting)
    (cell,) = cells(base, [text], 1, [], Path(), {text: changes_of(setting)})
    return cell.experiment


def _enqueue(study: "Study", plan: Sequence[Setting]) -> int:
    """Give Optuna the settings that have not ended. Returns how many they are."""
    from optuna.trial import TrialState

    ended = [trial.params for trial in _ended(study)]
    waiting = study.get_trials(states=[TrialState.WAITING])  # of a search that was stopped
    queued = [trial.system_attrs["fixed_params"] for trial in waiting]
    missing = [dict(setting) for setting in plan if setting not in ended]
    for setting in missing:
        if setting not in queued:
            study.enqueue_trial(setting)
    return len(missing)


def grid_of(rule: str, base: Mapping[str, object] | None = None, more: Grid | None = None) -> Grid:
    """The values that publications of the rule and of the client method tried, and further ones.

    What is given in brackets, or in the experiment, is fixed. `rule.KEY` is for the rules that have
    that parameter.
    """
    grid: dict[str, tuple[object, ...]] = {}
    part = catalog.parse_part(rule)
    entry = catalog.find_entry("rules", part.name)
    factory = entry.factory
    if isinstance(factory, type) and issubclass(factory, Rule):
        grid |= {key: values for key, values in factory.grid.items() if key not in part}
    client = {"name": "sgd"} | part_table((base or {}).get("client"))
    method = catalog.find_entry("clients", str(client["name"])).factory
    if isinstance(method, type) and issubclass(method, Client):
        for key, values in method.grid.items():
            if key not in client:
                grid[f"client.{key}"] = values
    for key, values in (more or {}).items():
        parameter = key.removeprefix("rule.")
        if parameter == key:
            grid[key] = values
        elif parameter in entry.parameters and parameter not in part:
            grid[parameter] = values
    return grid


def further(texts: Sequence[str]) -> Grid:
    """Read values of the experiment's keys to try, such as "client.lr=0.01,0.1" or "rule.t=1,2".

    >>> further(["client.lr=0.01,0.1"])
    {'client.lr': (0.01, 0.1)}
    """
    grid = {}
    for text in texts:
        key, equals, values = text.partition("=")
        choices = catalog.split_list(values)
        if not equals or not choices or "." not in key:
            raise ConfigError(
                f"--grid {text!r}: write a part's key and its values, as in client.lr=0.01,0.1"
            )
        grid[key] = tuple(map(catalog.parse_value, choices))
    return grid


def score_of(base: Mapping[str, object]) -> str:
    """The main score of an experiment."""
    experiment = Experiment(**base)
    score, *_ = experiment.scores or (build_dataset(experiment).score,)
    path = score_path(score)
    if path:
        return score_name(catalog.function("score", path), score.startswith("lower:"))
    return str(score)


def _identity(
    base: Mapping[str, object], seeds: int | Sequence[int], share: float, more: Grid | None
) -> str:
    """Return the identity that trials of one folder share."""
    values = Experiment(**base).model_dump()
    del values["rule"]
    what = {"base": values, "seeds": seeds, "share": share, "split": "stratified"}
    return digest(to_json(what | ({"grid": dict(more)} if more else {})))


def _check_data(base: Mapping[str, object], seed: int, folder: Path, force: bool) -> None:
    """Keep the identity of the data in the folder, or raise RunError where it is another.

    force: delete the trials that are in the folder
    """
    federation = build_dataset(Experiment(**base).change(seed=seed))
    assert federation.identity is not None
    if force:
        for name in (LOG, CHOSEN, DATA):
            (folder / name).unlink(missing_ok=True)
    if (folder / LOG).exists() and (folder / DATA).exists():
        check_data(folder, federation.identity)
    else:
        write_data(folder, StoredData.of(federation.identity, federation.population))


def _check(study: "Study", identity: str, folder: Path) -> None:
    known = study.user_attrs.get("identity")
    if known is None:
        study.set_user_attr("identity", identity)
    elif known != identity:
        raise ConfigError(
            f"{str(folder)!r} holds trials of another experiment, or of other seeds, validation "
            "samples or --grid: choose another folder, or start again with --force (force=True)"
        )


def _drawn(draw: "Draw", key: str, values: tuple[Any, ...]) -> object:
    numbers = [value for value in values if isinstance(value, float)]
    if len(numbers) < len(values) or len(numbers) < 2:
        drawn: object = draw.suggest_categorical(key, values)
        return drawn
    low = min(numbers)
    high = max(numbers)
    return draw.suggest_float(key, low, high, log=low > 0 and high >= 10 * low)


def _ended(study: "Study") -> "list[FrozenTrial]":
    """The trials with a result, and those whose settings cannot run; not interrupted ones."""
    return [trial for trial in study.trials if trial.values or REFUSED in trial.user_attrs]


def cores() -> int:
    """The processor cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1


# Choosing


def best_trials(
    trials: Sequence[TriedSetting], by: By, lower_is_better: bool = False
) -> dict[str, TriedSetting]:
    """The best trial of each rule, by the worst 10 % of clients or by the mean."""
    sign = -1 if lower_is_better else 1

    def quality(trial: TriedSetting) -> tuple[float, float]:
        pair = (trial.worst, trial.mean) if by == "worst" else (trial.mean, trial.worst)
        return sign * pair[0], sign * pair[1]

    best: dict[str, TriedSetting] = {}
    for trial in trials:
        best[trial.rule] = max(best.get(trial.rule, trial), trial, key=quality)
    return best


def write_chosen(
    folder: Path,
    chosen: Mapping[str, TriedSetting],
    by: str,
    names: Mapping[str, str] | None = None,
) -> None:
    """Write what was chosen for each rule, or for its name where a user gave it one."""
    names = names or {}
    rules, settings = {}, {}
    for rule, best in chosen.items():
        name = names.get(rule)
        rules[name or rule] = catalog.with_name(name, best.text)
        if best.settings:
            settings[name or rule] = best.settings
    write_file(folder / CHOSEN, to_json({"by": by, "rules": rules, "settings": settings}))


def read_chosen(folder: Path) -> dict[str, tuple[str, list[str]]]:
    """By rule, what was chosen: the rule with its parameters, and the values of other keys."""
    try:
        read = json.loads((folder / CHOSEN).read_text(encoding="utf-8"))
        settings = read.get("settings", {})
        chosen = {}
        for rule, text in read["rules"].items():
            chosen[str(rule)] = (str(text), [str(change) for change in settings.get(rule, ())])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(
            f"{str(folder)!r} holds no tuned rules: commonweal tune writes them"
        ) from None
    return chosen
