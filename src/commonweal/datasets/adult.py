"""Does a person earn more than 50,000 dollars? Two domains: people with a doctorate, who are few, and the rest.

Kohavi and Becker 1996, UCI Machine Learning Repository, CC BY 4.0; `adult.data` and `adult.test` in `adult`.
The two domains are those of AFL (Mohri, Sivek and Suresh, ICML 2019) and q-FFL.
"""

from pathlib import Path
from typing import Literal

import numpy as np

from commonweal.datasets._files import decoded, locate
from commonweal.datasets._shared import Test, noisy, standardised
from commonweal.errors import DataError
from commonweal.federation import Federation
from commonweal.noise import Noise

__all__ = ["adult"]

NUMBERS = (0, 2, 4, 10, 11, 12)  # age, fnlwgt, education-num, capital-gain, capital-loss, hours-per-week
TEXTS = (1, 3, 5, 6, 7, 8, 9, 13)
EDUCATION = 3


def adult(
    features: Literal["categorical", "all"] = "categorical",
    noise: Noise | None = None,
    test: Test = "official",
    seed: int = 0,
    dir: str | None = None,
) -> Federation:
    """48,842 rows, 2 clients (doctorate 594, rest 48,248), 2 classes; score: accuracy

    features: the eight categorical ones, a column a level (as AFL), or "all" with the six numbers, standardised
    noise: wrong labels in training rows; test: UCI's own ("official"), or a share of each client's rows
    seed: which rows these are; dir: the folder of the two files
    """
    parts = [_rows(path) for path in locate("adult", "adult", ["adult.data", "adult.test"], dir)]
    table = np.array([row for part in parts for row in part])
    official = np.arange(len(table)) >= len(parts[0])
    columns = [table[:, [c]] == np.unique(table[:, c]) for c in TEXTS]  # "?" is a level of its own
    if features == "all":
        columns.append(standardised(table[:, NUMBERS].astype(np.float64), ~official))
    x = np.hstack(columns).astype(np.float32)
    y = np.char.startswith(table[:, 14], ">50K").astype(np.int64)
    client = np.where(table[:, EDUCATION] == "Doctorate", "doctorate", "rest")
    held = official if test == "official" else test
    return noisy(Federation.from_arrays(x, y, client, held, seed, outputs=1, loss="binary"), noise, seed)


def _rows(path: Path) -> list[list[str]]:
    """The lines of 15 values; adult.test begins with a comment, and its labels end in a dot."""
    lines = [line for line in decoded(path).splitlines() if line and not line.startswith("|")]
    rows = [[value.strip() for value in line.split(",")] for line in lines]
    wrong = next((row for row in rows if len(row) != 15), None)
    if wrong is not None or not rows:
        raise DataError(f"{str(path)!r} is not UCI's file of 15 comma-separated values a line: {wrong}")
    return rows
