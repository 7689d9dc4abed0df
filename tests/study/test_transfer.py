"""Clients' models on each other's samples, and what the others have without a client."""

import csv
from pathlib import Path

import numpy as np
import pytest

from command_helpers import Command, command  # noqa: F401
from commonweal.app.export.prediction import ClientModels
from commonweal.base.errors import ConfigError
from commonweal.config.experiment import Experiment
from commonweal.jobs.reopening import reopen
from commonweal.jobs.rounds import run
from commonweal.record.record import Record
from commonweal.study.interpolation import EndModels
from commonweal.study.transfer import transfer, without

SIZES = {"Ulm": 120, "Bonn": 120, "Cham": 120, "Damme": 120}
REVERSED = ("Cham", "Damme")  # their labels are the other way round


def write_table(path: Path, sizes: dict[str, int], reversed_: tuple[str, ...] = REVERSED) -> None:
    rng = np.random.default_rng(2)
    lines = ["site,a,b,c,d,died"]
    for site, size in sizes.items():
        sign = -1 if site in reversed_ else 1
        for _ in range(size):
            x = rng.normal(size=4)
            died = sign * 2 * x.sum() + rng.logistic() > 0
            lines.append(",".join([site, *(f"{v:.3f}" for v in x), ("no", "yes")[int(died)]]))
    path.write_text("\n".join(lines))


def finished(folder: Path, seed: int = 0, **more: object) -> Path:
    path = str(folder / "table.csv")
    dataset = {"name": "table", "path": path, "label": "died", "client": "site"}
    experiment = Experiment(
        **{"dataset": dataset, "model": "logistic", "seed": seed, "rounds": 6} | more
    )
    out = folder / f"run-{seed}"
    run(experiment, out=out).result()
    return out


def test_models_serve_their_own_group(tmp_path: Path) -> None:
    write_table(tmp_path / "table.csv", SIZES)
    local = {"name": "alone", "trees": False}
    runs = [finished(tmp_path, seed, client=local) for seed in (0, 1)]
    found = transfer(runs)
    group = np.array([name in REVERSED for name in found.names])
    same = group[:, None] == group
    assert found.table[same].min() > 0.7 and found.table[~same].max() < 0.3
    for client, name in enumerate(found.names):
        donor = found.best_donor(client)
        assert donor is not None and donor != client
        assert (found.names[donor] in REVERSED) == (name in REVERSED)
    # Another way to the same scores: the models that are exported, client by client.
    table = np.zeros_like(found.table)
    for folder in runs:
        job, state = reopen(folder)
        federation = EndModels(job, state).federation
        models = ClientModels(Record.read(folder))
        for k, name in enumerate(federation.names):
            module = models.of(name)
            for j in range(federation.clients):
                rows = federation.test.client(j)
                right = module(rows.x).argmax(1) == rows.y
                table[k, j] += float(right.double().mean()) / len(runs)
    np.testing.assert_allclose(found.table, table, atol=1e-9)


def test_a_client_that_all_others_need_is_named(tmp_path: Path) -> None:
    write_table(tmp_path / "table.csv", {"Ulm": 600, "Bonn": 40, "Cham": 40, "Damme": 40}, ())
    runs = [
        finished(tmp_path, seed, client={"name": "sgd", "lr": 0.02}, rounds=4, score="log-loss")
        for seed in range(5)
    ]
    started = []

    def train(plan: object) -> dict[Path, str]:
        for cell in plan:  # type: ignore[attr-defined]
            started.append(cell.folder)
            run(cell.experiment, out=cell.folder).result()
        return {}

    found = {absence.client: absence for absence in without(runs, ["Ulm", "Damme"], train)}
    assert len(started) == len(set(started)) == 10
    assert found["Ulm"].significant and found["Ulm"].loss > 0 and found["Ulm"].low > 0
    assert found["Ulm"].loss > found["Damme"].loss
    # The others' loss, from the tables of the runs.
    losses = []
    for seed, folder in enumerate(runs):
        before = Record.read(folder).clients()
        after = Record.read(folder.parent / f"run-{seed}-without" / "3").clients()
        assert after.names == before.names
        others = [k for k, name in enumerate(before.names) if name != "Ulm"]
        losses.append((after.evaluation.score - before.evaluation.score)[others].numpy())
    assert found["Ulm"].loss == pytest.approx(np.mean(losses), abs=0.02)


def test_the_command_writes_a_table_and_a_heat_map(command: Command) -> None:  # noqa: F811
    write_table(Path("table.csv"), SIZES)
    finished(Path(), client={"name": "alone", "trees": False}, rounds=2)
    done = command("transfer", "run-0", "-o", "t.csv", "--draw", "t.png", width=80)
    assert done.code == 0 and "Damme" in done.out and max(map(len, done.out.splitlines())) <= 80
    assert Path("t.png").read_bytes().startswith(b"\x89PNG")
    with Path("t.csv").open() as file:
        lines = list(csv.reader(file))
    found = transfer([Path("run-0")])
    assert [float(x) for x in lines[2][1:]] == found.table[1].tolist()
    done = command("transfer", "run-0", "--without", "Bonn", width=80)
    assert done.code == 0 and "Bonn" in done.out and "significant" in done.out


def test_wrong_runs_and_clients_raise(tmp_path: Path) -> None:
    write_table(tmp_path / "table.csv", SIZES)
    folder = finished(tmp_path, rounds=1)
    with pytest.raises(ConfigError, match="one model for all"):
        transfer([folder])
    with pytest.raises(ConfigError, match="did you mean 'Bonn'"):
        without([folder], ["Bonnn"], lambda plan: {})
