"""Federated learning that leaves no client behind.

>>> import commonweal
>>> commonweal.rule("aaggff-s", cdf="frechet").cdf
'frechet'
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.3.0"

__all__ = [
    "CommonwealError",
    "CommonwealWarning",
    "Decision",
    "Experiment",
    "FederatedClassifier",
    "FederatedRegressor",
    "Federation",
    "Record",
    "Reports",
    "Round",
    "Rule",
    "Run",
    "Stateless",
    "Task",
    "channel",
    "choose",
    "client",
    "compare",
    "dataset",
    "load",
    "load_experiment",
    "load_run",
    "metrics",
    "model",
    "partition",
    "reopen",
    "rule",
    "run",
    "sampler",
    "server",
    "slots",
]

if TYPE_CHECKING:
    from commonweal import metrics
    from commonweal.base.errors import CommonwealError, CommonwealWarning
    from commonweal.config.experiment import Experiment
    from commonweal.data.federation import Federation
    from commonweal.datasets.partition import partition
    from commonweal.jobs.api import (
        channel,
        client,
        dataset,
        load,
        load_experiment,
        load_run,
        model,
        rule,
        sampler,
        server,
    )
    from commonweal.jobs.reopening import reopen
    from commonweal.jobs.rounds import Round, Run, run
    from commonweal.record.record import Record
    from commonweal.rules import slots
    from commonweal.rules.rule import Decision, Reports, Rule, Stateless
    from commonweal.study.choosing import choose
    from commonweal.study.compare import compare
    from commonweal.study.estimators import FederatedClassifier, FederatedRegressor
    from commonweal.task.task import Task

# Where public names are, imported when they are first used: torch takes two seconds.
_HOMES = {
    "study.choosing": ("choose",),
    "base.errors": ("CommonwealError", "CommonwealWarning"),
    "config.experiment": ("Experiment",),
    "data.federation": ("Federation",),
    "datasets.partition": ("partition",),
    "jobs.api": (
        *("channel", "client", "dataset", "model", "rule", "sampler", "server"),
        *("load", "load_experiment", "load_run"),
    ),
    "study.estimators": ("FederatedClassifier", "FederatedRegressor"),
    "jobs.reopening": ("reopen",),
    "jobs.rounds": ("Round", "Run", "run"),
    "record.record": ("Record",),
    "study.compare": ("compare",),
    "rules.rule": ("Decision", "Reports", "Rule", "Stateless"),
    "task.task": ("Task",),
}
_MODULES = {"metrics": "metrics", "slots": "rules.slots"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"commonweal.{_MODULES[name]}")
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"commonweal.{module}"), name)
    raise AttributeError(f"module 'commonweal' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
