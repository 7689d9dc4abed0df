"""Building what an experiment names: the algorithm and the engine of a run."""

import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar

import torch
from torch import nn

from commonweal import engines
from commonweal.base import randomness
from commonweal.base.arguments import expect
from commonweal.base.errors import CommonwealError, ConfigError, DataError, did_you_mean
from commonweal.base.files import digest
from commonweal.base.memory import check_memory
from commonweal.base.shares import product
from commonweal.base.tensors import State, tensor_bytes
from commonweal.config import catalog
from commonweal.config.catalog import KINDS, Part
from commonweal.config.experiment import PARTS, PATHS, Experiment, RunSettings, to_toml
from commonweal.config.policy import Policy, read_policy
from commonweal.data.federation import Federation
from commonweal.data.identity import Source, identified
from commonweal.data.population import Population
from commonweal.data.rows import REGRESSION, labels_of, scale_target, usual_loss
from commonweal.data.sources.files import data_root
from commonweal.data.sources.opened import content_digest, distinct, opened_files
from commonweal.data.tables.preprocessing import Preprocessing
from commonweal.datasets import Pool, build_federation
from commonweal.engines import Engine, LocalEngine
from commonweal.protocols.algorithm import Algorithm, Request, Sample
from commonweal.protocols.channels.channel import Channel
from commonweal.protocols.samplers.sampler import Sampler
from commonweal.protocols.servers.server import ServerOptimizer
from commonweal.record.identity import StoredData
from commonweal.record.record import Record
from commonweal.rules.rule import Rule
from commonweal.task.own import LossFunction, function_identity, score_path
from commonweal.task.scores import check_labels
from commonweal.task.task import Task
from commonweal.training.client import Client

Settings = TypeVar("Settings", bound=RunSettings)

# What users may give besides a Task and a Federation.
GIVEN = ("algorithm", "rule", "client", "server", "sampler", "channels")
Named = str | Mapping[str, object]  # a part by name, or a table with its name and parameters


class OwnParts(TypedDict, total=False):
    """The parts and settings of a run of one's own Task and Federation: `run` explains them."""

    algorithm: Named | Algorithm
    rule: Named | Rule
    client: Named | Client
    server: Named | ServerOptimizer
    sampler: Named | Sampler
    channels: Sequence[Named | Channel]
    name: str | None
    rounds: int
    cohort: int | float | Literal["all"]
    seed: int
    score: str | Sequence[str] | None
    loss: str | None
    target: Literal["log"] | None
    threshold: Literal["f1", "balanced-accuracy", "accuracy"] | None
    class_weight: Literal["balanced"] | Sequence[float] | Mapping[str, float] | None
    evaluate_every: int
    validation: float
    patience: int | None
    monitor: Literal["mean", "worst"]
    holdout_clients: float
    policy: str
    without: str | Sequence[str]
    synthetic_from: str
    device: str
    precision: Literal["float32", "bfloat16"]
    vectorize: str
    deterministic: bool
    engine: str


TRAINING_COPIES = 3  # of the weights: the model, its update and its gradient
INTERFACES: dict[str, type] = {
    "rules": Rule,
    "clients": Client,
    "servers": ServerOptimizer,
    "samplers": Sampler,
    "channels": Channel,
}


@dataclass(frozen=True, eq=False)
class Job:
    """An experiment with its parts built: what `run` needs."""

    algorithm: Algorithm
    engine: Engine
    settings: RunSettings
    sampler: Sampler
    text: str = ""  # the experiment, as written to a run's folder

    def __post_init__(self) -> None:
        clients = self.population.clients
        if not 1 <= self.cohort <= clients:
            raise ConfigError(
                f"cohort = {self.settings.cohort!r} is {self.cohort} clients, but there are "
                f"{clients}"
            )

    @property
    def task(self) -> Task:
        return self.algorithm.task

    @property
    def rounds(self) -> int:
        return self.settings.rounds

    @property
    def cohort(self) -> int:
        """The number of clients that a round asks."""
        return cohort_size(self.settings, self.population.clients)

    @property
    def population(self) -> Population:
        return self.engine.population

    @property
    def local(self) -> LocalEngine | None:
        """The engine, where it has all clients' samples in this process."""
        return self.engine if isinstance(self.engine, LocalEngine) else None

    @property
    def data(self) -> StoredData | None:
        """The identity of the run's data. None: this process does not have it, or it may grow."""
        if self.local is None or not self.local.digest():
            return None
        identity = self.local.federation.identity
        return None if identity is None else StoredData.of(identity, self.population)

    @property
    def preprocessing(self) -> Preprocessing | None:
        """The preprocessing of a table to the rows, where this engine knows it."""
        return self.engine.preprocessing

    @property
    def class_names(self) -> tuple[str, ...]:
        """The labels' own words; empty: they are numbers, or unknown here."""
        if self.local is not None:
            return self.local.federation.class_names
        return () if self.preprocessing is None else self.preprocessing.class_names

    def sample(self, number: int) -> Sample:
        """The function that draws the clients of a round."""
        rng = randomness.stream(self.settings.seed, number, 0, randomness.COHORT)
        return Sample(self.population, self.cohort, number, self.sampler, rng)

    def initial_state(self) -> State:
        """The server's state before the first round. Asks the clients where a rule needs it."""
        population = self.population
        if "labels" in self.algorithm.needs:
            classes = max(2, population.outputs)
            message = {"round": torch.tensor(0), "classes": torch.tensor(classes)}
            everyone = Request(torch.arange(population.clients), message, "describe")
            replies = self.engine.collect(self.algorithm, everyone)
            if len(replies.clients) < population.clients:
                missing = [population.names[client] for client in replies.failed]
                raise ConfigError(f"the rule needs label counts, but {missing[:5]} did not answer")
            population = replace(population, label_counts=replies.values["labels"])
        return self.algorithm.init(population)


def cohort_size(settings: RunSettings, clients: int) -> int:
    """Return the number of clients that a round asks."""
    cohort = settings.cohort
    if cohort == "all":
        return clients
    return cohort if isinstance(cohort, int) else max(1, round(product(cohort, clients)))


def build_dataset(experiment: Experiment) -> Federation:
    """The federation that an experiment names, with its partition and label noise."""
    dataset = experiment.dataset
    seed = dataset.get("seed", experiment.seed)
    if experiment.policy and dataset["name"] == "table":
        dataset = within(read_policy(experiment.policy), dataset)
    is_read_without = dataset["name"] == "table" and experiment.partition is None
    if experiment.left_out and is_read_without:
        dataset = Part(dataset | {"without": experiment.left_out})
    with _building("dataset", dataset, DataError):
        with opened_files() as files:
            loaded = catalog.build("datasets", dataset)
        kinds = Federation | Pool
        expect(f"what dataset {dataset['name']!r} returns", loaded, kinds, "a Federation or Pool")
        partition = noise = None
        if experiment.partition is not None:
            partition = catalog.build("partitions", experiment.partition)
        if experiment.label_noise is not None:
            noise = catalog.build("noises", experiment.label_noise)
        federation = build_federation(loaded, partition, noise, seed)
        if experiment.left_out and not is_read_without:
            federation = federation.without(experiment.left_out)
    is_drawn = isinstance(loaded, Pool) or bool(partition or noise or "seed" in dataset)
    return identified(federation, sources_of(list(files), dataset), is_drawn)


def within(policy: Policy, dataset: Part) -> Part:
    """The dataset `table` without categories that a policy does not let out."""
    return Part(dataset | {"least_count": policy.min_count})


def sources_of(paths: Sequence[Path], dataset: Mapping[str, object]) -> list[Source]:
    """The files of a dataset with digests of what they hold.

    Those that the dataset does not name are found in the data directory.
    """
    named = [Path(str(dataset[key])).expanduser() for key in PATHS if dataset.get(key)]
    sources = []
    for path in distinct(paths):
        is_named = any(path.is_relative_to(place) for place in named)
        in_data_directory = not is_named and path.is_relative_to(data_root())
        place = path.relative_to(data_root()) if in_data_directory else path
        try:
            known = Source(
                path=str(place),
                digest=content_digest(path),
                in_data_directory=in_data_directory,
            )
        except OSError as error:
            raise DataError(f"{str(path)!r} cannot be read ({error.strerror})") from None
        sources.append(known)
    return sources


@contextmanager
def _building(label: str, part: dict[str, object], kind: type[CommonwealError]) -> Iterator[None]:
    """Raise an error of a kind where libraries raise any, except in a user's own program."""
    try:
        yield
    except CommonwealError:
        raise
    except MemoryError as error:
        raise kind(f"{label} {part['name']!r} needs more memory than there is: {error}") from error
    except Exception as error:
        if ":" in str(part["name"]):
            raise
        reason = str(error).split("\n")[0][:200] or type(error).__name__
        raise kind(
            f"{label} {part['name']!r} cannot be made from what it is given: {reason}"
        ) from error


def _check_memory(part: dict[str, object], facts: dict[str, object]) -> None:
    """Raise ConfigError for a model that does not fit into this machine's memory."""
    try:
        with torch.device("meta"):  # shapes without numbers
            module = catalog.build("models", part, **facts)
    except Exception:
        return  # a model that cannot be built so; if it cannot be built at all, building says so
    size = sum(value.numel() for value in module.parameters())
    check_memory(
        f"model {part['name']!r} would have {size:,} parameters, and its training",
        TRAINING_COPIES * 4 * size,
    )


def job_from_experiment(experiment: Experiment, federation: Federation | None = None) -> Job:
    """Build what an experiment names, on its data, or on others, as for tuning."""
    federation = experiment_federation(experiment) if federation is None else identified(federation)
    loss = _loss(experiment, _usual_loss(federation, experiment.loss))
    federation = federation.with_labels(labels_of(loss))
    task = build_task(
        experiment,
        shape=tuple(federation.train.inputs.shape[1:]),
        labels=tuple(federation.train.y.shape[1:]),
        outputs=federation.outputs,
        loss=loss,
        score=federation.score,
    )
    task = fitted(task, federation, experiment)
    return job_on(experiment, task, _engine(federation, experiment))


def experiment_federation(experiment: Experiment) -> Federation:
    """The data of an experiment, with what its settings add and hold back."""
    _check_engine(experiment)  # before data are read
    return _divided(build_dataset(experiment), experiment)


def _check_engine(settings: RunSettings) -> None:
    if settings.engine == "flower":
        raise ConfigError(
            f"engine = {settings.engine!r}: experiments run on Flower as an app; write one with "
            "commonweal flower export FILE DIR and start it with flwr run, or leave engine out"
        )


def _engine(federation: Federation, settings: RunSettings) -> LocalEngine:
    _check_engine(settings)
    if settings.policy and settings.engine == "torchrun":
        raise ConfigError("policy is tried in the simulator: leave out engine = 'torchrun'")
    return engines.simulate(
        federation,
        seed=settings.seed,
        vectorize=settings.vectorize,
        device=settings.device,
        deterministic=settings.deterministic,
        ranks=settings.engine == "torchrun",
        policy=read_policy(settings.policy) if settings.policy else None,
    )


def _divided(federation: Federation, settings: RunSettings) -> Federation:
    """The federation with its validation rows and added ones, and with clients held out."""
    federation = identified(federation)
    if settings.holdout_clients:
        federation = federation.hold_out(settings.holdout_clients, settings.seed)
    federation = with_validation(federation, settings)
    folder = settings.synthetic_from
    if not folder:
        return federation
    rows = Record.read(folder).samples()
    if rows is None:
        raise ConfigError(
            f"synthetic_from = {folder!r} has no synthetic rows: give the folder of a run of "
            "fedevg, fedcgan or fedcvae"
        )
    return federation.augmented(*rows)


def _usual_loss(federation: Federation, given: str | None) -> str:
    """The loss that labels suggest. Raises ConfigError if they suggest none and none is given."""
    loss = usual_loss(federation.labels)
    if not loss and given is None:
        raise ConfigError(
            "labels with several numbers per sample, or of shape (N, 1), do not say which loss "
            "fits: give one, Task(module, loss=...), or loss = 'file.py:function' in an experiment"
        )
    return loss


def _with_loss(task: Task, federation: Federation) -> Task:
    """The task with the loss that the labels suggest, unless it was given one itself.

    Cross-entropy of labels (N, ...), of pixels or tokens or soft ones, is torch's.
    """
    if not task.names_loss:
        return task.replace(loss=_usual_loss(federation, None))
    if task.loss == "cross-entropy" and federation.train.y.ndim > 1:
        return task.replace(loss=partial(nn.functional.cross_entropy))
    return task


def _loss(settings: RunSettings, loss: str) -> str:
    """The loss of a run: the one that it names for its regression, or else the given one."""
    if settings.loss is None:
        return loss
    is_function = ":" in settings.loss  # which takes labels as they are
    if not is_function and loss not in REGRESSION:
        raise ConfigError(
            f"loss = {settings.loss!r} is for regression, but this data has the loss "
            f"{loss!r}: leave it out"
        )
    return settings.loss


def fitted(task: Task, federation: Federation, settings: RunSettings) -> Task:
    """The task with what follows from training labels: the target's scale, weights of classes."""
    if settings.target == "log" and task.loss not in REGRESSION:
        raise ConfigError(
            f"target = 'log' is for regression, but the loss is {task.loss!r}: leave it out"
        )
    log = settings.target == "log" or task.loss == "poisson"
    everything = torch.cat([federation.train.y, federation.test.y])
    scale_target(everything, task.loss, log)  # raises where a test label has no logarithm
    target = scale_target(federation.train.y, task.loss, log)
    if log and target is None:
        same = float(federation.train.y[0])
        raise ConfigError(f"target = 'log': all labels are {same:g}, which leaves nothing to learn")
    task = task.replace(target=target, class_weight=_class_weight(settings, federation))
    if not log:
        return task
    variance = float(federation.train.y.double().var(correction=0))
    return task.replace(log_target=True, variance=variance)


def _class_weight(settings: RunSettings, federation: Federation) -> tuple[float, ...] | None:
    """By what the losses of classes are multiplied, in the order of the classes."""
    given = settings.class_weight
    if given is None:
        return None
    classes = federation.classes
    if classes is None:
        raise ConfigError(
            f"class_weight needs classes, but the labels of this data are {federation.labels}: "
            "leave it out"
        )
    if given == "balanced":
        counts = torch.bincount(federation.train.y, minlength=classes).double()
        weights = len(federation.train.y) / (classes * counts.clamp(min=1))
        return tuple(weights.tolist())
    names = federation.class_names or tuple(map(str, range(classes)))
    if isinstance(given, Mapping):
        unknown = [name for name in given if name not in names]
        if unknown:
            hint = did_you_mean(unknown[0], names)
            raise ConfigError(f"class_weight names {unknown[0]!r}, which is no class: {hint}")
        return tuple(float(given.get(name, 1.0)) for name in names)
    if len(given) != classes:
        raise ConfigError(
            f"class_weight has {len(given)} numbers for {classes} classes ({', '.join(names[:5])})"
        )
    return tuple(map(float, given))


def with_validation(federation: Federation, settings: RunSettings) -> Federation:
    """The federation with its validation rows, where a run has some."""
    if settings.validation:
        return federation.with_validation(settings.validation, settings.seed)
    return federation


def build_task(
    experiment: Experiment,
    *,
    shape: tuple[int, ...],
    labels: tuple[int, ...],
    outputs: int,
    loss: str,
    score: str,
    target: tuple[float, float] | None = None,
) -> Task:
    """The task of an experiment, for rows of a shape: it needs no rows."""
    about: dict[str, object] = {"shape": shape, "labels": labels, "outputs": outputs}
    about["rounds"] = experiment.rounds
    if ":" not in experiment.model["name"]:
        _check_memory(experiment.model, about)
    with torch.random.fork_rng(devices=[]), _building("model", experiment.model, ConfigError):
        torch.manual_seed(experiment.seed)  # modules are initialised by torch's own generator
        module = catalog.build("models", experiment.model, **about)
    expect(
        f"what model {experiment.model['name']!r} returns", module, nn.Module, "a torch.nn.Module"
    )
    main, *also = experiment.scores or ("" if ":" in loss else score,)
    path = score_path(main)
    return Task(
        module,
        _function_or_name(loss),
        catalog.function("score", path) if path else main,
        tuple(also),
        target,
        lower_is_better=main.startswith("lower:"),
        precision=experiment.precision,
    )


def _function_or_name(loss: str) -> LossFunction | str:
    """Return the function of an import path, or the name, that a task takes as its loss."""
    return catalog.function("loss", loss) if ":" in loss else loss


def build_algorithm(
    experiment: Experiment, task: Task, population: Population, reads_runs: bool = True
) -> Algorithm:
    """The algorithm of an experiment.

    Args:
        experiment: Names the algorithm and its parts.
        task: What is trained.
        population: The clients.
        reads_runs: Read the other run that a rule may name; no model depends on it.
    """
    return _algorithm(task, dict(experiment), experiment, population, reads_runs)


def job_on(experiment: Experiment, task: Task, engine: Engine) -> Job:
    """The job of an experiment on an engine."""
    return _job(task, engine, dict(experiment), experiment, _recorded(experiment).toml())


def _recorded(settings: Settings) -> Settings:
    """The settings that determine a run. Those of several processes give the simulator's run."""
    if settings.engine == "torchrun":
        return settings.model_copy(update={"engine": "simulator"})
    return settings


def job_from_parts(task: Task, federation: Federation, **given: object) -> Job:
    """A job from a user's own task and federation, and the parts and settings of `run`."""
    known = (*GIVEN, *RunSettings.model_fields)
    for key in given:
        if key not in known:
            raise ConfigError(f"run has no part {key!r}: {did_you_mean(key, known)}")
    parts = {key: given.pop(key) for key in GIVEN if key in given}
    settings = RunSettings(**given)
    if settings.left_out:
        federation = federation.without(settings.left_out)
    federation = identified(federation)
    task = _with_loss(task, federation)
    if settings.precision != "float32":
        task = task.replace(precision=settings.precision)
    loss = _loss(settings, task.loss)
    federation = _divided(federation.with_labels(labels_of(loss)), settings)
    if settings.scores:
        score, *also = settings.scores
        changed = {} if score == task.score else {"score": score}  # it may be the user's function
        task = task.replace(also=tuple(also), **changed)
    for key in GIVEN:
        kind = KINDS[PARTS[key]]
        parts.setdefault(key, [] if kind.several else kind.default)
    is_open = task.target is None and not isinstance(parts["algorithm"], Algorithm)
    if loss != task.loss:
        if not is_open:
            raise ConfigError(
                f"loss = {loss!r}, but the task was made for {task.loss!r}: leave it out, or make "
                "the task with this loss"
            )
        task = task.replace(loss=_function_or_name(loss))
    if is_open:
        task = fitted(task, federation, settings)
    return _job(task, _engine(federation, settings), parts, settings, None)


def _job(
    task: Task, engine: Engine, parts: Mapping[str, object], settings: RunSettings, text: str | None
) -> Job:
    algorithm = _algorithm(task, parts, settings, engine.population)
    federation = engine.federation if isinstance(engine, LocalEngine) else None
    algorithm.check(settings, federation)
    if federation is not None:
        check_labels((task.score, *task.also), federation.train.y)
    sampler = _built("samplers", parts["sampler"])
    sampler.check(engine.population)
    if text is None:
        text = _describe(task, algorithm, parts, settings, sampler, engine)
    job = Job(algorithm, engine, settings, sampler, text)
    check_memory(
        f"a cohort of {job.cohort:,} clients with {task.size:,} parameters each (set cohort to "
        "fewer)",
        job.cohort * task.size * 4,
    )
    return job


def _algorithm(
    task: Task,
    parts: Mapping[str, object],
    settings: RunSettings,
    population: Population,
    reads_runs: bool = True,
) -> Algorithm:
    """Build the algorithm. Raises if the experiment sets a part that it does not take."""
    chosen = parts["algorithm"]
    if isinstance(chosen, Algorithm):
        _check_own_parts(chosen, task, parts)
        return chosen
    expect("algorithm", chosen, str | Mapping, "a name, a table or an Algorithm")
    name = catalog.complete("algorithms", chosen)["name"]
    takes = inspect.signature(catalog.find_entry("algorithms", name).factory).parameters
    supplied: dict[str, object] = {
        "task": task,
        "population": population,
        "rounds": settings.rounds,
        "seed": settings.seed,
        "cohort_size": cohort_size(settings, population.clients),
    }
    for key in GIVEN[1:]:
        kind = PARTS[key]
        if key in takes:
            build = _several if KINDS[kind].several else _built
            supplied[key] = build(kind, parts[key])
        elif key != "sampler" and not _is_default(kind, parts[key]):  # every run has a sampler
            raise ConfigError(
                f"algorithm {name!r} does not take a {KINDS[kind].label}, but got {parts[key]!r}: "
                "remove it"
            )
    rule = supplied.get("rule")
    if isinstance(rule, Rule) and reads_runs:
        supplied["rule"] = with_local_losses(rule, population.names)
    algorithm: Algorithm = catalog.build("algorithms", chosen, **supplied)
    expect(f"what algorithm {name!r} returns", algorithm, Algorithm, "an Algorithm")
    return algorithm


def with_local_losses(rule: Rule, names: Sequence[str]) -> Rule:
    """Return the rule with the lowest losses in the run of local models that it names, if any."""
    folder = rule.local_run
    if folder is None:
        return rule
    record = Record.read(folder)
    method = record.part("client", "sgd")
    if method != "alone":
        raise ConfigError(
            f"rule path = {folder!r} is a run with client = {method!r}: run it with "
            'client = "alone", so that its losses are those of models of their own'
        )
    lowest: dict[str, float] = {}
    for done in record.rounds:
        for client, loss in zip(done.clients, done.losses, strict=True):
            if not math.isnan(loss):
                lowest[client] = min(loss, lowest.get(client, math.inf))
    missing = [name for name in names if name not in lowest]
    if missing:
        raise ConfigError(
            f"rule path = {folder!r}: the run has no losses of {missing[:5]}; run the same "
            'dataset with client = "alone"'
        )
    return rule.with_local_losses(tuple(lowest[name] for name in names))


def _check_own_parts(algorithm: Algorithm, task: Task, parts: Mapping[str, object]) -> None:
    """Raise ConfigError where parts are given with an algorithm that has its own."""
    for key in ("rule", "client", "server", "channels"):
        if not _is_default(PARTS[key], parts[key]):
            raise ConfigError(
                f"{key} = {parts[key]!r} with an algorithm that has its own parts: leave it out"
            )
    own = algorithm.task
    facts = [(t.module, t.loss, t.scores, t.target, t.class_weight) for t in (own, task)]
    if facts[0] != facts[1]:
        raise ConfigError(
            f"the algorithm has another task ({own!r}) than the run ({task!r}): give both the same "
            "Task, with its loss and scores"
        )


def _is_default(kind: str, part: object) -> bool:
    default = KINDS[kind].default
    if default is None:
        return not part
    is_named = isinstance(part, str | Mapping)
    return is_named and catalog.complete(kind, part) == catalog.complete(kind, default)


def _several(kind: str, value: object) -> tuple[object, ...]:
    values = value if isinstance(value, list | tuple) else [value]
    return tuple(_built(kind, inner) for inner in values)


def _built(kind: str, value: object) -> Any:
    """The thing that a name or a table stands for, or the thing itself."""
    built = catalog.build(kind, value) if isinstance(value, str | Mapping) else value
    interface = INTERFACES[kind]
    if not isinstance(built, interface):
        raise ConfigError(
            f"{KINDS[kind].label} = {value!r}: give a name, a table with a name and parameters, or "
            f"an instance of {interface.__name__}"
        )
    return built


def _describe(
    task: Task,
    algorithm: Algorithm,
    parts: Mapping[str, object],
    settings: RunSettings,
    sampler: Sampler,
    engine: Engine,
) -> str:
    """The experiment of a user's own task and federation, as it is written to the run's folder."""
    digest = engine.digest() if isinstance(engine, LocalEngine) else ""
    tables = _recorded(settings).model_dump()
    tables["dataset"] = {"name": "given", "digest": digest}
    tables["model"] = {"name": "given", "digest": _module_digest(task)}
    for key in ("rule", "client", "server"):
        part = vars(algorithm).get(key, parts[key])
        is_name = isinstance(part, str | Mapping)  # of a part that the algorithm does not take
        tables[key] = catalog.complete(PARTS[key], part) if is_name else catalog.named_part(part)
    supplied = KINDS["algorithms"].supplied
    described = catalog.named_part(algorithm)
    tables["algorithm"] = {k: v for k, v in described.items() if k not in supplied}
    tables["sampler"] = catalog.named_part(sampler)
    channels = vars(algorithm).get("channels") or _several("channels", parts["channels"])
    tables["channels"] = [catalog.named_part(channel) for channel in channels]
    return to_toml({key: _plain(value) for key, value in tables.items()})


def _plain(value: object) -> object:
    """A value that TOML can hold: anything else by its type."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return f"{type(value).__module__}:{type(value).__qualname__}"


def _module_digest(task: Task) -> str:
    """A hash of the module's architecture and initial weights, and of a user's own functions."""
    words = [type(task.module).__qualname__, str(task.module), task.loss, task.score]
    words += [f"{key} {function_identity(function)}" for key, function in task.functions.items()]
    tensors = map(tensor_bytes, (task.initial, *task.frozen.values()))
    return digest("\0".join(words).encode(), *tensors, size=8)
