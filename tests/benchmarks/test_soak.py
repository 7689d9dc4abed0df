"""The short form of the soak test."""

import subprocess
import sys
from pathlib import Path

SOAK = Path(__file__).parents[2] / "benchmarks" / "soak.py"


def test_a_run_that_is_killed_again_and_again_ends_with_the_same_bytes() -> None:
    command = [sys.executable, str(SOAK), "--rounds", "150", "--kills", "4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "150 rounds, 4 kills" in done.stdout and "the same bytes" in done.stdout
