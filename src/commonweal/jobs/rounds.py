"""A run is a loop over rounds, and the caller's `for` is the hook: `for round in run(...): ...`."""

import platform
import time
import tomllib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor, nn

from commonweal import metrics
from commonweal.algorithms.algorithm import Algorithm, Outcome, Replies, Request, Sample
from commonweal.base import notebook
from commonweal.base.errors import ConfigError, DivergedError, ResumeWarning, RunError
from commonweal.base.files import read_plain
from commonweal.base.tensors import State, num_bytes
from commonweal.base.values import Value, Values
from commonweal.config.catalog import trusting
from commonweal.config.experiment import Experiment, read
from commonweal.data.federation import Federation
from commonweal.data.population import Population
from commonweal.engines import Engine
from commonweal.jobs.job import Job, job_from_experiment, job_from_parts
from commonweal.record.store import ClientTable, Record, RoundRecord, Store, best_round, read_facts
from commonweal.training.evaluation import Evaluation
from commonweal.training.scores import find
from commonweal.training.task import Task

__all__ = ["Round", "converse", "reopen", "run"]

LOST_ROUNDS = 5  # in a row in which all replies are not finite: the run has diverged
HOPELESS = 1e6  # a loss: guessing gives 1 of a scaled target, and log(classes)
SAVE_EVERY = 2.0  # seconds between checkpoints; what is lost in between is computed again

Exchange = tuple[Request, Replies]


@dataclass(frozen=True, eq=False, kw_only=True)
class Round(RoundRecord):
    """A round that was just run: its record, and what is not written to it."""

    evaluation: Evaluation | None  # on test rows, after the round
    held_out: Evaluation | None  # of clients that are held out
    state: State  # the server's
    seconds: dict[str, float]
    job: Job

    def __repr__(self) -> str:
        shown = {name: round(value, 4) for name, value in list(self.metrics.items())[:3]}
        return f"<Round {self.number}: {len(self.clients)} clients, {shown}>"

    def model(self) -> nn.Module:
        """The server's model after the round, as a module."""
        return self.job.task.module_of(self.job.algorithm.model(self.state))


def run(
    what: Experiment | Job | Task,
    federation: Federation | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    **parts: Value,
) -> Iterator[Round]:
    """Run an experiment round by round; with `out`, write it to a folder.

    resume: continue the run that is in the folder

    With your own model and rows, pass a Task and a Federation, and any of algorithm, rule, client,
    server, sampler, channels, rounds, cohort, seed, score, vectorize, device and evaluate_every.

    In a notebook the rounds have a progress bar.

    >>> x, y, client = [[0.0], [1.0], [2.0], [3.0]], [0, 1, 0, 1], ["a", "a", "b", "b"]
    >>> federation = Federation.from_arrays(x, y, client, test=0.5)
    >>> task = Task(torch.nn.Linear(1, 2))
    >>> [r.number for r in run(task, federation, rule="aaggff-s", rounds=2)]
    [1, 2]
    """
    job = _job(what, federation, parts)
    rounds = _rounds(job, None if out is None else Store(Path(out)), resume)
    if not notebook.in_notebook():
        return rounds
    title = Record(Path(), tomllib.loads(job.text), {}, []).title
    return notebook.with_bar(rounds, job.rounds, title)


def _job(what: object, federation: Federation | None, parts: Values) -> Job:
    if isinstance(what, Task):
        if federation is None:
            raise ConfigError("run(task) needs a Federation as its second argument")
        return job_from_parts(what, federation, **parts)
    if federation is not None or parts:
        raise ConfigError(
            "run(experiment) takes no other parts: change the experiment, or give a Task and a "
            "Federation"
        )
    if isinstance(what, Experiment):
        return job_from_experiment(what)
    if isinstance(what, Job):
        return what
    raise ConfigError(
        f"run({what!r}): give an Experiment (load(path) reads one), or a Task and a Federation"
    )


def _rounds(job: Job, store: Store | None, resume: bool) -> Iterator[Round]:
    job.engine.reset()  # states of an earlier run of the same job
    if store is None:
        yield from _from_round(job, None, 0, {})
        return
    about = facts(job)  # raises where the parts do not fit, before anything is written
    with store.locked():
        last, saved = store.open(job.text, about, resume)
        known = _Best(job, store, last)
        if last < job.rounds and not known.gives_up(last):
            store.remove_model()
            _warn_of_changes(store, about)
        if job.preprocessing is not None:
            target = about.get("target") or {}
            store.write_preprocessing(replace(job.preprocessing, target=target))
        yield from _from_round(job, store, last, saved)


def _warn_of_changes(store: Store, about: Mapping[str, Value]) -> None:
    """Warn where a resumed run continues on something else: its bytes may differ from there on."""
    before = read_facts(store.folder)
    changed = [
        f"{key} {before.get(key)}, now {about[key]}"
        for key in ("commonweal", "torch", "python", "threads", "processor")
        if before.get(key) != about[key]
    ]
    if changed:
        warnings.warn(
            f"the run in {str(store.folder)!r} began with {', '.join(changed)}: the rounds from "
            "here on may differ in their last digits",
            ResumeWarning,
            stacklevel=4,
        )


def _from_round(job: Job, store: Store | None, last: int, saved: State) -> Iterator[Round]:
    """The rounds after the last one that is saved."""
    state = restore(job, saved, store, resume=True, last=last)
    saver = _Saver(job, store, last)
    watch = _Watch(job)
    best = _Best(job, store, last)
    try:
        for number in range(last + 1, job.rounds + 1):
            if best.gives_up(last):
                break
            with _threads(job):
                done = _round(job, state, number)
            if store is not None:
                _write(store, job, done)
            state = done.state
            last = number
            best.see(done)
            saver.save(state, last, force=number == job.rounds or best.gives_up(last))
            yield done
            watch.check(done)
        if store is not None and (last == job.rounds or best.gives_up(last)):
            store.write_model(job.task.tensors(job.algorithm.model(state)))
    finally:
        # Ctrl-C, a failed write or a caller that stops: keep every complete round.
        saver.save(state, last, force=True)


class _Best:
    """Keeps the model of the best round by validation rows, and ends a run that gets no better."""

    def __init__(self, job: Job, store: Store | None, last: int) -> None:
        self.job = job
        self.store = store
        self.seen: list[RoundRecord] = []
        if store is not None and last > 0 and job.settings.validation:
            self.seen = [r for r in Record.read(store.folder).rounds if r.number <= last]

    @property
    def round(self) -> RoundRecord | None:
        lower = find(self.job.task.score).lower_is_better
        return best_round(self.seen, self.job.settings.watch, lower)

    def see(self, done: Round) -> None:
        if not done.validation:
            return
        self.seen.append(done)
        if self.round is done and self.store is not None:
            self.store.write_best(self.job.task.tensors(self.job.algorithm.model(done.state)))

    def gives_up(self, last: int) -> bool:
        """Whether there was no better round for as long as `patience` allows."""
        patience = self.job.settings.patience
        best = self.round
        return patience is not None and best is not None and last - best.number >= patience


class _Watch:
    """Ends a run in which no reply can be used any more, as every client's training diverges."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.lost = 0  # rounds in a row

    def check(self, done: Round) -> None:
        diverged = [
            why for why in done.dropped.values() if "not finite" in why or "finite num" in why
        ]
        lost = bool(done.clients) and not done.weights and len(diverged) == len(done.dropped) > 0
        self.lost = self.lost + 1 if lost else 0
        if self.lost == LOST_ROUNDS:
            raise DivergedError(_diverged(self.job, done.number - self.lost + 1))


def _diverged(job: Job, number: int) -> str:
    client = job.algorithm.client
    remedy = "lower the learning rate"
    if client is not None:
        remedy = f"lower client.lr, now {client.lr:g}, or set client.clip"
    return f"training diverged in round {number}: {remedy}"


class _Saver:
    """Writes checkpoints, at most one in SAVE_EVERY seconds."""

    def __init__(self, job: Job, store: Store | None, last: int) -> None:
        self.job = job
        self.store = store
        self.saved_round = last
        self.saved_at = time.monotonic()

    def save(self, state: State, last: int, force: bool) -> None:
        due = force or time.monotonic() - self.saved_at > SAVE_EVERY
        if self.store is None or last <= self.saved_round or not due:
            return
        self.store.checkpoint(last, {"server": state, **self.job.engine.save(last)})
        self.job.engine.confirm()
        self.saved_at = time.monotonic()
        self.saved_round = last


def restore(job: Job, saved: State, store: Store | None, resume: bool, last: int = 0) -> State:
    """The server's state of a checkpoint, or the initial one; the engine gets the clients'.

    last: the round of the checkpoint
    """
    if store is not None:
        job.engine.restore(saved, store.client_states, resume)
    initial = job.initial_state()
    if "server" not in saved:
        return initial
    state = _matching(initial, saved["server"], job.population.clients)
    if "round" in initial and int(state["round"]) != last + 1:
        _refuse(f"it is of round {last}, but the server would continue with {state['round']}")
    if "w" in initial and state["w"].shape != initial["w"].shape:  # also with as many clients
        _refuse("server/w")
    expected = job.algorithm.init_client(0)
    for client, own in saved.get("client_states", {}).items():
        if not 0 <= int(client) < job.population.clients:
            _refuse(f"there is no client {client}")
        _matching(expected, own, 0, f"client_states/{client}")
    return state


def _refuse(what: str) -> NoReturn:
    raise RunError(
        f"checkpoint.safetensors does not fit this experiment ({what}): delete it to start again"
    )


def _matching(initial: State, saved: State, clients: int, where: str = "server") -> State:
    """The saved state, checked against this experiment's; empty dicts are put back."""
    known: State = dict(saved)
    for name, value in initial.items():
        place = f"{where}/{name}"
        if isinstance(value, dict):
            inner = saved.get(name, {})
            if not isinstance(inner, dict):
                _refuse(place)
            known[name] = _matching(value, inner, clients, place)
        elif not isinstance(saved.get(name), Tensor) or not _alike(value, saved[name], clients):
            _refuse(place)
    return known


def _alike(initial: Tensor, saved: Tensor, clients: int) -> bool:
    """Whether a saved tensor can be what this one became."""
    if saved.dtype != initial.dtype or saved.ndim != initial.ndim:
        return False
    # A dimension over clients has the population's size of when it was saved, which may be smaller
    # or larger than today's; one that begins empty has any.
    return all(
        now == then or then == 0 or (then == clients and now > 0)
        for now, then in zip(saved.shape, initial.shape, strict=True)
    )


def reopen(
    folder: str | Path,
    task: Task | None = None,
    federation: Federation | None = None,
    trust: bool = False,
) -> tuple[Job, State]:
    """The job of a run in a folder, with the states of its last checkpoint.

    For a run of your own Task and Federation pass the same two again; they are compared by hash.

    trust: import the programs that the run's experiment names (`package.module:callable`)
    """
    store = Store(Path(folder))
    with trusting(trust):
        job = _reopened(store.folder, task, federation)
    saved = store.saved()
    if saved is None:
        raise RunError(f"{str(folder)!r} has no checkpoint yet")
    return job, restore(job, saved, store, resume=False, last=int(saved["last"]))


def _reopened(folder: Path, task: Task | None, federation: Federation | None) -> Job:
    import tomllib

    path = folder / "experiment.toml"
    try:
        if task is None or federation is None:
            return job_from_experiment(read(path))
        text = read_plain(path).decode()
        tables = tomllib.loads(text)
        given = {key: value for key, value in tables.items() if key not in ("dataset", "model")}
        job = job_from_parts(task, federation, **given)
    except (ConfigError, OSError, ValueError) as error:
        raise RunError(
            f"{str(folder)!r} cannot be built again from its experiment.toml: {error}; a run of "
            "your own Task and Federation is reopened by reopen(folder, task, federation)"
        ) from None
    if job.text != text:
        raise RunError(f"{str(folder)!r} is a run of another task or federation")
    return job


def converse(
    algorithm: Algorithm, engine: Engine, state: State, sample: Sample
) -> tuple[Outcome, list[Exchange]]:
    """Drive a round: carry its requests to the clients until it returns."""
    conversation = algorithm.round(state, sample)
    exchanges: list[Exchange] = []
    replies = None
    while True:
        try:
            request = next(conversation) if replies is None else conversation.send(replies)
        except StopIteration as stop:
            return stop.value, exchanges
        replies = engine.collect(algorithm, request)
        exchanges.append((request, replies))


@contextmanager
def _threads(job: Job) -> Iterator[None]:
    """One thread in a deterministic run: the order in which sums are added depends on threads."""
    before = torch.get_num_threads()
    if job.settings.deterministic:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _round(job: Job, state: State, number: int) -> Round:
    algorithm, engine = job.algorithm, job.engine
    start = time.perf_counter()
    outcome, exchanges = converse(algorithm, engine, state, job.sample(number))
    trained = time.perf_counter()
    new_state = outcome.state
    evaluation = None
    if number % job.settings.evaluate_every == 0 or number == job.rounds:
        new_state = algorithm.before_evaluation(new_state)
        evaluation = engine.evaluate(algorithm, new_state)
        _check_finite(job, evaluation, number)
    further: Values = {}
    held_out = None
    if evaluation is not None:
        further, held_out = _further(job, new_state)
        further["mixture"] = _mixture(job, new_state)
    evaluated = time.perf_counter()
    return Round(
        number=number,
        **_reported(exchanges, engine.population),
        **_used(outcome, exchanges, engine.population),
        warnings=outcome.warnings,
        bytes=_traffic(job, exchanges),
        **_metrics(evaluation, engine.population),
        **further,
        evaluation=evaluation,
        held_out=held_out,
        state=new_state,
        seconds={"train": trained - start, "evaluate": evaluated - trained},
        job=job,
    )


def _further(job: Job, state: State) -> tuple[Values, Evaluation | None]:
    """The metrics on validation rows and of held-out clients, and the latter's evaluation."""
    found: Values = {}
    lower = find(job.task.score).lower_is_better
    if job.settings.validation:
        each = job.engine.evaluate(job.algorithm, state, "validation")
        scores = (each.personal or each).score[each.scored]
        if len(scores):
            sizes = each.sizes[each.scored]
            found["validation"] = metrics.summary(scores, sizes, lower_is_better=lower)
    if not job.settings.unseen:
        return found, None
    unseen = job.engine.evaluate(job.algorithm, state, "unseen")
    if len(unseen.scored):
        sizes = unseen.sizes[unseen.scored]
        scores = unseen.score[unseen.scored]
        found["unseen"] = metrics.summary(scores, sizes, lower_is_better=lower)
    return found, unseen


def _mixture(job: Job, state: State) -> dict[str, float]:
    """The mixture of clients that was learnt, by name; empty where there is none."""
    names = job.population.names
    found = job.algorithm.mixture(state, len(names))
    return {} if found is None else dict(zip(names, found.tolist(), strict=True))


def _check_finite(job: Job, evaluation: Evaluation, number: int) -> None:
    """Raise DivergedError where the losses of most clients are not finite, or are absurd."""
    in_units = job.task.loss == "squared" and job.task.target is None  # may be of any size
    limit = torch.inf if in_units else HOPELESS
    for each in (evaluation, evaluation.personal):
        if each is not None:
            lost = ~(each.losses[each.sizes > 0] < limit)
            if lost.double().mean() > 0.5:
                raise DivergedError(_diverged(job, number))


def _reported(exchanges: Sequence[Exchange], population: Population) -> Values:
    """The cohort of the first exchange, with the losses and scores that it reported."""
    if not exchanges:
        return {"clients": (), "losses": (), "scores": ()}
    request, replies = exchanges[0]
    ids = replies.clients.tolist()
    columns = {}
    for name, key in (("losses", "loss"), ("scores", "score")):
        values = replies.values[key].tolist() if key in replies.values else []
        by_client = dict(zip(ids, values, strict=False))
        columns[name] = tuple(by_client.get(i, float("nan")) for i in request.clients.tolist())
    names = tuple(population.names[i] for i in request.clients.tolist())
    return {"clients": names, **columns}


def _used(outcome: Outcome, exchanges: Sequence[Exchange], population: Population) -> Values:
    """Weights, dropped and capped clients, by name."""
    names = population.names
    failed: dict[int, str] = {}
    for _, replies in exchanges:
        failed |= replies.failed
    weights = zip(outcome.clients.tolist(), outcome.weights.tolist(), strict=True)
    return {
        "weights": {names[client]: weight for client, weight in weights},
        "dropped": {names[client]: why for client, why in (failed | outcome.dropped).items()},
        "capped": {names[client]: why for client, why in outcome.capped.items()},
    }


def _traffic(job: Job, exchanges: Sequence[Exchange]) -> dict[str, int]:
    """Bytes sent down and up, and what sending the model's weights both ways would cost."""
    down = up = asked = 0
    for request, replies in exchanges:
        down += len(request.clients) * num_bytes(request.message) + num_bytes(request.each)
        up += num_bytes(replies.values)
        asked += len(request.clients) if request.purpose == "train" else 0
    return {"down": down, "up": up, "weights": 2 * asked * job.task.size * 4}


def _metrics(evaluation: Evaluation | None, population: Population) -> Values:
    """Metrics over clients of the main score, of personal models, and of further scores."""
    if evaluation is None:
        return {}
    scored = evaluation.scored
    names = [population.names[client] for client in scored.tolist()]
    sizes = evaluation.sizes[scored]
    if len(scored) == 0:
        return {}
    main, *further = evaluation.scores
    lower = find(main).lower_is_better
    found: Values = {"metrics": metrics.summary(evaluation.score[scored], sizes, names, lower)}
    if evaluation.personal is not None:
        own = evaluation.personal.score[scored]
        found["personal"] = metrics.summary(own, sizes, names, lower)
    more = {}
    for name in further:
        values = evaluation.scores[name]
        defined = scored[~values[scored].isnan()]
        if len(defined):
            named = [population.names[client] for client in defined.tolist()]
            more[name] = metrics.summary(
                values[defined], evaluation.sizes[defined], named, find(name).lower_is_better
            )
    return found | {"more": more}


def _write(store: Store, job: Job, done: Round) -> None:
    names = job.engine.population.names
    test = None if done.evaluation is None else ClientTable(names, done.evaluation)
    store.append(done, done.seconds, test=test, unseen=_held_out_table(job, done))
    if done.evaluation is not None:
        samples = job.algorithm.samples(done.state)
        if samples is not None:
            store.write_samples(*samples)


def _held_out_table(job: Job, done: Round) -> ClientTable | None:
    federation = job.engine.federation
    if done.held_out is None or federation is None or federation.held_out is None:
        return None
    return ClientTable(federation.held_out.names, done.held_out)


def _target(task: Task) -> Values:
    """The scale of a regression's target: `model.safetensors` gives (label - mean) / deviation."""
    if task.target is None:
        return {}
    mean, deviation = task.target
    return {"target": {"mean": mean, "deviation": deviation}}


def facts(job: Job) -> Mapping[str, Value]:
    """What the run's record says about where and on what it ran."""
    import commonweal

    return {
        "commonweal": commonweal.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": 1 if job.settings.deterministic else torch.get_num_threads(),
        "processor": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        **job.engine.facts(job.algorithm),
        "data": job.engine.digest(),
        "parameters": job.task.size,
        "score": job.task.score,
        **_target(job.task),
        "task": {
            "loss": job.task.loss,
            "shape": list(job.population.shape),
            "labels": list(job.label_shape),
            "outputs": job.population.outputs,
        },
        "class_names": list(job.class_names),
    }
