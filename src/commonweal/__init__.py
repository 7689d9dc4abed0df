"""Federated learning that leaves no client behind.

>>> import commonweal
>>> commonweal.rule("aaggff-s", cdf="frechet").cdf
'frechet'
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

__all__ = [
    "CommonwealError",
    "Decision",
    "Experiment",
    "Federation",
    "Record",
    "Reports",
    "Round",
    "Rule",
    "Task",
    "client",
    "compare",
    "dataset",
    "load",
    "metrics",
    "model",
    "reopen",
    "rule",
    "run",
    "server",
]

if TYPE_CHECKING:
    from commonweal import metrics
    from commonweal.analysis.comparison import compare
    from commonweal.api import client, dataset, load, model, rule, server
    from commonweal.errors import CommonwealError
    from commonweal.experiment import Experiment
    from commonweal.federation import Federation
    from commonweal.rounds import Round, reopen, run
    from commonweal.rules.rule import Decision, Reports, Rule
    from commonweal.store import Record
    from commonweal.task import Task

# Where each public name is, imported when it is first used: torch takes two seconds.
_HOMES = {
    "CommonwealError": "errors",
    "Decision": "rules.rule",
    "Experiment": "experiment",
    "Federation": "federation",
    "Record": "store",
    "Reports": "rules.rule",
    "Round": "rounds",
    "Rule": "rules.rule",
    "Task": "task",
    "client": "api",
    "compare": "analysis.comparison",
    "dataset": "api",
    "load": "api",
    "model": "api",
    "reopen": "rounds",
    "rule": "api",
    "run": "rounds",
    "server": "api",
}


def __getattr__(name: str) -> Any:
    if name == "metrics":
        return import_module("commonweal.metrics")
    if name not in _HOMES:
        raise AttributeError(f"module 'commonweal' has no attribute {name!r}")
    return getattr(import_module(f"commonweal.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
