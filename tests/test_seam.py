"""Every client in a process of its own: only messages, its own rows and its name pass, and the numbers are the same.

This is what makes a network an engine like any other: nothing of a client's work depends on sharing a process with the
server, with other clients, or with what was computed before.
"""

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save

from commonweal import randomness
from commonweal.algorithm import Averaging
from commonweal.engines.simulator import Simulator
from commonweal.federation import Federation
from commonweal.local import Local, Tensors, alone
from commonweal.rules.aaggff_s import AAggFFS
from commonweal.server import SGD
from commonweal.task import Task
from helpers import SHAPES, Visitor, averaging, close, federation, module

SIZES = {"p": 23, "q": 9, "r": 23}
LOCAL = {"epochs": 2, "batch": 8, "lr": 0.05, "momentum": 0.8, "clip": 1.0, "decay": 0.9}
ROUNDS, SEED = 2, 7

# A client knows the model's architecture and the way of training; all else comes in through its standard input.
CLIENT = """
import struct, sys
import torch
from helpers import SHAPES, Visitor, averaging, module
from safetensors.torch import load, save
from commonweal import randomness
from commonweal.federation import Rows
from commonweal.local import alone
from commonweal.task import Task

def receive():
    size = sys.stdin.buffer.read(8)
    return load(sys.stdin.buffer.read(struct.unpack("<Q", size)[0])) if size else None

name, seed, kind, local = sys.argv[1], int(sys.argv[2]), sys.argv[3], eval(sys.argv[4])
who, task = randomness.key(name), Task(module(kind))
algorithm = averaging(Visitor(**local))
own = receive()
rows = Rows(own["x"], own["y"], torch.tensor([0, len(own["y"])]))
start = int(randomness.stream(seed, 0, who, randomness.KEEP).integers(1 << 62))
kept = {n: value[None] for n, value in algorithm.keep(task, start).items()}
while (seen := receive()) is not None:
    stream = randomness.stream(seed, int(seen["round"]), who, randomness.TRAIN)
    replies, kept = algorithm.work(task, seen, kept, rows, torch.tensor([0]), [stream], alone)
    text = save({n: value.contiguous() for n, value in replies.items()})
    sys.stdout.buffer.write(struct.pack("<Q", len(text)) + text)
    sys.stdout.buffer.flush()
"""


class Remote:
    """A client's process."""

    def __init__(self, name: str, kind: str) -> None:
        here = Path(__file__).resolve().parent
        path = os.pathsep.join([str(here), str(here.parent / "src")])
        self.process = subprocess.Popen(
            [sys.executable, "-c", CLIENT, name, str(SEED), kind, repr(LOCAL)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # As many threads as here, so that sums are taken in the same order.
            env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": str(torch.get_num_threads())},
        )

    def send(self, message: Tensors) -> None:
        assert self.process.stdin is not None
        text = save({name: value.contiguous() for name, value in message.items()})
        self.process.stdin.write(struct.pack("<Q", len(text)) + text)
        self.process.stdin.flush()

    def receive(self) -> Tensors:
        assert self.process.stdout is not None
        size = struct.unpack("<Q", self.process.stdout.read(8))[0]
        return load(self.process.stdout.read(size))

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(timeout=60)


def protocol() -> Averaging:
    return averaging(Visitor(**LOCAL), AAggFFS(), SGD(lr=0.9, momentum=0.5))  # type: ignore[arg-type]


def over_processes(task: Task, f: Federation, kind: str) -> list[tuple[Tensors, Tensors]]:
    """Each round's replies and server, every client in a process of its own."""
    algorithm, ids, rounds = protocol(), torch.arange(f.clients), []
    server = algorithm.init(task, f.clients)
    clients = [Remote(name, kind) for name in f.names]
    try:
        for k, client in enumerate(clients):
            own = f.train.of(k)
            client.send({"x": own.x, "y": own.y})
        for _ in range(ROUNDS):
            for client in clients:
                client.send(algorithm.ask(server))
            answers = [client.receive() for client in clients]
            replies = {name: torch.cat([a[name] for a in answers]) for name in answers[0]}
            server = algorithm.tell(task, server, ids, replies, f.clients).server
            rounds.append((replies, server))
    finally:
        for client in clients:
            client.close()
    assert all(client.process.returncode == 0 for client in clients)
    return rounds


def in_the_simulator(task: Task, f: Federation, mode: str) -> list[tuple[Tensors, Tensors]]:
    algorithm, ids, rounds = protocol(), torch.arange(f.clients), []
    server, simulator = algorithm.init(task, f.clients), Simulator(task, f, mode)
    for _ in range(ROUNDS):
        replies = simulator.collect(algorithm, algorithm.ask(server), ids, SEED)
        server = algorithm.tell(task, server, ids, replies, f.clients).server
        rounds.append((replies, server))
    return rounds


def test_clients_in_processes_of_their_own_give_the_simulators_numbers() -> None:
    task, f = Task(module("norm")), federation(SIZES)
    apart = over_processes(task, f, "norm")
    assert [r["visited"].tolist() for r, _ in apart] == [[0] * 3, [1] * 3]  # what they kept is still with them
    for mode in ("loop", "vmap", "chunked"):
        together = in_the_simulator(task, f, mode)
        for (a, server), (b, same_server) in zip(apart, together, strict=True):
            assert set(a) == set(b) == {"update", "visited", "far", "loss", "score", "size"}
            for name in a:
                if mode == "loop":
                    assert torch.equal(a[name], b[name]), name
                else:
                    close(a[name], b[name], rtol=1e-3, atol=1e-5)
            close(server["w"], same_server["w"], rtol=1e-3, atol=0 if mode == "loop" else 1e-5)
            assert mode != "loop" or torch.equal(server["w"], same_server["w"])


@pytest.mark.parametrize("kind", ["mlp", "cnn-norm", "dropout"])
def test_work_needs_nothing_but_its_arguments(kind: str) -> None:
    """One client after another by hand, from its own rows alone and under number 0: the simulator's replies."""
    task, f = Task(module(kind)), federation(SIZES, SHAPES[kind])
    algorithm = averaging(Local(**LOCAL))  # type: ignore[arg-type]
    seen = algorithm.ask(algorithm.init(task, 3))
    whole = Simulator(task, f, "loop").collect(algorithm, seen, torch.arange(3), SEED)
    for k, name in enumerate(f.names):
        torch.manual_seed(k)  # whatever torch's own generator holds in another process
        stream = randomness.stream(SEED, 1, randomness.key(name), randomness.TRAIN)
        replies, kept = algorithm.work(task, seen, {}, f.train.of(k), torch.tensor([0]), [stream], alone)
        assert kept == {} and all(torch.equal(replies[n][0], whole[n][k]) for n in whole)
