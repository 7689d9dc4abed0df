"""Samplers: which clients a round asks."""

from commonweal.protocols.samplers.by_size import BySize
from commonweal.protocols.samplers.by_weight import ByWeight
from commonweal.protocols.samplers.only import Only
from commonweal.protocols.samplers.poisson import Poisson
from commonweal.protocols.samplers.sampler import Sampler
from commonweal.protocols.samplers.trace import Trace
from commonweal.protocols.samplers.uniform import Uniform

__all__ = ["BySize", "ByWeight", "Only", "Poisson", "Sampler", "Trace", "Uniform"]
