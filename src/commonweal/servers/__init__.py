"""Server optimizers: how the server moves the model along the aggregated direction."""

from commonweal.servers.adaptive import Adagrad, Adam, AMSGrad, Yogi
from commonweal.servers.ball import Ball
from commonweal.servers.optimistic import Optimistic
from commonweal.servers.polyak import Polyak
from commonweal.servers.server import ServerOptimizer
from commonweal.servers.sgd import SGD

__all__ = ["SGD", "AMSGrad", "Adagrad", "Adam", "Ball", "Optimistic", "Polyak"]
__all__ += ["ServerOptimizer", "Yogi"]
