"""Protocols between a server and its clients."""

from commonweal.protocols.algorithm import Algorithm, Outcome, Replies, Request
from commonweal.protocols.averaging import Averaging
from commonweal.protocols.boosting import Boosting
from commonweal.protocols.drfa import DRFA
from commonweal.protocols.fedcorr import FedCorr
from commonweal.protocols.glm import GLM
from commonweal.protocols.pooled import Pooled
from commonweal.protocols.two_phase import TwoPhase

__all__ = [
    "DRFA",
    "Algorithm",
    "Averaging",
    "Boosting",
    "FedCorr",
    "GLM",
    "Outcome",
    "Pooled",
    "Replies",
    "Request",
    "TwoPhase",
]
