"""A run is a loop over rounds, and the caller's `for` is the hook: `for round in run(...): ...`."""

import math
import platform
import shutil
import tempfile
import time
import tomllib
import warnings
import weakref
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from inspect import Signature
from pathlib import Path
from typing import ClassVar, Unpack

import torch
from torch import Tensor, nn

from commonweal import metrics
from commonweal.base import notebook
from commonweal.base.arguments import expect
from commonweal.base.errors import (
    ConfigError,
    DivergedError,
    ResumeWarning,
    RunError,
    UnusedRunWarning,
)
from commonweal.base.tensors import State, Tensors, num_bytes
from commonweal.base.threads import one_thread_each
from commonweal.config.experiment import Experiment, title_of
from commonweal.data.federation import Federation
from commonweal.data.rows import REGRESSION
from commonweal.engines import Engine, gains_from_threads
from commonweal.jobs.final import check_threshold, final, test_scores
from commonweal.jobs.job import Job, OwnParts, job_from_experiment, job_from_parts
from commonweal.jobs.reopening import restore, warn_of_functions
from commonweal.jobs.stored import StoredModels
from commonweal.protocols.algorithm import Algorithm, Outcome, Replies, Request, Sample
from commonweal.record.artifacts import (
    BEST,
    read_model,
    write_model,
    write_preprocessing,
    write_samples,
)
from commonweal.record.client_states import ClientStates
from commonweal.record.facts import RunFacts, TargetScale, TaskFacts, read_facts, write_facts
from commonweal.record.final import write_final
from commonweal.record.publication import private_folder, publish
from commonweal.record.record import Record
from commonweal.record.removal import remove_run
from commonweal.record.rounds import (
    ClientTable,
    RoundRecord,
    best_round,
    outcome_fields,
    read_rounds,
)
from commonweal.record.store import Store
from commonweal.record.test_scores import write_test_scores
from commonweal.task.modules import frozen_digest
from commonweal.task.scores import find_score, score_title
from commonweal.task.task import Task
from commonweal.training.evaluation import Evaluation

LOST_ROUNDS = 5  # in a row in which all replies are not finite: the run has diverged
HOPELESS = 1e6  # a loss: guessing gives 1 of a scaled target, and log(classes)
SAVE_EVERY = 2.0  # seconds between checkpoints; what is lost in between is computed again

Exchange = tuple[Request, Replies]


@dataclass(frozen=True, eq=False, kw_only=True)
class Round(RoundRecord):
    """A round that was just run.

    Attributes:
        number: The round, from 1.
        metrics: The score over clients: "mean", "worst" and others. `personal` has those of
            personal models, `more` those of further scores.
        score, lower_is_better: The name of that score, and its direction.
        clients, losses, weights: Who replied, the losses they reported, by which they counted.
        dropped, capped, warnings: Replies that did not count as they were sent, and remarks.
        evaluation: Every client's loss and score on its test samples; `held_out` of others.
        seconds, bytes: What the round took and sent.

    `module()` and `state_dict()` give the global model, `module(client="c1")` a personal one.
    """

    __signature__: ClassVar[Signature] = Signature()  # for `help`: rounds are not made by users

    evaluation: Evaluation | None = None  # on test rows, after the round
    held_out: Evaluation | None = None  # of clients that are held out
    diverged: bool  # no reply could be used, as every client's training diverged
    state: State  # the server's
    seconds: dict[str, float]
    job: Job

    def __repr__(self) -> str:
        shown = {name: round(value, 4) for name, value in list(self.metrics.items())[:3]}
        return f"<Round {self.number}: {len(self.clients)} clients, {self.score} {shown}>"

    @property
    def score(self) -> str:
        """The name of the score of which `metrics` are, with its direction if lower is better."""
        return score_title(self.job.task.score)

    @property
    def lower_is_better(self) -> bool:
        """True if lower values of the score are better."""
        return self.job.task.find_score(self.job.task.score).lower_is_better

    def state_dict(self) -> Tensors:
        """The global model's tensors after the round, by the module's own names."""
        return self.job.task.tensors(self.job.algorithm.model(self.state))

    def module(self, client: str | None = None) -> nn.Module:
        """The model after the round, as a module in evaluation mode.

        Its outputs are in the labels' units.

        Args:
            client: The client whose personal model it is; None: the global model.
        """
        job = self.job
        if client is None:
            return job.task.module_of(job.algorithm.model(self.state))
        states = job.engine.states
        if not isinstance(states, ClientStates):
            raise RunError("personal models are at the clients, which this process does not have")
        ids = {name: number for number, name in enumerate(job.population.names)}
        models = StoredModels(job.task, job.algorithm, self.state, ids, states)
        if states.last_round > self.number:
            raise RunError(
                f"round {self.number} is over, and clients have trained since: ask for personal "
                "models in the loop, before the next round, or of the last round"
            )
        return models.module(client)


class Run(Iterator[Round]):
    """A run that `run` prepared. It begins when you iterate over it or ask for its result.

    It is iterated over once, round by round; `result` runs what is left.

    Attributes:
        last: The last `Round` that was run.
        folder: Where the run is written to, if anywhere.
        job: What was built: task, algorithm and settings.
    """

    def __init__(
        self, job: Job, out: Path | None = None, resume: bool = False, force: bool = False
    ) -> None:
        self.job = job
        self.folder = out
        self.last: Round | None = None  # the last round that was run
        self._resume = resume
        self._force = force
        self._rounds: Generator[Round, None, None] | None = None
        self._record: Record | None = None

    def __repr__(self) -> str:
        done = 0 if self.last is None else self.last.number
        title = title_of(tomllib.loads(self.job.text))
        return f"<Run: {title}, {done} of {self.job.rounds} rounds>"

    def __next__(self) -> Round:
        self.last = next(self._started())
        return self.last

    def _started(self) -> Generator[Round, None, None]:
        if self._rounds is None:
            self._rounds = _rounds(self.job, self.folder, self._resume, self._force)
            if notebook.in_notebook():
                title = title_of(tomllib.loads(self.job.text))
                self._rounds = notebook.with_bar(self._rounds, self.job.rounds, title)
        return self._rounds

    def close(self) -> None:
        """Stop here: every complete round is saved, and the folder is free for others."""
        self._started().close()

    def __del__(self) -> None:
        if self._rounds is None:
            warnings.warn(
                f"{self!r} was never started: iterate over it, or call its result()",
                UnusedRunWarning,
                stacklevel=2,
                source=self,
            )

    def result(self) -> Record:
        """Run the rounds that are left, and return the run's record.

        Without `out` the record is in a temporary folder, which is deleted with it.
        """
        if self._record is not None:
            return self._record
        temporary = self.folder is None
        if self.folder is None:
            if self._rounds is not None:
                raise RunError(
                    f"{self!r} has no folder with its first rounds: call result() before iterating "
                    "over it, or give one, run(..., out='runs/mine')"
                )
            self.folder = Path(tempfile.mkdtemp(prefix="commonweal-"))
        try:
            for _ in self:
                pass
            if not self.job.engine.leads:
                raise RunError(f"{self!r}: only rank 0 has its record, iterate over it elsewhere")
            self._record = Record.read(self.folder)
        except BaseException:
            if temporary:
                shutil.rmtree(self.folder, ignore_errors=True)
            raise
        if temporary:
            weakref.finalize(self._record, shutil.rmtree, self.folder, ignore_errors=True)
        return self._record

    def state_dict(self) -> Tensors:
        """The global model's tensors after the last round that was run."""
        if self.last is not None:
            return self.last.state_dict()
        if self.folder is None:
            raise RunError("the run has no round yet: iterate over it, or call its result()")
        return read_model(self.folder)

    def module(self, client: str | None = None) -> nn.Module:
        """The model after the last round that was run, in evaluation mode.

        Args:
            client: The client whose personal model it is; None: the global model.
        """
        task = self.job.task
        if client is not None:
            if self.last is not None:
                return self.last.module(client)
            return self.result().module(task.module, client=client)
        return task.module_of(task.vector(self.state_dict()))


def run(
    what: Experiment | Job | Task,
    federation: Federation | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    **parts: Unpack[OwnParts],
) -> Run:
    """Prepare a run. Iterate over it round by round, or call its `result()`.

    In a notebook the rounds have a progress bar.

    Args:
        what: An Experiment; or, with a federation, a Task of your own.
        federation: The clients' samples, with a Task.
        out: The folder that the run is written to. Without it nothing is saved.
        resume: Continue the run that is in the folder.
        force: Delete the run that is in the folder, and start again.
        algorithm: With a Task: the protocol between server and clients ("averaging"). This part
            and those that follow are a name, a table with `name` and parameters, or an object.
        rule: How much each client's reply counts ("fedavg").
        client: How clients train ("sgd").
        server: The server's optimizer ("sgd").
        sampler: Who takes part in a round ("uniform").
        channels: What happens to replies on their way, in this order.
        name: What tables and figures call the run. By default the rule.
        rounds: How many rounds (100).
        cohort: How many clients a round asks: a number, a share, or "all".
        seed: Determines everything random (0).
        score: The score, or several, the main one first. By default that of the task.
        loss: Of a regression: "squared", "huber", "absolute" or "poisson". By default the task's.
        target: "log" trains the model of a regression on logarithms.
        threshold: The score for which a threshold of two classes is chosen on validation samples.
        class_weight: By what the losses of classes are multiplied: "balanced", or numbers.
        evaluate_every: Rounds between evaluations (1).
        validation: The share of each client's training samples to choose the best round by.
        patience: Rounds without a better one, on validation samples, before the run stops.
        monitor: What "better" refers to: the "mean" over clients, or the "worst".
        holdout_clients: The share of clients that are held out of training.
        without: Clients that are left out, as if there were no such data.
        policy: A file of what may leave a site, which is tried at every client.
        synthetic_from: The folder of a run whose synthetic samples every client also trains on.
        device: Where clients compute: "cpu", "cuda", "cuda:1" or "mps".
        precision: "bfloat16" trains in mixed precision, for GPUs. By default "float32".
        vectorize: How clients are computed: "auto", "vmap", "chunked" or "loop".
        deterministic: Use one thread: the same bytes on any number of cores.
        engine: Who carries the messages: "simulator", or "torchrun", which starts the processes.

    Raises:
        ConfigError: A part or a setting cannot be right.

    >>> x, y, client = [[0.0], [1.0], [2.0], [3.0]], [0, 1, 0, 1], ["a", "a", "b", "b"]
    >>> federation = Federation.from_arrays(x, y, client, test=0.5)
    >>> task = Task(torch.nn.Linear(1, 2))
    >>> [r.number for r in run(task, federation, rule="aaggff-s", rounds=2)]
    [1, 2]
    >>> run(task, federation, rounds=2).result().finished
    True
    """
    if out is not None:
        expect("out", out, (str, Path), "the path of a folder")
    expect("resume", resume, bool, "True or False")
    expect("force", force, bool, "True or False")
    return Run(_job(what, federation, parts), None if out is None else Path(out), resume, force)


def _job(what: object, federation: Federation | None, parts: Mapping[str, object]) -> Job:
    if isinstance(what, Task):
        if not isinstance(federation, Federation):
            raise ConfigError(
                f"federation = {federation!r:.80}: run(task) needs a Federation as its second "
                "argument"
            )
        return job_from_parts(what, federation, **parts)
    if not isinstance(what, Experiment | Job):
        raise ConfigError(
            f"what = {what!r:.80}: give run an Experiment (load_experiment(path) reads one), or a "
            "Task and a Federation"
        )
    if federation is not None or parts:
        raise ConfigError(
            "run(experiment) takes no other parts: change the experiment, or give a Task and a "
            "Federation"
        )
    return job_from_experiment(what) if isinstance(what, Experiment) else what


def _rounds(
    job: Job, folder: Path | None, resume: bool, force: bool
) -> Generator[Round, None, None]:
    running = job.engine.running(job.algorithm, job.text)
    if job.engine.leads:
        with running:
            yield from _led_rounds(job, folder, resume, force)
    else:
        with _threads(job), running:  # answers until the run is over
            return


def _led_rounds(job: Job, folder: Path | None, resume: bool, force: bool) -> Iterator[Round]:
    job.engine.states.reset()  # states of an earlier run of the same job
    if folder is None:
        yield from _from_round(job, None, None, 0, {})
        return
    # A private run keeps the values of its clients apart.
    is_private = job.algorithm.promise is not None
    store = Store(private_folder(folder, force) if is_private else folder)
    check_threshold(job)
    about = run_facts(job)  # raises where the parts do not fit, before anything is written
    with store.locked():
        was_removed = force and remove_run(folder)
        last, saved = store.open(
            job.text, about, resume, job.algorithm.plans_rounds, job.data, was_removed
        )
        best = None
        if last > 0 and job.settings.validation:
            best = _best(job, [r for r in read_rounds(store.folder) if r.number <= last])
        if not _ends(job, last, best):
            store.remove_results(last)
            _warn_of_changes(store, about)
            if last > 0:
                warn_of_functions(job, store.folder)
        _write_preprocessing(job, store)
        _publish(job, store)
        yield from _from_round(job, store, best, last, saved)


def _warn_of_changes(store: Store, about: RunFacts) -> None:
    """Warn where a resumed run continues on something else: its bytes may differ from there on."""
    before = read_facts(store.folder).table()
    now = about.table()
    changed = [
        f"{key} {before.get(key)}, now {now[key]}"
        for key in ("commonweal", "torch", "python", "threads", "processor")
        if before.get(key) != now[key]
    ]
    if changed:
        warnings.warn(
            f"the run in {str(store.folder)!r} began with {', '.join(changed)}: the rounds from "
            "here on may differ in their last digits",
            ResumeWarning,
            stacklevel=4,
        )


def _from_round(
    job: Job, store: Store | None, best: RoundRecord | None, last: int, saved: State
) -> Iterator[Round]:
    """The rounds after the last one that is saved. best: of those before, on validation samples."""
    state = restore(job, saved, store, resume=True, last=last)
    saved_round, saved_at = last, time.monotonic()
    lost = 0  # rounds in a row in which training diverged
    try:
        if _ends(job, last, best):
            _write_model(job, store, state)  # the run may have been killed before it was written
        while not _ends(job, last, best):
            with _threads(job):
                done = _round(job, state, last + 1)
            _write(store, job, done)
            best = _best(job, [done] if best is None else [best, done])
            if best is done and store is not None:
                write_model(store.folder, done.state_dict(), BEST)
            state, last = done.state, done.number  # it is complete: a checkpoint may follow
            ends = _ends(job, last, best)
            if ends or time.monotonic() - saved_at > SAVE_EVERY:
                _checkpoint(job, store, state, last)
                saved_round, saved_at = last, time.monotonic()
            lost = lost + 1 if done.diverged else 0
            if ends and lost < LOST_ROUNDS:
                _write_model(job, store, state)  # before a caller can stop
            yield done
            if lost == LOST_ROUNDS:
                raise DivergedError(_diverged(job, done.number - lost + 1))
    finally:
        # Ctrl-C, a failed write or a caller that stops: keep every complete round.
        if last > saved_round:
            _checkpoint(job, store, state, last)


def _best(job: Job, rounds: list[RoundRecord]) -> RoundRecord | None:
    """The best of some rounds by validation samples, if there are any."""
    return best_round(rounds, job.settings.monitor, find_score(job.task.score).lower_is_better)


def _ends(job: Job, last: int, best: RoundRecord | None) -> bool:
    """Return whether a round is the last: of all, or of those that `patience` allows."""
    patience = job.settings.patience
    if patience is not None and best is not None and last - best.number >= patience:
        return True
    return last >= job.rounds


def _checkpoint(job: Job, store: Store | None, state: State, last: int) -> None:
    if store is not None:
        store.checkpoint(last, {"server": state, **job.engine.states.save(last)})
        job.engine.states.confirm()
        _publish(job, store)


def _publish(job: Job, store: Store) -> None:
    """Write what a private run lets others read."""
    if job.algorithm.promise is not None:
        publish(store.folder)


def _write_model(job: Job, store: Store | None, state: State) -> None:
    if store is None:
        return
    releases = job.algorithm.promise is None and not job.settings.policy
    if releases:  # else numbers of clients' rows are not released
        computed = final(job, state)
        write_final(store.folder, computed)
        if computed.threshold is not None:
            _write_preprocessing(job, store, computed.threshold.value)
    scores = None if job.settings.policy else test_scores(job, state)  # of single samples
    if scores is not None:
        write_test_scores(store.folder, scores)
    store.write_model(job.task.tensors(job.algorithm.model(state)))
    client = job.algorithm.client
    if client is not None and "taken" in state:
        taken = dict(zip(client.candidates, state["taken"].int().tolist(), strict=True))
        write_facts(store.folder, replace(read_facts(store.folder), taken=taken))
    _publish(job, store)


def _write_preprocessing(job: Job, store: Store, threshold: float | None = None) -> None:
    """Write how a table's columns became features, and outputs become predictions."""
    if job.preprocessing is None:
        return
    scale = target_scale(job.task)
    known = {} if scale is None else asdict(scale)
    target = {key: float(value) for key, value in known.items() if value is not None}
    fitted = replace(job.preprocessing, target=target, threshold=threshold)
    write_preprocessing(store.folder, fitted)


def _diverged(job: Job, number: int) -> str:
    client = job.algorithm.client
    remedy = "lower the learning rate"
    if client is not None and job.task.is_network:
        remedy = f"lower client.lr, now {client.lr:g}, or set client.clip"
    return f"training diverged in round {number}: {remedy}"


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


def _threads(job: Job) -> AbstractContextManager[None]:
    """Divide the cores among clients, or leave them to operations where these are large."""
    return nullcontext() if _thread_count(job) > 1 else one_thread_each()


def _thread_count(job: Job) -> int:
    """Return the number of threads that an operation takes in a round.

    One for small models, and in a deterministic run: the order in which sums are added depends on
    the number of threads.
    """
    if job.settings.deterministic or not gains_from_threads(job.algorithm.client_task):
        return 1
    return torch.get_num_threads()


def _round(job: Job, state: State, number: int) -> Round:
    algorithm = job.algorithm
    start = time.perf_counter()
    outcome, exchanges = converse(algorithm, job.engine, state, job.sample(number))
    trained = time.perf_counter()
    names = job.population.names  # ids are ids up to here
    cohort, losses, scores = _reported(exchanges)
    dropped: dict[int, str] = {}
    for _, replies in exchanges:
        dropped |= replies.failed
    dropped |= outcome.dropped
    done = Round(
        number=number,
        clients=tuple(names[client] for client in cohort),
        losses=losses,
        scores=scores,
        dropped={names[client]: reason for client, reason in dropped.items()},
        warnings=outcome.warnings,
        bytes=_traffic(job, exchanges),
        diverged=2 * len(outcome.diverged) > len(cohort),
        state=outcome.state,
        seconds={"train": trained - start},
        job=job,
        **outcome_fields(outcome, names),
    )
    begin = time.perf_counter()
    if number % job.settings.evaluate_every == 0 or number == job.rounds:
        done = _evaluated(replace(done, state=algorithm.before_evaluation(outcome.state)))
    done.seconds["evaluate"] = time.perf_counter() - begin
    return replace(done, public=algorithm.public_numbers(done.state))


Values = tuple[float, ...]


def _reported(exchanges: Sequence[Exchange]) -> tuple[list[int], Values, Values]:
    """The cohort of the first exchange, with the losses and scores it reported; NaN: nothing."""
    if not exchanges:
        return [], (), ()
    request, replies = next(filter(_has_losses, exchanges), exchanges[0])
    cohort = request.clients.tolist()

    def column(name: str) -> Values:
        values = replies.values[name].tolist() if name in replies.values else []
        by_client = dict(zip(replies.clients.tolist(), values, strict=False))
        return tuple(by_client.get(client, math.nan) for client in cohort)

    loss = "loss" if "loss" in replies.values else "train_loss"
    return cohort, column(loss), column("score")


def _has_losses(exchange: Exchange) -> bool:
    return not exchange[1].values.keys().isdisjoint(("loss", "train_loss"))


# Evaluation


def _evaluated(done: Round) -> Round:
    """A round with the scores of its model on every part of the data that the run has."""
    job, algorithm, settings = done.job, done.job.algorithm, done.job.settings
    names = job.population.names
    evaluation = job.engine.evaluate(algorithm, done.state)
    _check_finite(job, evaluation, done.number)
    main, *further = evaluation.scores
    more = {n: _summary(evaluation, evaluation.scores[n], n, names) for n in further}
    mixture = algorithm.mixture(done.state, len(names))
    refused = [f"evaluation: {names[k]}: {why}" for k, why in evaluation.refused.items()]
    done = replace(
        done,
        warnings=(*done.warnings, *refused),
        evaluation=evaluation,
        metrics=_summary(evaluation, evaluation.score, main, names),
        more={name: values for name, values in more.items() if values},
        mixture={} if mixture is None else dict(zip(names, mixture.tolist(), strict=True)),
    )
    if evaluation.personal is not None:
        done = replace(done, personal=_summary(evaluation, evaluation.personal.score, main, names))
    if settings.validation:
        held_back = job.engine.evaluate(algorithm, done.state, "validation")
        values = (held_back.personal or held_back).score
        done = replace(done, validation=_summary(held_back, values, main))
    if settings.holdout_clients:
        held_out = job.engine.evaluate(algorithm, done.state, "unseen")
        done = replace(done, held_out=held_out, unseen=_summary(held_out, held_out.score, main))
    return done


def _summary(
    evaluation: Evaluation, values: Tensor, name: str, names: Sequence[str] | None = None
) -> dict[str, float]:
    """Metrics of a score (K,) over the clients that have it; empty where none has.

    names: of the clients, for error messages
    """
    scored = evaluation.scored
    if name != next(iter(evaluation.scores)):  # a further score may be undefined for some
        scored = scored[~values[scored].isnan()]
    if len(scored) == 0:
        return {}
    called = None if names is None else [names[client] for client in scored.tolist()]
    lower = find_score(name).lower_is_better
    return metrics.summary(values[scored], evaluation.sizes[scored], called, lower)


def _check_finite(job: Job, evaluation: Evaluation, number: int) -> None:
    """Raise DivergedError where the losses of most clients are not finite, or are absurd."""
    in_units = job.task.loss in REGRESSION and job.task.target is None  # may be of any size
    limit = torch.inf if in_units else HOPELESS
    for losses in (evaluation.losses, (evaluation.personal or evaluation).losses):
        lost = ~(losses[evaluation.sizes > 0] < limit)
        if lost.double().mean() > 0.5:
            raise DivergedError(_diverged(job, number))


def _traffic(job: Job, exchanges: Sequence[Exchange]) -> dict[str, int]:
    """Bytes sent down and up, and what sending the model's weights both ways would cost."""
    down = up = asked = 0
    for request, replies in exchanges:
        down += len(request.clients) * num_bytes(request.message) + num_bytes(request.each)
        senders = len(replies.clients) if request.summed else 1
        up += senders * num_bytes(replies.values)
        asked += len(request.clients) if request.purpose == "train" else 0
    return {"down": down, "up": up, "weights": 2 * asked * job.task.size * 4}


def _write(store: Store | None, job: Job, done: Round) -> None:
    if store is None:
        return
    test = None if done.evaluation is None else ClientTable(job.population.names, done.evaluation)
    unseen = None
    if done.held_out is not None and job.local and job.local.federation.held_out:
        unseen = ClientTable(job.local.federation.held_out.names, done.held_out)
    store.append(done, done.seconds, test=test, unseen=unseen)
    samples = None if done.evaluation is None else job.algorithm.samples(done.state)
    if samples is not None:
        write_samples(store.folder, *samples)


def target_scale(task: Task) -> TargetScale | None:
    """Return the scaling that turns the outputs of a regression into labels."""
    if task.target is None:
        return None
    mean, deviation = task.target
    return TargetScale(mean=mean, deviation=deviation, log=task.log_target, variance=task.variance)


def run_facts(job: Job) -> RunFacts:
    """Return the entries of the run's record on the machine, the engine and the data."""
    import commonweal

    data = job.data
    return replace(
        job.engine.facts(job.algorithm),
        commonweal=commonweal.__version__,
        torch=torch.__version__,
        python=platform.python_version(),
        threads=_thread_count(job),
        processor=f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        data="" if job.local is None else job.local.digest(),
        samples=None if data is None else data.identity.whole,
        federation=None if data is None else data.identity.for_all_seeds,
        parameters=job.task.size,
        training_loss=job.algorithm.training_loss,
        score=job.task.score,
        target=target_scale(job.task),
        task=TaskFacts(
            loss=job.task.loss,
            shape=tuple(job.population.shape),
            labels=() if job.local is None else tuple(job.local.federation.train.y.shape[1:]),
            outputs=job.population.outputs,
            frozen=frozen_digest(job.task.module),
        ),
        class_names=job.class_names,
        privacy=job.algorithm.promise,
    )
