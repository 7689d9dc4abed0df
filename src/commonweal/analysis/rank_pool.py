"""Many runs on the processes of torchrun: each takes the next one when it is done.

Rank 0 alone writes. The folder of a run travels to the process that runs it, and back. Nothing is
pickled: functions are named in a table, and arguments and results are JSON.
"""

import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from typing import ParamSpec, TypeVar, cast

import torch
import torch.distributed as dist

from commonweal.base import errors
from commonweal.base.errors import CommonwealError, RankError, ServedExit
from commonweal.base.files import LOCK, read_plain, write_file
from commonweal.base.plain import Plain
from commonweal.base.tensors import Tensors
from commonweal.engines import wire
from commonweal.engines.ranks import connect
from commonweal.engines.wire import DisconnectedError, Parcel
from commonweal.record.artifacts import MODEL
from commonweal.record.checkpoint import CHECKPOINT
from commonweal.record.store import Store

P = ParamSpec("P")
T = TypeVar("T")

# Functions that other ranks call, and their modules. A folder is their last argument, if they have
# one; those of WRITES change it.
WORK = {
    "run_cell": "commonweal.analysis.compare",
    "evaluate": "commonweal.analysis.tuning",
    "run_evidence": "commonweal.analysis.choosing",
}
WRITES = ("run_cell",)


@contextmanager
def leading(in_ranks: bool | None = None) -> "Iterator[RankPool | None]":
    """The processes of torchrun, for what rank 0 does in the context. The others then exit.

    in_ranks: whether they take part. None: if torchrun started this process
    """
    if not (dist.is_torchelastic_launched() if in_ranks is None else in_ranks):
        yield None
        return
    pool = RankPool()
    if pool.rank > 0:
        pool.serve()
        raise ServedExit(0)
    try:
        yield pool
    finally:
        pool.end()


class RankPool(Executor):
    """Processes that each do one piece of work at a time. Rank 0 takes part."""

    def __init__(self) -> None:
        self.rank, self.ranks = connect()
        self._free: SimpleQueue[int] = SimpleQueue()
        for rank in range(self.ranks):
            self._free.put(rank)
        self._threads = ThreadPoolExecutor(self.ranks)  # they wait for the ranks

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call one of the functions of `WORK` where there is a free process."""
        return self._threads.submit(self._call, fn, args)

    def _call(self, function: Callable[..., T], arguments: Sequence[object]) -> T:
        rank = self._free.get()
        try:
            if rank == 0:
                return function(*arguments)
            return cast(T, _call_at(rank, function.__name__, arguments))
        finally:
            self._free.put(rank)

    def end(self) -> None:
        """Let the other processes exit."""
        self._threads.shutdown(cancel_futures=True)
        for rank in range(1, self.ranks):
            wire.send(Parcel({"do": "end"}, {}), rank)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Leave the processes running, for further work."""

    def serve(self) -> None:
        """Do what rank 0 asks for, until it ends."""
        torch.set_num_threads(1)
        try:
            while True:
                question = wire.receive(0)
                if question.header["do"] == "end":
                    return
                wire.send(_answer(question), 0)
        except DisconnectedError as error:
            raise RankError(f"rank {self.rank}: rank 0 ended ({error.reason})") from None


def _call_at(rank: int, name: str, arguments: Sequence[object]) -> Plain:
    """Call a function at another rank."""
    folder = next((value for value in arguments if isinstance(value, Path)), None)
    plain = cast(list[Plain], [value for value in arguments if not isinstance(value, Path)])
    writes = folder is not None and name in WRITES
    with Store(folder).locked() if folder is not None and writes else nullcontext():
        files = {} if folder is None else _files(folder)
        header: Mapping[str, Plain] = {"do": name, "arguments": plain, "folder": folder is not None}
        try:
            wire.send(Parcel(header, files), rank)
            answer = wire.receive(rank)
        except DisconnectedError as error:
            raise RankError(
                f"rank {rank} ended ({error.reason}): start the same command again; finished runs "
                "are saved"
            ) from None
        if folder is not None and writes:
            # A checkpoint comes after what it stands for, and last the model, which ends a run.
            last = {CHECKPOINT: 1, MODEL: 2}
            for path in sorted(answer.tensors, key=lambda path: last.get(path, 0)):
                write_file(folder / path, answer.tensors[path].numpy().tobytes())
    if "error" in answer.header:
        kind, text = str(answer.header["error"]), str(answer.header["text"])
        known = vars(errors)[kind] if kind in errors.__all__ else RankError
        raise known(text)
    return answer.header["result"]


def _answer(question: Parcel) -> Parcel:
    """Call the function that rank 0 asks for."""
    header = question.header
    name = str(header["do"])
    function = vars(import_module(WORK[name]))[name]
    arguments = cast(list[Plain], header["arguments"])
    with tempfile.TemporaryDirectory(prefix="commonweal-") as temporary:
        folder = Path(temporary) / "run"
        for path, data in question.tensors.items():
            write_file(folder / path, data.numpy().tobytes(), durable=False)
        answer: dict[str, Plain] = {}
        try:
            answer["result"] = function(*arguments, *([folder] if header["folder"] else ()))
        except Exception as error:
            if not isinstance(error, CommonwealError):
                traceback.print_exc()
            answer |= {"error": type(error).__name__, "text": str(error)}
        changed: Tensors = {}
        if name in WRITES:
            for path, data in _files(folder).items():
                before = question.tensors.get(path)
                if before is None or not torch.equal(data, before):
                    changed[path] = data
        return Parcel(answer, changed)


def _files(folder: Path) -> Tensors:
    """The bytes of all files of a run, by their paths."""
    files: Tensors = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != LOCK:
            data = bytearray(read_plain(path))
            files[path.relative_to(folder).as_posix()] = (
                torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0).byte()
            )
    return files
