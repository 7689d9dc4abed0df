"""Pictures as files: one place that knows which names they may have and how they are written."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from commonweal.errors import ConfigError, RunError

__all__ = ["drawable", "figure"]

PICTURES = (".png", ".svg", ".pdf")


def drawable(*paths: Path | None) -> None:
    """Refuse names of pictures that have no known suffix, before the work that leads to them."""
    for path in paths:
        if path is not None and path.suffix.lower() not in PICTURES:
            raise ConfigError(f"{str(path)!r} is no name of a picture: end it with {', '.join(PICTURES)}")


@contextmanager
def figure(path: Path, **size: Any) -> Iterator[Any]:
    """Axes that are saved when they are done; the path's suffix names the format."""
    import matplotlib  # slow to import, and only pictures need it

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    drawable(path)
    whole, axes = plt.subplots(layout="constrained", **size)
    try:
        yield axes
        path.parent.mkdir(parents=True, exist_ok=True)
        whole.savefig(path, dpi=150)
    except OSError as error:
        raise RunError(f"cannot write {str(path)!r}: {error.strerror}") from None
    finally:
        plt.close(whole)
