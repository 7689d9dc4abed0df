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
    from commonweal.analysis.choosing import choose
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
    from commonweal.jobs.estimators import FederatedClassifier, FederatedRegressor
    from commonweal.jobs.reopening import reopen
    from commonweal.jobs.rounds import Round, Run, run
    from commonweal.record.record import Record
    from commonweal.report.compare import compare
    from commonweal.rules import slots
    from commonweal.rules.rule import Decision, Reports, Rule, Stateless
    from commonweal.training.task import Task

# Where each public name is, imported when it is first used: torch takes two seconds.
_HOMES = {
    "CommonwealError": "base.errors",
    "CommonwealWarning": "base.errors",
    "Decision": "rules.rule",
    "Experiment": "config.experiment",
    "FederatedClassifier": "jobs.estimators",
    "FederatedRegressor": "jobs.estimators",
    "Federation": "data.federation",
    "Record": "record.record",
    "Reports": "rules.rule",
    "Round": "jobs.rounds",
    "Rule": "rules.rule",
    "Run": "jobs.rounds",
    "Stateless": "rules.rule",
    "Task": "training.task",
    "channel": "jobs.api",
    "choose": "analysis.choosing",
    "client": "jobs.api",
    "compare": "report.compare",
    "dataset": "jobs.api",
    "load": "jobs.api",
    "load_experiment": "jobs.api",
    "load_run": "jobs.api",
    "model": "jobs.api",
    "partition": "datasets.partition",
    "reopen": "jobs.reopening",
    "rule": "jobs.api",
    "run": "jobs.rounds",
    "sampler": "jobs.api",
    "server": "jobs.api",
}
_MODULES = {"metrics": "metrics", "slots": "rules.slots"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"commonweal.{_MODULES[name]}")
    if name not in _HOMES:
        raise AttributeError(f"module 'commonweal' has no attribute {name!r}")
    return getattr(import_module(f"commonweal.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
