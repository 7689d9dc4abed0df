"""Original files where COMMONWEAL_DATA has them, a cache for the session, no data otherwise."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from command_helpers import command

__all__ = ["command", "elsewhere", "real"]

HERE = os.environ.get("COMMONWEAL_DATA")


@pytest.fixture(autouse=True)
def elsewhere(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty data directory, and a cache that all tests share."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared / "cache"))
    monkeypatch.setenv("COMMONWEAL_DATA", str(tmp_path / "data"))


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Use the real files in these folders of the data directory, or skip."""

    def use(*folders: str) -> Path:
        if not HERE:
            pytest.skip("COMMONWEAL_DATA is not set")
        root = Path(HERE)
        missing = [folder for folder in folders if not (root / folder).is_dir()]
        if missing:
            pytest.skip(f"the original files of {', '.join(missing)} are not in {root}")
        monkeypatch.setenv("COMMONWEAL_DATA", HERE)
        return root

    return use
