"""A run in one process and on two ranks, in turns: seconds per round of local training.

    python -m benchmarks.ranks examples/mnist.toml model=cnn cohort=10
    python -m benchmarks.ranks --hosts host1=10.0.0.1/veth1,host2=10.0.0.2/veth2 FILE ...

With --hosts the ranks are in two network namespaces of these names, with their address and link;
docs/scale.md says how to make them. Processes have one thread each.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROUNDS = 4  # of a turn; the first is left out
PORT = 29511


def commands(file: list[str], out: Path, hosts: list[tuple[str, str, str]]) -> dict[str, list[str]]:
    """The shell command of each contender."""
    run = ["-m", "commonweal", "run", *file, f"rounds={ROUNDS}", "evaluate_every=1000", "--quiet"]
    python = sys.executable
    launch = f"{python} -m torch.distributed.run"
    here = " ".join(run)
    found = {
        "one process": [f"{python} {here} --out {out}/one"],
        "two ranks": [
            f"{launch} --standalone --nproc-per-node 2 {here} engine=torchrun --out {out}/two"
        ],
    }
    nodes = []
    for k, (name, _, link) in enumerate(hosts):
        meet = f"--nnodes 2 --node-rank {k} --master-addr {hosts[0][1]} --master-port {PORT}"
        run_there = f"{launch} {meet} --nproc-per-node 1 {here} engine=torchrun --out {out}/hosts"
        nodes.append(f"ip netns exec {name} env GLOO_SOCKET_IFNAME={link} {run_there}")
    return found | ({"two hosts": nodes} if nodes else {})


def turn(parts: list[str], folder: Path) -> float:
    """Run a contender, and return the median of its seconds per round."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    started = [subprocess.Popen(part.split(), env=environment) for part in parts]
    if any(process.wait() for process in started):
        raise SystemExit("a process failed")
    lines = (folder / "timings.jsonl").read_text().splitlines()
    return float(statistics.median(json.loads(line)["train"] for line in lines[1:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", default="")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("file", nargs="+")
    given = parser.parse_args()
    hosts = []
    for text in filter(None, given.hosts.split(",")):
        name, _, place = text.partition("=")
        address, _, link = place.partition("/")
        hosts.append((name, address, link))
    seconds: dict[str, list[float]] = {}
    for _ in range(given.turns):
        with tempfile.TemporaryDirectory() as folder:
            contenders = commands(given.file, Path(folder), hosts)
            for name, where in zip(contenders, ("one", "two", "hosts"), strict=False):
                taken = turn(contenders[name], Path(folder) / where)
                seconds.setdefault(name, []).append(taken)
    for name, values in seconds.items():
        ratios = [a / b for a, b in zip(values, seconds["one process"], strict=True)]
        spread = ", ".join(f"{ratio:.2f}" for ratio in sorted(ratios))
        middle = statistics.median(values)
        print(f"{name}: {1000 * middle:.0f} ms per round; of one process by turn: {spread}")


if __name__ == "__main__":
    main()
