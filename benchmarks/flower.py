"""What Flower costs per round, and what travels: PYTHONPATH=src:tests python benchmarks/flower.py

Without options, messages are Flower's own objects, carried by a Grid in this process: no sockets,
no new process per message. With --deployment: a SuperLink and two SuperNodes as processes over
the loopback, with TLS and node authentication.
"""

import argparse
import json
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from commonweal.config.experiment import Experiment
from commonweal.flower import FairStrategy, make_client_app
from commonweal.flower.app import run_on
from commonweal.flower.app_folder import write_app
from commonweal.jobs import rounds
from commonweal.jobs.job import job_from_experiment
from flower_helpers import LocalGrid, configs, mean_app
from flower_runtime import NodeConfig, Runtime

ROUNDS = 10
CLIENTS = 20
REPEATS = 3
NODES = 2
DEPLOYED = 3  # rounds of a deployment
EXAMPLE = Path(__file__).parents[1] / "examples" / "flower"


def experiment(**parts: object) -> Experiment:
    values: dict[str, object] = {
        "dataset": "digits",
        "partition": {"name": "dirichlet", "clients": CLIENTS},
        "rule": "aaggff-s",
        "rounds": ROUNDS,
    }
    return Experiment(**values | parts)


def fastest(contenders: dict[str, Callable[[], object]]) -> None:
    """Print each contender's fastest of some interleaved runs, and its ratio to the first."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(REPEATS):
        for name, run in contenders.items():
            began = time.process_time()
            run()
            seconds[name].append(time.process_time() - began)
    first = min(next(iter(seconds.values())))
    for name, values in seconds.items():
        spent = 1000 * min(values) / ROUNDS
        print(f"| {name} | {spent:.1f} | {min(values) / first:.2f} |", flush=True)


class Replaying(LocalGrid):
    """Clients whose replies are ready: what is measured is the strategy."""

    def __init__(self, shapes: list[tuple[int, ...]]) -> None:
        super().__init__(mean_app(), configs(CLIENTS))
        rng = np.random.default_rng(0)
        arrays = [[rng.normal(size=s).astype(np.float32) for s in shapes] for _ in range(CLIENTS)]
        self.trained = [ArrayRecord(model) for model in arrays]

    def answer(self, message: Message) -> Message:
        k = int(self.contexts[message.metadata.dst_node_id].node_config["partition-id"])
        metrics = MetricRecord({"num-examples": 10 + k, "loss-before": 1.0 + k, "accuracy": 0.5})
        content = RecordDict({"metrics": metrics})
        if message.metadata.message_type == "train":
            content["arrays"] = self.trained[k]
        return Message(content, reply_to=message)


MODELS = {
    "62 k": [(6, 3, 5, 5), (6,), (16, 6, 5, 5), (16,), (120, 400), (120,), (84, 120), (84,)],
    "2 M": [(1000, 1000), (1000,), (990, 1000), (990,)],
}


def strategies(folder: Path) -> None:
    """Flower's FedAvg against FairStrategy, on clients that do nothing."""
    for model, shapes in MODELS.items():
        grid = Replaying(shapes)

        def run(
            strategy: FedAvg | FairStrategy,
            grid: Replaying = grid,
            shapes: list[tuple[int, ...]] = shapes,
        ) -> None:
            start = ArrayRecord([np.zeros(shape, np.float32) for shape in shapes])
            strategy.start(grid=grid, initial_arrays=start, num_rounds=ROUNDS)

        fastest(
            {
                f"{model} parameters: FedAvg": partial(run, FedAvg()),
                'FairStrategy("fedavg")': partial(run, FairStrategy("fedavg", out=None)),
                'FairStrategy("aaggff-s")': partial(run, FairStrategy("aaggff-s", out=None)),
                'FairStrategy("adafed")': partial(run, FairStrategy("adafed", out=None)),
                "... aaggff-s with its record": partial(recorded, run, folder),
            }
        )


def recorded(run: Callable[[FairStrategy], None], folder: Path) -> None:
    run(FairStrategy("aaggff-s", out=fresh(folder)))


def fresh(folder: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=folder)) / "run"


def engines(folder: Path) -> None:
    """The same experiment in the simulator and on Flower's objects."""
    given = experiment()

    def simulate(mode: str) -> None:
        list(rounds.run(job_from_experiment(given.change(vectorize=mode))))

    def flower() -> None:
        out = fresh(folder)
        states = [each | {"state-dir": str(out.parent)} for each in configs(CLIENTS)]
        run_on(LocalGrid(make_client_app(given), states), given, out, nodes=CLIENTS)

    fastest(
        {
            "simulator, all clients at once": lambda: simulate("auto"),
            "simulator, client by client": lambda: simulate("loop"),
            "FlowerEngine": flower,
        }
    )


class Weighing(LocalGrid):
    """Counts the bytes of the arrays in messages and replies of training."""

    down = 0
    up = 0

    def answer(self, message: Message) -> Message | None:
        reply = super().answer(message)
        if message.metadata.message_type == "train" and reply is not None:
            self.down += _bytes(message)
            self.up += _bytes(reply)
        return reply


def _bytes(message: Message) -> int:
    return sum(record.count_bytes() for record in message.content.array_records.values())


def traffic(folder: Path) -> None:
    """Bytes per client and round, and what stays on a client's disk."""
    print("\n| client method | down | up | stays on the client's disk |\n|---|--:|--:|--:|")
    for client in ("sgd", "ditto", "scaffold"):
        given = experiment(client=client, rounds=2)
        states = folder / client
        nodes = [each | {"state-dir": str(states)} for each in configs(CLIENTS)]
        grid = Weighing(make_client_app(given), nodes)
        run_on(grid, given, fresh(folder), nodes=CLIENTS)
        kept = [path.stat().st_size for path in states.rglob("000000-002000.safetensors")]
        disk = sum(kept) // CLIENTS
        count = 2 * CLIENTS
        assert not any(context.state for context in grid.contexts.values())
        print(f"| {client} | {grid.down // count} | {grid.up // count} | {disk} |", flush=True)


# Real processes


SERVER = """
import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from {module} import {strategy}

app = ServerApp()

@app.main()
def main(grid, context):
    start = ArrayRecord([np.zeros(3, np.float32)])
    rounds = int(context.run_config["num-server-rounds"])
    {strategy}({arguments}).start(grid=grid, initial_arrays=start, num_rounds=rounds)
"""

CLIENT = """
import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.train()
def train(message, context):
    w = message.content.array_records["arrays"].to_numpy_ndarrays()[0]
    metrics = MetricRecord({"num-examples": 10, "loss-before": float((w - 1) @ (w - 1))})
    content = RecordDict({"arrays": ArrayRecord([w + np.float32(0.1)]), "metrics": metrics})
    return Message(content, reply_to=message)

@app.evaluate()
def evaluate(message, context):
    w = message.content.array_records["arrays"].to_numpy_ndarrays()[0]
    metrics = MetricRecord({"num-examples": 10, "eval_loss": float((w - 1) @ (w - 1))})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
"""


def light_app(folder: Path, module: str, strategy: str, arguments: str) -> Path:
    """An app whose clients do next to nothing, without torch."""
    app = folder / strategy.lower()
    (app / "quickstart").mkdir(parents=True)
    shutil.copy(EXAMPLE / "pyproject.toml", app)
    (app / "quickstart" / "__init__.py").write_text("")
    (app / "quickstart" / "client_app.py").write_text(CLIENT)
    text = SERVER.format(module=module, strategy=strategy, arguments=arguments)
    (app / "quickstart" / "server_app.py").write_text(text)
    return app


def deployment(folder: Path) -> None:
    """Seconds per round, training and evaluation, of two SuperNodes."""
    nodes = {f"node-{k + 1}": {"partition-id": k} for k in range(NODES)}
    every: dict[str, NodeConfig] = {
        name: {**config, "state-dir": str(folder / "states")} for name, config in nodes.items()
    }
    fedavg = light_app(folder, "flwr.serverapp.strategy", "FedAvg", "")
    fair = light_app(folder, "commonweal.flower", "FairStrategy", '"aaggff-s"')
    parts = {"partition": {"name": "dirichlet", "clients": NODES}, "rounds": DEPLOYED}
    given = experiment(**parts, client="ditto")
    write_app(given, folder / "experiment", NODES)
    seconds: dict[str, list[float]] = {}
    with Runtime(folder / "runtime", every) as runtime:
        runtime.start()

        def strategy(app: Path) -> float:
            (folder / "runtime" / "run.log").unlink(missing_ok=True)
            runtime.submit(app, **{"num-server-rounds": DEPLOYED}).wait()
            found = re.search(r"finished in ([\d.]+)s", runtime.log("run"))
            assert found is not None, runtime.log("run")[-3000:]
            return float(found[1]) / DEPLOYED

        def engine() -> float:
            out = fresh(folder)
            app = folder / "experiment"
            runtime.submit(app, out=str(out), nodes=NODES, timeout=600.0, wait=600.0).wait()
            lines = (out / "timings.jsonl").read_text().splitlines()
            spent = [json.loads(line) for line in lines]
            return float(sum(each["train"] + each["evaluate"] for each in spent)) / DEPLOYED

        contenders: dict[str, Callable[[], float]] = {
            "Flower's FedAvg": lambda: strategy(fedavg),
            'FairStrategy("aaggff-s")': lambda: strategy(fair),
        }
        for name, run in [
            *contenders.items(),
            *contenders.items(),
            ("FlowerEngine, ditto", engine),
        ]:
            seconds.setdefault(name, []).append(run())
            print(name, f"{seconds[name][-1]:.2f}", "load", os.getloadavg()[0], flush=True)
    began = time.perf_counter()
    list(rounds.run(job_from_experiment(given)))
    seconds["simulator, ditto"] = [(time.perf_counter() - began) / DEPLOYED]
    print("\n| | seconds per round | ratio to FedAvg |\n|---|--:|--:|")
    first = min(seconds["Flower's FedAvg"])
    for name, values in seconds.items():
        print(f"| {name} | {min(values):.2f} | {min(values) / first:.3f} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--deployment", action="store_true", help="real processes: minutes")
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    print("load", os.getloadavg())
    with tempfile.TemporaryDirectory() as folder:
        if arguments.deployment:
            deployment(Path(folder))
            return
        print(f"\n| {CLIENTS} clients | ms per round | ratio |\n|---|--:|--:|")
        strategies(Path(folder))
        engines(Path(folder))
        traffic(Path(folder))


if __name__ == "__main__":
    main()
