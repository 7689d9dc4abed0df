"""Processor time of a run next to a competing process, relative to that of a quiet machine.

Threads that share small products wait for each other as soon as anything else runs. Each run is a
process of its own with torch's default number of threads; turns alternate, and the ratio is one of
medians. Run it where little else runs.

    python benchmarks/threads.py [--turns N] [--rounds N] [--model mlp|cnn]
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys

TARGET = 1.5
BUSY = "while True: pass"
RUN = """
import sys, commonweal as cw
model, rounds = sys.argv[1], int(sys.argv[2])
dataset = "students" if model == "mlp" else "digits"
cw.run(cw.Experiment(dataset=dataset, model=model, rounds=rounds, evaluate_every=rounds)).result()
"""


def seconds(model: str, rounds: int) -> float:
    """The processor time of one run, imports included."""
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-c", RUN, model, str(rounds)]
    subprocess.run(command, check=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def seconds_next_to_others(model: str, rounds: int) -> float:
    """The same, while a process per core does nothing but count."""
    others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(os.cpu_count() or 1)]
    try:
        return seconds(model, rounds)  # others are waited for afterwards, so they do not count
    finally:
        for other in others:
            other.kill()
            other.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--model", choices=["mlp", "cnn"], default="mlp")
    given = parser.parse_args()
    quiet, busy = [], []
    for _ in range(given.turns):
        quiet.append(seconds(given.model, given.rounds))
        busy.append(seconds_next_to_others(given.model, given.rounds))
    print(f"load average at the end: {os.getloadavg()[0]:.1f}")
    first, second = statistics.median(quiet), statistics.median(busy)
    print(f"quiet: {first:.1f} s   next to others: {second:.1f} s")
    print(f"ratio: {second / first:.2f} (target: at most {TARGET})")


if __name__ == "__main__":
    main()
