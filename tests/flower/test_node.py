"""What a server's messages can do to a node's files: nothing outside of its own folder."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'commonweal[flower]'")

from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from commonweal.base.errors import DataError
from commonweal.config.experiment import Experiment
from commonweal.flower import FlowerEngine, make_client_app
from commonweal.flower.app import job_of, open_node
from commonweal.flower.node import Node, RequestKey, folder_of
from commonweal.jobs import rounds
from flower_helpers import LocalGrid

GOOD = "0123456789abcdef"
GIVEN = Experiment(
    dataset="digits",
    partition={"name": "dirichlet", "clients": 3},
    rounds=1,
    client={"name": "ditto", "lr": 0.1, "batch": 16},
)


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    """A folder of the clinic next to those of the node; nothing in it may change."""
    folder = tmp_path / "clinic"
    folder.mkdir()
    (folder / "patients.csv").write_text("age\n1\n")
    yield folder
    assert [path.name for path in folder.iterdir()] == ["patients.csv"]
    assert (folder / "patients.csv").read_text() == "age\n1\n"


def node_in(folder: Path) -> Node:
    node = open_node(GIVEN, {"partition-id": 0, "state-dir": str(folder / "states")})
    (node.folder / GOOD).mkdir(parents=True)
    (node.folder / GOOD / "000000-000001.safetensors").write_bytes(b"a state")
    return node


def names(victim: Path) -> list[str]:
    return [
        str(victim),
        "../../clinic",
        "../../../" + str(victim),
        f"{GOOD}/../../../clinic",
        f"../{GOOD}",
        "..",
        ".",
        "",
        "/",
        "~",
        GOOD.upper(),
        GOOD[:-1],
        f"{GOOD}0",
        f"{GOOD}\n",
        f" {GOOD}",
        f"{GOOD}\0",
        "０１２３４５６７８９ａｂｃｄｅｆ",
        "..\\..\\clinic",
        "C:\\",
        "x" * 10_000,
    ]


def answer(node: Node, run: str) -> None:
    node.answer(node.schema, {}, RequestKey(run, 1, 0, 0, "test"), {})


USES: list[Callable[[Node, str], object]] = [
    lambda node, run: node.finish(run, keep=False),
    lambda node, run: node.finish(run, keep=True),
    lambda node, run: node.setting(run, None),
    lambda node, run: node.setting(run, {"name": "", "samples": 1}),
    answer,
]


def test_only_a_key_of_a_run_names_a_folder(tmp_path: Path, victim: Path) -> None:
    node = node_in(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    for run in names(victim):
        for use in USES:
            with pytest.raises(DataError, match="as a run"):
                use(node, run)
    (tmp_path / "states" / "0" / "sent.jsonl").unlink()  # the node's own list of refusals
    assert sorted(tmp_path.rglob("*")) == before


def test_a_link_in_the_place_of_a_run_is_not_followed(tmp_path: Path, victim: Path) -> None:
    node = node_in(tmp_path)
    for k, target in enumerate((victim, node.folder / GOOD, node.folder, Path("nowhere"))):
        run = f"{k:016x}"
        (node.folder / run).symlink_to(target)
        for keep in (True, False):
            with pytest.raises(DataError, match="no link"):
                node.finish(run, keep)
        with pytest.raises(DataError, match="no link"):
            node.setting(run, {"name": "", "samples": 1})
    assert (node.folder / GOOD / "000000-000001.safetensors").exists()


def test_a_run_that_is_over_is_deleted_and_no_other(tmp_path: Path) -> None:
    node = node_in(tmp_path)
    other = "f" * 16
    node.finish(other, keep=False)  # of which this node has nothing
    assert (node.folder / GOOD).exists()
    (node.folder / other).mkdir()
    node.finish(GOOD, keep=True)
    assert (node.folder / GOOD).exists()
    node.finish(GOOD, keep=False)
    assert [path.name for path in node.folder.iterdir()] == [other]


def test_the_folder_of_all_states_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "states").symlink_to(tmp_path / "disk")
    node = node_in(tmp_path)
    node.finish(GOOD, keep=False)
    assert not (node.folder / GOOD).exists()


def grid_of(folder: Path) -> LocalGrid:
    configs = [{"partition-id": k, "state-dir": str(folder / "states")} for k in range(3)]
    return LocalGrid(make_client_app(GIVEN), configs)


@pytest.mark.parametrize("run", ["/etc", "../../clinic", "..", ""])
def test_the_server_learns_why_a_run_is_refused(
    run: str,
    tmp_path: Path,
    victim: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = FlowerEngine(grid_of(tmp_path), nodes=3, timeout=0.2)
    monkeypatch.setattr(FlowerEngine, "_run", run)
    (done,) = rounds.run(job_of(GIVEN, engine))
    assert len(done.dropped) == 3
    assert all("a run is 16 of the digits" in reason for reason in done.dropped.values())
    with caplog.at_level(logging.WARNING, "flwr"):
        engine.finish(keep=False)
    problems = [line for line in caplog.messages if "may have kept its states" in line]
    assert len(problems) == 3 and all(f"named {run!r} as a run" in line for line in problems)


OTHER_TYPES: dict[str, dict[str, Any]] = {
    "a number": {"run": 5, "keep": False},
    "a list": {"run": [GOOD], "keep": False},
    "no bool": {"run": GOOD, "keep": "false"},
    "a number as bool": {"run": GOOD, "keep": 0},
    "no run": {"keep": False},
    "no keep": {"run": GOOD},
}


@pytest.mark.parametrize("case", OTHER_TYPES)
def test_a_message_of_other_types_deletes_nothing(case: str, tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    node = next(iter(grid.nodes))
    own = tmp_path / "states" / open_node(GIVEN, grid.nodes[node]).schema.name / GOOD
    own.mkdir(parents=True)
    content = RecordDict({"query": ConfigRecord({"purpose": "finish", **OTHER_TYPES[case]})})
    reply = grid.answer(Message(content, node, MessageType.QUERY))
    assert reply is not None and "the server did not say which run is over" in str(
        reply.error.reason
    )
    assert own.exists()


REQUESTS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "negative round": {"round": -1},
    "negative step": {"step": -5},
    "no number": {"saved": "x"},
    "bytes": {"run": [1.0]},
}


@pytest.mark.parametrize("case", REQUESTS)
def test_a_request_that_is_none_is_refused(case: str, tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    good: dict[str, Any] = {"run": GOOD, "round": 1, "step": 0, "saved": 0, "purpose": "train"}
    content = RecordDict()
    if REQUESTS[case]:
        content["request"] = ConfigRecord(good | REQUESTS[case])
    reply = grid.answer(Message(content, next(iter(grid.nodes)), MessageType.TRAIN))
    assert reply is not None and "the server sent no request of Commonweal" in str(
        reply.error.reason
    )
    assert not (tmp_path / "states").exists()


def test_the_configuration_of_a_run_chooses_no_files_of_a_node(
    tmp_path: Path, victim: Path
) -> None:
    """It is the server's: only the node's own configuration names files and clients."""
    grid = grid_of(tmp_path)
    for node, config in grid.nodes.items():
        grid.contexts[node].run_config = {
            "state-dir": str(victim),
            "data": str(victim / "patients.csv"),
            "client": "1",
        }
        del config["state-dir"]
        grid.contexts[node].node_config = config | {"state-dir": str(tmp_path / "states")}
    engine = FlowerEngine(grid, nodes=3, timeout=0.2)
    list(rounds.run(job_of(GIVEN, engine)))
    assert len(list((tmp_path / "states").iterdir())) == 3


def test_clients_of_any_name_have_a_folder_of_their_own(tmp_path: Path) -> None:
    states = tmp_path / "states"
    clients = ["a", "A b", "a/b", "..", ".", "", "...", "%2E", "ü" * 300, "ü" * 299, "/etc", "a\0"]
    folders = [folder_of(states, client) for client in clients]
    assert len(set(folders)) == len(clients)
    for folder in folders:
        (folder / GOOD).mkdir(parents=True)
        assert folder.resolve().parent == states.resolve()
    assert folder_of(states, "Ulm 2.0") == states / "Ulm%202.0"
