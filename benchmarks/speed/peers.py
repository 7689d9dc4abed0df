"""Other libraries that do the same work: each in an environment of its own, as a subprocess.

`python -m benchmarks.speed --peers` makes the environments in a cache folder (COMMONWEAL_PEERS, or
the user's). A peer without one is skipped.
"""

import json
import os
import socket
import subprocess
import tempfile
import venv
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_dir

from .timing import Timed, threads_text
from .work import Work

__all__ = ["PEERS", "Peer", "PeerError", "PeerProcess", "install", "installed", "start"]

ADAPTERS = Path(__file__).parents[1] / "peers"
TORCH = "torch==2.13.0"


@dataclass(frozen=True)
class Peer:
    """A library, and the programs that drive it."""

    name: str
    requirements: tuple[str, ...]
    adapter: str
    processes: tuple[int, ...] = (1,)  # how many it can be run with

    @property
    def python(self) -> Path:
        return folder() / self.name / "bin" / "python"


PEERS = (
    Peer("pfl", ("pfl[pytorch]==0.6.0",), "pfl_rounds.py", (1, 2)),
    Peer("fluke", ("fluke-fl==0.8.1",), "fluke_rounds.py"),
    Peer("fedlab", ("fedlab==1.3.0", "torchvision"), "fedlab_rounds.py"),
    Peer("flower", ("flwr[simulation]==1.41.0",), "flower_rounds.py", (1, 2)),
)


def folder() -> Path:
    return Path(os.environ.get("COMMONWEAL_PEERS", user_cache_dir("commonweal"))) / "peers"


def installed(peer: Peer) -> bool:
    return (folder() / peer.name / ".done").exists()


def install(peer: Peer) -> bool:
    """Make a peer's environment. Returns whether it could be made."""
    place = folder() / peer.name
    if installed(peer):
        return True
    print(f"{peer.name}: installing into {place} ...", flush=True)
    venv.create(place, with_pip=True, clear=True)
    command = [str(peer.python), "-m", "pip", "install", "--quiet", TORCH, *peer.requirements]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        reason = done.stderr.strip().splitlines()[-1:]
        print(f"{peer.name}: cannot be installed: {''.join(reason)}")
        return False
    (place / ".done").touch()
    return True


def start(peer: Peer, work: Work, threads: int, processes: int, rounds: int) -> "PeerProcess":
    """Start a peer on some work."""
    spec = work.spec() | {
        "threads": threads,
        "processes": processes,
        "rounds_per_turn": rounds,
    }
    label = f"{processes} processes" if processes > 1 else threads_text(threads)
    return PeerProcess(f"{peer.name}, {label}", peer, spec, processes)


class PeerError(RuntimeError):
    """A peer's subprocess ended."""


class PeerProcess:
    """A peer in a subprocess: a line in starts a turn, a line out gives its seconds."""

    def __init__(self, name: str, peer: Peer, spec: dict[str, object], processes: int) -> None:
        self.name = name
        self._rounds = int(str(spec["rounds_per_turn"]))
        command = [str(peer.python), str(ADAPTERS / peer.adapter)]
        told = _environment(int(str(spec["threads"]))) | {"WORK": json.dumps(spec)}
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (open as long as the peer)
        environments = _ranks(processes) if peer.name == "pfl" else [{}]
        self._processes = [
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                env=told | each,
            )
            for each in environments
        ]
        self._alone = processes == 1
        self._has_workers = peer.name == "flower"  # of Ray, which are not counted
        self._answer()  # ready

    def turn(self) -> Timed:
        first = self._processes[0]
        assert first.stdin is not None
        first.stdin.write("go\n")
        first.stdin.flush()
        before = self._processor_seconds()
        seconds = self._answer()
        if self._has_workers:
            return Timed(seconds["wall"], 0.0)
        if self._alone:
            return Timed(seconds["wall"], seconds["processor"])
        return Timed(seconds["wall"], (self._processor_seconds() - before) / self._rounds)

    def _processor_seconds(self) -> float:
        """Of all processes, in steps of a hundredth."""
        ticks = 0
        for process in self._processes:
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])  # utime, stime
        return ticks / os.sysconf("SC_CLK_TCK")

    def _answer(self) -> dict[str, float]:
        first = self._processes[0]
        assert first.stdout is not None
        line = first.stdout.readline()
        if not line:
            self._errors.seek(0)
            reason = self._errors.read().strip().splitlines()[-1:]
            self.close()
            raise PeerError(f"{self.name} ended: {''.join(reason)}")
        answer: dict[str, float] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the subprocesses: at the end of their input they stop by themselves."""
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _environment(threads: int) -> dict[str, str]:
    """The environment of a peer: not this one's packages, and its number of threads."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return kept | {"OMP_NUM_THREADS": str(threads), "PYTHONWARNINGS": "ignore"}


def _ranks(processes: int) -> list[dict[str, str]]:
    """What torchrun tells its processes."""
    if processes == 1:
        return [{}]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        "TORCHELASTIC_RUN_ID": "speed",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
    }
    return [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)]
