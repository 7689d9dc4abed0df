"""Worker processes end with the process that started them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PARENT = """
import time
from commonweal.analysis.workers import worker_pool

def wait(seconds):
    import os
    print(os.getpid(), flush=True)
    time.sleep(seconds)

if __name__ == "__main__":
    with worker_pool(1) as pool:
        pool.submit(wait, 60).result()
"""


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_killed_parent_leaves_no_worker(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        assert alive(worker)
        parent.send_signal(signal.SIGKILL)
    for _ in range(300):
        if not alive(worker):
            break
        time.sleep(0.1)
    assert not alive(worker)
