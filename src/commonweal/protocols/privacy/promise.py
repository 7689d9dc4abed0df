"""The promise of a private run, and its cost."""

import math
from dataclasses import dataclass

WARN, HOPELESS = 1.0, 3.0  # of the noise's length, relative to the longest mean update
# Up to which r the worst 10 % of 535 writers lost how much accuracy: docs/privacy.md.
MEANT = ((1.05, "at most 2 %"), (2.1, "up to 14 %"), (2.6, "17 %"), (math.inf, "20 to 55 %"))


@dataclass(frozen=True, kw_only=True)
class Promise:
    """Client-level differential privacy of the final model and of all models on the way.

    The list of clients is public. The contribution of one client, with all its samples, is
    replaced by nothing.

    Attributes:
        epsilon: Bounds the odds of any guess about one client, by a factor of exp(epsilon).
        delta: The probability that it does not.
        noise: z, relative to the most that one client changes.
        rate: The probability of a client to take part in a round.
        rounds: The number of rounds, fixed beforehand.
        cohort: S, the expected number of clients in a round.
        numbers: d, how many numbers of the model clients send.
        weight: H, the largest weight of a client, in the first round.
        share: The part of the promise that public numbers use.
        clip: C, the first bound on the length of an update.
        quantile: The share of updates that are not to be clipped; None: C is fixed.
        simulated: Whether cohorts and noise follow from a seed: who knows it can undo both.
    """

    epsilon: float
    delta: float
    noise: float
    rate: float
    rounds: int
    cohort: float
    numbers: int
    weight: float
    share: float
    clip: float
    quantile: float | None
    simulated: bool
    accountant: str = "privacy loss distributions, dp-accounting"

    @property
    def ratio(self) -> float:
        """r = z H sqrt(d) / S: the length of the noise, relative to the longest mean update."""
        noise = self.noise / math.sqrt(1 - self.share)
        return noise * self.weight * math.sqrt(self.numbers) / self.cohort

    @property
    def sentence(self) -> str:
        """The promise in a sentence."""
        clients = round(self.cohort / self.rate)
        who = "all" if self.rate == 1 else f"{self.cohort:g} of"
        drawn = "" if self.rate == 1 else ", drawn by coins"
        about = (
            f"epsilon {self.epsilon:.2f} at delta {self.delta:g} after {self.rounds} rounds, for "
            f"each client with all its samples ({who} {clients} clients per round{drawn}; noise "
            f"{self.noise:.3g})"
        )
        if self.simulated:
            return (
                "private: simulated promise, as cohorts and noise follow from the seed; with "
                f'entropy = "system" it would be {about}'
            )
        return f"private: {about}"

    @property
    def cost(self) -> str:
        """The effect of the noise on the model, in a sentence."""
        lost = next(text for most, text in MEANT if self.ratio <= most)
        length = (
            f"private: the noise of a round is {self.ratio:.2g} times as long as the longest mean "
            f"update (r = z H sqrt(d) / S, with weights up to {self.weight:.3g} and "
            f"{self.numbers:,} numbers). In experiments such an r cost the worst 10 % of clients "
            f"{lost} of their accuracy, in addition to what clipping takes"
        )
        if self.ratio >= HOPELESS:
            return (
                f"{length}. Hopeless: expect a model that is of no use; this takes hundreds of "
                "clients per round, a smaller model, or a larger epsilon"
            )
        if self.ratio > WARN:
            return (
                f"{length}. Expect a worse model for everyone; draw more clients per round, lower "
                "the largest weight, use a smaller model, or allow a larger epsilon"
            )
        return length
