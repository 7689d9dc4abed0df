"""Five clients, each with few kinds of digits, make a labelled set that teaches all ten; no row and no weight travels.

    python examples/fedevg_digits.py [FOLDER]

Writes a run's folder with the synthetic rows (synthetic.npz), a picture of them for every tenth round, every client's
score, and the server's classifier. A stopped run goes on when started again.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits

from commonweal import Federation, Record, Task, catalog, run
from commonweal.synthetic import judge

CLIENTS, ROUNDS = 5, 40


def federation(alpha: float = 0.3, seed: int = 0) -> Federation:
    """The classes of scikit-learn's digits, each spread over the clients by a draw from Dir(alpha)."""
    data, rng = load_digits(), np.random.default_rng(seed)
    share = rng.dirichlet([alpha] * CLIENTS, 10)
    owner = [f"client {rng.choice(CLIENTS, p=share[label])}" for label in data.target]
    return Federation.from_arrays((data.images[:, None] / 16).astype(np.float32), data.target, owner)


def main(folder: Path) -> None:
    torch.manual_seed(0)
    digits = federation()
    task = Task(catalog.build("models", "energy-cnn", shape=(1, 8, 8), outputs=10))
    fedevg = {"name": "fedevg", "restart": False, "lr": 2e-3}
    for done in run(task, digits, algorithm=fedevg, rounds=ROUNDS, evaluate_every=10, out=folder, resume=True):
        if done.metrics:
            mean, worst = (100 * done.metrics[name] for name in ("mean", "worst"))
            print(
                f"round {done.number}: the server's classifier scores {mean:.1f} %, {worst:.1f} % at the worst client"
            )
    record, made = Record.read(folder), np.load(folder / "synthetic.npz")
    x, y = torch.from_numpy(made["images"]), torch.from_numpy(made["labels"])
    found = judge(task, digits, task.vector(record.model()), x, y, epochs=10)
    traffic = record.rounds[-1]["bytes"]
    print(f"the saved classifier: {100 * found.metrics['mean']:.1f} %, {100 * found.metrics['worst']:.1f} % at worst")
    print(f"Frechet distance {found.frechet:.1f} (as many real rows: {found.frechet_real:.1f}); {found.extractor}")
    print(f"recognised {100 * found.recognised:.0f} %, classes covered {100 * found.coverage:.0f} %")
    print(f"to the nearest training row {found.nearest:.2f}; held-out real rows {found.nearest_held:.2f}")
    print(f"bytes a round: {traffic['down'] + traffic['up']:,}; as weights {traffic['weights']:,}")
    print(f"the rows: {folder / 'synthetic.npz'}, a picture: {folder / 'pictures' / f'{ROUNDS:06d}.png'}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/fedevg-digits"))
