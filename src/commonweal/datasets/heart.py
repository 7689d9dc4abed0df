"""Heart disease in four hospitals: Switzerland has hardly a healthy patient, and VA few rows.

UCI Heart Disease (Janosi, Steinbrunn, Pfisterer, Detrano), CC BY 4.0; the four `processed.*.data`
files in `heart`. A client is a hospital.
"""

from pathlib import Path
from typing import Literal

import numpy as np
import torch

from commonweal.base.errors import DataError
from commonweal.data.federation import Federation
from commonweal.data.rows import Rows
from commonweal.data.sources.files import locate
from commonweal.datasets.pools import standardize

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
# slope, ca and thal are missing too often: every preprocessing drops them
USED = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 13)
LEVELS = {2: (1, 2, 3, 4), 6: (0, 1, 2)}  # cp and restecg become one column per level
CATEGORIES = [1, 2, 5, 6, 8]  # sex, cp, fbs, restecg, exang
Prep = Literal["aaggff", "flamby"]
Labelled = tuple[np.ndarray, np.ndarray]  # features, labels


def heart(prep: Prep = "aaggff", seed: int = 0, dir: str | None = None) -> Federation:
    """Four hospitals, 13 or 15 features, disease or not; score: AUROC (aaggff) or accuracy (flamby)

    prep: "aaggff" keeps all 920 rows and fills gaps with the hospital's mean (before the split: a
    small leak, as published), 20 % test, stratified; "flamby" keeps the 740 complete rows and
    FLamby's own split (34 % test)
    seed: which rows are test rows (aaggff); dir: the folder of the four files
    """
    from sklearn.model_selection import train_test_split  # slow to import; the published split

    flamby = prep == "flamby"
    names = [f"processed.{hospital}.data" for hospital in HOSPITALS]
    train = []
    test = []
    for path in locate("heart", "heart", names, dir):
        table = _read(path, complete=flamby)
        y = (table[:, -1] > 0).astype(np.int64)
        # FLamby stratifies only where every label occurs more than twice: not in Switzerland.
        train_rows, test_rows = train_test_split(
            np.arange(len(y)),
            test_size=0.34 if flamby else 0.2,
            random_state=43 if flamby else seed % 2**32,
            stratify=y if np.bincount(y, minlength=2).min() > 2 else None,
        )
        x = standardize(one_hot(table, drop_first=flamby), train_rows)
        train.append((x[train_rows], y[train_rows]))
        test.append((x[test_rows], y[test_rows]))
    # FLamby scores by accuracy: Switzerland's 46 complete rows have a single healthy patient.
    score = "accuracy" if flamby else "auroc"
    return Federation(_join(train), _join(test), HOSPITALS, outputs=1, labels="binary", score=score)


ENTRIES = {"heart": heart}


def _read(path: Path, complete: bool) -> np.ndarray:
    """A hospital's rows, with gaps filled, or only the complete ones."""
    try:
        text = path.read_text(encoding="utf-8").replace("?", "nan")
        table = np.array([line.split(",") for line in text.split()], dtype=float)[:, USED]
    except (OSError, ValueError, IndexError) as error:
        raise DataError(
            f"{str(path)!r} is not UCI's file of 14 comma-separated columns: {error}"
        ) from None
    if complete:
        table = table[~np.isnan(table).any(1)]
    if len(table) < 5 or np.isnan(table).all(0).any():
        raise DataError(
            f"{str(path)!r} has {len(table)} usable rows or an empty column: "
            "it is not UCI's whole file"
        )
    return table if complete else fill_gaps(table)


def fill_gaps(table: np.ndarray) -> np.ndarray:
    """Missing values (NaN) replaced by the column's mean."""
    mean = np.nanmean(table, axis=0)
    mean[CATEGORIES] = np.trunc(mean[CATEGORIES])  # as the authors' code: a category stays whole
    return np.where(np.isnan(table), mean, table)


def one_hot(table: np.ndarray, drop_first: bool) -> np.ndarray:
    """The numbers, then a column per level of each category."""
    numbers = [column for column in range(10) if column not in LEVELS]
    columns = [table[:, numbers]]
    for column, levels in LEVELS.items():
        for level in levels[drop_first:]:
            columns.append(table[:, [column]] == level)
    return np.hstack(columns).astype(np.float64)


def _join(parts: list[Labelled]) -> Rows:
    features, labels = zip(*parts, strict=True)
    offsets = np.cumsum([0, *map(len, labels)])
    x = torch.from_numpy(np.concatenate(features))
    return Rows(x.float(), torch.from_numpy(np.concatenate(labels)), torch.from_numpy(offsets))
