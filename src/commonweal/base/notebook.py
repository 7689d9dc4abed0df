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
    """Return whether the output of this process is a notebook's."""
    shell: Any = sys.modules.get("IPython")
    return shell is not None and type(shell.get_ipython()).__name__ == KERNEL


def with_bar(rounds: Iterator[Each], total: int, title: str) -> Generator[Each, None, None]:
    """The rounds, with a bar that shows how many are done, the speed, and the last scores."""
    python: Any = import_module("IPython.display")

    def bar(done: int, words: str) -> Any:
        text = shown(f"{title}: round {done} of {total}; {words}".rstrip("; "), "html")
        return python.HTML(f'<progress max="{total}" value="{done}"></progress> {text}')

    handle = python.display(bar(0, ""), display_id=True)
    start = changed = time.monotonic()
    last = 0
    scores = ""
    try:
        for count, done in enumerate(rounds, 1):
            last = done.number
            if done.metrics:
                worst = done.metrics.get("worst", done.metrics.get("mean", 0.0))
                scores = f"mean {done.metrics.get('mean', worst):.3g}, worst {worst:.3g}"
            now = time.monotonic()
            if now - changed > INTERVAL:
                changed = now
                handle.update(bar(last, f"{count / (now - start):.1f} rounds/s; {scores}"))
            yield done
    finally:
        if last:
            handle.update(bar(last, f"{time.monotonic() - start:.0f} s; {scores}"))
