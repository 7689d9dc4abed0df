"""Heart, seeds 2, 4, 6: AAggFF's Table 7 beside ours, by the paper's formulas and by its code's.

Mean weighted by test rows and worst client, AUROC in %, after 200 rounds; mean (population std)
over the seeds. "paper" is printed there, "code" is what the authors' code gave when it was run
again (same splits).

    COMMONWEAL_DATA=... python benchmarks/heart.py
"""

import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from commonweal.config.experiment import read
from commonweal.jobs.rounds import run

PROTOCOL = Path(__file__).parents[1] / "examples" / "heart.toml"
SEEDS = (2, 4, 6)
# The authors' code divides the server's lr by the factor of the clients' decay.
GROWING = ("server.growth=1.001001001001001", "server.growth_every=2")


class Row(NamedTuple):
    label: str
    changes: tuple[str, ...]
    paper: str
    code: str


ROWS = (
    Row("FedAvg", ("rule=fedavg",), "84.42 / 65.22", "84.38 / 65.00"),
    Row("FedAvg, growing server lr", ("rule=fedavg", *GROWING), "", "84.38 / 65.00"),
    Row("uniform", ("rule=uniform",), "", "84.58 / 65.56"),
    Row(
        "AAggFF-S, eq. 7, frechet",
        ("rule=aaggff-s", "rule.cdf=frechet"),
        "",
        "85.22 / 67.11",
    ),
    Row("AAggFF-S, eq. 7, normal", ("rule=aaggff-s",), "", "85.27 / 67.22"),
    Row(
        "AAggFF-S, reference, growing server lr, frechet",
        ("rule=aaggff-s", "rule.cdf=frechet", "rule.variant=reference", *GROWING),
        "85.04 / 66.56",
        "85.02 / 66.44",
    ),
)


def last_metrics(row: Row, seed: int) -> list[float]:
    """The weighted mean and the worst client in per cent."""
    experiment = read(PROTOCOL, [*row.changes, f"seed={seed}", "evaluate_every=1"])
    metrics = list(run(experiment))[-1].metrics
    return [100 * metrics["weighted_mean"], 100 * metrics["worst"]]


def main() -> None:
    print("| | ours: mean / worst | paper | code |\n|---|---|---|---|")
    start = time.perf_counter()
    for row in ROWS:
        figures = np.array([last_metrics(row, seed) for seed in SEEDS])
        cells = zip(figures.mean(0), figures.std(0), strict=True)
        ours = " / ".join(f"{mean:.2f} ({std:.2f})" for mean, std in cells)
        print(f"| {row.label} | {ours} | {row.paper} | {row.code} |", flush=True)
    seconds = (time.perf_counter() - start) / (len(SEEDS) * len(ROWS))
    print(f"\n{seconds:.1f} s per run of 200 rounds, evaluated every round")


if __name__ == "__main__":
    main()
