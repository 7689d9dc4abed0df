"""The benchmark of speed runs; what it measures is not tested."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_benchmark_runs_every_part() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.speed", "--smoke"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    titles = [
        "logistic",
        "char-lstm",
        "Time of a round",
        "Client methods",
        "Where the time",
        "Gram",
        "A run by its rounds",
        "A run by its rows of a table",
    ]
    for title in (*titles, "Ways to train", "Evaluation", "Targets"):
        assert f"### {title}" in done.stdout


def test_an_unknown_part_is_named() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.speed", "--only", "nothing"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "no part is called 'nothing': there are logistic" in done.stderr
