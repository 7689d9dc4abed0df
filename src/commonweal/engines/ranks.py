"""Several processes that torchrun starts: rank 0 runs the rounds, the others answer with it.

All of them have the samples. Control flow and clients' states are at rank 0, so that rules, client
methods, algorithms and records do not know that there are ranks. Replies, and what evaluations
give, are put in the places that they have in one process.
"""

import atexit
import os
import signal
import socket
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import compress
from typing import NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

import commonweal
from commonweal.base import errors
from commonweal.base import tensors as named
from commonweal.base.errors import CommonwealError, ConfigError, DataError, RankError
from commonweal.base.files import digest
from commonweal.base.plain import Table
from commonweal.base.tensors import State, Tensors, flatten, unflatten
from commonweal.data.federation import Federation
from commonweal.engines import wire
from commonweal.engines.simulator import Simulator, add, place
from commonweal.engines.wire import DisconnectedError, Parcel
from commonweal.protocols.algorithm import Algorithm, Replies, Request
from commonweal.record.client_states import ClientStates
from commonweal.record.facts import RunFacts
from commonweal.task.task import Task
from commonweal.training.client_state import ClientState
from commonweal.training.evaluation import Evaluation, evaluate_rows, joined, passes

# A rank waits while rank 0 is busy with something else, such as a caller's loop. A process that
# ends is noticed at once, as its connections close.
PATIENCE = timedelta(days=1)
REMEDIES = {
    "samples": "give every machine the same files",
    "initial parameters": "call torch.manual_seed(0) before the model is made",
    "settings": "start every machine with the same experiment",
}
START = "start it with torchrun --nproc-per-node 4 -m commonweal run FILE engine=torchrun"


def connect() -> tuple[int, int]:
    """Join the processes that torchrun started. Returns the rank, and how many there are."""
    if not dist.is_torchelastic_launched():
        raise ConfigError(f"engine = 'torchrun' needs the processes of torchrun: {START}")
    if not dist.is_initialized():
        dist.init_process_group("gloo", timeout=PATIENCE)
        atexit.register(_leave)
    return dist.get_rank(), dist.get_world_size()


def _leave() -> None:
    """End gloo's threads: a process that exits while they run may abort, and count as failed."""
    if dist.is_initialized():
        dist.destroy_process_group()


def shares(sizes: Sequence[int], ranks: int) -> list[list[int]]:
    """Divide units of work among ranks: the largest first, to the rank with the least so far.

    Returns the sorted positions of the units of each rank.

    >>> shares([5, 3, 4, 1], 2)
    [[0, 3], [1, 2]]
    """
    loads = [0] * ranks
    parts: list[list[int]] = [[] for _ in range(ranks)]
    for k in sorted(range(len(sizes)), key=lambda k: -sizes[k]):
        rank = loads.index(min(loads))
        loads[rank] += sizes[k]
        parts[rank].append(k)
    return [sorted(part) for part in parts]


class _Lent(ClientStates):
    """The states that rank 0 lends to another rank for a request, and what the request changes."""

    def __init__(self, clients: int) -> None:
        super().__init__(clients)
        self.changed: State = {}

    def lend(self, states: State) -> None:
        """Forget everything, and take over the states of some clients."""
        self.reset()
        for client, state in states.items():
            super().put(int(client), ClientState.read(state), -1)
        self.changed = {}

    def put(self, client: int, state: ClientState, round: int) -> None:
        super().put(client, state, round)
        self.changed[str(client)] = state.saved()


class Ranks(Simulator):
    """One of several processes that compute the clients of a federation."""

    def __init__(
        self,
        federation: Federation,
        seed: int = 0,
        vectorize: str = "auto",
        device: str = "cpu",
        deterministic: bool = False,
    ) -> None:
        self.rank, self.ranks = connect()
        if device == "cuda":
            device = f"cuda:{int(os.environ['LOCAL_RANK']) % max(1, torch.cuda.device_count())}"
        super().__init__(federation, seed, vectorize, device=device, deterministic=deterministic)
        self.leads = self.rank == 0
        self._names = [f"rank {rank}" for rank in range(self.ranks)]
        self._round = 0  # that is run
        self._asking = False  # others compute, or wait until their replies are received
        self._lent = _Lent(federation.clients)
        if not self.leads:
            self.states = self._lent

    def facts(self, algorithm: Algorithm) -> RunFacts:
        return replace(super().facts(algorithm), engine="torchrun", ranks=self.ranks)

    # A run

    @contextmanager
    def running(self, algorithm: Algorithm, text: str) -> Iterator[None]:
        about = self._about(algorithm, text)
        if not self.leads:
            self._serve(algorithm, about)
            yield
            return
        with _raising_on_sigterm():
            try:
                self._check_alike(about)
                yield
            finally:
                self._end()

    def _about(self, algorithm: Algorithm, text: str) -> dict[str, str]:
        """Return the settings that must be the same at all ranks, and the host."""
        return {
            "host": socket.gethostname(),
            "samples": self.digest(),
            "initial parameters": digest(algorithm.task.initial.numpy().tobytes(), size=8),
            "settings": digest(text.encode(), size=8),
            "commonweal": commonweal.__version__,
            "torch": torch.__version__,
        }

    def _check_alike(self, about: dict[str, str]) -> None:
        """Raise an error where another rank has other samples, files or versions."""
        with self._watching():
            described = [wire.receive(rank).header for rank in range(1, self.ranks)]
        for rank, other in enumerate(described, 1):
            name = self._names[rank] = f"rank {rank} on {other['host']}"
            for key in ("commonweal", "torch"):
                if other[key] != about[key]:
                    versions = f"{key} {other[key]}, rank 0 {about[key]}"
                    raise ConfigError(f"{name} has {versions}: install the same version")
            for key, remedy in REMEDIES.items():
                if other[key] != about[key]:
                    kind = DataError if key == "samples" else ConfigError
                    digests = f"digests {other[key]} and {about[key]}"
                    raise kind(f"{name} has other {key} than rank 0 ({digests}): {remedy}")

    def _end(self) -> None:
        """Tell the others that the run is over."""
        if self._asking:  # interrupted: they are not listening
            _leave()
            return
        with self._watching():
            wire.broadcast(Parcel({"do": "end"}, {}))

    @contextmanager
    def _watching(self) -> Iterator[None]:
        """Raise RankError where a process is gone."""
        try:
            yield
        except DisconnectedError as error:
            self._asking = True
            if _in_main_thread():
                signal.signal(signal.SIGTERM, signal.SIG_IGN)  # let this process save and report
            who = "a rank" if error.rank is None else self._names[error.rank]
            when = f" in round {self._round}" if self._round else ""
            raise RankError(
                f"{who} ended{when} ({error.reason}): start the same command again, with --resume "
                "to continue after the last saved round"
            ) from None

    # Requests of rank 0

    def collect(self, algorithm: Algorithm, request: Request) -> Replies:
        self._round = int(request.message["round"])
        units = self._units(algorithm, request.clients)
        if len(units) < 2:
            return super().collect(algorithm, request)
        owner = _owners(units, self.population.sizes[request.clients], self.ranks)
        tensors = flatten({"message": request.message, "each": request.each})
        tensors |= {"owner": owner, "clients": request.clients}
        question = Parcel(
            {"do": "collect", "purpose": request.purpose, "summed": request.summed}, tensors
        )
        values: Tensors = {}
        for rank, answer in self._ask(algorithm, question, request.clients):
            positions = (owner == rank).nonzero().flatten()
            if request.summed:
                add(values, _within("reply/", answer))
            else:
                place(values, _within("reply/", answer), positions, len(owner))
            for client, state in unflatten(_within("state/", answer)).items():
                self.states.put(int(client), ClientState.read(state), self._round)
            del answer  # before the next one comes
        return Replies(request.clients, values)

    def _units(self, algorithm: Algorithm, clients: Tensor) -> list[Tensor]:
        """The positions of clients that must be computed together.

        In a deterministic run these are whole groups of the simulator, whose sums round alike.
        """
        if self.deterministic and not algorithm.together:
            return self._groups(algorithm, clients)
        return list(torch.split(torch.arange(len(clients)), 1))

    def _results(self, algorithm: Algorithm, w: Tensor, part: str) -> tuple[Tensor, Tensors]:
        count = len(passes(algorithm.task, self._on_device(part)))
        if count < 2:
            return super()._results(algorithm, w, part)
        owner = torch.arange(count) * self.ranks // count
        question = Parcel({"do": "rows", "part": part}, {"owner": owner, "w": w})
        results = []
        for _, answer in self._ask(algorithm, question):
            results.append((answer["losses"], _within("stats/", answer)))
        return joined(results, sum(len(losses) for losses, _ in results))

    def _personal(
        self, algorithm: Algorithm, message: Tensors, part: str
    ) -> Iterator[tuple[Tensor, Evaluation]]:
        alone = self.decision(algorithm)[0] == "loop" or not self.deterministic
        groups = self._model_groups(algorithm, part, self.states)
        for begin in range(0, len(groups), self.ranks):
            ids = torch.cat(groups[begin : begin + self.ranks])
            units = torch.split(torch.arange(len(ids)), 1 if alone else len(groups[0]))
            owner = _owners(units, self._part(part).sizes[ids], self.ranks)
            tensors = {"owner": owner, "clients": ids, **flatten({"message": message})}
            question = Parcel({"do": "personal", "part": part}, tensors)
            for _, answer in self._ask(algorithm, question, ids):
                scores, partners = _within("score/", answer), answer.get("partners")
                evaluation = Evaluation(
                    answer["losses"], scores, answer["sizes"], partners=partners
                )
                yield answer["ids"], evaluation

    def _ask(
        self, algorithm: Algorithm, question: Parcel, lent: Tensor | None = None
    ) -> Iterator[tuple[int, Tensors]]:
        """Ask all ranks, and yield the answers of those that have something to do, in order.

        Args:
            algorithm: Computes the answers.
            question: Its tensor "owner" says which rank computes which unit.
            lent: The clients whose states the ranks need, unit by unit.
        """
        owner = question.tensors["owner"]
        busy = [rank for rank in range(1, self.ranks) if (owner == rank).any()]
        if len(self.states) == 0:
            lent = None
        with self._watching():
            self._asking = True
            wire.broadcast(Parcel({**question.header, "lends": lent is not None}, question.tensors))
            if lent is not None:
                for rank in busy:
                    wire.send_parcel(Parcel({}, self._states_of(lent[owner == rank])), rank)
        failure: Exception | None = None
        try:
            if (owner == 0).any():
                yield 0, self._computed(algorithm, question)
        except Exception as error:  # the others' answers are still received
            failure = error
        for rank in busy:
            with self._watching():
                answer = wire.receive(rank)
            if "error" in answer.header:
                failure = failure or self._failure(rank, answer.header)
            elif failure is None:
                yield rank, answer.tensors
            del answer  # before the next one comes
        self._asking = False
        if failure is not None:
            raise failure

    def _states_of(self, clients: Tensor) -> Tensors:
        states = {}
        for client in clients.tolist():
            if client in self.states:
                states[str(client)] = self.states[client].saved()
        return flatten(states)

    def _failure(self, rank: int, header: Table) -> CommonwealError:
        """The error that another rank met."""
        kind, text = str(header["error"]), str(header["text"])
        if kind in errors.__all__:
            raised: CommonwealError = vars(errors)[kind](text)
            return raised
        return RankError(f"{self._names[rank]} failed ({kind}: {text}): its output says more")

    # Answers of the other ranks

    def _serve(self, algorithm: Algorithm, about: dict[str, str]) -> None:
        """Answer rank 0 until the run is over."""
        try:
            wire.send_parcel(Parcel(about, {}), 0)
            while True:
                question = wire.broadcast()
                if question.header["do"] == "end":
                    return
                if (question.tensors["owner"] == self.rank).any():
                    states = wire.receive(0).tensors if question.header["lends"] else {}
                    self._lent.lend(unflatten(states))
                    wire.send_parcel(self._answer(algorithm, question), 0)
        except DisconnectedError as error:
            raise RankError(f"rank {self.rank}: rank 0 ended ({error.reason})") from None

    def _answer(self, algorithm: Algorithm, question: Parcel) -> Parcel:
        try:
            return Parcel({}, self._computed(algorithm, question))
        except Exception as error:
            if not isinstance(error, CommonwealError):
                traceback.print_exc()
            return Parcel({"error": type(error).__name__, "text": str(error)}, {})

    # What every rank computes

    def _computed(self, algorithm: Algorithm, question: Parcel) -> Tensors:
        """Return this rank's answer to a question."""
        header, tensors = question
        mine = tensors["owner"] == self.rank
        if header["do"] == "rows":
            return self._evaluate_passes(algorithm.task, tensors["w"], str(header["part"]), mine)
        message = _within("message/", tensors)
        clients = tensors["clients"][mine]
        if header["do"] == "personal":
            return self._evaluate_clients(algorithm, message, str(header["part"]), clients)
        each = named.select(_within("each/", tensors), mine)
        purpose, summed = str(header["purpose"]), bool(header["summed"])
        request = Request(clients, message, purpose, each, summed)
        replies = super().collect(algorithm, request)
        return flatten({"reply": replies.values, "state": self._lent.changed})

    def _evaluate_passes(self, task: Task, w: Tensor, part: str, mine: Tensor) -> Tensors:
        """The losses and statistics of this rank's forward passes."""
        rows = self._on_device(part)
        chosen = list(compress(passes(task, rows), mine.tolist()))
        losses, stats = evaluate_rows(task, w, rows, parts=chosen)
        return flatten({"losses": losses.cpu(), "stats": named.move(stats, "cpu")})

    def _evaluate_clients(
        self, algorithm: Algorithm, message: Tensors, part: str, clients: Tensor
    ) -> Tensors:
        """The evaluation of what these clients use."""
        parts = []
        for ids, evaluation in self._evaluate_own(algorithm, message, part, clients.tolist()):
            values = flatten({"score": evaluation.scores})
            values |= {"ids": ids, "losses": evaluation.losses, "sizes": evaluation.sizes}
            if evaluation.partners is not None:
                values["partners"] = evaluation.partners
            parts.append(named.move(values, "cpu"))
        return named.concatenate(parts)


def _owners(units: Sequence[Tensor], sizes: Tensor, ranks: int) -> Tensor:
    """The rank that computes each client (S,), where units are positions that stay together."""
    owner = torch.zeros(len(sizes), dtype=torch.int64)
    for rank, part in enumerate(shares([int(sizes[unit].sum()) for unit in units], ranks)):
        for k in part:
            owner[units[k]] = rank
    return owner


def _within(prefix: str, tensors: Tensors) -> Tensors:
    """Those tensors whose names begin so, without the prefix."""
    return {n.removeprefix(prefix): v for n, v in tensors.items() if n.startswith(prefix)}


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


@contextmanager
def _raising_on_sigterm() -> Iterator[None]:
    """Let SIGTERM raise an error: torchrun sends it where another process has ended."""

    def stop(number: int, frame: object) -> NoReturn:
        raise RankError(
            f"torchrun ended this process (signal {number}), as where another one has ended: start "
            "the same command again, with --resume to continue after the last saved round"
        )

    if not _in_main_thread():  # signals are for the main thread
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is stop:
            signal.signal(signal.SIGTERM, before)
