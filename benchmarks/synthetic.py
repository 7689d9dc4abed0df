"""FedEvg, FedCGAN and FedCVAE, 10 clients: the thesis's tables 4.2 and 4.4, shortened.

    COMMONWEAL_DATA=... python benchmarks/synthetic.py [--datasets mnist fashion-mnist]
    python benchmarks/synthetic.py --datasets digits     # quick: scikit-learn's 8 x 8 digits

Shortened for two shared cores (in brackets what the thesis or its code has): 14 x 14 pixels
(32 x 32), 2,000 training images (60,000), ResNet-10 of width 4 (64), ROUNDS rounds (500), STEPS
batches of 32 per round (an epoch of 64), generators of width 16 (64), Adam's lr 0.002 (0.001). All
methods get the same rounds and batches. "real rows" is what as many real training rows are worth to
the server's classifier. Each client draws its label distribution from Dir(alpha, ..., alpha) and
takes N / K rows by it. Hsu's split, the partition `dirichlet`, has alpha / 10 in its place for ten
classes, and the authors' code alpha times a random number (it also gives rows to two clients). 20 %
of a client's rows are its test rows. The Frechet distance is to the whole test set, by features of
a classifier of real rows, as Inception's weights are not at hand: it compares methods, not papers.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from commonweal import metrics
from commonweal.base.tensors import State
from commonweal.config import catalog
from commonweal.data.federation import Federation
from commonweal.datasets import Pool
from commonweal.jobs.job import Job, job_from_parts
from commonweal.jobs.rounds import run
from commonweal.protocols.synthetic import assess
from commonweal.report.pictures import picture
from commonweal.task.task import Task

PAPERS = Path(__file__).parent / "published" / "models"
CLIENTS = 10
ROUNDS = 40
STEPS = 14
ROWS = 2000
ALPHAS = (0.01, 1.0)
REAL = "real rows"
SHARED = {"steps": STEPS, "batch": 32, "lr": 2e-3}
METHODS: dict[str, dict[str, Any]] = {
    "FedCGAN": {"name": "fedcgan", "width": 16, **SHARED},
    "FedCVAE": {"name": "fedcvae", "width": 16, **SHARED},
    "FedEvg": {"name": "fedevg", **SHARED},
    REAL: {"name": "fedevg", **SHARED},  # its classifier, on real rows instead of synthetic ones
}


class Published(NamedTuple):
    """MNIST, 10 clients, alpha 0.01 and 1 (Hahn 2024, tables 4.2 and 4.4)."""

    accuracy: tuple[float, float]  # in per cent
    distance: tuple[float, float]  # by Inception


THESIS = {
    "FedCGAN": Published((44.18, 60.81), (331.48, 300.67)),
    "FedCVAE": Published((66.93, 64.73), (214.35, 181.30)),
    "FedEvg": Published((62.95, 70.94), (171.53, 124.72)),
}

Result = dict[str, Any]  # metrics of a run, as JSON


# Data


class Images(NamedTuple):
    """Images in [0, 1]."""

    x: np.ndarray  # training
    y: np.ndarray
    held: np.ndarray  # all test images


def images(name: str) -> Images:
    if name == "digits":
        from sklearn.datasets import load_digits

        table = load_digits()
        x = (table.images[:, None] / 16).astype(np.float32)
        return Images(x[:1400], table.target[:1400], x[1400:])
    train = catalog.build("datasets", {"name": name, "part": "train"})
    test = catalog.build("datasets", {"name": name, "part": "test"})
    assert isinstance(train, Pool) and isinstance(test, Pool)
    return Images(halved(train.x[:ROWS]), train.y[:ROWS], halved(test.x))


def halved(x: np.ndarray) -> np.ndarray:
    """Images of 14 x 14 in [0, 1] from bytes of 28 x 28."""
    blocks = x.reshape(-1, 1, 14, 2, 14, 2)
    small: np.ndarray = blocks.mean((3, 5), dtype=np.float32) / 255
    return small


def split(y: np.ndarray, alpha: float, seed: int) -> list[str]:
    """The client of each row, drawn as for the tables in docs/synthetic.md."""
    rng = np.random.default_rng(seed)
    owner = np.empty(len(y), np.int64)
    pools = [rng.permutation(np.flatnonzero(y == c)).tolist() for c in range(10)]
    for client, chance in enumerate(rng.dirichlet([alpha] * 10, CLIENTS)):
        for _ in range(len(y) // CLIENTS + (client < len(y) % CLIENTS)):
            left = np.array([len(pool) > 0 for pool in pools])
            p = chance * left
            if p.sum() <= 1e-9:  # its classes are used up: any other
                p = left.astype(float)
            owner[pools[rng.choice(10, p=p / p.sum())].pop()] = client
    return [f"client {k}" for k in owner]


# Runs


def finish(job: Job, method: str, federation: Federation) -> tuple[State, dict[str, int]]:
    """The server's state at the end, and the bytes of a round."""
    if method != REAL:
        *_, last = run(job)
        return last.state, last.bytes
    labels = federation.train.y
    some = torch.cat([torch.nonzero(labels == c)[:10, 0] for c in range(10)])
    rows = {"x": federation.train.x[some], "y": labels[some]}
    return job.algorithm.before_evaluation(job.initial_state() | rows), {}


def one(name: str, alpha: float, method: str, seed: int, out: Path) -> Result:
    """A run and the quality of its rows, kept in a file so that it is not repeated."""
    path = out / f"{name}-{alpha:g}-{method}-{seed}.json"
    if path.exists():
        known: Result = json.loads(path.read_text())
        return known
    x, y, held = images(name)
    federation = Federation.from_arrays(x, y, split(y, alpha, seed), seed=seed)
    torch.manual_seed(seed)
    model = {"name": f"{PAPERS}/energy_resnet.py:energy_resnet", "width": 4}
    if name == "digits":
        model = {"name": "energy-cnn", "width": 16}
    task = Task(catalog.build("models", model, shape=x.shape[1:], outputs=10))
    start = time.perf_counter()
    settings = {"rounds": ROUNDS, "seed": seed, "evaluate_every": ROUNDS}
    job = job_from_parts(task, federation, algorithm=METHODS[method], **settings)
    state, moved = finish(job, method, federation)
    seconds = time.perf_counter() - start
    samples = job.algorithm.samples(state)
    assert samples is not None
    w = job.algorithm.model(state)
    real = torch.from_numpy(held)
    quality = assess(task, federation, w, *samples, held=real, epochs=10, seed=seed)
    numbers = {k: v for k, v in vars(quality).items() if not isinstance(v, Tensor | dict)}
    result = {**quality.metrics, **numbers, "bytes": moved, "seconds": seconds}
    out.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".png").write_bytes(picture(*samples))
    path.write_text(json.dumps(result))
    return result


# The table and the figure


HEAD = [
    "data",
    "alpha",
    "method",
    "accuracy %",
    "thesis",
    "worst client %",
    "Frechet",
    "thesis",
    "of real rows",
    "recognised %",
    "coverage %",
    "nearest",
    "of held-out",
    "near %",
    "MB per round",
    "MB as weights",
    "s",
]


def cell(runs: list[Result], key: str, factor: float = 1.0, digits: int = 1) -> str:
    """Mean (std) over the seeds."""
    mean, spread = metrics.spread([factor * each[key] for each in runs])
    return f"{mean:.{digits}f} ({spread:.{digits}f})"


def line(name: str, alpha: float, method: str, runs: list[Result]) -> str:
    """A line of the table."""
    published = THESIS.get(method) if name == "mnist" else None
    column = ALPHAS.index(alpha)
    sent = runs[0]["bytes"]
    cells = [
        name,
        f"{alpha:g}",
        method,
        cell(runs, "mean", 100),
        "-" if published is None else f"{published.accuracy[column]:.2f}",
        cell(runs, "worst", 100),
        cell(runs, "frechet"),
        "-" if published is None else f"{published.distance[column]:.2f}",
        cell(runs, "frechet_real"),
        cell(runs, "recognised", 100, 0),
        cell(runs, "coverage", 100, 0),
        cell(runs, "nearest", 1, 2),
        cell(runs, "nearest_held", 1, 2),
        cell(runs, "near", 100, 0),
        f"{(sent.get('down', 0) + sent.get('up', 0)) / 1e6:.2f}",
        f"{sent.get('weights', 0) / 1e6:.2f}",
        cell(runs, "seconds", 1, 0),
    ]
    return "| " + " | ".join(cells) + " |"


def draw(name: str, alpha: float, out: Path, path: Path) -> None:
    """Real rows beside those of each method, seed 1 (the thesis's Figure 4.1 has alpha 0.01)."""
    import io

    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    x, y, _ = images(name)
    some = np.concatenate([np.flatnonzero(y == c)[:10] for c in range(10)])
    sheets = {"real training rows": picture(torch.from_numpy(x[some]), torch.from_numpy(y[some]))}
    for method in THESIS:
        sheets[method] = (out / f"{name}-{alpha:g}-{method}-1.png").read_bytes()
    canvas, axes = plt.subplots(1, 4, figsize=(12, 3.3), layout="constrained")
    for axis, (title, sheet) in zip(axes, sheets.items(), strict=True):
        axis.imshow(plt.imread(io.BytesIO(sheet)))
        axis.set_title(title)
        axis.axis("off")
    canvas.savefig(path, dpi=64)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--datasets", nargs="+", default=["mnist", "fashion-mnist"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--out", type=Path, default=Path("runs/synthetic"))
    parser.add_argument("--figure", type=Path, help="draw the last dataset's rows at alpha 0.01")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| " + " | ".join(HEAD) + " |\n|" + "---|" * len(HEAD), flush=True)
    for name in arguments.datasets:
        for alpha in ALPHAS:
            for method in METHODS:
                runs = [one(name, alpha, method, s, arguments.out) for s in arguments.seeds]
                print(line(name, alpha, method, runs), flush=True)
    print(f"\nfeatures: {runs[0]['extractor']}")
    if arguments.figure:
        draw(name, ALPHAS[0], arguments.out, arguments.figure)


if __name__ == "__main__":
    main()
