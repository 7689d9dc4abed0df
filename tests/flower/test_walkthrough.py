"""The lines of docs/flower-experiment.md: three clinics, from CSVs to predictions."""

import contextlib
import csv
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'commonweal[flower]'")

from commonweal.record.record import Record

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_lines_of_the_page_work_as_printed(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "flower-experiment.md").read_text()
    toml = re.search(r"```toml\n# study.toml\n(.*?)```", page, re.DOTALL)
    bash = re.search(r"```bash\n(.*?)```", page, re.DOTALL)
    assert toml is not None and bash is not None
    (tmp_path / "study.toml").write_text(toml[1])
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    script = f'commonweal() {{ "{sys.executable}" -m commonweal "$@"; }}\n{bash[1]}'
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    process = subprocess.Popen(
        ["bash", "-e", "-c", script],
        cwd=tmp_path,
        env=os.environ | {"PATH": path, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=900)
    finally:
        with contextlib.suppress(ProcessLookupError):  # what it left behind, if it failed
            os.killpg(process.pid, signal.SIGTERM)
    assert process.returncode == 0, said[-3000:]
    record = Record.read(tmp_path / "runs" / "flower-aaggff-s-0")
    assert record.finished and len(record.rounds) == 3
    for line in record.rounds:
        assert set(line.weights) == {"clinic-a", "clinic-b", "clinic-c"}
    assert record.facts.class_names == ("dead", "ill", "well")
    with open(tmp_path / "predictions.csv") as file:
        assert len(list(csv.DictReader(file))) == 60
