"""`commonweal check`: the contract of a rule, client method or other part of one's own."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any

from commonweal.app.commands import console
from commonweal.app.commands.options import Quiet, argument
from commonweal.base.errors import ConfigError, did_you_mean
from commonweal.config import catalog


def check(
    name: Annotated[
        str,
        argument(
            "NAME", "A class in a file (./my_rules.py:MaxMin) or module (package.module:Class)."
        ),
    ],
    quiet: Quiet = False,
) -> None:
    """Check that your own rule, client method, server, sampler or channel does what runs need.

    For example: commonweal check ./my_rules.py:MaxMin, with parameters './my_rules.py:MaxMin(t=2)'

    Prints the properties that hold. Stops at the first that does not, with exit code 2.
    """
    part = catalog.parse_part(name)
    kind = _kind_of(part["name"])

    from commonweal import checks

    checked: dict[str, Callable[[Any], list[str]]] = {
        "rules": checks.check_rule,
        "clients": checks.check_client,
        "servers": checks.check_server,
        "samplers": checks.check_sampler,
        "channels": checks.check_channel,
    }
    passed = checked[kind](catalog.build(kind, part))
    if not quiet:
        for prop in passed:
            console.print_text(f"ok  {prop}")


def _kind_of(name: str) -> str:
    """The kind of the part of that name."""
    kinds = ("rules", "clients", "servers", "samplers", "channels")
    if ":" not in name:
        for kind in kinds:
            if name in catalog.entries(kind):
                return kind
        known = [known for kind in kinds for known in catalog.entries(kind)]
        hint = did_you_mean(name, known)
        raise ConfigError(f"no rule, client method or other part is called {name!r}: {hint}")
    kind = kind_of_own(name)
    if kind not in kinds:
        raise ConfigError(
            f"{name!r} is no subclass of Rule, Client, ServerOptimizer, Sampler or Channel"
        )
    return kind


def kind_of_own(name: str) -> str:
    """The kind of a part in a file or module of the user's (./my_rules.py:MaxMin)."""
    from commonweal.jobs.job import INTERFACES

    factory = catalog.find_entry("rules", name).factory
    for kind, interface in INTERFACES.items():
        if isinstance(factory, type) and issubclass(factory, interface):
            return kind
    takes_shape = "shape" in inspect.signature(factory).parameters
    return "models" if takes_shape else "datasets"
