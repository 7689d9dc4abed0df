"""`commonweal flower`: what it writes, and what it refuses."""

import re
import signal
import ssl
import stat
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'commonweal[flower]'")

from typer.testing import CliRunner

from commonweal.base.errors import ConfigError, RunError
from commonweal.cli import app
from commonweal.config.experiment import Experiment
from commonweal.flower import local
from commonweal.flower.runtime import export


def test_export_writes_an_app_that_flower_accepts(tmp_path: Path) -> None:
    from flwr.common.config import validate_config

    folder = tmp_path / "my app"
    arguments = ["flower", "export", "examples/vowel.toml", str(folder), "rule=term"]
    done = CliRunner().invoke(app, [*arguments, "--nodes", "4"])
    assert done.exit_code == 0, done.output
    config = tomllib.loads((folder / "pyproject.toml").read_text())
    valid, errors, warnings = validate_config(config, True, folder)
    assert valid, (errors, warnings)
    assert config["tool"]["flwr"]["app"]["config"]["nodes"] == 4
    text = (folder / "my_app" / "experiment.toml").read_text()
    assert tomllib.loads(text)["rule"]["name"] == "term"
    readme = (folder / "README.md").read_text()
    assert "--enable-supernode-auth" in readme and "--insecure" not in readme
    again = CliRunner().invoke(app, arguments)
    assert isinstance(again.exception, RunError) and "empty folder" in str(again.exception)


@pytest.mark.parametrize("name", ["study-app", "2026", "Öl Studie", "a" * 40 + "-b", "__", "x--y"])
def test_any_folder_gives_a_name_that_flower_accepts(tmp_path: Path, name: str) -> None:
    """`flwr run` refuses others than letters, digits and hyphens, at most 32."""
    package = export(Experiment(dataset="vowel").toml(), tmp_path / name)
    config = tomllib.loads((tmp_path / name / "pyproject.toml").read_text())
    assert re.fullmatch(r"[a-z][a-z0-9-]{0,31}", config["project"]["name"])
    assert package.isidentifier() and (tmp_path / name / package / "client_app.py").exists()
    assert config["tool"]["flwr"]["app"]["components"]["clientapp"].startswith(f"{package}.")


def test_keys_are_private_and_certify_the_named_hosts(tmp_path: Path) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    folder = tmp_path / "keys"
    options = ["--node", "a", "--node", "b", "--host", "10.1.2.3", "--host", "fl.example.org"]
    done = CliRunner().invoke(app, ["flower", "keys", str(folder), *options])
    assert done.exit_code == 0, done.output
    for name in ("a", "b", "server.key"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    certificate = x509.load_pem_x509_certificate((folder / "server.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {str(each.value) for each in names} == {
        "127.0.0.1",
        "localhost",
        "10.1.2.3",
        "fl.example.org",
    }
    root = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    certificate.verify_directly_issued_by(root)
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    assert len(context.get_ca_certs()) == 1
    public = load_ssh_private_key((folder / "a").read_bytes(), None).public_key()
    assert public.curve.name == "secp384r1"  # type: ignore[union-attr]
    again = CliRunner().invoke(app, ["flower", "keys", str(folder)])
    assert isinstance(again.exception, RunError)


def test_more_nodes_than_clients_are_refused(tmp_path: Path) -> None:
    arguments = ["flower", "run", "examples/vowel.toml", "--nodes", "99"]
    done = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "run")])
    assert isinstance(done.exception, ConfigError) and "15 clients" in str(done.exception)


@pytest.mark.parametrize("setting", ["device=cuda", "unseen=0.2"])
def test_settings_that_mean_nothing_on_flower_are_refused(tmp_path: Path, setting: str) -> None:
    arguments = ["flower", "run", "examples/vowel.toml", setting]
    done = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "run")])
    assert isinstance(done.exception, ConfigError)
    assert setting.partition("=")[0] in str(done.exception)
    assert "simulator" in str(done.exception)


def test_what_a_process_starts_in_another_session_ends_with_it(tmp_path: Path) -> None:
    from commonweal.flower.runtime import Runtime

    code = "import subprocess, sys, time; p = subprocess.Popen(['sleep', '60'], "
    code += "start_new_session=True); open('pid', 'w').write(str(p.pid)); time.sleep(60)"
    with Runtime(tmp_path, {"a": {}}) as runtime:
        process = subprocess.Popen(
            [sys.executable, "-c", code], cwd=tmp_path, start_new_session=True
        )
        runtime.processes["parent"] = process
        deadline = time.monotonic() + 30
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.05)
    pid = (tmp_path / "pid").read_text()
    wait_for(lambda: has_ended(pid))
    assert process.returncode is not None


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_the_command(tmp_path: Path, kind: signal.Signals) -> None:
    """SuperLink and SuperNodes, here a sleep, end with it however it ends."""
    (tmp_path / "sleeping").write_text("#!/bin/sh\necho $$ > pid\nexec sleep 60\n")
    (tmp_path / "sleeping").chmod(0o700)
    code = "import time; from pathlib import Path; from commonweal import _flower_runtime as r\n"
    code += f"r.command = lambda name: {str(tmp_path / 'sleeping')!r}\n"
    code += "with r.Runtime(Path('.'), {'a': {}}) as runtime:\n"
    code += "    runtime.launch('superlink', 'flower-superlink')\n    time.sleep(60)\n"
    process = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path)
    wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip() != "")
    pid = (tmp_path / "pid").read_text().strip()
    process.send_signal(kind)
    process.wait(30)
    wait_for(lambda: has_ended(pid))


def has_ended(pid: str) -> bool:
    listed = subprocess.run(["ps", "-o", "stat=", "-p", pid], capture_output=True, text=True)
    return listed.stdout.strip()[:1] in ("", "Z")


def wait_for(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_engine_flower_of_an_experiment_starts_flower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`commonweal run` does what `commonweal flower run` does; Python says where to turn."""
    import commonweal

    asked: list[Any] = []
    monkeypatch.setattr(local, "run", lambda *values: asked.append(values))
    monkeypatch.setattr("commonweal.commands.run.show_run", lambda *values: None)
    monkeypatch.setattr("commonweal.record.store.Record.read", lambda folder: None)
    arguments = ["run", "examples/vowel.toml", "engine=flower", "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    ((given, folder, nodes, resume, _, _),) = asked
    assert isinstance(given, Experiment) and given.engine == "flower"
    assert (folder, nodes, resume) == (tmp_path / "run", None, False)
    with pytest.raises(ConfigError, match="commonweal flower run FILE"):
        next(iter(commonweal.run(given)))
