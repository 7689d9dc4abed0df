"""Eleven vowels of British English by 15 speakers: can one model serve every voice?

Deterding 1989, UCI Machine Learning Repository, CC BY 4.0; part of this package. A client is a
speaker with 66 rows of ten numbers.
"""

from importlib.resources import files

import numpy as np

from commonweal.data.federation import Federation
from commonweal.datasets.pools import natural_federation

# UCI's documentation gives the speakers' names in this order.
NAMES = "Andrew Bill David Mark Jo Kate Penny Rose Mike Nick Rich Tim Sarah Sue Wendy"
SPEAKERS = NAMES.split()


def vowel(clients: int | None = None, test: float = 0.2, seed: int = 0) -> Federation:
    """990 rows, 15 speakers, 11 classes; score: accuracy

    clients: how many of the speakers to use
    test: the share of each speaker's rows that is tested
    seed: which rows and clients
    """
    path = files("commonweal.datasets").joinpath("_data/vowel.dat")
    table = np.loadtxt(path.read_text(encoding="ascii").splitlines(), delimiter=",")
    speaker = np.array(SPEAKERS)[table[:, 1].astype(int)]
    y = table[:, 13].astype(int)
    return natural_federation(table[:, 3:13], y, speaker, test, seed, clients, outputs=11)


ENTRIES = {"vowel": vowel}
