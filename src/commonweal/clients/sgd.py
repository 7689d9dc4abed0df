"""sgd: a few steps of plain SGD on the client's own rows.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017.
"""

from commonweal.local import Local

__all__ = ["Local"]
