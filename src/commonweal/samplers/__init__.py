"""Samplers: which clients a round asks."""

from commonweal.samplers.by_size import BySize
from commonweal.samplers.by_weight import ByWeight
from commonweal.samplers.only import Only
from commonweal.samplers.poisson import Poisson
from commonweal.samplers.sampler import Sampler
from commonweal.samplers.trace import Trace
from commonweal.samplers.uniform import Uniform

__all__ = ["BySize", "ByWeight", "Only", "Poisson", "Sampler", "Trace", "Uniform"]
