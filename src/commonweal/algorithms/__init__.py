"""Protocols between a server and its clients."""

from commonweal.algorithms.algorithm import Algorithm, Outcome, Replies, Request
from commonweal.algorithms.averaging import Averaging
from commonweal.algorithms.drfa import DRFA
from commonweal.algorithms.fedcorr import FedCorr
from commonweal.algorithms.pooled import Pooled
from commonweal.algorithms.two_phase import TwoPhase

__all__ = [
    "DRFA",
    "Algorithm",
    "Averaging",
    "FedCorr",
    "Outcome",
    "Pooled",
    "Replies",
    "Request",
    "TwoPhase",
]
