"""Client-level differential privacy: how much noise a promise needs, and how a round is released.

>>> round(epsilon_of(noise=1.0, rate=0.1, rounds=100, delta=1e-5), 4)
7.0466
"""

from commonweal.protocols.privacy.accounting import epsilon_of, noise_for

__all__ = ["epsilon_of", "noise_for"]
