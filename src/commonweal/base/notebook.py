"""A progress bar in a notebook: an HTML element that is replaced while a run goes on.

rich draws bars in notebooks only where ipywidgets is installed, and warns otherwise; this needs
nothing but IPython.
"""

import sys
import time
from collections.abc import Generator, Iterator
from importlib import import_module
from typing import Any, Protocol, TypeVar

from commonweal.base.text import shown

INTERVAL = 0.2  # seconds between changes of the bar
KERNEL = "ZMQInteractiveShell"  # IPython's shell where the output is a page


class Numbered(Protocol):
    """A round."""

    @property
    def number(self) -> int: ...

    @property
    def metrics(self) -> dict[str, float]: ...


Each = TypeVar("Each", bound=Numbered)


def in_notebook() -> bool:
    """Whether the output of this process is a notebook's."""
    shell: Any = sys.modules.get("IPython")
    return shell is not None and type(shell.get_ipython()).__name__ == KERNEL


def with_bar(rounds: Iterator[Each], total: int, title: str) -> Generator[Each, None, None]:
    """The rounds, with a bar that shows how many are done, the speed, and the last scores."""
    python: Any = import_module("IPython.display")
    html = python.HTML
    handle = python.display(html(_bar(0, total, title, "")), display_id=True)
    start = time.monotonic()
    first = last = 0
    changed = start
    scores = ""
    try:
        for done in rounds:
            first = first or done.number
            last = done.number
            if done.metrics:
                worst = done.metrics.get("worst", done.metrics.get("mean", 0.0))
                scores = f"mean {done.metrics.get('mean', worst):.3g}, worst {worst:.3g}"
            now = time.monotonic()
            if now - changed > INTERVAL:
                changed = now
                speed = (last - first + 1) / (now - start)
                handle.update(html(_bar(last, total, title, f"{speed:.1f} rounds/s; {scores}")))
            yield done
    finally:
        if last:
            seconds = time.monotonic() - start
            handle.update(html(_bar(last, total, title, f"{seconds:.0f} s; {scores}")))


def _bar(done: int, total: int, title: str, words: str) -> str:
    text = shown(f"{title}: round {done} of {total}; {words}".rstrip("; "), "html")
    return f'<progress max="{total}" value="{done}"></progress> {text}'
