"""Processes of torchrun give the bytes of the simulator, and end with a clear message.

The simulator is the oracle: it knows nothing of ranks.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import commonweal
from commonweal.base.errors import ConfigError
from commonweal.cli import app
from commonweal.config import catalog
from commonweal.config.experiment import Experiment
from commonweal.engines import simulator, wire
from commonweal.engines.ranks import shares
from commonweal.training import evaluation
from rank_program import run_case, small_groups
from run_helpers import contents

PROGRAM = Path(__file__).parents[1] / "rank_program.py"
PATIENCE = 240  # seconds until processes that wait for each other are ended

Case = dict[str, Any]


def case(name: str, **parts: Any) -> Case:
    return {"name": name, **parts}


METHODS = [
    case(f"{rule}-{client}", rule=rule, client={"name": client})
    for rule in ("aaggff-s", "adafed")
    for client in ("sgd", "ditto", "scaffold")
]
BOOSTING = {"name": "boosting", "personal": "client", "min_rows": 3, "sample_rows": 0.9}
PROTOCOLS = [
    case("fine-tune", client={"name": "fine-tune"}),
    case("blend", client={"name": "blend"}, validation=0.3),
    case("drfa", algorithm="drfa", client={"name": "sgd"}, cohort=3),
    case("two-phase", algorithm="two-phase", rule="afl"),
    case("grouped", rule={"name": "grouped", "domains": 2, "rule": "afl"}),
    case("fedbn", model="norm", client={"name": "fedbn"}),
    case("cnn", model="cnn", client={"name": "apfl"}, vectorize="auto"),
    case("boosting", model="trees", algorithm=BOOSTING, rule="afl", cohort=4),
    case("one-client", cohort=1),
    case("poisson", sampler={"name": "poisson"}, cohort=1, rounds=6),
    case("poisoned", poisoned=True, client={"name": "sgd", "epochs": 4}),
    case("clipped", channels=[{"name": "clip", "norm": 0.5}]),
]


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same small groups in this process, and one thread."""
    for module_, name in ((simulator, "CHUNK"), (simulator, "BUDGET"), (evaluation, "PASS")):
        monkeypatch.setattr(module_, name, vars(module_)[name])  # restored afterwards
    small_groups()


def launch(folder: Path, cases: list[Case], ranks: int = 2) -> subprocess.CompletedProcess[str]:
    """Run cases on some ranks of this machine."""
    path = folder / "cases.json"
    path.write_text(json.dumps(cases))
    start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return subprocess.run(
        [sys.executable, *start, str(PROGRAM), str(path)],
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def _environment() -> dict[str, str]:
    """One thread for each process, with these tests and the package."""
    paths = [str(PROGRAM.parent), str(Path(commonweal.__file__).parents[1])]
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}


def results(folder: Path, rank: int) -> dict[str, Any]:
    """What a rank says about each case: its rounds, or an error."""
    read: dict[str, Any] = json.loads((folder / f"cases.{rank}").read_text())
    return read


def compare(folder: Path, cases: list[Case]) -> None:
    """Compare the files of each case with those of the simulator."""
    for each in cases:
        name = each["name"]
        run_case(each, "simulator", folder / "one" / name)
        expected, given = contents(folder / "one" / name), contents(folder / "ranks" / name)
        facts = json.loads(given.pop("run.json"))
        assert facts["engine"] == "torchrun" and facts["ranks"] > 1
        del expected["run.json"]
        assert given == expected, name


@pytest.mark.filterwarnings("ignore")
def test_two_ranks_write_the_simulators_bytes(tmp_path: Path, groups: None) -> None:
    """Requests, states, evaluations and failures.

    On the way nothing is unpickled, and rank 0 holds one answer at a time (`rank_program`).
    """
    cases = [*METHODS, *PROTOCOLS]
    ended = launch(tmp_path, [*cases, case("row", row=True), case("after")])
    assert ended.returncode == 0, ended.stderr
    # gloo's threads have ended: otherwise one process in some dozens aborts at its exit.
    assert [(tmp_path / f"cases.left{rank}").read_text() for rank in (0, 1)] == ["True", "True"]
    compare(tmp_path, [*cases, case("after")])
    dropped = json.loads((tmp_path / "one/poisoned/rounds.jsonl").read_text().split("\n")[0])
    assert list(dropped["dropped"]) == ["c"]
    led, other = results(tmp_path, 0), results(tmp_path, 1)
    assert led["after"] == [1, 2, 3] and other["after"] == []
    assert "rank 1" in led["row"] and "other samples" in led["row"]
    assert led["row"].startswith("DataError") and not (tmp_path / "ranks" / "row").exists()


@pytest.mark.filterwarnings("ignore")
def test_a_killed_rank_ends_the_run_which_the_simulator_resumes(
    tmp_path: Path, groups: None
) -> None:
    killed = case("killed", kill=1, rounds=5, rule="aaggff-s", client={"name": "ditto"})
    ended = launch(tmp_path, [killed])
    assert ended.returncode != 0
    message = results(tmp_path, 0)["killed"]
    assert message.startswith("RankError: rank 1 on") and "in round 3" in message
    folder = tmp_path / "ranks" / "killed"
    assert run_case(killed, "simulator", folder, resume=True) == [3, 4, 5]
    compare(tmp_path, [killed])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_and_simulator_resume_each_others_runs(
    tmp_path: Path, groups: None, rank: int
) -> None:
    killed = case("killed", kill=rank, rounds=5, rule="aaggff-s", client={"name": "ditto"})
    launch(tmp_path, [killed])
    unbroken = killed | {"kill": None}
    begun = tmp_path / "ranks" / "killed"
    shutil.copytree(begun, tmp_path / "ranks" / "again")
    run_case(unbroken, "simulator", begun, resume=True)
    launch(tmp_path, [unbroken | {"name": "again"}], ranks=3)
    compare(tmp_path, [unbroken, unbroken | {"name": "again"}])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_all_rules_on_three_ranks(tmp_path: Path, groups: None) -> None:
    own = {"excess", "grouped", "guarded", "directions"}  # that need parameters, or a package
    cases = []
    for rule in sorted(set(catalog.entries("rules")) - own):
        for client in ("sgd", "ditto", "scaffold"):
            cases.append(case(f"{rule}-{client}", rule=rule, client={"name": client}))
    ended = launch(tmp_path, [*cases, *PROTOCOLS], ranks=3)
    assert ended.returncode == 0, ended.stderr
    compare(tmp_path, [*cases, *PROTOCOLS])


def test_too_little_memory_is_not_taken_for_a_lost_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads that another process is gone looks at the wrong machine."""
    monkeypatch.setattr("torch.distributed.recv", lambda data, rank: data.fill_(1 << 60))
    with pytest.raises(RuntimeError, match="memory"):
        wire.receive(1)


def test_it_needs_torchrun() -> None:
    with pytest.raises(ConfigError, match="torchrun --nproc-per-node"):
        run_case(case("alone"), "torchrun", Path("nowhere"))


@given(st.lists(st.integers(0, 1000), max_size=40), st.integers(1, 9))
def test_shares_are_a_partition_with_bounded_parts(sizes: list[int], ranks: int) -> None:
    parts = shares(sizes, ranks)
    assert len(parts) == ranks
    assert sorted(k for part in parts for k in part) == list(range(len(sizes)))
    most = max(sum(sizes[k] for k in part) for part in parts)
    assert most <= sum(sizes) / ranks + max(sizes, default=0)


@pytest.mark.parametrize("command", [["compare", "vowel"], ["tune", "vowel"], ["choose", "runs"]])
def test_several_runs_are_not_divided_by_torchrun(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "started by torchrun")
    ended = CliRunner().invoke(app, command)
    assert isinstance(ended.exception, ConfigError)
    assert "--jobs" in str(ended.exception) and "--shard" in str(ended.exception)


def test_a_comparison_with_the_engine_of_ranks_names_the_options_instead() -> None:
    with pytest.raises(ConfigError, match=r"--jobs N on one machine, or with compare --shard"):
        commonweal.compare(Experiment(dataset="vowel", engine="torchrun", rounds=1))
