"""MLflow: metrics by step and parameters; the table of clients is an artifact."""

import csv
import io
import logging
import os
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from commonweal.app.trackers.tracker import Moment, Tracker, library
from commonweal.base.plain import Table
from commonweal.base.text import quoted

MOST_METRICS = 1000  # that MLflow takes at once
MOST_PARAMETERS = 100
LENGTH = 500  # of a parameter's value


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress MLflow's messages about its database and its deprecations."""
    logger = logging.getLogger("mlflow")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


class MLflow(Tracker):
    """A run of MLflow, in a database of SQLite unless MLFLOW_TRACKING_URI names a server."""

    @_quiet()
    def __post_init__(self) -> None:
        self.library = library("mlflow", "mlflow")
        self.uri = os.environ.get("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
        self.folder: Path | None = None if "MLFLOW_TRACKING_URI" in os.environ else Path()
        if self.to is not None:
            self.folder = self.to
            self.uri = f"sqlite:///{(self.to / 'mlflow.db').absolute().as_posix()}"
        if self.uri.startswith("sqlite:"):
            library("alembic", "mlflow")

    @property
    def place(self) -> str:
        return f"pip install mlflow; mlflow ui --backend-store-uri {self.uri}"  # skinny has no page

    @_quiet()
    def open(self, known: str | None, settings: Table, toml: str) -> str:
        self.client = self.library.MlflowClient(tracking_uri=self.uri)
        if known is None or not self._is_there(known):
            known = self._create(settings, toml)
        self.client.update_run(known, status="RUNNING")
        self.id = known
        return known

    def _is_there(self, known: str) -> bool:
        try:
            return str(self.client.get_run(known).info.lifecycle_stage) == "active"
        except self.library.exceptions.MlflowException:
            return False

    def _create(self, settings: Table, toml: str) -> str:
        existing = self.client.get_experiment_by_name(self.project)
        if existing is not None:
            experiment = existing.experiment_id
        else:
            artifacts = None
            if self.folder is not None:
                artifacts = (self.folder.absolute() / "mlartifacts").as_uri()
            experiment = self.client.create_experiment(self.project, artifacts)
        run: str = self.client.create_run(experiment, run_name=self.name).info.run_id
        given = []
        for key, value in settings.items():
            given.append(self.library.entities.Param(key, str(value)[:LENGTH]))
        for start in range(0, len(given), MOST_PARAMETERS):
            self.client.log_batch(run, params=given[start : start + MOST_PARAMETERS])
        self.client.log_text(run, toml, "experiment.toml")
        return run

    @_quiet()
    def log(self, moments: Sequence[Moment]) -> None:
        now = int(1000 * time.time())
        entries = []
        for moment in moments:
            for name, value in moment.numbers.items():
                entries.append(self.library.entities.Metric(name, value, now, moment.round))
        for start in range(0, len(entries), MOST_METRICS):
            self.client.log_batch(self.id, metrics=entries[start : start + MOST_METRICS])

    @_quiet()
    def table(self, round: int, columns: Mapping[str, Sequence[object]]) -> None:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        for first, *rest in zip(*columns.values(), strict=True):
            writer.writerow([quoted(str(first)), *rest])
        self.client.log_text(self.id, text.getvalue(), "clients.csv")

    @_quiet()
    def close(self, finished: bool) -> None:
        if finished:
            self.client.set_terminated(self.id)
