"""Where the original files of a dataset are looked for."""

import os
from pathlib import Path

from commonweal.errors import DataError

__all__ = ["locate"]


def locate(dataset: str, names: tuple[str, ...], dir: str | None) -> list[Path]:
    """The paths of a dataset's files: in `dir`, else in $COMMONWEAL_DATA/<dataset>, else in the user's cache."""
    if dir is not None:
        folder = Path(dir)
    elif "COMMONWEAL_DATA" in os.environ:
        folder = Path(os.environ["COMMONWEAL_DATA"]) / dataset
    else:
        folder = Path.home() / ".cache" / "commonweal" / dataset
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        where = "" if dir is not None else ", or set COMMONWEAL_DATA to a folder that has them in " + repr(dataset)
        raise DataError(
            f"dataset {dataset!r}: {', '.join(missing)} not found in {str(folder)!r}: put them there{where}"
        )
    return [folder / name for name in names]
