"""Datasets whose original files are there, against the figures of publishers and papers."""

import lzma
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import commonweal
from commonweal.data.federation import Federation
from commonweal.datasets import shakespeare

Real = Callable[..., Path]
ONE = {"name": "iid", "clients": 1}


def sizes(federation: Federation) -> list[int]:
    both: list[int] = (federation.train.sizes + federation.test.sizes).tolist()
    return both


def rows(federation: Federation) -> tuple[int, int]:
    return len(federation.train.y), len(federation.test.y)


def test_vowel(real: Real) -> None:
    federation = commonweal.dataset("vowel")
    assert (federation.clients, federation.outputs, set(sizes(federation))) == (15, 11, {66})
    path = real("vowel") / "vowel" / "vowel-context.data"
    lines = path.read_text().splitlines()
    original = [[float(v) for v in line.replace(",", " ").split()] for line in lines]
    ours = torch.cat([federation.train.x, federation.test.x])
    assert len(original) == len(ours)
    assert sum(r[3] for r in original) == pytest.approx(float(ours[:, 0].sum()), abs=1e-3)


def test_digits() -> None:
    federation = commonweal.dataset("digits")
    assert sum(sizes(federation)) == 1797 and federation.train.x.shape[1:] == (1, 8, 8)
    balance = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert federation.counts.sum(0).tolist() == balance
    assert federation.train.x.dtype == torch.uint8 and int(federation.train.x.max()) == 255


def test_heart(real: Real) -> None:
    real("heart")
    federation = commonweal.dataset("heart")
    assert sizes(federation) == [303, 294, 123, 200]
    positives = 100 * federation.counts[:, 1] / federation.counts.sum(1)
    expected = [45.9, 36.1, 93.5, 74.5]
    assert positives.round(decimals=1).tolist() == pytest.approx(expected, abs=0.05)


def test_adult(real: Real) -> None:
    real("adult")
    federation = commonweal.dataset("adult")
    assert federation.names == ("doctorate", "rest") and sizes(federation) == [594, 48_248]
    assert rows(federation) == (32_561, 16_281)
    share = 100 * federation.counts[:, 1] / federation.counts.sum(1)
    assert share.tolist() == pytest.approx([72.6, 23.3], abs=0.05)
    # One level of each of eight features.
    assert set(federation.train.x.sum(1).tolist()) == {8.0}
    both = commonweal.dataset("adult", features="all")
    assert both.train.x.shape[1] == federation.train.x.shape[1] + 6
    assert float(both.train.x[:, -6:].mean(0).abs().max()) < 1e-4


BALANCE = {
    "mnist": [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958],
    "fashion-mnist": [7000] * 10,
}
MEAN = {"mnist": 0.1307, "fashion-mnist": 0.2860}


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_the_mnist_family(name: str, real: Real) -> None:
    real(name.replace("-", "_"))
    federation = commonweal.dataset(name, partition={"name": "iid", "clients": 10}, test="official")
    assert rows(federation) == (60_000, 10_000)
    assert federation.train.x.dtype == torch.uint8 and federation.train.x.shape[1:] == (1, 28, 28)
    assert federation.counts.sum(0).tolist() == BALANCE[name]
    mean = float(federation.train.x.float().mean()) / 255
    assert mean == pytest.approx(MEAN[name], abs=1e-4)


@pytest.mark.parametrize(("part", "total"), [("train", 60_000), ("test", 10_000)])
def test_a_part_of_mnist(part: str, total: int, real: Real) -> None:
    real("mnist")
    federation = commonweal.dataset("mnist", part=part, partition=ONE)
    assert rows(federation) == (0.8 * total, 0.2 * total)
    whole = commonweal.dataset("mnist", partition=ONE, test="official")
    publishers = whole.train if part == "train" else whole.test
    used = torch.cat([federation.train.x, federation.test.x]).long().sum((1, 2, 3))
    assert torch.equal(used.sort().values, publishers.x.long().sum((1, 2, 3)).sort().values)


def test_three_garments_of_afl(real: Real) -> None:
    real("fashion_mnist")
    federation = commonweal.dataset(
        "fashion-mnist", classes=[0, 2, 6], partition="labels", test="official"
    )
    assert federation.train.sizes.tolist() == [6000] * 3
    assert federation.test.sizes.tolist() == [1000] * 3
    assert torch.equal(federation.counts, torch.eye(3, dtype=torch.int64) * 7000)


@pytest.mark.parametrize("name", ["dirichlet", "dirichlet-by-class"])
def test_official_test_rows_follow_the_training_rows(name: str, real: Real) -> None:
    real("mnist")
    partition = {"name": name, "clients": 20, "alpha": 0.1}
    federation = commonweal.dataset("mnist", partition=partition, test="official")
    ratio = federation.test.y.bincount() / federation.train.y.bincount()
    for k in range(20):
        train = federation.train.client(k).y.bincount(minlength=10)
        test = federation.test.client(k).y.bincount(minlength=10)
        assert float((test - train * ratio).abs().max()) < 1  # in proportion, but for whole rows
    assert int(federation.test.sizes.sum()) == 10_000


def test_mnist_by_writer(real: Real) -> None:
    real("mnist", "qmnist_writers")
    federation = commonweal.dataset("mnist-writers")
    n = np.array(sizes(federation))
    assert (len(n), n.sum(), n.min(), n.max(), np.median(n)) == (539, 60_000, 19, 131, 116)
    series = commonweal.dataset("mnist-writers", by="series")
    by_name = dict(zip(series.names, sizes(series), strict=True))
    assert by_name == {"staff": 30_950, "students": 29_050}


def test_a_hundred_writers_of_mnist(real: Real) -> None:
    real("mnist", "qmnist_writers")
    everyone = commonweal.dataset("mnist-writers", seed=2)
    some = commonweal.dataset("mnist-writers", clients=100, seed=2)
    assert some.clients == 100 and set(some.names) < set(everyone.names)
    for k, name in enumerate(some.names):
        same = everyone.names.index(name)
        assert torch.equal(some.train.client(k).x, everyone.train.client(same).x)
    assert commonweal.dataset("mnist-writers", clients=100, seed=3).names != some.names


def test_femnist_sample(real: Real) -> None:
    real("femnist_sample")
    federation = commonweal.dataset("femnist", sample=True)
    assert federation.clients == 5 and "f3797_07" in federation.names
    assert federation.outputs == 62 and rows(federation) == (78, 89)
    assert float(federation.train.x[:, :, 0, 0].float().mean()) == 255  # white paper
    assert commonweal.dataset("femnist", sample=True, clients=2).outputs == 62


def spelt(codes: torch.Tensor) -> str:
    return "".join("\n" if code == 0 else chr(code + 31) for code in codes.tolist())


def test_shakespeare(real: Real) -> None:
    path = real("shakespeare") / "shakespeare" / shakespeare.ARCHIVE
    roles = dict(shakespeare.read_roles(path))
    assert len({name.split()[0] for name in roles}) == 37
    # Its README: 636 by a first parse.
    assert sum(len(text) >= 1000 for text in roles.values()) == 635
    assert sum(map(len, roles.values())) == pytest.approx(4.3e6, rel=0.01)
    assert roles["hamlet BERNARDO"].startswith("Who's there?\nLong live the king!\nHe.")
    assert "1kinghenryvi BISHOP OF WINCHESTER" in roles  # a name of two lines
    federation = commonweal.dataset("shakespeare", least=20_000, stride=80)
    hamlet = federation.names.index("hamlet HAMLET")
    text = roles["hamlet HAMLET"]
    train = federation.train.client(hamlet)
    assert spelt(train.x[3]) == text[240:320] and spelt(train.y[3:4]) == text[320]
    test = federation.test.client(hamlet)
    assert spelt(test.x[0]) == text[80 * len(train.y) :][:80]
    assert commonweal.dataset("shakespeare", least=20_000, stride=80, clients=4).clients == 4


@pytest.mark.parametrize(("name", "classes"), [("cifar10", 10), ("cifar100", 100)])
def test_cifar_subsets(name: str, classes: int, real: Real) -> None:
    folder = real(f"{name}_subset") / f"{name}_subset"
    federation = commonweal.dataset(name, sample=True, partition=ONE, test="official")
    assert rows(federation) == (3000, 1000) and federation.outputs == classes
    assert federation.counts[0].tolist() == [4000 // classes] * classes
    raw = lzma.decompress((folder / "test_1000.bin.xz").read_bytes())
    label = 1 if classes == 10 else 2
    pixels = list(raw[label : label + 3072])
    first = torch.tensor(pixels, dtype=torch.uint8).view(3, 32, 32)
    assert (federation.test.x == first).flatten(1).all(1).any()
    train = commonweal.dataset(name, sample=True, partition=ONE, part="train")
    assert sum(sizes(train)) == 3000


def test_pneumonia(real: Real) -> None:
    real("pneumoniamnist")
    federation = commonweal.dataset("medmnist", partition=ONE, test="official")
    assert federation.train.y.bincount().tolist() == [1214 + 135, 3494 + 389]
    assert federation.test.y.bincount().tolist() == [234, 390]
    assert commonweal.dataset("medmnist").clients == 100
