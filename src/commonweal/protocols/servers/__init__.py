"""Server optimizers: how the server moves the model along the aggregated direction."""

from commonweal.protocols.servers.adaptive import Adagrad, Adam, AMSGrad, Yogi
from commonweal.protocols.servers.ball import Ball
from commonweal.protocols.servers.optimistic import Optimistic
from commonweal.protocols.servers.polyak import Polyak
from commonweal.protocols.servers.server import ServerOptimizer
from commonweal.protocols.servers.sgd import SGD

__all__ = ["SGD", "AMSGrad", "Adagrad", "Adam", "Ball", "Optimistic", "Polyak"]
__all__ += ["ServerOptimizer", "Yogi"]
