"""The vowels in the package and the four hospitals: sizes, splits, preprocessing, missing files."""

import csv
import gzip
import math
from collections import defaultdict
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch

from commonweal.base.errors import ConfigError, DataError
from commonweal.data.federation import Federation
from commonweal.datasets.heart import HOSPITALS, Prep, fill_gaps, heart, one_hot
from commonweal.datasets.students import students
from commonweal.datasets.vowel import SPEAKERS, vowel
from commonweal.task.scores import undefined
from helpers import data

PREPS: tuple[Prep, ...] = ("aaggff", "flamby")

# Vowels


def shipped() -> list[list[float]]:
    text = files("commonweal.datasets").joinpath("_data/vowel.dat").read_text(encoding="ascii")
    return [[float(v) for v in line.split(",")] for line in text.splitlines()]


def test_vowels_have_fifteen_speakers_of_66_rows_and_11_classes() -> None:
    f = vowel()
    assert f.clients == 15 and f.outputs == 11
    assert (f.train.sizes + f.test.sizes).tolist() == [66] * 15
    assert f.test.sizes.tolist() == [13] * 15  # a fifth of 66 is 13.2
    assert f.train.x.shape == (990 - 195, 10) and f.train.x.dtype == torch.float32
    assert (f.labels, f.score) == ("classes", "accuracy")
    assert f.unscored == []


def test_the_shipped_vowels_are_ucis_row_by_row() -> None:
    lines = data("vowel", "vowel-context.data").read_text(encoding="ascii").splitlines()
    original = [
        [float(v) for v in line.replace(",", " ").split()] for line in lines if line.strip()
    ]
    assert shipped() == original and len(original) == 990


def test_vowels_belong_to_their_speakers() -> None:
    f, table = vowel(), np.array(shipped())
    assert set(f.names) == set(SPEAKERS) and len(SPEAKERS) == 15
    for number, name in enumerate(SPEAKERS):
        k = f.names.index(name)
        mine = table[table[:, 1] == number]
        want = sorted(
            zip(
                mine[:, 3:13].astype(np.float32).tolist(),
                mine[:, 13].astype(int).tolist(),
                strict=True,
            )
        )
        got = [
            row
            for part in (f.train, f.test)
            for row in zip(part.client(k).x.tolist(), part.client(k).y.tolist(), strict=True)
        ]
        assert sorted(got) == want


def test_every_speaker_says_every_vowel_in_training_and_in_the_test() -> None:
    f = vowel()
    for k in range(15):
        assert torch.bincount(f.train.client(k).y, minlength=11).sub(4).abs().max() <= 1
        assert torch.bincount(f.test.client(k).y, minlength=11).min() >= 1


def test_men_and_women_are_where_their_names_are() -> None:
    table = np.array(shipped())
    women = {SPEAKERS[int(s)] for s in table[table[:, 2] == 1, 1]}
    assert women == {"Jo", "Kate", "Penny", "Rose", "Sarah", "Sue", "Wendy"}


def test_the_seed_and_the_share_of_vowels() -> None:
    first = vowel(seed=1).test.x
    assert torch.equal(first, vowel(seed=1).test.x)
    assert not torch.equal(first, vowel(seed=2).test.x)
    assert vowel(test=0.5).test.sizes.tolist() == [33] * 15


def test_some_of_the_speakers_can_be_chosen() -> None:
    everyone = vowel(seed=4)
    few = vowel(clients=5, seed=4)
    more = vowel(clients=9, seed=4)
    assert few.clients == 5 and set(few.names) < set(more.names) < set(everyone.names)
    assert few.outputs == 11 and list(few.names) == sorted(few.names)
    for k, name in enumerate(few.names):
        same = everyone.names.index(name)
        assert torch.equal(few.train.client(k).x, everyone.train.client(same).x)
        assert torch.equal(few.test.client(k).y, everyone.test.client(same).y)
    assert vowel(clients=5, seed=4).names == few.names
    assert {vowel(clients=5, seed=seed).names for seed in range(4)} != {few.names}


@pytest.mark.parametrize(("clients", "words"), [(0, "at least 1"), (16, "at most 15")])
def test_as_many_speakers_as_there_are(clients: int, words: str) -> None:
    with pytest.raises(ConfigError, match=f"clients = {clients}: it must be {words}"):
        vowel(clients=clients)


# Heart, on files of the test's own


def line(rng: np.random.Generator, sick: int, missing: bool) -> str:
    """A patient as UCI writes one: numbers with and without decimals, `?` for missing values."""
    values = [
        str(rng.integers(28, 78)),
        f"{rng.integers(0, 2)}.0",
        str(rng.integers(1, 5)),
        str(rng.integers(90, 200)),
    ]
    values += [f"{rng.integers(100, 400)}.0", str(rng.integers(0, 2)), str(rng.integers(0, 3))]
    values += [str(rng.integers(70, 200)), str(rng.integers(0, 2)), f".{rng.integers(0, 10)}"]
    if missing:
        values[rng.integers(3, 10)] = "?"
    return ",".join([*values, "?", "?", "?", str(sick * rng.integers(1, 5))])


def written(folder: Path, patients: int = 20, missing: int = 4) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for k, hospital in enumerate(HOSPITALS):
        rng = np.random.default_rng(k)
        rows = [line(rng, i % 2, i < missing) for i in range(patients)]
        (folder / f"processed.{hospital}.data").write_text("\n".join(rows) + "\n")
    return folder


def counts(f: Federation) -> list[tuple[int, int]]:
    return list(zip(f.train.sizes.tolist(), f.test.sizes.tolist(), strict=True))


def test_small_files_in_the_authors_preparation(tmp_path: Path) -> None:
    f = heart(dir=str(written(tmp_path)))
    assert f.names == ("cleveland", "hungarian", "switzerland", "va")
    assert counts(f) == [(16, 4)] * 4  # all rows, a fifth of them tested
    assert (
        f.train.x.shape == (64, 15)
        and f.test.x.shape == (16, 15)
        and f.train.x.dtype == torch.float32
    )
    assert (f.outputs, f.labels, f.score) == (1, "binary", "auroc")
    assert all(f.test.client(k).y.sum() == 2 for k in range(4))


def test_small_files_in_flambys_preparation(tmp_path: Path) -> None:
    f = heart(prep="flamby", dir=str(written(tmp_path)))
    assert counts(f) == [(10, 6)] * 4  # 16 complete rows, 34 % of them tested
    assert f.train.x.shape == (40, 13)


def test_what_is_missing_beyond_the_used_columns_does_not_matter(tmp_path: Path) -> None:
    assert counts(heart(prep="flamby", dir=str(written(tmp_path, missing=0)))) == [(13, 7)] * 4


@pytest.mark.parametrize("prep", PREPS)
def test_features_are_standardised_on_training_rows(prep: Prep, tmp_path: Path) -> None:
    f = heart(prep=prep, dir=str(written(tmp_path)))
    standardised(f)


def standardised(f: Federation) -> None:
    for k in range(4):
        x = f.train.client(k).x.double()
        assert x.mean(0).abs().max() < 1e-6
        spread = x.std(0, correction=0)
        assert (((spread - 1).abs() < 1e-5) | (spread == 0)).all()
        assert (spread > 0).sum() >= 8
    # The test rows were not used for that.
    assert f.test.client(0).x.mean(0).abs().max() > 0.05


def test_the_seed_chooses_the_authors_test_rows_and_not_flambys(tmp_path: Path) -> None:
    folder = str(written(tmp_path))
    assert torch.equal(heart(seed=1, dir=folder).test.x, heart(seed=1, dir=folder).test.x)
    assert not torch.equal(heart(seed=1, dir=folder).test.x, heart(seed=2, dir=folder).test.x)
    a, b = (heart(prep="flamby", seed=s, dir=folder).test.x for s in (1, 2))
    assert torch.equal(a, b)


def test_gaps_are_filled_with_the_mean_and_categories_stay_whole() -> None:
    table = np.array(
        [[40.0, 1, 1, 100, 200, 1, 2, 150, 1, 1.0, 0], [50.0, 1, 4, 110, 300, 1, 1, 160, 0, 2.0, 1]]
    )
    table = np.vstack([table, table[:1], np.full((1, 11), math.nan)])
    table[3, 10] = 1
    # sex 1; cp mean 2; fbs 1; restecg mean 5/3, cut to 1; exang mean 2/3, cut to 0
    assert fill_gaps(table)[3].tolist() == pytest.approx(
        [130 / 3, 1, 2, 310 / 3, 700 / 3, 1, 1, 460 / 3, 0, 4 / 3, 1]
    )
    assert np.array_equal(fill_gaps(table)[:3], table[:3])


def test_levels_become_columns() -> None:
    table = np.array([[40.0, 1, 3, 100, 200, 0, 2, 150, 1, 1.5, 2]])
    numbers = [40, 1, 100, 200, 0, 150, 1, 1.5]
    assert one_hot(table, drop_first=False).tolist() == [[*numbers, 0, 0, 1, 0, 0, 0, 1]]
    assert one_hot(table, drop_first=True).tolist() == [[*numbers, 0, 1, 0, 0, 1]]


# Heart, on UCI's files


def real(prep: Prep, **how: int) -> Federation:
    return heart(prep=prep, dir=str(data("heart")), **how)


def tables() -> list[np.ndarray]:
    """UCI's rows, read in another way than by the code under test."""
    paths = [data("heart", f"processed.{h}.data") for h in HOSPITALS]
    return [
        np.genfromtxt(path, delimiter=",", missing_values="?", filling_values=np.nan)
        for path in paths
    ]


def test_the_authors_preparation_keeps_all_920_rows() -> None:
    f = real("aaggff")
    assert (f.train.sizes + f.test.sizes).tolist() == [303, 294, 123, 200]
    assert f.test.sizes.tolist() == [61, 59, 25, 40]  # a fifth, rounded up
    assert f.train.x.shape[1] == f.test.x.shape[1] == 15


def test_flambys_preparation_keeps_the_740_complete_rows_and_its_split() -> None:
    f = real("flamby")
    assert counts(f) == [(199, 104), (172, 89), (30, 16), (85, 45)]
    assert f.train.x.shape[1] == 13
    # FLamby stratifies where each class has more than two rows; Switzerland's one healthy patient
    # is a test row.
    assert int(f.train.client(2).y.sum()) == 30 and int(f.test.client(2).y.sum()) == 15


@pytest.mark.parametrize("prep", PREPS)
def test_the_hospitals_tests_are_stratified(prep: Prep) -> None:
    f = real(prep)
    for k, table in enumerate(tables()):
        used = table[:, [*range(10), 13]]
        kept = used if prep == "aaggff" else used[~np.isnan(used).any(1)]
        sick = int((kept[:, -1] > 0).sum())
        tested = int(f.test.client(k).y.sum())
        assert tested + int(f.train.client(k).y.sum()) == sick
        assert abs(tested - sick * int(f.test.sizes[k]) / len(kept)) < 1
    assert sorted(set(f.train.y.tolist())) == [0, 1]


@pytest.mark.parametrize("prep", PREPS)
def test_the_hospitals_features_are_standardised_on_training_rows(prep: Prep) -> None:
    standardised(real(prep))


@pytest.mark.parametrize("prep", PREPS)
def test_the_hospitals_rows_are_ucis(prep: Prep) -> None:
    # Ages are never missing: undo the standardisation by two moments, and find every patient again
    # with the label.
    f = real(prep)
    for k, table in enumerate(tables()):
        used = table[:, [*range(10), 13]]
        kept = used if prep == "aaggff" else used[~np.isnan(used).any(1)]
        x = torch.cat([f.train.client(k).x, f.test.client(k).x])[:, 0].double().numpy()
        y = torch.cat([f.train.client(k).y, f.test.client(k).y]).numpy()
        ages = (x - x.mean()) / x.std() * kept[:, 0].std() + kept[:, 0].mean()
        assert np.allclose(ages, ages.round(), atol=1e-3)
        got = sorted(zip(ages.round().astype(int).tolist(), y.tolist(), strict=True))
        assert got == sorted(
            zip(
                kept[:, 0].astype(int).tolist(), (kept[:, -1] > 0).astype(int).tolist(), strict=True
            )
        )


def test_every_hospital_can_be_scored_by_auroc() -> None:
    for f in (real("aaggff"), real("flamby")):
        assert undefined("auroc", f.test.y, f.test.offsets) == []


# Files that cannot be used


def test_a_missing_file_is_named_with_its_folder(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "processed.va.data").unlink()
    with pytest.raises(DataError) as caught:
        heart(dir=str(tmp_path))
    text = str(caught.value)
    assert (
        "processed.va.data not found" in text
        and repr(str(tmp_path)) in text
        and "put them there" in text
    )
    assert "cleveland" not in text and "COMMONWEAL_DATA" not in text


def test_a_wrong_folder_names_all_four_files(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        heart(dir=str(tmp_path / "nowhere"))
    assert all(f"processed.{h}.data" in str(caught.value) for h in HOSPITALS)
    assert "nowhere" in str(caught.value)


def test_a_folder_in_a_files_place_is_an_error(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "processed.va.data").unlink()
    (tmp_path / "processed.va.data").mkdir()
    with pytest.raises(DataError, match=r"processed\.va\.data' is a folder where a file should be"):
        heart(dir=str(tmp_path))


def test_the_environment_sets_the_folder_of_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMMONWEAL_DATA", str(tmp_path))
    with pytest.raises(DataError, match="set COMMONWEAL_DATA to a folder that has them in 'heart'"):
        heart()
    written(tmp_path / "heart")
    assert counts(heart()) == [(16, 4)] * 4


def test_by_default_data_are_in_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COMMONWEAL_DATA", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(DataError, match=r"\.cache/commonweal/heart"):
        heart()
    written(tmp_path / ".cache" / "commonweal" / "heart")
    assert counts(heart()) == [(16, 4)] * 4


def test_a_folder_that_is_given_comes_before_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMMONWEAL_DATA", str(tmp_path / "nowhere"))
    assert heart(dir=str(written(tmp_path))).clients == 4


DAMAGE: dict[str, Callable[[str], str]] = {
    "cut within a line": lambda text: (
        text[: len(text) // 2 + 3].rsplit("\n", 1)[0] + "\n63.0,1.0,1.0"
    ),
    "cut to one line": lambda text: text.split("\n")[0] + "\n",
    "empty": lambda text: "",
    "a header": lambda text: "age,sex,cp\n" + text,
    "semicolons": lambda text: text.replace(",", ";"),
    "fewer columns": lambda text: "\n".join(line.rsplit(",", 1)[0] for line in text.splitlines()),
    "words": lambda text: text.replace("?", "unknown"),
    "a page of the web": lambda text: "<html><body>404 Not Found</body></html>",
}


@pytest.mark.parametrize("prep", PREPS)
@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_file_is_named(how: str, prep: Prep, tmp_path: Path) -> None:
    path = written(tmp_path) / "processed.hungarian.data"
    path.write_text(DAMAGE[how](path.read_text()))
    with pytest.raises(DataError, match=r"processed\.hungarian\.data"):
        heart(prep=prep, dir=str(tmp_path))


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    (written(tmp_path) / "processed.va.data").write_bytes(bytes(range(256)))
    with pytest.raises(DataError, match=r"processed\.va\.data"):
        heart(dir=str(tmp_path))


def test_a_column_of_gaps_is_an_error_in_words(tmp_path: Path) -> None:
    path = written(tmp_path) / "processed.switzerland.data"
    rows = [row.split(",") for row in path.read_text().split()]
    path.write_text("\n".join(",".join([*row[:4], "?", *row[5:]]) for row in rows))
    for prep in PREPS:
        with pytest.raises(DataError, match="switzerland"):
            heart(prep=prep, dir=str(tmp_path))


def test_the_shipped_students_are_ucis_row_by_row() -> None:
    path = data("students", "dropout.csv.gz")
    with gzip.open(path, "rt", encoding="utf-8-sig") as file:
        original = list(csv.reader(file, delimiter=";"))
    shipped_path = files("commonweal.datasets").joinpath("_data/students.csv")
    rows = list(csv.DictReader(shipped_path.read_text(encoding="utf-8").splitlines()))
    assert len(rows) == len(original) - 1 == 4424
    names: dict[str, set[str]] = defaultdict(set)  # code -> names
    places = {"age": 19, "units grade": 25, "admission grade": 12, "units approved": 24}
    for row, source in zip(rows, original[1:], strict=True):
        assert row["outcome"] == source[36].lower()
        assert {name: float(row[name]) for name in places} == {
            name: round(float(source[place]), 2) for name, place in places.items()
        }
        names[source[3]].add(row["course"])
    assert len(names) == 17 and all(len(courses) == 1 for courses in names.values())


def test_students_are_seventeen_courses_whose_features_know_nothing_of_the_outcome() -> None:
    f = students()
    assert isinstance(f, Federation)
    assert f.clients == 17
    assert len(f.train.y) + len(f.test.y) == 4424
    assert f.preprocessing is not None
    columns = {column.name for column in f.preprocessing.columns}
    assert "units grade" in columns
    assert not columns & {"course", "outcome"}
