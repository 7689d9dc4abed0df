"""Choose a model for each client from its improvements over local training.

The functions are in `training/choice.py`, because clients choose inside a run, too. This is their
public place: other programs import `commonweal.analysis.choice.choose`.
"""

from commonweal.training.choice import ALONE, How, choose

__all__ = ["ALONE", "How", "choose"]
