"""Every door, with data that changed before it: old models stay, old numbers are not shown as new.

Using a model needs its run's folder only. Whoever continues, repeats or compares runs is told what
changed.
"""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import commonweal
from command_helpers import Command
from commonweal.base.errors import CommonwealError, RunError
from commonweal.data.federation import Federation
from commonweal.record.record import Record
from commonweal.record.removal import remove_run
from commonweal.study.comparison import Comparison
from commonweal.task.task import Task

ROWS = 120
SETTINGS = ("label=died", "dataset.client=hospital", "model=logistic", "rounds=2", "client.lr=0.3")
RUN = ("run", "table", "path=t.csv", *SETTINGS, "client=ditto")
COMPARE = ("compare", "table", "path=t.csv", *SETTINGS, "--seeds", "2", "--no-baselines")
PERSONAL = (
    "alone",
    "apfl",
    "blend",
    "choice",
    "ditto",
    "fedbabu",
    "fedper",
    "fedrep",
    "fine-tune",
    "lg-fedavg",
    "pfedme",
    "superfed-mm",
)
Change = Callable[[Path], object]


def write_table(path: Path, seed: int = 0, hospitals: str = "BCD", flip: bool = False) -> None:
    draw = random.Random(seed)
    lines = ["hospital,age,ward,weight,died"]
    for k in range(ROWS):
        age, weight = draw.gauss(60, 15), draw.gauss(75, 9)
        died = (age > 60) ^ flip ^ (hospitals[k % len(hospitals)] == "C")
        ward = draw.choice(["eyes", "heart"])
        line = f"{hospitals[k % len(hospitals)]},{age:.1f},{ward},{weight:.1f},"
        lines.append(line + ("yes" if died else "no"))
    path.write_text("\n".join(lines) + "\n")


def append(path: Path, row: str, count: int = 8) -> None:
    path.write_text(path.read_text() + f"{row}\n" * count)


def rename(path: Path) -> None:
    path.write_text(path.read_text().replace("age,ward,weight", "weight,ward,age", 1))


CHANGES: dict[str, tuple[Change, str]] = {
    "rows appended": (lambda t: append(t, "C,50.0,eyes,70.0,no"), "128 now"),
    "a client first": (lambda t: append(t, "A,50.0,eyes,70.0,no"), "new clients: 'A'"),
    "a client gone": (lambda t: write_table(t, 0, "BC"), "clients gone: 'D'"),
    "a category added": (lambda t: append(t, "C,50.0,feet,70.0,no", 1), "'t.csv' was changed"),
    "replaced": (lambda t: write_table(t, 5), "'t.csv' was changed; the numbers of rows, the"),
    "columns renamed": (rename, "'t.csv' was changed"),
    "a column gone": (
        lambda t: t.write_text(t.read_text().replace("weight", "height", 1)),
        "columns gone: 'weight'; new columns: 'height'",
    ),
    "moved": (lambda t: shutil.move(t, t.with_name("moved.csv")), "t.csv' is gone"),
    "deleted": (lambda t: t.unlink(), "t.csv' is gone"),
}
changed = pytest.mark.parametrize(("change", "told"), CHANGES.values(), ids=CHANGES)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "t.csv"
    write_table(path)
    write_table(tmp_path / "new.csv", seed=9, hospitals="DCBX")
    return path


# predict and export


@pytest.mark.parametrize("method", PERSONAL)
def test_predictions_need_the_folder_only(command: Command, table: Path, method: str) -> None:
    call = (*RUN[:-1], "model=mlp", f"client={method}", "validation=0.2", "--out", "r", "-q")
    assert command(*call).code == 0
    before = command("predict", "r", "new.csv")
    assert before.code == 0
    assert "by the global model, as 'X' took no part in training" in before.err
    original = table.read_bytes()
    for change, _ in CHANGES.values():
        table.write_bytes(original)
        change(table)
        after = command("predict", "r", "new.csv")
        assert (after.code, after.out) == (0, before.out)


def test_models_differ_by_client(command: Command, table: Path) -> None:
    command(*RUN, "--out", "r", "-q")
    outputs = {command("predict", "r", "new.csv", "--client", name).out for name in "BCD"}
    assert len(outputs) == 3  # so that equal predictions above are by the right models
    wrong = command("predict", "r", "new.csv", "--client", "X")
    assert wrong.code == 2 and "'X' is not in this run" in wrong.err


def test_exported_models_are_those_of_the_clients(command: Command, table: Path) -> None:
    command(*RUN, "--out", "r", "-q")
    command("export", "r", "--to", "torch", "-o", "before")
    append(table, "A,50.0,eyes,70.0,no")
    assert command("export", "r", "--to", "torch", "-o", "after").code == 0
    assert command("export", "r", "--to", "card").code == 0
    x = torch.tensor(np.random.default_rng(0).normal(size=(5, 4)), dtype=torch.float32)
    for name in ("model.pt2", "clients/0000.pt2", "clients/0001.pt2", "clients/0002.pt2"):
        one, other = (
            torch.export.load(str(Path(folder) / name)).module() for folder in ("before", "after")
        )
        assert torch.equal(one(x), other(x))
    assert Path("before/clients.json").read_bytes() == Path("after/clients.json").read_bytes()


@pytest.mark.parametrize(
    "setting",
    [
        ("rule=grouped(rule=afl,domains=2)", "client=ditto"),
        ("algorithm=two-phase", "client=fine-tune"),
        ("server=adam", "client=apfl", "threshold=f1", "validation=0.2"),
        ("channels=clip(norm=1.0)", "client=ditto", "cohort=2"),
        ("rule=aaggff-s", "client=ditto", "holdout_clients=0.3"),
    ],
)
def test_other_parts_need_the_folder_only(
    command: Command, table: Path, setting: tuple[str, ...]
) -> None:
    made = command(*RUN[:-1], *setting, "--out", "r", "-q")
    assert made.code == 0, made.err
    before = command("predict", "r", "new.csv").out
    table.unlink()
    after = command("predict", "r", "new.csv")
    assert (after.code, after.out) == (0, before)


def test_a_run_that_rules_read_may_be_gone(command: Command, table: Path) -> None:
    local = (*RUN[:-1], "client=alone", "--out", "local", "-q")
    assert command(*local).code == 0
    made = command(*RUN, "rule=excess(rule=afl,path=local)", "--out", "r", "-q")
    assert made.code == 0, made.err
    before = command("predict", "r", "new.csv").out
    shutil.rmtree("local")
    assert command("predict", "r", "new.csv").out == before


def test_chosen_models_need_the_folder_only(command: Command, table: Path) -> None:
    base = (*COMPARE[:-1], "validation=0.2", "--rules", "fedavg", "--vary", "client=sgd,fine-tune")
    assert command(*base, "--out", "r", "-q").code == 0
    assert command("choose", "r", "--how", "likely", "-q").code == 0
    before = command("predict", "r", "new.csv", "--choice")
    assert before.code == 0
    assert "as 'X' took no part in training" in before.err
    original = table.read_bytes()
    for change, _ in CHANGES.values():
        table.write_bytes(original)
        change(table)
        after = command("predict", "r", "new.csv", "--choice")
        assert (after.code, after.out) == (0, before.out)
    table.write_bytes(original)
    write_table(table, seed=5)
    refused = command("choose", "r", "--how", "likely", "-q")
    assert refused.code != 0 and "other data ('t.csv' was changed" in refused.err
    assert command(*base, "--out", "r", "-q", "--force").code == 0
    stale = command("predict", "r", "new.csv", "--choice")
    assert stale.code != 0 and "choose again" in stale.err


# run --resume, reopen


@changed
def test_a_stopped_run_is_not_continued_on_other_data(
    command: Command, table: Path, change: Change, told: str
) -> None:
    command(*RUN, "--out", "r", "-q")
    change(table)
    before = Path("r/model.safetensors").read_bytes()
    for rounds in ("rounds=2", "rounds=4"):
        refused = command(*RUN, rounds, "--out", "r", "-q", "--resume")
        assert refused.code != 0
        assert told in refused.err or "there is no file" in refused.err
    with pytest.raises(CommonwealError, match=r"other data|there is no file"):
        commonweal.reopen("r")
    assert Path("r/model.safetensors").read_bytes() == before
    if table.exists() and "weight" in table.read_text():
        assert command(*RUN, "--out", "r", "-q").code != 0
        assert command(*RUN, "--out", "r", "-q", "--force").code == 0
        assert command("verify", "r").code == 0
        assert command(*RUN, "--out", "r", "-q", "--resume").code == 0


def test_a_run_that_was_killed_at_the_start_begins_again(command: Command, table: Path) -> None:
    command(*RUN, "--out", "r", "-q")
    for path in Path("r").iterdir():
        if path.name not in ("experiment.toml", "run.json", "data.json"):
            path.unlink()
    write_table(table, seed=5)
    assert command(*RUN, "--out", "r", "-q", "--resume").code == 0
    command(*RUN, "--out", "other", "-q")
    for name in ("data.json", "model.safetensors", "run.json"):
        assert Path("r", name).read_bytes() == Path("other", name).read_bytes()


def test_what_is_not_of_a_run_is_not_deleted(command: Command, table: Path) -> None:
    command(*RUN, "--out", "r", "-q")
    Path("r/mine.txt").write_text("notes")
    assert command(*RUN, "--out", "r", "-q", "--force").code == 0
    assert Path("r/mine.txt").read_text() == "notes"
    assert remove_run(Path("r"))
    assert [path.name for path in Path("r").iterdir()] == ["mine.txt"]
    assert not remove_run(Path("r"))
    assert command(*RUN, "--out", "r", "-q", "--force").code != 0  # it holds no run


# compare, fit, tune, report


@changed
def test_a_comparison_shows_no_old_numbers(
    command: Command, table: Path, change: Change, told: str
) -> None:
    first = command(*COMPARE, "--rules", "fedavg", "--out", "r")
    assert first.code == 0
    assert command(*COMPARE, "--rules", "fedavg", "--out", "r").out == first.out
    change(table)
    for rules in ("fedavg", "fedavg,term"):
        refused = command(*COMPARE, "--rules", rules, "--out", "r")
        assert refused.code != 0 and not refused.out
        assert told in refused.err or "there is no file" in refused.err
    assert not Path("r/term").exists()
    shown = command("show", "r")  # the folder still says what it said
    assert shown.code == 0
    if not table.exists():  # nothing is deleted that cannot be made again
        refused = command(*COMPARE, "--rules", "fedavg", "--out", "r", "--force")
        assert refused.code != 0 and "there is no file" in refused.err
        assert command("show", "r").out == shown.out
    else:
        again = command(*COMPARE, "--rules", "fedavg,term", "--out", "r", "--force")
        new = command(*COMPARE, "--rules", "fedavg,term", "--out", "new")
        assert again.code == 0 and again.out == new.out


def test_worker_processes_show_no_old_numbers(command: Command, table: Path) -> None:
    command(*COMPARE, "--rules", "fedavg", "--out", "r")
    write_table(table, seed=5)
    refused = command(*COMPARE, "--rules", "fedavg,term", "--out", "r", "--jobs", "2")
    assert refused.code != 0 and "'t.csv' was changed" in refused.err


def test_an_old_time_of_change_is_no_disguise(command: Command, table: Path) -> None:
    import os

    command(*COMPARE, "--rules", "fedavg", "--out", "r")
    status = table.stat()
    text = table.read_text()
    table.write_text(text[:-3] + ("es\n" if text[-3:] != "es\n" else "ex\n"))
    os.utime(table, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert table.stat().st_size == status.st_size
    refused = command(*COMPARE, "--rules", "fedavg", "--out", "r")
    assert refused.code != 0 and "'t.csv' was changed" in refused.err


def test_a_table_never_shows_runs_of_different_data(command: Command, table: Path) -> None:
    command(*RUN, "--out", "runs/one", "-q")
    write_table(table, seed=5)
    command(*RUN, "rule=term", "--out", "runs/two", "-q")
    refused = command("report", "runs", "-o", "report.html")
    assert refused.code != 0 and "are runs of different data ('t.csv' was changed" in refused.err
    assert not Path("report.html").exists()
    with pytest.raises(RunError, match="different data"):
        Comparison.in_folders(["runs"])
    assert len(federations(Path("runs"))) == 2


def test_a_moved_table_is_the_same_data(command: Command, table: Path) -> None:
    command(*RUN, "--out", "runs/one", "-q")
    Path("there").mkdir()
    shutil.move(table, "there/other.csv")
    moved = ("run", "table", "path=there/other.csv", *SETTINGS, "client=ditto", "rule=term")
    assert command(*moved, "--out", "runs/two", "-q").code == 0
    assert command("report", "runs", "-o", "report.html").code == 0
    assert len(federations(Path("runs"))) == 1
    shutil.rmtree("there")
    assert command("report", "runs", "-o", "again.html").code == 0


def federations(folder: Path) -> list[object]:
    from commonweal.app.ui import runs

    return list(runs.federations(runs.scan(folder)))


def test_fit_keeps_tables_apart(command: Command, tmp_path: Path) -> None:
    fit = ("rounds=2", "--seeds", "2", "--client", "hospital", "--label", "died", "-q")
    for folder, hospitals in (("a", "BC"), ("b", "XY")):
        Path(folder).mkdir()
        write_table(Path(folder, "t.csv"), hospitals=hospitals)
        write_table(Path(folder, "t.2024.csv"), hospitals=hospitals)
    assert command("fit", "a/t.csv", *fit).code == 0
    report = Path("runs/t-fit/report.html").read_bytes()
    refused = command("fit", "b/t.csv", *fit)
    assert refused.code != 0
    assert "the models of another table" in refused.err and "a/t.csv" in refused.err
    missing = command("fit", "missing/t.csv", *fit)
    assert missing.code != 0 and "there is no file" in missing.err
    assert Path("runs/t-fit/report.html").read_bytes() == report
    assert command("fit", "a/t.2024.csv", *fit).code == 0
    assert Path("runs/t.2024-fit/choice.json").exists()
    append(Path("a/t.csv"), "A,50.0,eyes,70.0,no")
    refused = command("fit", "a/t.csv", *fit)
    assert refused.code != 0 and "new clients: 'A'" in refused.err
    assert Path("runs/t-fit/report.html").read_bytes() == report
    assert command("fit", "a/t.csv", *fit, "--force").code == 0
    assert "A" in Record.read("runs/t-fit/alone/seed-0").clients().names
    assert command("fit", "b/t.csv", *fit, "--force").code == 0
    assert Record.read("runs/t-fit/alone/seed-0").clients().names == ("X", "Y")
    Path("b/t.csv").unlink()
    assert command("fit", "b/t.csv", *fit).code != 0


def test_tuning_is_not_continued_on_other_data(command: Command, table: Path) -> None:
    options = ("--rules", "qfedavg", "--seeds", "1", "--jobs", "1", "--out", "tuned", "-q")
    tune = ("tune", "table", "path=t.csv", *SETTINGS, *options)
    assert command(*tune).code == 0
    assert command(*tune).code == 0
    append(table, "A,50.0,eyes,70.0,no")
    refused = command(*tune)
    assert refused.code != 0 and "new clients: 'A'" in refused.err
    assert command(*tune, "--force").code == 0
    assert command(*tune).code == 0


# Python


def arrays(rows: int = 60, seed: int = 0, clients: str = "BCD") -> Federation:
    rng = np.random.default_rng(seed)
    owner = [clients[k % len(clients)] for k in range(rows)]
    return Federation.from_arrays(rng.normal(size=(rows, 3)), rng.integers(0, 2, rows), owner)


def task() -> Task:
    torch.manual_seed(0)
    return Task(torch.nn.Linear(3, 2))


OTHERS = {
    "values": (lambda: arrays(seed=1), "samples with other values: 'B', 'C', 'D'"),
    "rows": (lambda: arrays(63), r"B \(20 rows before, 21 now\)|'B \(20"),
    "clients": (lambda: arrays(clients="ABC"), "clients gone: 'D'; new clients: 'A'"),
}


@pytest.mark.parametrize(("other", "told"), OTHERS.values(), ids=OTHERS)
def test_a_run_of_arrays_is_of_these_arrays(
    tmp_path: Path, other: Callable[[], Federation], told: str
) -> None:
    out = tmp_path / "r"
    commonweal.run(task(), arrays(), rounds=2, out=out).result()
    commonweal.run(task(), arrays(), rounds=2, out=out, resume=True).result()
    with pytest.raises(RunError, match=told):
        commonweal.run(task(), other(), rounds=2, out=out, resume=True).result()
    with pytest.raises(RunError, match=told):
        commonweal.reopen(out, task(), other())
    again = commonweal.run(task(), other(), rounds=2, out=out, force=True).result()
    fresh = commonweal.run(task(), other(), rounds=2).result()
    assert torch.equal(again.state_dict()["weight"], fresh.state_dict()["weight"])


def test_a_comparison_of_arrays_is_of_these_arrays(tmp_path: Path) -> None:
    def compared(federation: Federation, force: bool = False) -> Comparison:
        rules = ["fedavg", "term"]
        out = tmp_path / "r"
        return commonweal.compare(
            task(), federation, rules=rules, seeds=2, out=out, rounds=2, force=force
        )

    first = compared(arrays())
    assert compared(arrays()).results[0].metrics == first.results[0].metrics
    with pytest.raises(RunError, match="samples with other values"):
        compared(arrays(seed=1))
    assert compared(arrays(seed=1), force=True).results[0].metrics != first.results[0].metrics


def test_arrays_that_a_function_of_the_seed_draws_are_compared(tmp_path: Path) -> None:
    def federation(seed: int) -> Federation:
        return arrays(60 + 3 * seed, seed)

    out = tmp_path / "r"
    commonweal.compare(task(), federation, rules=["fedavg"], seeds=2, out=out, rounds=2)
    commonweal.compare(task(), federation, rules=["fedavg", "term"], seeds=2, out=out, rounds=2)
    with pytest.raises(RunError, match="rows"):
        commonweal.compare(
            task(), lambda seed: federation(seed + 1), rules=["fedavg"], seeds=2, out=out, rounds=2
        )


class Images(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """Samples that are read when they are needed."""

    def __init__(self, labels: list[int]) -> None:
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((3,), float(index % 5)), self.labels[index]


def test_lazy_datasets_are_known_by_lengths_labels_and_names(tmp_path: Path) -> None:
    def lazy(**labels: list[int]) -> Federation:
        data = {name: Images(own) for name, own in labels.items()}
        return Federation.from_datasets(data, memory=1)

    out = tmp_path / "r"
    commonweal.run(task(), lazy(a=[0, 1] * 5, b=[0, 1] * 6), rounds=1, out=out).result()
    others = [
        (lazy(a=[0, 1] * 5, c=[0, 1] * 6), "clients gone: 'b'"),
        (lazy(a=[0, 1] * 5, b=[0, 1] * 7), "12 rows before, 14 now"),
        (lazy(a=[0, 1] * 5, b=[1, 1] * 6), "samples with other values: 'b'"),
    ]
    for other, told in others:
        with pytest.raises(RunError, match=told):
            commonweal.run(task(), other, rounds=1, out=out, resume=True).result()


PROGRAM = """
import numpy as np
from commonweal import Federation

def data():
    values = np.load("values.npy")
    return Federation.from_arrays(values[:, 1:], values[:, 0].astype(int), ["a", "b"] * 20)
"""


def test_a_dataset_of_ones_own_is_looked_at_again(command: Command, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = np.column_stack([rng.integers(0, 2, 40), rng.normal(size=(40, 3))])
    np.save("values.npy", values)
    Path("mine.py").write_text(PROGRAM)
    Path("e.toml").write_text('dataset = "./mine.py:data"\nrounds = 2\n')
    compare = ("compare", "e.toml", "--rules", "fedavg", "--seeds", "2", "--no-baselines")
    first = command(*compare, "--out", "r")
    assert first.code == 0, first.err
    assert command(*compare, "--out", "r").out == first.out
    values[3, 2] += 1
    np.save("values.npy", values)
    refused = command(*compare, "--out", "r")
    assert refused.code != 0 and "samples with other values: 'b'" in refused.err
    assert command(*compare, "--out", "r", "--force").code == 0
