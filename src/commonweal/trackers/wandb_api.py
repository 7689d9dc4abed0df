"""Weights & Biases, and Trackio, which has the same interface.

W&B is online or offline, as WANDB_MODE says. Trackio writes to a local database, or to a Hugging
Face Space where TRACKIO_SPACE_ID names one.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from io import StringIO
from uuid import uuid4

from commonweal.base.plain import Table
from commonweal.trackers.tracker import Destination, Moment, Tracker, library, plain


class WandbApi(Tracker):
    """A run of wandb or trackio.

    Args:
        destination: Where the run goes.
        name: The library's name.
    """

    def __init__(self, destination: Destination, name: str) -> None:
        self.name = name
        self.destination = destination
        if name == "trackio" and destination.to is not None:  # read when trackio is imported
            os.environ["TRACKIO_DIR"] = str(destination.to.absolute())
        self.library = library(name, name)

    @property
    def place(self) -> str:
        project, to = self.destination.project, self.destination.to
        if self.name == "trackio":
            where = "" if to is None else f"TRACKIO_DIR={to} "
            return f"{where}trackio show --project {project}"
        if self.run.settings.mode == "offline":
            return f"wandb sync {self.run.settings.sync_dir}"
        return str(self.run.url)

    def open(self, known: str | None, settings: Table, toml: str) -> str:
        project, name, to = self.destination.project, self.destination.name, self.destination.to
        if self.name == "trackio":
            with redirect_stdout(StringIO()):  # its greetings
                self.run = self.library.init(
                    project,
                    name,
                    config=plain(settings),
                    resume="never" if known is None else "allow",
                    embed=False,
                    auto_log_gpu=False,
                    auto_log_cpu=False,
                )
            return name
        if to is not None:
            to.mkdir(parents=True, exist_ok=True)
        self.run = self.library.init(
            project=project,
            name=name,
            id=known or uuid4().hex[:12],
            resume="allow",
            config=dict(settings),
            dir=None if to is None else str(to),
            settings=self.library.Settings(silent=True, console="off", disable_git=True),
        )
        return str(self.run.id)

    def log(self, moments: Sequence[Moment]) -> None:
        histogram = self.library.Histogram
        for moment in moments:
            clients = {name: histogram(values) for name, values in moment.clients.items()}
            self.run.log({**moment.numbers, **clients}, step=moment.round)

    def table(self, round: int, columns: Mapping[str, Sequence[object]]) -> None:
        rows = [list(row) for row in zip(*columns.values(), strict=True)]
        self.run.log({"clients": self.library.Table(list(columns), rows)}, step=round)

    def close(self, finished: bool) -> None:
        with redirect_stdout(StringIO()):
            self.run.finish()
