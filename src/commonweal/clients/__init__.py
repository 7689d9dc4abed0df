"""Client methods, one per file: what a client does with the model it receives."""

from commonweal.clients.alone import Alone
from commonweal.clients.apfl import APFL
from commonweal.clients.blend import Blend
from commonweal.clients.choice import ChoiceClient
from commonweal.clients.ditto import Ditto
from commonweal.clients.fedbabu import FedBABU
from commonweal.clients.fedbn import FedBN
from commonweal.clients.fedper import FedPer
from commonweal.clients.fedprox import FedProx
from commonweal.clients.fedrep import FedRep
from commonweal.clients.fine_tune import FineTune
from commonweal.clients.lg_fedavg import LGFedAvg
from commonweal.clients.pfedme import PFedMe
from commonweal.clients.propfair import PropFairClient
from commonweal.clients.recalibrate import Recalibrate
from commonweal.clients.scaffold import Scaffold
from commonweal.clients.semi_vred import SemiVRedClient
from commonweal.clients.superfed import SuPerFedLM, SuPerFedMM
from commonweal.clients.term import TERMClient
from commonweal.training.client import Client

__all__ = [
    "APFL",
    "Alone",
    "Blend",
    "ChoiceClient",
    "Client",
    "Ditto",
    "FedBABU",
    "FedBN",
    "FedPer",
    "FedProx",
    "FedRep",
    "FineTune",
    "LGFedAvg",
    "PFedMe",
    "PropFairClient",
    "Recalibrate",
    "Scaffold",
    "SemiVRedClient",
    "SuPerFedLM",
    "SuPerFedMM",
    "TERMClient",
]
