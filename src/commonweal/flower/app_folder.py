"""An experiment as a Flower app: a folder that `flwr run` accepts."""

import re
from pathlib import Path

from commonweal.base.errors import ConfigError, RunError
from commonweal.base.files import write_file
from commonweal.config.experiment import Experiment

LONGEST = 32  # letters, digits and hyphens that Flower allows in an app's name

# No dependencies: Flower would install them from an index before each run. The nodes'
# environments have Commonweal, or the app's owner adds a dependency.
PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{project}"
version = "1.0.0"
description = "A Commonweal experiment as a Flower app"
license = "Apache-2.0"
dependencies = []

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

A Commonweal experiment as a Flower app. `commonweal[flower]` must be installed wherever it runs.

On one machine, with Flower's own simulation (`pip install "commonweal[flower-sim]"`):

    flwr run . local --stream --federation-config "num-supernodes={nodes}"

Across machines, with TLS and node authentication. The server, whose `~/.flwr/config.toml` names
it `server`:

    flower-superlink --host 0.0.0.0 --port 8443 --ssl-ca-certfile keys/ca.crt \\
        --ssl-certfile keys/server.pem --ssl-keyfile keys/server.key --enable-supernode-auth \\
        --disable-runtime-dependency-installation
    flwr supernode register keys/NAME.pub server

Each client, on its own machine:

    flower-supernode --superlink SERVER:8443 --root-certificates ca.crt \\
        --auth-supernode-private-key NAME --node-config 'client="NAME" data="/path/own.csv"'

The run:

    flwr run . server --stream

docs/flower-experiment.md of Commonweal shows how to make the certificates and keys.
"""


def check_experiment(experiment: Experiment) -> None:
    """Raise ConfigError for settings that mean nothing on Flower."""
    for key in ("loss", "target", "class_weight"):
        if vars(experiment)[key] is not None:
            given = f"{key} = {vars(experiment)[key]!r}"
            raise ConfigError(f"{given} does not work on Flower: leave it out")
    if experiment.policy:
        raise ConfigError(
            f"policy = {experiment.policy!r}: each node has its own, as policy= in its "
            "--node-config; leave it out"
        )
    if experiment.without:
        raise ConfigError(f"without = {experiment.without!r}: stop the client's node instead")
    if experiment.holdout_clients:
        raise ConfigError(
            f"holdout_clients = {experiment.holdout_clients}: on Flower every connected client "
            "trains; hold clients out in the simulator, or leave it out"
        )
    if experiment.device != "cpu":
        raise ConfigError(
            f"device = {experiment.device!r}: Flower's nodes compute on the CPU; leave it out, or "
            "run the experiment in the simulator"
        )


def write_app(experiment: Experiment, folder: Path, nodes: int = 2, out: str = "") -> str:
    """Write a Flower app that runs an experiment.

    Args:
        experiment: What the app runs.
        folder: The app's folder. It must be new or empty.
        nodes: How many nodes must be connected before the run starts.
        out: The run's folder; by default `make_server_app` chooses one.

    Returns:
        The name of the app's package.
    """
    check_experiment(experiment)
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
        f"{package}/experiment.toml": experiment.toml(),
    }
    for name, text in files.items():
        write_file(folder / name, text.encode(), durable=False)
    return package
