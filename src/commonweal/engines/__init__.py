"""Engines: who carries the messages. The simulator holds all clients in this process."""

from commonweal.base.values import Value
from commonweal.data.federation import Federation
from commonweal.engines.engine import Engine
from commonweal.engines.simulator import Simulator

__all__ = ["Engine", "simulate"]


def simulate(federation: Federation, **options: Value) -> Engine:
    """An engine that runs the clients of a federation in this process."""
    return Simulator(federation, **options)
