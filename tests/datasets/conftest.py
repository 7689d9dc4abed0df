"""Original files where they are at hand, a cache of the session's own, and an empty data directory otherwise."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(os.environ.get("COMMONWEAL_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared / "cache"))
    monkeypatch.setenv("COMMONWEAL_DATA", str(tmp_path / "data"))


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Use the real files in these folders of the data directory, or skip."""

    def use(*folders: str) -> Path:
        missing = [folder for folder in folders if not (HERE / folder).is_dir()]
        if missing:
            pytest.skip(f"the original files of {', '.join(missing)} are not in {HERE}")
        monkeypatch.setenv("COMMONWEAL_DATA", str(HERE))
        return HERE

    return use
