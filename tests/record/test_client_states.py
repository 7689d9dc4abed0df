"""Clients' states: in memory, in files, through checkpoints and kills, always the same values."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from commonweal.base.errors import RunError
from commonweal.base.tensors import State, flatten
from commonweal.engines.simulator import Simulator
from commonweal.jobs.job import Job
from commonweal.jobs.reopening import reopen
from commonweal.jobs.rounds import run
from commonweal.record.checkpoint import read_checkpoint, write_checkpoint
from commonweal.record.checksums import to_bytes
from commonweal.record.client_states import ClientStates
from commonweal.training.client_state import ClientState
from run_helpers import contents, federation, job, stop, task

CLIENT = {"name": "ditto", "epochs": 2, "batch": 5}

LABELS = torch.arange(10)  # 80 bytes


def state(value: float) -> ClientState:
    """A state of 404 bytes."""
    memory = {"a": torch.tensor([float(value)])}
    return ClientState({"own": torch.full((80,), float(value))}, {1: memory}, {"labels": LABELS})


def same(a: ClientState, b: ClientState) -> bool:
    ours, others = (flatten(state.saved()) for state in (a, b))
    return set(ours) == set(others) and all(torch.equal(ours[n], others[n]) for n in ours)


@pytest.mark.parametrize("memory", [0, 404, 1000, 1 << 20])
def test_states_come_back_whatever_the_budget(memory: int) -> None:
    states = ClientStates(10, memory)
    for round, clients in enumerate(([3, 1, 7], [7, 2], [1, 3, 7]), 1):
        for i in clients:
            states.put(i, state(10 * i + round), round)
    assert list(states) == [1, 2, 3, 7] and len(states) == 4 and 5 not in states
    assert states.get(5) is None
    for i, last in {1: 3, 2: 2, 3: 3, 7: 3}.items():
        assert same(states[i], state(10 * i + last))
    states.put(1, state(14), 4)  # another round begins: the states of the last one are stored
    files = list(states.folder.glob("*")) if states.folder else []
    assert len(files) == 4 - min(4, memory // 404)


def test_a_temporary_folder_is_deleted_with_its_states() -> None:
    states = ClientStates(2, memory=0)
    states.put(0, state(1), 1)
    states.save(1)
    folder = states.folder
    assert folder is not None and folder.exists()
    del states
    assert not folder.exists()


@pytest.mark.parametrize("memory", [0, 500, 1 << 20])
def test_large_states_are_saved_where_they_changed_and_survive_a_kill(
    memory: int, tmp_path: Path
) -> None:
    states = ClientStates(10, memory, inside=0)
    states.restore({}, tmp_path)
    for i in range(4):
        states.put(i, state(i), 1)
    first = states.save(1)
    states.confirm()
    written = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*")}
    assert len(written) == 4
    states.put(2, state(20), 2)
    states.put(5, state(50), 2)
    second = states.save(2)  # and now the process is killed, before the checkpoint is written
    assert set(tmp_path.glob("*")) - set(written) == {
        tmp_path / "000002-000002.safetensors",
        tmp_path / "000005-000002.safetensors",
    }
    assert all(path.stat().st_mtime_ns == then for path, then in written.items())
    again = ClientStates(10, memory, inside=0)
    again.restore(first, tmp_path, resume=False)
    assert list(again) == [0, 1, 2, 3] and all(same(again[i], state(i)) for i in range(4))
    states.confirm()  # if it had been written instead
    later = ClientStates(10, memory, inside=0)
    later.restore(second, tmp_path)
    assert same(later[2], state(20)) and same(later[5], state(50)) and same(later[0], state(0))
    assert not (tmp_path / "000002-000001.safetensors").exists()


def test_files_that_a_checkpoint_does_not_name_are_removed(tmp_path: Path) -> None:
    states = ClientStates(10, 0, inside=0)
    states.restore({}, tmp_path)
    states.put(0, state(0), 1)
    saved = states.save(1)
    (tmp_path / "000000-000002.safetensors").write_bytes(b"half a state")
    (tmp_path / "000003-000002.safetensors.part").write_bytes(b"half a state")
    again = ClientStates(10, 0, inside=0)
    again.restore(saved, tmp_path, resume=False)
    assert len(list(tmp_path.glob("*"))) == 3  # looking at a run deletes nothing
    again.restore(saved, tmp_path)
    assert [path.name for path in tmp_path.glob("*")] == ["000000-000001.safetensors"]


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"000003-000002\.safetensors' is missing"):
        ClientStates(10).restore({"client_rounds": torch.tensor([[3, 2]])}, tmp_path)


def test_a_failed_write_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "states").write_text("in the way")
    states = ClientStates(10, 0)
    states.restore({}, tmp_path / "states")
    states.put(0, state(0), 1)
    with pytest.raises(RunError, match="cannot write"):
        states.save(1)


def test_a_round_after_the_checkpoint_is_forgotten() -> None:
    states = ClientStates(10)
    states.put(0, state(1), 1)
    states.put(0, state(2), 2)
    assert same(states[0], state(2))
    saved = states.save(1)["client_states"]
    assert same(ClientState.read(saved["0"]), state(1)) and same(states[0], state(1))


def test_clearing_forgets_all_states(tmp_path: Path) -> None:
    states = ClientStates(10, 0, inside=0)
    states.restore({}, tmp_path)
    states.put(3, state(1), 1)
    states.save(1)
    states.reset()
    assert list(states) == [] and 3 not in states and states.folder is None
    assert states.save(0) == {"client_states": {}}


def personal_job(memory: int = 1 << 30, inside: int = 1 << 26) -> Job:
    f = federation(5)
    engine = Simulator(f)
    engine.states = ClientStates(f.clients, memory, inside)
    return job(task(), f, engine, client=CLIENT, rounds=5, cohort=2)


@pytest.mark.parametrize(("memory", "inside"), [(0, 1 << 26), (0, 0), (40, 0), (1 << 30, 0)])
def test_a_run_ends_the_same_wherever_states_are(memory: int, inside: int, tmp_path: Path) -> None:
    *_, last = run(personal_job())
    *_, whole = run(personal_job(memory, inside), out=tmp_path / "whole")
    assert torch.equal(whole.state["w"], last.state["w"])
    assert last.evaluation is not None and last.evaluation.personal is not None
    assert whole.evaluation is not None and whole.evaluation.personal is not None
    assert torch.equal(whole.evaluation.personal.score, last.evaluation.personal.score)
    for _ in range(3):
        rounds = run(personal_job(memory, inside), out=tmp_path / "part", resume=True)
        next(rounds)
        stop(rounds)
    list(run(personal_job(memory, inside), out=tmp_path / "part", resume=True))
    assert contents(tmp_path / "part") == contents(tmp_path / "whole")
    assert (tmp_path / "whole" / "client_states").exists()


def test_small_states_are_in_the_checkpoint(tmp_path: Path) -> None:
    *_, last = run(personal_job(), out=tmp_path / "run")
    assert not (tmp_path / "run" / "client_states").exists()
    again, server = reopen(tmp_path / "run", task(), federation(5))
    assert torch.equal(server["w"], last.state["w"])
    assert last.job.local is not None and again.local is not None
    before, after = last.job.local.states, again.local.states
    assert set(before) == set(after) and len(before) > 2
    assert all(same(before[client], after[client]) for client in before)


def test_the_same_job_starts_afresh_when_it_is_run_again() -> None:
    """Its engine still holds the states of the run before."""
    twice = personal_job()
    *_, first = run(twice)
    *_, second = run(twice)
    assert torch.equal(first.state["w"], second.state["w"])
    assert first.evaluation is not None and first.evaluation.personal is not None
    assert second.evaluation is not None and second.evaluation.personal is not None
    assert torch.equal(first.evaluation.personal.losses, second.evaluation.personal.losses)


def test_reopening_a_run_deletes_nothing(tmp_path: Path) -> None:
    rounds = run(personal_job(0, 0), out=tmp_path / "run")
    next(rounds)
    stop(rounds)
    stray = tmp_path / "run" / "client_states" / "000001-000009.safetensors"
    stray.write_bytes(b"of a round after the checkpoint, as another process may be writing it")
    reopen(tmp_path / "run", task(), federation(5))
    assert stray.exists()


def rewritten(folder: Path, change: Callable[[State], State]) -> None:
    """Change every client's state in a run's checkpoint."""
    saved = read_checkpoint(folder)
    assert saved is not None
    states = {name: change(state) for name, state in saved.state["client_states"].items()}
    whole = saved.state | {"client_states": states}
    write_checkpoint(folder, saved.last, whole, saved.experiment, saved.rounds)


def test_states_of_version_0_2_are_read(tmp_path: Path) -> None:
    """There they were the tensors of the client method, without parts."""
    *_, last = run(personal_job(), out=tmp_path / "run")
    rewritten(tmp_path / "run", lambda state: state["method"])
    again, _ = reopen(tmp_path / "run", task(), federation(5))
    assert last.job.local is not None and again.local is not None
    assert all(same(again.local.states[i], own) for i, own in last.job.local.states.items())


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state["method"] | {"channel-0-residual": torch.zeros(3)},  # as 0.2 had them
        lambda state: state | {"labels": {"0": torch.zeros(3)}},
        lambda state: {"method": {name: value[:-1] for name, value in state["method"].items()}},
        lambda state: {"method": torch.zeros(3), "channels": {}},
    ],
)
def test_other_states_are_refused(change: Callable[[State], State], tmp_path: Path) -> None:
    list(run(personal_job(), out=tmp_path / "run"))
    rewritten(tmp_path / "run", change)
    with pytest.raises(RunError, match="does not fit this experiment"):
        reopen(tmp_path / "run", task(), federation(5))


@pytest.mark.parametrize("name", ["method/w", "/".join("a" * 30)])
def test_a_file_of_another_state_is_refused_when_it_is_read(tmp_path: Path, name: str) -> None:
    """Also one with a correct digest, of a client other than the first."""
    list(run(personal_job(0, 0), out=tmp_path / "run"))
    job, _ = reopen(tmp_path / "run", task(), federation(5))
    assert job.local is not None
    client = list(job.local.states)[1]
    (file,) = (tmp_path / "run" / "client_states").glob(f"{client:06d}-*")
    file.write_bytes(to_bytes({name: torch.zeros(3, 2)}, file=file.name))
    with pytest.raises(RunError, match=f"client_states/{client}|is not a state of a client"):
        job.local.states[client]
