"""Datasets of the papers' tables whose original files are there, against published figures."""

import csv
import gzip
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import commonweal
from commonweal.data.federation import Federation
from papers import paper
from published.datasets import berka, celeba, isic

Real = Callable[..., Path]


def sizes(federation: Federation) -> list[int]:
    both: list[int] = (federation.train.sizes + federation.test.sizes).tolist()
    return both


def test_berka(real: Real) -> None:
    folder = real("berka") / "berka"
    for features in ("leaky", "pre-loan"):
        federation = commonweal.dataset(paper("berka"), features=features)
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
    everything = commonweal.dataset(paper("berka"))
    some = commonweal.dataset(paper("berka"), clients=3)
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


def test_mqp(real: Real) -> None:
    real("mqp")
    federation = commonweal.dataset(paper("mqp"), width=256)
    assert sizes(federation) == [130, 426, 280, 272, 276, 280, 278, 280, 280, 280, 266]
    assert torch.equal(federation.counts[:, 0], federation.counts[:, 1])
    assert federation.train.x.shape[1] == 513


def test_a_model_learns_from_the_features_of_mqp(real: Real) -> None:
    real("mqp")
    federation = commonweal.dataset(paper("mqp"))
    model = commonweal.model("logistic", shape=(2049,), outputs=1)
    task = commonweal.Task(model, "binary", "accuracy")
    client = {"name": "sgd", "lr": 1.0}
    *_, last = commonweal.run(task, federation, rounds=10, evaluate_every=10, client=client)
    # Its README: 70.3 with tf-idf after training to the end; chance is 50.
    assert last.metrics["mean"] > 0.62


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


def test_fsdd(real: Real) -> None:
    real("fsdd")
    federation = commonweal.dataset(paper("fsdd"), test="official")
    speakers = ("george", "jackson", "lucas", "nicolas", "theo", "yweweler")
    assert federation.names == speakers
    assert set(federation.counts.flatten().tolist()) == {50}
    assert set(federation.test.sizes.tolist()) == {50} and federation.train.x.dtype == torch.int16


def test_a_model_learns_from_the_spectra_of_fsdd(real: Real) -> None:
    real("fsdd")
    spectra = commonweal.dataset(paper("fsdd"), features="spectra")
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
    federation = commonweal.dataset(paper("ptb-cornell"), sample=True, words=2000)
    assert federation.names == ("conversation", "document") and federation.labels == "tokens"
    text = gzip.decompress((folder / "ptb" / "ptb.train.txt.gz").read_bytes()).decode()
    words = len(text.split()) + text.count("\n")
    assert text.count("\n") == 42_068 and words == 929_589
    assert federation.train.sizes[1] == (words - 1) // 35
    # The targets are the next words.
    assert torch.equal(federation.train.x[:, 1:].long(), federation.train.y[:, :-1])
