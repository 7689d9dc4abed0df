"""Trackio: a local database, or a Hugging Face Space where TRACKIO_SPACE_ID names one."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from io import StringIO

from commonweal.base.values import Value
from commonweal.trackers.tracker import Destination, Moment, Tracker, library, plain

__all__ = ["Trackio"]


class Trackio(Tracker):
    def __init__(self, destination: Destination) -> None:
        if destination.to is not None:  # trackio reads it when it is imported
            os.environ["TRACKIO_DIR"] = str(destination.to.absolute())
        self.library = library("trackio", "trackio")
        self.destination = destination

    @property
    def place(self) -> str:
        where = f"TRACKIO_DIR={self.destination.to} " if self.destination.to is not None else ""
        return f"{where}trackio show --project {self.destination.project}"

    def open(self, known: str | None, settings: Mapping[str, Value], toml: str) -> str:
        with _quiet():
            self.run = self.library.init(
                self.destination.project,
                self.destination.name,
                config=plain(settings),
                resume="never" if known is None else "allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
        return self.destination.name

    def log(self, moments: Sequence[Moment]) -> None:
        histogram = self.library.Histogram
        for moment in moments:
            clients = {name: histogram(values) for name, values in moment.clients.items()}
            self.run.log({**moment.numbers, **clients}, step=moment.round)

    def table(self, round: int, columns: Mapping[str, Sequence[object]]) -> None:
        rows = [list(row) for row in zip(*columns.values(), strict=True)]
        self.run.log({"clients": self.library.Table(list(columns), rows)}, step=round)

    def close(self, finished: bool) -> None:
        with _quiet():
            self.run.finish()


@contextmanager
def _quiet() -> Iterator[None]:
    with redirect_stdout(StringIO()):
        yield
