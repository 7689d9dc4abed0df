"""Does a person earn more than 50,000 dollars? Two clients: people with a doctorate, and the rest.

Kohavi and Becker 1996, UCI Machine Learning Repository, CC BY 4.0; `adult.data` and `adult.test` in
`adult`. The two clients are the domains of AFL (Mohri, Sivek and Suresh, ICML 2019) and q-FFL.
"""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from commonweal.base.errors import DataError
from commonweal.data.federation import Federation
from commonweal.data.sources.files import locate, read_text
from commonweal.datasets.pools import Test, standardize

# age, fnlwgt, education-num, capital-gain, capital-loss, hours-per-week
NUMBERS = (0, 2, 4, 10, 11, 12)
TEXTS = (1, 3, 5, 6, 7, 8, 9, 13)
EDUCATION = 3
LABEL = 14


def adult(
    features: Literal["categorical", "all"] = "categorical",
    test: Test = "official",
    seed: int = 0,
    dir: str | None = None,
) -> Federation:
    """48,842 rows, 2 clients (doctorate 594, rest 48,248), 2 classes; score: accuracy

    features: the eight categorical ones, a column per level (as AFL), or "all": with the six
    numbers, standardised
    test: UCI's own ("official"), or a share of each client's rows; seed: which rows these are
    dir: the folder of the two files
    """
    paths = locate("adult", "adult", ["adult.data", "adult.test"], dir)
    train, tested = map(_read, paths)
    table = np.array(train + tested)
    official = np.arange(len(table)) >= len(train)
    columns = [table[:, [c]] == np.unique(table[:, c]) for c in TEXTS]  # "?" is a level too
    if features == "all":
        columns.append(standardize(table[:, NUMBERS].astype(np.float64), ~official))
    federation = Federation.from_arrays(
        np.hstack(columns).astype(np.float32),
        np.char.startswith(table[:, LABEL], ">50K").astype(np.int64),
        np.where(table[:, EDUCATION] == "Doctorate", "doctorate", "rest"),
        official if test == "official" else test,
        seed,
        outputs=1,
        loss="binary",
    )
    return replace(federation, pooled=features == "all")


ENTRIES = {"adult": adult}


def _read(path: Path) -> list[list[str]]:
    """The lines of 15 values. adult.test begins with a comment, and its labels end with a dot."""
    rows = []
    for line in read_text(path).splitlines():
        if line and not line.startswith("|"):
            rows.append([value.strip() for value in line.split(",")])
    wrong = next((row for row in rows if len(row) != 15), None)
    if wrong is not None or not rows:
        raise DataError(
            f"{str(path)!r} is not UCI's file of 15 comma-separated values per line: {wrong}"
        )
    return rows
