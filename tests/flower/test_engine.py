"""The same experiment in the simulator and on Flower's nodes: the same numbers."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'commonweal[flower]'")

import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict

from commonweal.base.errors import DataError, RunError
from commonweal.config.experiment import Experiment
from commonweal.flower import FlowerEngine, make_client_app, make_server_app
from commonweal.flower.app import job_of, run_on
from commonweal.jobs import rounds
from commonweal.jobs.job import build_dataset, job_from_experiment
from commonweal.record.record import Record
from commonweal.study.inference import estimates
from flower_helpers import LocalGrid, WithKeys, needs_keys
from helpers import close

CLIENTS = 5
SMALL: dict[str, Any] = {
    "dataset": "digits",
    "partition": {"name": "dirichlet", "clients": CLIENTS},
    "rounds": 2,
    "seed": 3,
    "client": {"name": "sgd", "lr": 0.1, "batch": 16},
}


def experiment(**parts: Any) -> Experiment:
    return Experiment(**{**SMALL, **parts})


def grid_of(given: Experiment, folder: Path, count: int = CLIENTS) -> LocalGrid:
    """Nodes that are known by number, connected in an order of their own."""
    configs = [{"partition-id": k, "state-dir": str(folder)} for k in range(count)]
    return LocalGrid(make_client_app(given), configs[::-1])


def client(name: str) -> dict[str, Any]:
    return {**SMALL["client"], "name": name}


BOOSTING = {"name": "boosting", "personal": "client", "sample_rows": 0.8, "min_rows": 5}
CASES: dict[str, dict[str, Any]] = {
    "fedavg": {"rule": "fedavg"},
    "aaggff-s": {"rule": "aaggff-s"},
    "aaggff-d": {"rule": "aaggff-d", "cohort": 3},
    "adafed": {"rule": "adafed"},
    "drfa": {"algorithm": "drfa", "cohort": 3},
    "scaffold": {"client": client("scaffold")},
    "ditto": {"client": client("ditto"), "rule": "aaggff-s", "cohort": 3},
    "alone": {"client": client("alone"), "cohort": 2},
    "blend": {"client": client("blend"), "rule": "aaggff-s", "validation": 0.2},
    "choice": {"client": client("choice"), "algorithm": "two-phase", "validation": 0.2},
    "superfed-mm": {"client": client("superfed-mm"), "rule": "term"},
    "fedevg": {"algorithm": {"name": "fedevg", "spc": 2, "classifier_epochs": 2}, "client": "sgd"},
    "two-phase": {"algorithm": "two-phase", "rule": "aaggff-s"},
    "boosting": {"algorithm": BOOSTING, "client": "sgd", "rule": "afl", "cohort": 4},
    "boosting with blend": {"algorithm": "boosting", "client": "blend", "validation": 0.2},
    "batch losses": {"algorithm": {"name": "averaging", "loss": "batch"}, "rule": "afl"},
}


def same_record(a: Record, b: Record) -> None:
    assert len(a.rounds) == len(b.rounds) == 2
    for one, other in zip(a.rounds, b.rounds, strict=True):
        assert one.clients == other.clients and one.dropped == other.dropped == {}
        assert one.losses == pytest.approx(other.losses, rel=1e-4, nan_ok=True)
        assert one.weights == pytest.approx(other.weights, rel=1e-3, abs=1e-6)
        assert one.metrics == pytest.approx(other.metrics, rel=1e-3, abs=1e-5)
        assert one.personal == pytest.approx(other.personal, rel=1e-3, abs=1e-5)
        assert one.bytes == other.bytes
    assert a.clients().names == b.clients().names
    for name, value in a.state_dict().items():
        close(value, b.state_dict()[name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_flower_gives_the_simulators_numbers(case: str, tmp_path: Path) -> None:
    given = experiment(**CASES[case])
    list(rounds.run(job_from_experiment(given), out=tmp_path / "simulator"))
    for name in ("flower", "again"):
        run_on(grid_of(given, tmp_path / name / "states"), given, tmp_path / name / "run", nodes=5)
    flower, again = (Record.read(tmp_path / name / "run") for name in ("flower", "again"))
    same_record(flower, Record.read(tmp_path / "simulator"))
    for file in ("rounds.jsonl", "model.safetensors", "clients.chunks", "clients.csv"):
        assert (flower.folder / file).read_bytes() == (again.folder / file).read_bytes()


@pytest.mark.parametrize("algorithm", ["averaging", "two-phase"])
def test_a_method_of_ones_own_has_its_own_requests(algorithm: str, tmp_path: Path) -> None:
    """The one that docs/write.md shows, on nodes as in the simulator."""
    page = (Path(__file__).parents[2] / "docs" / "write.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(# my_mixture.py\n.*?)^```$", page, re.M | re.S)
    file = tmp_path / "my_mixture.py"
    file.write_text(code, encoding="utf-8")
    method = {**SMALL["client"], "name": f"{file}:Mixture"}
    given = experiment(client=method, validation=0.2, algorithm=algorithm)
    *_, last = rounds.run(job_from_experiment(given), out=tmp_path / "simulator")
    run_on(grid_of(given, tmp_path / "states"), given, tmp_path / "run", nodes=5)
    same_record(Record.read(tmp_path / "run"), Record.read(tmp_path / "simulator"))
    assert last.job.local is not None
    learned = {float(state.method["m"]) for state in dict(last.job.local.states).values()}
    assert len(learned) == 1 and learned != {0.5}


def test_label_counts_and_groups_are_asked_for(tmp_path: Path) -> None:
    given = experiment(rule={"name": "grouped", "rule": "afl", "domains": 2})
    list(rounds.run(job_from_experiment(given), out=tmp_path / "simulator"))
    run_on(grid_of(given, tmp_path / "states"), given, tmp_path / "flower", nodes=5)
    same_record(Record.read(tmp_path / "flower"), Record.read(tmp_path / "simulator"))


def test_glm_at_nodes_has_the_pooled_estimates(tmp_path: Path) -> None:
    """Newton steps over Flower's messages, whose numbers are in double precision, too."""
    rng = np.random.default_rng(0)
    x, site = np.round(rng.normal(size=(400, 2)), 3), rng.integers(0, 4, 400)
    y = rng.random(400) < 1 / (1 + np.exp(-x.sum(1)))
    rows = [f"{x[k, 0]},{x[k, 1]},s{site[k]},{('no', 'yes')[int(y[k])]}" for k in range(400)]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,site,y", *rows]))
    table: dict[str, Any] = {"name": "table", "path": str(tmp_path / "t.csv"), "label": "y"}
    table |= {"client": "site", "scale": False}
    given = Experiment(dataset=table, algorithm="glm", rounds=8, evaluate_every=8)
    rounds.run(job_from_experiment(given), out=tmp_path / "simulator").result()
    run_on(grid_of(given, tmp_path / "states", 4), given, tmp_path / "flower", nodes=4)
    flower, simulator = (estimates(tmp_path / name).terms for name in ("flower", "simulator"))
    # Nodes that divide one experiment's data do not tell the server what its columns are called.
    for one, other in zip(flower, simulator, strict=True):
        assert (one.value, one.error) == pytest.approx((other.value, other.error), rel=1e-10)
        assert one.i2 == pytest.approx(other.i2, abs=1e-8)


# Faults


class Tampering(LocalGrid):
    """Changes the replies of some clients to requests for training."""

    change: dict[int, Any] = {}  # noqa: RUF012

    def answer(self, message: Message) -> Message | None:
        reply = super().answer(message)
        change = self.change.get(message.metadata.dst_node_id)
        if reply is not None and change and message.metadata.message_type == "train":
            record = reply.content.array_records["reply"]
            values = {name: array.numpy() for name, array in record.items()}
            arrays = {name: Array(np.asarray(v)) for name, v in change(values).items()}
            reply.content["reply"] = ArrayRecord(arrays)
        return reply


def test_faulty_clients_are_dropped_and_named(tmp_path: Path) -> None:
    given = experiment(rule="aaggff-s", partition={"name": "dirichlet", "clients": 8})
    configs = [{"partition-id": k, "state-dir": str(tmp_path / "states")} for k in range(8)]
    grid = Tampering(make_client_app(given), configs)
    nodes = list(grid.nodes)
    grid.change = {
        nodes[1]: lambda v: v | {"update": v["update"] * math.nan},
        nodes[2]: lambda v: v | {"update": v["update"][:, :7]},
        nodes[3]: lambda v: v | {"size": v["size"] * 100},
        nodes[4]: lambda v: {"loss": v["loss"]},
        nodes[5]: lambda v: v | {"update": np.zeros((1, 10**6), np.float32)},
    }
    engine = FlowerEngine(grid, nodes=8, timeout=0.3)
    grid.silent = {nodes[6]}
    grid.lost = {nodes[7]}
    done = next(iter(rounds.run(job_of(given, engine))))
    names = engine.population.names
    assert set(done.weights) == {names[0]} and sum(done.weights.values()) == pytest.approx(1)
    said = [
        "update is not finite",
        "update has shape (1, 7), which does not fit a model of 650",
        "samples, but 180 when the run started",
        "no score, size, update",
        "update has shape (1, 1000000)",
        "no reply within 0.3 s",
        "Node unavailable",
    ]
    for name, words in zip(names[1:], said, strict=True):
        assert words in done.dropped[name]


@pytest.mark.parametrize(
    "change",
    [
        lambda v: v | {"update": v["update"][:, :7]},
        lambda v: v | {"update": v["update"][0]},
        lambda v: {"update": v["update"]},
        lambda v: v | {"loss": np.zeros(3)},
    ],
)
def test_a_faulty_client_alone_does_not_end_the_run(tmp_path: Path, change: Any) -> None:
    """Where all others are silent, nobody shows what a reply should look like."""
    given = experiment(rule="aaggff-s")
    configs = [{"partition-id": k, "state-dir": str(tmp_path / "states")} for k in range(5)]
    grid = Tampering(make_client_app(given), configs)
    nodes = list(grid.nodes)
    grid.change = {nodes[0]: change}
    engine = FlowerEngine(grid, nodes=5, timeout=0.1)
    grid.silent = set(nodes[1:])
    done = next(iter(rounds.run(job_of(given, engine))))
    assert done.weights == {} and len(done.dropped) == 5


def test_nobody_waits_for_messages_that_are_too_old(tmp_path: Path) -> None:
    """A node works off one message after the other, and would be late for ever."""
    given = experiment(rounds=1)
    grid = grid_of(given, tmp_path)
    lives: set[float] = set()
    answer = grid.answer

    def noting(message: Message) -> Message | None:
        lives.add(message.metadata.ttl)
        return answer(message)

    grid.answer = noting  # type: ignore[method-assign]
    run_on(grid, given, tmp_path / "run", nodes=5, timeout=7.0, wait=7.0)
    assert max(lives) <= 8.0


def test_a_client_that_comes_back_at_another_node_has_its_state(tmp_path: Path) -> None:
    """Its node is gone for a round; then it has another id. Others' nodes never see its state."""
    given = experiment(client=client("ditto"), rounds=4)
    grid = grid_of(given, tmp_path / "states")
    engine = FlowerEngine(grid, nodes=5, timeout=0.2)
    name = engine.population.names[2]
    node = engine.nodes[name]
    dropped = []
    states = []
    folder = tmp_path / "states" / name.replace(" ", "%20")
    for done in rounds.run(job_of(given, engine)):
        dropped.append(dict(done.dropped))
        states.append(max(path.stem for path in folder.rglob("*.safetensors")))
        if done.number == 1:
            config, context = grid.nodes.pop(node), grid.contexts.pop(node)
        if done.number == 2:
            grid.nodes[77], grid.contexts[77] = config, context
            context.node_id = 77
    assert dropped == [{}, {name: "its node is not connected"}, {}, {}]
    assert states == ["000000-001000", "000000-001000", "000000-003000", "000000-004000"]
    assert engine.nodes[name] == 77 and engine.population.clients == CLIENTS


@needs_keys
def test_a_node_with_another_key_cannot_take_a_clients_place(tmp_path: Path) -> None:
    """Neither while the client's node is away, nor in a resumed run; unless nothing is bound."""
    given = experiment(rounds=3)
    configs = [{"partition-id": k, "state-dir": str(tmp_path)} for k in range(CLIENTS)]
    grid = WithKeys(make_client_app(given), configs)
    engine = FlowerEngine(grid, nodes=CLIENTS, timeout=0.2)
    name = engine.population.names[2]
    dropped = []
    for done in rounds.run(job_of(given, engine)):
        dropped.append(dict(done.dropped))
        if done.number == 1:
            grid.move(engine.nodes[name], 77)
    assert dropped == [{}, *2 * [{name: "its node is not connected"}]]
    assert "belongs to the node with the key SHA256:" in engine.refused[77]
    saved = engine.save(3) | {"server": {"round": torch.tensor(4)}}
    again = FlowerEngine(grid, nodes=CLIENTS, timeout=0.2)
    with pytest.raises(DataError, match=f"{name!r} belongs to the node with the key"):
        again.restore(saved, tmp_path)
    FlowerEngine(grid, nodes=CLIENTS, bind_names=False).restore(saved, tmp_path)


def test_a_client_that_joins_late_takes_part(tmp_path: Path) -> None:
    given = experiment(rule="aaggff-s", rounds=3)
    grid = grid_of(given, tmp_path / "states")
    late = next(iter(grid.nodes))
    config = grid.nodes.pop(late)
    engine = FlowerEngine(grid, nodes=4, timeout=0.2)
    counts = []
    for done in rounds.run(job_of(given, engine)):
        counts.append(len(done.weights))
        grid.nodes[late] = config
    assert counts == [4, 4, 5]  # it is met in the second round and asked from the third


def test_a_node_whose_first_query_was_lost_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a SuperLink does whose database is locked."""
    monkeypatch.setattr("commonweal.flower.engine.AGAIN", 0.3)
    grid = grid_of(experiment(), tmp_path)
    answer = grid.answer
    lost = {list(grid.nodes)[1]}

    def loses(message: Message) -> Message | None:
        node = message.metadata.dst_node_id
        if node in lost:
            lost.remove(node)
            return None
        return answer(message)

    grid.answer = loses  # type: ignore[method-assign]
    engine = FlowerEngine(grid, nodes=5, wait=20)
    assert engine.population.clients == 5 and grid.sent == 6


def test_too_few_nodes_are_waited_for_and_named(tmp_path: Path) -> None:
    given = experiment()
    grid = grid_of(given, tmp_path)
    with pytest.raises(RunError, match="5 nodes are connected, but 6 are needed"):
        FlowerEngine(grid, nodes=6, wait=0.2, timeout=2)
    twins = LocalGrid(make_client_app(given), [{"partition-id": 0}, {"partition-id": 0}])
    with pytest.raises(RunError, match="is already at node"):
        FlowerEngine(twins, nodes=2, wait=0.2, timeout=2)


def test_a_stopped_run_is_resumed_with_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the clients had already trained in the round that was lost."""
    given = experiment(client=client("ditto"), rule="aaggff-s", cohort=3, rounds=5)
    run_on(grid_of(given, tmp_path / "a"), given, tmp_path / "whole", nodes=5)
    grid = grid_of(given, tmp_path / "b")
    pull = grid.pull_messages
    pulled = 0

    def dies(ids: Any) -> Any:
        nonlocal pulled
        pulled += 1
        if pulled == 6:  # the query, two rounds of training and evaluation, then training
            raise KeyboardInterrupt
        return pull(ids)

    monkeypatch.setattr(grid, "pull_messages", dies)
    with pytest.raises(KeyboardInterrupt):
        run_on(grid, given, tmp_path / "parts", nodes=5)
    assert len(Record.read(tmp_path / "parts").rounds) == 2
    run_on(grid_of(given, tmp_path / "b"), given, tmp_path / "parts", resume=True, nodes=5)
    for file in ("rounds.jsonl", "model.safetensors", "clients.chunks", "clients.csv"):
        parts, whole = (tmp_path / name / file for name in ("parts", "whole"))
        assert parts.read_bytes() == whole.read_bytes(), file


def test_only_messages_travel(tmp_path: Path) -> None:
    """A client's state is on its own disk: a message is the model, a reply is the update."""
    given = experiment(client=client("ditto"), rounds=1)
    grid = grid_of(given, tmp_path / "states")
    sizes: list[int] = []
    answer = grid.answer

    def weighed(message: Message) -> Message | None:
        reply = answer(message)
        if reply is not None and message.metadata.message_type == "train":
            sizes.append(sum(r.count_bytes() for r in reply.content.array_records.values()))
        return reply

    grid.answer = weighed  # type: ignore[method-assign]
    run_on(grid, given, tmp_path / "run", nodes=5)
    assert len(sizes) == 5 and max(sizes) < 650 * 4 + 2000
    assert all(not context.state for context in grid.contexts.values())
    assert torch.tensor(build_dataset(given).train.x.shape[1:]).prod() == 64


def test_settings_of_a_run_may_be_strings(tmp_path: Path) -> None:
    given = experiment(rounds=1)
    server = make_server_app(given, nodes=9, wait=5)
    config: dict[str, Any] = {"nodes": str(CLIENTS), "timeout": "5", "out": str(tmp_path / "run")}
    server(grid_of(given, tmp_path), Context(1, 1, {}, RecordDict(), config))
    assert Record.read(tmp_path / "run").finished


@pytest.mark.parametrize("version", ["0.1", None])
def test_a_node_with_another_version_is_refused(tmp_path: Path, version: str | None) -> None:
    class Old(LocalGrid):
        def answer(self, message: Message) -> Message | None:
            reply = super().answer(message)
            if reply is not None and message.metadata.dst_node_id == min(self.nodes):
                schema = reply.content.config_records["schema"]
                del schema["version"]
                if version is not None:
                    schema["version"] = version
            return reply

    given = experiment()
    configs = [{"partition-id": k, "state-dir": str(tmp_path)} for k in range(2)]
    with pytest.raises(RunError, match=r"1 of 2 connected .*install the same version"):
        FlowerEngine(Old(make_client_app(given), configs), nodes=2, wait=0.2, timeout=2)
