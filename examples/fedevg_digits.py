"""Five clients, each with few classes of digits, make a labelled set that teaches all ten.

    python examples/fedevg_digits.py [FOLDER]

No row and no weight is sent. Writes a run's folder with the synthetic rows (synthetic.npz), every
client's score, the server's classifier and a picture of the rows. A stopped run continues when
started again.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits

from commonweal import Federation, Record, Round, Task, model, run
from commonweal.protocols.synthetic import Quality, assess
from commonweal.report.pictures import picture

CLIENTS = 5
ROUNDS = 40
FEDEVG = {"name": "fedevg", "restart": False, "lr": 2e-3}


def load(alpha: float = 0.3, seed: int = 0) -> Federation:
    """scikit-learn's digits: each class spread over the clients by a draw from Dir(alpha)."""
    data = load_digits()
    rng = np.random.default_rng(seed)
    x = (data.images[:, None] / 16).astype(np.float32)
    fractions = rng.dirichlet([alpha] * CLIENTS, 10)
    owner = [f"client {rng.choice(CLIENTS, p=fractions[label])}" for label in data.target]
    return Federation.from_arrays(x, data.target, owner)


def percent(metrics: dict[str, float]) -> str:
    mean = 100 * metrics["mean"]
    worst = 100 * metrics["worst"]
    return f"{mean:.1f} %, {worst:.1f} % at the worst client"


def show_round(done: Round) -> None:
    if done.metrics:
        print(f"round {done.number}: the server's classifier scores {percent(done.metrics)}")


def show_quality(quality: Quality) -> None:
    recognised = 100 * quality.recognised
    coverage = 100 * quality.coverage
    print(f"the saved classifier: {percent(quality.metrics)}")
    print(
        f"Frechet distance {quality.frechet:.1f} (as many real rows: {quality.frechet_real:.1f}); "
        f"{quality.extractor}"
    )
    print(f"recognised {recognised:.0f} %, classes covered {coverage:.0f} %")
    print(
        f"to the nearest training row {quality.nearest:.2f}; "
        f"held-out real rows {quality.nearest_held:.2f}"
    )


def show_files(record: Record) -> None:
    sent = record.rounds[-1].bytes
    total = sent["down"] + sent["up"]
    print(f"bytes per round: {total:,}; as weights {sent['weights']:,}")
    print(f"the rows: {record.folder / 'synthetic.npz'}, a picture: {record.folder / 'rows.png'}")


def main(folder: Path) -> None:
    torch.manual_seed(0)
    digits = load()
    task = Task(model("energy-cnn", shape=(1, 8, 8), outputs=10))
    rounds = run(
        task,
        digits,
        algorithm=FEDEVG,
        rounds=ROUNDS,
        evaluate_every=10,
        out=folder,
        resume=True,
    )
    for done in rounds:
        show_round(done)
    record = Record.read(folder)
    samples = record.samples()
    assert samples is not None
    x, y = samples
    (folder / "rows.png").write_bytes(picture(x, y))
    w = task.vector(record.state_dict())
    show_quality(assess(task, digits, w, x, y, epochs=10))
    show_files(record)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/fedevg-digits"))
