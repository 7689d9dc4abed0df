"""TensorBoard: an event file, with per-client values as histograms."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from uuid import uuid4

import numpy as np

from commonweal.app.trackers.tracker import Moment, Tracker, library, plain
from commonweal.base.plain import Table
from commonweal.base.text import shown
from commonweal.report.formats import pipes

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

EVENTS = "events.out.tfevents.*"
MOST_LINES = 200  # of the table of clients: the page shows it whole


class TensorBoard(Tracker):
    """Event files in the run's folder, or in another one."""

    def __post_init__(self) -> None:
        self.library = library("torch.utils.tensorboard", "tensorboard")
        self.folder = self.run / "tensorboard" if self.to is None else self.to / self.name
        self.last: dict[str, float] = {}  # of test scores
        self.settings: Table = {}
        self.opened: SummaryWriter | None = None

    @property
    def writer(self) -> "SummaryWriter":
        """Made when something is written: each writer makes a file."""
        if self.opened is None:
            self.opened = self.library.SummaryWriter(str(self.folder), flush_secs=5)
        return self.opened

    @property
    def place(self) -> str:
        return f"tensorboard --logdir {self.folder}"

    def open(self, known: str | None, settings: Table, toml: str) -> str:
        self.settings = settings
        if known is not None and any(self.folder.glob(EVENTS)):
            return known
        for path in self.folder.glob(EVENTS):  # of rounds that are no longer in the record
            path.unlink()
        self.writer.add_text("experiment", f"```\n{toml}\n```")
        return uuid4().hex

    def log(self, moments: Sequence[Moment]) -> None:
        for moment in moments:
            for name, value in moment.numbers.items():
                self.writer.add_scalar(name, value, moment.round)
                if name.startswith("test/"):
                    self.last[name] = value
            for name, values in moment.clients.items():
                self.writer.add_histogram(name, np.array(values), moment.round)
        self.writer.flush()

    def table(self, round: int, columns: Mapping[str, Sequence[object]]) -> None:
        rows = []
        for row in zip(*columns.values(), strict=True):
            rows.append(pipes(shown(str(cell), "markdown") for cell in row))
        head = [pipes(columns), pipes(["---"] * len(columns))]
        if len(rows) > MOST_LINES:
            half = MOST_LINES // 2
            head = [f"The first and last {half} of {len(rows)} clients.", "", *head]
            rows = [*rows[:half], *rows[-half:]]
        self.writer.add_text("clients", "\n".join([*head, *rows]), round)

    def close(self, finished: bool) -> None:
        if finished and self.last:  # a line of the HParams page
            make = library("torch.utils.tensorboard.summary", "tensorboard").hparams
            events = self.writer.file_writer
            assert events is not None, "a writer that was just made is open"
            for summary in make(plain(self.settings), self.last):
                events.add_summary(summary)
        if self.opened is not None:
            self.opened.close()
