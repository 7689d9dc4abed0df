"""`commonweal flower run`: an experiment on a runtime of its own, next to the run's folder."""

import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from commonweal.base.errors import ConfigError, RunError
from commonweal.config.experiment import Experiment
from commonweal.flower.runtime import Runtime, check_experiment, export
from commonweal.jobs.job import build_dataset

__all__ = ["TIMEOUT", "run"]

Say = Callable[[str], object]
TIMEOUT = 120.0  # seconds to wait for replies


def run(
    experiment: Experiment,
    folder: Path,
    nodes: int | None,
    resume: bool,
    timeout: float,
    say: Say,
) -> None:
    """Run an experiment with a SuperNode per client, and end everything that was started."""
    runtime = folder.with_name(f"{folder.name}.flower").resolve()
    if resume and (folder / "model.safetensors").exists():
        say(f"{folder} was finished already")
        return
    if not resume and runtime.exists():
        if folder.exists():
            raise RunError(
                f"{str(folder)!r} holds a run already: continue with --resume, or choose another"
            )
        shutil.rmtree(runtime)
    configs = node_configs(experiment, nodes, runtime / "states")
    app = runtime / "app"
    shutil.rmtree(app, ignore_errors=True)
    export(experiment.toml(), app, len(configs))
    settings = {
        "out": str(folder.resolve()),
        "resume": resume and folder.exists(),
        "nodes": len(configs),
        "timeout": float(timeout),
    }
    with Runtime(runtime, configs) as started:
        say(f"starting a SuperLink and {len(configs)} SuperNodes on 127.0.0.1 ...")
        started.start()
        submitted = started.submit(app, **settings)
        shown = 0
        while True:
            ended = submitted.poll() is not None
            lines = started.log("run").splitlines()
            for line in lines[shown:]:
                if "round " in line:
                    say(line[line.index("round ") :])
            shown = len(lines)
            if ended:
                break
            time.sleep(0.5)
        if not (folder / "model.safetensors").exists():
            why = last_words(started.log("run"))
            raise RunError(
                f"the run on Flower has failed: {why}; logs are in {runtime}; continue with "
                "--resume"
            )


def last_words(log: str) -> str:
    """Why a run has failed, from its log: the sentence of an error, or the last lines.

    >>> last_words("Traceback\\n ...\\ncommonweal.errors.RunError: it is late\\nExit Code: 201")
    'it is late'
    """
    sentences = re.findall(r"^commonweal\.errors\.\w+: (.+)$", log, re.MULTILINE)
    if sentences:
        return str(sentences[-1])
    return "its last words: " + " | ".join(log.strip().splitlines()[-12:])


def node_configs(
    experiment: Experiment, nodes: int | None, states: Path
) -> dict[str, dict[str, object]]:
    """The configuration of each node: one client of the experiment's dataset."""
    check_experiment(experiment)
    names = build_dataset(experiment).names
    count = len(names) if nodes is None else nodes
    if not 1 <= count <= len(names):
        raise ConfigError(f"--nodes {count}: the dataset has {len(names)} clients")
    if nodes is None and count > 16:
        raise ConfigError(
            f"{count} clients would be {count} SuperNodes of about 300 MB here: give --nodes"
        )
    return {f"node-{k + 1}": {"client": names[k], "state-dir": str(states)} for k in range(count)}
