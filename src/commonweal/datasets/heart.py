"""Heart disease in four hospitals, of which one (Switzerland) hardly has a healthy patient and one (VA) few rows.

UCI Heart Disease (Janosi, Steinbrunn, Pfisterer, Detrano), CC BY 4.0; the four `processed.*.data` files.
A client is a hospital.
"""

from pathlib import Path
from typing import Literal

import numpy as np
import torch

from commonweal.datasets._files import locate
from commonweal.errors import DataError
from commonweal.federation import Federation, Rows

__all__ = ["heart"]

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
USED = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 13)  # slope, ca and thal are missing too often, and every preparation drops them
LEVELS = {2: (1, 2, 3, 4), 6: (0, 1, 2)}  # cp and restecg become one column a level
CATEGORIES = (1, 2, 5, 6, 8)  # sex, cp, fbs, restecg, exang


def heart(prep: Literal["aaggff", "flamby"] = "aaggff", seed: int = 0, dir: str | None = None) -> Federation:
    """Four hospitals, 13 or 15 features, disease or not; score: AUROC (aaggff) or accuracy (flamby)

    prep: "aaggff" keeps all 920 rows and fills gaps with the hospital's mean (before the split: a small leak, as
    published), 20 % test, stratified; "flamby" keeps the 740 complete rows and FLamby's own split (34 % test)
    seed: which rows are test rows (aaggff); dir: the folder of the four files
    """
    from sklearn.model_selection import train_test_split  # slow to import, and the published splits are its

    train, test = [], []
    for path in locate("heart", "heart", [f"processed.{h}.data" for h in HOSPITALS], dir):
        table = _read(path, complete=prep == "flamby")
        x, y = _columns(table, drop_first=prep == "flamby"), (table[:, -1] > 0).astype(np.int64)
        share, state = (0.2, seed % 2**32) if prep == "aaggff" else (0.34, 43)
        # FLamby stratifies only where every label occurs more than twice: not in Switzerland.
        stratify = y if np.bincount(y, minlength=2).min() > 2 else None
        a, b = train_test_split(np.arange(len(y)), test_size=share, random_state=state, stratify=stratify)
        mean, scale = x[a].mean(0), x[a].std(0)
        x = (x - mean) / np.where(scale > 0, scale, 1)
        train.append((x[a], y[a]))
        test.append((x[b], y[b]))
    # FLamby scores by accuracy: Switzerland's 46 complete rows hold a single healthy patient.
    score = "auroc" if prep == "aaggff" else "accuracy"
    return Federation(_rows(train), _rows(test), HOSPITALS, outputs=1, loss="binary", score=score)


def _read(path: Path, complete: bool) -> np.ndarray:
    """A hospital's rows, with gaps filled or left out; an error that names the file if it is not UCI's."""
    try:
        lines = path.read_text(encoding="utf-8").split()
        table = np.array([[float("nan") if v == "?" else float(v) for v in line.split(",")] for line in lines])[:, USED]
    except (OSError, ValueError, IndexError) as error:
        raise DataError(f"{str(path)!r} is not UCI's file of 14 comma-separated columns: {error}") from None
    if complete:
        table = table[~np.isnan(table).any(1)]
    if len(table) < 5 or np.isnan(table).all(0).any():
        raise DataError(f"{str(path)!r} has {len(table)} usable rows or an empty column: it is not UCI's whole file")
    return table if complete else _filled(table)


def _filled(table: np.ndarray) -> np.ndarray:
    mean = np.nanmean(table, axis=0)
    mean[list(CATEGORIES)] = np.trunc(mean[list(CATEGORIES)])  # as the authors' code: a category stays whole
    return np.where(np.isnan(table), mean, table)


def _columns(table: np.ndarray, drop_first: bool) -> np.ndarray:
    numbers = [i for i in range(10) if i not in LEVELS]
    dummies = [(table[:, [c]] == level) for c, levels in LEVELS.items() for level in levels[drop_first:]]
    return np.hstack([table[:, numbers], *dummies]).astype(np.float64)


def _rows(parts: list[tuple[np.ndarray, np.ndarray]]) -> Rows:
    offsets = np.cumsum([0] + [len(y) for _, y in parts])
    x, y = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Rows(torch.from_numpy(x).float(), torch.from_numpy(y), torch.from_numpy(offsets))
