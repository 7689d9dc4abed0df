"""Worker processes end with the process that started them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PARENT = """
import time
from commonweal.study.workers import worker_pool

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


STARTING = """
import os
import signal
import time
from multiprocessing import active_children
from pathlib import Path

if __name__ == "__mp_main__":  # a worker that imports for long
    Path(f"here-{os.getpid()}").touch()
    time.sleep(60)

from commonweal.study.workers import worker_pool

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with worker_pool(2) as pool:
            pool.submit(os.getpid)
            while len(list(Path().glob("here-*"))) < 2:
                time.sleep(0.01)
            for worker in active_children():
                os.kill(worker.pid, signal.SIGINT)
            time.sleep(0.5)
            raise KeyboardInterrupt  # as this process gets it, if it was busy
    except KeyboardInterrupt:
        print("stopped")
"""


def test_ctrl_c_while_workers_start_prints_nothing_of_them(tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(STARTING)
    ended = subprocess.run(
        [sys.executable, "parent.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (ended.stdout, ended.stderr, ended.returncode) == ("stopped\n", "", 0)
