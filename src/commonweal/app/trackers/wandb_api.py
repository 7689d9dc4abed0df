"""Weights & Biases, and Trackio, which has the same interface.

W&B is online or offline, as WANDB_MODE says. Trackio writes to a local database, or to a Hugging
Face Space where TRACKIO_SPACE_ID names one.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from io import StringIO
from typing import Any
from uuid import uuid4

from commonweal.app.trackers.tracker import Moment, Tracker, library, plain
from commonweal.base.plain import Table


class Wandb(Tracker):
    """A run of Weights & Biases."""

    opened: Any  # the library's run

    def __post_init__(self) -> None:
        self.library = library("wandb", "wandb")

    @property
    def place(self) -> str:
        if self.opened.settings.mode == "offline":
            return f"wandb sync {self.opened.settings.sync_dir}"
        return str(self.opened.url)

    def open(self, known: str | None, settings: Table, toml: str) -> str:
        if self.to is not None:
            self.to.mkdir(parents=True, exist_ok=True)
        self.opened = self.library.init(
            project=self.project,
            name=self.name,
            id=known or uuid4().hex[:12],
            resume="allow",
            config=dict(settings),
            dir=None if self.to is None else str(self.to),
            settings=self.library.Settings(silent=True, console="off", disable_git=True),
        )
        return str(self.opened.id)

    def log(self, moments: Sequence[Moment]) -> None:
        histogram = self.library.Histogram
        for moment in moments:
            clients = {name: histogram(values) for name, values in moment.clients.items()}
            self.opened.log({**moment.numbers, **clients}, step=moment.round)

    def table(self, round: int, columns: Mapping[str, Sequence[object]]) -> None:
        rows = [list(row) for row in zip(*columns.values(), strict=True)]
        self.opened.log({"clients": self.library.Table(list(columns), rows)}, step=round)

    def close(self, finished: bool) -> None:
        with redirect_stdout(StringIO()):
            self.opened.finish()


class Trackio(Wandb):
    """A run of Trackio."""

    def __post_init__(self) -> None:
        if self.to is not None:  # read when trackio is imported
            os.environ["TRACKIO_DIR"] = str(self.to.absolute())
        self.library = library("trackio", "trackio")

    @property
    def place(self) -> str:
        where = "" if self.to is None else f"TRACKIO_DIR={self.to} "
        return f"{where}trackio show --project {self.project}"

    def open(self, known: str | None, settings: Table, toml: str) -> str:
        with redirect_stdout(StringIO()):  # its greetings
            self.opened = self.library.init(
                self.project,
                self.name,
                config=plain(settings),
                resume="never" if known is None else "allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
        return self.name
