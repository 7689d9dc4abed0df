"""Progress of a run, of a comparison, of a download: bars in a terminal, lines in a file."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from commonweal.base.text import shortened
from commonweal.base.text import shown as shown_text
from commonweal.jobs.rounds import Round
from commonweal.report.formats import markup
from commonweal.study.compare import Step
from commonweal.study.plan import Cell
from commonweal.study.units import show_score
from commonweal.task.scores import find_score

TITLE = TextColumn("{task.description}")
PERCENTAGE = TextColumn("{task.percentage:>3.0f} %")
WORST = TextColumn("{task.fields[worst]}")
FIRST_LINE = 5.0  # seconds until a file gets a line; the next ones take twice as long each time
LAST_PAUSE = 60.0  # seconds between lines, at most


def _lines(console: Console, quiet: bool) -> Callable[[str, float, float], None]:
    """Print a line of progress now and then, where no bar can be drawn. Call it as `work_bar`'s."""
    start = time.monotonic()
    due = FIRST_LINE

    def advance(title: str, done: float, total: float) -> None:
        nonlocal due
        elapsed = time.monotonic() - start
        if quiet or console.is_terminal or elapsed < due or not 0 < done < total:
            return
        due = elapsed + min(elapsed, LAST_PAUSE)
        left = elapsed * (total - done) / done
        shown = f"{left:.0f} seconds" if left < 100 else f"{left / 60:.0f} minutes"
        text = f"{title}: {100 * done / total:.0f} % of all work, about {shown} left"
        console.print(shown_text(text), markup=False, soft_wrap=True)

    return advance


@contextmanager
def run_bar(
    console: Console, rounds: int, title: str, quiet: bool
) -> Iterator[Callable[[Round], None]]:
    """A bar with speed, time left and the worst client. Call it with every round."""
    speed = TextColumn("{task.fields[speed]}")
    columns = (TITLE, BarColumn(), MofNCompleteColumn(), speed, TimeRemainingColumn(), WORST)
    with Progress(*columns, console=console, disable=quiet) as bar:
        # Hidden at first: an error before the first round shows no empty bar.
        job = bar.add_task(markup(title), total=rounds, speed="", worst="", visible=False)
        log = _lines(console, quiet)

        def advance(done: Round) -> None:
            log(f"{title}, round {done.number} of {rounds}", done.number, rounds)
            rate = bar.tasks[job].speed
            shown = f"{rate:.0f} rounds/s" if rate else ""
            bar.update(job, completed=done.number, visible=True, speed=shown)
            if worst := _worst(done):
                bar.update(job, worst=worst)

        yield advance


@contextmanager
def comparison_bar(
    console: Console, plan: Sequence[Cell], quiet: bool
) -> Iterator[Callable[[Step], None]]:
    """One bar for all runs of a comparison. Call it with every step."""
    position = {cell.folder: k for k, cell in enumerate(plan)}
    rounds = [cell.experiment.rounds for cell in plan]
    columns = (TITLE, BarColumn(), PERCENTAGE, TimeRemainingColumn(), WORST)
    with Progress(*columns, console=console, disable=quiet) as bar:
        job = bar.add_task("", total=sum(rounds), worst="", visible=False)
        log = _lines(console, quiet)

        def advance(step: Step) -> None:
            if step.waiting:
                return
            k = position[step.cell.folder]
            number = rounds[k] if step.round is None else step.round.number
            title = f"{k + 1}/{len(plan)} {step.cell.label}, seed {step.cell.seed}"
            completed = sum(rounds[:k]) + number
            log(title, completed, sum(rounds))
            bar.update(job, completed=completed, description=markup(title), visible=True)
            if step.round is not None and (worst := _worst(step.round)):
                bar.update(job, worst=worst)

        yield advance


@contextmanager
def work_bar(console: Console, quiet: bool) -> Iterator[Callable[[str, float, float], None]]:
    """One bar, with the time left for all of the work. Call it with a title, done and total."""
    left = TextColumn("left")
    columns = (TITLE, BarColumn(bar_width=None), PERCENTAGE, TimeRemainingColumn(), left)
    # Methods differ in speed: the estimate is over all that was done, not over the last seconds.
    with Progress(*columns, console=console, disable=quiet, speed_estimate_period=1e9) as bar:
        job = bar.add_task("", total=None, visible=False)
        log = _lines(console, quiet)

        def advance(title: str, done: float, total: float) -> None:
            log(title, done, total)
            description = markup(title)
            bar.update(job, completed=done, total=total, description=description, visible=True)

        yield advance


def _worst(done: Round) -> str:
    """The client that is served worst, after an evaluated round of a run that is not private."""
    if done.evaluation is None or done.job.algorithm.promise is not None:
        return ""
    values = done.evaluation.score
    lower = find_score(done.job.task.score).lower_is_better
    worst = int((-values if lower else values).nan_to_num(nan=float("inf")).argmin())
    shown = show_score(float(values[worst]), done.job.task.score, 1)
    return markup(f"worst: {shortened(done.job.population.names[worst])} {shown}")


@contextmanager
def download_bar(console: Console, quiet: bool) -> Iterator[Progress]:
    """Bars of files that are downloaded, one `Download` each."""
    columns = (TITLE, BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=quiet) as bar:
        yield bar


class Download:
    """The bar of one file, with the interface that pooch expects."""

    def __init__(self, bar: Progress, title: str) -> None:
        self.bar = bar
        self.job = bar.add_task(markup(title), total=None)

    @property
    def total(self) -> float | None:
        return self.bar.tasks[self.job].total

    @total.setter
    def total(self, value: int) -> None:
        self.bar.update(self.job, total=value)

    def update(self, bytes: int) -> None:
        self.bar.advance(self.job, bytes)

    def reset(self) -> None:
        self.bar.reset(self.job)

    def close(self) -> None:
        self.bar.stop_task(self.job)
