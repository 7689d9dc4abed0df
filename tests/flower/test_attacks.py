"""Malicious clients on Flower: the attacks of benchmarks/attacks.py, in the replies of nodes."""

import importlib.util
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'commonweal[flower]'")

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message

from commonweal.config.experiment import Experiment
from commonweal.flower import FlowerEngine, make_client_app
from commonweal.flower.app import job_of
from commonweal.jobs import rounds
from commonweal.jobs.job import job_from_experiment
from commonweal.jobs.rounds import Round
from flower_helpers import LocalGrid
from helpers import close

CLIENTS = 10
MALICIOUS = (3, 8)  # 20 %
HUGE = 10**12


def suite() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "attacks.py"
    spec = importlib.util.spec_from_file_location("attacks", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Lying(LocalGrid):
    """Changes what malicious clients send, knowing what the honest ones send."""

    attack: Any = None
    round = 0
    size = 0  # what malicious clients report already in the first query; 0: the truth

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        sent = list(messages)
        keys = list(super().push_messages(sent))
        replies = [self.replies[key] for key in keys]
        kind = sent[0].metadata.message_type
        if kind == "query" and self.size:
            for k in MALICIOUS:
                schema = dict(replies[k].content.config_records["schema"])
                replies[k].content["schema"] = ConfigRecord(schema | {"samples": self.size})
        if kind == "train":
            records = [reply.content.array_records["reply"] for reply in replies]
            stacked = {
                name: torch.cat([torch.tensor(record[name].numpy()) for record in records])
                for name in records[0]
            }
            self.round += 1
            lie = suite().Lie(stacked, torch.tensor(MALICIOUS), self.round)
            self.attack(lie)
            for k, reply in enumerate(replies):
                own = {name: Array(value[k : k + 1].numpy()) for name, value in lie.values.items()}
                reply.content["reply"] = ArrayRecord(own)
        return keys


def experiment(rule: str) -> Experiment:
    data = {"name": "synthetic", "clients": CLIENTS, "rows": 40, "test": 0.5}
    return Experiment(dataset=data, rule=rule, rounds=3, seed=1)


def on_flower(rule: str, attack: str, change: Any, folder: Path) -> list[Round]:
    given = experiment(rule)
    configs = [{"partition-id": k, "state-dir": str(folder)} for k in range(CLIENTS)]
    grid = Lying(make_client_app(given), configs)
    grid.attack = change
    grid.size = HUGE if attack == "size 1e12, -update" else 0
    return list(rounds.run(job_of(given, FlowerEngine(grid, nodes=CLIENTS, timeout=1))))


ATTACKS = [
    "loss x 1e6",
    "size 1e12, -update",
    "loss x 50, -update",
    "-50 x update",
    "-update",
    "update x 1e4",
    "NaN",
    "backwards",
]


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("rule", ["aaggff-s", "guarded(rule=aaggff-s)"])
def test_malicious_clients_do_on_flower_what_they_do_in_the_simulator(
    rule: str, attack: str, tmp_path: Path
) -> None:
    attacks = suite()
    flower = on_flower(rule, attack, attacks.ATTACKS[attack], tmp_path)
    change = attacks.ATTACKS[attack]
    job = attacks.attacked(job_from_experiment(experiment(rule)), change, MALICIOUS)
    simulator = list(rounds.run(job))
    for one, other in zip(flower, simulator, strict=True):
        assert one.dropped.keys() == other.dropped.keys()
        assert one.capped.keys() == other.capped.keys()
        assert one.weights == pytest.approx(other.weights, rel=1e-3, abs=1e-6)
    close(flower[-1].state["w"], simulator[-1].state["w"], rtol=1e-3, atol=1e-4)
    if rule.startswith("guarded") and attack not in ("-update", "backwards"):
        names = {job.population.names[k] for k in MALICIOUS}
        assert names <= flower[-1].dropped.keys() | flower[-1].capped.keys()


def test_a_size_that_is_another_than_at_the_start_is_not_believed(tmp_path: Path) -> None:
    """Stricter than the simulator, whose server never asks for sizes before."""
    attacks = suite()
    given = experiment("fedavg")
    configs = [{"partition-id": k, "state-dir": str(tmp_path)} for k in range(CLIENTS)]
    grid = Lying(make_client_app(given), configs)
    grid.attack = attacks.ATTACKS["size 1e12, -update"]
    engine = FlowerEngine(grid, nodes=CLIENTS, timeout=1)
    done = next(iter(rounds.run(job_of(given, engine))))
    assert set(done.dropped) == {engine.population.names[k] for k in MALICIOUS}
    assert all("when the run started" in why for why in done.dropped.values())
