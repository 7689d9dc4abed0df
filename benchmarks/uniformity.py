"""How far AAggFF-D's weights are from equal ones in the paper's cross-device settings.

Losses are drawn anew in every round from a gamma distribution of each client's own mean (shape 2),
so that some clients are always worse off. Printed is the largest |S w - 1| over the rounds around
each number, in per cent, for the paper's step constant and for smaller ones.

    python benchmarks/uniformity.py
"""

import numpy as np
import torch

from commonweal.rules import AAggFFD
from commonweal.rules.rule import Reports

SETTINGS = {"CelebA": 9343, "Reddit": 817, "SpeechCommands": 2005}  # clients; 5 per round
COHORT = 5
ROUNDS = (1, 100, 300)
CONSTANTS = (None, 0.5, 0.1)


def deviations(clients: int, lipschitz: float | None) -> list[float]:
    """The largest deviation from equal weights within ten rounds, in per cent."""
    rng = np.random.default_rng(0)
    means = rng.gamma(2.0, 0.5, clients)
    rule = AAggFFD(lipschitz=lipschitz)
    state = rule.init(clients)
    largest = []
    for _ in range(max(ROUNDS) + 10):
        ids = rng.choice(clients, COHORT, replace=False)
        losses = torch.from_numpy(means[ids] * rng.gamma(2.0, 0.5, COHORT))
        sizes = torch.ones(COHORT)
        reports = Reports(ids=torch.from_numpy(ids), sizes=sizes, losses=losses, clients=clients)
        decision = rule(reports, state)
        state = decision.state
        largest.append(float((COHORT * decision.weights - 1).abs().max()))
    return [100 * max(largest[t - 1 : t + 9]) for t in ROUNDS]


def main() -> None:
    rounds = " | ".join(f"from round {t}" for t in ROUNDS)
    print(f"| setting | lipschitz | {rounds} |\n|---|--:|" + "--:|" * len(ROUNDS))
    for name, clients in SETTINGS.items():
        for lipschitz in CONSTANTS:
            cells = " | ".join(f"{value:.0f} %" for value in deviations(clients, lipschitz))
            label = "C + 2 (paper)" if lipschitz is None else f"{lipschitz:g}"
            print(f"| {name}, {COHORT} of {clients:,} | {label} | {cells} |")


if __name__ == "__main__":
    main()
