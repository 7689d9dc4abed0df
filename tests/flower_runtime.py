"""Flower's runtime on this machine, for tests: a SuperLink and SuperNodes as processes.

TLS and node authentication are on. Every process has a session of its own and is ended with all
that it started.
"""

import ctypes
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from types import TracebackType

from commonweal.config.experiment import Experiment
from commonweal.jobs.job import build_dataset

HOST = "127.0.0.1"
PATIENCE = 300.0  # seconds for a step; a quiet machine needs far less
NodeConfig = Mapping[str, str | int | float]


@cache
def timeout() -> float:
    """Seconds in which clients can answer here: Flower starts a Python process per message."""
    began = time.monotonic()
    importing = [sys.executable, "-c", "import commonweal.flower.engine"]
    started = [subprocess.Popen(importing) for _ in range(3)]
    assert [process.wait() for process in started] == [0, 0, 0]
    return round(min(300.0, 10 + 4 * (time.monotonic() - began)))


def node_configs(experiment: Experiment, nodes: int, states: Path) -> dict[str, NodeConfig]:
    """The configuration of each node: one client of the experiment's dataset."""
    names = build_dataset(experiment).names[:nodes]
    return {
        f"node-{k + 1}": {"client": name, "state-dir": str(states)} for k, name in enumerate(names)
    }


def write_keys(folder: Path, nodes: Sequence[str]) -> None:
    """Certificates and keys, by the commands of docs/flower-experiment.md."""
    folder.mkdir(parents=True)
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:secp384r1", "-nodes", "-days", "7"]
    by = ["-CA", "ca.crt", "-CAkey", "ca.key"]
    host = ["-addext", f"subjectAltName=IP:{HOST}", "-addext", "basicConstraints=critical,CA:FALSE"]
    root = ["-subj", "/CN=trial CA", "-keyout", "ca.key", "-out", "ca.crt"]
    server = ["-subj", "/CN=trial server", "-keyout", "server.key", "-out", "server.pem"]
    commands = [
        ["openssl", "req", "-x509", *key, *root],
        ["openssl", "req", "-x509", *key, *by, *host, *server],
    ]
    for name in nodes:
        commands.append(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", name])
    for command in commands:
        subprocess.run(command, cwd=folder, check=True, capture_output=True)


class Runtime:
    """A SuperLink and SuperNodes on the loopback.

    Args:
        folder: Of keys, logs and Flower's own files.
        nodes: The `--node-config` of each node, by the name of its key.
        keys: The folder of another runtime's keys, to use them again.
    """

    def __init__(
        self, folder: Path, nodes: Mapping[str, NodeConfig], keys: Path | None = None
    ) -> None:
        self.folder = folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.nodes = dict(nodes)
        self.keys = keys or self.folder / "keys"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.port = free_port()
        if keys is None:
            write_keys(self.keys, list(self.nodes))
        # No telemetry, no look for updates, no installing of packages.
        self.environment = os.environ | {
            "FLWR_HOME": str(self.folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        }

    def __enter__(self) -> "Runtime":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the SuperLink, register the nodes' keys, and start the SuperNodes."""
        self.start_superlink()
        with ThreadPoolExecutor(4) as pool:  # each is a process, which mostly imports
            list(pool.map(self._register, self.nodes))
        for name in self.nodes:
            self.start_node(name)

    def _register(self, name: str) -> None:
        subprocess.run(
            ["flwr", "supernode", "register", str(self.keys / f"{name}.pub"), "tls"],
            env=self.environment,
            check=True,
            capture_output=True,
            timeout=PATIENCE,
        )

    def start_superlink(self) -> None:
        """Start the SuperLink. It keeps all in memory: its database loses messages when busy."""
        self.launch(
            "superlink",
            "flower-superlink",
            *("--host", HOST, "--port", str(self.port)),
            *("--ssl-ca-certfile", str(self.keys / "ca.crt")),
            *("--ssl-certfile", str(self.keys / "server.pem")),
            *("--ssl-keyfile", str(self.keys / "server.key")),
            "--enable-supernode-auth",
            "--disable-runtime-dependency-installation",
        )
        config = self.folder / "home" / "config.toml"
        config.parent.mkdir(exist_ok=True)
        config.write_text(
            f'[superlink.tls]\naddress = "{HOST}:{self.port}"\n'
            f'root-certificates = "{self.keys / "ca.crt"}"\n'
        )
        deadline = time.monotonic() + PATIENCE
        while not self._is_up():
            assert not self.ended("superlink") and time.monotonic() < deadline, self.log(
                "superlink"
            )
            time.sleep(0.1)

    def _is_up(self) -> bool:
        context = ssl.create_default_context(cafile=str(self.keys / "ca.crt"))
        address = f"https://{HOST}:{self.port}/health"
        try:
            with urllib.request.urlopen(address, timeout=2, context=context):
                return True
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False

    def start_node(self, name: str) -> None:
        """Start a SuperNode, again with the same key if it was stopped.

        After a kill the SuperLink takes the node for connected until its heartbeat is overdue
        (about a minute): until then it refuses it (2004), the process ends, and is to be started
        again.
        """
        self.launch(
            name,
            "flower-supernode",
            *("--superlink", f"{HOST}:{self.port}"),
            *("--root-certificates", str(self.keys / "ca.crt")),
            *("--auth-supernode-private-key", str(self.keys / name)),
            *("--host", HOST, "--port", str(free_port())),
            *("--node-config", _settings(self.nodes[name])),
        )

    def launch(self, name: str, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a process in a session of its own; its output goes to a file."""
        with open(self.folder / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                [program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                cwd=self.folder,
                start_new_session=True,
                preexec_fn=_end_with_parent if sys.platform == "linux" else None,
            )
        self.processes[name] = process
        return process

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def submit(self, app: Path, **settings: str | float) -> subprocess.Popen[bytes]:
        """Submit a run; the process ends with it, and its log is that of the ServerApp."""
        config = _settings(settings)
        arguments = ["run", str(app.resolve()), "tls", "--run-config", config, "--stream"]
        return self.launch("run", "flwr", *arguments)

    def wait_until(self, ready: Callable[[], object]) -> None:
        """Wait for a condition while the submitted run goes on."""
        deadline = time.monotonic() + max(PATIENCE, 10 * timeout())
        while not ready():
            if (self.ended("run") and not ready()) or time.monotonic() > deadline:
                raise AssertionError(self.log("run")[-3000:] + self.log("superlink")[-2000:])
            time.sleep(0.1)

    def ended(self, name: str) -> bool:
        """Whether a process has been ended, or has ended by itself."""
        return name not in self.processes or self.processes[name].poll() is not None

    def kill(self, name: str) -> None:
        """End a process and all that it started, at once."""
        process = self.processes.pop(name)
        _end([*_descendants([process.pid]), process.pid])
        process.wait()

    def stop(self) -> None:
        """End everything that this runtime started."""
        # Flower starts apps in sessions of their own: they are found before their parents end.
        started = _descendants([process.pid for process in self.processes.values()])
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        _end(started)
        self.processes.clear()


def _end_with_parent() -> None:
    """Ask the kernel to end this process when the one that started it ends, even by SIGKILL."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def _descendants(pids: Sequence[int]) -> list[int]:
    """The processes that these have started, directly or not."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True)
    pairs = [line.split() for line in listed.stdout.splitlines()]
    parents = {int(pid): int(parent) for pid, parent in pairs}
    descendants: list[int] = []
    generation = set(pids)
    while generation:
        generation = {pid for pid, parent in parents.items() if parent in generation}
        descendants += sorted(generation)
    return descendants


def _end(pids: Sequence[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def _settings(values: Mapping[str, str | float]) -> str:
    """Settings as Flower's options take them."""
    words = []
    for key, value in values.items():
        text = f'"{value}"' if isinstance(value, str) else str(value).lower()
        words.append(f"{key}={text}")
    return " ".join(words)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
