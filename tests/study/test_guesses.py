"""Tables of many shapes: label and clients are guessed right, or `fit` stops and lists them.

Each table is what a person may have, with what it says about its columns. A wrong guess without a
doubt is the fault that these tests are about: nothing else tells a person that a model predicts
another column.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from commonweal.datasets.guess.guess import guess

Cells = Callable[[np.random.Generator], list[str]]
ROWS = 300


def one_of(*values: object) -> Cells:
    return lambda rng: [str(values[k]) for k in rng.integers(len(values), size=ROWS)]


def sites(count: int, name: str = "") -> Cells:
    return lambda rng: [f"{name}{i % count}" for i in range(ROWS)]


def by_site(count: int, *values: object) -> Cells:
    return lambda rng: [str(values[i % count % len(values)]) for i in range(ROWS)]


def measure(rng: np.random.Generator) -> list[str]:
    return [f"{value:.3f}" for value in rng.normal(size=ROWS)]


def times(rng: np.random.Generator) -> list[str]:
    return [f"{value:.3f}" for value in rng.exponential(size=ROWS)]


def row(rng: np.random.Generator) -> list[str]:
    return [f"{i + 1}" for i in range(ROWS)]


def code(rng: np.random.Generator) -> list[str]:
    return [f"P{1000 + 7 * i}" for i in range(ROWS)]


age, count, dead = one_of(*range(18, 95)), one_of(*range(8)), one_of(0, 1)
LESIONS = {f"histological_type_{k}": dead for k in range(5)}


class Shape(NamedTuple):
    """A table, and what a person would say of it. Empty: no column is it."""

    columns: dict[str, Cells]
    label: str
    client: str
    stops: str = ""  # which guess is in doubt: "label", "client" or "label client"


SHAPES = {
    # as in trials and registries
    "impact": Shape({"name": sites(15, "study "), "type": by_site(15, "RCT", "OBS"), "age": age,
                     "pupil": one_of("None", "one", "both"), "mort": dead, "d.unfav": dead},
                    "mort", "name", "client"),
    "contraception": Shape({"woman": row, "district": sites(60), "use": one_of(*"YN"),
                            "livch": count, "age": measure, "urban": one_of(*"YN")},
                           "use", "district", "label"),
    "tcga_brca": Shape({"patient": code, "centre": sites(6, "c"), "age": age, "T": times,
                        "E": dead} | LESIONS, "T,E", "centre"),
    "events first": Shape({"pid": row, "E": dead, "T": times, "Ductal": dead, "Lobular": dead,
                           "center": sites(6)}, "T,E", "center"),
    "two survivals": Shape({"centre": sites(8, "s"), "os_months": times, "os_status": dead,
                            "pfs_months": times, "pfs_status": dead},
                           "os_months,os_status", "centre", "label"),
    "survival in R": Shape({"inst": sites(18), "time": times, "status": one_of(1, 2), "age": age},
                           "time,status", "inst"),
    "visit times": Shape({"clinic": sites(8), "visit_time": measure, "event": dead, "x": measure},
                         "event", "clinic", "label"),
    "stroke trial": Shape({"HOSPNUM": sites(40), "AGE": age, "COUNTRY": sites(8, "c"),
                           "FDEAD": one_of(*"YN"), "DDEAD": one_of(*"YN"), "OCCODE": count},
                          "FDEAD", "HOSPNUM", "label"),
    "intensive care": Shape({"patientunitstayid": row, "hospitalid": sites(20), "score": age,
                             "hospitaldischargestatus": one_of("Alive", "Expired")},
                            "hospitaldischargestatus", "hospitalid", "label"),
    "measured again": Shape({"subject#": sites(42), "test_time": measure, "motor_UPDRS": measure,
                             "total_UPDRS": measure, "PPE": measure},
                            "total_UPDRS", "subject#", "label"),
    "encounters": Shape({"encounter_id": row, "patient_nbr": code, "payer": one_of("MC", "HM"),
                         "specialty": one_of(*"abcd"), "readmitted": one_of("NO", "<30", ">30")},
                        "readmitted", "specialty", "client"),
    "within days": Shape({"study_id": sites(8), "subject_id": row, "arm": one_of(*"ab"),
                          "outcome_30d": dead}, "outcome_30d", "study_id"),
    # other languages
    "Polish": Shape({"szpital": sites(5, "s"), "wiek": age, "zgon": one_of("tak", "nie"),
                     "masa": measure}, "zgon", "szpital"),
    "French": Shape({"numéro": row, "établissement": sites(5), "âge": age,
                     "décès": one_of("oui", "non"), "poids": measure}, "décès", "établissement"),
    "German": Shape({"PatNr": row, "Krankenhaus": sites(5), "Alter": age,
                     "verstorben": one_of("ja", "nein"), "BMI": measure},
                    "verstorben", "Krankenhaus"),
    "Portuguese": Shape({"hospital": sites(4), "idade": age, "óbito": one_of("sim", "não"),
                         "peso": measure}, "óbito", "hospital"),
    "Swedish": Shape({"sjukhus": sites(4), "ålder": age, "död": one_of("ja", "nej"),
                      "vikt": measure}, "död", "sjukhus"),
    "Turkish": Shape({"hastane": sites(4), "yaş": age, "ölüm": dead, "kilo": measure},
                     "ölüm", "hastane"),
    "Russian": Shape({"больница": sites(4, "b"), "возраст": age, "смерть": dead, "вес": measure},
                     "смерть", "больница", "label client"),
    "Chinese": Shape({"医院": sites(4, "h"), "年龄": age, "死亡": dead, "体重": measure},
                     "死亡", "医院", "label client"),
    # features that are called like labels
    "constant in sites": Shape({"site": sites(6), "target": by_site(6, 0, 1), "age": age,
                                "healed": dead}, "healed", "site", "label"),
    "lab results": Shape({"clinic": sites(5), "result": measure, "sepsis": dead, "x": measure},
                         "sepsis", "clinic", "label"),
    "kinds of events": Shape({"user": sites(25), "event": one_of("click", "view"),
                              "price": measure, "bought": dead}, "bought", "user", "label"),
    "a diagnosis": Shape({"hospital": sites(5), "diagnosis": one_of(*"ABC"), "x": measure,
                          "readmitted_30d": dead}, "readmitted_30d", "hospital", "label"),
    "family history": Shape({"site": sites(5), "family death": dead, "x": measure,
                             "dementia": dead}, "dementia", "site", "label"),
    "target lesions": Shape({"site": sites(5), "target_lesion": dead, "x": measure, "mace": dead},
                            "mace", "site", "label"),
    "other diseases": Shape({"site": sites(5), "heart disease": dead, "kidney disease": dead,
                             "icu": dead}, "icu", "site", "label"),
    "school classes": Shape({"school": sites(5), "class": one_of(*"abc"), "passed": dead,
                             "x": measure}, "passed", "school", "label"),
    "smoking status": Shape({"site": sites(5), "smoking status": one_of(*"xy"), "bmi": measure,
                             "stroke": dead}, "stroke", "site", "label"),
    # clients
    "a unit": Shape({"unit": one_of("mg", "g", "ml"), "ward": sites(9), "dose": measure,
                     "died": dead}, "died", "ward", "client"),
    "a state": Shape({"state": one_of("single", "married", "divorced"), "plant": sites(9),
                      "x": measure, "default": dead}, "default", "plant", "client"),
    "names of people": Shape({"name": code, "clinic": sites(5), "x": measure, "outcome": dead},
                             "outcome", "clinic"),
    "producers": Shape({"producer": sites(12, "p"), "acidity": measure, "quality": count},
                       "quality", "producer", "label client"),
    # others
    "label first": Shape({"diagnosis": one_of(*"MB"), "radius": measure, "site": sites(4)},
                         "diagnosis", "site"),
    "row numbers last": Shape({"site": sites(5), "died": dead, "x": measure, "index": row},
                              "died", "site"),
    "grades": Shape({"school": sites(2), "age": count, "G1": count, "G2": count, "G3": count},
                    "G3", "school", "label"),
    "radon": Shape({"county": sites(85, "c"), "floor": dead, "log_uranium": measure,
                    "log_radon": measure}, "log_radon", "county", "label"),
}  # fmt: skip


def write(path: Path, columns: dict[str, Cells]) -> Path:
    rng = np.random.default_rng(0)
    cells = [draw(rng) for draw in columns.values()]
    lines = [",".join(columns), *map(",".join, zip(*cells, strict=True))]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", SHAPES)
def test_label_and_clients_are_right_or_listed(tmp_path: Path, name: str) -> None:
    shape = SHAPES[name]
    path = write(tmp_path / "t.csv", shape.columns)
    guessed = guess(path, None, None, path.with_suffix(".toml"))
    texts = " ".join(doubt.text for doubt in guessed.doubts)
    doubtful = [role for role in ("label", "client") if f"the {role} is doubtful" in texts]
    if "no column looks like clients" in texts:
        doubtful.append("client")
    assert doubtful == shape.stops.split()
    options = [option for doubt in guessed.doubts for option in doubt.options]
    if "label" in doubtful:
        assert shape.label in [option.label for option in options]
    else:
        assert f'label = "{shape.label}"' in guessed.experiment
    if "client" in doubtful:
        assert shape.client in [option.client for option in options]
    else:
        assert f'client = "{shape.client}"' in guessed.experiment
