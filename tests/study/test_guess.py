"""`commonweal init`: what it guesses of tables of many shapes, and what it says about columns."""

import csv
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

import commonweal
from commonweal.base.errors import ConfigError
from commonweal.data.federation import Federation
from commonweal.data.tables import plain_table
from commonweal.datasets.guess.guess import Guess, guess

Draw = Callable[[np.random.Generator, int], object]  # a cell of row i


def written(path: Path, columns: dict[str, Draw], rows: int = 300, separator: str = ",") -> Path:
    rng = np.random.default_rng(0)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=separator)
        writer.writerow(columns)
        for i in range(rows):
            writer.writerow([draw(rng, i) for draw in columns.values()])
    return path


def one_of(*values: object) -> Draw:
    return lambda rng, i: values[int(rng.integers(len(values)))]


def number(rng: np.random.Generator, i: int) -> object:
    return f"{rng.normal():.4f}"


def row_number(rng: np.random.Generator, i: int) -> object:
    return i + 1


def site(count: int, name: str = "") -> Draw:
    return lambda rng, i: f"{name}{i % count}"


def look(path: Path, label: str | None = None, client: str | None = None) -> Guess:
    return guess(path, label, client, path.with_suffix(".toml"))


def dataset(guessed: Guess) -> dict[str, Any]:
    part: dict[str, Any] = tomllib.loads(guessed.experiment)["dataset"]
    return part


yes_no = one_of("yes", "no")
TABLES: list[tuple[dict[str, Draw], str, str | None]] = [  # columns, label, client
    ({"UNIQUE": row_number, "user": site(20), "X0": number, "X1": number, "X2": number}
     | {"Y0": number, "Y1": number, "Y2": number, "class": one_of(*"abc")}, "class", "user"),
    ({"HOSPNUM": site(30), "COUNTRY": site(6, "c"), "AGE": number, "DIED": one_of(0, 1),
      "RX14": number}, "DIED", "HOSPNUM"),
    ({"outcome": yes_no, "age": number, "department": site(5, "d")}, "outcome", "department"),
    ({"Klinik": site(4, "k"), "Alter": number, "gestorben": one_of("ja", "nein"),
      "Gewicht": number}, "gestorben", "Klinik"),
    ({"hôpital": site(4, "h"), "taille": number, "résultat": yes_no, "z": number},
     "résultat", "hôpital"),
    ({"price": number, "rooms": number, "county": site(9, "c"), "size": number},
     "price", "county"),
    ({"subject#": site(12), "age": number, "total_UPDRS": number, "HNR": number},
     "total_UPDRS", "subject#"),
    ({"a": number, "units sold": one_of(1, 2, 3), "b": one_of("x", "y")}, "b", None),
    ({"award": site(5, "a"), "composite": site(4, "c"), "target": number}, "target", None),
]  # fmt: skip


@pytest.mark.parametrize(("columns", "label", "client"), TABLES)
def test_label_and_clients_are_guessed_and_marked_as_guesses(
    tmp_path: Path, columns: dict[str, Draw], label: str, client: str | None
) -> None:
    guessed = look(written(tmp_path / "t.csv", columns))
    found = dataset(guessed)
    assert (found["label"], found.get("client")) == (label, client)
    said = "\n".join(guessed.remarks)
    assert f"label guessed: {label!r}" in said and "--label" in said
    assert (f"client guessed: {client!r}" in said) == (client is not None)
    assert ("divided at random" in said) == (client is None)


def test_the_next_candidate_is_named(tmp_path: Path) -> None:
    columns = {"hospital": site(3), "country": site(2), "died": yes_no, "grade": number}
    said = "\n".join(look(written(tmp_path / "t.csv", columns)).remarks)
    assert "next likely: 'grade'. To change it: --label \"grade\"" in said
    assert "next likely: 'country'. To change it: --client \"country\"" in said


def test_survival_times_are_found_or_offered(tmp_path: Path) -> None:
    def time(rng: np.random.Generator, i: int) -> object:
        return f"{rng.exponential():.3f}"

    columns = {"region": site(3, "r"), "x": number, "T": time, "E": one_of(0, 1)}
    assert dataset(look(written(tmp_path / "t.csv", columns)))["label"] == "T,E"
    columns = {"region": site(3, "r"), "days": time, "died": one_of(0, 1)}
    offered = look(written(tmp_path / "u.csv", columns))
    assert dataset(offered)["label"] == "died"
    assert '--label "days,died"' in "\n".join(offered.remarks)


def test_row_numbers_and_near_unique_codes_are_left_out(tmp_path: Path) -> None:
    columns: dict[str, Draw] = {
        "n": row_number,
        "case": lambda rng, i: 5000 + i,
        "loan_id": lambda rng, i: 7 * i + int(rng.integers(7)),
        "weight": lambda rng, i: int(rng.integers(10**6)),
        "label": one_of(0, 1),
    }
    lines = dict(look(written(tmp_path / "t.csv", columns)).lines)
    left_out = [name for name, text in lines.items() if text.startswith("left out")]
    assert left_out == ["n", "case", "loan_id"]


def test_codes_become_categories_and_amounts_do_not(tmp_path: Path) -> None:
    columns: dict[str, Draw] = {
        "mode": one_of(1, 2, 5, 7),
        "programme": one_of(33, 171, 8014, 9003, 9070, 9119),
        "children": lambda rng, i: rng.poisson(1.5),
        "pressure": lambda rng, i: 5 * int(rng.normal(26, 3)),
        "hour": lambda rng, i: 99 if i % 9 == 0 else int(rng.integers(24)),
        "age": lambda rng, i: int(rng.normal(60, 12)),
        "label": one_of(0, 1),
    }
    guessed = look(written(tmp_path / "t.csv", columns, 600))
    assert dataset(guessed)["categories"] == ["mode", "programme"]
    assert "become categories (guessed)" in "\n".join(guessed.remarks)


def test_columns_that_give_the_label_away_are_pointed_out(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    ill = rng.random(400) < 0.3
    age = rng.normal(60, 10, 400) + 8 * ill
    columns: dict[str, Draw] = {
        "age": lambda _, i: f"{age[i]:.1f}",
        "date of death": lambda _, i: f"2024-01-{1 + i % 28:02d}" if ill[i] else "",
        "cause": lambda _, i: ("heart" if i % 2 else "other") if ill[i] and i % 3 else "-",
        "ward": one_of("a", "b"),
        "died": lambda _, i: int(ill[i]),
    }
    guessed = look(written(tmp_path / "t.csv", columns, 400), label="died")
    flagged = [r.split("'")[1] for r in guessed.remarks if "may give 'died' away" in r]
    assert flagged == ["date of death", "cause"]
    assert '"dataset.drop=date of death,cause"' in "\n".join(guessed.remarks)
    values: dict[str, Draw] = {
        "x": number,
        "bound": lambda _, i: f"{1.3 * age[i] + 0.2:.2f}",
        "noisy": lambda _, i: f"{age[i] + 20 * np.sin(i):.2f}",
        "age": lambda _, i: f"{age[i]:.3f}",
    }
    guessed = look(written(tmp_path / "u.csv", values, 400), label="age")
    flagged = [r.split("'")[1] for r in guessed.remarks if "may give 'age' away" in r]
    assert flagged == ["bound"]


def test_columns_that_name_the_client_again_are_left_out(tmp_path: Path) -> None:
    columns: dict[str, Draw] = {
        "country": site(6, "c"),
        "cntrynum": site(6),
        "height": lambda rng, i: 150 + i % 6,
        "label": one_of(0, 1),
    }
    found = dataset(look(written(tmp_path / "t.csv", columns)))
    assert found["client"] == "country" and found["drop"] == ["cntrynum"]


def test_times_and_splits_of_the_publisher_are_used(tmp_path: Path) -> None:
    columns = {"patient": site(10), "test_time": number, "x": number, "score": number}
    assert dataset(look(written(tmp_path / "t.csv", columns)))["order"] == "test_time"
    columns = {"school": site(5, "s"), "fold": site(4), "x": number, "passed": yes_no}
    assert dataset(look(written(tmp_path / "u.csv", columns)))["split"] == "fold"


def test_sites_that_are_numbered_within_countries(tmp_path: Path) -> None:
    columns = {"country": one_of("F", "I"), "hosp": site(4), "x": number, "label": one_of(0, 1)}
    said = "\n".join(look(written(tmp_path / "t.csv", columns)).remarks)
    assert 'use --client "country,hosp"' in said


def lines(path: Path, ages: Sequence[str]) -> dict[str, str]:
    columns: dict[str, Draw] = {
        "hospital": one_of("A", "B"),
        "age": lambda rng, i: ages[i],
        "ward": one_of("eyes", "heart", "3"),
        "died": one_of(0, 1),
    }
    return dict(look(written(path, columns, len(ages))).lines)


def test_numbers_among_which_are_a_few_texts_are_pointed_out(tmp_path: Path) -> None:
    ages = [str(20 + k % 60) for k in range(190)] + ["unknown"] * 8 + ["<18"] * 2
    said = lines(tmp_path / "a.csv", ages)
    assert "'unknown', '<18' count as missing; 10 missing (5.0 %)" in said["age"]
    assert "numbers" not in said["ward"]  # a text that is a number once


def test_numbers_with_gaps_are_numbers(tmp_path: Path) -> None:
    ages = [str(20 + k % 60) for k in range(190)] + ["", "NA", "-", "?"]
    assert lines(tmp_path / "a.csv", ages)["age"].startswith("number; 4 missing")


@pytest.mark.parametrize("rows", ["A,0,1\nA,1,2\nB,0,3\nB,1,1\n", "A,0,1\nA,1,2\n" * 15])
def test_small_tables_and_single_clients(tmp_path: Path, rows: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text("client,label,a\n" + rows, encoding="utf-8")
    looked = look(path)
    assert dataset(looked)["client"] == "client"
    assert any("only one client" in remark for remark in looked.remarks) == ("B" not in rows)


def test_thousands_units_and_many_columns(tmp_path: Path) -> None:
    lines = ["shop," + ",".join(f"g{i}" for i in range(8)) + ",income,weight,price"]
    for i in range(60):
        genes = ",".join(str((i * k) % 11 / 8) for k in range(1, 9))
        lines.append(f'{"ab"[i % 2]},{genes},{i + 1}\'000,{50 + i % 9} kg,"{i + 1},234,567.5"')
    path = tmp_path / "t.csv"
    path.write_text("\n".join(lines), encoding="utf-8")
    found = guess(path, "price", "shop", tmp_path / "t.toml")
    said = dict(found.lines)
    assert said["g0 ... g7"] == "number (8 columns)"
    assert said["income"] == "number with thousands set apart"
    assert said["weight"] == "number with the unit kg"
    assert said["price"].startswith("the label: number (regression), 1.23457e+06 to 6.02346e+07")


def test_a_column_that_gives_a_survival_event_away(tmp_path: Path) -> None:
    lines = ["site,age,time,event,buried"]
    for i in range(90):
        event = i % 3 == 0
        lines.append(f"{'ab'[i % 2]},{20 + i % 50},{i + 1.5},{int(event)},{'2024-05-01' * event}")
    path = tmp_path / "t.csv"
    path.write_text("\n".join(lines), encoding="utf-8")
    remarks = guess(path, "time,event", "site", tmp_path / "t.toml").remarks
    assert any("'buried' may give 'event' away" in remark for remark in remarks)
    assert not any("'age' may give" in remark for remark in remarks)


def test_a_polish_hospitals_export(tmp_path: Path) -> None:
    """A code page, row numbers in disorder, units, codes, far numbers, dates: each is reported."""
    rng = np.random.default_rng(1)
    order = rng.permutation(300)
    header = "N° chorego;Szpital;Wiek;Kod pocztowy;Masa;Koszt;CRP;Przyjęcie;Palił;;Zgon"
    lines = [header]
    for i in range(300):
        age = 999 if i % 9 == 0 else 20 + i % 60
        crp = "<0,5" if i % 11 == 0 else f"{rng.gamma(2):.2f}".replace(".", ",")
        month = ("sty", "lut", "kwi", "gru")[i % 4]
        cells = [
            order[i] + 1, ("Łódź", "Kraków", "Poznań")[i % 3], age, 10000 + 37 * order[i],
            f"{60 + i % 40} kg", f"{rng.integers(1, 9)} {100 + order[i]},50", crp,
            f"{1 + i % 28}-{month}-2023", "tak" if rng.random() < 0.5 else "nie", "",
            "tak" if rng.random() < 0.4 else "nie",
        ]  # fmt: skip
        lines.append(";".join(map(str, cells)))
    path = tmp_path / "t.csv"
    path.write_bytes("\r\n".join(lines).replace("°", "").encode("cp1250"))
    looked = look(path)
    said, remarks = dict(looked.lines), "\n".join(looked.remarks)
    assert dataset(looked) == {
        "name": "table", "path": "t.csv", "separator": ";", "encoding": "cp1250",
        "label": "Zgon", "client": "Szpital", "drop": ["Kod pocztowy"], "missing": ["Wiek=999"],
    }  # fmt: skip
    assert said["N chorego"].startswith("left out: it looks like an id")
    assert said["Wiek"].startswith("number; '999' count as missing; 34 missing (11.3 %)")
    assert said["Kod pocztowy"].startswith("left out: codes that differ in most rows (guessed)")
    assert said["Masa"] == "number with the unit kg"
    assert said["Koszt"] == "number with decimal commas"
    assert said["CRP"].startswith("number with decimal commas; '<0,5' count as missing; 28 missing")
    assert said["Przyjęcie"].startswith("date (day-month-year)")
    assert said["Palił"] == "0 for nie, 1 for tak"
    assert said["unnamed 10"] == "left out: it is constant"
    assert "read as cp1250 (guessed)" in remarks and "'Wiek=999'" in remarks
    loaded = commonweal.dataset(**(dataset(looked) | {"path": str(path)}))
    assert isinstance(loaded, Federation) and loaded.preprocessing is not None
    fitted = {column.name: column for column in loaded.preprocessing.columns}
    assert fitted["Wiek"].indicator and fitted["Wiek"].high == 79
    texts = {name: [""] for name in fitted} | {"Wiek": ["999.0"], "Masa": ["70,5"], "CRP": ["1.5"]}
    row = dict(zip(loaded.preprocessing.features, loaded.preprocessing.rows(texts)[0], strict=True))
    assert row["Wiek is missing"] == 1
    masa = fitted["Masa"]
    assert row["Masa"] == pytest.approx((70.5 - masa.mean) / masa.deviation, rel=1e-5)


def test_codes_and_clients_that_are_easily_mistaken(tmp_path: Path) -> None:
    """Leading zeros, ids beyond float64, and clients whose names differ in capitals only."""
    columns = {"site": one_of("Bonn", "BONN", "Ulm"), "plant": one_of("01234", "11234", "00077")}
    looked = look(written(tmp_path / "a.csv", columns | {"x": number, "died": yes_no}))
    assert dict(looked.lines)["plant"] == "categories: 3"
    assert "'BONN', 'Bonn'" in "\n".join(looked.remarks)
    ids = [10**17 + k % 4 for k in range(200)]  # of which float64 makes one
    table = pyarrow.table({"site_id": ids, "x": np.arange(200.0) % 7, "died": [0, 1] * 100})
    parquet.write_table(table, tmp_path / "b.parquet")
    assert dict(look(tmp_path / "b.parquet").lines)["site_id"].startswith("the client: 4 of them")


def test_excels_line_that_names_the_separator(tmp_path: Path) -> None:
    lines = ["sep=;", "site;x;died"] + [f"{'ab'[i % 2]};{i},5;{i % 2}" for i in range(40)]
    path = tmp_path / "t.csv"
    path.write_text("\r\n".join(lines), encoding="utf-8-sig", newline="")
    looked = look(path)
    assert dict(looked.lines)["x"] == "number with decimal commas"
    assert dataset(looked)["separator"] == ";"
    assert plain_table.read_csv(str(path))["x"][:2] == ["0,5", "1,5"]


def test_possible_clients_are_offered_without_a_known_name(tmp_path: Path) -> None:
    columns = {"area": one_of("north", "south", "west"), "x": number, "result": yes_no}
    said = "\n".join(look(written(tmp_path / "a.csv", columns)).remarks)
    assert 'To name the column of clients: --client "area"' in said


def test_clients_with_a_column_each_are_recognised(tmp_path: Path) -> None:
    hot = {f"site_{k}": (lambda rng, i, k=k: int(i % 3 == k)) for k in range(3)}
    said = "\n".join(look(written(tmp_path / "b.csv", hot | {"x": number, "y": yes_no})).remarks)
    assert "'site_0' ... 'site_2' may be clients" in said


def test_months_that_are_not_read_as_dates_are_reported(tmp_path: Path) -> None:
    columns = {"visit": one_of("Feb-2020", "Mar-2020", "Apr-2021"), "x": number, "y": yes_no}
    said = dict(look(written(tmp_path / "a.csv", columns)).lines)
    assert "; looks like dates (" in said["visit"]


# Doubts, with which nothing is trained


def by_site(values: str) -> Draw:
    return lambda rng, i: values[i % 6 % len(values)]


def event(rng: np.random.Generator, i: int) -> object:
    return f"{rng.exponential():.3f}"


FEATURES: dict[str, Draw] = {"hospital": site(6, "h"), "age": number, "sex": one_of("m", "f")}
CLEAR: list[dict[str, Draw]] = [
    FEATURES | {"died": one_of(0, 1)},
    FEATURES | {"label": number},
    FEATURES | {"target": one_of(0, 1), "disease": one_of(0, 1)},
    FEATURES | {"y": number},
    FEATURES | {"type": one_of(*"ab"), "dead28": yes_no, "z": number},
    FEATURES | {"T": event, "E": one_of(0, 1)},
    {"client": site(6), "site": site(7), "x": number, "outcome": yes_no},
    {"country": site(6, "c"), "cntrynum": site(6), "x": number, "outcome": yes_no},
]
DOUBTFUL: list[tuple[dict[str, Draw], str, list[str]]] = [  # columns, the doubt, first options
    (FEATURES | {"died": by_site("ab")}, "'died' is constant within hospital", ["died"]),
    (FEATURES | {"use": yes_no, "urban": yes_no}, "no name says which", ["urban", "use", "sex"]),
    (FEATURES | {"price": number}, "no name says which", ["price"]),
    (FEATURES | {"died": yes_no, "relapse": yes_no}, "are equally likely", ["relapse", "died"]),
    (
        FEATURES | {"disease duration": number, "b": yes_no},
        "no name says which",
        ["disease duration", "b"],
    ),
    (
        FEATURES | {"response": yes_no, "T": event, "E": one_of(0, 1)},
        "there are columns of survival times and events, 'T,E'",
        ["T,E", "response", "E"],
    ),
    (FEATURES | {"days": event, "died": one_of(0, 1)}, "survival times", ["days,died", "died"]),
]


@pytest.mark.parametrize("columns", CLEAR)
def test_a_clear_label_leaves_no_doubt(tmp_path: Path, columns: dict[str, Draw]) -> None:
    assert look(written(tmp_path / "t.csv", columns)).doubts == ()


@pytest.mark.parametrize(("columns", "doubt", "options"), DOUBTFUL)
def test_a_doubtful_label_is_not_trained_on(
    tmp_path: Path, columns: dict[str, Draw], doubt: str, options: list[str]
) -> None:
    path = written(tmp_path / "t.csv", columns)
    (found,) = look(path).doubts
    assert doubt in found.text
    labels = [option.label for option in found.options]
    assert labels[: len(options)] == options
    for label in labels:  # whatever a person names is taken
        assert look(path, label=label).doubts == ()


def test_a_label_that_another_column_explains_is_doubtful(tmp_path: Path) -> None:
    columns = {
        "hospital": site(5, "h"),
        "age": number,
        "left as": lambda rng, i: ("walking", "dead")[i % 7 == 0],
        "died": lambda rng, i: int(i % 7 == 0),
    }
    path = written(tmp_path / "t.csv", columns)
    (doubt,) = look(path).doubts
    assert "'died' is explained by another column, 'left as'" in doubt.text
    assert [(option.label, option.drop) for option in doubt.options] == [
        ("died", ("left as",)),
        ("died", ()),
        ("left as", ()),
    ]
    command = doubt.options[0].command(["commonweal", "fit", "t.csv"], ["--seeds", "2"])
    assert command == "commonweal fit t.csv 'dataset.drop=left as' --label died --seeds 2"
    toml = tmp_path / "t.toml"
    without = guess(path, None, None, toml, ["dataset.drop=left as"])
    assert without.doubts == () and not any("away" in remark for remark in without.remarks)
    assert "give the label away" not in without.experiment
    assert dataset(without)["drop"] == ["left as"]
    named = look(path, label="died")  # it is reported, but a person named the label
    assert named.doubts == () and any("'left as' may give" in text for text in named.remarks)


def test_doubtful_clients(tmp_path: Path) -> None:
    columns = {"site": site(6), "center": site(7, "c"), "x": number, "died": yes_no}
    path = written(tmp_path / "a.csv", columns)
    (doubt,) = look(path).doubts
    assert doubt.text == "the client is doubtful: 'site' and 'center' are equally likely"
    assert [option.client for option in doubt.options] == ["site", "center"]
    assert look(path, client="center").doubts == ()
    columns = {"name": site(9, "study "), "x": number, "phase": one_of(1, 2, 3), "died": yes_no}
    (doubt,) = look(written(tmp_path / "b.csv", columns)).doubts
    assert "no column looks like clients" in doubt.text
    assert [option.client for option in doubt.options] == ["name", "phase"]
    parted = guess(
        tmp_path / "b.csv", None, None, tmp_path / "b.toml", ["partition=iid(clients=4)"]
    )
    assert parted.doubts == () and parted.has_clients


def test_changes_of_the_experiment_are_part_of_it(tmp_path: Path) -> None:
    columns = FEATURES | {"ward": one_of(1, 2, 7), "visit": number, "died": yes_no}
    path = written(tmp_path / "t.csv", columns)
    changes = ["rounds=7", "client=ditto", "dataset.drop=sex,age", "dataset.test=0.5"]
    changes += ["dataset.categories=ward", "model=mlp"]
    guessed = guess(path, None, None, tmp_path / "sub" / "t.toml", changes)
    tree = tomllib.loads(guessed.experiment)
    assert (tree["rounds"], tree["client"]["name"], tree["model"]["name"]) == (7, "ditto", "mlp")
    assert tree["client"]["batch"] == 32  # of the guess
    assert dataset(guessed)["drop"] == ["sex", "age"]
    assert dataset(guessed)["categories"] == ["ward"]
    assert (dataset(guessed)["test"], dataset(guessed)["path"]) == (0.5, "../t.csv")
    assert dict(guessed.lines)["sex"] == "left out: dropped"
    with pytest.raises(ConfigError, match="drop"):
        guess(path, None, None, tmp_path / "t.toml", ["dataset.dorp=sex"])
