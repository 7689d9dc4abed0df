"""Datasets whose original files are there, against the figures of publishers and papers."""

import csv
import gzip
import lzma
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import commonweal
from commonweal.data.federation import Federation
from commonweal.datasets import berka, celeba, isic, shakespeare

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


def test_berka(real: Real) -> None:
    folder = real("berka") / "berka"
    for features in ("leaky", "pre-loan"):
        federation = commonweal.dataset("berka", features=features)
        assert sizes(federation) == [129, 117, 90, 84, 84, 60, 57]
        assert federation.names[0] == "south Moravia"
        assert "north Bohemia" not in federation.names
        assert federation.counts[:, 1].tolist() == [13, 18, 10, 7, 9, 9, 9]
        assert federation.train.x.shape[1] == 15
    n = np.array(sizes(federation))
    assert (round(n.mean(), 2), round(n.std(), 2)) == (88.71, 24.78)  # AAggFF, table A2
    with open(folder / "loan.asc") as file:
        status = Counter(record["status"] for record in csv.DictReader(file, delimiter=";"))
    assert status == {"A": 203, "B": 31, "C": 403, "D": 45}


def test_some_regions_of_berka_are_those_of_all(real: Real) -> None:
    real("berka")
    everything = commonweal.dataset("berka")
    some = commonweal.dataset("berka", clients=3)
    assert some.clients == 3
    for k, name in enumerate(some.names):
        same = everything.names.index(name)
        assert torch.equal(some.train.client(k).x, everything.train.client(same).x)
        assert torch.equal(some.test.client(k).y, everything.test.client(same).y)


def test_berka_aggregates_are_those_of_the_transactions(real: Real, tmp_path: Path) -> None:
    """The raw rows of the loans of 1997-98 as trans.asc give the figures of the aggregates."""
    folder = real("berka") / "berka"
    for name in berka.TABLES:
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    raw = gzip.decompress((folder / "trans_preloan_1997_1998.csv.gz").read_bytes())
    (tmp_path / "trans.asc").write_bytes(raw)
    with open(folder / "loan.asc") as file:
        loans = {r["account_id"]: r["date"] for r in csv.DictReader(file, delimiter=";")}
    from_raw = berka.summarize_transactions(str(tmp_path), loans, leaky=False)
    from_aggregates = berka.summarize_transactions(str(folder), loans, leaky=False)
    late = [account for account, day in loans.items() if day >= "970101"]
    assert len(late) == 354
    for account in late:
        assert from_raw[account][0] == from_aggregates[account][0]
        assert from_raw[account][2] == pytest.approx(from_aggregates[account][2], abs=1e-3)


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


def test_mqp(real: Real) -> None:
    real("mqp")
    federation = commonweal.dataset("mqp", width=256)
    assert sizes(federation) == [130, 426, 280, 272, 276, 280, 278, 280, 280, 280, 266]
    assert torch.equal(federation.counts[:, 0], federation.counts[:, 1])
    assert federation.train.x.shape[1] == 513


def test_a_model_learns_from_the_features_of_mqp(real: Real) -> None:
    real("mqp")
    federation = commonweal.dataset("mqp")
    model = commonweal.model("logistic", shape=(2049,), outputs=1)
    task = commonweal.Task(model, federation.loss, "accuracy")
    client = {"name": "sgd", "lr": 1.0}
    *_, last = commonweal.run(task, federation, rounds=10, evaluate_every=10, client=client)
    # Its README: 70.3 with tf-idf after training to the end; chance is 50.
    assert last.metrics["mean"] > 0.62


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


def test_celeba_lists(real: Real) -> None:
    folder = real("celeba_meta") / "celeba_meta"
    identities = folder / "identity_CelebA.txt.gz"
    photos = celeba.from_lists(identities, folder / "list_attr_celeba.csv.zip", "Smiling")
    count = Counter(photo.person for photo in photos.values())
    assert (len(photos), len(count)) == (202_599, 10_177)
    assert sum(n >= 5 for n in count.values()) == 9_343  # LEAF's celebrities
    leaf = celeba.from_leaf(sorted(folder.glob("*.json.gz")))
    assert (len(leaf), len({photo.person for photo in leaf.values()})) == (9_060 + 2_399, 515)
    assert Counter(photo.part for photo in leaf.values()) == {"train": 9_060, "test": 2_399}
    for name, photo in leaf.items():
        assert (photos[name].person, photos[name].label) == (photo.person, photo.label)


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


def test_fsdd(real: Real) -> None:
    real("fsdd")
    federation = commonweal.dataset("fsdd", test="official")
    speakers = ("george", "jackson", "lucas", "nicolas", "theo", "yweweler")
    assert federation.names == speakers
    assert set(federation.counts.flatten().tolist()) == {50}
    assert set(federation.test.sizes.tolist()) == {50} and federation.train.x.dtype == torch.int16


def test_a_model_learns_from_the_spectra_of_fsdd(real: Real) -> None:
    real("fsdd")
    spectra = commonweal.dataset("fsdd", features="spectra")
    task = commonweal.Task(commonweal.model("logistic", shape=(512,), outputs=10))
    *_, last = commonweal.run(task, spectra, rounds=5, evaluate_every=5)
    assert last.metrics["mean"] > 0.7  # its README: 86.7 after training to the end


def test_isic_table(real: Real) -> None:
    folder = real("isic2019_meta") / "isic2019_meta"
    lesions = isic.read_split(folder / "train_test_split.csv.gz")
    assert len(lesions) == 23_247
    count = Counter((lesion.centre, lesion.is_test) for lesion in lesions.values())
    assert [count[c, False] for c in range(6)] == [9930, 3163, 2691, 1807, 655, 351]
    assert [count[c, True] for c in range(6)] == [2483, 791, 672, 452, 164, 88]


def test_ptb_and_cornell(real: Real) -> None:
    folder = real("ptb", "cornell_sample")
    federation = commonweal.dataset("ptb-cornell", sample=True, words=2000)
    assert federation.names == ("conversation", "document") and federation.loss == "tokens"
    text = gzip.decompress((folder / "ptb" / "ptb.train.txt.gz").read_bytes()).decode()
    words = len(text.split()) + text.count("\n")
    assert text.count("\n") == 42_068 and words == 929_589
    assert federation.train.sizes[1] == (words - 1) // 35
    # The targets are the next words.
    assert torch.equal(federation.train.x[:, 1:].long(), federation.train.y[:, :-1])
