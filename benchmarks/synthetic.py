"""FedEvg, FedCGAN and FedCVAE on MNIST and Fashion-MNIST, 10 clients: the thesis's tables 4.2 and 4.4, shortened.

    python benchmarks/synthetic.py --data FOLDER [--datasets mnist fashion_mnist] [--seeds 1 2] [--out FOLDER]
    python benchmarks/synthetic.py --datasets digits          the quick version, scikit-learn's own 8 x 8 digits

FOLDER holds mnist/ and fashion_mnist/ with the four IDX files each. Shortened for two shared cores (in brackets what
the thesis or its code has): 14 x 14 pixels (32 x 32), 2,000 training images (60,000), ResNet-10 of width 4 (64), ROUNDS
rounds (500), STEPS batches of 32 a visit (an epoch of 64), generators of width 16 (64), Adam's rate 0.002 (0.001). All
three methods get the same rounds and batches; the line "real rows" is what as many real training rows are worth to the
server's classifier. The split is Hsu et al.'s: each client draws its labels' distribution from Dir(alpha) and takes
N / K rows by it (the authors' code hands rows out twice); 20 % of its rows are its test rows. The
Frechet distance is to the whole test set, by features of a classifier of real rows, since Inception's weights are not
at hand: compare methods with it, not papers.
"""

import argparse
import gzip
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from commonweal import catalog, metrics
from commonweal.federation import Federation
from commonweal.run import given, run
from commonweal.synthetic import judge, picture
from commonweal.task import Task

CLIENTS, ROUNDS, STEPS, ROWS, ALPHAS = 10, 40, 14, 2000, (0.01, 1.0)
SHARED = {"steps": STEPS, "batch": 32, "lr": 2e-3}
METHODS: dict[str, dict[str, Any]] = {
    "FedCGAN": {"name": "fedcgan", "width": 16, **SHARED},
    "FedCVAE": {"name": "fedcvae", "width": 16, **SHARED},
    "FedEvg": {"name": "fedevg", **SHARED},
    "real rows": {"name": "fedevg", **SHARED},  # its classifier, with real rows in the place of synthetic ones
}
# MNIST, 10 clients, alpha 0.01 and 1 (Hahn 2024, tables 4.2 and 4.4): accuracy in per cent, Inception distance.
THESIS: dict[str, tuple[float, ...]] = {
    "FedCGAN": (44.18, 60.81, 331.48, 300.67),
    "FedCVAE": (66.93, 64.73, 214.35, 181.30),
}
THESIS["FedEvg"] = (62.95, 70.94, 171.53, 124.72)


def idx(path: Path) -> np.ndarray:
    data = gzip.decompress(path.read_bytes())
    sides = np.frombuffer(data, ">i4", data[3], 4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(sides)


def images(name: str, folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Training images and labels, and all test images, in [0, 1]."""
    if name == "digits":
        from sklearn.datasets import load_digits

        x, y = load_digits().images[:, None] / 16, load_digits().target
        return x[:1400].astype(np.float32), y[:1400], x[1400:].astype(np.float32)
    x, held = (idx(folder / name / f"{part}-images-idx3-ubyte.gz") for part in ("train", "t10k"))
    y = idx(folder / name / "train-labels-idx1-ubyte.gz")[:ROWS].astype(np.int64)
    pooled = [p.reshape(-1, 1, 14, 2, 14, 2).mean((3, 5), dtype=np.float32) / 255 for p in (x[:ROWS], held)]
    return pooled[0], y, pooled[1]


def split(y: np.ndarray, alpha: float, seed: int) -> list[str]:
    """The client of each row."""
    rng, owner = np.random.default_rng(seed), np.empty(len(y), np.int64)
    pools = [rng.permutation(np.flatnonzero(y == c)).tolist() for c in range(10)]
    for client, chance in enumerate(rng.dirichlet([alpha] * 10, CLIENTS)):
        for _ in range(len(y) // CLIENTS + (client < len(y) % CLIENTS)):
            left = np.array([len(pool) > 0 for pool in pools])
            p = chance * left if (chance * left).sum() > 1e-9 else left  # its classes are used up: any other
            owner[pools[rng.choice(10, p=p / p.sum())].pop()] = client
    return [f"client {k}" for k in owner]


def one(name: str, alpha: float, method: str, seed: int, folder: Path, out: Path) -> dict[str, Any]:
    """A run and its judgement, kept in a file so that what was done is not done again."""
    path = out / f"{name}-{alpha:g}-{method}-{seed}.json"
    if path.exists():
        return dict(json.loads(path.read_text()))
    x, y, held = images(name, folder)
    federation = Federation.from_arrays(x, y, split(y, alpha, seed), seed=seed)
    torch.manual_seed(seed)
    model = {"name": "energy-cnn", "width": 16} if name == "digits" else {"name": "energy-resnet", "width": 4}
    task, start = Task(catalog.build("models", model, shape=x.shape[1:], outputs=10)), time.perf_counter()
    job = given(task, federation, algorithm=METHODS[method], rounds=ROUNDS, seed=seed, evaluate_every=ROUNDS)
    if method == "real rows":
        real, labels = federation.train.x, federation.train.y
        some = torch.cat([torch.nonzero(labels == c)[:10, 0] for c in range(10)])
        server, moved = job.algorithm.init(task, CLIENTS) | {"x": real[some], "y": labels[some]}, dict[str, int]()
    else:
        *_, done = run(job)
        server, moved = done.server, done.bytes
    spent = time.perf_counter() - start
    made, labels = job.algorithm.samples(server)  # type: ignore[attr-defined]
    w = job.algorithm.model(task, server)
    found = judge(task, federation, w, made, labels, held=torch.from_numpy(held), epochs=10, seed=seed)
    out.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".png").write_bytes(picture(made, labels))
    numbers = {key: value for key, value in vars(found).items() if not isinstance(value, Tensor | dict)}
    result = {**found.metrics, **numbers, "bytes": moved, "seconds": spent}
    path.write_text(json.dumps(result))
    return result


def show(name: str, alpha: float, method: str, runs: list[dict[str, Any]]) -> str:
    """A line of the table: mean (spread) over seeds."""

    def cell(key: str, times: float = 1.0, digits: int = 1) -> str:
        mean, spread = metrics.spread([times * r[key] for r in runs])
        return f"{mean:.{digits}f} ({spread:.{digits}f})"

    column = ALPHAS.index(alpha)
    known = name == "mnist" and method in THESIS
    thesis = [f"{THESIS[method][column + 2 * k]:.2f}" if known else "-" for k in (0, 1)]
    cells = [name, f"{alpha:g}", method, cell("mean", 100), thesis[0], cell("worst", 100), cell("frechet"), thesis[1]]
    cells += [cell("frechet_real"), cell("recognised", 100, 0), cell("coverage", 100, 0), cell("nearest", 1, 2)]
    cells += [cell("nearest_held", 1, 2), cell("near", 100, 0)]
    sent, weights = (sum(runs[0]["bytes"].get(k, 0) for k in keys) for keys in (("down", "up"), ("weights",)))
    return "| " + " | ".join([*cells, f"{sent / 1e6:.2f}", f"{weights / 1e6:.2f}", cell("seconds", 1, 0)]) + " |"


def figure(name: str, alpha: float, folder: Path, out: Path, path: Path) -> None:
    """Real rows beside what each method made of them, seed 1 (the thesis's Figure 4.1 has alpha 0.01)."""
    import io

    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    x, y, _ = images(name, folder)
    some = np.concatenate([np.flatnonzero(y == c)[:10] for c in range(10)])
    sheets = {"real training rows": picture(torch.from_numpy(x[some]), torch.from_numpy(y[some]))}
    sheets |= {m: (out / f"{name}-{alpha:g}-{m}-1.png").read_bytes() for m in THESIS}
    canvas, axes = plt.subplots(1, 4, figsize=(12, 3.3), layout="constrained")
    for axis, (title, data) in zip(axes, sheets.items(), strict=True):
        axis.imshow(plt.imread(io.BytesIO(data)))
        axis.set_title(title)
        axis.axis("off")
    canvas.savefig(path, dpi=64)


HEAD = "data | alpha | method | accuracy % | thesis | worst client % | Frechet | thesis | of real rows | recognised % |"
HEAD += " coverage % | nearest | of held-out | near % | MB a round | MB as weights | s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--datasets", nargs="+", default=["mnist", "fashion_mnist"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--out", type=Path, default=Path("runs/synthetic"))
    parser.add_argument("--figure", type=Path, help="where a picture of the last data's rows at alpha 0.01 goes")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"| {HEAD} |\n|" + "---|" * (HEAD.count("|") + 1), flush=True)
    for name in arguments.datasets:
        for alpha in ALPHAS:
            for method in METHODS:
                runs = [one(name, alpha, method, s, arguments.data, arguments.out) for s in arguments.seeds]
                print(show(name, alpha, method, runs), flush=True)
    print(f"\nfeatures: {runs[0]['extractor']}")
    if arguments.figure:
        figure(name, ALPHAS[0], arguments.data, arguments.out, arguments.figure)


if __name__ == "__main__":
    main()
