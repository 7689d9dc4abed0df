"""Secure sums: what a server sees of a two-phase run, and what comes of clients that drop out."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'commonweal[flower]'")

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.common import bytes_to_ndarray

from commonweal.base.errors import ConfigError, DataError
from commonweal.base.tensors import Tensors
from commonweal.config.experiment import Experiment
from commonweal.flower import make_client_app
from commonweal.flower.app import run_on
from commonweal.flower.messages import Answers
from commonweal.flower.secure import Sums, answer_masked, secure_settings, secure_sum
from commonweal.jobs import rounds
from commonweal.jobs.job import job_from_experiment
from commonweal.record.record import Record
from flower_helpers import LocalGrid
from helpers import close

CONFIG = "secaggplus_configs"
SMALL: dict[str, Any] = {
    "dataset": "digits",
    "partition": {"name": "dirichlet", "clients": 5},
    "rounds": 2,
    "seed": 3,
    "rule": "aaggff-s",
    "client": {"name": "sgd", "lr": 0.1, "batch": 16},
    "algorithm": {"name": "two-phase", "secure": True},
}


class Watched(LocalGrid):
    """A grid that keeps what passes the server, and in which nodes fall silent at a stage."""

    def __init__(self, given: Experiment, folder: Path, count: int = 5) -> None:
        configs = [{"partition-id": k, "state-dir": str(folder)} for k in range(count)]
        super().__init__(make_client_app(given), configs)
        self.transcript: list[tuple[str, int, RecordDict]] = []
        self.dropping: dict[str, list[int]] = {}  # stage -> clients
        self.change: Any = None

    def answer(self, message: Message) -> Message | None:
        config: Any = message.content.config_records.get(CONFIG, {})
        request: Any = message.content.config_records.get("request", {"purpose": "query"})
        stage = str(config.get("stage", f"plain {request['purpose']}"))
        client = list(self.nodes).index(message.metadata.dst_node_id)
        if client in self.dropping.get(stage, []):
            return Message(Error(5, "Node unavailable"), reply_to=message)
        if self.change is not None:
            self.change(stage, client, message)
        reply = super().answer(message)
        if reply is not None and reply.has_content():
            self.transcript.append((stage, client, reply.content))
        return reply

    def masked(self) -> list[np.ndarray]:
        """The masked numbers of all replies."""
        replies = [content for stage, _, content in self.transcript if "collect" in stage]
        configs: list[Any] = [content.config_records[CONFIG] for content in replies]
        return [bytes_to_ndarray(config["masked_params"][1]) for config in configs]

    def updates(self) -> list[np.ndarray]:
        """The updates of all replies."""
        records = [r for _, _, content in self.transcript for r in content.array_records.values()]
        return [record["update"].numpy()[0] for record in records if "update" in record]


def experiment(**parts: Any) -> Experiment:
    return Experiment(**{**SMALL, **parts})


def run(grid: Watched, given: Experiment, folder: Path) -> Record:
    run_on(grid, given, folder, nodes=len(grid.nodes), timeout=60.0)
    return Record.read(folder)


def vector(record: Record) -> torch.Tensor:
    values = sorted(record.state_dict().items())
    return torch.cat([value.flatten().double() for _, value in values])


def test_a_secure_run_is_the_plain_one_and_shows_no_update(tmp_path: Path) -> None:
    records, grids = {}, {}
    for name in ("secure", "again", "plain"):
        given = experiment(algorithm={"name": "two-phase", "secure": name != "plain"})
        grids[name] = Watched(given, tmp_path / name / "states")
        records[name] = run(grids[name], given, tmp_path / name / "run")
    secure, again, plain = records.values()
    assert [one.clients for one in secure.rounds] == [("0", "1", "2", "3", "4")] * 2
    # 5 clients round by half of 2^-36 each; the rest is how float32 rounds sums.
    close(vector(secure), vector(plain), rtol=0, atol=1e-6)
    assert (secure.folder / "model.safetensors").read_bytes() == (
        again.folder / "model.safetensors"
    ).read_bytes()
    sent = [
        {name for record in content.array_records.values() for name in record}
        for name in ("plain", "secure")
        for _, _, content in grids[name].transcript
    ]
    half = len(grids["plain"].transcript)
    assert {"update"} in sent[:half] and not any("update" in names for names in sent[half:])
    updates = grids["plain"].updates()
    masked = [grids[name].masked() for name in ("secure", "again")]
    assert len(updates) == len(masked[0]) == len(masked[1]) == 10
    for own, other in zip(*masked, strict=True):
        assert own.dtype == np.int64 and own.min() >= 0 and own.max() < 2**48
        assert (own == other).mean() < 1e-3  # new keys, although the update is the same
        counts = np.histogram(own, 16, (0, 2**48))[0]
        expected = own.size / 16
        assert ((counts - expected) ** 2 / expected).sum() < 60  # chi-squared of 15: p = 2e-7
        for update in updates:
            assert abs(np.corrcoef(own[0].ravel(), update)[0, 1]) < 0.25


@pytest.mark.parametrize("stage", ["setup", "share_keys", "collect_masked_vectors", "unmask"])
def test_a_client_that_drops_out_is_left_out_of_the_sum(stage: str, tmp_path: Path) -> None:
    records = []
    for masked in (True, False):
        given = experiment(algorithm={"name": "two-phase", "secure": masked}, rounds=1)
        grid = Watched(given, tmp_path / f"states-{masked}")
        if masked or stage != "unmask":  # then its numbers have arrived
            grid.dropping = {stage if masked else "plain train": [2]}
        records.append(run(grid, given, tmp_path / f"run-{masked}"))
    secure, plain = (record.rounds[0] for record in records)
    assert set(secure.dropped) == ({"2"} if stage != "unmask" else set())
    assert secure.weights == pytest.approx(plain.weights)
    assert secure.dropped == plain.dropped
    close(vector(records[0]), vector(records[1]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("stage", ["setup", "collect_masked_vectors", "unmask"])
def test_below_the_threshold_the_round_is_lost(stage: str, tmp_path: Path) -> None:
    given = experiment(rounds=2)
    grid = Watched(given, tmp_path / "states")

    def recover(now: str, client: int, message: Message) -> None:
        request: Any = message.content.config_records.get("request", {"round": 0})
        if request["round"] == 2:
            grid.dropping = {}

    grid.change, grid.dropping = recover, {stage: [1, 3]}
    record = run(grid, given, tmp_path / "run")
    lost, recovered = record.rounds
    assert set(lost.dropped) == {"0", "1", "2", "3", "4"}
    assert "4 " in lost.dropped["0"] and "needed" in lost.dropped["0"]
    assert recovered.dropped == {} and len(recovered.weights) == 5


def test_what_a_client_computed_wrongly_spoils_no_sum(tmp_path: Path) -> None:
    """Numbers that are not finite, and those of another shape."""
    given = experiment(rounds=1)
    grid = Watched(given, tmp_path / "states")

    def spoil(stage: str, client: int, message: Message) -> None:
        if stage == "collect_masked_vectors" and client == 4:
            each = {
                "weight": Array(np.full(1, np.nan, np.float32)),
                "buffer_weight": Array(np.ones(1)),
            }
            message.content["each"] = ArrayRecord(each)

    grid.change = spoil
    (done,) = run(grid, given, tmp_path / "run").rounds
    assert (
        set(done.dropped) == {"4"}
        and "its update has numbers that are not finite" in done.dropped["4"]
    )


TREES = {"algorithm": {"name": "boosting", "secure": True}, "client": "sgd", "rule": "afl"}


def test_histograms_of_trees_are_masked(tmp_path: Path) -> None:
    given = experiment(**TREES, rounds=1)
    grid = Watched(given, tmp_path / "states")
    # A client that drops out before its histogram: the tree is grown by the others.
    dropped: list[int] = []

    def drop(stage: str, client: int, message: Message) -> None:
        request: Any = message.content.config_records.get("request", {"purpose": ""})
        if stage == "setup" and request["purpose"] == "histogram" and not dropped:
            dropped.append(3)
            grid.dropping = {"collect_masked_vectors": dropped}

    grid.change = drop
    secure = run(grid, given, tmp_path / "run")
    contents = [content for _, _, content in grid.transcript]
    records = [record for content in contents for record in content.array_records.values()]
    sent = set().union(*records)
    assert {"loss", "size"} <= sent and not sent & {"sums", "rows", "labels", "missing"}
    (own,) = (tmp_path / "states").glob("0/sent.jsonl")
    lists = [json.loads(line)["what"] for line in own.read_text().splitlines()]
    assert all("masked" in word for what in lists for word in what if word.startswith("sums"))
    assert any(word.startswith("sums") for what in lists for word in what)
    assert set(secure.rounds[0].dropped) == {"3"}
    plain = Watched(experiment(**TREES | {"algorithm": "boosting"}, rounds=1), tmp_path / "plain")
    dropped.clear()

    def drop_plainly(stage: str, client: int, message: Message) -> None:
        plain.dropping = {"plain histogram": [3]}

    plain.change = drop_plainly
    expected = run(plain, experiment(**TREES | {"algorithm": "boosting"}, rounds=1), tmp_path / "b")
    close(vector(secure), vector(expected), rtol=1e-5, atol=1e-6)
    assert secure.rounds[0].metrics == pytest.approx(expected.rounds[0].metrics)


# The sum alone


class Nodes:
    """Nodes that mask given tensors, and drop out before a stage."""

    def __init__(self, values: dict[int, Tensors], dropping: dict[str, set[int]]) -> None:
        TaskIdentity = pytest.importorskip("flwr.supercore.task_identity").TaskIdentity
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        self.values = values
        self.dropping = dropping
        self.contexts = {node: Context(1, node, {}, RecordDict(), {}) for node in values}
        self.change: Any = lambda stage, node, content: None

    def __call__(self, contents: Mapping[int, RecordDict]) -> Answers:
        sent, replies = [], []
        for k, (node, content) in enumerate(contents.items()):
            message = Message(content, node, "train")
            message.metadata.__dict__["_message_id"] = f"{k}"
            sent.append(message)
            stage = content.config_records[CONFIG]["stage"]
            if node in self.dropping.get(str(stage), ()):
                continue
            reply = answer_masked(
                message, self.contexts[node], partial(self.values.__getitem__, node)
            )
            self.change(stage, node, reply.content)
            replies.append(reply)
        return Answers(sent, replies, "in time")

    def sum(self) -> Sums:
        asked = RecordDict({"request": ConfigRecord({"run": "0"})})
        return secure_sum(self, dict.fromkeys(self.values, asked))


def random_values(count: int, seed: int = 0) -> dict[int, Tensors]:
    rng = np.random.default_rng(seed)
    values: dict[int, Tensors] = {}
    for node in rng.integers(0, 2**62, count).tolist():
        scale = 10.0 ** rng.integers(-6, 2)
        values[node + 2**63] = {
            "float": torch.tensor(scale * rng.normal(size=(1, 3, 2))),
            "single": torch.tensor(rng.normal(size=(1, 4)), dtype=torch.float32),
            "whole": torch.tensor(rng.integers(-(2**50), 2**50, (1, 2))),
        }
    return values


@pytest.mark.parametrize("count", [3, 22, 30])
def test_sums_are_exact_up_to_half_a_step_for_each_client(count: int) -> None:
    values = random_values(count)
    nodes = list(values)
    late = {"collect_masked_vectors": set(nodes[:3]), "unmask": set(nodes[3:5])}
    dropping = late if count > 10 else {}
    sums = Nodes(values, dropping).sum()
    left = set(nodes) - dropping.get("collect_masked_vectors", set())
    assert sums.nodes == left and set(sums.failed) == set(nodes) - left
    for name in ("float", "single"):
        exact = torch.stack([values[node][name].double() for node in left]).sum(0)
        assert sums.values[name].dtype == values[nodes[0]][name].dtype
        rounding = 1e-6 * exact.abs().max() if name == "single" else 1e-14 * exact.abs().max()
        assert (sums.values[name].double() - exact).abs().max() <= count * 2.0**-37 + rounding
    whole = sum(values[node]["whole"].numpy().astype(object) for node in left)
    assert np.abs((sums.values["whole"].numpy() - whole) / 2.0**50).max() < 1e-14


def test_too_large_numbers_and_too_few_clients_have_no_sum() -> None:
    values = random_values(4)
    next(iter(values.values()))["float"][0, 0, 0] = 2.0**21
    with pytest.raises(DataError, match="not below 2"):
        Nodes(values, {}).sum()
    few = Nodes(random_values(2), {}).sum()
    assert few.values == {} and all("at least 3" in reason for reason in few.failed.values())


@pytest.mark.parametrize("stage", ["setup", "share_keys", "collect_masked_vectors", "unmask"])
def test_a_reply_that_is_none_is_left_out(stage: str) -> None:
    values = random_values(7)
    bad = list(values)[3]
    nodes = Nodes(values, {})

    def empty(now: str, node: int, content: RecordDict) -> None:
        if now == stage and node == bad:
            content.config_records[CONFIG].clear()

    nodes.change = empty
    sums = nodes.sum()
    left = set(values) - ({bad} if stage != "unmask" else set())
    assert sums.nodes == left
    assert all("not one of SecAgg+" in reason for reason in sums.failed.values())
    exact = torch.stack([values[node]["float"] for node in left]).sum(0)
    assert (sums.values["float"] - exact).abs().max() < 1e-8


def test_other_shapes_than_most_are_left_out() -> None:
    values = random_values(7)
    odd = list(values)[2]
    values[odd]["float"] = values[odd]["float"][:, :2]
    sums = Nodes(values, {}).sum()
    assert sums.nodes == set(values) - {odd} and "unlike" in sums.failed[odd]


# What is refused


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ({"rule": "adafed"}, "aaggff-s.*term"),
        ({"client": {"name": "scaffold"}}, "needs each reply"),
        (TREES | {"rule": "adafed"}, "aaggff-s.*term"),
        (
            TREES | {"algorithm": {"name": "boosting", "secure": True, "personal": "client"}},
            "leave personal out",
        ),
        (TREES | {"client": {"name": "choice"}, "validation": 0.2}, "collects each client's"),
        ({"client": {"name": "choice"}, "validation": 0.2}, "collects each client's reply"),
    ],
)
def test_what_needs_single_replies_is_refused(parts: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        job_from_experiment(experiment(**parts))


def asked(stage: str, **config: Any) -> Message:
    content = RecordDict({CONFIG: ConfigRecord({**config, "stage": stage})})
    return Message(content, 1, "train")


def test_a_node_answers_only_what_hides_its_numbers() -> None:
    nodes = Nodes(random_values(3), {})  # makes messages possible
    (context, *_), (values, *_) = nodes.contexts.values(), nodes.values.values()
    with pytest.raises(DataError, match="same experiment"):
        answer_masked(Message(RecordDict(), 1, "train"), context, lambda: values)
    for weaker in ({"threshold": 1}, {"mod_range": 2}, {"sample_num": 2}):
        with pytest.raises(DataError, match="settings of secure sums"):
            answer_masked(asked("setup", **(secure_settings(5) | weaker)), context, lambda: values)
    message = asked("unmask", active_nids=[1, 2, 3], dead_nids=[3])
    with pytest.raises(DataError, match="both keys"):
        answer_masked(message, context, lambda: values)


def test_weight_that_is_nearly_one_clients_is_warned_of(tmp_path: Path) -> None:
    given = experiment(rule="afl(lr=1000)", rounds=2)
    *_, last = rounds.run(job_from_experiment(given), out=tmp_path / "run")
    assert max(last.weights.values()) > 0.9
    assert any("the sum shows its update" in warning for warning in last.warnings)
