"""Tuning: the values that each rule's publication tried, judged on rows and seeds of their own.

Nothing is chosen on test rows: they are taken away before anything runs. A share of every client's
training rows takes their place, and the seeds are not those of comparisons.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from commonweal.analysis.compare import cells
from commonweal.analysis.workers import worker_pool
from commonweal.base.errors import ConfigError, DataError, DivergedError
from commonweal.base.files import digest, write_file
from commonweal.base.plain import to_json
from commonweal.base.values import Value, Values
from commonweal.config import catalog
from commonweal.config.experiment import Experiment
from commonweal.jobs.job import build_dataset, job_from_experiment
from commonweal.jobs.rounds import run
from commonweal.rules.rule import Rule
from commonweal.training import scores
from commonweal.training.client import Client

__all__ = ["By", "Choice", "Trial", "choose", "read_chosen", "tune"]
__all__ += ["Sampler", "changes_of", "further", "tuned_rules", "tuned_settings", "with_values"]
__all__ += ["write_chosen"]

By = Literal["worst", "mean"]
Sampler = Literal["nsga2", "tpe"]
Grid: TypeAlias = Mapping[str, tuple[Value, ...]]
Progress: TypeAlias = Callable[[str, int], None]

FIRST_SEED = 1000  # comparisons begin with 0
LOG = "trials.log"  # Optuna's journal
CHOSEN = "tuned.json"
REFUSED = "refused"  # why a setting has no result
FAILURES = (ConfigError, DataError, DivergedError)  # of one setting: the others are still tried


@dataclass(frozen=True)
class Trial:
    """A setting of a rule, and what it gives on validation rows, as means over seeds.

    values: of the rule's parameters, and of the experiment's keys, which have a dot (client.lr)
    """

    rule: str
    values: dict[str, Value]
    mean: float  # over clients
    worst: float  # mean of the worst tenth of them


@dataclass(frozen=True)
class Choice:
    """The trial that is best of a rule's."""

    best: Trial
    trials: int

    @property
    def text(self) -> str:
        """The rule with its parameters, as `compare --rules` takes it."""
        return with_values(self.best.rule, self.best.values)

    @property
    def settings(self) -> list[str]:
        """The values of other keys, as `key=value`."""
        return changes_of(self.best.values)


def changes_of(values: Mapping[str, Value]) -> list[str]:
    """The values of the experiment's keys.

    >>> changes_of({"q": 1.0, "client.lr": 0.1})
    ['client.lr=0.1']
    """
    return [f"{key}={value}" for key, value in values.items() if "." in key]


def with_values(rule: str, values: Mapping[str, Value]) -> str:
    """A rule with further parameters in its brackets. Keys of the experiment are left out.

    >>> with_values("aaggff-s(cdf=frechet)", {"variant": "paper"})
    'aaggff-s(cdf=frechet,variant=paper)'
    """
    own = {key: value for key, value in values.items() if "." not in key}
    part = catalog.parse(rule) | own
    name = part.pop("name")
    given = ",".join(f"{key}={value}" for key, value in part.items())
    return f"{name}({given})" if given else str(name)


# One setting


def evaluate(values: Values, seeds: Sequence[int], share: float) -> tuple[float, float]:
    """Mean and worst 10 % of clients on validation samples, which stand in for the test samples."""
    found = []
    for seed in seeds:
        experiment = Experiment(**values).change(seed=seed)
        split = build_dataset(experiment).with_validation(share, seed)
        assert split.validation is not None
        federation = replace(split, test=split.validation, validation=None)
        last = experiment.rounds
        experiment = experiment.change(evaluate_every=last)
        metrics: Mapping[str, float] = {}
        for done in run(job_from_experiment(experiment, federation)):
            metrics = done.personal or done.metrics  # of the models that clients use
        found.append((metrics["mean"], metrics["worst_10"]))
    mean, worst = np.array(found).mean(0).tolist()
    return mean, worst


# Many settings


def tune(
    base: Mapping[str, Value],
    rules: Sequence[str],
    folder: Path,
    seeds: int | Sequence[int] = 2,
    share: float = 0.25,
    trials: int = 0,
    jobs: int = 1,
    progress: Progress = lambda rule, done: None,
    more: Grid | None = None,
    sampler: Sampler = "nsga2",
    grid: Grid | None = None,
) -> list[Trial]:
    """Try every rule's published grid, or some trials within it. A stopped search continues.

    Args:
        base: The values of an experiment.
        rules: Rules; parameters in brackets are fixed.
        folder: Where the trials are saved.
        seeds: How many seeds (1000, 1001, ...), or which.
        share: Share of the training samples that is used for validation.
        trials: How many settings a sampler draws; 0 tries the whole grid.
        jobs: Worker processes.
        progress: Called with a rule and the number of its finished trials.
        more: Values of the experiment's keys to try as well.
        sampler: Which sampler draws between the grid's values.
        grid: Values to try instead of the published ones.
    """
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    folder.mkdir(parents=True, exist_ok=True)
    storage = JournalStorage(JournalFileBackend(str(folder / LOG)))
    numbers = range(FIRST_SEED, FIRST_SEED + seeds) if isinstance(seeds, int) else seeds
    identity = _identity(base, seeds, share, more)
    found = []
    with _pool(jobs) as pool:
        for rule in rules:
            values = grid_of(rule, base, more) if grid is None else grid
            study = optuna.create_study(
                storage=storage,
                study_name=rule,
                directions=_directions(base),
                sampler=_sampler(optuna, sampler, trials),  # for trials between the grid's values
                load_if_exists=True,
            )
            _check(study, identity, folder)
            settings = _Settings(base, rule, values, numbers, share, pool)
            if trials and values:
                _try_between(study, settings, trials, jobs, progress)
            else:
                _try_grid(optuna, study, settings, progress)
            found += _finished(study, rule)
    return found


def _sampler(optuna: Value, name: Sampler, trials: int) -> Value:
    """A sampler of several objectives: mean and worst."""
    if name == "tpe":
        return optuna.samplers.TPESampler(seed=0)
    return optuna.samplers.NSGAIISampler(population_size=max(4, trials // 5), seed=0)


def grid_of(
    rule: str, base: Mapping[str, Value] | None = None, more: Grid | None = None
) -> dict[str, tuple[Value, ...]]:
    """The values that publications of the rule and of the client method tried, and further ones.

    What is given in brackets, or in the experiment, is fixed.
    """
    part = catalog.parse(rule)
    factory = catalog.find("rules", part["name"]).factory
    found: dict[str, tuple[Value, ...]] = {}
    if isinstance(factory, type) and issubclass(factory, Rule):
        found = {key: tuple(values) for key, values in factory.grid.items() if key not in part}
    given = (base or {}).get("client", "sgd")
    client = catalog.parse(given) if isinstance(given, str) else dict(given)
    method = catalog.find("clients", client.get("name", "sgd")).factory
    if isinstance(method, type) and issubclass(method, Client):
        own = {key: values for key, values in method.grid.items() if key not in client}
        found |= {f"client.{key}": tuple(values) for key, values in own.items()}
    return found | dict(more or {})


def further(texts: Sequence[str]) -> dict[str, tuple[Value, ...]]:
    """Values of the experiment's keys to try, from texts such as "client.lr=0.01,0.1".

    >>> further(["client.lr=0.01,0.1"])
    {'client.lr': (0.01, 0.1)}
    """
    found = {}
    for text in texts:
        key, equals, values = text.partition("=")
        choices = catalog.split_list(values)
        if not equals or not choices or "." not in key or key.startswith("rule."):
            raise ConfigError(
                f"--grid {text!r}: write a part's key and its values, as in client.lr=0.01,0.1"
            )
        found[key] = tuple(catalog.parse_value(value) for value in choices)
    return found


def score_of(base: Mapping[str, Value]) -> str:
    """The main score of an experiment."""
    experiment = Experiment(**base)
    score, *_ = experiment.scores or (build_dataset(experiment).score,)
    return str(score)


def _directions(base: Mapping[str, Value]) -> list[Literal["minimize", "maximize"]]:
    lower = scores.find(score_of(base)).lower_is_better
    return ["minimize", "minimize"] if lower else ["maximize", "maximize"]


def _identity(
    base: Mapping[str, Value], seeds: int | Sequence[int], share: float, more: Grid | None
) -> str:
    """What trials of one folder have in common."""
    values = Experiment(**base).model_dump()
    del values["rule"]
    what = {"base": values, "seeds": seeds, "share": share, "split": "stratified"}
    return digest(to_json(what | ({"grid": dict(more)} if more else {})))


def _check(study: Value, identity: str, folder: Path) -> None:
    known = study.user_attrs.get("identity")
    if known is None:
        study.set_user_attr("identity", identity)
    elif known != identity:
        raise ConfigError(
            f"{str(folder)!r} holds trials of another experiment, or of other seeds, validation "
            "rows or --grid: choose another folder"
        )


@dataclass(frozen=True)
class _Settings:
    """One rule's settings, and how they are evaluated."""

    base: Mapping[str, Value]
    rule: str
    grid: Grid
    seeds: Sequence[int]
    share: float
    pool: ProcessPoolExecutor | None

    def start(self, drawn: Mapping[str, Value]) -> "Future[tuple[float, float]]":
        """Evaluate a setting in a worker process, or here."""
        rule = with_values(self.rule, drawn)
        (cell,) = cells(self.base, [rule], 1, [], Path(), {rule: changes_of(drawn)})
        given = (cell.experiment.model_dump(), self.seeds, self.share)
        if self.pool is not None:
            return self.pool.submit(evaluate, *given)
        done: Future[tuple[float, float]] = Future()
        try:
            done.set_result(evaluate(*given))
        except FAILURES as error:
            done.set_exception(error)
        return done

    @property
    def all(self) -> list[dict[str, Value]]:
        return [dict(zip(self.grid, each, strict=True)) for each in product(*self.grid.values())]


def _try_grid(optuna: Value, study: Value, settings: _Settings, progress: Progress) -> None:
    """Evaluate what is missing of a grid. A setting is written down when it is finished."""
    tried = [each.params for each in _ended(study)]
    missing = [each for each in settings.all if each not in tried]
    count = len(settings.all) - len(missing)
    progress(settings.rule, count)
    choices = {
        key: optuna.distributions.CategoricalDistribution(values)
        for key, values in settings.grid.items()
    }
    for each, future in _results(settings, missing):
        try:
            outcome: Values = {"values": future.result()}
        except FAILURES as error:
            failed = optuna.trial.TrialState.FAIL
            outcome = {"state": failed, "user_attrs": {REFUSED: str(error)}}
        study.add_trial(optuna.trial.create_trial(params=each, distributions=choices, **outcome))
        count += 1
        progress(settings.rule, count)


def _results(
    settings: _Settings, missing: Sequence[dict[str, Value]]
) -> "Iterator[tuple[dict[str, Value], Future[tuple[float, float]]]]":
    if settings.pool is None:
        for each in missing:
            yield each, settings.start(each)
        return
    started = {settings.start(each): each for each in missing}
    try:
        for future in as_completed(started):
            yield started[future], future
    finally:
        for future in started:
            future.cancel()


def _try_between(
    study: Value, settings: _Settings, trials: int, jobs: int, progress: Progress
) -> None:
    """Let Optuna draw settings within the grid's values, until there are so many trials."""

    def objective(trial: Value) -> tuple[float, float]:
        drawn = {key: _draw(trial, key, values) for key, values in settings.grid.items()}
        try:
            return settings.start(drawn).result()
        except FAILURES as error:
            trial.set_user_attr(REFUSED, str(error))
            raise

    def after(study: Value, trial: Value) -> None:
        progress(settings.rule, len(_ended(study)))

    missing = trials - len(_ended(study))
    progress(settings.rule, trials - max(0, missing))
    if missing > 0:
        # Threads only wait for the worker processes.
        study.optimize(objective, n_trials=missing, n_jobs=jobs, catch=FAILURES, callbacks=[after])


def _draw(trial: Value, key: str, values: tuple[Value, ...]) -> Value:
    numbers = [value for value in values if isinstance(value, float)]
    if len(numbers) < len(values) or len(numbers) < 2:
        return trial.suggest_categorical(key, values)
    low = min(numbers)
    high = max(numbers)
    return trial.suggest_float(key, low, high, log=low > 0 and high >= 10 * low)


def _ended(study: Value) -> list[Value]:
    """The trials with a result, and those whose settings cannot run; not interrupted ones."""
    return [each for each in study.trials if each.values or REFUSED in each.user_attrs]


def total_of(
    rule: str, trials: int, base: Mapping[str, Value] | None = None, more: Grid | None = None
) -> int:
    """How many trials a rule takes."""
    return _total(grid_of(rule, base, more), trials)


def _total(grid: Grid, trials: int) -> int:
    if not grid:
        return 1
    return trials or int(np.prod([len(values) for values in grid.values()]))


def _finished(study: Value, rule: str) -> list[Trial]:
    return [Trial(rule, dict(each.params), *each.values) for each in study.trials if each.values]


@contextmanager
def _pool(jobs: int) -> Iterator[ProcessPoolExecutor | None]:
    """Worker processes of one thread each; None: everything is done here."""
    if jobs == 1:
        yield None
        return
    with worker_pool(jobs) as pool:
        yield pool


def cores() -> int:
    """The processor cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1


# Choosing


def choose(trials: Sequence[Trial], by: By, lower_is_better: bool = False) -> dict[str, Choice]:
    """The best trial of each rule, by the worst tenth of the clients or by the mean."""
    sign = -1 if lower_is_better else 1

    def quality(trial: Trial) -> tuple[float, float]:
        pair = (trial.worst, trial.mean) if by == "worst" else (trial.mean, trial.worst)
        return sign * pair[0], sign * pair[1]

    rules = dict.fromkeys(trial.rule for trial in trials)
    found = {}
    for rule in rules:
        own = [trial for trial in trials if trial.rule == rule]
        found[rule] = Choice(max(own, key=quality), len(own))
    return found


def write_chosen(folder: Path, chosen: Mapping[str, Choice], by: str) -> None:
    rules = {rule: choice.text for rule, choice in chosen.items()}
    settings = {rule: choice.settings for rule, choice in chosen.items() if choice.settings}
    write_file(folder / CHOSEN, to_json({"by": by, "rules": rules, "settings": settings}))


def read_chosen(folder: Path) -> dict[str, str]:
    """The rules that were tuned, each with its chosen parameters in brackets."""
    try:
        read = json.loads((folder / CHOSEN).read_text(encoding="utf-8"))
        return {str(rule): str(text) for rule, text in read["rules"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(
            f"{str(folder)!r} holds no tuned rules: commonweal tune writes them"
        ) from None


def tuned_settings(folder: Path) -> dict[str, list[str]]:
    """The values of other keys that were chosen with a rule, by the rule with its parameters."""
    chosen = read_chosen(folder)
    try:
        read = json.loads((folder / CHOSEN).read_text(encoding="utf-8")).get("settings", {})
        return {chosen[rule]: [str(text) for text in texts] for rule, texts in read.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(f"{str(folder / CHOSEN)!r} is damaged: tune again") from None


def tuned_rules(folder: Path, rules: Sequence[str] | None) -> list[str]:
    """The rules with their chosen parameters; those that were not tuned as they are.

    rules: None stands for all that were tuned
    """
    chosen = read_chosen(folder)
    return [chosen.get(rule, rule) for rule in (chosen if rules is None else rules)]
