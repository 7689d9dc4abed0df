"""Weights & Biases: online or offline, as WANDB_MODE says."""

from collections.abc import Mapping, Sequence
from uuid import uuid4

from commonweal.base.values import Value
from commonweal.trackers.tracker import Destination, Moment, Tracker, library

__all__ = ["Wandb"]


class Wandb(Tracker):
    def __init__(self, destination: Destination) -> None:
        self.library = library("wandb", "wandb")
        self.destination = destination

    @property
    def place(self) -> str:
        if self.run.settings.mode == "offline":
            return f"wandb sync {self.run.settings.sync_dir}"
        return str(self.run.url)

    def open(self, known: str | None, settings: Mapping[str, Value], toml: str) -> str:
        to = self.destination.to
        if to is not None:
            to.mkdir(parents=True, exist_ok=True)
        self.run = self.library.init(
            project=self.destination.project,
            name=self.destination.name,
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
        self.run.finish()
