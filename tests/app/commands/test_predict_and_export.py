"""A hospital's day, from the command alone: a messy table in, a model that others can use out."""

import csv
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import commonweal
from commonweal import cli
from commonweal.base.errors import CommonwealError, ConfigError, DataError, RunError
from commonweal.data.tables.preprocessing import Preprocessing
from commonweal.record.final import read_final
from commonweal.record.record import Record

CLINICS = ("Aachen", "Bonn", "Köln", "Ulm")
Command = Callable[..., str]


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """`commonweal ...` in this process and in an empty folder; what it prints."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> str:
        capsys.readouterr()
        cli.app([str(each) for each in arguments], standalone_mode=False)
        printed = capsys.readouterr()
        return printed.out + printed.err

    return call


def patients(count: int, seed: int = 0, complete: bool = False) -> str:
    """A German Excel's table: semicolons, decimal commas, gaps, dates, ids, text labels."""
    rng = np.random.default_rng(seed)
    text = io.StringIO()
    writer = csv.writer(text, delimiter=";", lineterminator="\r\n")
    header = [
        "Fallnr",
        "Klinik",
        "Alter",
        "Kreatinin",
        "Aufnahme",
        "Raucher",
        "Station",
        "Diagnose",
    ]
    writer.writerow(header)
    for i in range(count):
        age = 20 + 70 * rng.random()
        level = rng.normal(1.1, 0.3) * (1 + (age > 60))
        ill = age / 100 + level + rng.normal(0, 0.3) > 2.2
        row = [
            f"F{20000 + i}",
            CLINICS[int(rng.integers(4))],
            f"{age:.1f}".replace(".", ","),
            f"{1000 * level:,.2f}".replace(",", "x").replace(".", ",").replace("x", "."),
            f"{1 + i % 28:02d}.{1 + i % 12:02d}.2024",
            ("ja", "nein")[int(rng.integers(2))],
            ("innere", "chirurgie", "NA", "augen")[int(rng.integers(3 if complete else 4))],
            "krank" if ill else "gesund",
        ]
        if not complete and rng.random() < 0.1:
            row[2] = ("", "NA", "?")[i % 3]
        writer.writerow(row)
    return text.getvalue()


def written(path: Path, text: str, encoding: str = "utf-8-sig") -> Path:
    path.write_bytes(text.encode(encoding))
    return path


def read(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def trained(command: Command, tmp_path: Path, *changes: str) -> Path:
    """A short run on a table of patients."""
    written(tmp_path / "patients.csv", patients(400))
    command("init", "patients.csv", "-q")
    command("run", "patients.toml", "rounds=4", *changes, "-q", "--out", "first")
    return tmp_path / "first"


def test_the_day(command: Command, tmp_path: Path) -> None:
    written(tmp_path / "patients.csv", patients(400))
    said = command("init", "patients.csv")
    assert "Klinik     the client: 4 of them" in said
    assert "Diagnose   the label: 2 classes" in said
    assert "Fallnr     left out: it looks like an id" in said
    assert "Alter      number with decimal commas" in said
    assert "Aufnahme   date (day-month-year)" in said
    assert "Raucher    0 for nein, 1 for ja" in said
    run = command("run", "patients.toml", "rounds=30", "--out", "runs/first")
    assert "filled with the median: 'Alter'" in run
    assert "Köln" in command("show", "runs/first")
    new = written(tmp_path / "new.csv", patients(50, seed=1))
    command("predict", "runs/first", new, "-o", "out.csv")
    rows = read(tmp_path / "out.csv")
    assert list(rows[0]) == [
        "Klinik",
        "Fallnr",
        "predicted Diagnose",
        "probability of gesund",
        "probability of krank",
        "outside the training range",
    ]
    truth = [line.rstrip().split(";")[-1] for line in patients(50, seed=1).splitlines()[1:]]
    right = [row["predicted Diagnose"] == true for row, true in zip(rows, truth, strict=True)]
    assert sum(right) > 40
    for form in ("torch", "onnx"):
        command("export", "runs/first", "--to", form, "-o", form)
        assert without_us(tmp_path / form, new) == [without_ids(row) for row in rows]
        one = written(tmp_path / "one.csv", patients(1, seed=1))
        assert without_us(tmp_path / form, one) == [without_ids(rows[0])]
    card = command("export", "runs/first", "--to", "card")
    text = (tmp_path / "runs" / "first" / "card.md").read_text(encoding="utf-8")
    assert "card.md" in card and "| Köln |" in text and "Classes: gesund, krank" in text


def without_ids(row: dict[str, str]) -> dict[str, object]:
    """A row of predictions, rounded: two libraries' last digits differ."""
    answers: dict[str, object] = {}
    for name, value in row.items():
        if name.startswith("probability"):
            answers[name] = pytest.approx(float(value), abs=2e-6)
        elif name.startswith("predicted"):
            answers[name] = value
    return answers


def without_us(folder: Path, table: Path) -> list[dict[str, object]]:
    """What the exported script prints, in a process that cannot import commonweal."""
    block = "import sys; sys.modules['commonweal'] = None; sys.argv = sys.argv[1:]; "
    start = f"{block}sys.path.insert(0, {str(folder)!r}); import runpy; "
    start += "runpy.run_path(sys.argv[0], run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", start, str(folder / "predict.py"), str(table)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    return [without_ids(row) for row in rows]


def test_predictions_are_the_modules_own(command: Command, tmp_path: Path) -> None:
    folder = trained(command, tmp_path)
    record = Record.read(folder)
    preprocessing = record.preprocessing()
    assert preprocessing is not None
    table = [line.split(";") for line in patients(20, seed=2).splitlines()]
    columns = {name: [row[i] for row in table[1:]] for i, name in enumerate(table[0])}
    with torch.no_grad():
        outputs = record.module()(torch.from_numpy(preprocessing.rows(columns)))
    written(tmp_path / "new.csv", patients(20, seed=2))
    command("predict", folder, "new.csv", "-o", "out.csv")
    found = [float(row["probability of krank"]) for row in read(tmp_path / "out.csv")]
    assert found == pytest.approx(outputs.softmax(1)[:, 1].tolist(), abs=1e-6)


def test_the_preprocessing_is_in_the_run(command: Command, tmp_path: Path) -> None:
    folder = trained(command, tmp_path)
    saved = json.loads((folder / "preparation.json").read_text(encoding="utf-8"))
    assert saved["class_names"] == ["gesund", "krank"] and saved["client"] == "Klinik"
    assert saved["separator"] == ";"
    assert "intact, 4 rounds" in command("verify", folder)
    text = (folder / "preparation.json").read_text(encoding="utf-8")
    (folder / "preparation.json").write_text(text.replace("gesund", "krank "), encoding="utf-8")
    with pytest.raises(RunError, match="was changed after it was written"):
        command("verify", folder)
    facts = Record.read(folder).facts
    assert facts.class_names == ("gesund", "krank")
    del saved["digest"]
    assert facts.task is not None
    assert facts.task.shape == (len(Preprocessing.parse(saved).features),)


def test_personal_models_predict_too(command: Command, tmp_path: Path) -> None:
    folder = trained(command, tmp_path, "client=ditto")
    new = written(tmp_path / "new.csv", patients(20, seed=3))
    for name in ("Bonn", "Ulm"):
        command("predict", folder, new, "-o", f"{name}.csv", "--client", name)
    command("predict", folder, new, "-o", "all.csv")
    bonn, ulm, shared = (read(tmp_path / f"{name}.csv") for name in ("Bonn", "Ulm", "all"))
    assert bonn != ulm and bonn != shared
    job, state = commonweal.reopen(folder)
    assert job.local is not None
    own = job.local.states[job.population.names.index("Ulm")]
    w = job.algorithm.uses(job.algorithm.message(state), own).models[0]
    preprocessing = Record.read(folder).preprocessing()
    assert preprocessing is not None
    table = [line.split(";") for line in patients(20, seed=3).splitlines()]
    columns = {name: [row[i] for row in table[1:]] for i, name in enumerate(table[0])}
    x = torch.from_numpy(preprocessing.rows(columns))
    expected = job.task.outputs(w, x).softmax(1)[:, 1].tolist()
    assert [float(row["probability of krank"]) for row in ulm] == pytest.approx(expected, abs=1e-6)
    with pytest.raises(ConfigError, match="not in this run: known: Aachen, Bonn"):
        command("predict", folder, new, "--client", "Bon")


def test_each_row_is_predicted_by_its_clients_model(command: Command, tmp_path: Path) -> None:
    folder = trained(command, tmp_path, "client=ditto")
    text = patients(30, seed=3).replace("Aachen", "Mainz")
    new = written(tmp_path / "new.csv", text)
    said = command("predict", folder, new, "-o", "all.csv")
    rows = read(tmp_path / "all.csv")
    strangers = sum(row["Klinik"] == "Mainz" for row in rows)
    assert f"{30 - strangers} rows by the personal models of their 3 clients (Klinik)" in said
    assert f"{strangers} rows by the global model, as 'Mainz' took no part" in said
    for name in ("Bonn", "Köln", "Ulm"):
        command("predict", folder, new, "-o", "one.csv", "--client", name)
        single = read(tmp_path / "one.csv")
        own = [row["Klinik"] == name for row in rows]
        assert [r for r, of in zip(single, own, strict=True) if of] == [
            r for r, of in zip(rows, own, strict=True) if of
        ]
    job, state = commonweal.reopen(folder)
    preprocessing = Record.read(folder).preprocessing()
    assert preprocessing is not None
    table = [line.split(";") for line in text.splitlines()]
    columns = {name: [row[i] for row in table[1:]] for i, name in enumerate(table[0])}
    x = torch.from_numpy(preprocessing.rows(columns))
    shared = job.task.outputs(job.algorithm.model(state), x).softmax(1)[:, 1].tolist()
    for row, expected in zip(rows, shared, strict=True):
        if row["Klinik"] == "Mainz":
            assert float(row["probability of krank"]) == pytest.approx(expected, abs=1e-6)
    command("export", folder, "--to", "torch", "-o", "model")
    assert without_us(tmp_path / "model", new) == [without_ids(row) for row in rows]
    right = [row["predicted Diagnose"] == true[-1] for row, true in zip(rows, table[1:])]  # noqa: B905
    assert f"accuracy over the 30 rows that have a label: {100 * sum(right) / 30:.2f} %" in said


def test_other_notations_and_strange_values(command: Command, tmp_path: Path) -> None:
    folder = trained(command, tmp_path)
    header, *lines = patients(20, seed=4, complete=True).splitlines()
    usual = written(tmp_path / "usual.csv", "\n".join([header, *lines]))
    command("predict", folder, usual, "-o", "usual.out")
    other = []
    for line in lines:
        case, clinic, age, level, date, smoker, ward, truth = line.split(";")
        day, month, year = date.split(".")
        level = level.replace(".", "").replace(",", ".")
        cells = [case, clinic, age.replace(",", "."), level, f"{year}-{month}-{day}"]
        other.append(";".join([*cells, {"ja": "yes", "nein": "no"}[smoker], ward, truth]))
    written(tmp_path / "other.csv", "\n".join([header, *other]))
    said = command("predict", folder, "other.csv", "-o", "other.out")
    assert read(tmp_path / "other.out") == read(tmp_path / "usual.out")
    for name in ("Alter", "Kreatinin", "Aufnahme", "Raucher"):
        assert f"{name}: " in said and "another notation" in said
    cells = lines[3].split(";")
    cells[2] = "1000000000,0"
    written(tmp_path / "far.csv", "\n".join([header, *lines[:3], ";".join(cells)]))
    said = command("predict", folder, "far.csv", "-o", "far.out")
    flags = [row["outside the training range"] for row in read(tmp_path / "far.out")]
    assert flags == ["", "", "", "Alter"] and "1 rows have values far outside" in said
    written(
        tmp_path / "bad.csv", "\n".join([header, lines[0].replace(lines[0].split(";")[2], "x")])
    )
    with pytest.raises(DataError, match="'x' is not a number"):
        command("predict", folder, "bad.csv")


def test_a_run_of_one_model_has_no_personal_ones(command: Command, tmp_path: Path) -> None:
    folder = trained(command, tmp_path)
    with pytest.raises(ConfigError, match="'sgd' trains one model for all"):
        command("predict", folder, "patients.csv", "--client", "Bonn")


def test_values_are_predicted_in_units(command: Command, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = ["site,dose,pressure"]
    for i in range(200):
        dose = 10 * rng.random()
        lines.append(f"s{i % 4},{dose:.3f},{100 + 7 * dose + rng.normal():.2f}")
    written(tmp_path / "t.csv", "\n".join(lines) + "\n")
    said = command("init", "t.csv", "--label", "pressure")
    assert "pressure  the label: number (regression)" in said
    command("run", "t.toml", "rounds=30", "client.lr=0.05", "-q", "--out", "run")
    written(tmp_path / "new.csv", "dose\n2\n8\n")
    command("predict", "run", "new.csv", "-o", "out.csv")
    found = [float(row["predicted pressure"]) for row in read(tmp_path / "out.csv")]
    assert found == pytest.approx([114, 156], abs=3)
    command("export", "run", "--to", "torch", "-o", "model")
    exported = torch.export.load(str(tmp_path / "model" / "model.pt2")).module()
    preprocessing = Record.read("run").preprocessing()
    assert preprocessing is not None
    x = torch.from_numpy(preprocessing.rows({"dose": ["2", "8"]}))
    assert exported(x)[:, 0].tolist() == pytest.approx(found, rel=1e-5)


def test_new_rows_that_cannot_be_predicted(command: Command, tmp_path: Path) -> None:
    folder = trained(command, tmp_path)
    written(tmp_path / "few.csv", "Alter;Station\n50,0;innere\n")
    with pytest.raises(DataError, match="no column 'Kreatinin', 'Aufnahme', 'Raucher'"):
        command("predict", folder, "few.csv")
    command("run", "vowel", "rounds=1", "-q", "--out", "vowel")
    with pytest.raises(RunError, match="was not trained on a table"):
        command("predict", "vowel", "patients.csv")
    command("export", "vowel", "--to", "torch", "-q")
    assert sorted(p.name for p in (tmp_path / "vowel" / "torch-model").iterdir()) == ["model.pt2"]
    with pytest.raises(ConfigError, match="no export 'onyx': did you mean 'onnx'"):
        command("export", "vowel", "--to", "onyx")


def test_a_table_without_a_file(command: Command, tmp_path: Path) -> None:
    written(tmp_path / "patients.csv", patients(200))
    place = ("table", "path=patients.csv", "label=Diagnose", "client=Klinik", "rounds=2")
    command("run", *place, "drop=Station,Raucher", "client.lr=0.3", "client=ditto", "-q")
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("patients-fedavg-dataset.drop=")
    record = Record.read(folder)
    assert record.experiment["dataset"]["client"] == "Klinik"
    assert record.experiment["client"]["name"] == "ditto"
    assert record.experiment["client"]["lr"] == 0.3
    assert "fedavg" in command("compare", *place, "--rules", "fedavg,uniform", "--seeds", 2)


def test_init_names_the_columns_that_it_cannot_guess(command: Command, tmp_path: Path) -> None:
    lines = ["a,b,quality"] + [f"{i / 7:.2f},{i % 5},{'xy'[i % 9 == 0]}" for i in range(90)]
    written(tmp_path / "t.csv", "\n".join(lines) + "\n", "utf-8")
    said = command("init", "t.csv")
    assert "no column looks like clients" in said and "88.9 % of the rows are 'x'" in said
    assert 'score = "auroc"' in (tmp_path / "t.toml").read_text(encoding="utf-8")
    command("run", "t.toml", "rounds=1", "-q")
    with pytest.raises(ConfigError, match=r"'t.toml' exists already"):
        command("init", "t.csv")
    with pytest.raises(CommonwealError, match="label = 'qualty': there is no such column"):
        command("init", "t.csv", "--label", "qualty", "-o", "u.toml")


def test_init_reads_latin1_with_a_note(command: Command, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    written(tmp_path / "p.csv", patients(100), "latin-1")
    command("init", "p.csv", "-o", "sub/p.toml")
    text = (tmp_path / "sub" / "p.toml").read_text(encoding="utf-8")
    assert 'encoding = "latin-1"' in text and 'path = "../p.csv"' in text
    command("run", "sub/p.toml", "rounds=1", "-q", "--out", "run")
    assert "Köln" in Record.read("run").clients().names


def test_a_comparison_has_the_changes_by_thresholds(command: Command, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = ["site,x,died"]
    for i in range(400):
        x = rng.normal()
        lines.append(f"{'ab'[i % 2]},{x:.3f},{int(rng.random() < 0.08 + 0.3 * (x > 1))}")
    written(tmp_path / "t.csv", "\n".join(lines), "utf-8")
    command("init", "t.csv")
    words = ("--rules", "fedavg", "--seeds", 2, "--no-baselines", "-o", "runs")
    said = command("compare", "t.toml", "rounds=5", "threshold=f1", "validation=0.3", *words)
    thresholds = [read_final(tmp_path / "runs" / "fedavg" / f"seed-{k}").threshold for k in (0, 1)]
    means = []
    for when in ("before", "after"):
        found = [getattr(each, when)["f1"] for each in thresholds if each is not None]
        means.append(f"{100 * np.mean(found):.1f}")
    one_line = " ".join(said.split())
    assert "fedavg, with thresholds from validation samples" in one_line
    assert f"f1 {means[0]} -> {means[1]} %" in one_line


def test_labels_in_capitals_and_a_code_page_in_predictions(
    command: Command, tmp_path: Path
) -> None:
    """`predict` scores labels however they are written; the exported script reads the same file."""
    rng = np.random.default_rng(0)
    lines = ["Straße;Haus;Tot"]
    for i in range(90):
        lines.append(f"{('Köln', 'Ulm')[i % 2]};h{i % 4};{('Nein', 'JA')[rng.integers(2)]}")
    written(tmp_path / "t.csv", "\n".join(lines), "latin-1")
    command("init", "t.csv", "--label", "Tot", "--client", "Haus")
    command("run", "t.toml", "rounds=1", "-q", "--out", "run")
    said = command("predict", "run", "t.csv", "-o", "latin.out")
    assert "over the 90 rows that have a label" in said
    ones = [line.replace("Nein", "0").replace("JA", "1") for line in lines]
    written(tmp_path / "ones.csv", "\n".join([*ones[:-2], "Ulm;h1;maybe", "Ulm;h1;"]), "utf-8")
    said_of_ones = command("predict", "run", "ones.csv", "-o", "ones.out")
    assert "over the 88 rows that have a label" in said_of_ones
    assert "1 row with labels unknown to the model are not scored: 'maybe'" in said_of_ones
    command("export", "run", "--to", "torch", "-o", "torch")
    assert without_us(tmp_path / "torch", tmp_path / "t.csv") == [
        without_ids(row) for row in read(tmp_path / "latin.out")
    ]
    written(tmp_path / "u.csv", "\n".join(lines), "utf-8")
    command("predict", "run", "u.csv", "-o", "utf8.out")
    assert read(tmp_path / "utf8.out") == read(tmp_path / "latin.out")
    script = [sys.executable, str(tmp_path / "torch" / "predict.py")]
    for arguments, words in (([], "python predict.py new.csv"), (["no.csv"], "predict.py: ")):
        done = subprocess.run([*script, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 1 and words in done.stderr and "Traceback" not in done.stderr


def test_a_module_of_ones_own_is_imported_only_when_trusted(
    command: Command, tmp_path: Path
) -> None:
    lines = [
        "from torch import nn",
        "def small(shape, outputs):",
        "    return nn.Linear(*shape, outputs)",
    ]
    code = "\n".join(lines) + "\n"
    (tmp_path / "mine.py").write_text(code, encoding="utf-8")
    folder = trained(command, tmp_path, "model=./mine.py:small")
    with pytest.raises(ConfigError, match="only if you trust whoever wrote the run"):
        command("predict", folder, "patients.csv")
    command("predict", folder, "patients.csv", "--trust", "-o", "out.csv")
    assert len(read(tmp_path / "out.csv")) == 400


def test_names_in_a_table_are_text_and_nothing_else(command: Command, tmp_path: Path) -> None:
    lines = ["site,a\x1b[2J,=note_id,label"]
    lines += [f"s|{i % 3},{i % 7},=A{i},{'xy'[i % 2]}" for i in range(60)]
    written(tmp_path / "t.csv", "\n".join(lines) + "\n", "utf-8")
    assert "\x1b" not in command("init", "t.csv")
    command("run", "t.toml", "rounds=1", "-q", "--out", "run")
    command("predict", "run", "t.csv", "-o", "out.csv")
    assert next(iter(read(tmp_path / "out.csv")))["'=note_id"] == "'=A0"
    command("export", "run", "--to", "torch", "-o", "model")
    here = [sys.executable, "predict.py", str(tmp_path / "t.csv")]
    done = subprocess.run(here, capture_output=True, text=True, check=True, cwd="model")
    assert done.stdout == (tmp_path / "out.csv").read_text(encoding="utf-8")
    command("export", "run", "--to", "card")
    card = (tmp_path / "run" / "card.md").read_text(encoding="utf-8")
    assert "| s\\|0 |" in card and "\x1b" not in card
