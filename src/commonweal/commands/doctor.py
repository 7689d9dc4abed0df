"""`commonweal doctor`: what is installed, what is missing, and how to get it."""

import json
import os
import platform
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Literal, NamedTuple

import typer
from packaging.requirements import InvalidRequirement, Requirement

from commonweal import __version__
from commonweal.base.errors import install
from commonweal.commands.options import Json

State = Literal["ok", "optional", "problem"]
MARKS: dict[State, str] = {"ok": "ok     ", "optional": "-      ", "problem": "PROBLEM"}

# What each extra is for. Those of developers are not for users.
EXTRAS = {
    "flower": "train across machines, or a fair rule in a Flower app",
    "flower-sim": "Flower's own simulation, by Ray",
    "tune": "commonweal tune",
    "ui": "commonweal ui",
    "tensorboard": "runs in TensorBoard",
    "mlflow": "runs in MLflow",
    "wandb": "runs in Weights & Biases",
    "trackio": "runs in Trackio",
    "directions": "the rule directions",
    "dp": "private runs: the accounting of differential privacy",
    "onnx": "commonweal export --to onnx",
    "h5": "the dataset stackoverflow",
    "text": "the model distilbert",
}


class Finding(NamedTuple):
    topic: str
    state: State
    text: str
    remedy: str = ""


def doctor(as_json: Json = False) -> None:
    """Report what is installed, what is missing, and how to install it.

    Include the output when you report a problem. Exit code 2 means that nothing can run.
    """
    report = list(findings())
    if as_json:
        typer.echo(json.dumps([finding._asdict() for finding in report], ensure_ascii=False))
    else:
        _print(report)
    if any(finding.state == "problem" for finding in report):
        raise typer.Exit(2)


def _print(faults: Sequence[Finding]) -> None:
    width = max(len(finding.topic) for finding in faults)
    for finding in faults:
        remedy = f": {finding.remedy}" if finding.remedy else ""
        typer.echo(f"{MARKS[finding.state]} {finding.topic:{width}}  {finding.text}{remedy}")
    problems = sum(finding.state == "problem" for finding in faults)
    if problems:
        typer.echo(f"{problems} of these must be repaired before experiments can run")
    else:
        typer.echo("all requirements are installed; lines with - are optional")


def findings() -> Iterator[Finding]:
    """All that can be said about this installation."""
    yield Finding("commonweal", "ok", f"{__version__} in {Path(__file__).parents[1]}")
    yield Finding("python", "ok", f"{platform.python_version()} on {platform.platform()}")
    yield from _packages()
    yield from _torch()
    yield _data_directory()
    yield _datasets()
    yield _working_folder()
    yield from _extras()


# Packages


def requirements(package: str = "commonweal") -> list[Requirement]:
    """What an installed package declares; nothing where it runs from its source alone."""
    try:
        declared = metadata.requires(package) or []
        return [Requirement(text) for text in declared]
    except (metadata.PackageNotFoundError, InvalidRequirement):
        return []


def _faults(needs: Sequence[Requirement]) -> list[str]:
    """What is wrong with the packages of requirements here, and with those of their extras."""
    faults = []
    for need in needs:
        fault = _fault(need)
        if fault:
            faults.append(fault)
        else:
            faults += [fault for extra in need.extras for fault in _faults(added(need.name, extra))]
    return faults


def _fault(requirement: Requirement) -> str:
    """What is wrong with a requirement's package here, or nothing."""
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return f"{requirement.name} is missing"
    if requirement.specifier.contains(version, prereleases=True):
        return ""
    return f"{requirement.name} is {version}, and must be {requirement.specifier}"


def added(package: str, extra: str) -> list[Requirement]:
    """The requirements that an extra of a package adds."""
    needs = []
    for need in requirements(package):
        marker = need.marker
        if marker and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""}):
            needs.append(need)
    return needs


def _packages() -> Iterator[Finding]:
    core = [need for need in requirements() if not need.marker or need.marker.evaluate()]
    if not core:
        text = "commonweal runs from its source: what it needs is not known"
        yield Finding("packages", "optional", text, "pip install -e . in its folder")
    faults = _faults(core)
    for fault in faults:
        yield Finding("packages", "problem", fault, "pip install --upgrade commonweal")
    if core and not faults:
        versions = [f"{need.name} {metadata.version(need.name)}" for need in core]
        yield Finding("packages", "ok", ", ".join(versions))


def _torch() -> Iterator[Finding]:
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a shared library that does not load
        yield Finding("torch", "problem", f"cannot be imported ({error})", "docs/install.md")
        return
    cuda = torch.version.cuda
    build = "CPU build" if cuda is None else f"build for CUDA {cuda}"
    if torch.cuda.is_available():
        build += f'; {torch.cuda.get_device_name(0)} is used by experiments with device = "cuda"'
    yield Finding("torch", "ok", f"{torch.__version__}, {build}")
    asked = os.environ.get("OMP_NUM_THREADS")
    by = f" (OMP_NUM_THREADS={asked})" if asked else ""
    yield Finding("threads", "ok", f"{torch.get_num_threads()} of {os.cpu_count()} cores{by}")


def _extras() -> Iterator[Finding]:
    if not requirements():
        return
    for extra, purpose in EXTRAS.items():
        faults = _faults(added("commonweal", extra))
        if faults:
            text = f"{purpose} ({'; '.join(faults)})"
            yield Finding(f"[{extra}]", "optional", text, install(extra))
        else:
            yield Finding(f"[{extra}]", "ok", purpose)


# Files


def _data_directory() -> Finding:
    from commonweal.sources.files import data_root

    named = "COMMONWEAL_DATA" in os.environ
    root = data_root()
    origin = "COMMONWEAL_DATA" if named else "the default; COMMONWEAL_DATA names another"
    text = f"{root} ({origin})"
    if root.is_dir():
        return Finding("data", "ok", text)
    if named:
        return Finding("data", "problem", f"{text} is not a folder", "create it, or name another")
    return Finding("data", "ok", f"{text}; the first download creates it")


def _datasets() -> Finding:
    """Which of the datasets that can be downloaded are there."""
    from commonweal.sources.files import find
    from commonweal.sources.origins import downloads, names

    there: list[str] = []
    missing: list[str] = []
    for name in names():
        files = downloads(name)
        whole = all(find(file.folder, file.name, None) is not None for file in files)
        (there if whole else missing).append(name)
    found = ", ".join(there) or "no others"
    text = f"with the package: students, vowel, digits, synthetic; downloaded: {found}"
    if not missing:
        return Finding("datasets", "ok", text)
    more = f"{text}; missing: {', '.join(missing)}"
    return Finding("datasets", "optional", more, "commonweal data get NAME")


def _working_folder() -> Finding:
    folder = Path.cwd()
    if os.access(folder, os.W_OK):
        return Finding("folder", "ok", f"{folder} can be written to; runs go to {folder / 'runs'}")
    remedy = "go to another one, or name one with --out"
    return Finding("folder", "optional", f"{folder} cannot be written to", remedy)
