"""Why AdaFed's exact rates fail where the updates of many clients conflict.

For each round: the smallest eigenvalue of the updates' cosines (1 if all are orthogonal, 0 if some
mixture of unit updates cancels), the sum of the absolute weights (1 for an average), and the cosine
of the direction taken with the mean update. Means over the rounds of one seed; the score is the
mean accuracy in % on validation rows.

    COMMONWEAL_DATA=... python benchmarks/conflicts.py
"""

from dataclasses import dataclass, field, replace

import numpy as np
import torch

from choice import FEDERATIONS, FIRST_SEED
from commonweal.base.tensors import State
from commonweal.config.experiment import Experiment
from commonweal.jobs.job import job_from_experiment
from commonweal.jobs.rounds import run
from commonweal.protocols.averaging import Averaging
from commonweal.rules import AdaFed, Decision, Reports

NAMES = ("vowel", "digits, Dirichlet 0.1")


@dataclass(frozen=True)
class Watched(AdaFed):
    """AdaFed that notes the geometry of every round"""

    notes: list[tuple[float, float, float]] = field(default_factory=list)

    def __call__(self, reports: Reports, state: State) -> Decision:
        decision = super().__call__(reports, state)
        weights, gram, norms = decision.weights, reports.gram, reports.norms
        cosines = gram / torch.outer(norms, norms)
        length = (weights @ gram @ weights).sqrt() * gram.mean().sqrt()
        self.notes.append(
            (
                float(torch.linalg.eigvalsh(cosines)[0]),
                float(weights.abs().sum()),
                float((weights @ gram).mean() / length),
            )
        )
        return decision


def line(name: str, rule: Watched) -> str:
    settings = FEDERATIONS[name]
    experiment = Experiment(
        **settings, seed=FIRST_SEED, evaluate_every=settings["rounds"], validation=0.2
    )
    job = job_from_experiment(experiment)
    assert isinstance(job.algorithm, Averaging)
    *_, last = run(replace(job, algorithm=replace(job.algorithm, rule=rule)))
    eigenvalue, total, cosine = np.mean(rule.notes, 0)
    score = 100 * last.validation["mean"]
    return (
        f"| {name} | {rule.scale} | {eigenvalue:.3f} | {total:.1f} | {cosine:.2f} | {score:.1f} |"
    )


def main() -> None:
    print("| federation | scale | smallest eigenvalue | sum of weights | cosine | score |")
    print("|---|---|--:|--:|--:|--:|")
    for name in NAMES:
        print(line(name, Watched(scale="mean")))
        print(line(name, Watched(scale="bounded")), flush=True)


if __name__ == "__main__":
    main()
