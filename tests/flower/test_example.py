"""The example beside the docs runs, under Flower's FedAvg and under a rule."""

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'commonweal[flower]'")

from flwr.app import Context, RecordDict

from commonweal.record.record import Record
from flower_helpers import LocalGrid, configs

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower"


def test_the_quickstart_runs_and_keeps_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from quickstart import client_app, server_app  # type: ignore[import-not-found]

    settings: dict[str, Any] = {"num-server-rounds": 3, "local-epochs": 1, "lr": 0.1}
    grid = LocalGrid(client_app.app, configs(5))
    for context in grid.contexts.values():
        context.run_config = settings
    server_app.app(grid, Context(1, 1, {}, RecordDict(), settings))
    record = Record.read("runs/flower")
    assert record.finished and len(record.rounds) == 3
    assert all(len(line.weights) == 5 and not line.dropped for line in record.rounds)
    worst = [line.metrics["worst"] for line in record.rounds]
    assert worst[-1] > worst[0]
    for name in [name for name in sys.modules if name.startswith("quickstart")]:
        del sys.modules[name]
