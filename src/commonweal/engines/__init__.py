"""Engines: who carries the messages. The simulator holds all clients in this process."""

from commonweal.config.policy import Policy
from commonweal.data.federation import Federation
from commonweal.engines.engine import Engine, LocalEngine
from commonweal.engines.simulator import Simulator, gains_from_threads

__all__ = ["Engine", "LocalEngine", "gains_from_threads", "simulate"]


def simulate(
    federation: Federation,
    *,
    seed: int = 0,
    vectorize: str = "auto",
    device: str = "cpu",
    deterministic: bool = False,
    ranks: bool = False,
    policy: Policy | None = None,
) -> LocalEngine:
    """An engine that runs the clients of a federation, alone or with the ranks of torchrun."""
    if not ranks:
        return Simulator(
            federation,
            seed,
            vectorize,
            device=device,
            deterministic=deterministic,
            policy=policy,
        )
    from commonweal.engines.ranks import Ranks  # torch.distributed takes time to import

    return Ranks(federation, seed, vectorize, device, deterministic)
