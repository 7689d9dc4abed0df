"""`commonweal doctor`: what is installed, what is missing, and how to get it."""

import json
import os
import platform
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import typer
from packaging.requirements import InvalidRequirement, Requirement

from commonweal import __version__
from commonweal.app.commands.options import Json
from commonweal.base.errors import ConfigError, install

State = Literal["ok", "optional", "problem"]
MARKS: dict[State, str] = {"ok": "ok     ", "optional": "-      ", "problem": "PROBLEM"}

# The purpose of each extra. Those of developers are not for users.
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
    "text": "language models with adapters, by transformers and peft",
}


class Finding(NamedTuple):
    topic: str
    state: State
    text: str
    remedy: str = ""


def doctor(
    as_json: Json = False,
    clear_cache: Annotated[
        bool, typer.Option("--clear-cache", help="Delete the cache of parsed tables and datasets.")
    ] = False,
) -> None:
    """Report what is installed, what is missing, and how to install it.

    Include the output when you report a problem. Exit code 2 means that nothing can run.
    """
    if clear_cache:
        from commonweal.data.sources import cache

        freed = cache.clear_cache()
        if not as_json:
            typer.echo(f"deleted {_size(freed)} of parsed files in {cache.cache_folder()}")
    report = list(findings())
    if as_json:
        typer.echo(json.dumps([finding._asdict() for finding in report], ensure_ascii=False))
    else:
        _print(report)
    if any(finding.state == "problem" for finding in report):
        raise typer.Exit(2)


def _print(report: Sequence[Finding]) -> None:
    width = max(len(finding.topic) for finding in report)
    for finding in report:
        remedy = f": {finding.remedy}" if finding.remedy else ""
        typer.echo(f"{MARKS[finding.state]} {finding.topic:{width}}  {finding.text}{remedy}")
    problems = sum(finding.state == "problem" for finding in report)
    if problems:
        typer.echo(f"{problems} of these must be repaired before experiments can run")
    else:
        typer.echo("all requirements are installed; lines with - are optional")


def findings() -> Iterator[Finding]:
    """The lines about this installation."""
    yield Finding("commonweal", "ok", f"{__version__} in {Path(__file__).parents[2]}")
    yield Finding("python", "ok", f"{platform.python_version()} on {platform.platform()}")
    yield from _packages()
    yield from _torch()
    yield _data_directory()
    yield _cache()
    yield from _extras()


# Packages


def requirements(package: str = "commonweal") -> list[Requirement]:
    """The requirements of an installed package; none where it runs from its source alone."""
    try:
        declared = metadata.requires(package) or []
        return [Requirement(text) for text in declared]
    except (metadata.PackageNotFoundError, InvalidRequirement):
        return []


def _faults(needs: Sequence[Requirement]) -> list[str]:
    """The faults of the packages of requirements here, and of those of their extras."""
    faults = []
    for need in needs:
        fault = _fault(need)
        if fault:
            faults.append(fault)
        else:
            faults += [fault for extra in need.extras for fault in _faults(added(need.name, extra))]
    return faults


def _fault(requirement: Requirement) -> str:
    """The fault of a requirement's package here, or nothing."""
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
    from commonweal.data.sources.files import data_root

    named = "COMMONWEAL_DATA" in os.environ
    root = data_root()
    origin = "COMMONWEAL_DATA" if named else "the default; COMMONWEAL_DATA names another"
    text = f"{root} ({origin})"
    if root.is_dir():
        return Finding("data", "ok", text)
    if named:
        return Finding("data", "problem", f"{text} is not a folder", "create it, or name another")
    return Finding("data", "ok", f"{text}; the first download creates it")


def _cache() -> Finding:
    """The cache of parsed files, which has copies of tables."""
    from commonweal.data.sources import cache

    try:
        limit = cache.cache_limit()
    except ConfigError as error:
        return Finding("cache", "problem", str(error), f"correct or unset {cache.LIMIT}")
    size = sum(entry.size for entry in cache.cache_entries())
    most = f"at most {_size(limit)}; {cache.LIMIT} changes it" if limit else "nothing new is kept"
    text = f"{_size(size)} of parsed tables and datasets in {cache.cache_folder()} ({most})"
    remedy = "commonweal doctor --clear-cache deletes them" if size else ""
    return Finding("cache", "ok", text, remedy)


def _size(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"
