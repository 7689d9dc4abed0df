"""Eleven vowels of British English by 15 speakers: can a model serve every voice? Ships with the package.

Deterding 1989, UCI Machine Learning Repository, CC BY 4.0. A client is a speaker with 66 rows of ten numbers.
"""

from importlib.resources import files

import numpy as np

from commonweal.federation import Federation

__all__ = ["vowel"]

# UCI's documentation gives the speakers' names in this order.
SPEAKERS = ["Andrew", "Bill", "David", "Mark", "Jo", "Kate", "Penny", "Rose", "Mike", "Nick", "Rich", "Tim"]
SPEAKERS += ["Sarah", "Sue", "Wendy"]


def vowel(test: float = 0.2, seed: int = 0) -> Federation:
    """990 rows, 15 speakers, 11 classes; score: accuracy

    test: the share of each speaker's rows that is held out; seed: which rows these are
    """
    text = files("commonweal.datasets").joinpath("_data/vowel.dat").read_text(encoding="ascii")
    table = np.array([[float(v) for v in line.split(",")] for line in text.splitlines()])
    speaker = np.array(SPEAKERS)[table[:, 1].astype(int)]
    return Federation.from_arrays(table[:, 3:13], table[:, 13].astype(int), speaker, test, seed)
