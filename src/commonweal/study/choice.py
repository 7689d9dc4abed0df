"""Choose a model for each client from its improvements over local training.

The functions are in `clients/evidence.py`, because clients choose inside a run, too. This is their
public place: other programs import `commonweal.study.choice.choose` and `choose_together`.
"""

from commonweal.clients.evidence import ALONE, How, choose_together
from commonweal.clients.evidence import choose_by_client as choose

__all__ = ["ALONE", "How", "choose", "choose_together"]
