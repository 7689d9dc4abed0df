"""sgd: local SGD from the received model.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data,
AISTATS 2017.
"""

from commonweal.training.client import Client

ENTRIES = {"sgd": Client}
