"""A run is a loop over rounds, and the caller's `for` is the hook: `for round in run(experiment): ...`."""

import hashlib
import inspect
import json
import platform
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from commonweal import catalog, metrics, randomness, scores
from commonweal.algorithm import Algorithm, Server, Setting, Told
from commonweal.engines.simulator import Simulator
from commonweal.errors import ConfigError, DataError, RunError, did_you_mean
from commonweal.experiment import Experiment, Plain
from commonweal.federation import Federation
from commonweal.local import bound as tied
from commonweal.rule import bound
from commonweal.store import Store
from commonweal.synthetic import picture
from commonweal.task import Task

__all__ = ["Job", "Round", "prepare", "restored", "run"]

SAVE_EVERY = 2.0  # seconds between checkpoints; what is lost in between is computed again, to the same bytes


@dataclass(frozen=True, eq=False)
class Round:
    """What happened in a round. `losses`, `scores` are the received model's on the cohort's training rows."""

    number: int
    clients: tuple[str, ...]  # the cohort
    losses: Tensor  # (S,)
    scores: Tensor  # (S,)
    weights: dict[str, float]  # of the reports that were used
    dropped: dict[str, str]  # name -> why
    notes: list[str]  # what a person should know of the round
    evaluation: tuple[Tensor, Tensor] | None  # every client's test loss and score (K,), after the round
    metrics: dict[str, float]  # of the test scores; empty where the round was not evaluated
    server: Server
    seconds: dict[str, float]
    personal: tuple[Tensor, Tensor] | None = None  # as `evaluation`, of the models that clients have of their own
    personal_metrics: dict[str, float] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)  # sent down and up, and what the model's weights would cost

    def line(self) -> dict[str, Any]:
        """The round as the store writes it."""
        cohort = {"clients": self.clients, "losses": self.losses, "scores": self.scores}
        return {
            "round": self.number,
            **cohort,
            "weights": self.weights,
            "dropped": self.dropped,
            "notes": self.notes,
            "bytes": self.bytes,
            "metrics": self.metrics,
            **({"personal": self.personal_metrics} if self.personal_metrics else {}),
        }


@dataclass(frozen=True, eq=False)
class Job:
    """An experiment with its parts built: what `run` needs."""

    task: Task
    federation: Federation
    algorithm: Algorithm
    rounds: int = 100
    cohort: int | float | str = "all"
    seed: int = 0
    engine: str = "auto"
    evaluate_every: int = 1
    text: str = ""  # the experiment, as written to a run's folder
    simulator: Simulator = field(init=False)

    def __post_init__(self) -> None:
        trains = getattr(self.algorithm, "task", None)
        object.__setattr__(self, "simulator", Simulator(self.task, self.federation, self.engine, trains=trains))
        size = self.size
        if not 1 <= size <= self.federation.clients:
            raise ConfigError(f"cohort = {self.cohort!r} is {size} clients, but there are {self.federation.clients}")
        if len(self.federation.scored) == 0:
            raise DataError("no client has test rows: give a test share above 0, or clients with more rows")
        undefined = scores.undefined(self.task.score, self.federation.test.y, self.federation.test.offsets)
        if undefined:
            names = [self.federation.names[k] for k in undefined]
            raise DataError(
                f"the {self.task.score} of {', '.join(map(repr, names[:5]))} is undefined: their test rows have one "
                "label only; give such clients more rows, merge them, or score by accuracy"
            )

    @property
    def size(self) -> int:
        """How many clients take part in a round."""
        clients = self.federation.clients
        if self.cohort == "all":
            return clients
        return int(self.cohort) if isinstance(self.cohort, int) else max(1, round(float(self.cohort) * clients))

    def cohort_of(self, number: int) -> Tensor:
        """The clients of a round, drawn without replacement from (seed, round)."""
        clients = self.federation.clients
        if self.size == clients:
            return torch.arange(clients)
        rng = randomness.stream(self.seed, number, 0, randomness.COHORT)
        return torch.from_numpy(np.sort(rng.choice(clients, self.size, replace=False)))

    def facts(self) -> dict[str, Any]:
        """What the run's record says of where and on what it ran."""
        import commonweal

        way, why = self.simulator.decision
        if not hasattr(self.algorithm, "local"):
            way, why = "loop", "the algorithm speaks of one client at a time"
        versions = {
            "commonweal": commonweal.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        }
        return {
            **versions,
            "engine": way,
            "engine_because": why,
            "clients": self.federation.clients,
            "unscored": self.federation.unscored,
            "notes": self.federation.notes,
            "train_rows": len(self.federation.train.y),
            "test_rows": len(self.federation.test.y),
            "parameters": self.task.size,
            "score": self.task.score,
        }


def prepare(experiment: Experiment) -> Job:
    """Build what an experiment names."""
    e = experiment
    federation: Federation = catalog.build("datasets", e.dataset)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(e.seed)  # a module draws its start from torch's own generator
        shapes = {"shape": tuple(federation.train.x.shape[1:]), "labels": tuple(federation.train.y.shape[1:])}
        module = catalog.build("models", e.model, **shapes, outputs=federation.outputs)
    parts = {"rule": e.rule, "client": e.client, "server": e.server}
    algorithm = _algorithm(e.algorithm, parts, federation, e.rounds, e.seed)
    plain = {key: getattr(e, key) for key in ("rounds", "cohort", "seed", "engine", "evaluate_every")}
    return Job(Task(module, federation.loss, federation.score), federation, algorithm, text=e.toml(), **plain)


# The parts of an experiment that an algorithm may take: their kind, what it calls them, and the default.
PARTS = {
    "rule": ("rules", "rule", "fedavg"),
    "client": ("clients", "local", "sgd"),
    "server": ("servers", "step", "sgd"),
}


def _algorithm(what: Any, parts: Mapping[str, Any], federation: Federation, rounds: int, seed: int) -> Algorithm:
    """The protocol between server and clients. What it has no use for must not be asked for: nothing is ignored."""
    algorithm = what
    if isinstance(what, str | Mapping):
        name = catalog.complete("algorithms", what)["name"]
        taken, supplied = inspect.signature(catalog.find("algorithms", name).factory).parameters, {}
        for key, (kind, parameter, default) in PARTS.items():
            if parameter in taken:
                supplied[parameter] = _part(key, parts[key])
            elif parts[key] not in (default, catalog.complete(kind, default)):
                raise ConfigError(f"algorithm {name!r} has no use for a {key}, but got {parts[key]!r}: leave it out")
        shape = tuple(federation.train.x.shape[1:])
        setting = Setting(shape, federation.outputs, federation.loss, rounds, seed)
        algorithm = catalog.build("algorithms", what, **supplied, setting=setting)
    known = {each.name for each in fields(algorithm)} if is_dataclass(algorithm) else set()
    if "local" in known:
        algorithm = replace(algorithm, local=tied(algorithm.local, rounds))
    if "rule" in known:
        algorithm = replace(algorithm, rule=bound(algorithm.rule, federation, algorithm.local))
    checked: Algorithm = algorithm
    return checked


def given(
    task: Task,
    federation: Federation,
    rule: Any = "fedavg",
    client: Any = "sgd",
    server: Any = "sgd",
    algorithm: Any = "averaging",
    **plain: Any,
) -> Job:
    """A job from a user's own task and federation; each part is a name, a table, or the thing itself."""
    for key in plain:
        if key not in Plain.model_fields:
            known = ["algorithm", *PARTS, *Plain.model_fields]
            raise ConfigError(f"run has no part {key!r}: {did_you_mean(key, known)}")
    plain = Plain(**plain).model_dump()
    parts = {"rule": rule, "client": client, "server": server}
    protocol = _algorithm(algorithm, parts, federation, plain["rounds"], plain["seed"])
    text = [f"{key} = {value!r}" for key, value in plain.items()]
    text += [f"algorithm = {json.dumps(_described(protocol))}", f'given = "{_digest(task, federation)}"']
    return Job(task, federation, protocol, text="\n".join(text) + "\n", **plain)


def _part(key: str, value: Any) -> Any:
    if isinstance(value, str | Mapping):
        return catalog.build(key + "s", value)
    wanted = "start" if key == "client" else "__call__"
    if not hasattr(value, wanted) or isinstance(value, type):
        raise ConfigError(f"{key} = {value!r}: give a name, a table with a name and parameters, or a {key} itself")
    return value


def _described(thing: Any) -> str:
    """A thing by its type and fields: a plain object's own text would hold its address, which changes."""
    if not hasattr(thing, "__dict__"):
        return repr(thing)
    fields = ", ".join(f"{key}={_described(value)}" for key, value in vars(thing).items())
    return f"{type(thing).__qualname__}({fields})"


def _digest(task: Task, federation: Federation) -> str:
    """A number for everything that a run depends on and no text can say: rows, names, the model's start."""
    words = [type(task.module).__qualname__, str(task.module), task.criterion, task.score, *federation.names]
    digest = hashlib.blake2b("\0".join(words).encode(), digest_size=8)
    rows = (tensor for part in (federation.train, federation.test) for tensor in (part.x, part.y, part.offsets))
    for tensor in (task.initial, *rows):
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def run(
    what: Experiment | Job | Task,
    federation: Federation | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    **parts: Any,
) -> Iterator[Round]:
    """Run an experiment round by round; with `out`, write it to a folder that `resume` goes on from.

    Users with their own model and rows give a Task and a Federation instead, and any of algorithm, rule, client,
    server, rounds, cohort, seed, engine and evaluate_every.

    >>> federation = Federation.from_arrays([[0.0], [1.0], [2.0], [3.0]], [0, 1, 0, 1], ["a", "a", "b", "b"], test=0.5)
    >>> [r.number for r in run(Task(torch.nn.Linear(1, 2)), federation, rule="aaggff-s", rounds=2)]
    [1, 2]
    """
    if isinstance(what, Task):
        if federation is None:
            raise ConfigError("run(task) needs a Federation as its second argument")
        job = given(what, federation, **parts)
    elif federation is not None or parts:
        raise ConfigError(
            "run(experiment) takes no other parts: change the experiment, or give a Task and a Federation"
        )
    elif isinstance(what, Experiment | Job):
        job = prepare(what) if isinstance(what, Experiment) else what
    else:
        raise ConfigError(f"run({what!r}): give an Experiment (load(path) reads one), or a Task and a Federation")
    return _rounds(job, None if out is None else Store(Path(out)), resume)


def _rounds(job: Job, store: Store | None, resume: bool) -> Iterator[Round]:
    server, last = job.algorithm.init(job.task, job.federation.clients), 0
    job.simulator.kept.clear()  # of an earlier run of the same job
    if store is not None:
        last, saved = store.open(job.text, job.facts(), resume)
        server = restored(job, saved, store.folder)
        job.simulator.kept.tidy()
    saved_at, saved_round = time.monotonic(), last

    def save() -> None:
        nonlocal saved_at, saved_round
        if store is not None and last > saved_round:
            store.checkpoint(last, {"server": server, **job.simulator.kept.checkpoint(last)})
            job.simulator.kept.confirm()
            saved_at, saved_round = time.monotonic(), last

    try:
        for number in range(last + 1, job.rounds + 1):
            done = _round(job, server, number)
            if store is not None:
                _write(store, job, done)
            server, last = done.server, number
            if number == job.rounds or time.monotonic() - saved_at > SAVE_EVERY:
                save()
            yield done
        if store is not None and last == job.rounds:
            store.model(job.task.tensors(job.algorithm.model(job.task, server)))
    finally:
        save()  # Ctrl-C, a failed write or a caller that stops: keep every whole round


def restored(job: Job, saved: Mapping[str, Any], folder: Path) -> Server:
    """The server of a checkpoint (a fresh one if there is none), and the job's clients with what they kept."""
    job.simulator.kept.restore(saved, folder / "kept")
    fresh = job.algorithm.init(job.task, job.federation.clients)
    return _like(fresh, saved["server"]) if "server" in saved else fresh


def _like(fresh: Server, saved: Server, where: str = "server") -> Server:
    """The saved server, with the empty parts that files do not hold; its tensors must be those of this experiment."""
    known: Server = dict(saved)
    for name, value in fresh.items():
        if isinstance(value, dict):
            known[name] = _like(value, saved.get(name, {}), f"{where}/{name}")
        elif name not in saved or (name == "w" and saved[name].shape != value.shape):
            raise RunError(
                f"checkpoint.safetensors does not fit this experiment ({where}/{name}): delete it to begin anew"
            )
    return known


def _round(job: Job, server: Server, number: int) -> Round:
    names, start = job.federation.names, time.perf_counter()
    ids, seen = job.cohort_of(number), job.algorithm.ask(server)
    replies = job.simulator.collect(job.algorithm, seen, ids, job.seed)
    trained = time.perf_counter()
    told: Told = job.algorithm.tell(job.task, server, ids, replies, job.federation.clients)
    decided = time.perf_counter()
    evaluation = personal = None
    if number % job.evaluate_every == 0 or number == job.rounds:
        evaluation = job.simulator.evaluate(job.algorithm, told.server)
        personal = job.simulator.personal(job.algorithm, told.server, evaluation)
    seconds = {"train": trained - start, "decide": decided - trained, "evaluate": time.perf_counter() - decided}
    weights = {names[i]: w for i, w in zip(told.ids.tolist(), told.weights.tolist(), strict=True)}
    dropped = {names[i]: why for i, why in told.dropped.items()}
    cohort = tuple(names[i] for i in ids.tolist())
    return Round(
        number,
        cohort,
        replies["loss"],
        replies["score"],
        weights,
        dropped,
        told.notes,
        evaluation,
        _summary(job, evaluation),
        told.server,
        seconds,
        personal,
        _summary(job, personal),
        _traffic(job, seen, replies, len(ids)),
    )


def _traffic(job: Job, seen: Mapping[str, Tensor], replies: Mapping[str, Tensor], cohort: int) -> dict[str, int]:
    """The bytes of what was sent, and of the model's weights sent to and from the same clients."""
    down = cohort * sum(t.numel() * t.element_size() for t in seen.values())
    up = sum(t.numel() * t.element_size() for t in replies.values())
    return {"down": down, "up": up, "weights": 2 * cohort * job.task.size * 4}


def _summary(job: Job, evaluation: tuple[Tensor, Tensor] | None) -> dict[str, float]:
    if evaluation is None:
        return {}
    scored = job.federation.scored
    names = (
        job.federation.names
        if len(scored) == job.federation.clients
        else [job.federation.names[k] for k in scored.tolist()]
    )
    return metrics.summary(evaluation[1][scored], job.federation.test.sizes[scored], names)


def _write(store: Store, job: Job, done: Round) -> None:
    store.append("rounds.jsonl", done.line())
    store.append("timings.jsonl", {"round": done.number, **done.seconds})
    if done.evaluation is not None:
        losses, test_scores = done.evaluation
        store.table(done.number, job.federation.names, test_scores, losses, done.personal)
        if hasattr(job.algorithm, "samples"):
            x, y = job.algorithm.samples(done.server)
            store.samples(done.number, x, y, picture(x, y))
