"""Private rounds on Flower compute what the simulator computes, and keep its promise."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, Message
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping

from commonweal.base import randomness
from commonweal.base.errors import ConfigError, RunError
from commonweal.data.population import Population
from commonweal.flower import FairStrategy, name_clients, weigh_privately
from commonweal.flower.arrays import Layout
from commonweal.flower.private import PrivateRounds, draw_nodes
from commonweal.protocols.algorithm import Replies, Sample
from commonweal.protocols.samplers import Poisson
from commonweal.protocols.servers import SGD
from commonweal.record.record import Record
from commonweal.rules.aaggff_d import AAggFFD
from flower_helpers import LocalGrid, configs, distance, mean_app, rows

CLIENTS = 8
ROUNDS = 5
PRIVATE: dict[str, Any] = {
    "noise": 0.7,
    "delta": 1e-3,
    "clip": 2.0,
    "clients": CLIENTS,
    "cohort": 3,
    "entropy": "seed",
}
RULE = {"name": "aaggff-d", "scale": 0.3, "lipschitz": 0.5}


def own_loss(message: Message, context: Context) -> float:
    k = int(context.node_config["partition-id"])
    w = message.content.array_records["arrays"].to_numpy_ndarrays()[0]
    return distance(w, rows(k, 10 * (k + 1)))


def app(mods: bool = True) -> Any:
    return mean_app(mods=[name_clients(), weigh_privately(own_loss)] if mods else None)


def started(grid: LocalGrid, out: Path | None = None, **change: Any) -> np.ndarray:
    strategy = FairStrategy(RULE, private=PRIVATE | change, out=out, seed=3, min_available_nodes=1)
    initial = ArrayRecord([np.zeros(3, np.float32)])
    result = strategy.start(grid, initial, ROUNDS)
    return np.asarray(result.arrays.to_numpy_ndarrays()[0])


def simulated() -> np.ndarray:
    """The same rounds by the algorithm itself, without messages."""
    layout = Layout.of({"0": np.zeros(3, np.float32)})
    rounds = PrivateRounds.of(PRIVATE)
    algorithm = rounds.algorithm(layout, AAggFFD(scale=0.3, lipschitz=0.5), SGD(), ROUNDS, 3)
    population = algorithm.population
    assert isinstance(population, Population)
    state = algorithm.init(population)
    memories = [algorithm.form.init_client() for _ in range(CLIENTS)]
    for number in range(1, ROUNDS + 1):
        rng = randomness.stream(0, number, 0, randomness.COHORT)
        drawn = algorithm.cohort(state, Sample(population, 3, number, Poisson(), rng)).tolist()
        sent = []
        for k in drawn:
            mine = rows(k, 10 * (k + 1))
            w = state["w"].numpy()
            update = torch.from_numpy(-0.5 * (mine.mean(0) - w))[None]
            loss = torch.tensor([distance(w, mine)], dtype=torch.float64)
            memory = {name: value[None] for name, value in memories[k].items()}
            replies, memory = algorithm.weigh(update, loss, memory, algorithm.ask(state))
            memories[k] = {name: value[0] for name, value in memory.items()}
            sent.append(replies)
        values = {n: torch.cat([each[n] for each in sent]) for n in sent[0]} if sent else {}
        state = algorithm.tell(state, Replies(torch.tensor(drawn), values), CLIENTS).state
    return np.asarray(state["w"].numpy())


def test_flower_and_the_simulator_give_the_same_numbers(tmp_path: Path) -> None:
    model = started(LocalGrid(app(), configs(CLIENTS)), tmp_path / "run")
    np.testing.assert_allclose(model, simulated(), rtol=1e-4, atol=1e-5)


def test_only_the_model_and_public_numbers_are_published(tmp_path: Path) -> None:
    started(LocalGrid(app(), configs(CLIENTS)), tmp_path / "run", entropy="system")
    record = Record.read(tmp_path / "run")
    assert record.finished and record.is_public_part
    assert record.facts.privacy is not None and not record.facts.privacy.simulated
    assert record.facts.privacy.rate == 3 / CLIENTS
    text = (tmp_path / "run" / "rounds.jsonl").read_text()
    assert all(json.loads(line).keys() == {"round", "public"} for line in text.splitlines())
    assert len(record.whole().clients().names) == CLIENTS


def test_the_rate_does_not_depend_on_who_is_connected() -> None:
    rounds = PrivateRounds.of(PRIVATE)
    layout = Layout.of({"0": np.zeros(3, np.float32)})
    algorithm = rounds.algorithm(layout, AAggFFD(), SGD(), ROUNDS, 3)
    drawn = [len(draw_nodes(algorithm, [11, 12], number)) for number in range(2000)]
    assert np.mean(drawn) == pytest.approx(2 * 3 / CLIENTS, abs=0.05)


def test_nobody_answers_and_the_model_moves_all_the_same() -> None:
    grid = LocalGrid(app(), configs(CLIENTS))
    grid.silent = set(grid.nodes)
    assert np.abs(started(grid)).min() > 0


def test_clients_without_the_mod_are_refused() -> None:
    with pytest.raises(RunError, match="weigh_privately"):
        started(LocalGrid(app(mods=False), configs(CLIENTS)), cohort=CLIENTS)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"clients": None}, "clients"),
        ({"cohort": 0}, "cohort"),
        ({"epsilon": 8.0}, "epsilon"),
        ({"sigma": 8.0}, "sigma"),
        ({"delta": 0.5}, "delta"),
    ],
)
def test_what_cannot_be_promised(change: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        started(LocalGrid(app(), configs(2)), **change)


def test_rules_without_a_private_form_channels_and_wrappers_are_refused() -> None:
    grid = LocalGrid(app(), configs(2))
    initial = ArrayRecord([np.zeros(3, np.float32)])
    with pytest.raises(ConfigError, match="private"):
        FairStrategy("afl", private=PRIVATE, out=None).start(grid, initial, 2)
    with pytest.raises(ConfigError, match="private"):
        FairStrategy(RULE, channels=["clip(norm=1)"], private=PRIVATE, out=None)
    strategy = FairStrategy("uniform", private=PRIVATE, out=None)
    wrapped = DifferentialPrivacyServerSideFixedClipping(strategy, 1.0, 1.0, 2)
    with pytest.raises(ConfigError, match="without the wrapper"):
        wrapped.summary()
