"""What losses of the first batch save: rounds of AFL with loss = "full" and "batch", in turns.

AFL's own algorithm (Mohri et al., ICML 2019, Fig. 3 and 4): logistic regression, one step of 100
rows per domain and round. Processor time of a round, and what both reach.

    COMMONWEAL_DATA=... python benchmarks/batch_loss.py [--rounds N] [--repeats N]
"""

import argparse
import statistics
import time
from typing import Any

import torch

from commonweal.config.experiment import Experiment
from commonweal.jobs.job import job_from_experiment
from commonweal.jobs.rounds import run

SETS: dict[str, dict[str, Any]] = {
    "adult": {"dataset": "adult"},
    "fashion-mnist, 3 garments": {
        "dataset": {"name": "fashion-mnist", "classes": [0, 2, 6], "test": "official"},
        "partition": "labels",
    },
}


def measured(parts: dict[str, Any], loss: str, rounds: int) -> tuple[float, float, float]:
    """Processor time per round in milliseconds, and the mean and worst accuracy in per cent."""
    experiment = Experiment(
        **parts,
        algorithm={"name": "averaging", "loss": loss},
        rule={"name": "afl", "lr": 0.01},
        client={"name": "sgd", "steps": 1, "batch": 100, "lr": 0.1},
        server={"name": "polyak", "step": {"name": "sgd"}},
        rounds=rounds,
        evaluate_every=rounds,
    )
    done = run(job_from_experiment(experiment))
    last = next(done)  # the first round decides how clients are vectorized
    start = time.process_time()
    for last in done:
        if last.number == rounds - 1:  # the last one evaluates
            seconds = time.process_time() - start
    return 1000 * seconds / (rounds - 2), 100 * last.metrics["mean"], 100 * last.metrics["worst"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("| rows | loss | ms per round | mean | worst |\n|---|---|--:|--:|--:|")
    for name, parts in SETS.items():
        times: dict[str, list[float]] = {"full": [], "batch": []}
        reached = {}
        for _ in range(args.repeats):
            for loss in times:
                spent, *reached[loss] = measured(parts, loss, args.rounds)
                times[loss].append(spent)
        for loss, each in times.items():
            mean, worst = reached[loss]
            print(f"| {name} | {loss} | {statistics.median(each):.2f} | {mean:.1f} | {worst:.1f} |")
        ratios = [full / batch for full, batch in zip(*times.values(), strict=True)]
        print(f"{name}: {statistics.median(ratios):.1f} times faster ({min(ratios):.1f} at least)")


if __name__ == "__main__":
    main()
