"""Flower's own runtime on this machine: a SuperLink and SuperNodes as processes on the loopback.

TLS and node authentication are on. Every process is started in a session of its own and ended
with all that it started. Nothing here imports flwr: its commands are called.
"""

import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType

from commonweal.base.errors import ConfigError, RunError
from commonweal.base.files import write_file
from commonweal.base.values import Value
from commonweal.config.experiment import Experiment

__all__ = ["Runtime", "check_experiment", "export", "write_keys"]

HOST = "127.0.0.1"
PATIENCE = 180.0  # seconds until a process that does not start is given up


# Certificates and keys


def write_keys(folder: Path, nodes: Sequence[str], hosts: Sequence[str] = ()) -> None:
    """Write certificates and keys for a trial: ca.crt, server.pem, server.key, a pair per node.

    hosts: names and addresses of the SuperLink, beside localhost. The authority's own key is not
    kept: these files cannot certify anybody else.
    """
    try:
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise ConfigError(
            f"writing keys to {str(folder)!r} needs the package cryptography: "
            "pip install 'commonweal[flower]'"
        ) from None
    from cryptography.hazmat.primitives import serialization as s

    if (folder / "ca.crt").exists():
        raise RunError(f"{str(folder)!r} has certificates already: choose another folder")
    authority = ec.generate_private_key(ec.SECP384R1())
    server = ec.generate_private_key(ec.SECP384R1())
    root, leaf = _certificates(authority, server, [HOST, "localhost", *hosts])
    plain = s.NoEncryption()
    write_file(folder / "ca.crt", root)
    write_file(folder / "server.pem", leaf)
    pem = server.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, plain)
    _write_secret(folder / "server.key", pem)
    for name in nodes:
        key = ec.generate_private_key(ec.SECP384R1())
        private = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.OpenSSH, plain)
        public = key.public_key().public_bytes(s.Encoding.OpenSSH, s.PublicFormat.OpenSSH)
        _write_secret(folder / name, private)
        write_file(folder / f"{name}.pub", public + b"\n")


def _write_secret(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_bytes(data)


def _certificates(authority: Value, server: Value, hosts: Sequence[str]) -> tuple[bytes, bytes]:
    """A root certificate, and one of the server by it, for 90 days."""
    import datetime
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.x509.oid import NameOID

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def alternative(host: str) -> x509.GeneralName:
        try:
            return x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            return x509.DNSName(host)

    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=5)

    def draft(subject: str, key: Value) -> x509.CertificateBuilder:
        builder = x509.CertificateBuilder(name("commonweal trial CA"), name(subject))
        numbered = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
        end = start + datetime.timedelta(days=90)
        return numbered.not_valid_before(start).not_valid_after(end)

    identifier = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    usage = {
        "digital_signature": True,
        "content_commitment": False,
        "key_encipherment": False,
        "data_encipherment": False,
        "key_agreement": False,
        "encipher_only": False,
        "decipher_only": False,
    }
    root = draft("commonweal trial CA", authority)
    root = root.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    root = root.add_extension(
        x509.KeyUsage(key_cert_sign=True, crl_sign=True, **usage), critical=True
    )
    root = root.add_extension(identifier, critical=False)
    leaf = draft("commonweal trial SuperLink", server)
    names = x509.SubjectAlternativeName([alternative(host) for host in dict.fromkeys(hosts)])
    leaf = leaf.add_extension(names, critical=False)
    leaf = leaf.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    by = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)
    leaf = leaf.add_extension(by, critical=False)
    pem = serialization.Encoding.PEM
    signed = [builder.sign(authority, hashes.SHA384()) for builder in (root, leaf)]
    return signed[0].public_bytes(pem), signed[1].public_bytes(pem)


# An experiment as a Flower app

LONGEST = 32  # letters, digits and hyphens that Flower allows in an app's name
PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{project}"
version = "1.0.0"
description = "A Commonweal experiment as a Flower app"
license = "Apache-2.0"
dependencies = ["commonweal[flower]"]

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "commonweal"

[tool.flwr.app.components]
serverapp = "{package}.server_app:app"
clientapp = "{package}.client_app:app"

# flwr run --run-config 'nodes=3 timeout=60.0' changes these.
[tool.flwr.app.config]
out = "{out}"
resume = false
nodes = {nodes}
wait = 300.0
timeout = 120.0
"""

APP = '''\
"""The {side} of the experiment in experiment.toml."""

from pathlib import Path

from commonweal.flower import make_{side}_app

app = make_{side}_app(Path(__file__).with_name("experiment.toml"))
'''

README = """\
# {package}

A Commonweal experiment as a Flower app. Certificates and keys for a trial, once:

    commonweal flower keys keys --node NAME ...

The SuperLink (on the server, whose address must be among the `--host` of the keys):

    flower-superlink --host 0.0.0.0 --port 8443 --ssl-ca-certfile keys/ca.crt \\
        --ssl-certfile keys/server.pem --ssl-keyfile keys/server.key --enable-supernode-auth \\
        --database superlink.db --disable-runtime-dependency-installation

Register each node's public key, once (`~/.flwr/config.toml` names the SuperLink):

    flwr supernode register keys/NAME.pub server

A SuperNode (on the client's machine, with its private key and ca.crt):

    flower-supernode --superlink SERVER:8443 --root-certificates ca.crt \\
        --auth-supernode-private-key NAME --node-config 'client="NAME" data="/path/own.csv"'

The run:

    flwr run . server --stream
"""


def check_experiment(experiment: Experiment) -> None:
    """Raise ConfigError for settings that mean nothing on Flower."""
    if experiment.unseen:
        raise ConfigError(
            f"unseen = {experiment.unseen}: on Flower every connected client trains; hold clients "
            "out in the simulator, or leave it out"
        )
    if experiment.device != "cpu":
        raise ConfigError(
            f"device = {experiment.device!r}: Flower's nodes compute on the CPU; leave it out, or "
            "run the experiment in the simulator"
        )


def export(toml: str, folder: Path, nodes: int = 2, out: str = "") -> str:
    """Write a Flower app that runs an experiment. Returns the package's name."""
    package = re.sub(r"[^a-z0-9]+", "_", folder.resolve().name.lower()).strip("_")
    if not package[:1].isalpha():
        package = f"app_{package}".strip("_")
    project = package.replace("_", "-")[:LONGEST].strip("-")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(f"{str(folder)!r} is not an empty folder: choose another")
    settings = {"package": package, "project": project, "nodes": nodes, "out": out}
    files = {
        "pyproject.toml": PYPROJECT.format(**settings),
        "README.md": README.format(**settings),
        f"{package}/__init__.py": '"""A Commonweal experiment as a Flower app."""\n',
        f"{package}/server_app.py": APP.format(side="server"),
        f"{package}/client_app.py": APP.format(side="client"),
        f"{package}/experiment.toml": toml,
    }
    for name, text in files.items():
        write_file(folder / name, text.encode(), durable=False)
    return package


# Processes


def command(name: str) -> str:
    """The path of one of Flower's commands: beside this Python, or on the PATH."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise ConfigError(
            f"the command {name} is missing: install Flower with pip install 'commonweal[flower]'"
        )
    return found


class Runtime:
    """A SuperLink and SuperNodes on the loopback, with TLS and node authentication.

    folder: of keys, logs and Flower's own files; keys that are in it already are used
    """

    def __init__(self, folder: Path, nodes: Mapping[str, Mapping[str, Value]]) -> None:
        self.folder = folder.resolve()
        self.nodes = dict(nodes)  # name of the node's key -> its --node-config
        self.keys = self.folder / "keys"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.port = 0
        self._before: dict[signal.Signals, Value] = {}  # how signals were handled
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.keys / "ca.crt").exists():
            write_keys(self.keys, list(self.nodes))
        # Only of this runtime: no telemetry, no look for updates, no installing of packages.
        self.environment = os.environ | {
            "FLWR_HOME": str(self.folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        }

    def __enter__(self) -> "Runtime":
        if threading.current_thread() is threading.main_thread():
            for kind in (signal.SIGTERM, signal.SIGHUP):
                self._before[kind] = signal.signal(kind, _leave)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def start(self) -> None:
        """Start the SuperLink, register the nodes' keys, and start the SuperNodes."""
        self.start_superlink()
        register = partial(self.call, "flwr", "supernode", "register")
        with ThreadPoolExecutor(4) as pool:  # each is a process, which mostly imports
            files = [str(self.keys / f"{name}.pub") for name in self.nodes]
            list(pool.map(lambda file: register(file, "tls"), files))
        for name in self.nodes:
            self.start_node(name)

    def start_superlink(self) -> None:
        """Start the SuperLink. It keeps all in memory: its database loses messages when busy."""
        self.port = self.port or free_port()
        files = {
            "--ssl-ca-certfile": "ca.crt",
            "--ssl-certfile": "server.pem",
            "--ssl-keyfile": "server.key",
        }
        tls = [word for key, file in files.items() for word in (key, str(self.keys / file))]
        where = ["--host", HOST, "--port", str(self.port)]
        more = ["--enable-supernode-auth", "--disable-runtime-dependency-installation"]
        self.launch("superlink", "flower-superlink", *where, *tls, *more)
        address = f"{HOST}:{self.port}"
        text = f'[superlink.tls]\naddress = "{address}"\n'
        text += f'root-certificates = "{self.keys / "ca.crt"}"\n'
        write_file(self.folder / "home" / "config.toml", text.encode(), durable=False)
        self.wait_for("superlink", self._is_up)

    def _is_up(self) -> bool:
        context = ssl.create_default_context(cafile=str(self.keys / "ca.crt"))
        try:
            with urllib.request.urlopen(
                f"https://{HOST}:{self.port}/health", timeout=2, context=context
            ):
                return True
        except urllib.error.HTTPError:
            return True
        except (OSError, urllib.error.URLError):
            return False

    def start_node(self, name: str) -> None:
        """Start a SuperNode, again with the same key if it was stopped.

        After a kill the SuperLink takes the node for connected until its heartbeat is overdue
        (about a minute): until then it refuses it (2004), the process ends, and is to be started
        again.
        """
        config = " ".join(f"{key}={_quoted(value)}" for key, value in self.nodes[name].items())
        self.launch(
            name,
            "flower-supernode",
            *("--superlink", f"{HOST}:{self.port}"),
            *("--root-certificates", str(self.keys / "ca.crt")),
            *("--auth-supernode-private-key", str(self.keys / name)),
            *("--host", HOST, "--port", str(free_port())),
            *("--node-config", config),
        )

    def launch(self, name: str, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a process in a session of its own; its output goes to a file."""
        with open(self.folder / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                [command(program), *arguments],
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

    def wait_for(self, name: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not ready():
            if self.processes[name].poll() is not None or time.monotonic() > deadline:
                raise RunError(f"{name} did not start: {self.log(name)[-600:]}")
            time.sleep(0.1)

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def call(self, program: str, *arguments: str) -> str:
        """Run a command of Flower to its end. Raises RunError where it fails."""
        try:
            done = subprocess.run(
                [command(program), *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                env=self.environment,
                cwd=self.folder,
                timeout=PATIENCE,
            )
        except subprocess.TimeoutExpired:
            raise RunError(
                f"{program} {' '.join(arguments[:2])} did not end within {PATIENCE:g} s: is this "
                "machine very busy?"
            ) from None
        if done.returncode:
            said = (done.stderr or done.stdout).strip()
            raise RunError(f"{program} {' '.join(arguments[:2])} failed: {said[-600:]}")
        return done.stdout

    def submit(self, app: Path, **settings: Value) -> subprocess.Popen[bytes]:
        """Submit a run; the process ends with it, and its log is that of the ServerApp."""
        config = " ".join(f"{key}={_quoted(value)}" for key, value in settings.items())
        arguments = ["run", str(app.resolve()), "tls", "--run-config", config, "--stream"]
        return self.launch("run", "flwr", *arguments)

    def ended(self, name: str) -> bool:
        """Whether a process has been ended, or has ended by itself."""
        return name not in self.processes or self.processes[name].poll() is not None

    def kill(self, name: str) -> None:
        """End a process and all that it started, at once."""
        process = self.processes.pop(name)
        started = _descendants([process.pid])
        _signal(process, signal.SIGKILL)
        _end(started)
        process.wait()

    def stop(self) -> None:
        """End everything that this runtime started."""
        # Flower starts apps in sessions of their own: they are found before their parents end.
        started = _descendants([process.pid for process in self.processes.values()])
        for kind in (signal.SIGTERM, signal.SIGKILL):
            for process in self.processes.values():
                _signal(process, kind)
            deadline = time.monotonic() + 5
            for process in self.processes.values():
                while _alive(process) and time.monotonic() < deadline:
                    process.poll()
                    time.sleep(0.05)
        for process in self.processes.values():
            process.wait()
        _end(started)
        self.processes.clear()


def _leave(number: int, frame: object) -> None:
    """Turn a signal into an exception, so that what was started is ended."""
    sys.exit(128 + number)


def _end_with_parent() -> None:
    """Ask the kernel to end this process when the one that started it ends, even by SIGKILL."""
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def _descendants(pids: Sequence[int]) -> list[int]:
    """The processes that these have started, directly or not."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True)
    pairs = [line.split() for line in listed.stdout.splitlines()]
    parents = {int(pid): int(parent) for pid, parent in pairs}
    found: list[int] = []
    wanted = set(pids)
    while wanted:
        wanted = {pid for pid, parent in parents.items() if parent in wanted}
        found += sorted(wanted)
    return found


def _end(pids: Sequence[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def _signal(process: subprocess.Popen[bytes], kind: signal.Signals) -> None:
    try:
        os.killpg(process.pid, kind)  # its session has its number
    except (ProcessLookupError, PermissionError):
        return


def _alive(process: subprocess.Popen[bytes]) -> bool:
    """Whether a process, or one that it started, still runs."""
    try:
        os.killpg(process.pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _quoted(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    text = str(value)
    if '"' in text or "\\" in text:
        raise ConfigError(f"{text!r}: Flower's settings cannot hold quotes and backslashes")
    return f'"{text}"'


def free_port() -> int:
    with socket.socket() as found:
        found.bind((HOST, 0))
        port: int = found.getsockname()[1]
        return port
