"""Aggregation rules, one per file: how much each report of a cohort counts."""

from commonweal.rules.aaggff_d import AAggFFD
from commonweal.rules.aaggff_s import AAggFFS
from commonweal.rules.adafed import AdaFed
from commonweal.rules.afl import AFL
from commonweal.rules.cvar import CVaR
from commonweal.rules.directions import Directions
from commonweal.rules.eg import EG
from commonweal.rules.excess import Excess
from commonweal.rules.fedavg import FedAvg
from commonweal.rules.feddg_ga import FedDGGA
from commonweal.rules.fedfa import FedFA
from commonweal.rules.fedfv import FedFV
from commonweal.rules.fedmdfg import FedMDFG
from commonweal.rules.fedmgda import FedMGDA
from commonweal.rules.fedmgda_plus import FedMGDAPlus
from commonweal.rules.gifair import GIFAIR
from commonweal.rules.grouped import Grouped
from commonweal.rules.guard.guarded import Guarded
from commonweal.rules.maxfl import MaxFL
from commonweal.rules.owa import OWA
from commonweal.rules.propfair import PropFair
from commonweal.rules.qfedavg import QFedAvg
from commonweal.rules.rule import Decision, Kind, Reports, Rule, Stateless
from commonweal.rules.semi_vred import SemiVRed
from commonweal.rules.term import TERM
from commonweal.rules.uniform import Uniform
from commonweal.rules.vred import VRed

__all__ = ["AAggFFD", "AAggFFS", "AFL", "AdaFed", "CVaR", "Decision", "Directions", "EG", "Excess"]
__all__ += ["FedAvg", "FedDGGA", "FedFA", "FedFV", "FedMDFG", "FedMGDA", "FedMGDAPlus", "GIFAIR"]
__all__ += ["Grouped", "Guarded", "Kind", "MaxFL", "OWA", "PropFair", "QFedAvg", "Reports", "Rule"]
__all__ += ["SemiVRed", "Stateless", "TERM", "Uniform", "VRed"]
